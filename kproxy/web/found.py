"""The exchanges of recordings that match a filter: where they are, and any of them again.

::

    recordings ─ columns, batch by batch ─▶ places: batch and row of each ─ made(begin, end) ─▶
                     └▶ slots: how many there are when, by API

A pass over the recordings goes on in steps, one for each batch, so that what was found so far can
be shown meanwhile. It follows the last file while that is being written (`recording.following`). An
exchange takes 8 bytes. Those that are not complete where a recording ends are kept.

Invariants: they stand in the order of `kproxy show`; an exchange keeps its place. Steps and reads
may be made by different threads.
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from pathlib import Path
from typing import TypeVar

import attrs

from kproxy.exchange.endings import Unanswered
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import NO_NODE, UNANSWERED, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import NO, YES, Filter
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.unpacking import Unpacking
from kproxy.recording import RecordingError
from kproxy.recording.columns import Rows
from kproxy.recording.exchanges import Reader
from kproxy.recording.file import RecordingFile
from kproxy.recording.following import Follower
from kproxy.recording.notices import notice
from kproxy.recording.paths import by_recording, names
from kproxy.recording.reader import starting
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored import StoredBatch
from kproxy.recording.stored_frames import StoredFrames
from kproxy.report.slots import Slots

T = TypeVar("T")
GROWS_SECONDS = 0.05
"""A recording that grows is looked at so often: as often as kproxy writes. Each look takes a
processor away from a proxy that has one alone."""
SLOTS_MAX = 400
ROWS_KEPT = 32 << 10
"""Rows of exchanges that were shown, to be shown again: some 20 MB."""
LANES_MAX = 500
"""Connections that are counted: the first ones."""
Lane = tuple[str, int]
"""The name of a recording, "" if it is the only one, and the number of a connection in it."""
_ROW_BITS = 32
_ROW_MASK = (1 << _ROW_BITS) - 1


@attrs.frozen(eq=False)
class _Recording:
    """The frames, names and connections that the exchanges of one recording share."""

    frames: StoredFrames
    names: TopicNames
    context: RecordingContext
    """All connections; none is forgotten."""


@attrs.frozen(eq=False)
class _Batch:
    """A batch that has exchanges which were found."""

    file: RecordingFile
    stored: StoredBatch
    recording: _Recording
    numbers: range
    """From the lowest to the highest number."""
    count: int
    """The number of its rows."""


@attrs.frozen(eq=False)
class _Chosen:
    """The rows of a batch that columns alone have chosen."""

    rows: Rows
    places: list[int]
    batch: _Batch


@attrs.frozen(eq=False)
class _Peer:
    """The client and the broker of a connection."""

    node_id: int | None
    client_id: str | None = None
    context: RecordingContext | None = None
    """It may learn the client_id later."""

    def client(self, lane: Lane) -> str | None:
        """Return the client_id, as far as it is known."""
        return self.client_id if self.context is None else self.context.peer(lane[1]).client_id


@attrs.frozen
class ConnectionCounts:
    """The exchanges of a connection over time."""

    node_id: int | None
    client_id: str | None
    counts: dict[int, int]
    """Slot → number of exchanges."""


@attrs.define(eq=False)
class Found:
    """The exchanges that match a filter, as far as the recordings have been read."""

    paths: Sequence[Path | str]
    wanted: Filter | None = None
    read_bytes: int = attrs.field(default=0, init=False)
    """The bytes that the pass has read."""
    done: bool = attrs.field(default=False, init=False)
    grows: bool = attrs.field(default=False, init=False)
    """True once the pass has waited for more: the last file is being written."""
    files: Sequence[Path] = attrs.field(default=(), init=False)
    """The files so far."""
    notices: list[str] = attrs.field(factory=list[str], init=False)
    """Sentences on damage and loss in the recordings."""
    _slots: Slots = attrs.field(factory=lambda: Slots(SLOTS_MAX), init=False)
    """When requests arrived, by API key …"""
    _lane_slots: Slots = attrs.field(factory=lambda: Slots(SLOTS_MAX), init=False)
    """… and by connection."""
    _peers: dict[Lane, _Peer] = attrs.field(factory=dict, init=False)
    """The connections that are counted."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _places: array[int] = attrs.field(factory=lambda: array("Q"), init=False)
    _batches: list[_Batch] = attrs.field(factory=list[_Batch], init=False)
    _loose: dict[int, Exchange] = attrs.field(factory=dict[int, Exchange], init=False)
    """Exchanges that are not complete at the end, by their place in the list."""
    _waited: dict[int, Unanswered | None] = attrs.field(factory=dict, init=False)
    """Place in the list → what an unanswered request waited for."""
    _tables: OrderedDict[int, ExchangeTable] = attrs.field(factory=OrderedDict, init=False)
    """The tables of the batches that were read again last, by number."""
    _unpacking: Unpacking = attrs.field(factory=Unpacking, init=False)
    """What the pass, and who looks at its exchanges, may unpack."""
    _context: RecordingContext = attrs.field(factory=RecordingContext, init=False)
    """All connections of the recording that the pass is in."""

    def __len__(self) -> int:
        return len(self._places)

    def stop(self) -> None:
        """Open no more records: nobody asks for what would be found. A step ends soon."""
        self._unpacking.stop()

    def read(self, turn: AbstractContextManager[object] | None = None) -> Iterator[None]:
        """Go over the recordings, in steps that are short, each in a `turn` of those who may read
        at the same time; wait for more of one that grows.

        Raises: RecordingError.
        """
        steps = self._steps()
        while True:
            with turn or nullcontext(), self._lock:
                more = next(steps, None)
                if more is None:
                    self.done = True
                    return
            if not more:
                time.sleep(GROWS_SECONDS)
            yield

    def _steps(self) -> Iterator[bool]:
        """Yield whether there may be more at once, after each step."""
        named = by_recording(self.paths)
        wanted = None if self.wanted is None else starting(self.wanted, named)

        def count(rows: Rows) -> tuple[bytes, _Chosen]:
            return self._by_columns(rows, reader)

        files = list(chain.from_iterable(each.paths for each in named))
        progress = self._note, wanted, self._progress, names(named)
        follower = Follower(files, *progress, growing_only=True)
        reader, self.files = follower.reader, follower.paths
        self._unpacking = reader.unpacking
        chosen: _Chosen | None = None
        opened: list[Exchange] = []
        for each in follower.found(count):
            if isinstance(each, Exchange):
                opened.append(attrs.evolve(each))  # without what was read to match it
                continue
            self._add(chosen, opened)
            chosen, opened = each, []
            self.grows |= each is None and reader.last.torn is not None
            yield each is not None
        self._add(chosen, opened)

    def _progress(self, read_bytes: int) -> None:
        self.read_bytes = read_bytes

    def _note(self, note: Note) -> None:
        if note.body.get("event") == "recording":
            self._context = RecordingContext()
        self._context.note(note)
        found = notice(note)
        if found is not None:
            self.notices.append(found)

    def _by_columns(self, rows: Rows, reader: Reader) -> tuple[bytes, _Chosen]:
        """Choose what columns can; the rest is opened, and what was not answered explained."""
        left = bytearray(rows.verdicts)
        chosen: list[int] = []
        for row, flags in enumerate(rows.columns.get("response_flags")):
            if left[row] == YES and not flags & UNANSWERED:
                chosen.append(row)
                left[row] = NO
        recording = _Recording(reader.frames, rows.names, self._context)
        numbers = rows.columns.get("number")
        known = range(min(numbers, default=0), max(numbers, default=-1) + 1)
        batch = _Batch(rows.file, rows.batch, recording, known, len(numbers))
        return bytes(left), _Chosen(rows, chosen, batch)

    def _add(self, chosen: _Chosen | None, opened: Sequence[Exchange]) -> None:
        """Take the exchanges of a batch in the order of its rows; those without a row last."""
        loose = opened
        if chosen is not None:
            rows: dict[int, Exchange | None] = dict.fromkeys(chosen.places)
            with_row, loose = _split(chosen, opened)
            self._add_rows(chosen, rows | with_row)
        for exchange in loose:
            self._loose[len(self._places)] = exchange
            lane = exchange.topic_names.recording, exchange.row.connection
            if self._count(exchange.time_ns // 1000, exchange.row.api_key, lane):
                self._peers[lane] = _Peer(exchange.node_id, exchange.client_id)
            self._places.append(0)

    def _add_rows(self, chosen: _Chosen, rows: Mapping[int, Exchange | None]) -> None:
        columns = "time_ns", "api_key", "connection", "node_id"
        times, keys, connections, nodes = map(chosen.rows.columns.get, columns)
        recording = chosen.batch.recording
        base = len(self._batches) << _ROW_BITS
        for row in sorted(rows):
            exchange = rows[row]
            if exchange is not None and exchange.unanswered is not None:
                self._waited[len(self._places)] = exchange.unanswered
            lane = recording.names.recording, connections[row]
            if self._count(times[row] // 1000, keys[row], lane):
                node_id = None if nodes[row] == NO_NODE else nodes[row]
                self._peers[lane] = _Peer(node_id, context=recording.context)
            self._places.append(base | row)
        if rows:
            self._batches.append(chosen.batch)

    def _count(self, time_us: int, api_key: int, lane: Lane) -> bool:
        """Count an exchange; return whether it is the first of a connection that is counted."""
        self._slots.at(time_us)[api_key,] += 1
        is_new = lane not in self._peers
        if is_new and len(self._peers) == LANES_MAX:
            return False
        self._lane_slots.at(time_us)[lane] += 1
        return is_new

    # ---- over time

    def by_api(self) -> tuple[int, dict[int, dict[int, int]]]:
        """Return the width of slots in milliseconds; slot → API key → number of exchanges."""
        with self._lock:
            counts = self._slots.counts.items()
            by_slot = {slot: {key: count for (key,), count in by.items()} for slot, by in counts}
            return self._slots.width_ms, by_slot

    def by_connection(self) -> tuple[int, dict[Lane, ConnectionCounts]]:
        """Return the width of slots in milliseconds; connection → its exchanges by slot."""
        with self._lock:
            found = {
                lane: ConnectionCounts(peer.node_id, peer.client(lane), {})
                for lane, peer in self._peers.items()
            }
            for slot, counts in self._lane_slots.counts.items():
                for lane, count in counts.items():
                    found[lane].counts[slot] = count
            return self._lane_slots.width_ms, found

    # ---- again

    def made(self, begin: int, end: int, make: Callable[[Exchange], T]) -> list[T]:
        """Make something of the exchanges from a place on, up to another. They are not to be used
        afterwards: what they open is shared with the pass.

        Raises: RecordingError.
        """
        with self._lock:
            places = range(len(self))[max(0, begin) : max(0, end)]
            return [make(self._exchange(place)) for place in places]

    def place(self, name: str) -> int | None:
        """Return the place of an exchange, `#12` or `shop#12`; None if it is not among those found
        so far.

        Raises: RecordingError.
        """
        number = name.rpartition("#")[2]
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        with self._lock:
            places = chain(self._loose, self._candidates(int(number)))
            return next((each for each in places if self._exchange(each).name == name), None)

    def _candidates(self, number: int) -> Iterator[int]:
        """Yield the places of exchanges with a number, in any recording."""
        for position, batch in enumerate(self._batches):
            if number not in batch.numbers:
                continue
            for row, each in enumerate(self._table(position).column("number")):
                key = position << _ROW_BITS | row
                if each == number and key in self._places:
                    yield self._places.index(key)

    def _exchange(self, place: int) -> Exchange:
        if place in self._loose:
            return self._loose[place]
        number, row = self._places[place] >> _ROW_BITS, self._places[place] & _ROW_MASK
        batch, table = self._batches[number], self._table(number)
        found, recording = table.row(row), batch.recording
        peer = recording.context.peer(found.connection)
        return Exchange(
            found, peer.client_address, peer.client_id, recording.frames, recording.names,
            self._waited.get(place),
        )  # fmt: skip

    def _table(self, number: int) -> ExchangeTable:
        """Return the table of a batch; those that were read last are kept."""
        table = self._tables.get(number)
        if table is None:
            batch = self._batches[number]
            table = batch.file.exchanges(batch.stored)
            if len(table) != batch.count:
                raise RecordingError(batch.file.path, None, "has changed since it was read")
            self._tables[number] = table
            while sum(map(len, self._tables.values())) > ROWS_KEPT and len(self._tables) > 1:
                self._tables.popitem(last=False)
        self._tables.move_to_end(number)
        return table


def _split(
    chosen: _Chosen, opened: Sequence[Exchange]
) -> tuple[dict[int, Exchange], list[Exchange]]:
    """Return the exchanges that have rows in a batch, by their rows, and those that have none."""
    if not opened:
        return {}, []
    index = {number: row for row, number in enumerate(chosen.rows.columns.get("number"))}
    names = chosen.batch.recording.names  # in another recording numbers begin anew
    rows = [index.get(each.number) if each.topic_names is names else None for each in opened]
    pairs = list(zip(rows, opened, strict=True))
    with_row = {row: each for row, each in pairs if row is not None}
    return with_row, [each for row, each in pairs if row is None]
