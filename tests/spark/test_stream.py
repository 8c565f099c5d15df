"""Streams of recordings without Spark: each row comes once, however the files grow."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.recording.rotation import Recording
from kproxy.tables import reading, splits
from kproxy.tables.views import VIEWS, chosen, schema_of
from tests.recording import making

pytest.importorskip("pyspark")
from pyspark.sql.pandas.types import from_arrow_schema

from kproxy.spark.stream import StreamReader

_HOUR_NS = 3600 * 1_000_000_000
Rows = list[dict[str, Any]]


def batch_rows(folder: Path, view: str, names: Iterable[str] | None, size: int = 1) -> Rows:
    """The rows of recordings, read at once."""
    columns = chosen(view, names)
    return [
        row
        for stretch in splits.stretches(splits.find([str(folder)]), size)
        for batch in reading.record_batches(stretch, view, columns)
        for row in batch.to_pylist()
    ]


@attrs.define(eq=False)
class Query:
    """A streaming query over a folder."""

    folder: Path
    view: str
    names: Sequence[str] | None
    reader: StreamReader = attrs.field(init=False)
    offsets: list[dict[str, int]] = attrs.field(init=False)
    rows: list[Rows] = attrs.field(factory=list[Rows])
    """By micro-batch."""

    def __attrs_post_init__(self) -> None:
        self.reader = self.started()
        self.offsets = [self.reader.initialOffset()]

    def started(self) -> StreamReader:
        """A reader that has seen nothing yet."""
        schema: Any = from_arrow_schema(schema_of(chosen(self.view, self.names)))
        return StreamReader((str(self.folder),), self.view, schema, 1)

    def take(self) -> None:
        """Take a micro-batch of what is there."""
        self.offsets.append(self.reader.latestOffset(self.offsets[-1]))
        self.rows.append(self.read(self.reader, len(self.rows)))

    def read(self, reader: StreamReader, number: int) -> Rows:
        """Read a micro-batch."""
        planned = reader.partitions(self.offsets[number], self.offsets[number + 1])
        return [
            row
            for partition in planned
            for batch in reader.read(partition)
            for row in batch.to_pylist()
        ]

    def check_retries(self) -> None:
        """Check that after a restart each micro-batch has the rows that it had."""
        for number, rows in enumerate(self.rows):
            assert self.read(self.started(), number) == rows


def grow(source: Path, folder: Path, cuts: int, looked: Callable[[], None]) -> None:
    """Let the files of a recording grow in another folder."""
    for path in sorted(source.glob("*.mcap"), key=lambda path: (len(path.name), path)):
        whole = path.read_bytes()
        for cut in range(1, cuts + 1):
            (folder / path.name).write_bytes(whole[: len(whole) * cut // cuts])
            looked()


@pytest.mark.parametrize("view", VIEWS)
def test_a_stream_of_a_view_has_each_row_once(view: str, broken: Path, tmp_path: Path) -> None:
    names = [column.name for column in VIEWS[view] if column.name != "file"]
    query = Query(tmp_path, view, names)
    grow(broken, tmp_path, 5, query.take)
    found = [row for rows in query.rows for row in rows]
    expected = batch_rows(broken, view, names)
    assert sum(map(bool, query.rows)) > 5 and len(found) == len(expected)
    assert sorted(map(_text, found)) == sorted(map(_text, expected))
    query.check_retries()


def _text(row: dict[str, Any]) -> str:
    return json.dumps(row, default=repr)


def test_a_file_may_be_deleted_when_it_has_been_read(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "some.mcap", rotate_ns=_HOUR_NS, **making.SETTINGS)
    recording.write([making.opened()])
    for number in range(1, 20):
        recording.write([making.request(number, os.urandom(100_000))])
    later_ns = making.START_NS + 2 * _HOUR_NS
    recording.write([making.request(20, b"later" * 20, received_ns=later_ns)])
    closed = {"event": "closed", "connection": 3}
    recording.write([Note(CONNECTIONS, later_ns + 1_000_000_000, closed)])
    recording.close()
    first, second = map(str, recording.paths)
    query = Query(tmp_path, "frames", ["number"])
    ends = query.reader.latestOffset({})
    query.offsets = [{first: ends[first]}]
    Path(first).unlink()
    query.take()
    pending = [{"number": number} for number in range(1, 21)]  # all of them, in the later file
    assert query.rows == [pending] and second in query.offsets[-1]
