"""How fast values of Avro become JSON text in columns, on one core and in Spark.

    python -m tests.benchmarks.schemas [RECORDS]        200,000 by default

Of each way the best of three rounds counts. Of one core it is seconds of the CPU, which other
programs of a machine do not lengthen; Spark has two cores, and the seconds of a clock. Beside it
are the columns that need no schema, and fastavro, up to the same JSON text.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro

from kproxy.exchange.entries import EVENTS, Note
from kproxy.recording import Recording
from kproxy.spark import session
from kproxy.tables import reading
from kproxy.wire.payloads import avro
from kproxy.wire.payloads.plain import json_text
from kproxy.wire.payloads.schemas import Schema, note_of
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import START_NS, request, response

ROUNDS = 3
BATCH = 500
"""Records of a batch."""
PLAIN = ["topic", "partition", "offset", "key", "value"]
ITEM = {
    "type": "record",
    "name": "Item",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
ORDER = {
    "type": "record",
    "name": "shop.Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": ["null", "string"]},
        {"name": "total", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "SENT"]}},
        {"name": "at", "type": "long"},
        {"name": "items", "type": {"type": "array", "items": ITEM}},
    ],
}


def main() -> None:
    """Make a recording, and read it in each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", nargs="?", type=int, default=200_000)
    count = parser.parse_args().records
    values = [_value(nth) for nth in range(count)]
    with tempfile.TemporaryDirectory() as name:
        path = _recorded(Path(name) / "orders.mcap", values)
        print(f"{count:,} records of {len(values[0])} bytes")
        ways: dict[str, Callable[[], object]] = {
            "decoder alone": lambda: _decoded(values),
            "fastavro alone": lambda: _decoded_by_fastavro(values),
            "columns, bytes": lambda: _read(path, PLAIN),
            "columns, value_json": lambda: _read(path, [*PLAIN, "value_json"]),
        }
        for what, way in ways.items():
            seconds = min(_seconds(way, time.process_time) for _ in range(ROUNDS))
            print(f"{what:24}{count / seconds:12,.0f} records/s of a core")
        another = shutil.copy(path, path.with_name("more.mcap"))
        spark = session("local[2]")
        for what, column in (("Spark, bytes", "value"), ("Spark, value_json", "value_json")):
            reader = spark.read.format("kproxy").option("view", "records").option("columns", column)
            seconds = min(
                # Anew each time: a query that is run again has the stages of its first run.
                _seconds(
                    reader.load([str(path), str(another)])
                    .selectExpr(f"sum(length({column}))")
                    .collect,
                    time.monotonic,
                )
                for _ in range(ROUNDS)
            )
            print(f"{what:24}{2 * count / seconds:12,.0f} records/s of two cores")
        spark.stop()


def _seconds(way: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    way()
    return clock() - start


_PARSED = fastavro.parse_schema(json.loads(json.dumps(ORDER)))


def _value(nth: int) -> bytes:
    """Return the data of an order."""
    items = [{"sku": f"sku-{nth % 97}", "count": 1 + nth % 3}, {"sku": "gift-wrap", "count": 1}]
    order: dict[str, Any] = {"id": nth, "customer": f"customer-{nth % 1000}", "items": items}
    order |= {"total": nth / 4, "paid": nth % 2 == 0, "state": "NEW", "at": 1_700_000_000_000 + nth}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, order)
    return out.getvalue()


def _recorded(path: Path, values: list[bytes]) -> Path:
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    schema = Schema("AVRO", json.dumps(ORDER), (), "orders-value", 1)
    recording.write([Note(EVENTS, START_NS, note_of([17], schema))])
    for first in range(0, len(values), BATCH):
        numbered = enumerate(values[first : first + BATCH])
        batch = [Record(nth, START_NS // 10**6, b"k", b"\0\0\0\0\x11" + v) for nth, v in numbered]
        asked = request("Produce", 9, produce_request({0: encode_batch(batch)}), first + 1)
        recording.write([asked, response(asked, produce_response({0: first}))])
    recording.close()
    return path


def _decoded(values: list[bytes]) -> None:
    _, read = avro.compiled(json.dumps(ORDER))
    for each in values:
        json_text(read(each))


def _decoded_by_fastavro(values: list[bytes]) -> None:
    for each in values:
        json_text(fastavro.schemaless_reader(io.BytesIO(each), _PARSED, None))


def _read(path: Path, columns: list[str]) -> None:
    for _ in reading.read(path, "records", columns):
        pass


if __name__ == "__main__":
    main()
