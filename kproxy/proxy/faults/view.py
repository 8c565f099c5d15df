"""A request as the rules see it: decoded when the first of them asks, once.

Invariant: what is decoded is shared by all rules; nobody changes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from kproxy.exchange.arriving import ArrivingRequest
from kproxy.protocol import ProtocolError, codec
from kproxy.protocol.codec import Request, Response
from kproxy.proxy.faults.items import Item, Keys, Shape, items, own_keys, shape
from kproxy.proxy.faults.match import Match, Matcher
from kproxy.proxy.verdicts import RequestContext


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
        return ArrivingRequest.of(
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
