"""What is pending where a recording is torn: the frames of exchanges that have no row.

::

    last file ──── its frames ───────────────────────┐
    earlier files  the frames that may be pending ───┴─▶ Pending ◀── the rows of all of them

A complete file has rows for everything but what was pending when the next one began. If the last
file is torn, some of these rows were never written, so the ends of the earlier files are read too.

Brokers answer in order, so what is pending on a connection came after the last of its requests
that was answered; and only connections that were open at the end have anything pending. That
leaves, as a rule, no earlier file to read, or the end of one. Only a rule that drops responses
breaks the order: a recording with fault rules is read from where its open connections began.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import CONNECTIONS, TRUNCATED, UNANSWERED, Frame, Position, Side
from kproxy.recording.file import RecordingFile, Table
from kproxy.recording.files import RecordingError
from kproxy.recording.stored import StoredBatch
from kproxy.recording.tables import ExchangeTable, FrameTable


@attrs.define(eq=False)
class Pending:
    """The frames of exchanges that have no row yet: their positions, by number."""

    requests: dict[int, int] = attrs.field(factory=dict)
    responses: dict[int, int] = attrs.field(factory=dict)

    def add(self, batch: int, table: FrameTable) -> None:
        """Take the frames of a batch."""
        for run, (side, numbers) in enumerate(table.numbers()):
            positions = self.requests if side == Side.CLIENT else self.responses
            for index, number in enumerate(numbers):
                positions[number] = Position(batch, run, index).integer

    def remove(self, numbers: Iterable[int]) -> None:
        """Exchanges have rows."""
        if self.requests or self.responses:
            for number in numbers:
                self.requests.pop(number, None)
                self.responses.pop(number, None)

    def add_earlier(self, earlier: Pending) -> None:
        """Take what was pending before: of a frame in pieces the last one counts."""
        self.requests = earlier.requests | self.requests
        self.responses = earlier.responses | self.responses

    def halves(
        self, open_frame: Callable[[Position], Frame | None]
    ) -> Iterator[tuple[Frame | None, Frame | None, Frame | None]]:
        """Yield requests, responses, and the entries that end requests, as they belong together."""
        for number in sorted({*self.requests, *self.responses}):
            request = self._frame(self.requests, number, open_frame)
            response = self._frame(self.responses, number, open_frame)
            ended = None
            if response is not None and response.flags & UNANSWERED:
                response, ended = None, response
            if response is not None and response.flags & TRUNCATED and request is not None:
                response = None  # half a response is none
            if request is not None or response is not None or ended is not None:
                yield request, response, ended

    def _frame(
        self,
        positions: dict[int, int],
        number: int,
        open_frame: Callable[[Position], Frame | None],
    ) -> Frame | None:
        position = Position.of(positions.get(number, 0))
        return None if position is None else open_frame(position)


def pending_before(
    files: Sequence[RecordingFile],
    last: Sequence[StoredBatch],
    in_order: bool,
) -> Pending:
    """Return what is pending of the earlier files of a recording whose last one is torn: of that,
    the batches that were read. `in_order` says that no rule dropped a response. What cannot be
    read of earlier files is left out: who reads them is told.
    """
    since = _Since(in_order)
    since.look_at(files[-1], last)
    first: float = _first(last)
    looked_at: list[tuple[RecordingFile, Sequence[StoredBatch]]] = []
    for earlier in reversed(files[:-1]):
        if since.connections is not None and not since.connections and since.batch >= first:
            break
        file, batches = earlier, list[StoredBatch]()
        with contextlib.suppress(RecordingError):
            file = RecordingFile(earlier.path)
            for batch in file.batches():
                batches.append(batch)
        since.look_at(file, batches)
        first = min(first, _first(batches))
        looked_at.append((file, batches))
    pending = Pending()
    for file, batches in reversed(looked_at):
        for batch in batches:
            if batch.number >= since.batch:
                frames = _readable(file.frames, batch)
                if frames is not None:
                    pending.add(batch.number, frames)
                pending.remove(_numbers(file, batch))
        file.close()
    for batch in last:
        pending.remove(_numbers(files[-1], batch))
    return pending


def _readable(table: Callable[[StoredBatch], Table | None], batch: StoredBatch) -> Table | None:
    """Return a table of a batch; None if it is damaged."""
    try:
        return table(batch)
    except RecordingError:
        return None


def _numbers(file: RecordingFile, batch: StoredBatch) -> Iterable[int]:
    """The exchanges that have a row in a batch."""
    table = _readable(file.exchanges, batch)
    return () if table is None else table.column("number")


def _first(batches: Iterable[StoredBatch]) -> float:
    """The number of the first batch that has frames; infinite if none has."""
    return min((batch.number for batch in batches if batch.number > 0), default=math.inf)


@attrs.define(eq=False)
class _Since:
    """From which batch on there may be something pending, by the files from the last one back."""

    in_order: bool
    connections: set[int] | None = None
    """Those of which earlier files may tell more; None before any that has batches was seen: one
    that was just begun has none."""
    batch: float = math.inf

    def look_at(self, file: RecordingFile, batches: Sequence[StoredBatch]) -> None:
        """Take what the next earlier file tells."""
        if self.connections is None and batches:
            self.connections = _open_at_end(batches)
        if self.connections is not None:
            self.connections |= _of_the_torn(file, batches)
        if not self.connections or not batches:
            return
        open_before: set[int] = set()
        answered: dict[int, int] = {}
        """Where the last request lies that was answered, by connection."""
        for batch in batches:
            for note in batch.notes:
                if note.channel == CONNECTIONS and note.body.get("event") == "open":
                    open_before.add(endings.connection(note.body))
            table = _readable(file.exchanges, batch) if self.in_order else None
            if table is not None:
                answered.update(_answered(table))
        known = self.connections & answered.keys()
        began = self.connections - known - open_before
        self.batch = min(self.batch, *(answered[each] >> 32 for each in known), math.inf)
        if began:
            self.batch = min(self.batch, _first(batches))
        self.connections = self.connections & open_before - known


def _open_at_end(batches: Iterable[StoredBatch]) -> set[int]:
    """The connections that are open behind batches, as these tell."""
    found: set[int] = set()
    for note in (note for batch in batches for note in batch.notes):
        if note.channel == CONNECTIONS:
            closed = note.body.get("event") == "closed"
            (found.discard if closed else found.add)(endings.connection(note.body))
    return found


def _of_the_torn(file: RecordingFile, batches: Iterable[StoredBatch]) -> set[int]:
    """The connections of a batch whose notes and rows were never written."""
    torn = (each for each in batches if each.exchanges is None)
    tables = (_readable(file.frames, each) for each in torn)
    return {each for table in tables if table is not None for each in table.column("connection")}


def _answered(table: ExchangeTable) -> Iterator[tuple[int, int]]:
    """Yield the connections of the exchanges that have a response, and where the requests lie."""
    names = ("connection", "request_position", "response_bytes")
    columns = (table.column(name) for name in names)
    for connection, position, response_bytes in zip(*columns, strict=True):
        if position and response_bytes:
            yield connection, position
