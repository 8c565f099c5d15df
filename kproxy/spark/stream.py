"""Follows recordings while they are written: the streaming half of the data source.

::

    latestOffset ─▶ {file: [offset, identity]}     how far each file goes now
    partitions(start, end) ─▶ SparkPartition, …     the batches between two such offsets
    read(SparkPartition) ─▶ record batches

An offset is the position of a batch in a file. Files only grow at their end, even with `kproxy
recover`, so offsets of a checkpoint stay valid. A new file is read from its beginning; so is
another recording under the name of an earlier one: its identity differs. Paths are absolute;
relative paths in a checkpoint are relative to the working directory.

Invariants: a batch is taken when both of its tables are written, so each row comes exactly once.
Pending requests and their frames come when the requests are answered or given up. The state from
notes before an offset is kept between batches, and read again after a restart.
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
from kproxy.spark.source import SparkPartition, print_line, read
from kproxy.tables import splits
from kproxy.tables.splits import Stretch

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _available_now
except ImportError:  # before Spark 4.2, which then takes one batch
    _available_now = object
AvailableNow: Any = _available_now
"""The mix-in of readers for queries that end when they have read what was there at the start."""


@attrs.define(eq=False)
class FollowedFile:
    """One file that is followed, on the driver."""

    file: RecordingFile
    whole: Stretch
    batches: list[StoredBatch] = attrs.field(factory=list)
    """Batches that were found and are not forgotten yet."""
    end: int = 0
    """The offset behind the last batch."""
    log: ConnectionLog = attrs.field(factory=ConnectionLog)
    """The open connections before the first batch."""
    _batches_read: int = 0
    _complete: bool = False
    _stamp: tuple[int, ...] = attrs.field(
        default=attrs.Factory(lambda self: _stamp(self.file.path), True)
    )

    @property
    def identity(self) -> str:
        """The id of the recording and the part of it that the file is."""
        return _identity(self.file)

    def replaced(self) -> bool:
        """Return whether another file has the name now."""
        stamp = _stamp(self.file.path)
        if not stamp or stamp == self._stamp:
            return False
        same = stamp[:2] == self._stamp[:2]
        self._stamp = stamp
        with RecordingFile(self.file.path) as now:
            return not same or _identity(now) != self.identity or stamp[-1] < self.end

    def find_batches(self) -> int:
        """Find new batches; return the offset behind the last whole one."""
        if self._complete:
            return self.end
        self._complete = self.file.complete
        for batch in self.file.batches(self._batches_read):
            if batch.exchanges is None:
                self._reopen()  # the file ends before the table of exchanges, and may be completed
                break
            self._batches_read += 1
            self.batches.append(batch)
            self.end = batch.exchanges.chunk.end
        self._close_if_done()
        return self.end

    def _close_if_done(self) -> None:
        if self._complete or isinstance(self.file.path, Uri):  # an open remote file does not grow
            self.file.close()

    def _reopen(self) -> None:
        self.file.close()
        self.file, self._batches_read, self._complete = RecordingFile(self.file.path), 0, False
        self.file.skip_to(self.end)

    def stretch(self, start: int, end: int) -> Stretch | None:
        """Return the stretch between two offsets, and forget what lies before it."""
        self._forget(start)
        if not any(batch.offset < end for batch in self.batches):
            return None
        notes: tuple[Note, ...] = tuple(self.log.opening_notes(self.file.info.start_ns))
        begin = self.batches[0].offset
        return attrs.evolve(
            self.whole, begin=begin, start=begin, stop=end, bytes=end - begin, notes=notes
        )

    def _forget(self, start: int) -> None:
        while self.batches and self.batches[0].offset < start:
            self.log.remember(self.batches.pop(0).notes)


def _stamp(path: Path | Uri) -> tuple[int, ...]:
    """Return numbers that change when a file is written or replaced; the first two change only
    when it is replaced."""
    if isinstance(path, Uri):
        return ()  # a request to the remote store costs time
    try:
        about = path.stat()
    except OSError:
        return ()  # it is gone: reading it reports the error
    return about.st_dev, about.st_ino, about.st_mtime_ns, about.st_size


def _identity(file: RecordingFile) -> str:
    """Return the id of the recording and the part of a file; "" if it has no id."""
    recording = file.info.metadata.get("recording")
    if recording is None and not file.info.native:
        return ""
    return f"{recording} {file.info.part} {file.info.start_ns}"


def _offset_parts(offset: Any) -> tuple[int, str]:
    """Return an offset of a checkpoint: position and identity; checkpoints of older versions have
    no identity, ""."""
    return (offset, "") if isinstance(offset, int) else (offset[0], offset[1])


class StreamReader(DataSourceStreamReader, AvailableNow):
    """Follows recordings: files, and new files in folders and under globs."""

    def __init__(
        self, paths: tuple[str, ...], view: str, schema: StructType, partition_bytes: int
    ) -> None:
        self._paths = paths
        self._view = view
        self._schema = schema
        self._partition_bytes = partition_bytes
        self._followed: dict[str, FollowedFile] = {}
        self._printed: set[str] = set()
        self._target: dict[str, int] | None = None
        """The last offsets of a query that ends with what was there at its start; else None."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new query: before everything."""
        return {}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the offset behind the last whole batch of each file."""
        return _absolute(start or {}) | (self._ends() if self._target is None else self._target)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at what is there now."""
        self._target = self._ends()

    def _ends(self) -> dict[str, Any]:
        ends = {path: (each.find_batches(), each.identity) for path, each in self._follow().items()}
        return {path: list(end) for path, end in ends.items() if end[0]}

    def _follow(self) -> dict[str, FollowedFile]:
        before: FollowedFile | None = None
        for path in _present(self._paths, self._print_once):
            name = str(path)
            if name in self._followed and self._followed[name].replaced():
                self._followed.pop(name).file.close()
            if name not in self._followed:
                file = RecordingFile(path)
                if not file.info.format_version:
                    continue  # it has no head yet
                earlier: tuple[str, ...] = ()
                if before is not None:
                    earlier = splits.earlier_of(file, before.file, before.whole.earlier)
                every = splits.whole(file, earlier, 0)
                self._followed[name] = FollowedFile(file, every)
            before = self._followed[name]
        return self._followed

    def _print_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print_line(line)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch.

        Raises: RecordingError, also when files have lost what is to be read, or was.
        """
        followed, start, end = self._follow(), _absolute(start), _absolute(end)
        found: list[Stretch] = []
        for path, last in end.items():
            (first, before), (stop, now) = _offset_parts(start.get(path, 0)), _offset_parts(last)
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
                    each.find_batches()
                if max(first, stop) > each.end:
                    what = f"ends at byte {each.end}, but was read up to {max(first, stop)} before"
                    raise RecordingError(path, None, f"{what}: give each recording its own name")
                stretch = each.stretch(first, stop)
                found += [] if stretch is None else [stretch]
        return [
            SparkPartition(tuple(group)) for group in splits.packed(found, self._partition_bytes)
        ]

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
        found[name] = max(offset, found.get(name, 0), key=_offset_parts)
    return found


def _present(paths: Sequence[str], on_skip: Callable[[str], None]) -> list[Path | Uri]:
    """Return the recordings that are there now; a folder may still be empty. Files in a folder, or
    under a glob, that are no recordings are left out: `on_skip` is called with a line about each.

    Raises: RecordingError, if a file that the user named is no recording.
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
                on_skip(f"{located(text)}: is not there yet: it is waited for")
            files = in_order(_recordings(files, on_skip))
        if len(files) == 1:  # of several, the heads were read
            files = [] if is_empty(files[0]) else files
            files = files if files == [located(text)] else list(_recordings(files, on_skip))
        found += files
    return found


def _recordings(
    files: Sequence[Path | Uri], on_skip: Callable[[str], None]
) -> Iterator[Path | Uri]:
    for path in files:
        try:
            if is_empty(path):
                continue  # it has only just been created
            info(path)
        except RecordingError as error:
            on_skip(f"{error}; it is left out")
        except OSError:
            pass  # it is gone
        else:
            yield path
