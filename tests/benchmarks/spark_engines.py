"""A process that is measured: it plans and aggregates recordings, or Parquet of them.

    python -m tests.benchmarks.spark_engines ENGINE PATHS.json LOG VIEWS [PARTITION_BYTES]

ENGINE is a master of Spark, `parquet` and a master, duckdb or polars. For each step, a line of JSON
on stdout says that it begins, another how long it took and what it found; behind each, the process
waits for a line on stdin.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

QUERIES = {
    "exchanges": (
        "SELECT api, count(*) AS n, max(service_ms) AS most FROM {} GROUP BY api ORDER BY api"
    ),
    "records": (
        "SELECT topic, count(*) AS n, sum({octets}(value)) AS most FROM {} GROUP BY topic"
        " ORDER BY topic"
    ),
}
COLUMNS = {"exchanges": "api,service_ms", "records": "topic,value"}


def main() -> None:
    """Run the steps of an engine."""
    engine, listing, log, views, *more = sys.argv[1:]
    paths = json.loads(Path(listing).read_text())
    run = {"duckdb": _duckdb, "polars": _polars}.get(engine)
    if run is not None:
        run(paths, views.split(","))
    elif engine.startswith("parquet "):
        _spark_parquet(engine.removeprefix("parquet "), log, paths, views.split(","))
    else:
        _spark(engine, log, paths, views.split(","), *more)


def _step(name: str, paths: Sequence[str], work: Callable[[], Any]) -> None:
    """Do a step, with none of the files in the page cache."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    _say({"step": name})
    started = time.perf_counter()
    result = work()
    _say({"step": name, "seconds": time.perf_counter() - started, "result": result})


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
    sys.stdin.readline()


def _spark(
    master: str, log: str, paths: list[str], views: list[str], partition_bytes: str = "128MiB"
) -> None:
    session = _session(master, log)
    read = session.read.format("kproxy").option("partition_bytes", partition_bytes)

    def name_views(some: list[str]) -> None:
        for view in views:
            table = read.option("view", view).option("columns", COLUMNS[view]).load(some)
            table.createOrReplaceTempView(view)

    name_views(paths[:1])
    one_file = session.sql(QUERIES["exchanges"].format("exchanges"))
    _step("first query, one file", paths, lambda: len(one_file.collect()))
    name_views(paths)
    plan: Any = session.table("exchanges")._jdf.queryExecution()
    _step("plan", paths, lambda: plan.toRdd().getNumPartitions())
    _ask_spark(session, paths, {view: view for view in views})
    session.stop()


def _spark_parquet(master: str, log: str, paths: list[str], views: list[str]) -> None:
    session = _session(master, log)
    sources = {view: f"parquet.`{_of(view, paths)}`" for view in views}
    first = session.sql(QUERIES["exchanges"].format(sources["exchanges"]))
    _step("first query", paths, lambda: len(first.collect()))
    _ask_spark(session, paths, sources)
    session.stop()


def _session(master: str, log: str) -> Any:
    from kproxy import spark

    session = spark.session(master, {}, Path(log))
    session.range(1000).selectExpr("sum(id)").collect()  # what only the first query pays
    return session


def _ask_spark(session: Any, paths: list[str], sources: dict[str, str]) -> None:
    for view, source in sources.items():
        query = QUERIES[view].format(source, octets="octet_length")
        _step(view, paths, lambda text=query: [list(row) for row in session.sql(text).collect()])


def _duckdb(paths: list[str], views: list[str]) -> None:
    duckdb: Any = importlib.import_module("duckdb")
    duckdb.execute("SET threads = 2")
    for view in views:
        query = QUERIES[view].format(f"'{_of(view, paths)}'", octets="octet_length")
        _step(
            view, paths, lambda text=query: [list(map(_plain, row)) for row in _rows(duckdb, text)]
        )


def _rows(duckdb: Any, query: str) -> list[Any]:
    return duckdb.sql(query).fetchall()


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: DuckDB's sums are of a larger type."""
    return int(value) if isinstance(value, int) else value


def _polars(paths: list[str], views: list[str]) -> None:
    polars: Any = importlib.import_module("polars")
    work = {
        "exchanges": ("api", lambda: polars.col("service_ms").max()),
        "records": ("topic", lambda: polars.col("value").bin.size().sum()),
    }
    for view in views:
        name, most = work[view]
        table = polars.scan_parquet(_of(view, paths)).group_by(name)
        query = table.agg(polars.len().alias("n"), most().alias("most")).sort(name)
        _step(
            view, paths, lambda q=query: [list(row) for row in q.collect(engine="streaming").rows()]
        )


def _of(view: str, paths: list[str]) -> str:
    return next(path for path in paths if Path(path).stem == view)


if __name__ == "__main__":
    main()
