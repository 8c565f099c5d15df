"""Spark's data source `kproxy`: recordings as tables, for batch and streaming queries.

::

    spark.read.format("kproxy").load(path)
        driver: schema() ─▶ reader(schema) ─▶ partitions() ─▶ SparkPartition, …
        workers:                                              read(SparkPartition) ─▶ record batches

Options: `path`, `paths` (a JSON list, as `load([…])` gives it), `view`, `columns` (names separated
by commas), `filter` (in kproxy's language), `partition_bytes`; for streams `maxFilesPerTrigger` and
`maxBytesPerTrigger`, as Spark's own sources of files have them. Spark does not prune columns of
Python sources: users leave columns out with a schema of their own, or with `columns`.

No reader has `pushFilters`. Without `spark.sql.python.filterPushdown.enabled` Spark refuses to read
from one that has it. With it, Spark 4.1 to 4.3 apply the filters of one query to later queries of
the same frame: of `a = df.where("x = 1")` and `b = df.where("x = 2")`, `a.union(b)` has the rows of
b alone, and `df.count()` counts one row.

Invariant: importing this module imports neither pyarrow nor the readers: Spark imports it in every
session in which kproxy is installed.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from kproxy.units import parse_bytes

if TYPE_CHECKING:
    import pyarrow

    from kproxy.exchange.filter import Filter
    from kproxy.tables.splits import BatchRange
    from kproxy.tables.views import ViewColumn

VIEW = "exchanges"
OPTIONS = (
    "columns", "filter", "maxBytesPerTrigger", "maxFilesPerTrigger", "partition_bytes", "path",
    "paths", "view",
)  # fmt: skip
"""The names of the options; like all of Spark's, in any case."""


class KproxyDataSource(DataSource):
    """Recordings of kproxy, as `spark.read.format("kproxy")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "kproxy"

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # What is wrong in the options is raised here: Spark says it when the user calls `load`.
        known = set(map(str.lower, OPTIONS))
        for unknown in sorted(set(map(str.lower, self.options)) - known):
            raise ValueError(f"there is no option {unknown}; there are {', '.join(OPTIONS)}")
        self._wanted = _filter(self.options.get("filter"), self.options.get("view", VIEW))
        self._limits = StreamLimits.of(self.options)
        self._size = max(1, parse_bytes(self.options.get("partition_bytes", "128MiB")))

    def schema(self) -> str:
        """Return the columns that are read if the user gives no schema."""
        from kproxy.spark.ddl import ddl
        from kproxy.tables.views import chosen

        names = self.options.get("columns")
        wanted = None if names is None else [each.strip() for each in names.split(",")]
        return ddl(chosen(self.options.get("view", VIEW), wanted))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for a batch query."""
        return RecordingsReader(*self._reader_arguments(schema), self._wanted)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for a streaming query."""
        from kproxy.spark.stream import StreamReader

        if self._wanted is not None and self._wanted.relative:
            raise ValueError(
                f"filter {self._wanted}: a stream has no beginning for times like +30s:"
                " write a time, such as time:2025-01-31T12:00:00Z.."
            )
        return StreamReader(*self._reader_arguments(schema), self._limits, self._wanted)

    def _reader_arguments(self, schema: StructType) -> tuple[tuple[str, ...], str, StructType, int]:
        view = self.options.get("view", VIEW)
        columns_of(view, schema)
        return _paths(self.options), view, schema, self._size


def _filter(text: str | None, view: str) -> Filter | None:
    """Return the filter of an option.

    Raises: ValueError.
    """
    if text is None:
        return None
    from kproxy.exchange.filter import FilterError, parse
    from kproxy.tables.reading import check_filtered

    check_filtered(view)
    try:
        return parse(text)
    except FilterError as error:
        raise ValueError(f"filter {text!r}: {error}") from None


UNLIMITED = 1 << 62


@attrs.frozen
class StreamLimits:
    """What a batch of a stream may have at most, though it always has something."""

    files: int = UNLIMITED
    """Number of files."""
    bytes: int = UNLIMITED
    """Bytes in the files."""

    @classmethod
    def of(cls, options: Any) -> StreamLimits:
        """Return the limits that options set.

        Raises: ValueError, if they are none.
        """

        def limit(name: str) -> int:
            text = options.get(name)
            return UNLIMITED if text is None else _positive(name, text)

        return cls(limit("maxFilesPerTrigger"), limit("maxBytesPerTrigger"))


NO_LIMITS = StreamLimits()


def _positive(name: str, text: str) -> int:
    """Return a number of files, or of bytes, also as Spark writes it: `512m`."""
    if re.fullmatch(r"\s*0*[1-9]\d*\s*", text):
        return int(text)
    if name == "maxFilesPerTrigger":
        raise ValueError(f"{name} is a number from 1 on, not {text!r}")
    size = parse_bytes(re.sub(r"(?i)(\d\s*[kmgt])\s*$", r"\1ib", text))
    if size < 1:
        raise ValueError(f"{name} is a size from 1 byte on, not {text!r}")
    return size


def _paths(options: Any) -> tuple[str, ...]:
    from kproxy.recording.uri import absolute

    if "paths" in options:
        # Workers have another working directory, and offsets of streams are kept by path.
        return tuple(map(absolute, json.loads(options["paths"])))
    if "path" in options:
        return (absolute(options["path"]),)
    raise ValueError('name recordings: load("recording.mcap"), a folder, a glob, or a list of them')


def columns_of(view: str, schema: StructType) -> tuple[ViewColumn, ...]:
    """Return the columns that a schema names.

    Raises: ValueError, if a column does not exist or has another type.
    """
    from kproxy.spark.ddl import type_of
    from kproxy.tables.views import chosen

    columns = chosen(view, schema.names)
    for column, field in zip(columns, schema.fields, strict=True):
        given, right = field.dataType.simpleString(), type_of(column)
        if given != right:
            what = f"{right.upper()}, not {given.upper()}"
            raise ValueError(f"column {column.name} of {view} is {what}")
    return columns


@attrs.frozen
class SparkPartition(InputPartition):
    """What one task reads: stretches of recordings, and of these what matches a filter."""

    stretches: tuple[BatchRange, ...]
    wanted: Filter | None = None


@attrs.frozen
class RecordingsReader(DataSourceReader):
    """Reads recordings for a batch query."""

    paths: tuple[str, ...]
    view: str
    schema: StructType
    partition_bytes: int
    wanted: Filter | None = None

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        from kproxy.recording import RecordingError
        from kproxy.tables.splits import find, packed, resolved, stretches

        try:
            files = find(self.paths)
            wanted = resolved(self.wanted, files)
            found = stretches(files, self.partition_bytes, print_line)
        except RecordingError as error:
            # Spark puts the traceback into its message: only the sentence should be there.
            raise error.with_traceback(None) from None
        groups = packed(found, self.partition_bytes)
        return [SparkPartition(tuple(group), wanted) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task, as Arrow record batches."""
        return read(partition, self.view, self.schema)


def print_line(line: str) -> None:
    """Print a line on stderr: Spark passes the stderr of its workers on to that of the session."""
    print(f"kproxy: {line}", file=sys.stderr, flush=True)


def read(
    partition: InputPartition | None, view: str, schema: StructType
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task, as Arrow record batches."""
    from kproxy.recording.notices import notice
    from kproxy.tables.reading import record_batches

    arrow = arrow_schema(schema)
    columns = columns_of(view, schema)
    # If there are no partitions, Spark makes an empty one.
    if isinstance(partition, SparkPartition):
        for stretch in partition.stretches:
            yield from record_batches(
                stretch, view, columns, arrow, partition.wanted,
                on_torn=lambda note: print_line(notice(note) or ""),
            )  # fmt: skip


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """Return the exact Arrow types that Spark expects for these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone="UTC")
    return to_arrow_schema(schema)  # before Spark 4.2 it is always UTC
