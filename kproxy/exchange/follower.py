"""The follower: pieces of a log in, rows of exchanges out.

::

    piece ─▶ frames ─▶ request  ─▶ pending, by connection and number ─┐
                   └▶ response ───────────────────────────────────────┴─▶ ExchangeRow
    note  ─▶ the broker of a connection, its end

A piece is what one side sent and was received at once: whole frames that are alike, or a part of a
large one (`recording.layout`). Of its bytes the follower looks at the size of each frame, at the
correlation ids of requests, and at the longest wait of a Fetch. A place is an integer by which
whoever feeds it finds a frame again: that of the piece, and one more for each frame in it; 0 is a
frame that is not there.

Invariants: sans-IO; memory is bounded by what is pending. A log that begins, has a gap or breaks
off anywhere gives exchanges with one half missing, never an error. Pieces may come again from any
point on, if `find` knows the requests before it: then the rows are the same.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, get_type_hints

import attrs

from kproxy.exchange import endings, facts, notes
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
    UNKNOWN_NS,
    ExchangeRow,
    Frame,
    Note,
    Side,
)
from kproxy.wire.protocol.codec import FETCH

BROKER_SIDE = 1 << 31
"""A flag of pieces: the broker sent it."""
LATE = 1 << 30
"""A flag of pieces without bytes: it says when an earlier one left."""
FRAME_BYTES_MAX = 0x7FFFFFFF
"""The largest size that fits into a row; the largest frame has 4 bytes more."""

_OF_EXCHANGES = ~(FRAGMENT | MORE | LATE | BROKER_SIDE)
_SPECIAL = LATE | UNANSWERED | FRAGMENT | TRUNCATED | RAW_SASL
_REQUEST_START = struct.Struct(">i4xi")
_SIZE = struct.Struct(">i")
_NOTHING: Mapping[str, Any] = {}
_make_row: Any = tuple.__new__  # as ExchangeRow._make does, without a call in between

Head = tuple[int, int, int, int, int, int, int, int, int, int]
"""The head of a piece: when it arrived and left, the number of its first exchange, when the piece
before it of this side arrived, connection, node id, flags, API key and version, and the size of
what else is said of it."""
Asked = tuple[int, int, int, int, int, int, int, int, int, Mapping[str, Any]]
"""A request that is pending: when it arrived and left, API key and version, correlation id, size,
flags, longest wait in ms, place, and the extras of its piece."""
_NOT_RECORDED: Asked = (0, 0, NO_API, NO_API, 0, 0, 0, 0, 0, _NOTHING)


@attrs.define(eq=False)
class _FollowedConnection:
    """A connection, with what is pending on it."""

    node_id: int = NO_NODE
    pending: dict[int, Asked] = attrs.field(factory=dict)
    answered_ns: int = 0
    """The arrival of its last response, of frames that come one by one."""
    arriving: tuple[int, Asked] | None = None
    """The number of a request of which only pieces have come, and the request (TRUNCATED)."""


class Follower:
    """Follows a log, or a part of it. `find(number)` returns the request of an exchange that began
    before the part, None if it is not recorded; `feed(place, number, follower)` has it take the
    piece at a place that lies before, if that begins with the exchange of this number."""

    def __init__(
        self,
        find: Callable[[int], Asked | None] = lambda number: None,
        feed: Callable[[int, int, Follower], None] = lambda place, number, follower: None,
    ) -> None:
        self.rows: list[ExchangeRow] = []
        """The exchanges that are complete; whoever follows takes them away."""
        self._find = find
        self._feed = feed
        self._connections: defaultdict[int, _FollowedConnection] = defaultdict(_FollowedConnection)
        self._late: dict[tuple[int, int], ExchangeRow] = {}
        """Exchanges whose last frame had not left, by number and side."""

    def take(self) -> list[ExchangeRow]:
        """Return the exchanges that were completed since the last call."""
        rows, self.rows = self.rows, []
        return rows

    def note(self, note: Note) -> None:
        """Take a note."""
        if notes.is_pending(note):
            self._begun_earlier(note.body)
        if note.channel == CONNECTIONS:
            number = endings.connection(note.body)
            if note.body.get("event") == "closed":
                self._closed(number, note.time_ns)
            elif isinstance(node_id := note.body.get("node_id"), int):
                self._connections[number].node_id = node_id

    def piece(
        self, head: Head, more: Mapping[str, Any], data: memoryview, at: int, end: int, place: int
    ) -> None:  # fmt: skip
        """Take a piece: its head, its extras, and its bytes, which lie in `data`."""
        peer = self._connections[head[4]]
        peer.node_id, flags = head[5], head[6]
        if flags & _SPECIAL:
            self._special(peer, head, more, data[at:end], place)
        elif flags & BROKER_SIDE:
            self._responses(peer, head, more, data, at, end, place)
        else:
            self._requests(peer, head, more, data, at, end, place)

    def frame(self, frame: Frame, place: int) -> None:
        """Take one frame by itself, whole, or the entry that nothing answers a request."""
        peer = self._connections[frame.connection]
        flags, before_ns = frame.flags, 0
        if frame.side is Side.BROKER:
            flags |= BROKER_SIDE
            if not flags & UNANSWERED:
                before_ns, peer.answered_ns = peer.answered_ns, frame.received_ns
            if frame.queued_ns is not None:
                before_ns = frame.request_sent_ns + frame.queued_ns
        head = (
            frame.received_ns, frame.sent_ns, frame.number, before_ns, frame.connection,
            peer.node_id, flags, frame.api_key, frame.api_version, 0,
        )  # fmt: skip
        data = frame.data if frame.api_key == FETCH and frame.side is Side.CLIENT else b""
        self._special(peer, head, _extras(frame), memoryview(data), place)

    def sent(self, request: Frame) -> None:
        """Note when a pending request left."""
        pending = self._connections[request.connection].pending
        asked = pending.get(request.number)
        sent_ns = request.sent_ns or (request.chunk.sent_ns if request.chunk else 0)
        if asked is not None:
            more = {**asked[-1], "fault_ns": request.fault_ns, "held_behind": request.behind}
            pending[request.number] = (asked[0], sent_ns, *asked[2:-1], more)

    def left(self, ended_ns: int) -> Iterator[ExchangeRow]:
        """Yield the exchanges that are not complete where the log ends."""
        for row in self._late.values():
            flags = row.response_flags | (OPEN_AT_END if row.response_bytes else 0)
            yield row._replace(response_flags=flags)
        for number, peer in self._connections.items():
            for row in _rows(number, peer):
                yield row._replace(
                    response_flags=UNANSWERED | OPEN_AT_END, response_received_ns=ended_ns
                )

    def end_but(self, listed: Follower, ended_ns: int) -> Iterator[ExchangeRow]:
        """Yield, and forget, the exchanges that are not complete, but those that another follower
        has, too: they ended in a part of the log that is missing."""
        kept = {row.number for row in listed.unfinished()}
        yield from (row for row in [*self.left(ended_ns)] if row.number not in kept)
        self._late = {key: row for key, row in self._late.items() if key[0] in kept}
        for peer in self._connections.values():
            peer.pending = {n: asked for n, asked in peer.pending.items() if n in kept}
            if peer.arriving is not None and peer.arriving[0] not in kept:
                peer.arriving = None

    def goes_on(
        self, find: Callable[[int], Asked | None], feed: Callable[[int, int, Follower], None]
    ) -> None:
        """Go on with another file of the log, which finds and feeds what it has."""
        self._find, self._feed = find, feed

    def adopt(self, other: Follower, place: int) -> None:
        """Take over the exchanges whose last frame is in the piece at a place and had not left."""
        for key, row in other._late.items():
            if _piece(row, key[1]) == place >> 16:
                self._late[key] = row

    def asked(self, number: int) -> Asked | None:
        """Return a request that is pending."""
        every = (peer.pending.get(number) for peer in self._connections.values())
        return next(filter(None, every), None)

    def unfinished(self) -> Iterator[ExchangeRow]:
        """Yield the exchanges that are not complete, as a note lists them (`note`)."""
        yield from self._late.values()
        for number, peer in self._connections.items():
            yield from _rows(number, peer)

    def pending(self) -> Iterator[tuple[int, Asked]]:
        """Yield the requests that are pending, with their numbers."""
        for peer in self._connections.values():
            yield from peer.pending.items()
            if peer.arriving is not None:
                yield peer.arriving

    def _begun_earlier(self, body: Mapping[str, Any]) -> None:
        """Take what was not complete when a file began, as far as it is not known."""
        for row in _noted(body):
            peer = self._connections[row.connection]
            peer.node_id = row.node_id
            more = {
                "fault_ns": row.fault_ns, "held_behind": row.held_behind,
                "fault_ids": row.fault_ids,
            }  # fmt: skip
            asked = (
                row.request_received_ns, row.request_sent_ns, row.api_key, row.api_version,
                row.correlation_id, row.request_bytes, row.request_flags, row.max_wait_ms,
                row.request_position, {name: each for name, each in more.items() if each},
            )  # fmt: skip
            is_arriving = row.request_flags & TRUNCATED and not row.response_bytes
            if row.response_bytes or (row.request_flags & NO_RESPONSE and not is_arriving):
                self._late.setdefault((row.number, int(bool(row.response_bytes))), row)
                peer.pending.pop(row.number, None)  # its response was lost
            elif row.number in peer.pending or (row.number, 0) in self._late:
                continue
            elif is_arriving:
                peer.arriving = peer.arriving or (row.number, asked)
            else:
                peer.pending[row.number] = asked

    # ---- whole frames

    def _requests(
        self, peer: _FollowedConnection, head: Head, more: Mapping[str, Any], data: memoryview,
        at: int, end: int, place: int,
    ) -> None:  # fmt: skip
        received_ns, sent_ns, number, _, connection, _, flags, api_key, api_version, _ = head
        unpack, pending = _REQUEST_START.unpack_from, peer.pending
        while at + 12 <= end:
            size, correlation_id = unpack(data, at)
            size += 4
            wait_ms = facts.max_wait_ms(data, at, api_version) if api_key == FETCH else 0
            asked = (
                received_ns, sent_ns, api_key, api_version, correlation_id, size, flags, wait_ms,
                place, more,
            )  # fmt: skip
            if flags & NO_RESPONSE:
                self._one_way(peer, number, connection, asked)
            else:
                pending[number] = asked
            if size < 4:
                raise ValueError("a piece has a frame of a negative size")
            number += 1
            place += 1
            at += size
        _check_end(at, end, place)

    def _one_way(
        self, peer: _FollowedConnection, number: int, connection: int, asked: Asked
    ) -> None:
        """Complete a request that nobody answers, now or when it has left."""
        row = _row(number, connection, peer.node_id, asked)
        if asked[1] or asked[-1].get("withheld"):
            self.rows.append(row)
        else:
            self._late[number, 0] = row

    def _responses(
        self, peer: _FollowedConnection, head: Head, more: Mapping[str, Any], data: memoryview,
        at: int, end: int, place: int,
    ) -> None:  # fmt: skip
        """Take responses; those that have left, and about which there is nothing to say, the short
        way."""
        received_ns, sent_ns, number, before_ns, connection, _, flags, api_key, api_version, _ = (
            head
        )
        unpack, pending = _SIZE.unpack_from, peer.pending
        node_id, rows, kept = peer.node_id, self.rows, flags & _OF_EXCHANGES
        quick = sent_ns and not more
        while at + 4 <= end:
            size = unpack(data, at)[0] + 4
            asked = pending.pop(number, None) or self._earlier(peer, number)
            if asked is None or asked[-1] or not quick:
                correlation_id = int.from_bytes(data[at + 4 : at + 8], "big", signed=True)
                said = {"correlation_id": correlation_id, **more}
                self._complete(peer, head, number, before_ns, size, said, place, asked)
            else:
                asked_ns, asked_sent_ns, _, _, correlation_id, asked_bytes, asked_flags, wait_ms, \
                    asked_place, _ = asked  # fmt: skip
                queued_ns = 0
                if asked_sent_ns > received_ns:  # its chunk was taken in parts
                    asked_sent_ns = 0
                elif asked_sent_ns and before_ns > asked_sent_ns:
                    queued_ns = before_ns - asked_sent_ns
                rows.append(_make_row(ExchangeRow, (
                    number, asked_ns, asked_sent_ns, received_ns, sent_ns, queued_ns, 0, 0,
                    asked_place, place, asked_bytes, size, connection, node_id, correlation_id,
                    wait_ms, api_key, api_version, asked_flags, kept, ERROR_NOT_LOOKED, (),
                )))  # fmt: skip
            if size < 4:
                raise ValueError("a piece has a frame of a negative size")
            before_ns = received_ns
            number += 1
            place += 1
            at += size
        _check_end(at, end, place)

    def _complete(
        self, peer: _FollowedConnection, head: Head, number: int, before_ns: int, size: int,
        more: Mapping[str, Any], place: int, asked: Asked | None,
    ) -> None:  # fmt: skip
        """Complete an exchange by its response, one of a piece, now or when that has left."""
        received_ns, sent_ns, _, _, connection, _, flags, api_key, api_version, _ = head
        row = _row(number, connection, peer.node_id, asked or _NOT_RECORDED)
        known = more.get("request", _NOTHING)
        row = row._replace(**known) if known else row
        request_sent_ns = row.request_sent_ns if row.request_sent_ns <= received_ns else 0
        queued_ns = max(0, before_ns - request_sent_ns) if request_sent_ns else 0
        flags &= _OF_EXCHANGES
        flags |= CLIENT_ENDED if more.get("client_ended") else 0
        row = row._replace(
            request_sent_ns=request_sent_ns,
            response_received_ns=received_ns,
            response_sent_ns=sent_ns,
            queued_ns=queued_ns,
            fault_ns=_together(row.fault_ns, more.get("fault_ns", 0)),
            held_behind=row.held_behind or more.get("held_behind", 0),
            response_position=place,
            response_bytes=min(size, FRAME_BYTES_MAX),
            response_flags=flags,
            error_code=more.get("error_code", ERROR_NOT_LOOKED),
            fault_ids=tuple(dict.fromkeys((*row.fault_ids, *more.get("fault_ids", ())))),
        )
        if asked is None:
            row = row._replace(
                api_key=api_key,
                api_version=api_version,
                correlation_id=more.get("correlation_id", row.correlation_id),
                fault_ns=row.fault_ns if known else UNKNOWN_NS,
            )
        if sent_ns or more.get("withheld"):
            self.rows.append(row)
        else:
            self._late[number, 1] = row

    def _earlier(self, peer: _FollowedConnection, number: int) -> Asked | None:
        """Return a request of which only pieces have come, or that began before the part."""
        if peer.arriving is not None and peer.arriving[0] == number:
            (_, asked), peer.arriving = peer.arriving, None
            return asked
        return self._find(number)

    # ---- what is not a whole frame

    def _special(
        self,
        peer: _FollowedConnection,
        head: Head,
        more: Mapping[str, Any],
        data: memoryview,
        place: int,
    ) -> None:
        _, sent_ns, number, before_ns, _, _, flags, _, _, _ = head
        if flags & LATE:
            self._left(peer, number, flags, sent_ns, more)
        elif flags & UNANSWERED:
            self._unanswered(peer, head, more)
        elif flags & BROKER_SIDE:
            if not flags & MORE:
                asked = peer.pending.pop(number, None) or self._earlier(peer, number)
                size = more.get("frame_bytes", 0)
                self._complete(peer, head, number, before_ns, size, more, place, asked)
        else:
            self._request(peer, head, more, data, place)

    def _request(
        self,
        peer: _FollowedConnection,
        head: Head,
        more: Mapping[str, Any],
        data: memoryview,
        place: int,
    ) -> None:
        """Take a request by itself, or pieces of one."""
        received_ns, sent_ns, number, _, connection, _, flags, api_key, api_version, _ = head
        is_whole = api_key == FETCH and not flags & FRAGMENT
        wait_ms = facts.max_wait_ms(data, 0, api_version) if is_whole and data else 0
        asked = (
            received_ns, sent_ns, api_key, api_version, more.get("correlation_id", 0),
            more.get("frame_bytes", 0),
            flags & _OF_EXCHANGES | (TRUNCATED if flags & MORE else 0), wait_ms, place, more,
        )  # fmt: skip
        peer.arriving = None
        if flags & MORE:
            peer.arriving = number, asked
        elif flags & NO_RESPONSE:
            self._one_way(peer, number, connection, asked)
        else:
            peer.pending[number] = asked

    def _unanswered(self, peer: _FollowedConnection, head: Head, more: Mapping[str, Any]) -> None:
        """End an exchange that has no response; its end may know more of it than its request."""
        ended_ns, _, number, _, connection, _, flags, api_key, api_version, _ = head
        asked = peer.pending.pop(number, None) or self._earlier(peer, number)
        known = more.get("request", _NOTHING)
        if asked is None and not known:
            return
        row = _row(number, connection, peer.node_id, asked or _NOT_RECORDED)._replace(**known)
        if asked is None:
            correlation_id = more.get("correlation_id", row.correlation_id)
            row = row._replace(
                api_key=api_key, api_version=api_version, correlation_id=correlation_id
            )
        if row.request_sent_ns > ended_ns:  # it left when its exchange was over
            row = row._replace(request_sent_ns=0, fault_ns=min(0, row.fault_ns), held_behind=0)
        self.rows.append(row._replace(
            response_flags=UNANSWERED | flags & (SILENCED | OPEN_AT_END),
            response_received_ns=ended_ns,
        ))  # fmt: skip

    def _left(
        self,
        peer: _FollowedConnection,
        number: int,
        flags: int,
        sent_ns: int,
        more: Mapping[str, Any],
    ) -> None:
        """Note when frames left that had not when their piece was written."""
        side = int(bool(flags & BROKER_SIDE))
        if not side:
            at, first = number, peer.pending.get(number)
            while first is not None and (asked := peer.pending.get(at)) is not None:
                if asked[8] >> 16 != first[8] >> 16:
                    break
                peer.pending[at] = (asked[0], sent_ns, *asked[2:-1], {**asked[-1], **more})
                at += 1
        if (side or flags & NO_RESPONSE) and (number, side) not in self._late:
            self._feed(more.get("at", 0), number, self)
        first = self._late.get((number, side))
        while first is not None and (row := self._late.get((number, side))) is not None:
            if _piece(row, side) != _piece(first, side):
                break
            del self._late[number, side]
            row = row._replace(
                fault_ns=_together(row.fault_ns, more.get("fault_ns", 0)),
                held_behind=row.held_behind or more.get("held_behind", 0),
            )
            if side:
                flags = row.response_flags | (CLIENT_ENDED if more.get("client_ended") else 0)
                row = row._replace(response_sent_ns=sent_ns, response_flags=flags)
            else:
                row = row._replace(request_sent_ns=sent_ns)
            self.rows.append(row)
            number += 1

    def _closed(self, connection: int, ended_ns: int) -> None:
        """End a connection: what has not left will not. Of what is pending, the recording lacks the
        end: the proxy names each request that nothing answers (UNANSWERED)."""
        for key, row in list(self._late.items()):
            if row.connection == connection:
                del self._late[key]
                self.rows.append(row)
        peer = self._connections.pop(connection, None)
        for row in _rows(connection, peer) if peer is not None else ():
            flags = UNANSWERED | OPEN_AT_END
            self.rows.append(row._replace(response_flags=flags, response_received_ns=ended_ns))


def _check_end(at: int, end: int, place: int) -> None:
    """Check that the frames of a piece, `place` being behind the last, are what it holds.

    Raises: ValueError.
    """
    if at != end:
        raise ValueError("a piece has bytes that are no whole frame")
    if not place & 0xFFFF:
        raise ValueError("a piece has no frame, or more than its places tell")


def _piece(row: ExchangeRow, side: int) -> int:
    """Return the place of the piece that the request or the response of an exchange is in."""
    return (row.response_position if side else row.request_position) >> 16


def _extras(frame: Frame) -> Mapping[str, Any]:
    """Return the extras of a frame by itself, as its piece has them."""
    found: dict[str, Any] = {
        "splices": frame.splices, "fault_ids": frame.fault_ids, "fault_ns": frame.fault_ns,
        "held_behind": frame.behind, "withheld": frame.withheld, "client_ended": frame.client_ended,
        "correlation_id": frame.correlation_id, "frame_bytes": frame.frame_bytes,
    }  # fmt: skip
    if frame.side is Side.BROKER:
        found["error_code"] = frame.error_code
        found["request"] = {
            name: value for name, value in (
                ("request_received_ns", frame.request_received_ns),
                ("request_sent_ns", frame.request_sent_ns), ("request_bytes", frame.request_bytes),
                ("fault_ns", frame.request_fault_ns), ("held_behind", frame.request_behind),
            ) if value
        }  # fmt: skip
    return found


def _together(one_ns: int, other_ns: int) -> int:
    """Return for how long rules held a request and its response."""
    return UNKNOWN_NS if min(one_ns, other_ns) < 0 else one_ns + other_ns


def _rows(connection: int, peer: _FollowedConnection) -> Iterator[ExchangeRow]:
    """Yield the rows of the requests that are pending on a connection, as far as they are known."""
    for number, asked in peer.pending.items():
        yield _row(number, connection, peer.node_id, asked)
    if peer.arriving is not None:
        number, asked = peer.arriving
        yield _row(number, connection, peer.node_id, asked)


def _row(number: int, connection: int, node_id: int, asked: Asked) -> ExchangeRow:
    """Return the row of an exchange, as far as its request tells it."""
    (
        received_ns,
        sent_ns,
        api_key,
        api_version,
        correlation_id,
        size,
        flags,
        wait_ms,
        place,
        more,
    ) = asked
    return ExchangeRow(
        number,
        received_ns,
        sent_ns,
        fault_ns=more.get("fault_ns", 0),
        held_behind=more.get("held_behind", 0),
        request_position=place,
        request_bytes=min(size, FRAME_BYTES_MAX),
        connection=connection,
        node_id=node_id,
        correlation_id=correlation_id,
        max_wait_ms=wait_ms,
        api_key=api_key,
        api_version=api_version,
        request_flags=flags | (REWRITTEN if more.get("splices") else 0),
        fault_ids=tuple(more.get("fault_ids", ())),
    )


_BITS = {
    name: int(kind.__metadata__[0].removeprefix("int")) - 1
    for name, kind in get_type_hints(ExchangeRow, include_extras=True).items()
    if name != "fault_ids"
}
"""How large the fields of a row may be."""


def _noted(body: Mapping[str, Any]) -> Iterator[ExchangeRow]:
    """Yield the rows that a note lists; the valid part of them, in a foreign file."""
    columns = [each for each in _list(body.get("columns")) if isinstance(each, str)]
    for values in _list(body.get("exchanges")):
        given = dict(zip(columns, _list(values), strict=False))
        known = {
            name: each for name, each in given.items() if name in _BITS and _fits(each, _BITS[name])
        }
        fault_ids = tuple(each for each in _list(given.get("fault_ids")) if _fits(each, 31))
        if "number" in known:
            yield ExchangeRow(**known, fault_ids=fault_ids)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _fits(value: object, bits: int) -> bool:
    return type(value) is int and -1 << bits <= value < 1 << bits
