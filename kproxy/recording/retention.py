"""Removes the oldest files of recordings, so that their folder stays within limits.

::

    folder ── files of earlier runs ─┐
    Recording ── complete files ─────┴─▶ keeping.what_goes ─▶ due ─▶ remove ─▶ notes, counts, log
    Writer ── the disk is full ──────────────────────────────▶ make_room ─▶ remove

The files are those of the recording, and of earlier recordings in its folder that were made with
limits, too: their heads say so (`keep`). Other files are not touched, nor counted; nor are those of
a recording that another process is writing: that one has limits of its own.

Invariants: what is being written is not removed. A file counts as removed when it is. `make_room`
comes from the thread that writes the recording, all else from another one.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.levels import Logger
from kproxy.recording.files import RecordingError, being_written, open_recording, reason
from kproxy.recording.info import Info
from kproxy.recording.keeping import KEPT_FROM, KeepLimits, KeptFile, what_goes
from kproxy.recording.paths import kept_heads
from kproxy.recording.rotation import Recording
from kproxy.units import format_bytes

_FULL = "a full disk"
_AND = ", and by "
_FREED_SECONDS = 5.0
"""The time that a file system may take to give back the room of a file that was removed."""


@attrs.define(eq=False)
class Retention:
    """Keeps the folder of a recording within limits. `by` are the options that set them, as people
    type them; `log` gets a line for each file that was removed."""

    recording: Recording
    limits: KeepLimits
    by: str
    log: Logger
    files_removed: int = attrs.field(default=0, init=False)
    bytes_removed: int = attrs.field(default=0, init=False)
    _files: list[KeptFile] | None = attrs.field(default=None, init=False)
    """The files that may go, the oldest first; None before the first look."""
    _taken: set[Path] = attrs.field(factory=set, init=False)
    """The files of this recording that were among them."""
    _removed: dict[str, tuple[int, int, str]] = attrs.field(factory=dict, init=False)
    """The first and the last part that was removed of each recording, and why …"""
    _untold: set[str] = attrs.field(factory=set, init=False)
    """… and the recordings of which no note tells it yet."""
    _freeing: tuple[float, int] = attrs.field(default=(0.0, 0), init=False)
    """Until when, and how much, room is awaited that was given back: some file systems take their
    time."""
    _lock: threading.RLock = attrs.field(factory=threading.RLock, init=False)

    def __attrs_post_init__(self) -> None:
        self.recording.when_full(self.make_room)

    def due(self, slack: bool = False) -> list[KeptFile]:
        """Return the files that are to be removed now, in this order; with slack, those that cannot
        wait for an excerpt.

        Raises: OSError, when the folder cannot be looked at.
        """
        with self._lock:
            files = self._look()
            free_bytes = self._free_bytes() + self._awaited_bytes
            open_bytes = 0
            with contextlib.suppress(FileNotFoundError):  # it was deleted
                open_bytes = self.recording.paths[-1].stat().st_size
            limits = self.limits.with_slack() if slack else self.limits
            return what_goes(files, limits, time.time_ns(), free_bytes, open_bytes)

    def add(self, excerpt: Path) -> None:
        """Take an excerpt of a file that is due."""
        with self._lock, contextlib.suppress(OSError):
            files = self._look()
            files[:] = [file for file in files if file.path != excerpt]
            files.append(_kept(excerpt, is_excerpt=True))

    def remove(self, file: KeptFile, why: str = "") -> None:
        """Remove a file, unless it is not there any more."""
        with self._lock:
            files = self._look()
            if file not in files:
                return
            files.remove(file)
            try:
                free_bytes = self._free_bytes()
                file.path.unlink()
                came_bytes = max(0, self._free_bytes() - free_bytes)
            except FileNotFoundError:
                return
            except OSError as error:
                self.log(f"cannot remove {file.path} ({reason(error)})", "warning")
                return
            self._await(file.size_bytes - came_bytes)
            self._count(file, why or self.by)
        what = "an excerpt" if file.is_excerpt else f"part {file.part}"
        size = format_bytes(file.size_bytes)
        self.log(f"removed {file.path} ({what}, {size}): {why or self.by}")

    def make_room(self, size_bytes: int) -> bool:
        """Remove the oldest files, which have at least this size together; return whether there
        were some. What matches in them is lost: there is no room for excerpts."""
        with self._lock:
            if self._awaited_bytes >= size_bytes:
                return False
            before, files = self.bytes_removed, list(self._look())
            files.sort(key=lambda file: file.is_excerpt)
            for file in files:
                if self.bytes_removed - before >= size_bytes:
                    break
                self.remove(file, _FULL)
            return self.bytes_removed > before

    def notes(self, time_ns: int) -> list[Note]:
        """Return the notes on what was removed since the last call."""
        with self._lock:
            untold, self._untold = self._untold, set()
            return [notes.removed(time_ns, each, *self._removed[each]) for each in untold]

    @property
    def _folder(self) -> Path:
        return self.recording.path.parent

    def _free_bytes(self) -> int:
        """Raises: OSError."""
        return shutil.disk_usage(self._folder).free

    @property
    def _awaited_bytes(self) -> int:
        until, awaited_bytes = self._freeing
        return awaited_bytes if time.monotonic() < until else 0

    def _await(self, size_bytes: int) -> None:
        if size_bytes > 0:
            self._freeing = time.monotonic() + _FREED_SECONDS, self._awaited_bytes + size_bytes

    def _count(self, file: KeptFile, why: str) -> None:
        self.files_removed += 1
        self.bytes_removed += file.size_bytes
        if file.is_excerpt:
            return
        if file.recording == self.recording.id:
            self.recording.forget(file.path)
        first, last, by = self._removed.get(file.recording, (file.part, file.part, why))
        if why not in by.split(_AND):
            by += _AND + why
        self._removed[file.recording] = min(first, file.part), max(last, file.part), by
        self._untold.add(file.recording)

    def _look(self) -> list[KeptFile]:
        """Return the files that may go, with those that are complete since the last call."""
        if self._files is None:
            self._files = _earlier(self._folder, self.recording.id)
        for path in self.recording.paths[:-1]:
            if path not in self._taken:
                self._taken.add(path)
                with contextlib.suppress(OSError):  # it was deleted
                    self._files.append(_kept(path, self.recording.id, len(self._taken)))
        return self._files


def _kept(path: Path, recording: str = "", part: int = 0, *, is_excerpt: bool = False) -> KeptFile:
    """Raises: OSError."""
    about = path.stat()
    return KeptFile(path, about.st_size, about.st_mtime_ns, recording, part, is_excerpt)


def _earlier(folder: Path, own: str) -> list[KeptFile]:
    """Return the files of a folder that earlier recordings with limits have left, in the order of
    their times."""
    heads: list[Info] = []
    busy: set[str] = {own}
    for path, head in kept_heads(folder):
        if not head.native:
            continue
        with contextlib.suppress(RecordingError), open_recording(path) as file:
            heads.append(head)
            if being_written(file):
                busy.add(head.metadata.get("recording", ""))
    heads.sort(key=lambda head: (head.start_ns, head.part, str(head.path)))
    return [*_of_heads(heads, busy)]


def _of_heads(heads: Iterable[Info], busy: set[str]) -> Iterable[KeptFile]:
    for head in heads:
        path, recording = Path(str(head.path)), head.metadata.get("recording", "")
        is_excerpt = KEPT_FROM in head.metadata
        if is_excerpt or recording not in busy:
            with contextlib.suppress(OSError):
                yield _kept(path, recording, head.part, is_excerpt=is_excerpt)
