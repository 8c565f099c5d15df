"""What users do with a lake of Delta or Iceberg, as a program of its own: its session has jars.

formats_client.py FORMAT PACKAGE CAPTURES RECORDING LAKE ─▶ JSON: rows, and the runs of commits
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from kproxy import spark
from kproxy.analyze import appending
from kproxy.analyze.appending import append, new_in
from kproxy.analyze.formats import FORMATS
from kproxy.analyze.lake import runs
from kproxy.analyze.making import TableMaker
from kproxy.analyze.place import Place
from kproxy.analyze.tables import tables


def rows_of(session: Any, lake: Place) -> dict[str, list[str]]:
    """The rows of the tables of a lake as JSON, without the runs, which differ."""
    from pyspark.sql import functions as f

    found = {}
    for name, table in tables(session, str(lake)).items():
        columns = [f.to_json(f.struct(each)) for each in sorted(table.columns) if each != "run"]
        found[name] = sorted(row[0] for row in table.select(f.concat_ws(",", *columns)).collect())
    return found


def commits_of(session: Any, name: str, table: Place) -> list[str]:
    """The runs that the commits of a table name, in their order."""
    if name == "delta":
        commits = session.sql(f"describe history delta.`{table.spark}`").orderBy("version")
        return [row.userMetadata for row in commits.collect()]
    commits = session.read.format(name).load(f"{table.spark}#snapshots").orderBy("committed_at")
    return [row.summary["kproxy.run"] for row in commits.collect()]


def main(name: str, package: str, captures: Path, recording: str, lake: Place) -> dict[str, Any]:
    """Add to a lake twice, the second time after a job that failed between two tables."""
    config = {**FORMATS[name].settings, "spark.jars.packages": package}
    try:
        session = spark.session("local[2]", config, captures.with_name("spark.log"), short=True)
    except spark.SparkError as error:
        return {"skipped": f"{package} cannot be had: {error}"}
    maker, texts = TableMaker(session), [str(captures)]
    append(maker, new_in(texts, lake), lake)
    shutil.copy(recording, captures)
    real, some = appending.add_rows, ["a table", "another one"]

    def add(*given: Any) -> None:
        some.pop()
        real(*given)

    appending.add_rows = add
    with contextlib.suppress(IndexError):
        append(maker, new_in(texts, lake), lake)
    appending.add_rows = real
    seen = tables(session, str(lake))["exchanges"].count()
    append(maker, new_in(texts, lake), lake)
    return {
        "seen": seen,
        "rows": rows_of(session, lake),
        "commits": {
            each: commits_of(session, name, lake / each) for each in tables(session, str(lake))
        },
        "runs": [run.name for run in runs(lake)],
    }


if __name__ == "__main__":
    name, package, captures, recording, lake = sys.argv[1:]
    print(json.dumps(main(name, package, Path(captures), recording, Place(Path(lake)))))
