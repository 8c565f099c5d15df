"""The recorder: takes entries from the pump, and writes them in a thread of its own.

::

    pump ─ collect, put ─▶ BatchBuilder ── every 50 ms, or 4 MiB ──▶ jobs ─▶ thread: append
                                                                       │
                    counters, room, losses ◀── settle ─────────────────┘

The work per frame is done soon after it arrives; the thread gets batches that are ready to be
written, and holds the interpreter for moments only, so that clients do not notice
(`batch_messages`).

The backlog is bounded. When it holds more than one job of the thread, the pump waits for the disk,
but for no longer than half a second: a busy disk costs time and not frames, and one that hangs does
not hang the proxy. Entries that cannot be kept, because the disk hangs (the backlog is full) or
refuses (it is full, or gone), are counted, logged once, and noted in the recording as soon as it
can be written again, which is tried every second. With `lossless` the pump waits for as long as it
takes, and a disk that refuses ends the proxy.

Invariants: `collect` and `put` raise nothing. An unforeseen exception, here or in the sink, loses
the entries at hand, as a disk does that refuses them; in the builder, the whole batch that it has
left half made. Only the thread touches the sink, so that waiting for a disk can be given up; except
for `wants_pending`, which needs no disk, between two jobs.

Resource handling: owns the sink, and a thread from `run` on; `finish` closes the sink and ends the
thread. When `finish` is cancelled, both are left as they are, to the end of the process.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeVar

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange import notes
from kproxy.exchange.entries import Entry, Frame, Note, Run, count_frames, each
from kproxy.exchange.leaving import Leaving
from kproxy.net.clock import Clock
from kproxy.recording.batch import RecordingBatch
from kproxy.recording.builder import BatchBuilder

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
NOTES_BYTES_MAX = 4 << 20
"""The memory for notes beyond the backlog's limit while the disk hangs: a few thousand notes."""
_TOGETHER = 32
_TOGETHER_BYTES_MAX = 1 << 20
"""So many entries are taken together at most: a few tenths of a millisecond."""
_NOTE_BYTES = 1024
_FRAME_BYTES = 256
"""The memory of a frame besides its data."""


Result = TypeVar("Result")
Intake = Callable[[list[Entry]], list[Entry]]
"""A function that sees all entries as they come, and returns those to record."""


class Sink(Protocol):
    """The destination of batches: a recording."""

    def wants_pending(self, time_ns: int) -> bool:
        """Return whether the last of the next batches, which begin at this time, should list the
        requests pending behind it."""
        ...

    def append(self, batches: Sequence[RecordingBatch]) -> None:
        """Write them all; raises OSError, having written none that is not whole."""
        ...

    def prepare_close(self) -> None:
        """Prepare for the last batches."""
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

    def merge(self, newer: Loss) -> None:
        """Add a newer loss."""
        if newer:
            self.frames += newer.frames
            self.frame_bytes += newer.frame_bytes
            self.from_ns = self.from_ns or newer.from_ns
            self.until_ns = newer.until_ns
            self.reason = newer.reason


@attrs.define(eq=False)
class _Job:
    """The batches that the thread writes at once."""

    batches: list[RecordingBatch]
    loss: Loss
    """The loss whose note is in the last of them."""
    memory_bytes: int
    last: bool
    error: Exception | None = None

    @property
    def frames(self) -> int:
        """The number of frames in its batches."""
        return sum(batch.frames for batch in self.batches)


class Recorder:
    """Owns the backlog; `run` is its task."""

    def __init__(
        self,
        sink: Sink | None,
        log: Callable[[str], None],
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
        self._builder = BatchBuilder()
        self._unshown: list[Entry] = []
        """The entries that `watch` has not seen yet."""
        self._leaving = Leaving()
        self._collected: list[Entry] = []
        """Entries that are not in the batch yet."""
        self._collected_bytes = 0
        self._bytes = 0
        """The size of the entries that no job has yet."""
        self._writing_bytes = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._writing: _Job | None = None
        """The job of the thread, which gets one at a time."""
        self._ended = trio.Event()
        """Set when the thread has closed the sink."""
        self._has_entries = trio.Event()
        self._idle = trio.Event()
        self._room = trio.Event()
        self._loss = Loss()
        self._last_reason = ""
        self._hangs = False
        self.failure = ""
        """The reason why `run` ended by itself."""
        self._frames_recorded = 0
        self.frames_lost = 0
        self.frame_bytes_lost = 0

    @property
    def congested(self) -> bool:
        """True while the pump should wait for `room` before it takes in more."""
        if self._done:
            self._settle()
        return self._bytes + self._writing_bytes > self._busy_bytes_max and not self._hangs

    @property
    def backlog_bytes(self) -> int:
        """An estimate of the memory of entries that are not written yet."""
        return self._collected_bytes + self._bytes + self._writing_bytes

    @property
    def frames_recorded(self) -> int:
        """The number of frames in the recording."""
        return self._frames_recorded

    @property
    def frames_unwritten(self) -> int:
        """The number of frames that the disk has not taken yet."""
        writing = self._writing.frames if self._writing else 0
        return writing + self._builder.frames + count_frames(self._collected)

    def collect(self, entries: Sequence[Entry]) -> None:
        """Take entries of what was sent; never wait.

        They are taken together with others: so a small run costs the recorder two thirds of what it
        costs by itself, since its code is still in the processor's caches.
        """
        if self._intake is not None:  # who looks at what passes sees it as it passes
            self.put(list(entries))
            return
        if self._sink is None and self._watch is None:
            return
        self._note_arrival()
        self._collected += entries
        self._collected_bytes += _memory_bytes(entries)
        if len(self._collected) >= _TOGETHER or self._collected_bytes > _TOGETHER_BYTES_MAX:
            self._take_collected()
            self._hand_over_if_full()

    def put(self, entries: list[Entry]) -> None:
        """Take entries at once; never wait."""
        if self._intake is not None:
            entries = self._run_intake(entries)
        if not entries or (self._sink is None and self._watch is None):
            return
        self._take_collected()
        self._note_arrival()
        self._take(entries, _memory_bytes(entries))
        self._hand_over_if_full()

    def _note_arrival(self) -> None:
        if not self._bytes and not self._collected:
            self._has_entries.set()

    def _hand_over_if_full(self) -> None:
        if self._done:  # do not wait for trio's turn: the thread needs its next job
            self._settle()
        if self._bytes >= FLUSH_BYTES and self._writing is None and self._thread is not None:
            self._hand_over()

    def _take_collected(self) -> None:
        if self._collected:
            collected, self._collected = self._collected, []
            size, self._collected_bytes = self._collected_bytes, 0
            self._take(collected, size)

    def _take(self, entries: list[Entry], size: int) -> None:
        """Take entries, whose memory has this size, to the batch; lose them if there is no room."""
        backlog_bytes = self._bytes + self._writing_bytes
        if backlog_bytes + size > self.backlog_bytes_max and not self._lossless:
            # Notes are small, and readers need those about connections.
            kept, rest = _notes_of(entries), [each for each in entries if type(each) is not Note]
            loss = _loss_of(entries, "the disk does not keep up")
            if loss:
                self._report_loss(loss.reason)
            self._lose(loss)
            self._build(self._builder.lose, rest)
            if not kept or backlog_bytes > self.backlog_bytes_max + NOTES_BYTES_MAX:
                self._build(self._builder.lose, kept)
                return
            entries, size = kept, _memory_bytes(kept)
        if self._sink is not None:
            begun = self._builder.begun
            try:
                self._builder.add(entries)
            except Exception as error:
                self._lose_batch(error, begun, entries)
        if self._watch is not None:
            self._unshown += entries
        self._bytes += size

    def note(self, note: Note) -> None:
        """Take a note that comes without frames."""
        self.put([note])

    async def room(self) -> None:
        """Wait until the backlog has room again, `STALL_SECONDS` at most (unless `lossless`)."""
        with trio.move_on_after(math.inf if self._lossless else STALL_SECONDS) as waiting:
            while self.congested and not self.failure:
                self._room = trio.Event()
                await self._room.wait()
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
            if self._bytes or self._collected or self._loss or self._builder.late:
                self._hand_over()
            self._show()

    @property
    def _is_late(self) -> bool:
        """True while something is to be written or shown for which no further entry comes."""
        written = self._writing is None and not self._loss and not self._builder.late
        return not written or bool(self._leaving)

    async def flush(self) -> None:
        """Write what waits, after `run` was cancelled."""
        self._start()
        await self._wait_written()
        self._hand_over()
        await self._wait_written()

    async def finish(self) -> None:
        """Write the rest and complete the recording, after `run` was cancelled; when cancelled
        itself, leave that to the thread."""
        self._start()
        self._show()
        await self._wait_written()
        self._hand_over(last=True)
        await self._wait_written()
        if self._loss:  # the disk may have room for just this note
            self._hand_over(last=True)
            await self._wait_written()
        self._jobs.put(None)
        await self._ended.wait()

    # ------------------------------------------------------------ jobs

    def _start(self) -> None:
        if self._thread is None:
            token = trio.lowlevel.current_trio_token()
            self._thread = threading.Thread(
                target=self._work, args=(token,), name="kproxy-recorder", daemon=True
            )
            self._thread.start()

    async def _wait_written(self) -> None:
        """Wait until the thread has nothing to do."""
        while self._writing is not None:
            self._idle = trio.Event()
            await self._idle.wait()

    def _hand_over(self, last: bool = False) -> None:
        job = self._job(last)
        if job.batches:
            self._writing = job
            self._jobs.put(job)
        else:
            self._end(job)

    def _job(self, last: bool) -> _Job:
        """Take all entries that wait as a job."""
        self._take_collected()
        loss, self._loss = self._loss, Loss()
        note = loss.note()
        if loss:
            # The note goes with the entries before it, or not at all: one note for one gap.
            self._build(self._builder.add, [note])
        batches = self._build(self._builder.take) or []
        if batches and self._sink is not None and self._wants_pending(batches[0].start_ns):
            self._build(self._builder.list_pending, batches[-1])
        if not any(each is note for batch in batches for each in batch.notes):
            loss.merge(self._loss)
            loss, self._loss = Loss(), loss
        job = _Job(batches, loss, self._bytes, last)
        self._writing_bytes += self._bytes
        self._bytes = 0
        return job

    def _wants_pending(self, start_ns: int) -> bool:
        assert self._sink is not None
        clock = self._clock
        return self._sink.wants_pending(start_ns if clock is None else clock.wall_ns(start_ns))

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
                self._sink.append(self._on_wall(job.batches))
        except Exception as error:
            job.error = error
        self._done.append(job)

    def _on_wall(self, batches: list[RecordingBatch]) -> list[RecordingBatch]:
        """Return batches with the times that the system's clock had; refused ones come back as
        they were."""
        clock = self._clock
        if clock is None or not clock.moves:
            return batches
        return [each.moved(clock.offset_ns, clock.wall_note, clock.wall_row) for each in batches]

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
            self._log(text)
        self._ended.set()

    def _settle(self) -> None:
        """Take into account the jobs that are done or have failed; in the pump's thread."""
        while self._done:
            job = self._done.popleft()
            if job.error is None:
                self._frames_recorded += job.frames
                self._builder.confirm_written()
            else:
                self._take_failure(job, job.error)
            self._end(job)

    def _end(self, job: _Job) -> None:
        self._writing_bytes -= job.memory_bytes
        self._writing, self._hangs = None, False
        self._room.set()
        self._idle.set()

    # ------------------------------------------------------------ losses

    def _take_failure(self, job: _Job, error: Exception) -> None:
        what = "cannot write the recording"
        foreseen = isinstance(error, OSError)
        reason = f"{what}: {error.strerror or error}" if foreseen else f"{what} {defect(error)}"
        newer, self._loss = self._loss, job.loss
        self._report_loss(reason)
        for batch in job.batches:
            if batch.frames or batch.data_bytes:
                span = batch.start_ns, batch.end_ns
                self._lose(Loss(batch.frames, batch.data_bytes, reason, *span))
        self._loss.merge(newer)
        self._build(self._builder.take_back, job.batches)

    def _run_intake(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries that the intake keeps; if it fails, only their notes."""
        assert self._intake is not None
        try:
            return self._intake(entries)
        except Exception as error:
            reason = _not_recorded(error)
            self._report_loss(reason)
            self._lose(_loss_of(entries, reason))
            return _notes_of(entries)

    def _build(self, step: Callable[..., Result], *arguments: Any) -> Result | None:
        """Have the builder do a step that takes no frames; if it fails, lose its batch."""
        begun = self._builder.begun
        try:
            return step(*arguments)
        except Exception as error:
            self._lose_batch(error, begun, [])
            return None

    def _lose_batch(
        self, error: Exception, begun: tuple[int, int, int], entries: list[Entry]
    ) -> None:
        """Lose the batch that an exception has left half made: its counts before the step
        (`begun`), and the new entries, except those in batches that are complete.

        Notes are kept if possible, except that of a loss, which is made anew.
        """
        number, frames, frame_bytes = begun
        reason = _not_recorded(error)
        waiting, spoilt = self._builder.give_up()
        whole = [batch for batch in waiting if batch.number >= number]
        loss = _loss_of(entries, reason)
        loss.frames += frames - sum(batch.frames for batch in whole)
        loss.frame_bytes += frame_bytes - sum(batch.data_bytes for batch in whole)
        loss.from_ns = spoilt.start_ns or loss.from_ns
        loss.until_ns = loss.until_ns or spoilt.end_ns
        self._report_loss(reason)
        self._lose(loss)
        kept = {id(note) for batch in whole for note in batch.notes}
        others = [note for note in spoilt.notes if note.body.get("event") != "lost"]
        notes = {id(note): note for note in (*others, *_notes_of(entries))}
        try:
            self._builder.add(note for key, note in notes.items() if key not in kept)
        except Exception:
            self._builder.give_up()  # these notes are lost, too

    def _report_loss(self, reason: str) -> None:
        """Log the reason for a loss, once; if `lossless`, let it end `run`."""
        if self._lossless:
            self.failure = self.failure or reason
            self._has_entries.set()
            self._room.set()
        elif reason != self._last_reason:
            self._last_reason = reason
            self._log(f"{reason}; the proxy goes on and counts what it does not record")

    def _lose(self, loss: Loss) -> None:
        self._loss.merge(loss)
        self.frames_lost += loss.frames
        self.frame_bytes_lost += loss.frame_bytes

    def _show(self) -> None:
        """Show new entries to `watch`; a mistake there must not cost the recording."""
        self._take_collected()
        seen, self._unshown = self._leaving.take(self._unshown), []
        if self._watch is None or not seen:
            return
        shown, clock = each(seen), self._clock
        try:
            self._watch(map(clock.wall_entry, shown) if clock and clock.moves else shown)
        except Exception as error:
            self._watch = None
            self._log(f"the display stops, {defect(error)}")


def _memory_bytes(entries: Iterable[Entry]) -> int:
    """Return about how much memory entries take."""
    size = 0
    for entry in entries:
        if type(entry) is Run:
            size += sum(map(len, entry.pieces)) + _FRAME_BYTES * len(entry.sizes)
        elif type(entry) is Frame:
            size += sum(map(len, entry.pieces)) + _FRAME_BYTES
        else:
            size += _NOTE_BYTES
    return size


def _not_recorded(error: Exception) -> str:
    return f"cannot record what passes {defect(error)}"


def _notes_of(entries: Iterable[Entry]) -> list[Entry]:
    return [entry for entry in entries if type(entry) is Note]


def _loss_of(entries: list[Entry], reason: str) -> Loss:
    """Return the loss of entries."""
    loss = Loss(count_frames(entries), reason=reason)
    for entry in entries:
        if isinstance(entry, Note):
            continue
        loss.frame_bytes += (
            entry.frame_bytes if isinstance(entry, Run) else sum(map(len, entry.pieces))
        )
        loss.from_ns = loss.from_ns or entry.time_ns
        loss.until_ns = entry.time_ns
    return loss
