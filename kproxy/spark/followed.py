"""The files that a stream follows, on the driver: which there are, and the batches in them.

    listing ─▶ FollowedFiles ─▶ head, once for each stamp ─▶ FollowedFile ─▶ its next batch

Invariants: a file is opened when its stamp is new, and when it may have batches that were not read;
so finished files cost nothing but their line in the listing. No file stays open between two calls.
What is pending where a stretch begins is known here, for a growing file has no index: so no task
reads what lies before.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import attrs

from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.info import Info
from kproxy.recording.listing import Stamp, listed
from kproxy.recording.paths import info
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import Uri, located, spelled
from kproxy.spark.offsets import FileIdentity
from kproxy.tables import splits
from kproxy.tables.splits import BatchRange

_REMOTE_HEADS = 16
"""Heads of remote files that are read at a time: each takes some requests."""


@attrs.define(eq=False)
class _FileBatches:
    """The batches of a file, found one by one."""

    file: RecordingFile
    end: int = 0
    """The offset behind the last one that was found."""
    complete: bool = False
    """True if all are found and none will follow."""
    forgotten: int = 0
    """The offset before which they are forgotten."""
    _found: list[StoredBatch] = attrs.field(factory=list)
    _log: ConnectionLog = attrs.field(factory=ConnectionLog)
    """The open connections before the first batch that is not forgotten."""
    _coming: Iterator[StoredBatch] | None = attrs.field(default=None, init=False)
    _has_end: bool = attrs.field(default=False, init=False)

    def behind(self, offset: int) -> StoredBatch | None:
        """Return the first batch at or behind an offset; None if there is none yet."""
        while not self._found or self._found[-1].offset < offset:
            if not self._find():
                return None
        return self._found[bisect.bisect_left(self._found, offset, key=_offset)]

    def reach(self, offset: int) -> bool:
        """Find the batches before an offset; return whether the file has them."""
        while self.end < offset and self._find():
            pass
        return self.end >= offset

    def _find(self) -> bool:
        if self.complete:
            return False
        if self._coming is None:
            self._has_end = self.file.complete  # first: what comes meanwhile is for the next pass
            self._coming = self.file.batches()
        self.file.reopen()
        batch = next(self._coming, None)
        if batch is None:
            self._coming, self.complete = None, self._has_end
            self.close()
            return False
        self._found.append(batch)
        self.end = end_of(batch)
        return True

    def close(self) -> None:
        """Close the file for now."""
        self.file.close()
        self.file.forget()

    def forget(self, offset: int) -> tuple[Note, ...]:
        """Forget the batches before an offset; return notes of the connections open there, and of
        what is pending."""
        self.forgotten = offset
        at = bisect.bisect_left(self._found, offset, key=_offset)
        for batch in self._found[:at]:
            self._log.remember(batch.notes)
            self.file.exchanges(batch)
        del self._found[:at]
        self.close()
        return *self._log.opening_notes(self.file.info.start_ns), self.file.pending()


def _offset(batch: StoredBatch) -> int:
    return batch.offset


def end_of(batch: StoredBatch) -> int:
    """Return the offset behind a batch."""
    return 0 if batch.chunk is None else batch.chunk.end


@attrs.define(eq=False)
class FollowedFile:
    """A file that is there."""

    path: Path | Uri
    stamp: Stamp
    head: Info
    name: str = attrs.field(default=attrs.Factory(lambda self: str(self.path), True))
    """Its name in offsets, without passwords."""
    identity: FileIdentity = attrs.field(
        default=attrs.Factory(lambda self: FileIdentity.of(self.head), True)
    )
    _exhausted: int = attrs.field(default=-1, init=False)
    """An offset behind which nothing is, or was when it had this stamp."""
    _complete: bool = attrs.field(default=False, init=False)
    """True if nothing will follow there."""
    _batches: _FileBatches | None = attrs.field(default=None, init=False)

    def changed(self, stamp: Stamp, head: Info) -> FollowedFile:
        """Return the file with another stamp: the same one, or another that has its name now."""
        now = FollowedFile(self.path, stamp, head)
        same = now.identity == self.identity and stamp.inode == self.stamp.inode
        if same and self._batches is not None and stamp.bytes >= self._batches.end:
            now._batches = self._batches
        return now

    def next_ns(self, offset: int) -> int | None:
        """Return the time of the next batch behind an offset; None if there is none yet."""
        if not offset:
            return None if self._exhausted == 0 else self.head.start_ns
        batch = self.next_batch(offset)
        return None if batch is None else _start_ns(batch)

    def next_batch(self, offset: int) -> StoredBatch | None:
        """Return the next batch behind an offset; None if there is none yet.

        Raises: RecordingError.
        """
        if offset == self._exhausted:
            return None
        if offset and self._batches is None and self.head.native:
            with RecordingFile(self.path) as file:  # a quick look, before all of it is read
                complete = file.complete
                file.skip_to(offset)
                if next(file.batches(), None) is None:
                    self._exhausted, self._complete = offset, complete
                    return None
        batch = self._opened().behind(offset)
        if batch is None:
            self._exhausted, self._complete = offset, self._opened().complete
        return batch

    def is_whole(self, offset: int) -> bool:
        """Return whether it is known that nothing will follow behind an offset."""
        return self._complete and self._exhausted == offset

    def _opened(self) -> _FileBatches:
        if self._batches is None:
            self._batches = _FileBatches(RecordingFile(self.path))
        return self._batches

    def stretch(self, start: int, stop: int, earlier: tuple[str, ...]) -> BatchRange:
        """Return the stretch between two offsets.

        Raises: RecordingError, if the file has lost it.
        """
        every = splits.whole(self.head, earlier, stop - start)
        if not start and stop <= self.stamp.bytes:
            return attrs.evolve(every, stop=stop)
        if self._batches is not None and start < self._batches.forgotten:
            self.forget()
        batches = self._opened()
        batches.reach(stop)
        batches.close()
        self.check_reaches(stop, batches.end)
        notes = batches.forget(start)
        return attrs.evolve(every, start=start, stop=stop, notes=notes)

    def check_reaches(self, offset: int, end: int) -> None:
        """Check that what was read of the file is still there.

        Raises: RecordingError.
        """
        if offset > end:
            what = f"ends at byte {end}, but was read up to {offset} before"
            raise RecordingError(self.path, None, f"{what}: give each recording its own name")

    def close(self) -> None:
        """Close it until it is needed again."""
        if self._batches is not None:
            self._batches.close()

    def forget(self) -> None:
        """Forget its batches: they can be found again."""
        self.close()
        self._batches = None


def _start_ns(batch: StoredBatch) -> int:
    return 0 if batch.chunk is None else batch.chunk.start_ns


class FollowedFiles:
    """The recordings that some texts stand for. `on_skip` is called with a line about what is left
    out, or is not there yet: again and again."""

    def __init__(self, texts: Sequence[str], on_skip: Callable[[str], None]) -> None:
        self._texts = texts
        self._on_skip = on_skip
        self._files: dict[str, FollowedFile] = {}
        """By the text that names it."""
        self._parts: dict[str, list[FollowedFile]] | None = None
        """The files of each recording in order; None if they have changed."""

    def __iter__(self) -> Iterator[FollowedFile]:
        return iter(self._files.values())

    def look(self) -> None:
        """Look what is there now.

        Raises: RecordingError, if a file that the user named is no recording.
        """
        stamps, named = self._listed()
        gone = self._files.keys() - stamps.keys()
        new = [name for name, stamp in stamps.items() if not self._knows(name, stamp)]
        for name, head in zip(new, _heads(new), strict=True):
            if isinstance(head, RecordingError):
                if name in named:
                    raise head
                self._on_skip(f"{head}; it is left out")
            if isinstance(head, Info) and head.format_version:
                self._learn(name, stamps[name], head)
            else:  # it has no head yet
                gone.add(name)
        for name in gone & self._files.keys():
            self._files.pop(name).close()
        if gone or new:
            self._parts = None

    def _listed(self) -> tuple[dict[str, Stamp], set[str]]:
        """Return the stamps of files that are not empty, and those that the user named."""
        stamps: dict[str, Stamp] = {}
        named: set[str] = set()
        for text in self._texts:
            found, name = listed(text), spelled(located(text))
            if found is None:
                self._on_skip(f"{located(text)}: is not there yet: it is waited for")
                continue
            stamps |= {name: stamp for name, stamp in found.items() if stamp.bytes}
            named |= {name} & found.keys()
        return stamps, named

    def _knows(self, name: str, stamp: Stamp) -> bool:
        file = self._files.get(name)
        return file is not None and file.stamp == stamp

    def _learn(self, name: str, stamp: Stamp, head: Info) -> None:
        before = self._files.get(name)
        if before is None:
            self._files[name] = FollowedFile(located(name), stamp, head)
        else:
            self._files[name] = before.changed(stamp, head)

    def earlier(self, file: FollowedFile) -> tuple[str, ...]:
        """Return the earlier files of a file's recording, as many as may be needed."""
        if self._parts is None:
            self._parts = {}
            for each in sorted(self, key=_order):
                self._parts.setdefault(each.identity.recording, []).append(each)
        parts = self._parts[file.identity.recording] if file.identity.recording else [file]
        at = bisect.bisect_left(parts, _order(file), key=_order)
        return tuple(spelled(each.path) for each in parts[max(0, at - splits.EARLIER_MAX) : at])


def _order(file: FollowedFile) -> tuple[int, int, int, str]:
    """Sort files of a recording by time, copies by size, the largest first."""
    return file.head.start_ns, file.head.part, -file.stamp.bytes, file.name


def _heads(names: Iterable[str]) -> list[Info | RecordingError | None]:
    """Return the heads of files, or why they have none; None for one that is gone."""
    paths = list(map(located, names))
    if any(isinstance(path, Uri) for path in paths):
        with ThreadPoolExecutor(_REMOTE_HEADS) as pool:
            return list(pool.map(_head, paths))
    return list(map(_head, paths))


def _head(path: Path | Uri) -> Info | RecordingError | None:
    try:
        return info(path)
    except RecordingError as error:
        return error
    except OSError:
        return None
