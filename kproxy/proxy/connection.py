"""One proxied connection: a request stream and a response stream that share what is pending.

::

    client ─▶ RequestStream ──────────────▶ broker
                   │ pending (FIFO)
    client ◀── ResponseStream ◀──────────── broker

Invariants:

* Responses pair with requests in order; the correlation id must agree, or the connection ends.
* A request that is not answered (Produce with acks=0) never enters `pending`.
* Bytes of a direction leave in the order in which they came; nothing is sent after a violation.
* A client's half-close is passed on when what it asked for is answered, to the last byte; a
  broker's at once, but behind what waits for a listener.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from kproxy.exchange import notes
from kproxy.exchange.entries import Note, PendingRequest, Side
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Eof,
    Log,
    Pause,
    Record,
    Resume,
    Send,
)
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.requests import RequestStream
from kproxy.proxy.responses import ResponseStream
from kproxy.proxy.settings import Settings
from kproxy.proxy.stream import Output, Violation

_OTHER = {Side.CLIENT: Side.BROKER, Side.BROKER: Side.CLIENT}


class Connection:
    """The state of one connection, and what its events lead to."""

    def __init__(
        self,
        number: int,
        about: dict[str, Any],
        settings: Settings,
        numbers: Iterator[int],
        nodes: Nodes,
        advertised: Mapping[int, Address],
        now: int,
    ) -> None:
        self.number = number
        self.about = about
        """What the recording says of it: node id, client address, listener, broker address."""
        self.pending: deque[PendingRequest] = deque()
        self.responses = ResponseStream(number, self.pending, nodes, advertised)
        self._requests = RequestStream(number, numbers, self.pending, settings.request_bytes_max)
        self._pending_max = settings.pending_requests_max
        self._paused = False
        self._opened_ns = now
        self.last_ns = now
        """When something last arrived."""
        self._ended: list[Side] = []
        """The sides that have half-closed, in that order."""
        self._passed_on: set[Side] = set()
        """Those of which the other side was told."""
        self._noted = False
        self.over = False

    @property
    def busy(self) -> bool:
        """Whether the client waits for an answer, or for the rest of one."""
        return bool(self.pending) or self.responses.busy

    def dialled(self, broker_address: str, now: int) -> list[Action]:
        """The broker's side is connected."""
        self.about["broker_address"] = broker_address
        return [Record([self._opened()])]

    def not_dialled(self, reason: str, now: int) -> list[Action]:
        """No broker address answered."""
        return self._end(Side.BROKER, "down", reason, now)

    def receive(self, side: Side, data: bytes, now: int) -> list[Action]:
        """Bytes arrived from one side."""
        self.last_ns = now
        out = Output()
        stream = self._requests if side is Side.CLIENT else self.responses
        try:
            stream.feed(data, now, out)
        except Violation as error:
            return [
                *self._passed(side, out),
                *self._end(side, "violation", str(error), now),
            ]
        actions = self._passed(side, out, len(data))
        if side is Side.BROKER:
            self._after_responses(actions, now)
        elif len(self.pending) >= self._pending_max and not self._paused and not self._ended:
            self._paused = True
            actions.append(Pause(self.number))
        return actions

    def resume(self, now: int) -> list[Action]:
        """The listeners that a parked response waited for are open."""
        out = Output()
        try:
            self.responses.resume(now, out)
            if Side.BROKER in self._ended and not self.responses.waiting:
                self.responses.finish(now, out)
        except Violation as error:
            return [
                *self._passed(Side.BROKER, out),
                *self._end(Side.BROKER, "violation", str(error), now),
            ]
        actions = self._passed(Side.BROKER, out)
        self._after_responses(actions, now)
        return actions

    def closed(self, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side half-closed ("eof") or broke (anything else)."""
        if how != "eof":
            return self._end(side, how, reason, now)
        out = Output()
        if side is Side.CLIENT:
            self._requests.finish(now, out)
        elif not self.responses.waiting:
            self.responses.finish(now, out)
        actions = self._passed(side, out)
        self._ended.append(side)
        self._after_responses(actions, now)
        return actions

    def close(self, how: str, reason: str, now: int) -> list[Action]:
        """End it from our side: idle for too long, or the proxy stops."""
        return self._end(None, how, reason, now)

    def _after_responses(self, actions: list[Action], now: int) -> None:
        if self.responses.refused_tokens:
            self._requests.end_tokens(self.responses.refused_tokens)
            self.responses.refused_tokens = 0
        if self._paused and (self._ended or len(self.pending) <= self._pending_max // 2):
            # A broker that has ended answers no more: the client's end is all that is waited for.
            self._paused = False
            actions.append(Resume(self.number))
        if self._ended and not self.responses.waiting:
            self._pass_half_closes(actions, now)

    def _pass_half_closes(self, actions: list[Action], now: int) -> None:
        if len(self._ended) == 2:
            actions += self._end(self._ended[-1], "eof", "", now)
            return
        (side,) = self._ended
        if side not in self._passed_on and (side is Side.BROKER or not self.busy):
            self._passed_on.add(side)
            actions.append(Eof(self.number, _OTHER[side]))

    def _passed(self, side: Side, out: Output, data_bytes: int = 0) -> list[Action]:
        actions: list[Action] = []
        if out.pieces:
            actions.append(Send(self.number, _OTHER[side], out.pieces, out.timed))
        if out.entries:
            actions.append(Record(out.entries, data_bytes))
        return actions

    def _end(self, side: Side | None, how: str, reason: str, now: int) -> list[Action]:
        self.over = True
        out = Output()
        self._requests.finish(now, out)
        self.responses.finish(now, out)
        closing = [self.responses.unanswered(request, now) for request in self.pending]
        self.pending.clear()
        name = None if side is None else side.name.lower()
        note = notes.closed(self.number, now, self.about, how, reason, name)
        opened = [] if self._noted else [self._opened()]
        actions: list[Action] = [Record([*opened, *out.entries, *closing, note])]
        if reason and how != "down":  # which is said once for all connections
            actions.append(Log(f"connection {self.number} ({self._between()}) ended: {reason}"))
        abrupt = how not in ("eof", "idle", "stopped", "refused", "down", "violation")
        return [*actions, Close(self.number, abrupt)]

    def _between(self) -> str:
        node_id = self.about["node_id"]
        node = "bootstrap" if node_id is None else f"node {node_id}"
        return f"{self.about['client_address']} → {node}"

    def _opened(self) -> Note:
        self._noted = True
        return notes.opened(self.number, self._opened_ns, self.about)
