"""What records may unpack to, over all that a command reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.exchange import unpacking
from kproxy.recording import Recording, read
from kproxy.wire.protocol.compression import compress
from kproxy.wire.protocol.record_batch import BATCH_HEADER, crc_at
from kproxy.wire.protocol.records import Record, encode_batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import START_NS, closed, request, response

RECORDS = 5_000
COUNT = 5


def hollow(records: int) -> bytes:
    """A batch of empty records, all of them alike: some bytes."""
    return compressed(records, b"\x0c\0\0\0\x01\x01\0" * records)


def with_headers(count: int) -> bytes:
    """A batch of an empty record, and another with so many empty headers: some bytes."""
    record = encode_batch([Record(0, 0), Record(1, 0, None, None, [("", None)] * count)])
    return compressed(2, record[BATCH_HEADER.size :])


def compressed(records: int, content: bytes) -> bytes:
    """A batch of what has the form of records."""
    head = bytearray(encode_batch([Record(0, 0)], compression="zstd")[: BATCH_HEADER.size])
    head[57:61] = records.to_bytes(4, "big")
    packed = compress("zstd", content)
    head[8:12] = (BATCH_HEADER.size - 12 + len(packed)).to_bytes(4, "big")
    sealed = bytes(head) + packed
    return sealed[:17] + crc_at(sealed, 0, len(sealed), 2).to_bytes(4, "big") + sealed[21:]


def recorded(path: Path, *fields: bytes) -> Path:
    """A recording of a Produce for each, and of the end of their connection."""
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    for number, data in enumerate(fields, 1):
        asked = request("Produce", 9, produce_request({0: data}), number=number)
        recording.write([asked, response(asked, produce_response({0: number}))])
    recording.write([closed()])
    recording.close()
    return path


@pytest.fixture
def bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of five bombs, the first of which is within the spare."""
    monkeypatch.setattr(unpacking, "SPARE_RECORDS", RECORDS)
    return recorded(tmp_path / "some.mcap", *[hollow(RECORDS)] * COUNT)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("show --json FILE", 0),
        ("show --records t FILE", 0),
        ("show FILE value:x", 0),
        ("stats FILE value:x", 0),
        ("why FILE", 0),
        ("why FILE topic:t key:x", 0),
        ("report FILE --out OUT.html", 0),
        ("scan FILE", 1),
        ("textconv FILE", 0),
        ("export FILE --to OUT.jsonl", 0),
        ("export FILE value:x --to OUT.mcap", 0),
    ],
)
def test_a_command_ends_and_says_what_it_left_out(
    bombs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, code: int
) -> None:
    words = command.replace("FILE", str(bombs)).replace("OUT", str(tmp_path / "out")).split()
    words = [word.replace("topic:t", "topic:orders") for word in words]
    words = ["orders" if word == "t" else word for word in words]
    assert main(words) == code
    out, err = capsys.readouterr()
    told = err + out if "textconv" in command else err
    assert "unpack to too much: 4, the first #2" in told and told.count("unpack") == 1
    assert "no secrets found in 5" not in err
    assert out.count('"value": null') in (0, RECORDS)


def test_headers_count_as_records_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(unpacking, "SPARE_RECORDS", RECORDS)
    path = recorded(tmp_path / "some.mcap", *[with_headers(RECORDS)] * COUNT)
    assert main(["show", "--json", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "unpack to too much: 4, the first #2" in err
    assert out.count('{"key": "", "value": null}') == RECORDS
    assert out.count('"offset": 0') == COUNT, "the record before them is there"
    assert out.count(f"record 2 of 2: {RECORDS} headers out of compressed bytes") == COUNT - 1


def test_what_was_left_out_is_read_by_the_filter_that_is_told(bombs: Path) -> None:
    assert [len(each.records) for each in read(bombs, "number:2")] == [RECORDS]


@pytest.mark.parametrize(
    ("codec", "size", "headers"),
    [
        ("gzip", 0, 0),
        ("gzip", 200, 2),
        ("snappy", 10, 2),
        ("lz4", 200, 0),
        ("zstd", 0, 2),
        ("zstd", 200, 0),
    ],
)
def test_what_a_producer_writes_needs_nothing_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, size: int, headers: int
) -> None:
    monkeypatch.setattr(unpacking, "SPARE_RECORDS", 0)
    monkeypatch.setattr(unpacking, "SPARE_BYTES", 0)
    tags = (("type", b"order"),) * headers
    constant = [Record(number, number // 50, None, b"x" * size, tags) for number in range(5000)]
    path = recorded(tmp_path / "some.mcap", *[encode_batch(constant, compression=codec)] * 2)
    assert [len(each.records) for each in read(path)] == [5000, 5000]
