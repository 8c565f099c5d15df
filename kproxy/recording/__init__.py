"""Recordings: the file of what passed through the proxy, written, read, completed, rotated.

    Recording ─▶ Writer ─▶ file.mcap ─▶ entries · rows · read · recover

`format` describes the file. Nothing here knows trio; a writer is meant to be called from a worker
thread.
"""

from kproxy.recording.format import ROW_FIELDS, RecordingError
from kproxy.recording.reader import (
    entries,
    info,
    read,
    recordings,
    rows,
    tables,
    verify,
)
from kproxy.recording.recover import recover
from kproxy.recording.rotation import Recording
from kproxy.recording.writer import Writer

__all__ = [
    "ROW_FIELDS",
    "Recording",
    "RecordingError",
    "Writer",
    "entries",
    "info",
    "read",
    "recordings",
    "recover",
    "rows",
    "tables",
    "verify",
]
