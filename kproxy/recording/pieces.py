"""A piece in a chunk: its head, its extras, its bytes.

    chunk's records ─▶ Pieces ─┬─▶ Follower ─▶ rows          (each with the positions of its frames)
                               └─▶ frame(position) ─▶ Frame

The place of a frame is a `Position`: the sequence of the chunk's messages, the index of the piece
among those of the chunk, and that of the frame among those of the piece.

Invariant: the content is not trusted: what does not fit is a ValueError, or no frame.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    FRAGMENT,
    OPEN_AT_END,
    RAW_SASL,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Position,
    Side,
    Splice,
)
from kproxy.exchange.follower import BROKER_SIDE, LATE, Asked, Follower
from kproxy.recording.batch_index import Seen
from kproxy.recording.layout import PIECES_MAX
from kproxy.recording.mcap import MESSAGE_HEAD

PIECE = struct.Struct("<BQHIQQqqIiIhhI")
"""A message up to its extras: opcode, length, channel, sequence, log_time, publish_time; number,
before_ns, connection, node_id, flags, API key, API version, size of the extras."""
PIECE_BYTES_MIN = PIECE.size - MESSAGE_HEAD.size
_HEAD = struct.Struct(f"<{MESSAGE_HEAD.size - 16}xQQqqIiIhhI")
_FLAGS_EXTRAS = struct.Struct(f"<{PIECE.size - 12}xI4xI")
"""The flags and the size of the extras of PIECE."""
_SIZE = struct.Struct(">i")
_NOTHING: Mapping[str, Any] = {}
_FLAGS = (1 << 16) - 1
_ALONE = FRAGMENT | TRUNCATED | RAW_SASL | UNANSWERED | LATE
"""Flags of pieces that are one frame, or a part of one, or none."""
_CONNECTION_MAX = 1 << 31
_INTEGERS = {
    "fault_ns": 63, "held_behind": 63, "correlation_id": 31, "frame_bytes": 63, "error_code": 15,
    "at": 63,
}  # fmt: skip
"""The keys of extras that are integers, and how large these may be, in bits."""
EXTRAS = _INTEGERS.keys() | {"splices", "fault_ids", "request", "withheld", "client_ended"}
"""The keys of the extras."""


class Piece(NamedTuple):
    """One piece, without its bytes; `start` and `end` are where these lie in the chunk."""

    received_ns: int
    sent_ns: int
    number: int
    before_ns: int
    connection: int
    node_id: int
    flags: int
    api_key: int
    api_version: int
    more: Mapping[str, Any]
    start: int
    end: int


@attrs.frozen(eq=False)
class Pieces:
    """The pieces of one chunk."""

    sequence: int
    records: memoryview
    ends: Sequence[tuple[int, int]]
    """Where the messages begin and end that are pieces."""
    _starts: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    """Where the frames of pieces begin, of those of which one was asked for; and the last ends."""

    def follow(self, follower: Follower, first: int = 0, last: int | None = None) -> None:
        """Have a follower take the pieces, or those from one on and before another.

        Raises: ValueError, when one is damaged.
        """
        records, take, unpack = self.records, follower.piece, _HEAD.unpack_from
        place = self.sequence << 32 | first << 16
        for start, end in self.ends[first:last]:
            at, more = start + PIECE.size, _NOTHING
            if at > end:
                raise ValueError("a piece is too short")
            head = unpack(records, start)
            if head[2] < 0 or head[4] >= _CONNECTION_MAX:
                raise ValueError("a piece has an impossible number")
            if extras := head[-1]:
                more = _extras(bytes(records[at : at + extras]))
                at += extras
                if at > end:
                    raise ValueError("the extras of a piece run past its end")
            take(head, more, records, at, end, place)
            place += 1 << 16

    def __getitem__(self, nth: int) -> Piece:
        """Return the nth piece.

        Raises: IndexError, when there is none; ValueError, when it is damaged.
        """
        start, end = self.ends[nth]
        if end - start < PIECE.size:
            raise ValueError("a piece is too short")
        *head, extras = _HEAD.unpack_from(self.records, start)
        start += PIECE.size
        if start + extras > end:
            raise ValueError("the extras of a piece run past its end")
        more = _extras(bytes(self.records[start : start + extras])) if extras else _NOTHING
        return Piece._make((*head, more, start + extras, end))

    def __len__(self) -> int:
        return len(self.ends)

    def frame_bytes(self, place: int) -> bytes | None:
        """Return the bytes of the frame at the place of a `Position`, quickly; None for one in
        pieces, or if there is none."""
        piece, nth = place >> 16 & 0xFFFF, place & 0xFFFF
        if piece >= len(self.ends):
            return None
        start, end = self.ends[piece]
        if end - start < PIECE.size:
            return None
        flags, extras = _FLAGS_EXTRAS.unpack_from(self.records, start)
        if flags & FRAGMENT:
            return None
        start += PIECE.size + extras
        if flags & (TRUNCATED | RAW_SASL):
            return None if nth else bytes(self.records[start:end])
        body = start + 4
        if not nth and body <= end == body + _SIZE.unpack_from(self.records, start)[0]:
            return bytes(self.records[start:end])  # as most: a frame by itself
        starts = self._frames(piece, start, end)
        if nth + 1 >= len(starts):
            return None
        return bytes(self.records[starts[nth] : starts[nth + 1]])

    def _frames(self, nth: int, start: int, end: int) -> list[int]:
        """Return where the frames of a piece begin, and where the last of them ends."""
        starts = self._starts.get(nth)
        if starts is None:
            starts = self._starts[nth] = [start]
            while start + 4 <= end:
                start += 4 + _SIZE.unpack_from(self.records, start)[0]
                if not starts[-1] + 4 <= start <= end:
                    break
                starts.append(start)
        return starts

    def frames(self, nth: int) -> list[Frame]:
        """Return the frames of a piece, or the piece of one.

        Raises: ValueError, when it is damaged.
        """
        piece = self[nth]
        data = self.records[piece.start : piece.end]
        if piece.flags & LATE or (piece.flags & UNANSWERED and piece.flags & OPEN_AT_END):
            return []
        if piece.flags & _ALONE:
            return [_frame(piece, piece.number, bytes(data))]
        starts = self._frames(nth, piece.start, piece.end)
        if starts[-1] != piece.end:
            raise ValueError("a piece has bytes that are no whole frame")
        return [
            _frame(piece, piece.number + at, bytes(self.records[start:end]))
            for at, (start, end) in enumerate(itertools.pairwise(starts))
        ]

    def frame(self, position: Position) -> Frame | None:
        """Return a frame, or the piece of one; None if there is none.

        Raises: ValueError, when it is damaged.
        """
        piece = self[position.piece]
        if piece.flags & _ALONE:
            found = self.frames(position.piece)
            return found[0] if found and not position.nth else None
        starts = self._frames(position.piece, piece.start, piece.end)
        if position.nth + 1 >= len(starts):
            return None
        start, end = starts[position.nth], starts[position.nth + 1]
        return _frame(piece, piece.number + position.nth, bytes(self.records[start:end]))

    def requests(self) -> dict[int, Asked]:
        """Return the requests that are here, or some of their pieces, by number.

        Raises: ValueError.
        """
        found = Follower()
        for nth in range(len(self.ends)):
            if not self[nth].flags & (BROKER_SIDE | LATE):
                self.follow(found, nth, nth + 1)
        return dict(found.pending())

    def seen(self) -> list[Seen]:
        """Return what the index of a file says of the pieces; the time of a response stands for
        that of its request.

        Raises: ValueError.
        """
        found: list[Seen] = []
        for nth in range(len(self.ends)):
            piece = self[nth]
            kind = piece.api_key, piece.api_version
            count = 1
            if not piece.flags & _ALONE:
                count = len(self._frames(nth, piece.start, piece.end)) - 1
            faults = len(piece.more.get("fault_ids", ()))
            about = piece.connection, *kind, piece.flags, faults
            found.append((piece.number, count, piece.received_ns, *about))
        return found

    def numbers(self) -> tuple[int, int]:
        """Return the least and the greatest number of the first exchanges of pieces.

        Raises: ValueError.
        """
        found = [self[nth].number for nth in range(len(self.ends))]
        return (min(found), max(found) + PIECES_MAX) if found else (1 << 62, -1)


def _frame(piece: Piece, number: int, data: bytes) -> Frame:
    more, flags = piece.more, piece.flags & _FLAGS
    asked = more.get("request", _NOTHING)
    correlation_id = more.get("correlation_id", 0)
    if not flags & (FRAGMENT | RAW_SASL | UNANSWERED) and "correlation_id" not in more:
        at = 4 if piece.flags & BROKER_SIDE else 8
        correlation_id = int.from_bytes(data[at : at + 4], "big", signed=True)
    return Frame(
        Side.BROKER if piece.flags & BROKER_SIDE else Side.CLIENT,
        piece.connection,
        number,
        piece.api_key,
        piece.api_version,
        correlation_id,
        piece.received_ns,
        [data] if data else [],
        more.get("frame_bytes", 0) if flags & _ALONE else len(data),
        flags,
        piece.sent_ns,
        error_code=more.get("error_code", ERROR_NOT_LOOKED),
        fault_ids=tuple(more.get("fault_ids", ())),
        splices=more.get("splices", ()),
        withheld=more.get("withheld", False),
        client_ended=more.get("client_ended", False),
        fault_ns=more.get("fault_ns", 0),
        behind=more.get("held_behind", 0),
        request_received_ns=asked.get("request_received_ns", 0),
        request_sent_ns=asked.get("request_sent_ns", 0),
        request_bytes=asked.get("request_bytes", 0),
        request_fault_ns=asked.get("fault_ns", 0),
        request_behind=asked.get("held_behind", 0),
    )


@functools.lru_cache(maxsize=64)
def _extras(text: bytes) -> Mapping[str, Any]:
    """Read the extras of a piece.

    Raises: ValueError, when they are not a JSON object of what they may hold.
    """
    try:
        return _read_extras(json.loads(text))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the extras of a piece do not decode: {error}") from None


def _read_extras(found: Any) -> Mapping[str, Any]:
    read: dict[str, Any] = {}
    for name, value in found.items():
        if name == "splices":
            read[name] = tuple(_splice(*each) for each in value)
        elif name == "fault_ids":
            read[name] = tuple(_int(each, 31) for each in value)
        elif name == "request":
            read[name] = {
                key: _int(each, _OF_REQUEST[key])
                for key, each in value.items()
                if key in _OF_REQUEST
            }
        elif name in _INTEGERS:
            read[name] = _int(value, _INTEGERS[name])
        elif name in ("withheld", "client_ended"):
            read[name] = bool(value)
    return read


_OF_REQUEST = {
    "request_received_ns": 63, "request_sent_ns": 63, "request_bytes": 31, "correlation_id": 31,
    "fault_ns": 63, "held_behind": 63,
}  # fmt: skip


def _int(value: Any, bits: int = 63) -> int:
    if type(value) is not int or not -1 << bits <= value < 1 << bits:
        raise ValueError("the extras of a piece have an impossible number")
    return value


def _splice(offset: Any, size: Any, text: Any) -> Splice:
    return _int(offset), _int(size), base64.b64decode(text, validate=True)
