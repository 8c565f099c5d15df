"""One percentile for one recording, whether `kproxy stats` or `kproxy analyze` tells it."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kproxy.analyze import queries
from kproxy.exchange.histogram import PERCENTILES, bucket, percentile_ms
from kproxy.look.lines.stats_lines import stats_of
from kproxy.look.lines.stream import Stream
from tests.exchange.test_histogram import DURATIONS
from tests.spark.conftest import Captures

pytestmark = pytest.mark.java


def test_spark_finds_the_same_buckets_and_percentiles(spark: Any, tmp_path: Path) -> None:
    table = pa.table({"us": DURATIONS, "ms": [each / 1000 for each in DURATIONS]})
    pq.write_table(table, tmp_path / "durations")
    spark.read.parquet((tmp_path / "durations").as_uri()).createOrReplaceTempView("durations")
    rows = spark.sql(f"SELECT us, {queries.bucket('ms')} FROM durations").collect()
    assert len(rows) == len(DURATIONS)
    assert [(us, found) for us, found in rows if found != bucket(us)] == []
    columns = ", ".join(f"{queries.percentile(name)} AS {name}" for name in PERCENTILES)
    query = f"""
    WITH filled AS (
        SELECT {queries.bucket("ms")} AS at, {queries.bucket("ms")} AS bucket, COUNT(*) AS n,
            0D AS low, 1e18D AS high FROM durations GROUP BY ALL
    ), ranked AS ({queries.ranked("at")}) SELECT at, {columns} FROM ranked GROUP BY at
    """
    found = {at: percentiles for at, *percentiles in spark.sql(query).collect()}
    every = PERCENTILES.values()
    assert found == {at: [percentile_ms({at: 1}, each) for each in every] for at in found}


def test_stats_and_the_table_latency_have_the_same_percentiles(captures: Captures) -> None:
    table = pq.read_table(captures.made.folder.path / "latency").to_pylist()
    latency = [row for row in table if row["topic"] is None]
    by_api: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in latency:
        by_api[row["api"] or "(half a header)"].append(row)
    counted = stats_of(Stream([captures.folder])).tables["api"]
    assert by_api.keys() == counted.keys() and len(counted) > 20
    for kind, name in (("broker", "broker"), ("proxy", "proxy_all")):
        in_stats = {
            api: [getattr(tally, name).percentile(each) for each in PERCENTILES.values()]
            for api, tally in counted.items()
        }
        assert in_stats == {api: percentiles(rows, kind) for api, rows in by_api.items()}
    failed = {api: tally.errors for api, tally in counted.items()}
    without_routine = {
        api: sum(row["errors"] - row["routine"] for row in rows) for api, rows in by_api.items()
    }
    assert without_routine == failed and sum(row["routine"] for row in latency) > 20
    alone = [rows[0] for rows in by_api.values() if len(rows) == 1]
    assert len(alone) > 3
    for row in alone:
        assert [row[f"broker_{name}"] for name in PERCENTILES] == percentiles([row], "broker")


def percentiles(rows: list[dict[str, Any]], kind: str) -> list[float | None]:
    """The percentiles of rows of the table together."""
    counts = Counter[int]()
    for row in rows:
        counts.update(dict(row[f"{kind}_histogram"] or ()))
    ends = [
        pick(
            (row[f"{kind}_{name}"] for row in rows if row[f"{kind}_{name}"] is not None), default=0
        )
        for pick, name in ((min, "min"), (max, "max"))
    ]
    return [percentile_ms(counts, each, *ends) for each in PERCENTILES.values()]
