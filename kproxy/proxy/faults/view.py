"""A request as the rules see it: decoded when the first of them asks, once.

Invariant: what is decoded is shared by all rules; nobody changes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from kproxy.exchange.arriving import ArrivingRequest
from kproxy.protocol import ProtocolError, codec
from kproxy.protocol.codec import Request, Response
from kproxy.proxy.faults.items import Item, Keys, Shape, items, own_keys, shape
from kproxy.proxy.faults.match import Match, Matcher
from kproxy.proxy.verdicts import RequestContext, Verdict


class RequestView:
    """A request frame, what it comes with, and what can be read in it."""

    def __init__(self, context: RequestContext, frame: bytes, now: int) -> None:
        self.context = context
        self.frame = frame
        self.now = now
        self.api_key = int.from_bytes(frame[4:6], "big", signed=True)
        self.api_version = int.from_bytes(frame[6:8], "big", signed=True)
        self.session_items: Sequence[Item] | None = None
        """Of a Fetch in a session: all that it asks for, not only what it changes."""

    @functools.cached_property
    def arriving(self) -> ArrivingRequest:
        """What filters look at."""
        context = self.context
        return ArrivingRequest(
            self.frame,
            context.number,
            context.connection,
            context.node_id,
            context.client_address,
            context.received_ns,
            context.topic_names,
        )

    @functools.cached_property
    def client_id(self) -> str | None:
        """As its header says."""
        return self.arriving.client_id

    @functools.cached_property
    def request(self) -> Request | None:
        """The request decoded; None if that is not possible."""
        try:
            return codec.decode_request(self.frame)
        except ProtocolError:
            return None

    @property
    def shape(self) -> Shape | None:
        """How its API names what it is about; None if that is unknown."""
        return shape(self.api_key, self.api_version)

    @functools.cached_property
    def own(self) -> Keys:
        """The keys of all of its items."""
        if self.shape is None or self.request is None:
            return {}
        return own_keys(self.shape, self.request.body)

    @functools.cached_property
    def own_items(self) -> list[Item]:
        """What its bytes ask for."""
        if self.shape is None or self.request is None:
            return []
        return items(self.shape, self.request.body)

    @property
    def items(self) -> Sequence[Item]:
        """What it asks for."""
        return self.own_items if self.session_items is None else self.session_items

    @functools.cached_property
    def no_response(self) -> bool:
        """Whether the broker does not respond (Produce with acks=0)."""
        return self.api_key == 0 and self.request is not None and self.request.body.acks == 0

    def match(self, matcher: Matcher) -> Match:
        """Whether a rule means any of what it asks for."""
        if not matcher.terms:
            return Match.YES
        names = self.context.topic_names
        asked = self.items or (Item(self.own),)
        return max(matcher.match(item, names) for item in asked)

    def matched(self, matcher: Matcher) -> list[Item]:
        """The items that a rule means, or may mean."""
        names = self.context.topic_names
        return [item for item in self.items if matcher.match(item, names)]

    def decode_response(self, frame: bytes) -> Response | None:
        """Its response decoded; None if that is not possible."""
        try:
            return codec.decode_response(frame, self.api_key, self.api_version)
        except ProtocolError:
            return None

    def encode_response(self, response: Response) -> bytes:
        """The frame of its response."""
        return codec.encode_response(response, self.api_key)


Change = Callable[[bytes], bytes | None]
"""The broker's response → what the client gets in its place; None: nothing was to be changed."""


@attrs.frozen
class Plan:
    """What an action does to one exchange."""

    verdict: Verdict = attrs.field(factory=Verdict)
    """Without fault ids and notes."""
    change: Change | None = None
    """What it makes of the response, where it needs to see it."""

    @property
    def is_certain(self) -> bool:
        """Whether it is done with the request; else only if the response has what it changes."""
        return self.change is None or self.verdict.frames is not None


@attrs.frozen
class Hit:
    """One exchange that a rule hits: all that its action has to know."""

    view: RequestView
    name: str
    """The rule's."""
    value: Any
    """What the rule says behind the action's key, parsed."""
    phase: str
    level: str | None
    matcher: Matcher
    draw: Callable[[int], float]
    """Numbers from 0 up to 1 that belong to this hit: `draw(1)`, `draw(2)` …"""

    @functools.cached_property
    def items(self) -> list[Item]:
        """The items that the rule means."""
        return self.view.matched(self.matcher)

    def means(self, keys: Keys) -> bool:
        """Whether the rule means an element of the response that has these keys."""
        return self.matcher.means(self.view.own | keys, self.view.context.topic_names)
