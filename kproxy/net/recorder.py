"""The recorder: takes entries from the pump, writes them from a worker thread.

::

    pump ─ put ─▶ backlog ── every 50 ms, or 256 KiB ──▶ Recording.write (in a thread)

The backlog is bounded. When there is more in it than the thread can be about to write, the pump
waits for the disk, but for no longer than half a second: a disk that is merely busy costs time and
not frames, and one that hangs does not hang the proxy. What cannot be kept, because the disk hangs
(the backlog is full) or refuses (it is full, or gone), is counted, said in the log once, and noted
in the recording as soon as it can be written again. With `lossless` it is the other way round: the
pump waits for as long as it takes, and a disk that refuses ends the proxy.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Protocol

import attrs
import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import Entry, Frame, Note, Run, each, frame_count

FLUSH_SECONDS = 0.05
FLUSH_BYTES = 256 << 10
BACKLOG_BYTES_MAX = 64 << 20
BUSY_BYTES_MAX = 8 << 20
"""The pump waits when the backlog is larger than this (or half of what it may be)."""
DUE_BYTES = 1 << 20
"""When so much waits and nothing is being written, the recorder is given its turn at once: the less
waits, the more of it is still in the processor's cache."""
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
    """Where entries go: a recording."""

    def write(self, entries: list[Entry]) -> None:
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

    def add(self, entries: list[Entry], reason: str) -> None:
        """Count these."""
        for entry in entries:
            if isinstance(entry, Note):
                continue
            self.frame_bytes += (
                entry.frame_bytes if isinstance(entry, Run) else sum(map(len, entry.pieces))
            )
            self.from_ns = self.from_ns or entry.time_ns
            self.until_ns = entry.time_ns
        self.frames += frame_count(entries)
        self.reason = reason

    def note(self) -> Note:
        """What the recording says of it."""
        return notes.lost(self.frames, self.frame_bytes, self.reason, self.from_ns, self.until_ns)

    def merge(self, newer: Loss) -> None:
        """Count what another one has counted since."""
        if newer.frames:
            self.frames += newer.frames
            self.frame_bytes += newer.frame_bytes
            self.from_ns = self.from_ns or newer.from_ns
            self.until_ns = newer.until_ns
            self.reason = newer.reason


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
        self._entries: list[Entry] = []
        self._bytes = 0
        self._writing_bytes = 0
        self._some = trio.Event()
        self._much = trio.Event()
        self._room = trio.Event()
        self._loss = Loss()
        self._said = ""
        self._hangs = False
        self.failure = ""
        """Why `run` ended by itself."""
        self.frames_recorded = 0
        self.frames_lost = 0
        self.frame_bytes_lost = 0

    @property
    def congested(self) -> bool:
        """Whether the pump should wait for `room` before it takes in more."""
        return self._bytes + self._writing_bytes > self._busy_bytes_max and not self._hangs

    @property
    def due(self) -> bool:
        """Whether the pump should give the recorder its turn."""
        return self._bytes >= DUE_BYTES and not self._writing_bytes

    @property
    def backlog_bytes(self) -> int:
        """About how much memory holds what is not written yet."""
        return self._bytes + self._writing_bytes

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
        full = self._bytes + self._writing_bytes + size > self.backlog_bytes_max
        if full and not self._lossless:
            self._lose(entries, "the disk does not keep up")
            # Whoever reads on must know which connections there are; a note is small.
            notes = [entry for entry in entries if type(entry) is Note]
            if not notes or self.backlog_bytes > self.backlog_bytes_max + NOTES_BYTES_MAX:
                return
            entries, size = notes, _NOTE_BYTES * len(notes)
        self._entries += entries
        self._bytes += size
        self._some.set()
        if self._bytes >= FLUSH_BYTES:
            self._much.set()

    async def room(self) -> None:
        """Wait until the backlog has room again, or until that takes too long."""
        with trio.move_on_after(math.inf if self._lossless else STALL_SECONDS) as waiting:
            while self.congested and not self.failure:
                self._room = trio.Event()
                await self._room.wait()
        self._hangs = waiting.cancelled_caught

    async def run(self) -> None:
        """Write what comes, until cancelled, or until the disk refuses and nothing may be lost."""
        while not self.failure:
            await self._some.wait()
            with trio.move_on_after(FLUSH_SECONDS):
                await self._much.wait()
            batch, loss = self._take()
            try:
                if self._sink is not None:
                    await trio.to_thread.run_sync(self._write, batch, loss)
            except OSError as error:
                self._refused(batch, loss, error)
            else:
                self._written(batch)
            self._writing_bytes = 0
            self._hangs = False
            self._room.set()

    def finish(self) -> None:
        """Write what is left, after `run` was cancelled."""
        batch, loss = self._take()
        try:
            if self._sink is not None:
                self._write(batch, loss)
        except OSError as error:
            self._refused(batch, loss, error)
            with contextlib.suppress(OSError):  # where there is room for no more than that
                self._write([], self._loss)
        else:
            self._written(batch)

    def _take(self) -> tuple[list[Entry], Loss]:
        batch, self._entries = self._entries, []
        loss, self._loss = self._loss, Loss()
        self._writing_bytes, self._bytes = self._bytes, 0
        self._some, self._much = trio.Event(), trio.Event()
        return batch, loss

    def _written(self, batch: list[Entry]) -> None:
        self.frames_recorded += frame_count(batch)
        self._show(batch)

    def _show(self, batch: list[Entry]) -> None:
        """Let whoever looks on look on; a mistake there must not cost the recording."""
        if self._watch is None:
            return
        try:
            self._watch(each(batch))
        except Exception as error:
            self._watch = None
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self._log(f"the display stops, by a defect in kproxy, please report it: {what}")

    def _refused(self, batch: list[Entry], loss: Loss, error: OSError) -> None:
        reason = f"cannot write the recording: {error.strerror or error}"
        self._loss, newer = loss, self._loss
        self._lose(batch, reason)
        self._loss.merge(newer)
        if self._lossless:
            self.failure = reason
        else:
            self._show(batch)

    def _write(self, batch: list[Entry], loss: Loss) -> None:
        if loss.frames or batch:
            # The note and what follows it, or neither: so there is one note for one gap.
            self._sink.write([loss.note(), *batch] if loss.frames else batch)

    def _lose(self, entries: list[Entry], reason: str) -> None:
        if reason != self._said:
            self._said = reason
            if not self._lossless:
                self._log(f"{reason}; the proxy goes on and counts what it does not record")
        loss = self._loss
        frames, frame_bytes = loss.frames, loss.frame_bytes
        loss.add(entries, reason)
        self.frames_lost += loss.frames - frames
        self.frame_bytes_lost += loss.frame_bytes - frame_bytes
