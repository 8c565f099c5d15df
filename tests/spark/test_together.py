"""One reading of a stretch gives what readings of each view give: without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kproxy.analyze import export
from kproxy.analyze.lake import Tables
from kproxy.analyze.place import Place
from kproxy.tables import reading, splits
from kproxy.tables.splits import BatchRange
from kproxy.tables.views import ViewColumn, schema_of
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
PATHS = [needs.REPOSITORY / "recordings" / "demo.mcap", FORMATS]
VIEWS = {
    "exchanges": export.EXCHANGE_COLUMNS,
    "records": export.RECORD_COLUMNS,
    "events": export.EVENT_COLUMNS,
}


def read(stretches: Sequence[BatchRange], view: str, columns: Sequence[ViewColumn]) -> list[Any]:
    """The rows of a view, read for themselves."""
    batches = [
        each for stretch in stretches for each in reading.record_batches(stretch, view, columns)
    ]
    return pa.Table.from_batches(batches, schema_of(columns)).to_pylist()


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_all_at_once_is_each_by_itself(path: Path, tmp_path: Path) -> None:
    stretches = splits.stretches(splits.find([str(path)]))
    export.write(0, stretches, Tables(Place.named(str(tmp_path))), True)
    for view, columns in VIEWS.items():
        written = pq.read_table(tmp_path / view / "part-00000.parquet").to_pylist()
        assert written == read(stretches, view, columns) and written


def test_a_group_has_the_errors_of_the_events_of_its_members(tmp_path: Path) -> None:
    stretches = splits.stretches(splits.find([str(FORMATS)]))
    counted = export.write(0, stretches, Tables(Place.named(str(tmp_path))), False)
    events = pq.read_table(tmp_path / "group_events" / "part-00000.parquet").to_pylist()
    failed = Counter((row["group"], row["number"]) for row in events if row["error"])
    found = Counter[str]()
    for row in export.group_rows(counted.part):
        found[row["group"]] += row["errors"]
    assert +found == Counter(group for group, _ in failed.elements()) != Counter()
