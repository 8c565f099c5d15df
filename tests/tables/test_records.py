"""The records view: rows made in columns are those that are read one by one, whatever was sent."""

from __future__ import annotations

import contextlib
import json
import struct
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import attrs
import hypothesis
import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import strategies as st

from kproxy import recording
from kproxy.protocol import messages, records
from kproxy.protocol.compression import CODECS, compress
from kproxy.protocol.message_sets import encode_message_set
from kproxy.protocol.record_batch import Record, read_header
from kproxy.recording import RecordingFile
from kproxy.tables import (
    item_columns,
    reading,
    record_bodies,
    record_columns,
    record_spans,
    splits,
)
from kproxy.tables.carried import BODIES_MIN
from kproxy.tables.views import RECORDS, chosen
from tests.bed import needs
from tests.exchange import making
from tests.exchange.bodies import (
    ORDERS,
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
)
from tests.payloads import making as payloads
from tests.recording.making import write

ALL = [column.name for column in RECORDS]


SIDE_BY_SIDE = reading.Portions(bodies_min=1)
"""Bodies are read side by side, however few there are."""
TREE = [
    *sorted((needs.REPOSITORY / "recordings").rglob("*.mcap")),
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
]


def found(
    path: Path,
    names: Sequence[str] = ALL,
    size: int = 1 << 27,
    portions: reading.Portions = SIDE_BY_SIDE,
) -> list[dict[str, Any]]:
    """The rows of the view."""
    columns = chosen("records", names)
    return [
        row
        for stretch in splits.stretches(splits.find([str(path)]), size)
        for batch in reading.record_batches(stretch, "records", columns, portions=portions)
        for row in batch.to_pylist()
    ]


def expected(path: Path, names: Sequence[str] = ALL) -> list[dict[str, Any]]:
    """What `Exchange.records` says, record by record."""
    columns = chosen("records", names)
    (constants,) = {
        tuple(reading.file_values(s).items()) for s in splits.stretches(splits.find([str(path)]))
    }
    return [
        {
            each.name: item_columns.cleaned(each.get((exchange, record)))
            for each in columns
            if each.get
        }
        | {name: value for name, value in constants if name in names}
        for exchange in recording.read([path])
        for record in exchange.records
    ]


@pytest.mark.parametrize("path", TREE, ids=lambda path: path.name)
def test_recordings_have_the_rows_that_are_read_one_by_one(path: Path) -> None:
    assert found(path) == expected(path)
    assert found(path, ["topic", "offset"], 20_000) == expected(path, ["topic", "offset"])


def test_decoded_records_are_json_where_they_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = payloads.write(tmp_path / "shop.mcap")
    rows = found(path)
    assert rows == expected(path)
    assert json.loads(rows[0]["value_json"]) == json.loads(payloads.VALUES[0][5:])
    assert [row["key_json"] for row in rows[:4]] == ['"ann"', None, None, '"mal"']
    assert [row["value_json"] for row in rows[1:4]] == [None] * 3, "not of a known schema, or bytes"
    monkeypatch.setattr(record_columns, "BYTES_MAX", 1)  # a portion for each decoded record
    assert found(path, ["value_json", "offset"]) == expected(path, ["value_json", "offset"])
    assert "value_json" not in reading.read([path], "records").schema.names


# ---------------------------------------------------------------- anything that can be sent

BYTES = (
    st.none() | st.binary(max_size=9) | st.sampled_from([b"", b"x" * 63, b"y" * 64, b"z" * 9000])
)
NAMES = st.sampled_from(["", "trace", "n\udcffo", "é", "x" * 70])
HEADERS = st.lists(st.tuples(NAMES, BYTES), max_size=3).map(tuple)
TIMES = st.integers(-1, 5) | st.sampled_from([100, 9_000, 1 << 40, 253_402_300_799_999, 1 << 62])
RECORD = st.builds(Record, st.just(0), TIMES, BYTES, BYTES, HEADERS | st.just(()))


@st.composite
def batches(draw: st.DrawFn) -> bytes:
    """One batch, or message set, of any kind."""
    some = draw(st.lists(RECORD, min_size=1, max_size=6))
    gaps = draw(st.lists(st.integers(1, 200), min_size=len(some), max_size=len(some)))
    offset = draw(st.sampled_from([0, 7, 1 << 40]))
    for index, gap in enumerate(gaps):
        some[index] = attrs.evolve(some[index], offset=offset)
        offset += gap
    codec = draw(st.sampled_from(CODECS))
    if draw(st.integers(0, 5)) == 0:
        plain = [attrs.evolve(each, headers=()) for each in some]
        magic = draw(st.sampled_from([0, 1]))
        return encode_message_set(plain, magic=magic, compression=codec)
    if draw(st.integers(0, 5)) == 0:
        marker = records.end_transaction_marker(
            some[0].offset, 1, commit=draw(st.booleans()), coordinator_epoch=0
        )
        return records.encode_batch([marker], producer_id=1, transactional=True, control=True)
    producer = draw(st.sampled_from([-1, 1, 2]))
    return records.encode_batch(
        some,
        compression=codec,
        log_append_time=draw(st.none() | st.just(1_700_000_000_123)),
        producer_id=producer,
        transactional=producer > 0,
    )


@st.composite
def fields(draw: st.DrawFn) -> bytes:
    """What stands in one partition: whole, cut off, or damaged."""
    data = bytearray(b"".join(draw(st.lists(batches(), max_size=3))))
    kind = draw(st.sampled_from(["whole", "whole", "whole", "cut", "flip"]))
    if data and kind == "cut":
        del data[draw(st.integers(0, len(data) - 1)) :]
    for _ in range(draw(st.integers(1, 3)) if data and kind == "flip" else 0):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data)


@st.composite
def exchanges(draw: st.DrawFn) -> list[Any]:
    """Produces and Fetches, answered or not."""
    entries: list[Any] = [making.opened()]
    for number in range(1, draw(st.integers(1, 6)) + 1):
        sets = draw(st.dictionaries(st.integers(0, 3), fields(), min_size=1, max_size=3))
        if draw(st.booleans()):
            version = draw(st.sampled_from([3, 8, 9, 12]))
            asked = making.request("Produce", version, produce_request(sets), number)
            offsets = dict.fromkeys(draw(st.sets(st.sampled_from(list(sets)))), 40)
            answer = produce_response(offsets, draw(st.sampled_from([0, 6])))
        else:
            version = draw(st.sampled_from([4, 11, 12, 13, 17]))
            asked = making.request("Fetch", version, fetch_request({0: 0}), number)
            answer = fetch_response(sets)
            answer.responses[0].topic_id = draw(st.sampled_from([ORDERS, UUID(int=0)]))
            if draw(st.booleans()):
                gone = messages.FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)
                answer.responses[0].partitions[0].aborted_transactions = [gone]
        entries.append(asked)
        if draw(st.integers(0, 4)):
            entries.append(making.response(asked, answer))
    return [*entries, making.closed()]


@contextlib.contextmanager
def recorded(entries: Iterable[Any]) -> Iterator[Path]:
    """A recording of these entries."""
    with tempfile.TemporaryDirectory() as folder:
        yield write(Path(folder) / "made.mcap", [list(entries)])


@hypothesis.settings(deadline=None)
@hypothesis.given(exchanges())
def test_whatever_is_sent_has_the_rows_that_are_read_one_by_one(entries: list[Any]) -> None:
    with recorded(entries) as path:
        assert found(path) == expected(path)
        few = ["partition", "key", "headers"]
        assert found(path, few) == expected(path, few)


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
def test_odd_batches_are_read_or_left_out_as_one_by_one(odd: bytes) -> None:
    with recorded(fetched(GOOD, odd + GOOD, GOOD)) as path:
        rows = found(path)
        assert rows == expected(path)
        assert [row["offset"] for row in (*rows[:2], *rows[-2:])] == [5, 6, 5, 6]


@hypothesis.given(st.lists(RECORD, min_size=1, max_size=5), st.data())
def test_what_is_found_at_once_is_what_is_read(some: list[Record], data: st.DataObject) -> None:
    """Damaged bytes give nothing here: they are read one by one."""
    whole = bytearray(records.encode_batch(some, base_offset=0))
    for _ in range(data.draw(st.integers(0, 2))):
        whole[data.draw(st.integers(61, len(whole) - 1))] = data.draw(st.integers(0, 255))
    batch = read_header(bytes(whole), 0, len(whole), 2)
    run = record_spans.BatchSpan(batch.raw, 61, len(whole), len(some))
    spans = record_spans.find([run, run])
    read = batch.records
    if batch.damage is not None:
        assert spans is None
        return
    if spans is not None:
        ends, nulls = spans.fields.tolist(), spans.nulls.tolist()
        cut = [
            tuple(None if null else spans.joined[start:end]
                  for null, start, end in zip(no, row[::2], row[1::2], strict=True))
            for row, no in zip(ends, nulls, strict=True)
        ]  # fmt: skip
        assert cut == [(each.key, each.value) for each in read] * 2


def test_topics_have_the_names_that_earlier_responses_tell(tmp_path: Path) -> None:
    metadata = messages.MetadataResponse(
        topics=[messages.MetadataResponse.MetadataResponseTopic(name="orders", topic_id=ORDERS)]
    )
    asked = making.request("Metadata", 12, messages.MetadataRequest(), 1)
    told = [making.opened(), asked, making.response(asked, metadata)]
    fetch = making.request("Fetch", 13, messages.FetchRequest(), 2)
    body = fetch_response({0: GOOD})
    body.responses[0].topic_id = ORDERS
    path = write(tmp_path / "ids.mcap", [told, [fetch, making.response(fetch, body)]])
    assert [row["topic"] for row in found(path)] == ["orders", "orders"]
    assert found(path) == expected(path)


@pytest.mark.parametrize("count", [BODIES_MIN - 1, BODIES_MIN, BODIES_MIN + 1])
def test_few_bodies_have_the_rows_of_many(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    find = record_bodies.find

    def counted(bodies: Sequence[bytes], shape: Any) -> Any:
        counts.append(len(bodies))
        return find(bodies, shape)

    monkeypatch.setattr(record_bodies, "find", counted)
    entries: list[Any] = []
    for number in range(1, count + 1):
        asked = making.request("Produce", 9, produce_request({0: GOOD}), number)
        entries += [asked, making.response(asked, produce_response({0: 40}))]
    path = write(tmp_path / "some.mcap", [entries])
    names = ["key", "value", "number"]
    read = found(path, names, portions=reading.PORTIONS)
    assert read == expected(path, names) and len(read) == 2 * count
    assert set(counts) == ({count} if count >= BODIES_MIN else set())


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_a_huge_batch_is_cut_into_record_batches(codec: str, tmp_path: Path) -> None:
    made = [Record(n, n, b"%d" % n, b"v" * 300) for n in range(150_000)]
    data = records.encode_batch(made, compression=codec)
    path = write(tmp_path / "huge.mcap", [fetched(GOOD, data, GOOD)])
    columns = chosen("records", ["offset", "key", "value"])
    (stretch,) = splits.stretches(splits.find([str(path)]))
    tables = list(reading.record_batches(stretch, "records", columns))
    assert max(map(len, tables)) <= record_columns.ROWS_MAX
    assert max(each.nbytes for each in tables) <= 1.1 * record_columns.BYTES_MAX
    rows = pa.Table.from_batches(tables)
    assert rows["offset"].to_pylist() == [5, 6, *range(150_000), 5, 6]
    assert rows["key"].to_pylist()[2:-2] == [each.key for each in made]


def test_many_batches_come_some_at_a_time(tmp_path: Path) -> None:
    data = records.encode_batch([Record(n, n, b"k" * 100, b"v" * 900) for n in range(1000)])
    path = write(tmp_path / "many.mcap", [fetched(*[data] * 20)] * 4)
    columns = chosen("records", ALL)
    (stretch,) = splits.stretches(splits.find([str(path)]))
    tracemalloc.start()
    try:
        rows = sum(map(len, reading.record_batches(stretch, "records", columns)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert rows == 80_000 and peak < 6 * record_columns.BYTES_MAX


def test_columns_that_do_not_need_it_open_no_response_of_a_produce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = making.request("Produce", 9, produce_request({0: GOOD}), 1)
    answered = making.response(asked, produce_response({0: 40}))
    path = write(tmp_path / "produce.mcap", [[making.opened(), asked, answered, making.closed()]])
    opened: list[int] = []
    frame_bytes = RecordingFile.frame_bytes
    monkeypatch.setattr(
        RecordingFile, "frame_bytes", lambda *at: opened.append(at[1]) or frame_bytes(*at)
    )
    assert [row["key"] for row in found(path, ["topic", "key"])] == [b"k", None]
    assert len(set(opened)) == 1
    assert [row["offset"] for row in found(path, ["offset"])] == [40, 41]


@pytest.mark.parametrize(("at", "number"), [(4, 1), (4, 3), (6, 99), (6, 8)])
def test_a_request_of_another_kind_than_its_row_is_read_as_what_it_is(
    at: int, number: int, tmp_path: Path
) -> None:
    value = records.encode_batch([Record(0, 0, None, b"value")])
    asked = making.request("Produce", 7, produce_request({0: value}))
    data = bytearray(asked.data)
    data[at : at + 2] = number.to_bytes(2, "big")
    answered = making.response(asked, produce_response({0: 0}))
    entries = [making.opened(), attrs.evolve(asked, pieces=[bytes(data)]), answered]
    path = write(tmp_path / "a.mcap", [entries])
    assert found(path) == expected(path)
