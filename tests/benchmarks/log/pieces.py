"""Pieces and notes as MCAP messages, and a builder and a writer for them in place of kproxy's own.

A piece is what one side sent and was received at once: whole frames that are alike, or a part of
a large one. Its `log_time` is when it arrived, its `publish_time` when it left (0: not known yet).
Behind the message's head stand the number of the first exchange that begins or is answered in it,
the connection, flags (`exchange.entries`, and BROKER_SIDE), and the size of its extras, JSON that
few pieces have. Then the bytes as they came. A piece without bytes says when an earlier one left
(LATE), or ends an exchange (UNANSWERED).

Invariant: an entry costs the pump one place in a list; all else happens in the recorder's thread.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    FRAGMENT,
    MORE,
    RAW_SASL,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Buffer,
    ChunkTimes,
    Entry,
    Frame,
    Note,
    Run,
    Splice,
    count_frames,
)
from kproxy.recording.batch import split_into_pieces
from kproxy.recording.layout import note_record
from kproxy.recording.mcap import MESSAGE, RECORD
from kproxy.recording.writer import Writer, _ChunkRecords

PIECE = struct.Struct("<BQHIQQqiII")
"""opcode, length, channel, sequence, log_time, publish_time; number, connection, flags, extras."""
CHANNEL = 1
BROKER_SIDE = 1 << 31
LATE = 1 << 30
_FIXED_BYTES = PIECE.size - RECORD.size
_CHUNK_BYTES = 256 << 10
_STORED_BYTES_MIN = 16 << 10


@attrs.define(eq=False)
class LogBatch:
    """Entries that are written at once."""

    number: int
    entries: list[Entry]
    late: list[Run | Frame]
    """Pieces of earlier batches that have left since."""
    pending: None = None

    @property
    def notes(self) -> list[Note]:
        """The notes among the entries."""
        return [each for each in self.entries if type(each) is Note]

    @property
    def frames(self) -> int:
        """The number of frames that end in it."""
        return count_frames(self.entries)

    @property
    def data_bytes(self) -> int:
        """The size of its frames."""
        return sum(sum(map(len, each.pieces)) for each in self.entries if type(each) is not Note)

    @property
    def start_ns(self) -> int:
        """The time of its first entry."""
        return (self.entries or self.late)[0].time_ns

    @property
    def end_ns(self) -> int:
        """The time of its last entry."""
        return (self.entries or self.late)[-1].time_ns


class LogBuilder:
    """Collects entries, with as much of `BatchBuilder`'s interface as recorders need."""

    def __init__(self, number: int = 1) -> None:
        self._number = number
        self._entries: list[Entry] = []
        self._unsent: list[Run | Frame] = []

    def add(self, entries: Iterable[Entry]) -> None:
        """Take entries, in the order of their arrival."""
        self._entries += entries

    def take(self) -> list[LogBatch]:
        """Return what waits as one batch, if there is something."""
        entries, self._entries = self._entries, []
        late = [each for each in self._unsent if _sent_ns(each)]
        self._unsent = [each for each in self._unsent if not _sent_ns(each)]
        self._unsent += [each for each in entries if _leaves_later(each)]
        if not entries and not late:
            return []
        self._number += 1
        return [LogBatch(self._number - 1, entries, late)]

    @property
    def begun(self) -> tuple[int, int, int]:
        """The number of the current batch, and nothing of its content."""
        return self._number, 0, 0

    @property
    def frames(self) -> int:
        """The number of frames that wait to be taken."""
        return count_frames(self._entries)

    def list_pending(self, batch: LogBatch) -> None:
        """Nothing: see the package."""

    def confirm_written(self) -> None:
        """Nothing: a batch does not refer to others."""

    def lose(self, entries: Iterable[Entry]) -> None:
        """Nothing: a follower finds what is missing."""

    take_back = lose

    def finish(self) -> None:
        """Nothing: what is pending stays so."""


def _sent_ns(entry: Run | Frame) -> int:
    return entry.times.sent_ns if type(entry) is Run else entry.sent_ns


def _leaves_later(entry: Entry) -> bool:
    if type(entry) is Frame and (entry.withheld or entry.flags & (MORE | UNANSWERED)):
        return False
    return type(entry) is not Note and not _sent_ns(entry)


# ---------------------------------------------------------------- messages


def messages(entries: Iterable[Entry]) -> Iterator[tuple[list[Buffer], int, int]]:
    """Yield the parts of each message, its size, and the bytes not worth compressing."""
    for entry in entries:
        if type(entry) is Run:
            yield _of_run(entry)
        elif type(entry) is Frame:
            yield from map(_of_frame, split_into_pieces(entry))
        else:
            record = note_record(entry, 0)
            yield [record], len(record), 0


def _of_run(run: Run) -> tuple[list[Buffer], int, int]:
    times, sizes, extras = run.times, run.sizes, b""
    flags = BROKER_SIDE if run.side else run.requests.flags
    if run.splices or times.fault_ns or times.client_ended:
        flags |= REWRITTEN if run.splices else 0
        extras = _json(_about(run.splices, times))
    size = sum(sizes)
    head = _head(times.received_ns, times.sent_ns, run, flags, extras, size)
    stored = size if size >= _STORED_BYTES_MIN and len(sizes) == 1 else 0
    return [head, *run.pieces], len(head) + size, stored


def _of_frame(frame: Frame) -> tuple[list[Buffer], int, int]:
    flags, size = frame.flags | (BROKER_SIDE if frame.side else 0), sum(map(len, frame.pieces))
    extras = b"" if flags & MORE else _json(_about_frame(frame))
    head = _head(frame.received_ns, frame.sent_ns, frame, flags, extras, size)
    return [head, *frame.pieces], len(head) + size, size if size >= _STORED_BYTES_MIN else 0


def late_message(entry: Run | Frame) -> bytes:
    """Return the message that says when an earlier piece left."""
    times = entry.times if type(entry) is Run else entry
    extras = _json(_about((), times))
    flags = LATE | (BROKER_SIDE if entry.side else 0)
    return _head(entry.time_ns, times.sent_ns, entry, flags, extras, 0)


def _head(
    received_ns: int, sent_ns: int, entry: Run | Frame, flags: int, extras: bytes, size: int
) -> bytes:
    length = _FIXED_BYTES + len(extras) + size
    about = entry.number, entry.connection, flags, len(extras)
    return PIECE.pack(MESSAGE, length, CHANNEL, 0, received_ns, sent_ns, *about) + extras


def _about(splices: Sequence[Splice], times: ChunkTimes | Frame) -> dict[str, Any]:
    return {
        "splices": [[at, size, base64.b64encode(new).decode()] for at, size, new in splices],
        "fault_ns": times.fault_ns,
        "behind": times.behind,
        "client_ended": times.client_ended,
    }


def _about_frame(frame: Frame) -> dict[str, Any]:
    found = _about(frame.splices, frame)
    found |= {"fault_ids": list(frame.fault_ids), "withheld": frame.withheld}
    if frame.error_code != ERROR_NOT_LOOKED:
        found["error_code"] = frame.error_code
    if frame.flags & (TRUNCATED | RAW_SASL | FRAGMENT):
        kind = frame.api_key, frame.api_version, frame.correlation_id
        found["head"] = [*kind, frame.frame_bytes]
    return found


def _json(extras: dict[str, Any]) -> bytes:
    given = {name: value for name, value in extras.items() if value or name == "error_code"}
    return json.dumps(given, separators=(",", ":")).encode() if given else b""


# ---------------------------------------------------------------- the file


class LogWriter(Writer):
    """Writes a log, in the place of a recording."""

    def append(self, batches: Sequence[Any]) -> None:
        """Append batches, or notes."""
        self.batches = None
        self._append(_chunks(batches))


def _chunks(batches: Sequence[Any]) -> Iterator[_ChunkRecords]:
    parts: list[Buffer] = []
    size = stored = messages_count = start_ns = end_ns = 0
    for batch in batches:
        start_ns, end_ns = start_ns or batch.start_ns, max(end_ns, batch.end_ns)
        late = [late_message(each) for each in getattr(batch, "late", ())]
        parts += late
        size += sum(map(len, late))
        messages_count += len(late)
        for made, made_bytes, made_stored in messages(getattr(batch, "entries", batch.notes)):
            parts += made
            size += made_bytes
            stored += made_stored - made_stored // 16
            messages_count += 1
            if size - stored >= _CHUNK_BYTES:
                counts = [messages_count, 0, 0, 0]
                yield _ChunkRecords(parts, size, start_ns, end_ns, counts, stored * 2 >= size)
                parts, size, stored, messages_count = [], 0, 0, 0
    if parts:
        is_stored, is_small = stored * 2 >= size, size < 16 << 10
        counts = [messages_count, 0, 0, 0]
        yield _ChunkRecords(parts, size, start_ns, end_ns, counts, is_stored, is_small)
