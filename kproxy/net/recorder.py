"""The recorder: takes entries from the pump, and writes them in a thread of its own.

::

    pump ─ put ─▶ entries ── every 50 ms, or 4 MiB ──▶ jobs ─▶ thread: Recording.write
                                                         │
                    counters, room, losses ◀── settle ───┘

All that the pump does for an entry is to put it into a list; the thread makes pieces of them.

The backlog is bounded. When it holds more than one job of the thread, the pump waits for the disk,
but for no longer than half a second: a busy disk costs time and not frames, and one that hangs does
not hang the proxy. Entries that cannot be kept, because the disk hangs (the backlog is full) or
refuses (it is full, or gone), are counted, logged once, and noted in the recording as soon as it
can be written again, which is tried every second. With `lossless` the pump waits for as long as it
takes, and a disk that refuses ends the proxy.

Invariants: `put` raises nothing. An unforeseen exception, here or in the sink, loses
the entries at hand, as a disk does that refuses them. Only the thread touches the sink, so that
waiting for a disk can be given up.

Resource handling: owns the sink, if there is one, and then a thread from `run` on; `finish` closes
the sink and ends the thread. When `finish` is cancelled, both are left as they are, to the end of
the process.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange import notes
from kproxy.exchange.entries import Entry, Frame, FrameRun, Note, count_frames, each_frame
from kproxy.exchange.leaving import Leaving
from kproxy.exchange.words.wording import count
from kproxy.levels import Logger
from kproxy.net.clock import Clock

FLUSH_SECONDS = 0.05
LATE_SECONDS = 1.0
"""The pause after which what could not be written, or had not left, is tried again."""
FLUSH_BYTES = 4 << 20
"""With this much waiting and nothing being written, it is written at once. Smaller jobs would stay
in the processor's first caches, but handing them over costs more than that saves."""
BACKLOG_BYTES_MAX = 64 << 20
BUSY_BYTES_MAX = 16 << 20
"""The pump waits when the backlog is larger than this (or half of what it may be)."""
STALL_SECONDS = 0.5
"""The pump waits this long for a disk without any progress; then frames are lost."""
_HANGS_SECONDS = 5.0
"""A disk that takes longer for a job hangs, for those who ask."""
_GOES_ON_SECONDS = 10.0
"""Of a disk that refuses again and again, the log is not told more often that it does not."""
NOTES_BYTES_MAX = 4 << 20
"""The memory for notes beyond the backlog's limit while the disk hangs: a few thousand notes."""
_NOTE_BYTES = 1024
_FRAME_BYTES = 256
"""The memory of a frame besides its data."""


Intake = Callable[[Sequence[Entry]], Sequence[Entry]]
"""A function that sees all entries as they come, and returns those to record."""


class Sink(Protocol):
    """The destination of entries: a recording."""

    @property
    def waits(self) -> bool:
        """True while there is something to be written that comes without further entries."""
        ...

    def write(self, entries: Sequence[Entry], wall: Callable[[int], int] = ...) -> None:
        """Write them all; raises OSError, having written none. `wall` returns what is to be added
        to a time of a frame."""
        ...

    def prepare_close(self) -> None:
        """Prepare for the last entries."""
        ...

    def close(self) -> None:
        """Complete the recording; raises OSError if that fails."""
        ...


@attrs.define(eq=False)
class Loss:
    """The frames lost since the last note about losses."""

    frames: int = 0
    frame_bytes: int = 0
    reason: str = ""
    from_ns: int = 0
    until_ns: int = 0

    def __bool__(self) -> bool:
        return bool(self.frames or self.frame_bytes)

    def note(self) -> Note:
        """Return the note about the loss."""
        return notes.lost(self.frames, self.frame_bytes, self.reason, self.from_ns, self.until_ns)

    def add(self, newer: Loss) -> None:
        """Add a newer loss."""
        if newer:
            self.frames += newer.frames
            self.frame_bytes += newer.frame_bytes
            self.from_ns = self.from_ns or newer.from_ns
            self.until_ns = newer.until_ns
            self.reason = newer.reason


@attrs.define(eq=False)
class _Job:
    """The entries that the thread writes at once."""

    entries: list[Entry]
    loss: Loss
    """The loss whose note is the last of them."""
    memory_bytes: int
    last: bool
    error: Exception | None = None
    done: bool = False
    """The thread has written it, or failed to."""
    begun: float = attrs.field(factory=time.monotonic)


class Recorder:
    """Owns the backlog; `run` is its task."""

    def __init__(
        self,
        sink: Sink | None,
        log: Logger,
        watch: Callable[[Iterable[Frame | Note]], None] | None = None,
        lossless: bool = False,
        backlog_bytes_max: int = BACKLOG_BYTES_MAX,
        intake: Intake | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._sink = sink
        self._log = log
        self._watch = watch
        self._lossless = lossless
        self._intake = intake
        self._clock = clock
        """The clock that the times of entries are of; None: they are recorded as they are."""
        self.backlog_bytes_max = backlog_bytes_max
        self._busy_bytes_max = min(BUSY_BYTES_MAX, backlog_bytes_max // 2)
        self._unshown: list[Entry] = []
        """The entries that `watch` has not seen yet."""
        self._leaving = Leaving()
        self._waiting: list[Entry] = []
        """The entries that no job has yet …"""
        self._bytes = 0
        """… and their size."""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._writing: _Job | None = None
        """The job of the thread, which gets one at a time."""
        self._thread: threading.Thread | None = None
        self._has_entries = trio.Event()
        self._settled = trio.lowlevel.ParkingLot()
        """Who waits until a job is done, or all of them."""
        self._loss = Loss()
        """The loss that no note tells yet."""
        self._last_reason = ""
        """The reason of a loss that was logged last; the same one is not logged again."""
        self._intake_fails = False
        self._went_on = -math.inf
        """When the log was told last that the recording goes on, …"""
        self._lost_told = 0
        """… and what was lost until then."""
        self._hangs = False
        """True after a wait for the disk in vain: until a job is done, the pump waits no more."""
        self.failure = ""
        """The reason why `run` ended by itself."""
        self.frames_recorded = 0
        self.frames_lost = 0
        self.frame_bytes_lost = 0

    def congested(self) -> bool:
        """Settle what has been written; return whether the pump should wait for `room` before it
        takes in more."""
        self._settle()
        return self.backlog_bytes > self._busy_bytes_max and not self._hangs

    @property
    def writes(self) -> bool:
        """False while the disk refuses or hangs."""
        job = self._writing
        if job is not None and (job.loss or time.monotonic() - job.begun > _HANGS_SECONDS):
            return False
        return not (self._loss or self._hangs or self.failure)

    @property
    def backlog_bytes(self) -> int:
        """An estimate of the memory of entries that are not written yet."""
        return self._bytes + (self._writing.memory_bytes if self._writing else 0)

    @property
    def frames_unwritten(self) -> int:
        """The number of frames that the disk has not taken yet."""
        writing = count_frames(self._writing.entries) if self._writing else 0
        return writing + count_frames(self._waiting)

    def put(self, entries: Sequence[Entry]) -> None:
        """Take entries; never wait."""
        if self._intake is not None:
            entries = self._run_intake(entries)
        if not entries or (self._sink is None and self._watch is None):
            return
        if not self._bytes:
            self._has_entries.set()
        self._take(entries, _memory_bytes(entries))
        if self._writing is not None:  # not in trio's turn: the thread needs its next job
            self._settle()
        if self._bytes >= FLUSH_BYTES and self._writing is None and self._thread is not None:
            self._hand_over()

    def _take(self, entries: Sequence[Entry], size: int) -> None:
        """Take entries, whose memory has this size; lose them if there is no room."""
        backlog_bytes = self.backlog_bytes
        if backlog_bytes + size > self.backlog_bytes_max and not self._lossless:
            # Notes are small, and readers need those about connections.
            kept = _notes_of(entries)
            if len(kept) < len(entries):
                self._lose(entries, "the disk does not keep up")
            entries = kept
            if not entries or backlog_bytes > self.backlog_bytes_max + NOTES_BYTES_MAX:
                return
            size = _memory_bytes(entries)
        if self._sink is not None:
            self._waiting += entries
        if self._watch is not None:
            self._unshown += entries
        self._bytes += size

    def note(self, note: Note) -> None:
        """Take a note that comes without frames."""
        self.put([note])

    async def room(self) -> None:
        """Wait until the backlog has room again, `STALL_SECONDS` at most (unless `lossless`)."""
        with trio.move_on_after(math.inf if self._lossless else STALL_SECONDS) as waiting:
            while self.congested() and not self.failure:
                await self._settled.park()
        self._hangs = waiting.cancelled_caught

    async def run(self) -> None:
        """Write entries until cancelled, or, if `lossless`, until the disk refuses."""
        self._start()
        while not self.failure:
            with trio.move_on_after(LATE_SECONDS if self._is_late else math.inf):
                await self._has_entries.wait()
            self._has_entries = trio.Event()
            await trio.sleep(FLUSH_SECONDS)
            await self._wait_written()  # a slow disk gets fewer, larger jobs
            if self._bytes or self._loss or self._waits:
                self._hand_over()
            self._show()

    @property
    def _is_late(self) -> bool:
        """True while something is to be written or shown for which no further entry comes."""
        written = self._writing is None and not self._loss and not self._waits
        return not written or bool(self._leaving)

    @property
    def _waits(self) -> bool:
        return self._sink is not None and self._sink.waits

    async def flush(self, last: bool = False) -> None:
        """Write what waits, after `run` was cancelled; `last`: prepare the sink for its end."""
        self._start()
        await self._wait_written()
        self._hand_over(last)
        await self._wait_written()

    async def finish(self) -> None:
        """Write the rest and complete the recording, after `run` was cancelled; when cancelled
        itself, leave sink and thread as they are."""
        self._show()
        await self.flush(last=True)
        if self._loss:  # the disk may have room for just this note
            await self.flush(last=True)
        self._jobs.put(None)
        while self._thread is not None:
            await self._settled.park()

    # ------------------------------------------------------------ jobs

    def _start(self) -> None:
        if self._thread is None and self._sink is not None:
            token = trio.lowlevel.current_trio_token()
            self._thread = threading.Thread(
                target=self._work, args=(token,), name="kproxy-recorder", daemon=True
            )
            self._thread.start()

    async def _wait_written(self) -> None:
        """Wait until the thread has nothing to do."""
        while self._writing is not None:
            await self._settled.park()

    def _hand_over(self, last: bool = False) -> None:
        """Give all entries that wait to the thread as a job."""
        loss, self._loss = self._loss, Loss()
        entries, self._waiting = self._waiting, []
        if loss and self._sink is not None:
            # The note goes with the entries before it, or not at all: one note for one gap.
            entries.append(loss.note())
        job = self._writing = _Job(entries, loss, self._bytes, last)
        self._bytes = 0
        if entries or self._waits:
            self._jobs.put(job)
        else:
            job.done = True
            self._settle()

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        """Do one job after the other in the thread, then complete the recording."""
        while (job := self._jobs.get()) is not None:
            self._write(job)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._settle)
        problem = self._complete()
        with contextlib.suppress(trio.RunFinishedError):
            token.run_sync_soon(self._close, problem)

    def _write(self, job: _Job) -> None:
        try:
            if self._sink is not None:
                if job.last:
                    self._sink.prepare_close()
                write_to(self._sink, job.entries, self._clock)
        except Exception as error:
            job.error = error
        job.done = True

    def _complete(self) -> str:
        """Close the sink; return why it cannot be completed, or ""."""
        try:
            if self._sink is not None:
                self._sink.close()
        except OSError as error:
            return f"({error.strerror or error})"
        except Exception as error:
            return defect(error)
        return ""

    def _close(self, problem: str) -> None:
        if problem:
            text = f"cannot complete the recording {problem}; kproxy recover does that later"
            self._log(text, "error")
        self._thread = None
        self._settled.unpark_all()

    def _settle(self) -> None:
        """Take into account a job that is done or has failed; in the pump's thread."""
        job = self._writing
        if job is None or not job.done:
            return
        self._writing, self._hangs = None, False
        if job.error is None:
            self.frames_recorded += count_frames(job.entries)
            self._goes_on()
        else:
            what, error = "cannot write the recording", job.error
            foreseen = isinstance(error, OSError)
            why = f": {error.strerror or error}" if foreseen else f" {defect(error)}"
            newer, self._loss = self._loss, job.loss
            self._lose(job.entries, what + why)
            self._loss.add(newer)
        self._settled.unpark_all()

    # ------------------------------------------------------------ losses

    def _run_intake(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries that the intake keeps; if it fails, only their notes."""
        assert self._intake is not None
        try:
            found, self._intake_fails = self._intake(entries), False
            return found
        except Exception as error:
            self._intake_fails = True
            self._lose(entries, f"cannot record what passes {defect(error)}")
            return _notes_of(entries)

    def _lose(self, entries: Sequence[Entry], reason: str) -> None:
        """Count entries that are not recorded, and tell the reason, once; if `lossless`, it ends
        `run`."""
        loss = _loss_of(entries, reason)
        self._loss.add(loss)
        self.frames_lost += loss.frames
        self.frame_bytes_lost += loss.frame_bytes
        if self._lossless:
            self.failure = self.failure or reason
            self._has_entries.set()
            self._settled.unpark_all()
        elif reason != self._last_reason:
            self._last_reason = reason
            what = f"{reason}; the proxy goes on and counts what it does not record"
            self._log(what, "error")

    def _goes_on(self) -> None:
        """Tell that what was logged is over, if it is: not often where it comes and goes."""
        now = time.monotonic()
        if not self._last_reason or self._loss or self._intake_fails:
            return
        if now < self._went_on + _GOES_ON_SECONDS:
            return
        lost, self._lost_told = self.frames_lost - self._lost_told, self.frames_lost
        self._last_reason, self._went_on = "", now
        self._log(f"the recording goes on; {count(lost, 'frame')} before this are not in it")

    def _show(self) -> None:
        """Show new entries to `watch`; a mistake there must not cost the recording."""
        seen, self._unshown = self._leaving.take(self._unshown), []
        if self._watch is None or not seen:
            return
        shown, clock = each_frame(seen), self._clock
        try:
            self._watch(map(clock.wall_entry, shown) if clock and clock.moves else shown)
        except Exception as error:
            self._watch = None
            self._log(f"the display stops, {defect(error)}")


def write_to(sink: Sink, entries: Sequence[Entry], clock: Clock | None) -> None:
    """Write entries, at the times that the system's clock had."""
    if clock is None or not clock.moves:
        sink.write(entries)
    else:
        moved = [clock.wall_note(each) if type(each) is Note else each for each in entries]
        sink.write(moved, clock.offset_ns)


def _memory_bytes(entries: Iterable[Entry]) -> int:
    """Return about how much memory entries take."""
    size = 0
    for entry in entries:
        if type(entry) is FrameRun:
            size += sum(map(len, entry.pieces)) + _FRAME_BYTES * len(entry.sizes)
        elif type(entry) is Frame:
            size += sum(map(len, entry.pieces)) + _FRAME_BYTES
        else:
            size += _NOTE_BYTES
    return size


def _notes_of(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if type(entry) is Note]


def _loss_of(entries: Sequence[Entry], reason: str) -> Loss:
    """Return the loss of entries."""
    loss = Loss(count_frames(entries), reason=reason)
    for entry in entries:
        if isinstance(entry, Note):
            continue
        loss.frame_bytes += (
            entry.frame_bytes if isinstance(entry, FrameRun) else sum(map(len, entry.pieces))
        )
        loss.from_ns = loss.from_ns or entry.time_ns
        loss.until_ns = entry.time_ns
    return loss
