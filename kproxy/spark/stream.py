"""Follows recordings while they are written: the streaming half of the data source.

::

    latestOffset ─▶ {file: [offset, identity]}     how far each file goes now
    partitions(start, end) ─▶ SparkPartition, …     the batches between two such offsets
    read(SparkPartition) ─▶ record batches

An offset is that of a batch in a file. Files grow at their end only, `kproxy recover` included, so
offsets from a checkpoint hold for ever, and a file that appears is read from its beginning; so is
another recording that takes the name of one, which its identity tells. Paths are absolute: those of
a checkpoint that has them otherwise are from the working directory.

Invariants: a batch is taken when both of its tables are there, so each row comes exactly once.
Requests that are still pending come when they are answered or given up, not before; so do their
frames. What the notes of a file told before an offset is kept between batches, and read again after
a restart.
"""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.reader import in_order, info, is_empty
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import Uri, absolute, located
from kproxy.spark.source import SparkPartition, read, tell
from kproxy.tables import splits
from kproxy.tables.splits import Stretch

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _available_now
except ImportError:  # before Spark 4.2, which then takes one batch
    _available_now = object
AvailableNow: Any = _available_now
"""By this, Spark asks a reader what a query has to take that ends when it has what was there."""


@attrs.define(eq=False)
class FollowedFile:
    """One file that is followed, on the driver."""

    file: RecordingFile
    all_of_it: Stretch
    batches: list[StoredBatch] = attrs.field(factory=list)
    """Those that were found and not yet given out."""
    end: int = 0
    """Up to where they go."""
    log: ConnectionLog = attrs.field(factory=ConnectionLog)
    """What was known at the first of them."""
    _passed: int = 0
    _whole: bool = False
    _stamp: tuple[int, ...] = attrs.field(
        default=attrs.Factory(lambda self: _stamp(self.file.path), True)
    )

    @property
    def identity(self) -> str:
        """Which recording it is, and which part of it."""
        return _identity(self.file)

    def replaced(self) -> bool:
        """Tell whether its name is another file's now."""
        stamp = _stamp(self.file.path)
        if not stamp or stamp == self._stamp:
            return False
        same = stamp[:2] == self._stamp[:2]
        self._stamp = stamp
        with RecordingFile(self.file.path) as now:
            return not same or _identity(now) != self.identity or stamp[-1] < self.end

    def look(self) -> int:
        """Find what has been written since; return how far the whole batches go."""
        if self._whole:
            return self.end
        self._whole = self.file.complete
        for batch in self.file.batches(self._passed):
            if batch.exchanges is None:
                self._again()  # the file ends before its table of exchanges, and may be completed
                break
            self._passed += 1
            self.batches.append(batch)
            self.end = batch.exchanges.chunk.end
        self._rest()
        return self.end

    def _rest(self) -> None:
        if self._whole or isinstance(self.file.path, Uri):  # there, what is open does not grow
            self.file.close()

    def _again(self) -> None:
        self.file.close()
        self.file, self._passed, self._whole = RecordingFile(self.file.path), 0, False
        self.file.skip_to(self.end)

    def stretch(self, start: int, end: int) -> Stretch | None:
        """Return the stretch between two offsets, and forget what lies before it."""
        self._forget(start)
        if not any(batch.offset < end for batch in self.batches):
            return None
        notes: tuple[Note, ...] = tuple(self.log.opening(self.file.info.start_ns))
        begin = self.batches[0].offset
        return attrs.evolve(
            self.all_of_it, begin=begin, start=begin, stop=end, bytes=end - begin, notes=notes
        )

    def _forget(self, start: int) -> None:
        while self.batches and self.batches[0].offset < start:
            self.log.remember(self.batches.pop(0).notes)


def _stamp(path: Path | Uri) -> tuple[int, ...]:
    """Return what is another when a file was written to, or replaced; its first two numbers only
    when it was replaced."""
    if isinstance(path, Uri):
        return ()  # a look costs time
    try:
        about = path.stat()
    except OSError:
        return ()  # it is gone: who reads it says so
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


def _identity(file: RecordingFile) -> str:
    """Return which recording and part a file is; "" if it does not say."""
    recording = file.info.metadata.get("recording")
    if recording is None and not file.info.native:
        return ""
    return f"{recording} {file.info.part} {file.info.start_ns}"


def _place(offset: Any) -> tuple[int, str]:
    """Return an offset of a checkpoint: how far, and of what; "" if it does not say, as those of
    older versions."""
    return (offset, "") if isinstance(offset, int) else (offset[0], offset[1])


class StreamReader(DataSourceStreamReader, AvailableNow):
    """Follows recordings: files, and what appears in folders and under globs."""

    def __init__(
        self, paths: tuple[str, ...], view: str, schema: StructType, partition_bytes: int
    ) -> None:
        self._paths = paths
        self._view = view
        self._schema = schema
        self._partition_bytes = partition_bytes
        self._followed: dict[str, FollowedFile] = {}
        self._told: set[str] = set()
        self._target: dict[str, int] | None = None
        """Up to where a query goes that ends when it has what was there at its start."""

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: before everything."""
        return {}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return how far each file goes."""
        return _absolute(start or {}) | (self._ends() if self._target is None else self._target)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end when it has what is there now, after a batch that was begun before."""
        self._target = self._ends()

    def _ends(self) -> dict[str, Any]:
        ends = {path: (each.look(), each.identity) for path, each in self._follow().items()}
        return {path: list(end) for path, end in ends.items() if end[0]}

    def _follow(self) -> dict[str, FollowedFile]:
        before: FollowedFile | None = None
        for path in _present(self._paths, self._tell_once):
            name = str(path)
            if name in self._followed and self._followed[name].replaced():
                self._followed.pop(name).file.close()
            if name not in self._followed:
                file = RecordingFile(path)
                if not file.info.format_version:
                    continue  # it has no head yet
                earlier: tuple[str, ...] = ()
                if before is not None:
                    earlier = splits.earlier_of(file, before.file, before.all_of_it.earlier)
                every = splits.whole(file, earlier, 0)
                self._followed[name] = FollowedFile(file, every)
            before = self._followed[name]
        return self._followed

    def _tell_once(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            tell(line)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch.

        Raises: RecordingError, also when files have lost what is to be read, or was.
        """
        followed, start, end = self._follow(), _absolute(start), _absolute(end)
        found: list[Stretch] = []
        for path, last in end.items():
            (first, before), (stop, now) = _place(start.get(path, 0)), _place(last)
            if before and now and before != now:
                first = 0  # another recording has its name
            if stop != first:
                each = followed.get(path)
                if each is None:
                    raise RecordingError(path, None, "is not there any more: it was not read whole")
                if now and each.identity and now != each.identity:
                    what = "is another recording now: the one before was not read whole"
                    raise RecordingError(path, None, what)
                if each.end < stop:
                    each.look()
                if max(first, stop) > each.end:
                    what = f"ends at byte {each.end}, but was read up to {max(first, stop)} before"
                    raise RecordingError(path, None, f"{what}: give each recording its own name")
                stretch = each.stretch(first, stop)
                found += [] if stretch is None else [stretch]
        return [SparkPartition(tuple(group)) for group in splits.packed(found, self._partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task, as Arrow record batches."""
        return read(partition, self._view, self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": {}}

    def stop(self) -> None:
        """Close the files."""
        for each in self._followed.values():
            each.file.close()


def _absolute(offsets: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path, offset in offsets.items():
        name = absolute(path)
        found[name] = max(offset, found.get(name, 0), key=_place)
    return found


def _present(paths: Sequence[str], told: Callable[[str], None]) -> list[Path | Uri]:
    """The recordings that are there now: a folder may still be empty. `told` is given a line for
    each file in a folder, or under a glob, that is no recording: it is left out.

    Raises: RecordingError, when a file that was named is none.
    """
    found: list[Path | Uri] = []
    for text in paths:
        try:
            files = splits.files([text])
        except RecordingError:
            files = splits.candidates(text)
            if files == [located(text)] and not is_empty(files[0]):
                raise
            if not (files or glob.has_magic(text) or located(text).exists()):
                told(f"{located(text)}: is not there yet: it is waited for")
            files = in_order(_good(files, told))
        if len(files) == 1:  # of several, the heads were read
            files = [] if is_empty(files[0]) else files
            files = files if files == [located(text)] else list(_good(files, told))
        found += files
    return found


def _good(files: Sequence[Path | Uri], told: Callable[[str], None]) -> Iterator[Path | Uri]:
    for path in files:
        try:
            if is_empty(path):
                continue  # it has only just been created
            info(path)
        except RecordingError as error:
            told(f"{error}; it is left out")
        except OSError:
            pass  # it is gone
        else:
            yield path
