"""Exchanges without a row: pending where a recording goes on in another file, or is torn.

::

    BatchBuilder ─ when a file begins ─▶ pending_notes ─┐
    frames of a torn file ──────────────────────────────┴─▶ Pending ◀── rows

A file that goes on with a recording says once, behind its first batches, what is pending there:
an exchange that began in an earlier file gets its row in a later one, and if that is torn, nobody
needs the earlier one in order to know of it. Its bytes are in the earlier one alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    EVENTS,
    TRUNCATED,
    UNANSWERED,
    UNKNOWN_NS,
    ExchangeRow,
    Frame,
    Note,
    Position,
    Side,
)
from kproxy.recording.files import RecordingError
from kproxy.recording.layout import EXCHANGE_INTEGERS
from kproxy.recording.other_columns import Values
from kproxy.recording.stored import StoredBatch
from kproxy.recording.table_messages import ExchangeTable, FrameTable

_ROWS_MAX = 100
"""Rows per note."""
_NOTHING = ExchangeRow(0)
_BITS = {name: int(kind.removeprefix("int")) for name, kind in EXCHANGE_INTEGERS}
_TOLD_BY_FRAMES = frozenset((
    "number", "request_received_ns", "request_sent_ns", "response_received_ns", "response_sent_ns",
    "queued_ns", "request_bytes", "response_bytes", "connection", "node_id", "correlation_id",
    "api_key", "api_version", "request_flags", "response_flags", "error_code", "fault_ids",
    "fault_ns", "held_behind",
))  # fmt: skip
"""The columns that frames and their connection tell (`rows.row_of`), and those that nobody knows
before a response was sent; of others, only notes tell."""


def pending_notes(time_ns: int, rows: Sequence[ExchangeRow]) -> list[Note]:
    """Return the notes that list the pending exchanges: at least one, even for an empty list."""
    return [
        notes.pending(time_ns, ExchangeRow._fields, rows[first : first + _ROWS_MAX])
        for first in range(0, max(1, len(rows)), _ROWS_MAX)
    ]


def _lists_pending(note: Note) -> bool:
    """Return whether a note lists pending exchanges."""
    return note.channel == EVENTS and note.body.get("event") == "pending"


@attrs.frozen
class _NotedExchange:
    """A pending exchange according to a note."""

    row: ExchangeRow = _NOTHING
    unknown: Values = attrs.field(factory=dict[str, Any])
    """The values of columns that are not ours."""


def _noted(body: dict[str, Any]) -> Iterator[_NotedExchange]:
    """Yield the exchanges of such a note; the valid part of them, in a foreign file."""
    columns = [str(name) for name in _list(body.get("columns"))]
    for values in _list(body.get("exchanges")):
        given = dict(zip(columns, _list(values), strict=False))
        known = {name: given[name] for name, bits in _BITS.items() if _fits(given.get(name), bits)}
        fault_ids = tuple(each for each in _list(given.get("fault_ids")) if _fits(each, 32))
        unknown = {name: given[name] for name in given.keys() - set(ExchangeRow._fields)}
        yield _NotedExchange(_NOTHING._replace(**known, fault_ids=fault_ids), unknown)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _fits(value: object, bits: int) -> bool:
    return type(value) is int and -1 << bits - 1 <= value < 1 << bits - 1


_NO_NOTE = _NotedExchange()


@attrs.frozen
class RowlessExchange:
    """An exchange that has no row."""

    request: Frame | None
    response: Frame | None
    ended: Frame | None
    """The entry that says that the request was not answered."""
    more: dict[str, int]
    """The values of its row that these do not tell."""
    unknown: Values
    """The values of columns that are not ours, as JSON has them."""


@attrs.define(eq=False)
class Pending:
    """The exchanges that have no row yet, by number: the positions of their frames, and the values
    that notes have of them."""

    listed: bool = False
    """True if the current file has listed what was pending before it."""
    _requests: dict[int, int] = attrs.field(factory=dict[int, int])
    _responses: dict[int, int] = attrs.field(factory=dict[int, int])
    _noted: dict[int, _NotedExchange] = attrs.field(factory=dict[int, _NotedExchange])

    def __bool__(self) -> bool:
        return bool(self._requests or self._responses or self._noted)

    def begin(self) -> None:
        """Begin another file."""
        self.listed = False

    def take(
        self, batch: StoredBatch, frames: FrameTable | None, rows: ExchangeTable | None
    ) -> None:
        """Take a batch and its tables, as far as they exist."""
        for note in filter(_lists_pending, batch.notes):
            self.listed = True
            self._noted |= {each.row.number: each for each in _noted(note.body)}
        done: set[int] = set() if rows is None else set(rows.column("number"))
        for run, (side, numbers) in enumerate(() if frames is None else frames.numbers()):
            if done.issuperset(numbers):  # as nearly always
                continue
            positions = self._requests if side == Side.CLIENT else self._responses
            first = Position(batch.number, run, 0).integer
            positions.update(zip(numbers, range(first, first + len(numbers)), strict=True))
        self._remove(done)

    def remove(self, rows: ExchangeTable) -> None:
        """Remove exchanges that have rows."""
        if self:
            self._remove(set(rows.column("number")))

    def _remove(self, numbers: Set[int]) -> None:
        for known in (self._requests, self._responses, self._noted):
            for number in known.keys() & numbers:
                del known[number]

    def add_earlier(self, earlier: Pending) -> None:
        """Add the exchanges that were pending before; for a frame in pieces the last piece
        counts."""
        self._requests = earlier._requests | self._requests
        self._responses = earlier._responses | self._responses
        self._noted = earlier._noted | self._noted

    def left(self, open_frame: Callable[[Position], Frame | None]) -> Iterator[RowlessExchange]:
        """Yield the exchanges, in the order of their numbers."""
        for number in sorted({*self._requests, *self._responses, *self._noted}):
            noted = self._noted.get(number, _NO_NOTE)
            row = noted.row
            request_position = self._requests.get(number, row.request_position)
            response_position = self._responses.get(number, row.response_position)
            request = _opened(open_frame, request_position, number in self._requests)
            response = _opened(open_frame, response_position, number in self._responses)
            if row.request_bytes:
                request = _request(row, request)
            if row.response_bytes and response is None:
                response = _response(row)
            ended = None
            if response is not None and response.flags & UNANSWERED:
                response, ended = None, response
            if response is not None and response.flags & TRUNCATED and request is not None:
                response = None  # half a response is none
            if request is not None or response is not None or ended is not None:
                more = _note_only_values(row) | {
                    "request_position": request_position,
                    "response_position": 0 if response is None else response_position,
                }
                yield RowlessExchange(request, response, ended, more, noted.unknown)


def _note_only_values(row: ExchangeRow) -> dict[str, Any]:
    """Return the values that a note alone tells of an exchange."""
    values = row._asdict().items()
    nothing = _NOTHING._asdict()
    return {
        name: value
        for name, value in values
        if name not in _TOLD_BY_FRAMES and value != nothing[name]
    }


def _opened(
    open_frame: Callable[[Position], Frame | None], integer: int, has_frame: bool
) -> Frame | None:
    """Open the frame at a position, if it is recorded; a position that only a note has may be
    wrong."""
    position = Position.of(integer)
    try:
        return None if position is None else open_frame(position)
    except RecordingError:
        if has_frame:
            raise
        return None


def _request(row: ExchangeRow, frame: Frame | None) -> Frame:
    """Return a request from its note and its frame, if that was found."""
    if frame is None:
        frame = Frame(
            Side.CLIENT, row.connection, row.number, row.api_key, row.api_version,
            row.correlation_id, row.request_received_ns, [], row.request_bytes, row.request_flags,
            fault_ns=UNKNOWN_NS,
        )  # fmt: skip
    sent_ns = row.request_sent_ns or frame.sent_ns
    return attrs.evolve(frame, sent_ns=sent_ns, fault_ids=row.fault_ids)


def _response(row: ExchangeRow) -> Frame:
    """Return a response from its note, for a frame that was not found."""
    return Frame(
        Side.BROKER, row.connection, row.number, row.api_key, row.api_version, row.correlation_id,
        row.response_received_ns, [], row.response_bytes, row.response_flags, row.response_sent_ns,
        error_code=row.error_code, fault_ns=UNKNOWN_NS,
    )  # fmt: skip
