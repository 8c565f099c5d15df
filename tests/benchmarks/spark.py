"""How fast Spark reads recordings, beside one process, DuckDB, and Parquet; all in one run.

    python -m tests.benchmarks.spark [SIZE] [--growth FACTOR …]        256MiB by default
    python -m tests.benchmarks.spark --live FILES        only streams, beside so many finished files

Real traffic is recorded until a recording has SIZE: even, skewed to one connection, and with
compressed batches. Larger sizes are copies of the first. Each query runs three times in one
session, and the best counts: rows and MB of the recording per second. `cold` is a process from its
start to its end. Memory is the sum of the proportional set sizes of all processes. DuckDB takes
part where it is installed (pip install duckdb).
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kproxy import spark
from kproxy.recording.rotation import Recording
from kproxy.tables import reading, splits
from kproxy.tables.views import chosen, schema_of
from kproxy.units import parse_bytes
from tests.bed import mock_cluster, proxies
from tests.benchmarks import spark_traffic
from tests.benchmarks.process_tree import tree_bytes
from tests.recording import making

ROUNDS = 3
ENOUGH_SECONDS = 20
"""What took so long is not done again."""
VIEWS = {
    "exchanges": ["api_key", "request_bytes", "response_bytes", "service_ms"],
    "frames": ["api_key", "side", "frame_bytes"],
    "records": ["topic", "partition", "key", "value"],
}
"""The columns that are read of each view."""
QUERIES = {
    "exchanges": (
        "SELECT api_key, count(*), sum(response_bytes), max(service_ms) FROM {} GROUP BY 1"
    ),
    "frames": "SELECT api_key, side, count(*), sum(frame_bytes) FROM {} GROUP BY 1, 2",
    "records": "SELECT topic, partition, count(*), sum(octet_length(value)) FROM {} GROUP BY 1, 2",
}
WARM_BATCHES, LIVE_BATCHES, LIVE_SECONDS_MAX = 5, 40, 300
LIVE_PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
COLD = """
import sys
from kproxy.spark import session
spark = session("local[2]", short=True)
table = spark.read.format("kproxy").load(sys.argv[1])
table.groupBy("api").agg({"number": "count", "service_ms": "max"}).show()
"""


def main() -> None:
    """Record, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", nargs="?", type=parse_bytes, default=256 << 20)
    parser.add_argument("--growth", type=int, nargs="*", default=[4], help="times SIZE")
    parser.add_argument("--live", type=int, metavar="FILES", help="finished files in the folder")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _child(*options.child)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.live is not None:
            _live(folder, options.live)
            return
        recordings = {
            kind: spark_traffic.record(kind, folder / kind, options.size)
            for kind in spark_traffic.KINDS
        }
        _alone(recordings["even"], folder)
        for kind in spark_traffic.BATCHES:
            small = spark_traffic.record(kind, folder / kind, min(options.size, 32 << 20))
            _records(kind, small)
        for kind, path in recordings.items():
            for cores in (1, 2):
                _in_spark(f"{kind}, {cores} cores", [str(path)], cores, folder)
        for factor in options.growth:
            paths = spark_traffic.copies(recordings["even"], folder / "copies", factor)
            _in_spark(f"even × {factor}, 2 cores", paths, 2, folder)
        _cold(recordings["even"], folder)
        _live(folder)


# ---------------------------------------------------------------- without Spark


def _alone(path: Path, folder: Path) -> None:
    """One process: pyarrow, the readers alone, and DuckDB on what they export."""
    size = path.stat().st_size
    started = time.perf_counter()
    stretches = splits.stretches(splits.find([str(path)]))
    took = time.perf_counter() - started
    print(f"one recording: {size / 1e6:.0f} MB, {len(stretches)} stretches in {took:.2f} s")
    for view, names in VIEWS.items():
        _say(f"readers alone, {view}", _best(lambda v=view, n=names: _read(stretches, v, n)), size)
        parquet = folder / f"{view}.parquet"
        _say(f"to Parquet, {view}", _best(lambda v=view, p=parquet: _export(stretches, v, p)), size)
    _say("records one by one", _best(lambda: _one_by_one(stretches)), size)
    try:
        duckdb: Any = importlib.import_module("duckdb")
    except ImportError:
        print("DuckDB is not installed: pip install duckdb")
        return
    duckdb.execute("SET threads = 2")
    for view, query in QUERIES.items():
        text = query.format(f"'{folder / view}.parquet'")
        rows = pq.read_metadata(folder / f"{view}.parquet").num_rows
        _say(f"DuckDB, Parquet, {view}", _best(lambda t=text, n=rows: _duck(duckdb, t, n)), size)


def _batches(stretches: Any, view: str, names: list[str] | None) -> Iterator[pa.RecordBatch]:
    for stretch in stretches:
        yield from reading.record_batches(stretch, view, chosen(view, names))


def _read(stretches: Any, view: str, names: list[str] | None) -> int:
    return sum(map(len, _batches(stretches, view, names)))


def _one_by_one(stretches: Any) -> int:
    """What `Exchange.records` makes of the same, record by record, before any column of it."""
    exchanges = (each for stretch in stretches for each in reading.exchanges(stretch))
    return sum(len(exchange.records) for exchange in exchanges)


def _records(kind: str, path: Path) -> None:
    """The records of traffic of a kind, in one process: all columns, and few of them."""
    size, stretches = path.stat().st_size, splits.stretches(splits.find([str(path)]))
    _say(f"{kind}, one by one", _best(lambda: _one_by_one(stretches)), size)
    for names in (None, ["topic", "partition", "key", "value"], ["topic", "partition"]):
        what = f"{kind}, {len(chosen('records', names))} columns of records"
        _say(what, _best(lambda n=names: _read(stretches, "records", n)), size)


def _export(stretches: Any, view: str, path: Path) -> int:
    count = 0
    schema = schema_of(chosen(view, VIEWS[view]))
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(stretches, view, VIEWS[view]):
            writer.write_batch(batch)
            count += len(batch)
    return count


def _duck(duckdb: Any, query: str, rows: int) -> int:
    duckdb.sql(query).fetchall()
    return rows


def _best(work: Callable[[], int]) -> tuple[int, float]:
    """Rows, and the seconds of the best of some rounds."""
    found: list[tuple[float, int]] = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        rows = work()
        found.append((time.perf_counter() - started, rows))
        if sum(seconds for seconds, _ in found) > ENOUGH_SECONDS:
            break
    seconds, rows = min(found)
    return rows, seconds


def _say(name: str, measured: tuple[int, float], size: int) -> None:
    rows, seconds = measured
    rates = f"{rows / seconds:12,.0f} rows/s {size / seconds / 1e6:8,.0f} MB/s"
    print(f"  {name:36} {seconds:7.2f} s {rates}", flush=True)


# ---------------------------------------------------------------- in Spark


def _in_spark(name: str, paths: list[str], cores: int, folder: Path) -> None:
    """Measure queries in a process of their own, and its memory."""
    size = sum(Path(path).stat().st_size for path in paths)
    command = [sys.executable, "-m", "tests.benchmarks.spark", "--child", str(cores), str(folder)]
    process = subprocess.Popen([*command, *paths], stdout=subprocess.PIPE, text=True)
    peak = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.3):
            peak = max(peak, tree_bytes(process.pid))

    thread = threading.Thread(target=watch)
    thread.start()
    print(f"{name}, {size / 1e6:.0f} MB", flush=True)
    assert process.stdout
    for line in process.stdout:
        what, rows, seconds = json.loads(line)
        _say(what, (rows, seconds), size)
    code = process.wait()
    done.set()
    thread.join()
    assert code == 0, code
    print(f"  {'peak memory':36} {peak / (1 << 20):7.0f} MiB", flush=True)


def _child(cores: str, folder: str, *paths: str) -> None:
    session = spark.session(f"local[{cores}]", {}, Path(folder) / "spark.log")
    for view, names in VIEWS.items():
        read = session.read.format("kproxy").option("view", view)
        read = read.option("columns", ",".join(names)).load(list(paths))
        read.createOrReplaceTempView(view)
        rows = session.sql(f"SELECT count(*) FROM {view}").first()[0]
        query = QUERIES[view]
        measured = _best(lambda q=query, v=view, n=rows: _ask(session, q.format(v), n))
        print(json.dumps([f"Spark, {view}", *measured]), flush=True)
        exported = Path(folder) / f"{view}.parquet"
        if exported.exists() and len(paths) == 1 and "/even/" in paths[0]:
            session.read.parquet(str(exported)).createOrReplaceTempView("exported")
            measured = _best(lambda q=query, n=rows: _ask(session, q.format("exported"), n))
            print(json.dumps([f"Spark, Parquet, {view}", *measured]), flush=True)
    whole = session.read.format("kproxy").load(list(paths))
    whole.createOrReplaceTempView("whole")
    query, rows = QUERIES["exchanges"].format("whole"), whole.count()
    measured = _best(lambda: _ask(session, query, rows))
    print(json.dumps(["Spark, exchanges, all columns", *measured]), flush=True)
    session.stop()


def _ask(session: Any, query: str, rows: int) -> int:
    session.sql(query).collect()
    return rows


# ---------------------------------------------------------------- as processes, and live


def _cold(path: Path, folder: Path) -> None:
    """From the start of a process to its end; twice, for the first one may make the archive."""
    for number in range(2):
        out = folder / f"analysis-{number}"
        table = [sys.executable, "-c", COLD, str(path)]
        analyze = [sys.executable, "-m", "kproxy", "analyze", str(path), "--out", str(out)]
        for name, command in (("table of latencies", table), ("kproxy analyze", analyze)):
            started = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds = time.perf_counter() - started
            print(f"  {f'cold, {name}':36} {seconds:7.2f} s", flush=True)
        time.sleep(15)  # the JVM writes the archive


def _live(folder: Path, finished: int = 0) -> None:
    """Follow a proxy that writes, as fast as Spark can, and tell how long batches take, and what of
    them; beside a stream of Spark's own that has nothing to read."""
    session = spark.session("local[2]", {}, folder / "spark.log")
    captures = folder / "live"
    _rotate(captures, finished)
    with mock_cluster.running() as cluster, proxies.running(cluster, captures, "--quiet") as proxy:
        with spark_traffic.working(proxy.bootstrap, "calm"):
            rate = session.readStream.format("rate").load()
            stream = session.readStream.format("kproxy").load(str(captures))
            for name, frame in (("Spark's rate", rate), (f"live, {finished} files", stream)):
                _say_batches(name, _progress(frame, folder / name))
    session.stop()


def _progress(stream: Any, checkpoint: Path) -> list[Any]:
    """Run a stream for some batches; return what Spark says of them."""
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime="0 seconds").start()
    found: dict[int, Any] = {}
    until = time.monotonic() + LIVE_SECONDS_MAX
    while len(found) < WARM_BATCHES + LIVE_BATCHES and time.monotonic() < until:
        time.sleep(0.5)
        found |= {each.batchId: each for each in query.recentProgress if each.numInputRows}
    query.stop()
    return [found[number] for number in sorted(found)][WARM_BATCHES:]


def _say_batches(name: str, batches: list[Any]) -> None:
    took = {
        what: sorted(each.durationMs.get(what, 0) for each in batches)
        for what in ("triggerExecution", *LIVE_PARTS)
    }
    total, *parts = (statistics.median(each) for each in took.values())
    rows = sum(each.numInputRows for each in batches)
    split = ", ".join(f"{what} {ms:.0f}" for what, ms in zip(LIVE_PARTS, parts, strict=True))
    print(
        f"{name}: {len(batches)} batches, {rows} rows; a batch takes {total:.0f} ms in the middle,"
        f" {took['triggerExecution'][-1]} ms at most: {split}",
        flush=True,
    )


def _rotate(folder: Path, files: int) -> None:
    """Make finished files of one recording."""
    folder.mkdir()
    recording = Recording(folder / "finished.mcap", rotate_ns=1, **making.SETTINGS)
    for number in range(1, files):
        recording.write([making.request(number, b"ask"), making.response(number, b"ok")])
    recording.close()


if __name__ == "__main__":
    main()
