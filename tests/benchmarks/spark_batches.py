"""What small batches cost Spark: a recording of real traffic beside Parquet of the same columns.

    python -m tests.benchmarks.spark_batches [SIZE] [--rounds N] [--recording FILE]

Traffic of four clients is recorded until the recording has SIZE, by default 135MB: its batches have
25 KB or so, for a batch is written each 100 ms. Spark reads four columns of it, of Parquet, and of
a recording of a few exchanges, in turn and in one session: what the last one costs is what a query
of a Python source costs at least. Seconds are those of a clock and of all processes' CPU; others on
the machine change the first more than the second.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kproxy import spark, tables
from kproxy.recording import RecordingFile
from kproxy.units import parse_bytes
from tests.bed import needs
from tests.benchmarks import spark_traffic
from tests.benchmarks.process_tree import ProcessTree

COLUMNS = ("api_key", "request_bytes", "response_bytes", "service_ms")
QUERY = "SELECT api_key, count(*), sum(response_bytes), max(service_ms) FROM {} GROUP BY 1"
WARM_ROUNDS = 3
TINY = needs.REPOSITORY / "recordings" / "demo.mcap"


def main() -> None:
    """Record, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", nargs="?", type=parse_bytes, default=parse_bytes("135MB"))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--recording", type=Path, help="one that is there already")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = options.recording
        if path is None:
            path = spark_traffic.record("even", folder / "even", options.size)
        _describe(path)
        parquet = folder / "exchanges.parquet"
        pq.write_table(tables.read(path, columns=COLUMNS).read_all(), parquet, compression="zstd")
        _measure(path, parquet, options.rounds, folder)


def _describe(path: Path) -> None:
    with RecordingFile(path) as file:
        rows = [len(file.exchanges(batch) or ()) for batch in file.batches()]
    size = path.stat().st_size
    per_batch = f"{size / len(rows):,.0f} bytes and {sum(rows) / len(rows):.0f} exchanges each"
    print(f"{size / 1e6:.0f} MB, {sum(rows):,} exchanges, {len(rows):,} batches of {per_batch}")


def _measure(path: Path, parquet: Path, rounds: int, folder: Path) -> None:
    session = spark.session("local[2]", {}, folder / "spark.log")
    read = session.read.format("kproxy").option("columns", ",".join(COLUMNS))
    sources = {
        "parquet": session.read.parquet(str(parquet)),
        "kproxy": read.load(str(path)),
        "kproxy, tiny": read.load(str(TINY)),
    }
    for number, frame in enumerate(sources.values()):
        frame.createOrReplaceTempView(f"source{number}")
    queries = {name: QUERY.format(f"source{nth}") for nth, name in enumerate(sources)}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in sources}
    found: dict[str, Any] = {}
    tree = ProcessTree(os.getpid())
    for nth in range(WARM_ROUNDS + rounds):
        for name, query in queries.items():
            tree.used()
            started = time.perf_counter()
            found[name] = sorted(session.sql(query).collect())
            seconds = time.perf_counter() - started
            if nth >= WARM_ROUNDS:
                took[name].append((seconds, tree.used().cpu_seconds))
    tree.close()
    assert found["kproxy"] == found["parquet"], "they disagree"
    _report(took)
    session.stop()


def _report(took: dict[str, list[tuple[float, float]]]) -> None:
    base = [statistics.median(each) for each in zip(*took["parquet"], strict=True)]
    for name, rounds in took.items():
        seconds, cpu = (statistics.median(each) for each in zip(*rounds, strict=True))
        best = min(seconds for seconds, _ in rounds)
        ratios = f"{seconds / base[0]:4.2f} × {cpu / base[1]:5.2f} ×"
        print(f"  {name:14} {seconds:6.2f} s (best {best:.2f}) {cpu:6.2f} CPU s   {ratios}")


if __name__ == "__main__":
    main()
