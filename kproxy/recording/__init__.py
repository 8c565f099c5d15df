"""Recordings: the file of what passed through the proxy, written, read, completed, rotated.

    entries ─▶ Recording ─▶ Writer ─▶ file.mcap ─▶ RecordingFile ─▶ read · entries
                                         └─▶ recover

`layout` describes the file, `mcap` its container, `pieces` its messages. Nothing here knows trio; a
writer is meant to be called from a worker thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, RecordingWarning
from kproxy.recording.paths import info, recordings
from kproxy.recording.reader import entries, read, verify

if TYPE_CHECKING:
    from kproxy.recording.recovery import recover
    from kproxy.recording.rotation import Recording
    from kproxy.recording.writer import Writer

_WRITING = {"recover": "recovery", "Recording": "rotation", "Writer": "writer"}
"""Names of what writes, and the modules: whoever reads starts without them."""

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


def __getattr__(name: str) -> Any:
    if name not in _WRITING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WRITING[name]}"), name)
