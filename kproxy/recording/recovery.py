"""Completes the recording of a writer that was killed.

    torn file ─▶ verified chunks ─▶ truncate behind them ─▶ append a note, DataEnd, summary

The file is completed in place, without a copy: no room for a second one is needed, which matters
because a full disk is a common reason for a torn file. It is atomic in the sense that counts: at
every instant, and wherever recovery itself is killed, the file reads as exactly the entries that it
read as before. Only bytes behind the last whole chunk are dropped, which no reader can use, and
all that is appended is a torn end like the one before until its very last byte is there.

What was pending when the file began gets its row here too; what was pending at its end gets none if
a later file of the recording stands beside it, which has the row.

The note `{"event": "recovered", "dropped_bytes": …}` on EVENTS is the last entry of a recovered
file: its end is not the end of the traffic.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Frame, Note
from kproxy.recording.arrow import Schema
from kproxy.recording.batch import RecordingBatch
from kproxy.recording.batch_index import FILE_BYTES_MIN
from kproxy.recording.batch_notes import BatchNotes
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.exchanges import Reader
from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, lock, write_all
from kproxy.recording.other_columns import fitting
from kproxy.recording.reader import batch_entries
from kproxy.recording.stored import StoredBatch
from kproxy.recording.writer import Writer


@attrs.frozen
class Recovery:
    """The result of `recover`."""

    path: Path
    was_complete: bool
    """True if nothing had to be done."""
    entries: int
    """The number of frames (pieces count each) and notes in the file, without the closing note."""
    dropped_bytes: int
    """The number of bytes at the end that were dropped."""

    def __str__(self) -> str:
        if self.was_complete:
            return f"{self.path}: is complete ({self.entries} entries); nothing to do"
        return (
            f"{self.path}: completed; {self.entries} entries are safe, "
            f"{self.dropped_bytes} bytes of an unfinished chunk were dropped"
        )


def recover(path: Path | str, passed: Callable[[int], None] = lambda done_bytes: None) -> Recovery:
    """Complete a torn file in place; leave a complete one alone. `passed` gets the number of its
    bytes that were read.

    Raises: RecordingError, when it is still being written, damaged, not a recording, without even a
    head, or not writable; OSError, when the disk is full: the file is then as good as before.
    """
    path = Path(path)
    last: Frame | Note | None = None
    count = 0
    half: StoredBatch | None = None
    with RecordingFile(path, whole=True) as file:
        others = [] if file.complete else _others(path, file)
        earlier = [other for other in others if other.info.part < file.info.part]
        reader = Reader(lambda note: None)
        for each in (*earlier, file):
            deque(reader.begin(each), 0)
        for batch in file.batches():
            for entry in batch_entries(file, batch):
                last = entry
                count += 1
            half = batch if batch.exchanges is None else None
            deque(reader.batch(file, batch, torn=True), 0)
            passed(file.scan.offset)
        scan = file.scan
        if scan.torn is None:
            return Recovery(path, True, count - _is_recovered(last), 0)
        if scan.index is None:
            raise _hopeless(file)
        size = os.fstat(scan.source.file.fileno()).st_size
        opening: list[Note] = []
        if earlier and not count:  # a head alone: who is connected, and until when, is told before
            log = ConnectionLog()
            for batch in RecordingFile(earlier[-1].path).batches():
                log.remember(batch.notes)
            opening = log.opening_notes(scan.info.start_ns)
        rest = RecordingBatch(0 if half is None else half.number)
        if len(others) == len(earlier):  # else a later file has the rows
            _add_left(rest, reader, scan.head.schemas.exchanges)
        for note in opening:
            rest.note(note)
        dropped_bytes = size - scan.index.size
        if not _is_recovered(last):
            rest.note(notes.recovered(file.end_ns or scan.info.start_ns, dropped_bytes))
    writer = Writer.resume(path, _open_to_write(path, size), scan.index, scan.head.schemas)
    _complete(writer, rest, half is not None)
    return Recovery(path, False, count, dropped_bytes)


def append_notes(path: Path, made: Callable[[int], Iterable[Note]]) -> None:
    """Append notes to a complete file, in place; `made` gets their time. Killed in between, it is
    torn, and reads as before.

    Raises: RecordingError, as `recover`, also when the file is torn or was written by another tool;
    OSError, when the disk is full: the file is then as before.
    """
    with RecordingFile(path, whole=True) as file:
        deque(file.batches(), 0)
        scan, index = file.scan, file.scan.index
        if scan.torn is not None:
            raise RecordingError(path, scan.offset, file.why_torn())
        if index is None:
            what = f"was last written by {file.info.library!r}: kproxy adds nothing to it"
            raise RecordingError(path, None, what)
        schemas, size = scan.head.schemas, os.fstat(scan.source.file.fileno()).st_size
        rest = RecordingBatch(0)
        for note in made(file.end_ns or scan.info.start_ns):
            rest.note(note)
    fd, end = _open_to_write(path, size), index.size
    before = os.dup(fd)
    try:
        ending = os.pread(before, size - end, end)
        try:
            _complete(Writer.resume(path, fd, index, schemas), rest)
        except BaseException:
            os.ftruncate(before, end)
            write_all(before, memoryview(ending), end)
            raise
    finally:
        os.close(before)


def _complete(writer: Writer, rest: RecordingBatch, half: bool = False) -> None:
    """Append a batch, or the second `half` of one, and the end of the file.

    Raises: RecordingError, OSError.
    """
    try:
        if half:
            writer.append_exchanges(rest)
        elif rest:
            writer.append([rest])
        if writer.bytes_written >= FILE_BYTES_MIN:
            with RecordingFile(writer.path) as file:
                writer.batches = BatchNotes.of(file)
        writer.close()
    except ValueError as error:
        raise RecordingError(writer.path, None, f"cannot be completed: {error}") from None
    finally:
        writer.abandon()


def _others(path: Path, file: RecordingFile) -> list[RecordingFile]:
    """Return the other files of the recording that are in the same folder, by part."""
    found: list[RecordingFile] = []
    for beside in path.parent.glob("*.mcap"):
        with contextlib.suppress(RecordingError):  # whatever else is there
            other = RecordingFile(beside)
            other.skip_to(beside.stat().st_size)  # it is read when a frame is not found in the file
            other.close()
            if other.info.continues(file.info) and other.info.part != file.info.part:
                found.append(other)
    return sorted(found, key=lambda other: other.info.part)


def _add_left(rest: RecordingBatch, reader: Reader, schema: Schema) -> None:
    """Add rows for the exchanges that have none, with these columns."""
    for exchange, unknown in reader.left():
        row = exchange.row
        rest.unknown_of_exchanges[rest.exchange_count] = fitting(unknown, schema)
        rest.exchange(row)
        rest.span(row.response_received_ns or row.request_received_ns)


def _is_recovered(last: Frame | Note | None) -> bool:
    """Return whether an earlier recovery got as far as its note."""
    return isinstance(last, Note) and last.body.get("event") == "recovered"


def _hopeless(file: RecordingFile) -> RecordingError:
    torn = file.scan.torn
    if file.info.library and not file.info.native:
        what = f"was last written by {file.info.library!r}: complete it with `mcap recover`"
    else:
        what = f"{torn}, before anything was recorded: there is nothing to recover, delete it"
    return RecordingError(file.path, file.scan.offset, what)


def _open_to_write(path: Path, size: int) -> int:
    """Open a file to go on writing, if nobody else writes it and it still has `size` bytes.

    Raises: RecordingError.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        what = f"cannot be completed: {error.strerror}"
        raise RecordingError(path, None, what) from None
    if not lock(fd) or os.fstat(fd).st_size != size:
        os.close(fd)
        raise RecordingError(path, None, "is still being written: it needs no recovery yet")
    return fd
