"""Recordings: the file of what passed through the proxy, written, read, completed, rotated.

    entries ─▶ BatchBuilder ─▶ Recording ─▶ Writer ─▶ file.mcap ─▶ RecordingFile ─▶ read · entries
                                                         └─▶ recover

`layout` describes the file, `mcap` its container, `arrow` the encoding of its tables. Nothing here
knows trio; a writer is meant to be called from a worker thread.
"""

from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, RecordingWarning
from kproxy.recording.paths import info, recordings
from kproxy.recording.reader import entries, read, verify
from kproxy.recording.recover import recover
from kproxy.recording.rotation import Recording
from kproxy.recording.writer import Writer

__all__ = [
    "Recording",
    "RecordingError",
    "RecordingFile",
    "RecordingWarning",
    "Writer",
    "entries",
    "info",
    "read",
    "recordings",
    "recover",
    "verify",
]
