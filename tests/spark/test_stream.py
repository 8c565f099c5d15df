"""Streams of recordings without Spark: each row of each view comes once, however the files grow."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.recording.rotation import Recording
from kproxy.tables import reading, splits
from kproxy.tables.views import VIEWS, chosen
from tests.recording import making

pytest.importorskip("pyspark")

from tests.spark.test_admission import Query, of_row

_HOUR_NS = 3600 * 1_000_000_000


@pytest.mark.parametrize("view", VIEWS)
def test_a_stream_of_a_view_has_each_row_once(view: str, broken: Path, tmp_path: Path) -> None:
    names = [column.name for column in VIEWS[view] if column.name != "file"]
    query = Query(tmp_path, view=view, names=names)
    for path in sorted(broken.glob("*.mcap"), key=lambda path: (len(path.name), path)):
        whole = path.read_bytes()
        for cut in range(1, 6):
            (tmp_path / path.name).write_bytes(whole[: len(whole) * cut // 5])
            query.batch(killed=cut == 3)
    expected = [
        of_row(row)
        for stretch in splits.stretches(splits.find([str(broken)]), 1)
        for batch in reading.record_batches(stretch, view, chosen(view, names))
        for row in batch.to_pylist()
    ]
    assert query.rows == Counter(expected) and len(query.batches) >= 5


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
    query = Query(tmp_path, view="frames", names=["number"])
    query.offset = {first: query.plan()[first]}
    Path(first).unlink()
    assert query.batch() and second in query.offset
    assert sorted(query.rows) == [(number,) for number in range(1, 21)], "all are pending"
