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

import os
from pathlib import Path

import attrs

from kproxy.exchange.entries import EVENTS, Frame, Note
from kproxy.recording.content import walk
from kproxy.recording.files import lock, open_recording
from kproxy.recording.format import RecordingError
from kproxy.recording.scan import Scan
from kproxy.recording.writer import Writer


@attrs.frozen
class Recovery:
    """What `recover` did."""

    path: Path
    was_complete: bool
    """Then nothing was done."""
    entries: int
    """Frames (pieces of frames count each) and notes that the file holds, the closing note not
    included."""
    dropped_bytes: int
    """How many bytes at the end were of no use."""

    def __str__(self) -> str:
        if self.was_complete:
            return f"{self.path}: is complete ({self.entries} entries); nothing to do"
        return (
            f"{self.path}: completed; {self.entries} entries are safe, "
            f"{self.dropped_bytes} bytes of an unfinished chunk were dropped"
        )


def recover(path: Path | str) -> Recovery:
    """Complete a torn file in place; leave a complete one alone.

    Raises: RecordingError, when it is still being written, damaged, not a recording, without even a
    head, or not writable; OSError, when the disk is full: the file is then as good as before.
    """
    path = Path(path)
    last: Frame | Note | None = None
    count = last_ns = chunk_ns = 0
    with open_recording(path) as file:
        scan = Scan(path, file)
        for content in walk(scan):
            for entry in content.entries():
                last = entry
                count += 1
            chunk_ns = content.chunk.end_ns
            last_ns = max(last_ns, chunk_ns)
        if scan.torn is None:
            return Recovery(path, True, count - _is_recovered(last), 0)
        size = os.fstat(file.fileno()).st_size
    if scan.contents is None:
        raise _hopeless(scan)
    dropped_bytes = size - scan.contents.size
    writer = Writer.resume(path, _open_to_write(path, size), scan.contents)
    try:
        if scan.rows_due is not None:
            writer.write_table(scan.rows_due, chunk_ns)
        if not _is_recovered(last):
            body = {"event": "recovered", "dropped_bytes": dropped_bytes}
            writer.write([Note(EVENTS, last_ns or scan.info.start_ns, body)])
        writer.close()
    finally:
        writer.abandon()
    return Recovery(path, False, count, dropped_bytes)


def _is_recovered(last: Frame | Note | None) -> bool:
    """Tell whether an earlier recovery got as far as its note."""
    return isinstance(last, Note) and last.body.get("event") == "recovered"


def _hopeless(scan: Scan) -> RecordingError:
    if scan.info.library and not scan.info.native:
        what = f"was last written by {scan.info.library!r}: complete it with `mcap recover`"
    else:
        what = f"{scan.torn}, before anything was recorded: there is nothing to recover, delete it"
    return RecordingError(scan.path, scan.offset, what)


def _open_to_write(path: Path, size: int) -> int:
    """Open a file to go on writing, if nobody else does and it still has `size` bytes.

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
