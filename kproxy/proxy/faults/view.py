"""A request as the rules see it: decoded once, when the first of them needs that.

Invariant: all rules share the decoded message; none changes it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from kproxy.exchange.arriving import ArrivingRequest
from kproxy.proxy.faults.items import Item, Keys, Shape, items, own_keys, shape
from kproxy.proxy.faults.match import Match, Matcher
from kproxy.proxy.verdicts import RequestContext
from kproxy.wire.protocol import ProtocolError, codec
from kproxy.wire.protocol.codec import Request, Response


class RequestView:
    """A request frame, its context, and its decoded content."""

    def __init__(self, context: RequestContext, frame: bytes, now: int) -> None:
        self.context = context
        self.frame = frame
        self.now = now
        self.api_key = int.from_bytes(frame[4:6], "big", signed=True)
        self.api_version = int.from_bytes(frame[6:8], "big", signed=True)
        self.session_items: Sequence[Item] | None = None
        """All items of a Fetch in a session, not only the changed ones; None for other requests."""

    @functools.cached_property
    def arriving(self) -> ArrivingRequest:
        """The request as filters see it."""
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
        """The client id in its header."""
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
        """The shape of its API and version; None if that is unknown."""
        return shape(self.api_key, self.api_version)

    @functools.cached_property
    def own(self) -> Keys:
        """The keys of all of its items."""
        if self.shape is None or self.request is None:
            return {}
        return own_keys(self.shape, self.request.body)

    @functools.cached_property
    def own_items(self) -> list[Item]:
        """The items that its bytes ask for."""
        if self.shape is None or self.request is None:
            return []
        return items(self.shape, self.request.body)

    @property
    def items(self) -> Sequence[Item]:
        """The items that it asks for, also through its session."""
        return self.own_items if self.session_items is None else self.session_items

    @functools.cached_property
    def no_response(self) -> bool:
        """True if the broker does not respond (Produce with acks=0)."""
        return self.api_key == 0 and self.request is not None and self.request.body.acks == 0

    def match(self, matcher: Matcher) -> Match:
        """Match a rule with the items: the best match of all."""
        if not matcher.terms:
            return Match.YES
        names = self.context.topic_names
        items = self.items or (Item(self.own),)
        return max(matcher.match(item, names) for item in items)

    def matching_items(self, matcher: Matcher) -> list[Item]:
        """Return the items that a rule matches, or may match."""
        names = self.context.topic_names
        return [item for item in self.items if matcher.match(item, names)]

    def decode_response(self, frame: bytes) -> Response | None:
        """Decode its response; None if that is not possible."""
        try:
            return codec.decode_response(frame, self.api_key, self.api_version)
        except ProtocolError:
            return None
