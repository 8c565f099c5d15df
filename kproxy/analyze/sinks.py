"""The files into which one task writes the rows of one table.

    rows ─▶ TableSink ─┬─▶ TABLE/part-00003.parquet
                  └─▶ TABLE/date=2026-11-23/api=Produce/part-00003.parquet …

Invariants: a file without rows is not made; files are there when all of them are whole. The columns
by which files are divided stand in the names of their folders, as Hive, Spark, DuckDB and polars
read them, and not in the files.
"""

from __future__ import annotations

import functools
import urllib.parse
from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy.analyze.place import NewFile, Place
from kproxy.spark.ddl import for_spark
from kproxy.tables.batches import Rows, batch_of, cleaned
from kproxy.tables.parquet import ParquetFile

NULL_NAME = "__HIVE_DEFAULT_PARTITION__"
_NAME_BYTES_MAX = 255
"""What file systems allow."""
_OPEN_MAX = 64
"""Files of one table that a task has open at a time: each holds a row group in memory."""
DATE = "date"


@attrs.define(eq=False)
class _TableFile:
    new: NewFile
    parquet: ParquetFile


@attrs.define(eq=False)
class TableSink:
    """Writes the rows of a table.

    Resource handling: holds files open until `close` or `abandon`.
    """

    place: Place
    """The folder of the table."""
    schema: pa.Schema
    """Of the rows."""
    task: int
    """The number of the task, in the names of the files."""
    divided_by: Sequence[str] = ()
    """The columns by which files are divided: `date` is the day of the column `time`."""
    count: int = attrs.field(default=0, init=False)
    """Number of rows so far."""
    _kept: list[int] = attrs.field(init=False)
    """The columns of the files: all but those that the names of their folders have."""
    _file_schema: pa.Schema = attrs.field(init=False)
    _rows: Rows = attrs.field(init=False)
    _files: dict[tuple[str, ...], _TableFile] = attrs.field(factory=dict, init=False)
    """Those that are open, by the names of their folders; the last one that was used comes last."""
    _written: list[_TableFile] = attrs.field(factory=list, init=False)
    """Those that are full, and not committed."""

    def __attrs_post_init__(self) -> None:
        names = enumerate(self.schema.names)
        self._kept = [at for at, name in names if name not in self.divided_by]
        self._file_schema = for_spark(pa.schema([self.schema.field(at) for at in self._kept]))
        self._rows = Rows(self.schema)

    def add(self, row: Sequence[Any]) -> None:
        """Add a row.

        Raises: OSError.
        """
        self._rows.add(row)
        if self._rows.full:
            self.flush()

    def flush(self) -> None:
        """Write the rows so far into files.

        Raises: OSError.
        """
        divided: dict[tuple[str, ...], list[Sequence[Any]]] = {}
        for row in self._rows.take():
            divided.setdefault(self._folders(row), []).append([row[at] for at in self._kept])
        for folders, rows in divided.items():
            self._file(folders).parquet.write(batch_of(rows, self._file_schema))
            self.count += len(rows)

    def _folders(self, row: Sequence[Any]) -> tuple[str, ...]:
        """Return the names of the folders of a row: they have the values of its other columns."""
        values = dict(zip(self.schema.names, row, strict=True)) if self.divided_by else {}
        if DATE in self.divided_by:
            values[DATE] = values["time"].date()
        return tuple(_folder_name(name, cleaned(values[name])) for name in self.divided_by)

    def _file(self, folders: tuple[str, ...]) -> _TableFile:
        found = self._files.pop(folders, None)
        if found is None:
            if len(self._files) >= _OPEN_MAX:
                self._end(self._files.pop(next(iter(self._files))))
            found = self._made(folders)
        self._files[folders] = found
        return found

    def _made(self, folders: tuple[str, ...]) -> _TableFile:
        place = self.place
        for each in folders:
            place /= each
        # A number of its own, for the one before in this folder may have been closed.
        more = f"-{len(self._written)}" if self._written else ""
        new = NewFile.of(place / f"part-{self.task:05}{more}.parquet")
        return _TableFile(new, ParquetFile(new.file, self._file_schema))

    def _end(self, file: _TableFile) -> None:
        self._written.append(file)
        file.parquet.close()
        file.new.file.close()

    def close(self) -> None:
        """Write the remaining rows, and give the files their names.

        Raises: OSError.
        """
        self.flush()
        for file in self._files.values():
            self._end(file)
        self._files.clear()
        for file in self._written:
            file.new.commit()

    def abandon(self) -> None:
        """Remove the files after an error."""
        for file in (*self._files.values(), *self._written):
            file.parquet.abandon()
            file.new.abandon()


@functools.lru_cache
def _folder_name(column: str, value: Any) -> str:
    """Return the name of the folder for a value. A name that no file system could have stands as
    that of null: brokers do not take topics with such names."""
    if value in (None, ""):
        return f"{column}={NULL_NAME}"
    text = urllib.parse.quote(str(value), safe="")
    if text == NULL_NAME:  # a topic may be called so
        text = text.replace("_", "%5F", 1)
    name = f"{column}={text}"
    return name if len(name) <= _NAME_BYTES_MAX else f"{column}={NULL_NAME}"
