"""Recordings that stay open: their exchanges once, and their frames at any time after.

::

    paths ─▶ OpenRecordings ─┬─▶ exchanges ─▶ place(exchange, side): one integer
                     └─▶ frame(place) ─▶ the bytes

A place is a `Position`, and which of the recordings it is in. Where the batches of a file lie is
known after a pass over it, 32 bytes for each; `locations` can be kept, and given to another
`OpenRecordings`, which needs no pass then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from kproxy.exchange.entries import Note, Side
from kproxy.exchange.exchange import Exchange
from kproxy.recording.exchanges import Reader, missing_before
from kproxy.recording.file import RecordingFile, frame_bytes_in
from kproxy.recording.files import RecordingError
from kproxy.recording.info import Info
from kproxy.recording.paths import Paths, recordings, size_of
from kproxy.recording.stored import Locations

_POSITION_BITS = 58
"""Enough for 67 million chunks: 38 days of twenty a second, or 17 TB of full ones."""
_PIECES_KEPT = 16
"""Partitions are read side by side."""
_RECORDINGS_MAX = 1 << 63 - _POSITION_BITS


@attrs.define(eq=False)
class OpenRecordings:
    """Recordings that stay open.

    Resource handling: holds a file open for each, until nobody refers to it.

    Raises: RecordingError, when a path is no recording; its methods raise it where one is damaged.
    """

    paths: list[Path]
    locations: list[Locations] = attrs.Factory(list)
    """The places of frames by file, after a pass."""
    whole: bool = True
    """True after a pass if every file has an end, as kproxy wrote it."""
    _files: list[list[RecordingFile]] = attrs.field(factory=list, init=False)
    """The files, by recording."""
    _finished_bytes: int = attrs.field(default=0, init=False)

    @classmethod
    def of(cls, paths: Paths) -> OpenRecordings:
        """Return the recordings that paths stand for, in the order of their times."""
        return cls(recordings(paths))

    @classmethod
    def again(cls, paths: list[Path], locations: list[Locations]) -> OpenRecordings:
        """Return recordings with known locations: they need no pass.

        Raises: RecordingError, also when the locations are of other files.
        """
        found = cls(paths)
        if len(paths) != len(locations):
            raise RecordingError(paths[0], None, "is another one than before")
        for path, known in zip(paths, locations, strict=True):
            found._join(RecordingFile(path)).locations = known
        found.locations = locations
        return found

    @property
    def file_bytes(self) -> int:
        """The size of all files that exist; reading reports missing ones."""
        return size_of(self.paths)

    @property
    def bytes_passed(self) -> int:
        """The number of bytes that a pass has read so far."""
        last = self._files[-1][-1].scan.offset if self._files else 0
        return self._finished_bytes + last

    def exchanges(self, on_note: Callable[[Note], None] = lambda note: None) -> Iterator[Exchange]:
        """Yield the exchanges, as `recording.read` does; that is the pass."""
        reader = Reader(on_note)
        for path in [*self.paths]:
            if self._files:
                self._finished_bytes += self._files[-1][-1].scan.offset
            file = reader.opened(path, len(self.paths) > 1)
            if file is None:
                self.paths.remove(path)
                continue
            yield from reader.begin(file)
            self._join(file)
            yield from reader.more()
            if file.torn is not None:
                on_note(file.torn)
                self.whole = False
            self.whole = self.whole and file.info.native
        yield from reader.finish()
        self.locations = []
        for file in (file for files in self._files for file in files):
            found = Locations()
            if all(found.add(batch) for batch in file.batches()):
                file.locations = found
                file.forget()
            self.locations.append(found)
            file.close()

    def missing(self) -> Iterator[Note]:
        """Yield the notes on parts of the recordings that are not there."""
        before: Info | None = None
        for file in (file for files in self._files for file in files):
            if (note := missing_before(file.info, before)) is not None:
                yield note
            before = file.info

    def place(self, exchange: Exchange, side: Side) -> int | None:
        """Return the place of a frame of the exchange that was yielded last; None if it is out of
        reach."""
        row, recording = exchange.row, len(self._files) - 1
        position = row.request_position if side is Side.CLIENT else row.response_position
        if position <= 0 or position >> _POSITION_BITS or recording >= _RECORDINGS_MAX:
            return None
        return recording << _POSITION_BITS | position

    def frame(self, place: int) -> bytes:
        """Return the frame at a place.

        Raises: RecordingError, also when it does not exist any more.
        """
        files = self._files[place >> _POSITION_BITS]
        position = place & (1 << _POSITION_BITS) - 1
        found = frame_bytes_in(files, position)
        if found is None:
            raise RecordingError(files[-1].path, None, "has lost a frame that it had")
        return found

    def _join(self, file: RecordingFile) -> RecordingFile:
        file.pieces_kept = _PIECES_KEPT
        if self._files and file.info.continues(self._files[-1][-1].info):
            self._files[-1].append(file)
        else:
            self._files.append([file])
        return file
