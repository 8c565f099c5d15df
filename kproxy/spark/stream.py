"""Follows recordings while they are written: the streaming half of the data source.

::

    latestOffset ─▶ {file: offset}      how far each file goes now
    partitions(start, end) ─▶ Partition, …     the batches between two such offsets
    read(Partition) ─▶ record batches

An offset is that of a batch in a file. Files grow at their end only, `kproxy recover` included, so
offsets from a checkpoint hold for ever, and a file that appears is read from its beginning. Paths
are absolute: those of a checkpoint that has them otherwise are from the working directory.

Invariants: a batch is taken when both of its tables are there, so each row comes exactly once.
Requests that are still pending come when they are answered or given up, not before. What a file's
notes told before an offset is kept between batches, and read again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import Uri, absolute, located, spelled
from kproxy.spark import plan
from kproxy.spark.plan import Stretch
from kproxy.spark.source import Partition, read

try:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _available_now
except ImportError:  # before Spark 4.2, which then takes one batch
    _available_now = object
AvailableNow: Any = _available_now
"""By this, Spark asks a reader what a query has to take that ends when it has what was there."""


@attrs.define(eq=False)
class Followed:
    """One file that is followed, on the driver."""

    file: RecordingFile
    earlier: tuple[str, ...]
    recording: str
    batches: list[StoredBatch] = attrs.field(factory=list)
    """Those that were found and not yet given out."""
    end: int = 0
    """Up to where they go."""
    log: ConnectionLog = attrs.field(factory=ConnectionLog)
    """What was known at the first of them."""
    _passed: int = 0
    _whole: bool = False

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
        if self._whole or isinstance(self.file.path, Uri):  # there, what is open does not grow
            self.file.close()
        return self.end

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
        path = spelled(self.file.path)
        return Stretch(path, self.earlier, self.recording, begin, begin, end, notes)

    def _forget(self, start: int) -> None:
        while self.batches and self.batches[0].offset < start:
            self.log.remember(self.batches.pop(0).notes)


class StreamReader(DataSourceStreamReader, AvailableNow):
    """Follows recordings: files, and what appears in folders and under globs."""

    def __init__(
        self, paths: tuple[str, ...], view: str, schema: StructType, partition_bytes: int
    ) -> None:
        self._paths = paths
        self._view = view
        self._schema = schema
        self._partition_bytes = partition_bytes
        self._followed: dict[str, Followed] = {}
        self._target: dict[str, int] | None = None
        """Up to where a query goes that ends when it has what was there at its start."""

    def initialOffset(self) -> dict[str, int]:
        """Where a new query begins: before everything."""
        return {}

    def latestOffset(
        self, start: dict[str, int] | None = None, limit: Any = None
    ) -> dict[str, int]:
        """Return how far each file goes."""
        return _absolute(start or {}) | (self._ends() if self._target is None else self._target)

    def prepareForTriggerAvailableNow(self) -> None:
        """Let the query end when it has what is there now, after a batch that was begun before."""
        self._target = self._ends()

    def _ends(self) -> dict[str, int]:
        ends = {path: each.look() for path, each in self._follow().items()}
        return {path: end for path, end in ends.items() if end}

    def _follow(self) -> dict[str, Followed]:
        before: Followed | None = None
        for path in _present(self._paths):
            name = str(path)
            if name not in self._followed:
                file = RecordingFile(path)
                if not file.info.format_version:
                    continue  # it has no head yet
                same = before is not None and file.info.continues(before.file.info)
                earlier = (*before.earlier, spelled(before.file.path)) if before and same else ()
                earlier = earlier[-plan.EARLIER_MAX :]
                recording = file.info.metadata.get("recording") or path.stem
                self._followed[name] = Followed(file, earlier, recording)
            before = self._followed[name]
        return self._followed

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch."""
        followed, start, end = self._follow(), _absolute(start), _absolute(end)
        found: list[Stretch] = []
        for path, stop in end.items():
            if stop > start.get(path, 0):
                each = followed.get(path)
                if each is None:
                    raise RecordingError(path, None, "is not there any more: it was not read whole")
                if each.end < stop:
                    each.look()
                stretch = each.stretch(start.get(path, 0), stop)
                found += [] if stretch is None else [stretch]
        return [Partition(tuple(group)) for group in plan.packed(found, self._partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task, as Arrow record batches."""
        return read(partition, self._view, self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": {}}

    def stop(self) -> None:
        """Close the files."""
        for each in self._followed.values():
            each.file.close()


def _absolute(offsets: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for path, offset in offsets.items():
        name = absolute(path)
        found[name] = max(offset, found.get(name, 0))
    return found


def _present(paths: Sequence[str]) -> list[Path | Uri]:
    """The recordings that are there now: a folder may still be empty."""
    found: list[Path | Uri] = []
    for path in paths:
        try:
            found += plan.files([path])
        except RecordingError:
            there = located(path)
            if there.is_file() and there.stat().st_size:
                raise
    return found
