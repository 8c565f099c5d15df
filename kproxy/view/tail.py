"""`kproxy tail`: a recording as it grows.

    file ─▶ new batches ─▶ exchanges ─▶ Folding ─▶ lines, at once
      └ its size is polled every POLL_SECONDS

The recorder writes within 100 ms of the traffic, so a line comes within 200 ms of its response. It
ends when the recording is complete and no other file continues it, or when its writer has died.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TextIO

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.recording import RecordingError, info
from kproxy.recording.exchanges import Reader
from kproxy.recording.info import Info
from kproxy.recording.paths import by_recording
from kproxy.recording.reader import starting
from kproxy.view.lines import Folding, style_for
from kproxy.view.show import names_one, write
from kproxy.view.stream import Stream, connection_ends

POLL_SECONDS = 0.02
LINES_BEFORE = 10
"""Lines of exchanges recorded before the start that are shown first."""
_FOLDED_FOR = timedelta(seconds=10)
_SUCCESSOR_SECONDS = 1.0
"""Longest wait for the next file of a rotated recording."""


def show_tail(
    path: Path,
    out: TextIO,
    wanted: Filter | None = None,
    lines_before: int | None = LINES_BEFORE,
    local: bool = False,
) -> None:
    """Write lines of a recording as it grows, until it is complete.

    It begins with the last `lines_before` lines that are there already; None: with all.

    Raises:
        RecordingError: the path is not there, not a recording, or damaged.
    """
    stream = Stream([path])
    folds = not names_one(wanted)
    folding = Folding(style_for(out, local), folds, folded_for=_FOLDED_FOR)
    lines = _lines(_Follower(path, stream, wanted), folding, lines_before, out)
    write((f"{line}\n" for line in lines), stream.notices, out, "tail")


def _lines(
    follower: _Follower,
    folding: Folding,
    lines_before: int | None,
    out: TextIO,
) -> Iterator[str]:
    before: deque[str] | None = deque(maxlen=lines_before)
    for each in follower.shown():
        if each is None:  # everything recorded so far has been read
            yield from before or ()
            yield from folding.pause()
            before = None
            out.flush()
        else:
            lines = folding.take(each)
            if before is None:
                yield from lines
            else:
                before.extend(lines)
    yield from folding.flush()


@attrs.define(eq=False)
class _Follower:
    """Reads the new batches of a file, and of the files that continue it."""

    path: Path
    stream: Stream
    """Takes the notes."""
    wanted: Filter | None = None
    _ends: list[ConnectionEnd] = attrs.field(factory=list[ConnectionEnd], init=False)

    def shown(self) -> Iterator[Exchange | ConnectionEnd | None]:
        """Yield exchanges and ends as they are recorded; None wherever there is no more for now."""
        if self.wanted is not None:
            self.wanted = starting(self.wanted, by_recording(self.path))
        reader = Reader(self._add_note, self.wanted)
        size = self._size()
        yield from self._with_ends(reader.file(self.path))
        while True:
            yield None
            torn = reader.last.torn
            if torn is None:
                successor = self._successor()
                if successor is None:
                    break
                self.path, size = successor, -1
                yield from self._with_ends(reader.file(successor))
            elif not torn.body["writing"] and self._size() == size:
                self.stream.add_note(torn)
                break
            else:
                size = self._wait_for_growth(size, reader)
                yield from self._with_ends(reader.more())
        yield from self._with_ends(reader.finish())

    def _add_note(self, note: Note) -> None:
        if note.body.get("event") != "torn":
            wanted = self.wanted
            ends = connection_ends(note)
            self._ends += [end for end in ends if wanted is None or wanted.matches_end(end)]
            self.stream.add_note(note)

    def _with_ends(self, found: Iterator[Exchange]) -> Iterator[Exchange | ConnectionEnd]:
        for exchange in found:
            ends, self._ends = self._ends, []
            yield from ends
            yield exchange
        ends, self._ends = self._ends, []
        yield from ends

    def _size(self) -> int:
        try:
            return os.stat(self.path).st_size
        except OSError as error:
            raise RecordingError(self.path, None, f"cannot be read: {error.strerror}") from None

    def _wait_for_growth(self, size: int, reader: Reader) -> int:
        """Wait until the size changes or the file has no writer any more; return the size."""
        while (now := self._size()) == size and reader.last.being_written:
            time.sleep(POLL_SECONDS)
        return now

    def _successor(self) -> Path | None:
        """Wait for the file that continues a rotated recording; None if there is none."""
        deadline = time.monotonic() + _SUCCESSOR_SECONDS
        here = info(self.path)
        while True:
            for other in sorted(self.path.parent.glob("*.mcap")):
                if _follows(here, other):
                    return other
            if time.monotonic() > deadline:
                return None
            time.sleep(POLL_SECONDS)


def _follows(here: Info, other: Path) -> bool:
    try:
        there = info(other)
    except RecordingError:
        return False
    return there.continues(here) and there.part == here.part + 1
