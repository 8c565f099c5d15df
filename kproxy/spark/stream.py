"""Follows recordings while they are written: the streaming half of the data source.

::

    latestOffset ─▶ one listing ─▶ batches, the oldest first, up to the limits ─▶ Offset
    partitions(start, end) ─▶ SparkPartition, …     the batches between two such offsets
    read(SparkPartition) ─▶ record batches

`offsets` says what an offset is and why it stays small. A place in it is the offset of a batch in a
file. Files only grow at their end, even with `kproxy recover`, so places of a checkpoint stay
valid. A file is known by its recording and part: one that is renamed goes on, a copy is left out,
and another recording under the name of an earlier one is read from its beginning.

A trigger takes the batches that have waited longest, by the time of their first frame, so that no
file keeps others waiting, and a backlog comes in the order of time. `maxFilesPerTrigger` limits the
files from which it takes them, and `maxBytesPerTrigger` their bytes in the files; one batch is
always taken. Without a batch the offset stays the one that was given, so that Spark runs nothing.

Invariants: an exchange comes with the batch in which it ends, so exactly once; one that is never
answered, when the recording says so. What lies between two offsets is said by the two alone, also
after a restart. The state before an offset is kept between batches, and read again after a restart.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from kproxy.exchange import notes as note_of
from kproxy.exchange.filter import Filter
from kproxy.recording import RecordingError
from kproxy.recording.notices import notice
from kproxy.recording.stored import StoredBatch
from kproxy.spark.followed import FollowedFile, FollowedFiles, end_of
from kproxy.spark.offsets import FileIdentity, FileOffset, Offset
from kproxy.spark.source import NO_LIMITS, UNLIMITED, SparkPartition, StreamLimits, print_line, read
from kproxy.tables import splits
from kproxy.tables.splits import BatchRange

try:
    from pyspark.sql.streaming import datasource as _since_4_2
except ImportError:
    _since_4_2 = None
_Spark: Any = _since_4_2
AvailableNow: Any = object if _Spark is None else _Spark.SupportsTriggerAvailableNow
"""The mix-in of readers for queries that end when they have read what was there at the start;
before Spark 4.2, after one batch."""
BEFORE_4_2 = (
    "before Spark 4.2, maxFilesPerTrigger and maxBytesPerTrigger hold from the second batch of a"
    " query on, and Trigger.AvailableNow ends after one batch"
)


@attrs.define(eq=False)
class _Unread:
    """A file with batches that were not read."""

    file: FollowedFile
    entry: str | None
    """Its name in the offset from which a batch starts; None if it is not there."""
    first: int
    """Its place there."""
    end: int
    """The place up to which its batches are taken."""


class StreamReader(DataSourceStreamReader, AvailableNow):
    """Follows recordings: files, and new files in folders and under globs."""

    def __init__(
        self,
        paths: tuple[str, ...],
        view: str,
        schema: StructType,
        partition_bytes: int,
        limits: StreamLimits = NO_LIMITS,
        wanted: Filter | None = None,
    ) -> None:
        self._arguments = paths, view, schema, partition_bytes, limits, wanted
        self._wanted = wanted
        self._view = view
        self._schema = schema
        self._partition_bytes = partition_bytes
        self._limits = limits
        self._files = FollowedFiles(paths, self._print_once)
        self._printed: set[str] = set()
        self._looked = False
        self._last: dict[str, Any] | None = None
        """The last offset that was given out or planned: Spark does not tell it before 4.2."""
        self._target: dict[str, int] | None = None
        """The sizes of the files that a query reads which ends with what was there at its start;
        else None."""

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset of a new query: before everything."""
        return {}

    def getDefaultReadLimit(self) -> Any:
        """Return a limit, if there is one: Spark gives it to `latestOffset`, or none where a
        trigger takes all."""
        if self._limits.bytes < UNLIMITED:
            return _Spark.ReadMaxBytes(self._limits.bytes)
        if self._limits.files < UNLIMITED:
            return _Spark.ReadMaxFiles(self._limits.files)
        return _Spark.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of the query at what is there now."""
        self._look()
        self._target = {file.name: file.stamp.bytes for file in self._files}

    def latestOffset(
        self, start: dict[str, Any] | None = None, limit: Any = None
    ) -> dict[str, Any]:
        """Return the offset behind the batches of a trigger, which follow `start`.

        Raises: RecordingError, if a file has lost what was read.
        """
        limits = self._limits
        if _Spark is None and limits != NO_LIMITS:
            self._print_once(BEFORE_4_2)
        start = self._last if start is None else start
        if start is None or (_Spark is not None and isinstance(limit, _Spark.ReadAllAvailable)):
            limits = NO_LIMITS
        self._look()
        self._last = self._behind(start or {}, limits)
        return self._last

    def _look(self) -> None:
        self._files.look()
        self._looked = True

    def _behind(self, start: dict[str, Any], limits: StreamLimits) -> dict[str, Any]:
        before = Offset.parse(start)
        waiting, whole = self._unread(before)
        try:
            taken = list(self._taken(waiting, limits))
        finally:
            for each in waiting:
                each.file.close()
        if not taken:
            return start
        for each in taken:
            if not each.first and each.file.is_whole(each.end):
                each.file.forget()
        places = {each.file.name: _place(each.file, each.end) for each in taken}
        renamed = [
            each.entry for each in taken if each.entry is not None and each.entry != each.file.name
        ]
        return before.moved(places, whole, renamed).to_json()

    def _unread(self, before: Offset) -> tuple[list[_Unread], dict[str, FileIdentity]]:
        """Return the files that may have more than was read before, and those that have not and
        are whole, by their names in the offset."""
        waiting: list[_Unread] = []
        whole: dict[str, FileIdentity] = {}
        for file in self._without_copies(before):
            entry = before.entry(file.name, file.identity)
            place = before.places[entry] if entry is not None else FileOffset(0)
            if place.whole:
                continue
            if place.end > file.stamp.bytes and entry != file.name:
                continue  # a copy that was cut off has the place of what it is a copy of
            file.check_reaches(place.end, file.stamp.bytes)
            if file.next_ns(place.end) is not None:
                waiting.append(_Unread(file, entry, place.end, place.end))
            elif entry is not None and file.is_whole(place.end):
                whole[entry] = file.identity
        return waiting, whole

    def _without_copies(self, before: Offset) -> list[FollowedFile]:
        """Return the files that are not done, one of each part of a recording, the largest."""
        found: dict[str, FollowedFile] = {}
        for file in self._files:
            if before.is_done(file.identity):
                continue
            key = file.identity.text if file.identity.part else file.name
            other = found.setdefault(key, file)
            if other is not file:
                copy, found[key] = sorted(
                    (file, other), key=lambda each: (each.stamp.bytes, each.name in before.places)
                )
                note = note_of.copied(copy.head.start_ns, str(copy.path), str(found[key].path))
                self._print_once(notice(note) or "")
        return list(found.values())

    def _taken(self, waiting: Sequence[_Unread], limits: StreamLimits) -> Iterator[_Unread]:
        """Take batches within limits, the oldest first; yield the files that have some."""
        queue = [(each.file.next_ns(each.end) or 0, at) for at, each in enumerate(waiting)]
        heapq.heapify(queue)
        files: set[int] = set()
        total = 0
        while queue:
            _, at = heapq.heappop(queue)
            each = waiting[at]
            if at not in files and len(files) >= limits.files:
                continue
            while (batch := self._next_batch(each)) is not None:
                end = end_of(batch)
                total += end - batch.offset
                if total > limits.bytes and files:
                    return
                each.end = end
                if at not in files:
                    files.add(at)
                    yield each
                following = each.file.next_ns(end)
                if limits.bytes < UNLIMITED and following is not None:
                    heapq.heappush(queue, (following, at))
                    break

    def _next_batch(self, each: _Unread) -> StoredBatch | None:
        batch = each.file.next_batch(each.end)
        if batch is not None and self._target is not None:
            return batch if end_of(batch) <= self._target.get(each.file.name, 0) else None
        return batch

    def _print_once(self, line: str) -> None:
        if line not in self._printed:
            self._printed.add(line)
            print_line(line)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch.

        Raises: RecordingError, also when files have lost what is to be read, or was.
        """
        self._last = end
        before, behind = Offset.parse(start), Offset.parse(end)
        changed = {
            name: place for name, place in behind.places.items() if before.places.get(name) != place
        }
        if changed and not self._looked:
            self._look()
        found = list(self._stretches(before, changed))
        groups = splits.packed(found, self._partition_bytes)
        return [SparkPartition(tuple(group), self._wanted) for group in groups]

    def _stretches(self, before: Offset, places: Mapping[str, FileOffset]) -> Iterator[BatchRange]:
        files = {file.name: file for file in self._files} if places else {}
        by_identity = {file.identity.text: file for file in files.values() if file.identity.part}
        for name, place in places.items():
            named = files.get(name)
            same = named is not None and place.is_of(named.identity)
            file = named if same else by_identity.get(place.identity)
            identity = FileIdentity.parse(place.identity) if file is None else file.identity
            entry = before.entry(name, identity)
            first = 0 if entry is None else before.places[entry].end
            if first == place.end or before.is_done(identity):
                continue
            if file is None:
                what = "is not there any more: it was not read whole"
                if named is not None:
                    what = "is another recording now: the one before was not read whole"
                raise RecordingError(name, None, what)
            file.check_reaches(first, place.end)
            yield file.stretch(first, place.end, self._files.earlier(file))

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task, as Arrow record batches."""
        return read(partition, self._view, self._schema)

    def __reduce__(self) -> Any:
        return StreamReader, self._arguments

    def stop(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()


def _place(file: FollowedFile, end: int) -> FileOffset:
    identity = file.identity
    return FileOffset(end, identity.text, bool(identity.part) and file.is_whole(end))
