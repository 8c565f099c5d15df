"""The exchanges of recordings that match a filter: where they are, and any of them again.

::

    recordings ─ Reader ─▶ Exchange ─┬─▶ its number, the batch that it ends in ─ made(begin, end) ─▶
                                     └─▶ slots: how many there are when, by API and connection

The pass over the recordings pauses after each batch, so that what was found so far can be shown
meanwhile. It follows the last file while that is being written (`recording.following`). An exchange
takes 8 bytes. Those that are not complete where a recording ends are kept.

Invariants: they stand in the order of `kproxy show`; an exchange keeps its place. The pass and
those who read may be different threads.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import TypeVar

import attrs

from kproxy.exchange.endings import Unanswered
from kproxy.exchange.entries import ExchangeRow, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.unpacking import Unpacking
from kproxy.look.report.slots import Slots
from kproxy.recording import RecordingError
from kproxy.recording.exchanges import Reader
from kproxy.recording.file import RecordingFile
from kproxy.recording.following import FileFollower, Follow
from kproxy.recording.notices import notice
from kproxy.recording.paths import by_recording, names
from kproxy.recording.reader import starting
from kproxy.recording.stored import StoredBatch

T = TypeVar("T")
GROWS_SECONDS = 0.05
"""A recording that grows is looked at so often: as often as kproxy writes. Each look takes a
processor away from a proxy that has one alone."""
BEHIND_SECONDS = 1.0
SLOTS_MAX = 400
ROWS_KEPT = 32 << 10
"""Rows of exchanges that were shown, to be shown again: some 20 MB."""
LANES_MAX = 500
"""Connections that are counted: the first ones."""
Lane = tuple[str, int]
"""The name of a recording, "" if it is the only one, and the number of a connection in it."""


@attrs.frozen
class ConnectionCounts:
    """The exchanges of a connection."""

    node_id: int | None
    client_id: str | None
    by_slot: Counter[int] = attrs.field(factory=Counter)


@attrs.frozen(eq=False)
class _MatchingBatch:
    """A batch in which exchanges end that were found."""

    first: int
    """The place of the first of them."""
    file: RecordingFile
    stored: StoredBatch
    like: Exchange
    """One of them, for what those of its recording share."""
    context: RecordingContext
    """All connections of its recording; none is forgotten."""


class _Stopped(Exception):
    """Nobody asks for what would be found."""


@attrs.define(eq=False)
class MatchingExchanges:
    """The exchanges that match a filter, as far as the recordings have been read."""

    paths: Sequence[Path | str]
    wanted: Filter | None = None
    follow: Follow = Follow.WHILE_WRITTEN
    read_bytes: int = 0
    """The bytes that the pass has read."""
    done: bool = False
    grows: bool = False
    """True once the pass has waited for more: the last file is being written."""
    files: Sequence[Path] = attrs.field(default=(), init=False)
    """The files so far."""
    _caught_up: float = attrs.field(default=-math.inf, init=False)
    """When the pass last had nothing more to read."""
    notices: list[str] = attrs.Factory(list)
    """Sentences on damage and loss in the recordings."""
    _removed_by: str = attrs.field(default="", init=False)
    """The option that removes files while they are read, as far as is known."""
    _slots: Slots = attrs.field(factory=lambda: Slots(SLOTS_MAX), init=False)
    """When requests arrived, by API key …"""
    _lane_slots: Slots = attrs.field(factory=lambda: Slots(SLOTS_MAX), init=False)
    """… and by connection."""
    _lanes: dict[Lane, tuple[int | None, str | None]] = attrs.field(factory=dict, init=False)
    """The connections that are counted → node_id, client_id."""
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)
    _numbers: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    """The number of each exchange."""
    _batches: list[_MatchingBatch] = attrs.field(factory=list, init=False)
    _kept: dict[int, Exchange] = attrs.field(factory=dict, init=False)
    """Exchanges that end in no batch, by their place in the list."""
    _waited: dict[int, Unanswered] = attrs.field(factory=dict, init=False)
    """Place in the list → what an unanswered request waited for."""
    _rows: OrderedDict[int, dict[int, ExchangeRow]] = attrs.field(factory=OrderedDict, init=False)
    """The rows of the batches that were read again last: first place → number → row."""
    _unpacking: Unpacking = attrs.field(factory=Unpacking, init=False)
    """What the pass, and who looks at its exchanges, may unpack."""
    _context: RecordingContext = attrs.field(factory=RecordingContext, init=False)
    """All connections of the recording that the pass is in."""
    _stopped: bool = attrs.field(default=False, init=False)

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def is_behind(self) -> bool:
        """True while there is more than the pass has read; what is written now does not count."""
        return not self.done and time.monotonic() - self._caught_up > BEHIND_SECONDS

    def stop(self) -> None:
        """End the pass soon: nobody asks for what would be found."""
        self._stopped = True
        self._unpacking.stop()

    def read(
        self,
        turn: threading.Semaphore | None = None,
        gives_way: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go over the recordings, and wait for more of one that grows; in turn with other passes,
        and between those who read. It rests while it `gives_way` to a pass that goes before it.

        Raises: RecordingError.
        """
        turn = turn or threading.Semaphore()

        def pause(seconds: float = 0) -> None:
            self._lock.release()
            turn.release()
            time.sleep(seconds)
            while gives_way() and not self._stopped:
                time.sleep(GROWS_SECONDS)
            turn.acquire()
            self._lock.acquire()
            if self._stopped:
                raise _Stopped

        def on_progress(read_bytes: int) -> None:
            self.read_bytes = read_bytes
            pause()

        with turn, self._lock, contextlib.suppress(_Stopped):
            for torn in self._pass(on_progress):
                self.grows, self._caught_up = self.grows or torn, time.monotonic()
                pause(GROWS_SECONDS if self.grows else 0)
            self.done = True

    def _pass(self, on_progress: Callable[[int], None]) -> Iterator[bool]:
        """Take all exchanges; yield, where there are no more for now, whether the file is torn
        there."""
        named = by_recording(self.paths)
        wanted = None if self.wanted is None else starting(self.wanted, named)
        files = list(chain.from_iterable(each.paths for each in named))
        given = self._note, wanted, on_progress, names(named)
        follower = FileFollower(files, *given, follow=self.follow)
        reader, self.files = follower.reader, follower.paths
        self._unpacking = reader.unpacking
        for each in follower.found():
            if each is None:
                yield reader.last.torn is not None
            else:
                self._take(each, reader)

    def _note(self, note: Note) -> None:
        if note.body.get("event") == "recording":
            self._context = RecordingContext()
        self._context.note(note)
        found = notice(note)
        if found is not None:
            self.notices.append(found)
        if note.body.get("event") == "removed":
            self._removed_by = f" by {note.body.get('by')}"

    def _take(self, exchange: Exchange, reader: Reader) -> None:
        """Take an exchange that the reader has given just now."""
        place, time_us = len(self._numbers), exchange.time_ns // 1000
        lane = exchange.topic_names.recording, exchange.row.connection
        self._slots.at(time_us)[exchange.row.api_key,] += 1
        if lane not in self._lanes and len(self._lanes) < LANES_MAX:
            self._lanes[lane] = exchange.node_id, exchange.client_id
        if lane in self._lanes:
            self._lane_slots.at(time_us)[lane] += 1
        batch = reader.ended_in
        if batch is None:
            self._kept[place] = attrs.evolve(exchange)  # without what was read to match it
        elif not self._batches or self._batches[-1].stored is not batch:
            like = attrs.evolve(exchange)
            self._batches.append(_MatchingBatch(place, reader.last, batch, like, self._context))
        if exchange.unanswered is not None:
            self._waited[place] = exchange.unanswered
        self._numbers.append(exchange.row.number)

    # ---- over time

    def by_api(self) -> tuple[int, dict[int, dict[int, int]]]:
        """Return the width of slots in milliseconds; slot → API key → number of exchanges."""
        with self._lock:
            counts = self._slots.counts.items()
            by_slot = {slot: {key: count for (key,), count in by.items()} for slot, by in counts}
            return self._slots.width_ms, by_slot

    def by_connection(self) -> tuple[int, dict[Lane, ConnectionCounts]]:
        """Return the width of slots in milliseconds, and the counts of each connection."""
        with self._lock:
            found = {lane: ConnectionCounts(*about) for lane, about in self._lanes.items()}
            for slot, counts in self._lane_slots.counts.items():
                for lane, count in counts.items():
                    found[lane].by_slot[slot] = count
            return self._lane_slots.width_ms, found

    # ---- again

    def removed(self) -> list[str]:
        """Return a sentence on the files that were read and are not there any more, if any are."""
        gone = [path.name for path in self.files if not path.exists()]
        if not gone:
            return []
        which = f"{gone[0]} to {gone[-1]} were" if len(gone) > 1 else f"{gone[0]} was"
        return [f"{which} removed{self._removed_by}: their exchanges cannot be opened any more"]

    def made(
        self, begin: int, end: int, make: Callable[[Exchange], T], lost: Callable[[int], T]
    ) -> list[T]:
        """Make something of the exchanges from a place on, up to another; of those whose file was
        removed, of their numbers. They are not to be used afterwards: what they open is shared with
        the pass.

        Raises: RecordingError.
        """

        def one(place: int) -> T:
            try:
                return make(self._exchange(place))
            except RecordingError:
                if not self.removed():
                    raise
                return lost(self._numbers[place])

        with self._lock:
            places = range(len(self))[max(0, begin) : max(0, end)]
            return [one(place) for place in places]

    def place(self, name: str) -> int | None:
        """Return the place of an exchange, `#12` or `shop#12`; None if it is not among those found
        so far.

        Raises: RecordingError.
        """
        number = name.rpartition("#")[2]
        if not number.isascii() or not number.isdigit() or len(number) > 18:
            return None
        with self._lock:
            places = self._places(int(number))
            return next((each for each in places if self._exchange(each).name == name), None)

    def _places(self, number: int) -> Iterator[int]:
        """Yield the places of exchanges with a number, in any recording."""
        place = -1
        with contextlib.suppress(ValueError):
            while True:
                place = self._numbers.index(number, place + 1)
                yield place

    def _batch(self, place: int) -> _MatchingBatch:
        return self._batches[bisect_right(self._batches, place, key=attrgetter("first")) - 1]

    def _exchange(self, place: int) -> Exchange:
        if place in self._kept:
            return self._kept[place]
        batch = self._batch(place)
        row = self._rows_of(batch).get(self._numbers[place])
        if row is None:
            raise RecordingError(batch.file.path, None, "has changed since it was read")
        peer = batch.context.peer(row.connection)
        return attrs.evolve(
            batch.like,
            row=row,
            client_address=peer.client_address,
            connection_client_id=peer.client_id,
            unanswered=self._waited.get(place),
            users=peer.users,
        )

    def _rows_of(self, batch: _MatchingBatch) -> dict[int, ExchangeRow]:
        """Return the rows of a batch by number; those that were read last are kept."""
        rows = self._rows.get(batch.first)
        if rows is None:
            rows = {row.number: row for row in batch.file.exchanges(batch.stored)}
            self._rows[batch.first] = rows
            while sum(map(len, self._rows.values())) > ROWS_KEPT and len(self._rows) > 1:
                self._rows.popitem(last=False)
        self._rows.move_to_end(batch.first)
        return rows
