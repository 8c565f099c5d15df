"""The records view: what was sent, whatever it was."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c

from kproxy import recording, tables
from kproxy.tables import batches
from kproxy.tables.views import RECORDS, TIMESTAMP_MS_MAX
from kproxy.wire.protocol import records
from kproxy.wire.protocol.compression import CODECS, compress
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.record_fields import wrapped
from tests.bed import needs
from tests.exchange import making
from tests.exchange.bodies import (
    fetch_request,
    fetch_response,
)
from tests.recording.making import write
from tests.wire.payloads import making as payloads

ALL = [column.name for column in RECORDS]
TREE = [
    needs.REPOSITORY / "recordings" / "demo.mcap",
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
]
SAME = ("topic", "partition", "key", "value", "produced", "aborted")
CARRIER = ("number", "time", "connection", "client_id", "node_id")


def found(path: Path, names: Sequence[str] = ALL) -> list[dict[str, Any]]:
    """The rows of the view."""
    return tables.read(path, "records", names).read_all().to_pylist()


def expected(path: Path) -> list[dict[str, Any]]:
    """What `Exchange.records` says, record by record."""
    return [
        {name: getattr(record, name) for name in SAME}
        | {name: getattr(exchange, name) for name in CARRIER}
        | {
            "offset": None if record.offset is None else wrapped(record.offset),
            "timestamp_ms": record.timestamp,
            "headers": [
                {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
                 "value": value}
                for key, value in record.headers
            ],
        }
        for exchange in recording.read([path])
        for record in exchange.records
    ]  # fmt: skip


def check(path: Path) -> list[dict[str, Any]]:
    """Check that the rows are those of the exchanges; return them."""
    rows, same = found(path), expected(path)
    assert len(rows) == len(same)
    for row, each in zip(rows, same, strict=True):
        assert {name: row[name] for name in each} == each
        has_time = 0 <= row["timestamp_ms"] <= TIMESTAMP_MS_MAX
        assert (row["timestamp"] is not None) == has_time
    return rows


@pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")
@pytest.mark.parametrize("path", TREE, ids=lambda path: path.name)
def test_recordings_have_the_records_of_their_exchanges(path: Path) -> None:
    check(path)


def test_decoded_records_are_json_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = payloads.write(tmp_path / "shop.mcap")
    rows = check(path)
    assert json.loads(rows[0]["value_json"]) == json.loads(payloads.VALUES[0][5:])
    assert [row["key_json"] for row in rows[:4]] == ['"ann"', None, None, '"mal"']
    assert [row["value_json"] for row in rows[1:4]] == [None] * 3, "not of a known schema, or bytes"
    monkeypatch.setattr(batches, "BYTES_MAX", 1)  # a record batch for each decoded record
    assert found(path) == rows
    assert "value_json" not in tables.read([path], "records").schema.names


# ---------------------------------------------------------------- odd ones


def fetched(*sets: bytes) -> list[Any]:
    """A Fetch for each of these."""
    entries: list[Any] = [making.opened()]
    for number, data in enumerate(sets, 1):
        asked = making.request("Fetch", 12, fetch_request({0: 0}), number)
        entries += [asked, making.response(asked, fetch_response({0: data}))]
    return [*entries, making.closed()]


def batch_of(body: bytes, count: int, attributes: int = 0, offset: int = 0, time: int = 0) -> bytes:
    """A batch of magic 2 around any body."""
    rest = struct.pack(">hiqqqhii", attributes, 0, time, time, -1, -1, -1, count) + body
    return struct.pack(">qiibI", offset, 9 + len(rest), 0, 2, crc32c(rest)) + rest


GOOD = records.encode_batch([Record(5, 1, b"k", b"v", (("h", b"1"),)), Record(6, 2, None, None)])
PLAIN = b"\x0c\0\0\0\1\1\0"
ODD = {
    "more records than bytes": batch_of(PLAIN, 900),
    "a negative count": batch_of(PLAIN, -1),
    "no records": batch_of(b"", 0),
    "bytes behind the last": batch_of(PLAIN + b"\0", 1),
    "fewer than there are": batch_of(PLAIN * 3, 2),
    "a record beyond the batch": batch_of(b"\x0e\0\0\0\1\1\0", 1),
    "a negative length": batch_of(b"\x0b\0\0\0\1\1\0", 1),
    "a key beyond the record": batch_of(b"\x0c\0\0\0\x7e\1\0", 1),
    "a long number": batch_of(b"\x14\0\x80\x80\x80\0\0\1\1\0", 1),
    "ten bytes of time": batch_of(b"\x1e\0" + b"\xff" * 9 + b"\x01\0\1\1\0", 1),
    "eleven bytes of time": batch_of(b"\x20\0" + b"\xff" * 10 + b"\x01\0\1\1\0", 1),
    "six bytes of offset": batch_of(b"\x16\0\0" + b"\xff" * 5 + b"\x01\1\1\0", 1),
    "an offset of more than 32 bits": batch_of(b"\x14\0\0" + b"\xff" * 4 + b"\x7f\1\1\0", 1),
    "sums of more than 64 bits": batch_of(b"\x0c\0\2\2\1\1\0", 1, 0, (1 << 63) - 1, (1 << 63) - 1),
    "a nameless header": batch_of(b"\x10\0\0\0\1\1\2\1\1", 1),
    "headers beyond the record": batch_of(b"\x10\0\0\0\1\1\6\0\0", 1),
    "a negative count of headers": batch_of(b"\x0c\0\0\0\1\1\1", 1),
    "many headers": records.encode_batch([Record(0, 1, None, None, (("h", b""),) * 200)]),
    "a codec that does not exist": batch_of(PLAIN, 1, 5),
    "no gzip": batch_of(PLAIN, 1, 1),
    "a wrong checksum": bytes([*GOOD[:17], GOOD[17] ^ 1, *GOOD[18:]]),
    "a bomb": batch_of(compress("zstd", bytes(200 << 20)), 9, CODECS.index("zstd")),
    "records without end": batch_of(compress("zstd", PLAIN * 1_000_001), 1_000_001, 4),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_odd_batches_hide_no_others(odd: bytes, tmp_path: Path) -> None:
    rows = check(write(tmp_path / "made.mcap", [fetched(GOOD, odd + GOOD, GOOD)]))
    assert [row["offset"] for row in (*rows[:2], *rows[-2:])] == [5, 6, 5, 6]


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_huge_batch_is_cut_into_record_batches(
    codec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "BYTES_MAX", 1 << 20)
    made = [Record(n, n, b"%d" % n, b"v" * 300) for n in range(15_000)]
    data = records.encode_batch(made, compression=codec)
    path = write(tmp_path / "huge.mcap", [fetched(GOOD, data, GOOD)])
    read = list(tables.read(path, "records", ["offset", "key", "value"]))
    assert max(map(len, read)) <= batches.ROWS_MAX
    assert max(each.nbytes for each in read) <= 1.1 * batches.BYTES_MAX
    rows = pa.Table.from_batches(read)
    assert rows["offset"].to_pylist() == [5, 6, *range(15_000), 5, 6]
    assert rows["key"].to_pylist()[2:-2] == [each.key for each in made]
