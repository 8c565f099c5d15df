"""Follows a recording as it grows: its file, and those that continue it.

    files ─▶ Reader ─▶ exchanges ─▶ … None: nothing more for now … ─▶ the next file ─▶ … ─▶ the end

It ends when the recording is complete and no other file continues it, or when its writer has died.

Invariant: nothing here waits. Whoever gets None asks again after POLL_SECONDS.
"""

from __future__ import annotations

import contextlib
import enum
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.recording.exchanges import Reader
from kproxy.recording.paths import successor

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter

POLL_SECONDS = 0.02
_GONE = -2
"""The size of a file that was removed: another one than any before."""
_SUCCESSOR_SECONDS = 1.0
"""Longest wait for the next file of a rotated recording."""


class Follow(enum.Enum):
    """Whether who reads a recording waits for what is added to it."""

    NO = enum.auto()
    WHILE_WRITTEN = enum.auto()
    """Only if its last file is being written."""
    ALWAYS = enum.auto()
    """What continues its last file is looked for, too, even if nobody writes that any more."""


class FileFollower:
    """Reads files in their order; of the last one, what is added to it, and what continues it."""

    def __init__(
        self,
        paths: Sequence[Path],
        on_note: Callable[[Note], None],
        wanted: Filter | None = None,
        on_progress: Callable[[int], None] = lambda done: None,
        names: Mapping[str, str] | None = None,
        follow: Follow = Follow.ALWAYS,
    ) -> None:
        """Follow the last of these files. The other parameters are those of `Reader`."""
        self.paths = list(paths)
        """The files so far."""
        self._on_note = on_note
        self._follow = follow
        self.reader = Reader(self._pass_on, wanted, on_progress, names=names)

    @property
    def _last(self) -> Path:
        return self.paths[-1]

    def found(self) -> Iterator[Exchange | None]:
        """Yield what the reader finds, and None wherever there is no more for now. What the reader
        yields when it finishes comes at the end.

        Raises: RecordingError.
        """
        reader = self.reader
        several = len(self.paths) > 1
        for path in self.paths[:-1]:
            yield from reader.file(path, several)
        size, grew = self._size(), self._follow is Follow.ALWAYS
        yield from reader.file(self._last, several and reader.path is not None)
        if reader.path != self._last and not self._last.exists():
            # What continues the recording of the file before may be there.
            del self.paths[self.paths.index(Path(str(reader.path))) + 1 :]
            size, grew = -1, True
        while True:
            yield None
            torn = reader.last.torn
            if torn is None:
                successor = (yield from self._successor()) if grew else None
                if successor is None:
                    break
                self.paths.append(successor)
                size = -1
                yield from reader.file(successor, several=True)
            elif not torn.body["writing"] and self._size() == size:
                self._on_note(torn)
                break
            else:
                while (now := self._size()) == size and reader.last.being_written:
                    yield None
                size, grew = now, True
                yield from reader.more()
        yield from reader.finish()

    def _pass_on(self, note: Note) -> None:
        """Pass a note on; whether the last file is torn is known at the end only."""
        if note.body.get("event") != "torn" or note.body["path"] != str(self._last):
            self._on_note(note)

    def _size(self) -> int:
        with contextlib.suppress(
            FileNotFoundError
        ):  # what was opened before it was removed is read
            return os.stat(self._last).st_size
        return _GONE

    def _successor(self) -> Generator[None, None, Path | None]:
        """Return the file that continues the last one, once it is there; None if there is none."""
        deadline = time.monotonic() + _SUCCESSOR_SECONDS
        here = self.reader.last.info
        while True:
            found = successor(here)
            if found is not None or not here.part or time.monotonic() > deadline:
                return found
            yield None
