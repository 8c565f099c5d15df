"""How fast Spark reads recordings, beside one process with pyarrow and beside Parquet.

    python -m tests.benchmarks.spark [SIZE]         256MiB by default, real traffic, two cores

Producers and consumers work through kproxy on librdkafka's mock cluster until the recording has
its size. Then each query runs three times in one session, and the best is shown: rows and MB of the
recording per second. `cold` is `kproxy analyze` as a process, from its start to its end.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.parquet as pq

from kproxy import spark
from kproxy.recording import RecordingFile
from kproxy.spark import plan, reading
from kproxy.spark.columns import chosen
from kproxy.units import parse_bytes
from tests.bed import mock_cluster, proxies

FOUR = "api_key SMALLINT, request_bytes INT, response_bytes INT, service_ms DOUBLE"
AGGREGATE = "SELECT api_key, count(*), sum(response_bytes), max(service_ms) FROM {} GROUP BY 1"


def main() -> None:
    """Record, then measure."""
    size = parse_bytes(sys.argv[1] if len(sys.argv) > 1 else "256MiB")
    with tempfile.TemporaryDirectory() as folder:
        with mock_cluster.running() as cluster:
            with proxies.running(cluster, Path(folder), "--quiet", "--rotate", "off") as proxy:
                _fill(proxy.bootstrap, proxy.recording, size)
        measure(proxy.recording, Path(folder))


def _fill(bootstrap: str, recording: Path, size: int) -> None:
    done = threading.Event()
    work = [
        threading.Thread(target=each, args=(bootstrap, number, done))
        for each in (_produce, _consume)
        for number in range(2)
    ]
    for each in work:
        each.start()
    while recording.stat().st_size < size:
        time.sleep(0.1)
    done.set()
    for each in work:
        each.join()


def _produce(bootstrap: str, number: int, done: threading.Event) -> None:
    settings = {"bootstrap.servers": bootstrap, "client.id": f"shop-{number}", "linger.ms": 1}
    producer = confluent_kafka.Producer(settings | {"batch.num.messages": 20, "log_level": 2})
    count = 0
    while not done.is_set():
        count += 1
        value = f'{{"order": {count}, "state": "new", "note": "{"x" * (count % 90)}"}}'
        try:
            producer.produce(f"orders-{number}", key=f"customer-{count % 1000}", value=value)
        except BufferError:
            producer.poll(0.05)
        producer.poll(0)
    producer.flush(10)


def _consume(bootstrap: str, number: int, done: threading.Event) -> None:
    settings = {
        "bootstrap.servers": bootstrap, "client.id": f"billing-{number}", "group.id": f"b{number}",
        "auto.offset.reset": "earliest", "fetch.wait.max.ms": 10, "log_level": 2,
        "fetch.message.max.bytes": 16_384,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([f"orders-{number}"])
    while not done.is_set():
        consumer.consume(1000, 0.1)
    consumer.close()


def measure(path: Path, folder: Path) -> None:
    """Measure one recording."""
    size = path.stat().st_size
    started = time.perf_counter()
    stretches = plan.stretches([str(path)])
    planned = time.perf_counter() - started
    columns = chosen("exchanges")
    parquet = folder / "exchanges.parquet"
    count = _export(stretches, columns, parquet)
    print(f"{size / 1e6:.0f} MB, {count} exchanges, planned in {planned:.2f} s", flush=True)

    session = spark.session("local[2]", {}, folder / "spark.log")
    read = session.read.format("kproxy")
    read.schema(FOUR).load(str(path)).createOrReplaceTempView("four")
    read = session.read.format("kproxy")
    read.load(str(path)).createOrReplaceTempView("whole")
    session.read.parquet(str(parquet)).createOrReplaceTempView("exported")
    records = session.read.format("kproxy").option("view", "records").load(str(path))
    records.createOrReplaceTempView("records")
    counted = sum(len(each) for each in _columns_of("records", stretches, ["number"]))
    rows = [
        ("pyarrow, one process, 4 columns", count, lambda: _pyarrow(path)),
        ("Spark, 4 columns", count, lambda: session.sql(AGGREGATE.format("four")).collect()),
        ("Spark, all columns", count, lambda: session.sql(AGGREGATE.format("whole")).collect()),
        ("Spark, Parquet", count, lambda: session.sql(AGGREGATE.format("exported")).collect()),
        ("export, one process", count, lambda: _export(stretches, columns, parquet)),
        ("Spark, records", counted, lambda: session.sql("SELECT count(*) FROM records").first()),
    ]
    for name, number, work in rows:
        seconds = min(_timed(work) for _ in range(1 if name.endswith("records") else 3))
        rates = f"{number / seconds:12,.0f} rows/s {size / seconds / 1e6:8,.0f} MB/s"
        print(f"{name:34} {seconds:6.2f} s {rates}", flush=True)
    session.stop()
    out = folder / "analysis"
    command = [sys.executable, "-m", "kproxy", "analyze", str(path), "--out", str(out)]
    seconds = _timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
    print(f"{'kproxy analyze, cold':34} {seconds:6.2f} s")


def _columns_of(view: str, stretches: Any, names: list[str]) -> Iterator[pa.RecordBatch]:
    for stretch in stretches:
        yield from reading.record_batches(stretch, view, chosen(view, names))


def _timed(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _pyarrow(path: Path) -> None:
    stream = b"".join(RecordingFile(path).arrow_stream("exchanges"))
    table = pa.ipc.open_stream(stream).read_all()
    took = pa.compute.subtract(table["response_received_ns"], table["request_sent_ns"])
    table = table.append_column("took", took)
    aggregates = [("number", "count"), ("response_bytes", "sum"), ("took", "max")]
    table.group_by("api_key").aggregate(aggregates)


def _export(stretches: Any, columns: Any, path: Path) -> int:
    count = 0
    with pq.ParquetWriter(path, reading.schema_of(columns), compression="zstd") as writer:
        for stretch in stretches:
            for batch in reading.record_batches(stretch, "exchanges", columns):
                writer.write_batch(batch)
                count += len(batch)
    return count


if __name__ == "__main__":
    main()
