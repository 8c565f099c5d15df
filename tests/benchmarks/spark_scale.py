"""Whether Spark reads many recordings as fast, and in as little memory, as few. Prints Markdown.

    python -m tests.benchmarks.spark_scale [--sizes 1GB 8GB] [--master local[2]] [--base 200MB]

    real traffic ─▶ one recording ─▶ its files under many names ─▶ a process for each size

A recording with many names is read as often as it has names, from the page cache. Memory is the
peak of the sum of the proportional set sizes of all processes; the JVM's heap counts, and grows as
it may, so the memory of sizes below some GB says little.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kproxy import spark
from kproxy.units import parse_bytes
from tests.benchmarks import spark_traffic
from tests.benchmarks.process_tree import ProcessTree

_QUERIES = {
    "exchanges": "SELECT api, count(*), max(service_ms) FROM {} GROUP BY api ORDER BY api",
    "records": "SELECT topic, count(*), sum(octet_length(value)) FROM {} GROUP BY topic",
}


def main() -> None:
    """Make a recording, then measure each size in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [parse_bytes(each) for each in ("1GB", "8GB")]
    parser.add_argument("--sizes", nargs="+", type=parse_bytes, default=sizes)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--base", type=parse_bytes, default=parse_bytes("200MB"), help="recorded")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kproxy-scale-") as name:
        folder = Path(name)
        spark_traffic.record(folder / "base", options.base, "64MiB")
        base = sorted((folder / "base").glob("*.mcap"))
        print("| GB | files | query | s/GB | CPU s/GB | peak MiB |")
        print("|" + " --- |" * 6)
        for size in sorted(options.sizes):
            count = max(1, round(size / sum(each.stat().st_size for each in base)))
            _measure(options.master, _named(base, folder / "names", count))


def _named(base: Sequence[Path], folder: Path, count: int) -> list[Path]:
    """Name each file so many times."""
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}-{each.name}" for number in range(count) for each in base]
    for path in paths:
        if not path.exists():
            os.link(path.parent.parent / "base" / path.name.partition("-")[2], path)
    return paths


def _measure(master: str, paths: Sequence[Path]) -> None:
    gb = sum(path.stat().st_size for path in paths) / 1e9
    code = "from tests.benchmarks import spark_scale; spark_scale.ask()"
    with subprocess.Popen(
        [sys.executable, "-c", code, master, *map(str, paths)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
    ) as process:  # fmt: skip
        assert process.stdin and process.stdout
        tree = ProcessTree(process.pid)
        for line in process.stdout:  # it waits behind each, so that what it used is told apart
            query, seconds = json.loads(line)
            used = tree.used()
            cells = f"{seconds / gb:.1f}", f"{used.cpu_seconds / gb:.1f}"
            peak = used.peak_bytes >> 20
            print("|", " | ".join((f"{gb:.1f}", str(len(paths)), query, *cells, str(peak))), "|")
            process.stdin.write("\n")
        tree.close()


def ask() -> None:
    """Ask recordings, named on the command line behind a master, in a process that is measured."""
    master, *paths = sys.argv[1:]
    session = spark.session(master, {}, Path(os.devnull))
    session.range(1000).selectExpr("sum(id)").collect()  # what only the first query pays
    for view, query in {"": "SELECT 1", **_QUERIES}.items():
        if view:
            reader = session.read.format("kproxy").option("view", view)
            reader.load(list(paths)).createOrReplaceTempView(view)
        started = time.perf_counter()
        session.sql(query.format(view)).collect()
        print(json.dumps([view or "start", time.perf_counter() - started]), flush=True)
        sys.stdin.readline()


if __name__ == "__main__":
    main()
