"""Completes the recording of a writer that was killed.

    torn file ─▶ verified chunks ─▶ truncate behind them ─▶ append a note, DataEnd, summary

The file is completed in place, without a copy: no room for a second one is needed, which matters
because a full disk is a common reason for a torn file. It is atomic in the sense that counts: at
every instant, and wherever recovery itself is killed, the file reads as exactly the entries that it
read as before. Only bytes behind the last whole chunk are dropped, which no reader can use, and
all that is appended is a torn end like the one before until its very last byte is there.

The note `{"event": "recovered", "dropped_bytes": …}` on EVENTS is the last entry of a recovered
file: its end is not the end of the traffic.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Frame, Note
from kproxy.recording.batch_index import FILE_BYTES_MIN, IndexNotes
from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, lock, write_all
from kproxy.recording.layout import FORMAT_VERSION
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
    with RecordingFile(path, converts=False) as file:
        _check_format(file)
        sequence = 1
        for batch in file.batches():
            sequence = max(sequence, batch.number + 1)
            for entry in file.entries(batch):
                last = entry
                count += 1
            passed(file.scan.offset)
        scan = file.scan
        if scan.torn is None:
            return Recovery(path, True, count - _is_recovered(last), 0)
        if scan.index is None:
            raise _hopeless(file)
        size = os.fstat(scan.source.file.fileno()).st_size
        rest: list[Note] = []
        if not count:  # a head alone: who is connected, and until when, is told before
            rest += _opening(path, file)
        dropped_bytes = size - scan.index.size
        if not _is_recovered(last):
            rest.append(notes.recovered(file.end_ns, dropped_bytes))
    writer = Writer.resume(path, _open_to_write(path, size), scan.index, sequence)
    _complete(writer, rest)
    return Recovery(path, False, count, dropped_bytes)


def append_notes(path: Path, made: Callable[[int], Iterable[Note]]) -> None:
    """Append notes to a complete file, in place; `made` gets their time. Killed in between, it is
    torn, and reads as before.

    Raises: RecordingError, as `recover`, also when the file is torn or was written by another tool;
    OSError, when the disk is full: the file is then as before.
    """
    with RecordingFile(path, converts=False) as file:
        _check_format(file)
        sequence = 1 + max((batch.number for batch in file.batches()), default=0)
        scan, index = file.scan, file.scan.index
        if scan.torn is not None:
            raise RecordingError(path, scan.offset, file.why_torn())
        if index is None:
            what = f"was last written by {file.info.library!r}: kproxy adds nothing to it"
            raise RecordingError(path, None, what)
        size = os.fstat(scan.source.file.fileno()).st_size
        rest = list(made(file.end_ns))
    fd, end = _open_to_write(path, size), index.size
    before = os.dup(fd)
    try:
        ending = os.pread(before, size - end, end)
        try:
            _complete(Writer.resume(path, fd, index, sequence), rest)
        except BaseException:
            os.ftruncate(before, end)
            write_all(before, memoryview(ending), end)
            raise
    finally:
        os.close(before)


def _check_format(file: RecordingFile) -> None:
    if 0 < file.info.format_version < FORMAT_VERSION:
        what = f"has the former format: `kproxy recover {file.path} --out NEW` converts it"
        raise RecordingError(file.path, None, what)


def _complete(writer: Writer, rest: Sequence[Note]) -> None:
    """Append notes, and the end of the file.

    Raises: RecordingError, OSError.
    """
    try:
        if writer.bytes_written >= FILE_BYTES_MIN:
            with RecordingFile(writer.path) as file:
                writer.notes = IndexNotes.of(file)
        writer.write(rest)
        writer.close()
    except ValueError as error:
        raise RecordingError(writer.path, None, f"cannot be completed: {error}") from None
    finally:
        writer.abandon()


def _opening(path: Path, file: RecordingFile) -> list[Note]:
    """Return what the last file of the recording before this one leaves, if it is in the same
    folder."""
    earlier: list[RecordingFile] = []
    for beside in path.parent.glob("*.mcap"):
        with contextlib.suppress(RecordingError):  # whatever else is there
            other = RecordingFile(beside)
            other.close()
            if other.info.continues(file.info) and other.info.part < file.info.part:
                earlier.append(other)
    if not earlier:
        return []
    with max(earlier, key=lambda each: each.info.part) as last:
        return last.opening_notes(file.info.start_ns)


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
