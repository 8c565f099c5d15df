"""The follower: pieces and notes in, exchanges out.

::

    piece ─▶ frames ─▶ request  ─▶ pending, by number ─┐
                   └▶ response ─────────────────────────┴─▶ ExchangeRow, places of both frames
    note  ─▶ who a connection is, its end

Sans-IO: it gets what a log holds, in its order, and knows no file. Of bytes it looks at the size of
each frame, at the headers of requests, and at the longest wait of a Fetch. A `piece` is whatever
the caller finds bytes by; a place is a piece, an offset in it and a size, or a list of such.

Invariants: memory is bounded by what is pending. A log that begins or breaks off anywhere gives
exchanges with one half missing, never an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange import facts
from kproxy.exchange.entries import (
    CLIENT_ENDED,
    CONNECTIONS,
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    NO_API,
    NO_NODE,
    NO_RESPONSE,
    OPEN_AT_END,
    RAW_SASL,
    REWRITTEN,
    SILENCED,
    TRUNCATED,
    UNANSWERED,
    ExchangeRow,
    Note,
)
from kproxy.protocol.codec import FETCH
from tests.benchmarks.log.pieces import BROKER_SIDE, LATE

_START = struct.Struct(">ihhi")
_SIZE = struct.Struct(">i")
_OF_EXCHANGES = ~(FRAGMENT | MORE | LATE | BROKER_SIDE)
_SPECIAL = LATE | UNANSWERED | FRAGMENT | TRUNCATED | RAW_SASL
_FRAME_BYTES_MAX = 0x7FFFFFFF
_NOTHING: dict[str, Any] = {}
_row = tuple.__new__


@attrs.define(eq=False)
class _Asked:
    """A request that is pending."""

    received_ns: int
    sent_ns: int
    api_key: int
    api_version: int
    correlation_id: int
    size: int
    flags: int
    wait_ms: int
    place: Any
    extras: dict[str, Any]

    def row(self, number: int, connection: int, node_id: int) -> ExchangeRow:
        """Return the row of its exchange so far."""
        extras = self.extras
        return ExchangeRow(
            number,
            self.received_ns,
            self.sent_ns,
            fault_ns=extras.get("fault_ns", 0),
            held_behind=extras.get("behind", 0),
            request_bytes=min(self.size, _FRAME_BYTES_MAX),
            connection=connection,
            node_id=node_id,
            correlation_id=self.correlation_id,
            max_wait_ms=self.wait_ms,
            api_key=self.api_key,
            api_version=self.api_version,
            request_flags=self.flags | (REWRITTEN if extras.get("splices") else 0),
            fault_ids=tuple(extras.get("fault_ids", ())),
        )


_NOT_RECORDED = _Asked(0, 0, NO_API, NO_API, 0, 0, 0, 0, None, _NOTHING)


@attrs.define(eq=False)
class _Peer:
    """A connection, with what is pending on it."""

    node_id: int = NO_NODE
    answered_ns: int = 0
    pending: dict[int, _Asked] = attrs.field(factory=dict)
    unfinished: dict[int, list[Any]] = attrs.field(factory=dict)
    """The places of the pieces of a frame that is not whole, by side."""


class Follower:
    """Follows one log. `on_exchange(row, request, response)` gets each exchange when it is
    complete, with the places of its frames, None where one is not in the log."""

    def __init__(self, on_exchange: Callable[[ExchangeRow, Any, Any], None]) -> None:
        self._on_exchange = on_exchange
        self._peers: dict[int, _Peer] = {}
        self._late: dict[tuple[int, int], tuple[ExchangeRow, Any, Any]] = {}
        """Exchanges whose last frame had not left, by number and side."""

    def note(self, note: Note) -> None:
        """Take a note."""
        number = note.body.get("connection")
        if note.channel != CONNECTIONS or not isinstance(number, int):
            return
        if note.body.get("event") == "closed":
            self._closed(number, note.time_ns)
        elif isinstance(node_id := note.body.get("node_id"), int):
            self._peer(number).node_id = node_id

    def piece(
        self, received_ns: int, sent_ns: int, number: int, connection: int, flags: int,
        extras: memoryview, data: memoryview, piece: Any,
    ) -> None:  # fmt: skip
        """Take a piece."""
        peer = self._peers.get(connection) or self._peer(connection)
        more = json.loads(bytes(extras)) if extras else _NOTHING
        if flags & _SPECIAL:
            self._special(peer, received_ns, sent_ns, number, connection, flags, more, data, piece)
        elif not flags & BROKER_SIDE:
            self._requests(peer, received_ns, sent_ns, number, connection, flags, more, data, piece)
        elif more or not sent_ns:
            self._responses_one_by_one(
                peer, received_ns, sent_ns, number, connection, flags, more, data, piece
            )
        else:
            self._responses(peer, received_ns, sent_ns, number, connection, flags, data, piece)

    def finish(self) -> None:
        """End the log: what is left is incomplete."""
        for row, asked, answered in self._late.values():
            flags = row.response_flags | (OPEN_AT_END if answered is not None else 0)
            self._on_exchange(row._replace(response_flags=flags), asked, answered)
        self._late.clear()
        for number in list(self._peers):
            self._give_up(number, 0, UNANSWERED | OPEN_AT_END)

    def _peer(self, connection: int) -> _Peer:
        return self._peers.setdefault(connection, _Peer())

    # ---- whole frames

    def _requests(
        self, peer: _Peer, received_ns: int, sent_ns: int, number: int, connection: int,
        flags: int, more: dict[str, Any], data: memoryview, piece: Any,
    ) -> None:  # fmt: skip
        at, end, unpack = 0, len(data), _START.unpack_from
        while at < end:
            size, key, version, correlation_id = (
                unpack(data, at) if end - at >= _START.size else (end - at - 4, NO_API, NO_API, 0)
            )
            size += 4
            wait_ms = facts.max_wait_ms(data, at, version) if key == FETCH else 0
            asked = _Asked(
                received_ns, sent_ns, key, version, correlation_id, size, flags, wait_ms,
                (piece, at, size), more,
            )  # fmt: skip
            if flags & NO_RESPONSE:
                self._one_way(peer, number, connection, asked)
            else:
                peer.pending[number] = asked
            number += 1
            at += size

    def _one_way(self, peer: _Peer, number: int, connection: int, asked: _Asked) -> None:
        done = asked.row(number, connection, peer.node_id), asked.place, None
        if asked.sent_ns or asked.extras.get("withheld"):
            self._on_exchange(*done)
        else:
            self._late[number, 0] = done

    def _responses(
        self, peer: _Peer, received_ns: int, sent_ns: int, number: int, connection: int,
        flags: int, data: memoryview, piece: Any,
    ) -> None:  # fmt: skip
        """The short way: responses that have left, about which there is nothing to say."""
        at, end, unpack, take = 0, len(data), _SIZE.unpack_from, peer.pending.pop
        node_id, answered_ns, on_exchange = peer.node_id, peer.answered_ns, self._on_exchange
        while at < end:
            size = unpack(data, at)[0] + 4
            asked, place = take(number, _NOT_RECORDED), (piece, at, size)
            if asked.extras:
                peer.pending[number], peer.answered_ns = asked, answered_ns
                self._complete(
                    peer, number, connection, received_ns, sent_ns, size, flags, _NOTHING, place
                )
            else:
                request_sent_ns = asked.sent_ns if asked.sent_ns <= received_ns else 0
                queued_ns = 0
                if request_sent_ns and answered_ns > request_sent_ns:
                    queued_ns = answered_ns - request_sent_ns
                values = (
                    number, asked.received_ns, request_sent_ns, received_ns, sent_ns, queued_ns, 0,
                    0, 0, 0, asked.size, size, connection, node_id, asked.correlation_id,
                    asked.wait_ms, asked.api_key, asked.api_version, asked.flags,
                    flags & _OF_EXCHANGES, ERROR_NOT_LOOKED, (),
                )  # fmt: skip
                on_exchange(_row(ExchangeRow, values), asked.place, place)
            answered_ns = received_ns
            number += 1
            at += size
        peer.answered_ns = answered_ns

    def _responses_one_by_one(
        self, peer: _Peer, received_ns: int, sent_ns: int, number: int, connection: int,
        flags: int, more: dict[str, Any], data: memoryview, piece: Any,
    ) -> None:  # fmt: skip
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], signed=True) + 4
            place = piece, at, size
            self._complete(peer, number, connection, received_ns, sent_ns, size, flags, more, place)
            number += 1
            at += size

    def _complete(
        self, peer: _Peer, number: int, connection: int, received_ns: int, sent_ns: int, size: int,
        flags: int, more: dict[str, Any], place: Any,
    ) -> None:  # fmt: skip
        """Complete an exchange by its response, now or when that has left."""
        asked = peer.pending.pop(number, _NOT_RECORDED)
        row = asked.row(number, connection, peer.node_id)
        request_sent_ns = row.request_sent_ns if row.request_sent_ns <= received_ns else 0
        queued_ns = max(0, peer.answered_ns - request_sent_ns) if request_sent_ns else 0
        peer.answered_ns = received_ns
        flags &= _OF_EXCHANGES
        flags |= CLIENT_ENDED if more.get("client_ended") else 0
        flags |= REWRITTEN if more.get("splices") else 0
        row = row._replace(
            request_sent_ns=request_sent_ns,
            response_received_ns=received_ns,
            response_sent_ns=sent_ns,
            queued_ns=queued_ns,
            fault_ns=row.fault_ns + more.get("fault_ns", 0),
            held_behind=row.held_behind or more.get("behind", 0),
            response_bytes=min(size, _FRAME_BYTES_MAX),
            response_flags=flags,
            error_code=more.get("error_code", ERROR_NOT_LOOKED),
            fault_ids=tuple(dict.fromkeys((*row.fault_ids, *more.get("fault_ids", ())))),
        )
        if sent_ns or more.get("withheld"):
            self._on_exchange(row, asked.place, place)
        else:
            self._late[number, 1] = row, asked.place, place

    # ---- what is not a whole frame

    def _special(
        self, peer: _Peer, received_ns: int, sent_ns: int, number: int, connection: int,
        flags: int, more: dict[str, Any], data: memoryview, piece: Any,
    ) -> None:  # fmt: skip
        side, place = int(bool(flags & BROKER_SIDE)), (piece, 0, len(data))
        if flags & LATE:
            self._left(peer, number, side, sent_ns, more)
        elif flags & UNANSWERED:
            peer.unfinished.clear()
            if (asked := peer.pending.pop(number, None)) is not None:
                row = asked.row(number, connection, peer.node_id)
                flags = UNANSWERED | flags & SILENCED
                row = row._replace(response_flags=flags, response_received_ns=received_ns)
                self._on_exchange(row, asked.place, None)
        elif flags & FRAGMENT and flags & MORE:
            peer.unfinished.setdefault(side, []).append(place)
        else:
            where: Any = [*peer.unfinished.pop(side, []), place] if flags & FRAGMENT else place
            key, version, correlation_id, size = more.get("head", (NO_API, NO_API, 0, len(data)))
            if side:
                self._complete(
                    peer, number, connection, received_ns, sent_ns, size, flags, more, where
                )
                return
            is_whole = key == FETCH and not flags & FRAGMENT
            wait_ms = facts.max_wait_ms(data, 0, version) if is_whole else 0
            asked = _Asked(
                received_ns, sent_ns, key, version, correlation_id, size, flags & _OF_EXCHANGES,
                wait_ms, where, more,
            )  # fmt: skip
            if flags & NO_RESPONSE:
                self._one_way(peer, number, connection, asked)
            else:
                peer.pending[number] = asked

    def _left(
        self, peer: _Peer, number: int, side: int, sent_ns: int, more: dict[str, Any]
    ) -> None:
        """Note when frames left that had not when their piece was written."""
        first, at = peer.pending.get(number) if not side else None, number
        while first is not None and (asked := peer.pending.get(at)) is not None:
            if asked.received_ns != first.received_ns:
                break
            asked.sent_ns, asked.extras = sent_ns, asked.extras | more
            at += 1
        while (late := self._late.pop((number, side), None)) is not None:
            row, asked_at, answered_at = late
            row = row._replace(
                fault_ns=row.fault_ns + more.get("fault_ns", 0),
                held_behind=row.held_behind or more.get("behind", 0),
            )
            if side:
                flags = row.response_flags | (CLIENT_ENDED if more.get("client_ended") else 0)
                row = row._replace(response_sent_ns=sent_ns, response_flags=flags)
            else:
                row = row._replace(request_sent_ns=sent_ns)
            self._on_exchange(row, asked_at, answered_at)
            number += 1

    def _closed(self, connection: int, ended_ns: int) -> None:
        for key, done in list(self._late.items()):
            if done[0].connection == connection:
                del self._late[key]
                self._on_exchange(*done)
        self._give_up(connection, ended_ns, UNANSWERED)

    def _give_up(self, connection: int, ended_ns: int, flags: int) -> None:
        """End a connection: what is pending on it will not be answered."""
        peer = self._peers.pop(connection, _Peer())
        for number, asked in peer.pending.items():
            row = asked.row(number, connection, peer.node_id)
            row = row._replace(response_flags=flags, response_received_ns=ended_ns)
            self._on_exchange(row, asked.place, None)
