"""One proxied connection: a request stream and a response stream that share what is pending.

::

    client ─▶ RequestStream ──────────────▶ broker
                   │ pending (FIFO)
    client ◀── ResponseStream ◀──────────── broker

Invariants:

* Responses pair with requests in order; the correlation id must agree, or the connection ends.
* A request that is not answered (Produce with acks=0) never enters `pending`.
* Bytes of a direction leave in the order in which they came; nothing is sent after a violation.
* A client's half-close is passed on when what it asked for is answered; a broker's at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from kproxy.exchange.entries import CONNECTIONS, Frame, Note, Side
from kproxy.proxy.actions import Action, Address, Close, Eof, Fail, Log, Record, Send
from kproxy.proxy.leak import Leak
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.requests import RequestStream
from kproxy.proxy.responses import Check, ResponseStream, unanswered
from kproxy.proxy.stream import Output, Violation


class Connection:
    """The state of one connection, and what its events lead to."""

    def __init__(
        self,
        number: int,
        about: dict[str, Any],
        numbers: Iterator[int],
        nodes: Nodes,
        ours: Mapping[int, Address],
        check: Check | None,
        now: int,
    ) -> None:
        self.number = number
        self.about = about
        """What the recording says of it: node id, client address, listener, broker address."""
        self.pending: deque[Frame] = deque()
        self.responses = ResponseStream(self.pending, nodes, ours, check)
        self._requests = RequestStream(number, numbers, self.pending)
        self._opened_ns = now
        self.last_ns = now
        """When something last arrived."""
        self._ended: set[Side] = set()
        self._eof_due = False
        self.over = False

    def dialled(self, broker_address: str, now: int) -> list[Action]:
        """The broker's side is connected."""
        self.about["broker_address"] = broker_address
        return [Record([self._note("opened", self._opened_ns)])]

    def not_dialled(self, reason: str, now: int) -> list[Action]:
        """No broker address answered."""
        opened = self._note("opened", self._opened_ns)
        return [Record([opened]), *self._end(Side.BROKER, "refused", reason, now)]

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
        except Leak as error:
            return [Fail(str(error))]
        actions = self._passed(side, out, len(data))
        if side is Side.BROKER:
            self._after_responses(actions)
        return actions

    def resume(self, now: int) -> list[Action]:
        """The listeners that a parked response waited for are open."""
        out = Output()
        try:
            self.responses.resume(now, out)
        except Violation as error:
            return [
                *self._passed(Side.BROKER, out),
                *self._end(Side.BROKER, "violation", str(error), now),
            ]
        except Leak as error:
            return [Fail(str(error))]
        actions = self._passed(Side.BROKER, out)
        self._after_responses(actions)
        return actions

    def closed(self, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """One side half-closed ("eof") or broke (anything else)."""
        if how != "eof":
            return self._end(side, how, reason, now)
        out = Output()
        if side is Side.CLIENT:
            self._requests.finish(now, out)
        else:
            self.responses.finish(now, out)
        actions = self._passed(side, out)
        self._ended.add(side)
        if len(self._ended) == 2:
            return [*actions, *self._end(side, "eof", "", now)]
        if side is Side.BROKER:
            return [*actions, Eof(self.number, Side.CLIENT)]
        self._eof_due = True
        self._after_responses(actions)
        return actions

    def close(self, how: str, reason: str, now: int) -> list[Action]:
        """End it from our side: idle for too long, or the proxy stops."""
        return self._end(None, how, reason, now)

    def _after_responses(self, actions: list[Action]) -> None:
        if self.responses.accepted_tokens:
            self.responses.accepted_tokens = False
            self._requests.start_tokens()
        if self._eof_due and not self.pending:
            self._eof_due = False
            actions.append(Eof(self.number, Side.BROKER))

    def _passed(self, side: Side, out: Output, data_bytes: int = 0) -> list[Action]:
        actions: list[Action] = []
        if out.pieces:
            other = Side.BROKER if side is Side.CLIENT else Side.CLIENT
            actions.append(Send(self.number, other, out.pieces, out.frames))
        if out.entries:
            actions.append(Record(out.entries, data_bytes))
        return actions

    def _end(self, side: Side | None, how: str, reason: str, now: int) -> list[Action]:
        self.over = True
        out = Output()
        self._requests.finish(now, out)
        self.responses.finish(now, out)
        closing = [unanswered(request, now) for request in self.pending]
        self.pending.clear()
        note = self._note("closed", now, how=how, reason=reason)
        if side is not None:
            note.body["side"] = side.name.lower()
        actions: list[Action] = [Record([*out.entries, *closing, note])]
        if reason:
            actions.append(Log(f"connection {self.number} ({self._between()}) ended: {reason}"))
        abrupt = how not in ("eof", "idle", "stopped", "refused", "violation")
        return [*actions, Close(self.number, abrupt)]

    def _between(self) -> str:
        node_id = self.about["node_id"]
        node = "bootstrap" if node_id is None else f"node {node_id}"
        return f"{self.about['client_address']} → {node}"

    def _note(self, event: str, time_ns: int, **more: Any) -> Note:
        body = {"event": event, "connection": self.number, **self.about, **more}
        return Note(CONNECTIONS, time_ns, body)
