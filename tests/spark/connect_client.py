"""What users do over Spark Connect, as a program of its own: Connect and classic sessions do not
mix in one process.

    connect_client.py sc://HOST:PORT RECORDING FOLDER ─▶ JSON: what it read and made
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kproxy import spark
from kproxy.analyze.appending import append, new_in
from kproxy.analyze.job import analyze
from kproxy.analyze.making import TableMaker
from kproxy.analyze.place import Place
from kproxy.analyze.tables import tables
from kproxy.spark.session import failures, first_line
from kproxy.tables import splits


def main(server: str, path: str, folder: Path) -> dict[str, Any]:
    """Read a recording, in batch and as a stream, and make an analysis and a lake of it."""
    session = spark.session(server)
    wanted = {"filter": "api:Fetch", "columns": "number,topics"}
    batch = session.read.format("kproxy").options(**wanted).load(path)
    stream = session.readStream.format("kproxy").options(**wanted).load(path)
    writer = stream.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).format("parquet").start(str(folder / "sink"))
    query.awaitTermination(120)
    try:
        session.read.format("kproxy").option("filter", "apy:Fetch").load(path).count()
        mistake = ""
    except failures() as error:
        mistake = first_line(error)
    maker, lake = TableMaker(session), Place(folder / "lake")
    made = analyze(maker, splits.find([path]), Place(folder / "out")).made
    append(maker, new_in([path], lake), lake)
    return {
        "count": session.read.format("kproxy").load(path).count(),
        "batch": sorted(map(tuple, batch.collect())),
        "stream": sorted(map(tuple, session.read.parquet(str(folder / "sink")).collect())),
        "mistake": mistake,
        "made": made.rows,
        "tables": {
            str(each): {name: table.count() for name, table in tables(session, str(each)).items()}
            for each in (folder / "out", lake)
        },
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))))
