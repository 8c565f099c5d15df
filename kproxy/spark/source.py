"""Spark's data source `kproxy`: recordings as tables, read where they lie, and followed.

::

    spark.read.format("kproxy").load(path)
        driver: schema() ─▶ reader(schema) ─▶ partitions() ─▶ SparkPartition, …
        workers:                                              read(SparkPartition) ─▶ record batches

Options: `path`, `paths` (a JSON list, as `load([…])` gives it), `view`, `columns` (names separated
by commas), `partition_bytes`. Spark prunes no columns of Python sources: what is not needed is left
out by a schema of the user's own, or by `columns`.

Invariant: importing this module imports neither pyarrow nor the readers: Spark imports it in every
session in which kproxy is installed.
"""

from __future__ import annotations

import json
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

    from kproxy.tables.splits import Stretch
    from kproxy.tables.views import Column

VIEW = "exchanges"
_OPTIONS = frozenset(("path", "paths", "view", "columns", "partition_bytes"))


class KproxyDataSource(DataSource):
    """Recordings of kproxy, as `spark.read.format("kproxy")`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "kproxy"

    def schema(self) -> str:
        """The columns that are read when the user gives no schema."""
        from kproxy.spark.ddl import ddl
        from kproxy.tables.views import chosen

        names = self.options.get("columns")
        wanted = None if names is None else [each.strip() for each in names.split(",")]
        return ddl(chosen(self.options.get("view", VIEW), wanted))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read what is there."""
        return RecordingsReader(*self._what(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Follow what is still written."""
        from kproxy.spark.stream import StreamReader

        return StreamReader(*self._what(schema))

    def _what(self, schema: StructType) -> tuple[tuple[str, ...], str, StructType, int]:
        for unknown in sorted(set(map(str.lower, self.options)) - _OPTIONS):
            raise ValueError(
                f"there is no option {unknown}; there are {', '.join(sorted(_OPTIONS))}"
            )
        view = self.options.get("view", VIEW)
        columns_of(view, schema)
        size = parse_bytes(self.options.get("partition_bytes", "128MiB"))
        return _paths(self.options), view, schema, max(1, size)


def _paths(options: Any) -> tuple[str, ...]:
    from kproxy.recording.uri import absolute

    if "paths" in options:
        # Workers have another working directory, and offsets of streams are kept by path.
        return tuple(map(absolute, json.loads(options["paths"])))
    if "path" in options:
        return (absolute(options["path"]),)
    raise ValueError('name recordings: load("recording.mcap"), a folder, a glob, or a list of them')


def columns_of(view: str, schema: StructType) -> tuple[Column, ...]:
    """Return the columns that a schema names.

    Raises: ValueError, when it names one that is not there, or with another type.
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
    """What one task reads."""

    stretches: tuple[Stretch, ...]


@attrs.frozen
class RecordingsReader(DataSourceReader):
    """Reads recordings as they are now."""

    paths: tuple[str, ...]
    view: str
    schema: StructType
    partition_bytes: int

    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        from kproxy.recording import RecordingError
        from kproxy.tables.splits import find, packed, stretches

        try:
            found = stretches(find(self.paths), self.partition_bytes, tell)
        except RecordingError as error:
            # Spark's exception has the traceback in its message: the sentence is what matters.
            raise error.with_traceback(None) from None
        return [SparkPartition(tuple(group)) for group in packed(found, self.partition_bytes)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of one task, as Arrow record batches."""
        return read(partition, self.view, self.schema)


def tell(line: str) -> None:
    """Say something on the stderr of the session: Spark passes on that of its workers."""
    print(f"kproxy: {line}", file=sys.stderr, flush=True)


def read(
    partition: InputPartition | None, view: str, schema: StructType
) -> Iterator[pyarrow.RecordBatch]:
    """Yield the rows of one task, as Arrow record batches."""
    from kproxy.tables.reading import record_batches

    arrow = arrow_schema(schema)
    columns = columns_of(view, schema)
    # Spark makes a partition of nothing where there are none.
    for stretch in partition.stretches if isinstance(partition, SparkPartition) else ():
        yield from record_batches(stretch, view, columns, arrow)


def arrow_schema(schema: StructType) -> pyarrow.Schema:
    """Return the types by which Spark knows these columns: it compares them to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
