"""The recorder: takes entries from the pump, and has a thread of its own write them.

::

    pump ─ put ─▶ BatchBuilder ── every 50 ms, or 4 MiB ──▶ jobs ─▶ thread: Recording.append
                                                              │
                    counters, room, losses ◀── settle ────────┘

What has to be done per frame is done when it arrives; the thread gets batches that are ready to be
written, and holds the interpreter for moments only, so that a client does not feel it (`tables`).

The backlog is bounded. When there is more in it than the thread can be about to write, the pump
waits for the disk, but for no longer than half a second: a disk that is merely busy costs time and
not frames, and one that hangs does not hang the proxy. What cannot be kept, because the disk hangs
(the backlog is full) or refuses (it is full, or gone), is counted, said in the log once, and noted
in the recording as soon as it can be written again. With `lossless` it is the other way round: the
pump waits for as long as it takes, and a disk that refuses ends the proxy.

Resource handling: the thread is started by `run` and ended by `finish`, which waits for what it
still writes.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import attrs
import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import Entry, Frame, Note, Run, each, frame_count
from kproxy.recording.batch import Batch
from kproxy.recording.builder import BatchBuilder

FLUSH_SECONDS = 0.05
FLUSH_BYTES = 4 << 20
"""When so much waits and nothing is being written, it is written at once. Less would still be in
the processor's first caches, but to hand it over costs more than that saves."""
BACKLOG_BYTES_MAX = 64 << 20
BUSY_BYTES_MAX = 16 << 20
"""The pump waits when the backlog is larger than this (or half of what it may be)."""
STALL_SECONDS = 0.5
"""How long the pump waits for a disk from which nothing is heard, before frames are lost."""
NOTES_BYTES_MAX = 4 << 20
"""What notes may take beyond the backlog's limit while the disk hangs: a few thousand of them."""
_NOTE_BYTES = 1024
_ENTRY_BYTES = 256
"""What a frame or a note takes in memory beside its data."""


Intake = Callable[[list[Entry]], list[Entry]]
"""Sees all entries as they come; returns those that are to be recorded."""


class Sink(Protocol):
    """Where batches go: a recording."""

    def append(self, batches: Sequence[Batch]) -> None:
        """Write them all; raises OSError, having written none that is not whole."""
        ...


@attrs.define(eq=False)
class Loss:
    """What could not be recorded since it was last noted."""

    frames: int = 0
    frame_bytes: int = 0
    reason: str = ""
    from_ns: int = 0
    until_ns: int = 0

    def __bool__(self) -> bool:
        return bool(self.frames or self.frame_bytes)

    def note(self) -> Note:
        """What the recording says of it."""
        return notes.lost(self.frames, self.frame_bytes, self.reason, self.from_ns, self.until_ns)

    def merge(self, newer: Loss) -> None:
        """Count what another one has counted since."""
        if newer:
            self.frames += newer.frames
            self.frame_bytes += newer.frame_bytes
            self.from_ns = self.from_ns or newer.from_ns
            self.until_ns = newer.until_ns
            self.reason = newer.reason


@attrs.define(eq=False)
class _Job:
    """What the thread is to write at once."""

    batches: list[Batch]
    loss: Loss
    """What a note in the last of them says."""
    memory_bytes: int
    error: Exception | None = None


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
    ) -> None:
        self._sink = sink
        self._log = log
        self._watch = watch
        self._lossless = lossless
        self._intake = intake
        self.backlog_bytes_max = backlog_bytes_max
        self._busy_bytes_max = min(BUSY_BYTES_MAX, backlog_bytes_max // 2)
        self._builder = BatchBuilder()
        self._seen: list[Entry] = []
        """What `watch` has not been shown yet."""
        self._bytes = 0
        """What no job has yet."""
        self._writing_bytes = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[_Job] = deque()
        self._thread: threading.Thread | None = None
        self._writing = False
        """Whether the thread has a job: it gets one at a time."""
        self._some = trio.Event()
        self._idle = trio.Event()
        self._room = trio.Event()
        self._loss = Loss()
        self._said = ""
        self._hangs = False
        self.failure = ""
        """Why `run` ended by itself."""
        self._frames_recorded = 0
        self.frames_lost = 0
        self.frame_bytes_lost = 0

    @property
    def congested(self) -> bool:
        """Whether the pump should wait for `room` before it takes in more."""
        if self._done:
            self._settle()
        return self._bytes + self._writing_bytes > self._busy_bytes_max and not self._hangs

    @property
    def backlog_bytes(self) -> int:
        """About how much memory holds what is not written yet."""
        return self._bytes + self._writing_bytes

    @property
    def frames_recorded(self) -> int:
        """How many frames are in the recording."""
        return self._frames_recorded

    def put(self, entries: list[Entry], data_bytes: int) -> None:
        """Take entries that hold about so many bytes; never waits."""
        if self._intake is not None:
            entries = self._intake(entries)
            if not entries:
                return
        if self._sink is None and self._watch is None:
            return
        size = data_bytes
        for entry in entries:
            size += _ENTRY_BYTES * (len(entry.sizes) if type(entry) is Run else 1)
        backlog_bytes = self._bytes + self._writing_bytes
        if backlog_bytes + size > self.backlog_bytes_max and not self._lossless:
            # Whoever reads on must know which connections there are; a note is small.
            kept: list[Entry] = [entry for entry in entries if type(entry) is Note]
            self._builder.lose(entry for entry in entries if type(entry) is not Note)
            self._lose(_loss_of(entries, "the disk does not keep up"))
            if not kept or backlog_bytes > self.backlog_bytes_max + NOTES_BYTES_MAX:
                self._builder.lose(kept)
                return
            entries, size = kept, _NOTE_BYTES * len(kept)
        if self._sink is not None:
            self._builder.add(entries)
        if self._watch is not None:
            self._seen += entries
        if not self._bytes:
            self._some.set()
        self._bytes += size
        if self._done:  # not only when trio has its turn: the thread waits for its next job
            self._settle()
        if self._bytes >= FLUSH_BYTES and not self._writing and self._thread is not None:
            self._hand_over()

    def note(self, note: Note) -> None:
        """Take a note that no frame brings with it."""
        self.put([note], _NOTE_BYTES)

    async def room(self) -> None:
        """Wait until the backlog has room again, or until that takes too long."""
        with trio.move_on_after(math.inf if self._lossless else STALL_SECONDS) as waiting:
            while self.congested and not self.failure:
                self._room = trio.Event()
                await self._room.wait()
        self._hangs = waiting.cancelled_caught

    async def run(self) -> None:
        """Write what comes, until cancelled, or until the disk refuses and nothing may be lost."""
        token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(
            target=self._work, args=(token,), name="kproxy-recorder", daemon=True
        )
        self._thread.start()
        while not self.failure:
            await self._some.wait()
            self._some = trio.Event()
            await trio.sleep(FLUSH_SECONDS)
            while self._writing:  # a slow disk gets much at once rather than one by one
                self._idle = trio.Event()
                await self._idle.wait()
            if self._bytes:
                self._hand_over()
            self._show()

    def finish(self) -> None:
        """Write what is left, after `run` was cancelled."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._thread = None
        self._settle()
        self._write(self._job())
        self._settle()
        if self._loss:  # where there is room for no more than that
            with contextlib.suppress(OSError):
                self._write(self._job())
        self._show()

    # ------------------------------------------------------------ jobs

    def _hand_over(self) -> None:
        job = self._job()
        if job.batches:
            self._writing = True
            self._jobs.put(job)
        else:
            self._end(job)

    def _job(self) -> _Job:
        """Take all that there is to write."""
        loss, self._loss = self._loss, Loss()
        if loss:
            # The note and what it stands behind, or neither: so there is one note for one gap.
            self._builder.add([loss.note()])
        job = _Job(self._builder.take(), loss, self._bytes)
        self._writing_bytes += self._bytes
        self._bytes = 0
        return job

    def _work(self, token: trio.lowlevel.TrioToken) -> None:
        """The thread: write one job after the other."""
        while (job := self._jobs.get()) is not None:
            self._write(job)
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._settle)

    def _write(self, job: _Job) -> None:
        try:
            if job.batches and self._sink is not None:
                self._sink.append(job.batches)
        except Exception as error:
            job.error = error
        self._done.append(job)

    def _settle(self) -> None:
        """Take into account what was written or could not be; in the pump's thread."""
        while self._done:
            job = self._done.popleft()
            if job.error is None:
                self._frames_recorded += sum(batch.frames for batch in job.batches)
                self._builder.written()
            elif isinstance(job.error, OSError):
                self._refused(job, job.error)
            else:
                raise job.error
            self._end(job)

    def _end(self, job: _Job) -> None:
        self._writing_bytes -= job.memory_bytes
        self._writing = self._hangs = False
        self._room.set()
        self._idle.set()

    # ------------------------------------------------------------ what is lost

    def _refused(self, job: _Job, error: OSError) -> None:
        reason = f"cannot write the recording: {error.strerror or error}"
        newer, self._loss = self._loss, job.loss
        for batch in job.batches:
            if batch.frames or batch.data_bytes:
                span = batch.start_ns, batch.end_ns
                self._lose(Loss(batch.frames, batch.data_bytes, reason, *span))
        self._loss.merge(newer)
        self._builder.refused(job.batches)
        if self._lossless:
            self.failure = reason
            self._some.set()

    def _lose(self, loss: Loss) -> None:
        if loss.reason != self._said:
            self._said = loss.reason
            if not self._lossless:
                self._log(f"{loss.reason}; the proxy goes on and counts what it does not record")
        self._loss.merge(loss)
        self.frames_lost += loss.frames
        self.frame_bytes_lost += loss.frame_bytes

    def _show(self) -> None:
        """Let whoever looks on look on; a mistake there must not cost the recording."""
        seen, self._seen = self._seen, []
        if self._watch is None or not seen:
            return
        try:
            self._watch(each(seen))
        except Exception as error:
            self._watch = None
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self._log(f"the display stops, by a defect in kproxy, please report it: {what}")


def _loss_of(entries: list[Entry], reason: str) -> Loss:
    """What is lost with entries."""
    loss = Loss(frame_count(entries), reason=reason)
    for entry in entries:
        if isinstance(entry, Note):
            continue
        loss.frame_bytes += (
            entry.frame_bytes if isinstance(entry, Run) else sum(map(len, entry.pieces))
        )
        loss.from_ns = loss.from_ns or entry.time_ns
        loss.until_ns = entry.time_ns
    return loss
