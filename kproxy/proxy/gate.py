"""Where responses with broker addresses wait for the listeners that they name.

::

    response, whole ─▶ offer ─┬─▶ Ready(with our addresses in it)      it may leave
                              └─▶ Waiting(node ids)                    parked until their listeners
                                                                       are open: `take`, `offer`

The gate of a connection owns what is parked, and remembers the last response that it rewrote:
brokers repeat themselves, and a client that refreshes its metadata gets the same but for the
correlation id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import attrs

from kproxy.exchange.entries import Frame, Splice
from kproxy.protocol import ProtocolError, codec
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Violation
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.rewrite import Tail
from kproxy.proxy.verdicts import Verdict

_REMEMBERED_BYTES_MAX = 16 << 10
_REMEMBERED_NS = 60_000_000_000


@final
@attrs.define(eq=False)
class Ready:
    """What a response becomes."""

    sent: bytes
    """Of a tail: the tail."""
    splices: Sequence[Splice] = ()
    damaged: bool = False
    """Whether it is not what its schema says: then it leaves as it came."""


@final
@attrs.define(eq=False)
class Waiting:
    """A response may not leave yet."""

    brokers: Mapping[int, Address]
    """The brokers that it names and that have no listener yet, by node id."""


@attrs.frozen
class _Rewritten:
    """A response, and what became of it."""

    api_key: int
    api_version: int
    generation: int
    """Of the nodes: with another, its addresses would become others."""
    until_ns: int
    """From then on it is looked into again, so that the nodes know that they are named."""
    came: bytes
    """All behind the correlation id."""
    sent_size: bytes
    sent: bytes
    """What was sent instead: the size prefix, and all behind the correlation id."""
    splices: Sequence[Splice]


@attrs.define(eq=False)
class Held:
    """A response that was held back until it was whole, on its way out."""

    frame: Frame
    """As the recording gets it."""
    data: bytes
    """As it shall leave, but for the addresses."""
    tail: Tail | None = None
    """Of a response that has left but for its end: that end."""
    verdict: Verdict | None = None
    """What a rule decided about it."""
    splices: Sequence[Splice] = ()
    """What makes `frame` to `data`, where kproxy itself has changed it."""


class AddressGate:
    """The gate of one connection."""

    def __init__(self, nodes: Nodes, advertised: Mapping[int, Address], share: Share) -> None:
        self._nodes = nodes
        self._advertised = advertised
        self._share = share
        self._last: _Rewritten | None = None
        self._held: Held | None = None
        self.parked = False
        """Whether a response waits."""
        self._awaited: Mapping[int, Address] = {}

    @property
    def awaited(self) -> Mapping[int, Address]:
        """The brokers whose listeners must be open before the parked response may leave."""
        return self._nodes.without_listener(self._awaited)

    def offer(self, held: Held, now: int) -> Ready | Waiting:
        """Replace the addresses in a response by ours, or park it.

        Raises:
            Violation: all connections together hold too much for that.
        """
        if held.tail is None:
            kind = held.frame.api_key, held.frame.api_version
            again = self.rewrite_again(held.data, *kind, now)
            verdict = self.rewrite(held.data, *kind, now) if again is None else Ready(*again)
        else:
            verdict = self._rewrite_tail(held.tail, now)
        size = 0
        if isinstance(verdict, Waiting):
            size = len(held.data) + (sum(map(len, held.tail.pieces)) if held.tail else 0)
        if not self._share.hold(size):
            raise Violation(self._share.refusal(size))
        self.parked = isinstance(verdict, Waiting)
        self._held = held if self.parked else None
        self._awaited = verdict.brokers if isinstance(verdict, Waiting) else {}
        return verdict

    def take(self) -> Held | None:
        """Return what is parked, and park nothing any more."""
        self._share.release()
        held, self._held, self._awaited = self._held, None, {}
        self.parked = False
        return held

    def rewrite_again(
        self, frame: bytes, api_key: int, api_version: int, now: int
    ) -> tuple[bytes, Sequence[Splice]] | None:
        """Return what is sent instead of a response that is like the last one, and the splices."""
        last = self._last
        if last is None or last.api_key != api_key or frame[8:] != last.came:
            return None
        if last.api_version != api_version or last.generation != self._nodes.generation:
            return None
        if now >= last.until_ns:
            return None
        return last.sent_size + frame[4:8] + last.sent, last.splices

    def rewrite(self, frame: bytes, api_key: int, api_version: int, now: int) -> Ready | Waiting:
        """Like `offer`, for a whole response that is not like the last one; nothing is kept."""
        fields = rewrite.address_fields(api_key, api_version)
        if fields is None:
            return Ready(frame)
        try:
            body = fields.body
            if fields.compact and frame[body - 1 : body] != b"\0":
                body = codec.response_body(frame, api_key, api_version)
            found = rewrite.find(frame, fields, body)
        except ProtocolError:
            return Ready(frame, damaged=True)
        if found and (missing := self._nodes.learn(found, now)):
            return Waiting(missing)
        splices = rewrite.splices(found, self._advertised, fields)
        if not splices:
            return Ready(frame)
        sent = rewrite.apply(frame, splices)
        if len(frame) <= _REMEMBERED_BYTES_MAX:
            kind = api_key, api_version, self._nodes.generation, now + _REMEMBERED_NS
            self._last = _Rewritten(*kind, frame[8:], sent[:4], sent[8:], splices)
        return Ready(sent, splices)

    def _rewrite_tail(self, tail: Tail, now: int) -> Ready | Waiting:
        data = b"".join(tail.pieces)
        try:
            found = rewrite.find_in_tail(data, tail.fields)
            if missing := self._nodes.learn(found, now):
                return Waiting(missing)
            sent = rewrite.replace_tail(data, found, self._advertised, tail.fields)
        except ProtocolError:
            return Ready(data, damaged=True)
        return Ready(sent, () if sent == data else ((tail.offset or 0, len(data), sent),))
