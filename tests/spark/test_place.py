"""Where an analysis is written: files that are there whole or not at all, with the right modes."""

from __future__ import annotations

import datetime
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

import polars
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from kproxy.analyze.place import Place
from kproxy.analyze.sinks import NULL_NAME, TableSink
from kproxy.tables.arrow_types import TEXT, TIME

SCHEMA = pa.schema([("time", TIME), ("topic", TEXT), ("number", pa.int64())])
DAY = datetime.datetime(2026, 11, 23, 23, 59, tzinfo=datetime.UTC)


@pytest.fixture(params=["local", "remote"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder that is not there yet, on a disk and as remote storage."""
    folder = tmp_path / "new" / "analysis"
    return Place.named(str(folder) if request.param == "local" else f"fsspec+file://{folder}")


def test_a_file_is_there_when_it_is_whole(place: Place) -> None:
    file = place / "a" / "part.parquet"
    with pytest.raises(ZeroDivisionError), file.create() as new:
        new.file.write(b"half")
        raise ZeroDivisionError
    assert place.children() in ([], ["a"]) and (place / "a").children() == []
    file.write(b"first")
    file.write(b"second")
    assert file.read() == b"second" and (place / "a").children() == ["part.parquet"]
    place.remove()
    assert not place.exists() and place.children() == []


@pytest.mark.parametrize(("mode", "of_folders"), [(0o600, 0o700), (0o640, 0o750), (0o666, 0o777)])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, mode: int, of_folders: int) -> None:
    before = os.umask(0o027)
    try:
        (Place(tmp_path / "a" / "b", mode) / "part").write(b"x")
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("a", "a/b", "a/b/part")]
    assert modes == [of_folders, of_folders, mode]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("s3://bucket/a", "s3a://bucket/a"),
        ("s3a://bucket/a", "s3a://bucket/a"),
        ("s3://key:secret@bucket/a?region=x&endpoint_override=h", "s3a://bucket/a"),
        ("hdfs://node:8020/a", "hdfs://node:8020/a"),
        ("abfss://files@account.dfs.core.windows.net/a",) * 2,
        ("fsspec+file:///data/a", "file:///data/a"),
        ("/data/a b%20", "file:///data/a b%20"),
    ],
)
def test_spark_has_a_name_for_it(text: str, name: str) -> None:
    assert Place.named(text).spark == name
    assert (Place.named(text) / "x").spark == f"{name}/x"


@given(
    st.lists(
        st.tuples(
            st.datetimes(DAY.replace(tzinfo=None), DAY.replace(tzinfo=None, day=26)),
            st.none() | st.sampled_from(["a", "b.c", "ä/..%=", "9"]) | st.text("xy:", max_size=3),
        ),
        max_size=40,
    ),
    st.integers(1, 12),
)
def test_divided_files_hold_what_was_written(
    tmp_path_factory: pytest.TempPathFactory,
    given_rows: list[tuple[datetime.datetime, str | None]],
    batch_rows: int,
) -> None:
    folder = tmp_path_factory.mktemp("divided")
    sink = TableSink(Place(folder / "records"), SCHEMA, 3, ("date", "topic"))
    rows = [
        (time.replace(tzinfo=datetime.UTC), topic or None, number)
        for number, (time, topic) in enumerate(given_rows)
    ]
    for first in range(0, len(rows), batch_rows):
        for row in rows[first : first + batch_rows]:
            sink.add(row)
        sink.flush()
    sink.close()
    assert sink.count == len(rows)
    if not rows:
        assert list(folder.iterdir()) == []
        return
    found = polars.read_parquet(
        folder / "records", hive_schema={"date": polars.Date, "topic": polars.String}
    )
    assert sorted(found.select("number", "date", "topic").rows()) == [
        (number, time.date(), topic) for time, topic, number in rows
    ]


def test_a_name_that_no_file_could_have_is_that_of_null(tmp_path: Path) -> None:
    sink = TableSink(Place(tmp_path), SCHEMA, 0, ("topic",))
    sink.add((DAY, "t" * 250, 1))
    sink.close()
    assert os.listdir(tmp_path) == [f"topic={NULL_NAME}"]


def test_many_topics_need_few_open_files(tmp_path: Path) -> None:
    sink = TableSink(Place(tmp_path), SCHEMA, 0, ("topic",))
    open_files = len(os.listdir("/proc/self/fd"))
    for turn in range(2):
        for number in range(300):
            sink.add((DAY, f"topic-{number}", turn))
    sink.flush()
    assert len(os.listdir("/proc/self/fd")) - open_files < 100
    sink.close()
    assert polars.read_parquet(tmp_path, hive_partitioning=True).height == 600


def test_what_is_given_up_leaves_nothing(place: Place) -> None:
    sink = TableSink(place, SCHEMA, 0, ("topic",))
    for number in range(100):
        sink.add((DAY, f"topic-{number}", number))
    sink.flush()
    sink.abandon()
    assert [name for each in place.children() for name in (place / each).children()] == []
