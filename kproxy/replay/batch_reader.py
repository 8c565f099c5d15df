"""Reads the records of a replay's batches, which share one allowance for what they unpack to.

::

    batch ─▶ within what its size gives it? ─ yes ─▶ its records
                     └ no ─▶ read before? ─ no ─▶ what is left to spare ─▶ its records, or damage

A batch is read more than once: when the recording is opened, when records are compared, when they
are looked up by time. It draws on the spare the first time, and each one does, for a thousand equal
batches are as much work as a thousand others.

Invariant: one that was refused stays so, and so do all equal ones from then on, also if a client
produces them again: they are compared by their bytes (`unreadable`).
"""

from __future__ import annotations

from collections.abc import Hashable

import attrs

from kproxy.exchange.unpacking import Unpacking
from kproxy.replay.unreadable import compared
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.record_batch import Batch, Record, RecordReader, read_records
from kproxy.wire.protocol.records import json_allowance

_Found = tuple[list[Record], ProtocolError | None]


@attrs.define(eq=False)
class BatchReader:
    """Reads batches of one replay, recorded and live ones."""

    _unpacking: Unpacking = attrs.field(factory=Unpacking, init=False)
    _granted: set[Hashable] = attrs.field(factory=set, init=False)
    """What drew on the spare: the compared bytes, alone and with the place of their batch."""
    _refused: dict[bytes, ProtocolError | None] = attrs.field(factory=dict, init=False)
    """The reason why batches cannot be read, by their compared bytes."""

    def of_log(self, log: Hashable) -> RecordReader:
        """Return what reads the recorded batches of one log, which differ by their offsets."""
        return lambda batch: self._read(batch, json_allowance(len(batch.raw)), (log, batch.offset))

    def grant(self, log: Hashable, batch: Batch) -> None:
        """Let a recorded batch be read that was made of one that has been."""
        self._granted.add(((log, batch.offset), compared(batch)))

    def of_frame(self, size_bytes: int) -> RecordReader:
        """Return what reads the batches of one live frame: they share its allowance."""
        frame = json_allowance(size_bytes)

        def read(batch: Batch) -> _Found:
            if min(frame.bytes_left, frame.records_left) < 0:
                return [], ProtocolError("behind more records than one request may unpack to")
            return self._read(batch, frame, None)

        return read

    def _read(self, batch: Batch, frame: Allowance, place: Hashable) -> _Found:
        found, exceeded = _read(batch, Unpacking(0, 0), frame)
        if not exceeded:
            return found
        content = compared(batch)
        drawn = content if place is None else (place, content)
        if drawn in self._granted:
            return _read(batch, Unpacking.endless(), frame)[0]
        if content not in self._refused:
            found, exceeded = _read(batch, self._unpacking, frame)
            if not exceeded:
                self._granted |= {content, drawn}
                return found
            self._refused[content] = found[1]
        return [], self._refused[content]


def _read(batch: Batch, unpacking: Unpacking, frame: Allowance) -> tuple[_Found, bool]:
    """Read a batch; return whether its allowance did not suffice, too."""
    with unpacking.of_bytes(len(batch.raw)) as granted:
        bytes_left, records_left = granted.bytes_left, granted.records_left
        found = read_records(batch, granted)
    frame.bytes_left -= bytes_left - granted.bytes_left
    frame.records_left -= records_left - granted.records_left
    return found, granted.exceeded
