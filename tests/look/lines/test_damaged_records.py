"""Damaged records in what people look at: those before the damage are there, then the damage."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.exchange.words.wording import count
from kproxy.look.page.records import records_of
from kproxy.recording import read
from kproxy.wire.protocol import messages as M
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import fetch_request, fetch_response, produce_request, produce_response
from tests.exchange.making import request, response
from tests.look.lines.test_scan import recorded

HEX = Path(__file__).parents[2] / "wire/protocol/data/damaged"


def data_of(name: str) -> bytes:
    return bytes.fromhex((HEX / f"{name}.hex").read_text())


def fetched(folder: Path, data: bytes) -> Path:
    asked = request("Fetch", 11, fetch_request({0: 0}), 1)
    return recorded(folder, asked, response(asked, fetch_response({0: data})))


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out


ONE = records.encode_batch([Record(n, 1, b"k%d" % n, b"value-%d" % n) for n in range(3)])
CUT = bytearray(records.encode_batch([Record(n, 1, b"k%d" % n, b"value-%d" % n) for n in range(3)]))
CUT[57:61] = b"\0\0\0\7"
DAMAGED = {
    "zeros behind": (data_of("zeros-behind"), 3, "bytes that cannot be read (batch length 0)"),
    "inner set cut": (data_of("inner-cut"), 1, "the messages inside end in the middle of one"),
    "count too high": (bytes(CUT), 3, "7 records that end in the middle of record 4"),
    "unknown magic": (
        ONE + bytes(8) + b"\0\0\0\x3c" + bytes(4) + b"\3" + bytes(55), 3, "unknown magic 3",
    ),
    "no codec": (ONE + records.rebase(ONE, 3)[:22] + b"\5" + ONE[23:], 3, "unknown-5"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "before", "reason"), DAMAGED.values(), ids=DAMAGED)
def test_records_before_the_damage_and_the_damage_are_everywhere(
    data: bytes,
    before: int,
    reason: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = fetched(tmp_path, data)
    (exchange,) = read(path)
    assert [each.offset for each in exchange.records] == list(range(before))
    (unreadable,) = exchange.unreadable
    assert unreadable.startswith("orders[0]") and "that cannot be read (" in unreadable

    line = said(capsys, "show", path)
    assert reason in line and f"→ {count(before, 'record')}, " in line
    *lines, damage = said(capsys, "show", "--records", "orders", path).splitlines()
    assert len(lines) == before
    assert "that cannot be read" in damage
    *lines, damage = said(capsys, "show", "--records", "orders", "--json", path).splitlines()
    assert len(lines) == before
    assert json.loads(damage)["error"]
    story = said(capsys, "why", path, "topic:orders")
    assert "that cannot be read" in story
    one = exchange.records[0].key or b""
    story = said(capsys, "why", path, "topic:orders", f"key:{one.decode()}")
    assert "orders[0]@0" in story and "It may be in what cannot be read: " in story
    assert "No record of orders that can be read has key other." in said(
        capsys, "why", path, "topic:orders", "key:other"
    )
    assert "It carries orders[0]" in said(capsys, "why", path, "number:1")
    report = tmp_path / "report.html"
    said(capsys, "report", path, "--out", report)
    assert "that cannot be read" in report.read_text()
    page = records_of([path], None, "orders")
    assert len(page["records"]) == before and len(page["unreadable"]) == 1
    assert said(capsys, "show", path, "unreadable:*").count("Fetch") == 1


def test_a_batch_too_large_for_a_line_is_named_where_all_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the manual says: `unreadable:`, `--records`, `--json`, and `why`."""
    values = random.Random(1).randbytes(70_000)
    data = bytearray(records.encode_batch([Record(0, 0, None, values)]))
    data[57:61] = b"\0\0\0\7"
    path = fetched(tmp_path, bytes(data))
    assert "cannot be read" not in said(capsys, "show", path)
    assert said(capsys, "show", path, "unreadable:*")
    assert "cannot be read" in said(capsys, "show", "--records", "orders", path)
    assert "in the middle of record" in said(capsys, "show", "--json", path)
    assert "cannot be read" in said(capsys, "why", path, "number:1")


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gzip-trailing-zeros", [b"k0", b"k1"]),
        ("lz4-trailing-bytes", [b"k0", b"k1"]),
        ("xerial-two-streams", [b"k0", b"k1"]),
        ("empty-compressed", []),
        ("time-beyond-int64", [b"k"]),
    ],
)
def test_what_java_reads_is_no_damage(name, keys, tmp_path, capsys):
    path = fetched(tmp_path, data_of(name))
    (exchange,) = read(path)
    assert [each.key for each in exchange.records] == keys
    assert not exchange.unreadable
    assert "cannot be read" not in said(capsys, "show", path)
    if name == "time-beyond-int64":
        assert exchange.records[0].timestamp == -9223372036854775804


def test_a_whole_batch_of_refused_records_fits_a_line(tmp_path, capsys):
    R = M.ProduceResponse
    answer = produce_response({0: -1}, 87)
    answer.responses[0].partition_responses[0].record_errors = [
        R.BatchIndexAndErrorMessage(
            batch_index=n, batch_index_error_message=f"record {n} has no key " + "x" * 100
        )
        for n in range(2000)
    ]
    data = records.encode_batch([Record(n, 1, None, b"v") for n in range(2000)])
    asked = request("Produce", 8, produce_request({0: data}), 1)
    path = recorded(tmp_path, asked, response(asked, answer))
    shown = said(capsys, "show", path)
    assert "INVALID_RECORD" in shown and "1997 more messages" in shown
    assert len(shown) < 2000
    story = said(capsys, "why", path, "number:1")
    assert "The broker refuses record 0 of the batch" in story and "1997 more" in story
    assert len(story) < 5000
