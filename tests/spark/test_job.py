"""The job in a session: what it says of recordings that are not whole, and of what fails."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from kproxy import recording
from kproxy.look.report.light import light_data
from kproxy.recording import RecordingError
from kproxy.spark import SparkError
from kproxy.spark.session import first_line
from kproxy.tables import splits
from tests.look.report.making import told
from tests.spark.conftest import DEMO, Captures

pytestmark = pytest.mark.java


def assert_read_by_folder(folder: Path, counts: dict[str, int]) -> None:
    """Check that polars and DuckDB read each table by the name of its folder."""
    assert len(counts) == 11
    for name, count in counts.items():
        rows = polars.scan_parquet(folder / name, hive_partitioning=True).collect()
        files = f"{folder}/{name}/**/*.parquet"
        query = "SELECT count(*) FROM read_parquet($1, hive_partitioning = true)"
        (found,) = duckdb.sql(query, params=[files]).fetchall()
        assert (rows.height, *found) == (count, count), name
        others = [each for each in (folder / name).rglob("*") if each.suffix != ".parquet"]
        assert all(each.is_dir() for each in others), others


def test_what_is_torn_or_empty_is_said(captures: Captures) -> None:
    folder, made = captures.folder, captures.made
    said = {
        name: line
        for line in made.notices
        for name in ("copy", "cut", "empty", "torn")
        if line.startswith(f"{folder}/{name}.mcap")
    }
    assert len(said) == len(made.notices) == 4
    assert said["copy"] == (
        f"{folder}/copy.mcap is a copy of {folder}/whole.mcap, which is read alone"
    )
    assert said["empty"] == f"{folder}/empty.mcap: is empty: nothing was recorded into it"
    for name in ("cut", "torn"):
        assert said[name].startswith(f"{folder}/{name}.mcap: read up to byte ")
        assert "recover" in said[name]
    page = html.unescape((made.folder / "report.html").read().decode())
    assert all(f"{notice}." in page for notice in made.notices)
    assert made.made.rows["exchanges"] == len(list(recording.read(folder)))


def test_who_needs_no_spark_reads_the_tables_of_an_analysis(captures: Captures) -> None:
    made = captures.made
    assert_read_by_folder(Path(str(made.folder)), made.made.rows)


def test_spark_and_one_machine_give_one_report(captures: Captures) -> None:
    ours, sparks = told(light_data([captures.folder])), told(captures.made.data)
    for name, value in ours.items():
        assert value == sparks[name], name
    assert len(ours["faults"]) >= 9 and ours["totals"]["exchanges"] > 500
    assert {row["recovered_ms"] for row in ours["faults"]} > {0.0}


def test_the_views_and_settings_of_a_session_stay_as_they_are(captures: Captures) -> None:
    assert captures.left == captures.found


def test_a_job_that_fails_leaves_nothing_and_says_why(
    spark: Any, broken: Path, tmp_path: Path
) -> None:
    from pyspark.errors import PySparkException

    from kproxy.analyze import job
    from kproxy.analyze.making import TableMaker
    from kproxy.analyze.place import Place

    damaged = tmp_path / "damaged.mcap"
    data = bytearray((broken / "recording.mcap").read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    out = tmp_path / "out"
    # The driver finds it where it cuts the file, and a task where it reads it.
    with pytest.raises((RecordingError, PySparkException), match="damaged") as raised:
        job.analyze(TableMaker(spark), splits.find([str(damaged)]), Place(out))
    assert "damaged" in first_line(raised.value) and "\n" not in first_line(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["damaged.mcap"]
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(SparkError, match="is there already"):
        job.analyze(TableMaker(spark), splits.find([str(DEMO)]), Place(out))
    # A folder that cannot be made.
    with pytest.raises(SparkError, match="/dev/full is no folder"):
        job.analyze(TableMaker(spark), splits.find([str(DEMO)]), Place.named("/dev/full/out"))
