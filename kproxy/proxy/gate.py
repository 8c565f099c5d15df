"""The gate where responses with broker addresses wait for the listeners that they name.

::

    response, whole ─▶ offer ─┬─▶ Ready: with our addresses in it      it may leave
                              └─▶ None                                 parked until the listeners
                                                                       are open: `take`, `offer`

The gate of a connection owns the parked response, and caches the last response that it rewrote:
a client that refreshes its metadata gets the same one but for the correlation id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

import attrs

from kproxy.exchange.entries import Frame, Splice
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Violation
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.rewrite import Tail
from kproxy.proxy.verdicts import NOTHING, Verdict
from kproxy.wire.protocol import ProtocolError, codec

_CACHED_BYTES_MAX = 16 << 10
_CACHED_NS = 60_000_000_000


@final
@attrs.define(eq=False)
class Ready:
    """A response that may leave."""

    sent: bytes
    """The frame as it leaves; for a streamed response only its tail."""
    splices: Sequence[Splice] = ()
    damaged: bool = False
    """It does not match its schema, and leaves as it came."""


@attrs.frozen
class _Rewritten:
    """The cached rewrite: a response, and the bytes that left in its place."""

    api_key: int
    api_version: int
    generation: int
    """The generation of the nodes: in another one the addresses would differ."""
    expires_ns: int
    """Cache expiry; parsing again refreshes `Node.named_ns`."""
    received: bytes
    """The bytes behind the correlation id."""
    sent_size: bytes
    sent: bytes
    """The bytes behind the correlation id, as they were sent."""
    splices: Sequence[Splice]


@attrs.define(eq=False)
class Held:
    """A response that was held back until it was whole, on its way out."""

    frame: Frame
    """The frame for the recording."""
    data: bytes
    """The bytes that shall leave, still with the broker's addresses."""
    tail: Tail | None = None
    """The end of a streamed response, whose other bytes have left."""
    verdict: Verdict = NOTHING
    """The verdict of a rule on it."""
    splices: Sequence[Splice] = ()
    """The difference between `frame` and `data`, where kproxy itself has changed it."""

    @property
    def sent_before(self) -> int:
        """The number of bytes that have left: of a streamed response, all before its tail."""
        return (self.tail.offset or 0) if self.tail else 0


class AddressGate:
    """The gate of one connection."""

    def __init__(self, nodes: Nodes, advertised: Callable[[int], Address], share: Share) -> None:
        self._nodes = nodes
        self._advertised = advertised
        self._share = share
        self._cached: _Rewritten | None = None
        self._held: Held | None = None
        self.parked = False
        """True while a response waits; an attribute, as each chunk asks."""
        self._awaited: Mapping[int, Address] = {}

    @property
    def awaited(self) -> Mapping[int, Address]:
        """The brokers whose listeners must be open before the parked response may leave."""
        return self._nodes.without_listener(self._awaited)

    def offer(self, held: Held, now: int) -> Ready | None:
        """Replace the addresses in a response by ours, or park the response.

        Raises:
            Violation: all connections together hold too much for that.
        """
        if held.tail is None:
            kind = held.frame.api_key, held.frame.api_version
            ready, missing = self._rewrite(held.data, *kind, now)
        else:
            ready, missing = self._rewrite_tail(held.tail, now)
        if ready is not None:
            return ready
        size = len(held.data) + (sum(map(len, held.tail.pieces)) if held.tail else 0)
        if not self._share.hold(size):
            raise Violation(self._share.refusal(size))
        self._held, self._awaited, self.parked = held, missing, True
        return None

    def take(self) -> Held | None:
        """Take the parked response; None if there is none."""
        self._share.release()
        held, self._held, self._awaited, self.parked = self._held, None, {}, False
        return held

    def rewrite_alike(
        self,
        data: bytes,
        start: int,
        sizes: Sequence[int],
        api_key: int,
        api_version: int,
        now: int,
    ) -> tuple[list[bytes], Sequence[Splice]]:
        """Return the first of the whole responses from `start` on as they leave, as many as have
        the same splices, and these: none, if the first one waits for a listener or is damaged."""
        sent: list[bytes] = []
        splices: Sequence[Splice] = ()
        cached = self._valid(api_key, api_version, now)
        for size in sizes:
            stop = start + size
            if cached is not None and data[start + 8 : stop] == cached.received:
                leaving = cached.sent_size + data[start + 4 : start + 8] + cached.sent
                changed = cached.splices
            else:
                ready, _ = self._rewrite(data[start:stop], api_key, api_version, now)
                if ready is None or ready.damaged:
                    break
                leaving, changed = ready.sent, ready.splices
                cached = self._valid(api_key, api_version, now)
            if sent and changed is not splices and changed != splices:
                break
            sent.append(leaving)
            splices, start = changed, stop
        return sent, splices

    def _valid(self, api_key: int, api_version: int, now: int) -> _Rewritten | None:
        """Return the cached rewrite if it is of this kind and still holds."""
        cached = self._cached
        if cached is None or cached.api_key != api_key or cached.api_version != api_version:
            return None
        if cached.generation != self._nodes.generation or now >= cached.expires_ns:
            return None
        return cached

    def _rewrite(
        self, frame: bytes, api_key: int, api_version: int, now: int
    ) -> tuple[Ready | None, Mapping[int, Address]]:
        """Replace the addresses in a whole response; None if it has to wait, with the brokers that
        it names and that have no listener yet."""
        fields = rewrite.address_fields(api_key, api_version)
        if fields is None:
            return Ready(frame), {}
        try:
            body = fields.body
            if fields.compact and frame[body - 1 : body] != b"\0":
                body = codec.response_body(frame, api_key, api_version)
            found = rewrite.find(frame, fields, body)
        except ProtocolError:
            return Ready(frame, damaged=True), {}
        if found and (missing := self._nodes.learn(found, now)):
            return None, missing
        splices = rewrite.splices(found, self._advertised, fields)
        if not splices:
            return Ready(frame), {}
        sent = rewrite.apply(frame, splices)
        if len(frame) <= _CACHED_BYTES_MAX:
            kind = api_key, api_version, self._nodes.generation, now + _CACHED_NS
            self._cached = _Rewritten(*kind, frame[8:], sent[:4], sent[8:], splices)
        return Ready(sent, splices), {}

    def _rewrite_tail(self, tail: Tail, now: int) -> tuple[Ready | None, Mapping[int, Address]]:
        data = b"".join(tail.pieces)
        try:
            found = rewrite.find_in_tail(data, tail.fields)
            if missing := self._nodes.learn(found, now):
                return None, missing
            sent = rewrite.replace_tail(data, found, self._advertised, tail.fields)
        except ProtocolError:
            return Ready(data, damaged=True), {}
        return Ready(sent, () if sent == data else ((tail.offset or 0, len(data), sent),)), {}
