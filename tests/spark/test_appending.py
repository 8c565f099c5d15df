"""A lake: what is new in recordings is added once, and read back as it was recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

pytest.importorskip("pyspark")

from kproxy import recording
from kproxy.analyze.appending import append, follow, new_in
from kproxy.analyze.job import analyze
from kproxy.analyze.making import TableMaker
from kproxy.analyze.place import Place
from kproxy.analyze.tables import check_known, tables
from kproxy.spark import SparkError
from kproxy.tables import splits
from tests.bed import needs
from tests.spark import formats_client
from tests.spark.test_job import assert_read_by_folder
from tests.versions import ALL

pytestmark = pytest.mark.java

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
OTHER = needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap"


def numbers(path: Path) -> list[tuple[str, str, int]]:
    return sorted((path.stem, str(each.api), each.number) for each in recording.read(path))


def test_what_is_new_is_added_once(spark: Any, tmp_path: Path) -> None:
    captures, lake = tmp_path / "captures", Place(tmp_path / "a lake [1]{b}%20")
    captures.mkdir()
    maker, texts = TableMaker(spark), [str(captures)]
    assert not new_in(texts, lake).groups, "nothing is there yet"
    shutil.copy(DEMO, captures)
    first = append(maker, new_in(texts, lake), lake)
    assert first is not None and first.made.rows["exchanges"] == len(numbers(DEMO))
    assert not new_in(texts, lake).groups
    shutil.copy(OTHER, captures)
    added = follow(maker, texts, lake, 0)
    second = next(added)
    assert second is not None and second.made.rows["exchanges"] == len(numbers(OTHER))
    assert next(added) is None
    found = tables(spark, str(lake))
    rows = found["exchanges"].select("recording", "api", "number", "date", "time").collect()
    ids = {recording.info(path).metadata["recording"]: path.stem for path in (DEMO, OTHER)}
    assert sorted((ids[row.recording], str(row.api), row.number) for row in rows) == sorted(
        numbers(DEMO) + numbers(OTHER)
    )
    assert all(row.date == row.time.date() for row in rows)
    for name, frame in found.items():
        comments = {each.name: each.metadata.get("comment") for each in frame.schema}
        assert all(comments.values()), (name, comments)
    assert found["latency"].count() == sum(each.made.rows["latency"] for each in (first, second))
    one_api = duckdb.sql(
        "SELECT count(*) FROM read_parquet($1, hive_partitioning=true) WHERE api = 'Fetch'",
        params=[list(map(str, lake.path.glob("exchanges/**/*.parquet")))],
    )
    fetches = [each for each in numbers(DEMO) + numbers(OTHER) if each[1] == "Fetch"]
    assert one_api.fetchall() == [(len(fetches),)]
    plain = tmp_path / "plain"  # DuckDB and polars take the name of the lake as a pattern
    plain.symlink_to(lake.path, target_is_directory=True)
    assert_read_by_folder(plain, {name: frame.count() for name, frame in found.items()})
    page = Path(str(lake / "report.html")).read_text()
    assert f"<b>{len(numbers(DEMO)) + len(numbers(OTHER))}</b><span>exchanges" in page, "of all"


def test_remote_storage_has_it_whole_or_not_at_all(spark: Any, tmp_path: Path) -> None:
    out = f"fsspec+file://{tmp_path}/out"
    made = analyze(TableMaker(spark), splits.find([str(DEMO)]), Place.named(out))
    assert made.made.rows["exchanges"] == len(numbers(DEMO))
    assert tables(spark, out)["exchanges"].count() == len(numbers(DEMO))
    with pytest.raises(SparkError, match="is there already"):
        analyze(TableMaker(spark), splits.find([str(DEMO)]), Place.named(out))
    with pytest.raises(SparkError, match="has no analysis: kproxy analyze FILE"):
        tables(spark, str(tmp_path / "nowhere"))
    (tmp_path / "foreign.txt").touch()
    with pytest.raises(SparkError, match=r"has foreign\.txt, which is of no") as raised:
        tables(spark, str(tmp_path))
    assert raised.value.__context__ is None, "one traceback is enough"


def test_remote_storage_may_have_a_lake_already(spark: Any, tmp_path: Path) -> None:
    lake = Place.named(f"fsspec+file://{tmp_path}/lake")
    for table in ("exchanges", "records"):  # Spark takes folders like these for no table
        (lake / table / "run=20261123T000000.0Z-beef" / "part-00000.parquet").write(b"")
    check_known(spark, lake)


JARS = {
    ("delta", "4.1"): "io.delta:delta-spark_4.1_2.13:4.4.0",
    ("iceberg", "4.1"): "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""By format and version of Spark. Spark fetches them from Maven."""


@pytest.mark.skipif(not ALL, reason="a JVM of its own, and jars; KPROXY_TEST_ALL=1")
@pytest.mark.parametrize("name", ["delta", "iceberg"])
def test_a_lake_of_another_format_has_the_same_rows(spark: Any, name: str, tmp_path: Path) -> None:
    package = JARS.get((name, ".".join(spark.version.split(".")[:2])))
    if package is None:
        pytest.skip(f"no jars of {name} are known for Spark {spark.version}")
    captures, lake, plain = tmp_path / "captures", tmp_path / "lake", Place(tmp_path / "plain")
    captures.mkdir()
    shutil.copy(DEMO, captures)
    append(TableMaker(spark), new_in([str(captures)], plain), plain)
    done = subprocess.run(
        [sys.executable, formats_client.__file__, name, package, captures, OTHER, lake],
        env=os.environ | {"PYTHONPATH": str(needs.REPOSITORY)},
        capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    if "skipped" in found:
        pytest.skip(found["skipped"])
    assert found["seen"] == len(numbers(DEMO)), "rows of a run that is not in all tables are hidden"
    append(TableMaker(spark), new_in([str(captures)], plain), plain)  # the client has added OTHER
    assert found["rows"] == formats_client.rows_of(spark, plain)
    assert len(found["runs"]) == 2
    assert found["commits"] == dict.fromkeys(found["rows"], found["runs"])
    with pytest.raises(SparkError, match=f"give spark-submit --packages {package.rsplit(':')[0]}"):
        tables(spark, str(lake))
