"""Rows of recordings without Spark: they are what `kproxy show` shows, however they are cut."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording
from kproxy.exchange.body_json import DECODED_KEYS
from kproxy.exchange.entries import (
    CLIENT_ENDED,
    NO_API,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    Frame,
    Side,
)
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.jsonl import to_json
from kproxy.look.lines.record_lines import RecordSelection, json_pieces
from kproxy.recording import RecordingError
from kproxy.recording.exchanges import StoredFrames
from kproxy.recording.uri import located
from kproxy.tables import batches, reading, splits
from kproxy.tables.views import EXCHANGES, chosen
from kproxy.units import moment
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.exchange.making import request, response
from tests.recording import making
from tests.tables import storage
from tests.versions import some

RECORDINGS = needs.REPOSITORY / "recordings"
DEMO = RECORDINGS / "demo.mcap"
MOCK_CLUSTER = needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
SMALL = [
    DEMO,
    MOCK_CLUSTER,
    *sorted(FORMATS.glob("*.mcap")),
]
ALL = [column.name for column in EXCHANGES]


def cut(path: str, size: int = 1 << 27) -> list[splits.BatchRange]:
    """The stretches of a recording."""
    return splits.stretches(splits.find([path]), size)


def rows(
    paths: Sequence[Path], view: str, names: Iterable[str] | None = None, size: int = 1 << 27
) -> list[dict[str, Any]]:
    """The rows of recordings, cut into stretches of a size."""
    columns = chosen(view, names)
    found: list[dict[str, Any]] = []
    for stretch in splits.stretches(splits.find(list(map(str, paths))), size):
        for batch in reading.record_batches(stretch, view, columns):
            found += batch.to_pylist()
    return found


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row as `kproxy show --json` has it."""
    more = {"time": row["time"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    for name in ("request", "response"):
        more[name] = row[name] and json.loads(row[name])
    return row | more


def check_exchanges(paths: Sequence[Path], size: int = 1 << 27) -> None:
    """Check that exchanges equal what is shown, with bodies and from tables alone."""
    expected = [to_json(exchange) for exchange in recording.read(paths)]
    whole = [shown(row) for row in rows(paths, "exchanges", ALL, size)]
    plain = rows(paths, "exchanges", None, size)
    key = "number" if len(paths) == 1 else None
    if key and size < 1 << 27:  # the rest of a torn file comes last in both
        assert len({row[key] for row in whole}) == len(whole)
    assert [
        {name: row[name] for name in wanted} for row, wanted in zip(whole, expected, strict=True)
    ] == expected
    for row, same in zip(plain, whole, strict=True):
        assert row == {name: same[name] for name in row} | {"time": row["time"]}


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.name)
def test_exchanges_equal_what_show_says(path: Path) -> None:
    check_exchanges([path])


@pytest.mark.parametrize("size", some([1, 20_000, 1 << 27], [20_000]))
def test_rotated_recordings_of_several_clients_and_faults_do_too(indexed: Path, size: int) -> None:
    check_exchanges([indexed], size)
    found = rows([indexed], "exchanges", ["faults", "injected", "errors"], size)
    assert {name for row in found for name in row["faults"]} == {"late", "cut", "slow", "away"}
    assert any(row["injected"] for row in found)


def test_a_torn_recording_has_what_was_pending(broken: Path, tmp_path: Path) -> None:
    whole = (broken / "recording.mcap").read_bytes()
    torn = tmp_path / "torn.mcap"
    for cut in (len(whole) // 3, len(whole) - 100):
        torn.write_bytes(whole[:cut])
        check_exchanges([torn], 10_000)
        (note,) = (row for row in rows([torn], "events") if row["event"] == "torn")
        assert str(torn) in note["body"]


def test_stretches_share_the_batches_and_know_the_connections(indexed: Path) -> None:
    found = cut(str(indexed), 10_000)
    assert len(found) > 5 and any(stretch.notes for stretch in found)
    numbers = [row["number"] for row in rows([indexed], "exchanges", ["number"], 10_000)]
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    assert all(row["client_id"] for row in rows([indexed], "exchanges", ["client_id"], 10_000))
    packed = splits.packed(found, 30_000)
    assert [each for group in packed for each in group] == found
    total = sum(each.bytes for each in found)
    share = total / math.ceil(total / 30_000)  # tasks are as even as they can be
    assert all(sum(each.bytes for each in group) >= share for group in packed[:-1])


def test_texts_that_are_no_unicode_become_it(tmp_path: Path) -> None:
    fetch = messages.FetchRequest
    partition = fetch.FetchPartition(partition=3)
    topics = [fetch.FetchTopic(topic="d\udcffb", partitions=[partition])]
    asked = request("Fetch", 12, fetch(topics=topics))
    answered = response(asked, messages.FetchResponse(error_code=70))
    path = making.write(tmp_path / "fetch.mcap", [[asked, answered]])
    assert rows([path], "exchanges", ["topics", "partitions", "groups", "errors"]) == [
        {
            "topics": ["d\ufffdb"],
            "partitions": [{"topic": "d\ufffdb", "partition": 3}],
            "groups": [],
            "errors": ["FETCH_SESSION_ID_NOT_FOUND"],
        }
    ]


def test_records_equal_what_show_says(broken: Path) -> None:
    expected = [
        json.loads(line)
        for exchange in recording.read(broken)
        for topic in exchange.topics
        for line in "".join(json_pieces(exchange, RecordSelection(topic))).splitlines()
    ]
    found = rows([broken], "records", None, 10_000)
    assert len(found) > 500
    for row, same in zip(sorted(found, key=_place), sorted(expected, key=_place), strict=True):
        row["timestamp"] = row.pop("timestamp_ms")
        row["headers"] = [each | {"value": _text(each["value"])} for each in row["headers"]]
        row |= {name: _text(row[name]) for name in ("key", "value")}
        shown = {name: each for name, each in same.items() if name not in DECODED_KEYS}
        assert {name: row[name] for name in shown} == shown


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["number"], row["topic"], row["partition"], row["offset"] or 0


def _text(value: bytes | None) -> Any:
    from kproxy.wire.protocol.record_json import bytes_pieces

    return json.loads("".join(bytes_pieces(value)))


@pytest.mark.parametrize("size", [10_000, 1 << 27])
def test_frames_say_what_each_of_them_does(broken: Path, size: int) -> None:
    for path in (DEMO, MOCK_CLUSTER, broken):
        check_frames(path, size)


def check_frames(path: Path, size: int = 1 << 27) -> None:
    """Check that columns of frames equal what the frames say, each by itself."""
    expected = [
        _frame_row(exchange, frame)
        for exchange in recording.read(path)
        for frame in exchange.frames
        if frame is not None
    ]
    assert rows([path], "frames", expected[0], size) == expected


def _frame_row(exchange: Exchange, frame: Frame) -> dict[str, Any]:
    token, named = frame.flags & RAW_SASL, frame.api_key != NO_API and not frame.flags & RAW_SASL
    api = protocol.api_name(frame.api_key) if frame.api_key != NO_API else None
    same = ("number", "connection", "frame_bytes", "received_ns", "data")
    row = exchange.row
    # When its client ended is known when it leaves, behind the frame: its row has it.
    late = row.response_flags & CLIENT_ENDED if frame.side is Side.BROKER else 0
    headers = ("api_key", "api_version", "correlation_id")
    return {
        **{name: getattr(frame, name) for name in same},
        **{name: getattr(frame, name) if named else None for name in headers},
        "side": frame.side.name.lower(),
        "flags": frame.flags | late,
        # It may have been recorded before it left: its exchange knows when.
        "sent_ns": row.response_sent_ns if frame.side else row.request_sent_ns,
        "api": "SaslToken" if token else api,
        "time": moment(frame.received_ns),
        "opaque": bool(frame.flags & OPAQUE),
        "redacted": bool(frame.flags & REDACTED),
        "client_id": exchange.client_id,
        "node_id": exchange.node_id,
    }


def test_default_columns_open_no_frames(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> None:
        raise AssertionError("a frame was opened")

    monkeypatch.setattr(StoredFrames, "frame", opened)
    monkeypatch.setattr(StoredFrames, "data", opened)
    assert len(rows([DEMO], "frames")) == 2 * len(rows([DEMO], "exchanges"))
    assert rows([broken], "exchanges", None, 10_000)
    with pytest.raises(AssertionError, match="a frame was opened"):
        rows([DEMO], "frames", ["data"])


def test_record_batches_with_bytes_are_bounded(
    broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = rows([broken], "frames", ["data"])
    monkeypatch.setattr(batches, "BYTES_MAX", 20_000)
    for view, names in (("frames", ["data"]), ("exchanges", ["request_frame", "response_frame"])):
        largest = max(len(value or b"") for row in expected for value in row.values())
        found: list[Any] = []
        for stretch in cut(str(broken)):
            for batch in reading.record_batches(stretch, view, chosen(view, names)):
                assert batch.nbytes < 20_000 + 3 * largest
                found += [value for row in batch.to_pylist() for value in row.values()]
        assert [each for each in found if each] == [row["data"] for row in expected]


@pytest.mark.parametrize("size", [1, 1 << 27])
def test_it_is_there_of_every_kind_and_in_the_last_file_alone(tmp_path: Path, size: int) -> None:
    program = [sys.executable, "-m", "tests.recording.killed_pending", str(tmp_path / "a.mcap")]
    killed = subprocess.run(program, check=False, cwd=needs.REPOSITORY)
    assert killed.returncode == -signal.SIGKILL
    check_exchanges([tmp_path], size)
    check_exchanges(recording.recordings(tmp_path)[-1:], size)


def test_events_have_the_faults(broken: Path) -> None:
    found = rows([broken], "events")
    hits = [row for row in found if row["event"] == "fault"]
    assert {row["fault"] for row in hits} == {"late", "cut", "slow", "away"}
    assert all(json.loads(row["body"])["fault_id"] and row["number"] for row in hits)
    assert any(row["first"] == "client" for row in found if row["event"] == "closed")


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("/nowhere.mcap", "does not exist"),
        ("/nowhere*.mcap", "matches no file"),
        ("what://bucket/a.mcap", "cannot be read: Unrecognized filesystem type"),
        ("s3://bucket/a.mcap?endpoint_override=127.0.0.1:1&what=1", "cannot be read: Unexpected"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, what: str) -> None:
    with pytest.raises(RecordingError, match=what):
        splits.find([text])


def test_recordings_are_read_from_a_bucket(indexed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "captures of today"
    folder.mkdir()
    for path in indexed.glob("*.mcap"):
        shutil.copy(path, folder)
    expected = [to_json(exchange) for exchange in recording.read(indexed)]
    names = ["number", "file", "topics", "errors", "client_id"]
    with storage.serving(tmp_path) as bucket:
        found = cut(bucket.uri(folder.name), 20_000)
        assert len(found) > 2 * len(list(folder.iterdir())), "files with an index are cut"
        some_batches = [reading.record_batches(each, "exchanges", chosen("exchanges", names))
                   for each in found]  # fmt: skip
        read = [row for some in some_batches for batch in some for row in batch.to_pylist()]
        for row, same in zip(read, expected, strict=True):
            assert "secret" not in row["file"] and "/captures%20of%20today/" in row.pop("file")
            assert row == {name: same[name] for name in row}
        found = cut(bucket.uri(folder.name))
        for text in (
            f"{folder.name}/*.mcap",
            "captures of toda?/recording*.mcap",
            "captures of [s-u]oday/*",
            "**/rec*.mcap",
        ):
            assert cut(bucket.uri(text)) == found, text
        assert len(found) == len(list(folder.iterdir())), "a file is one task"
        assert [each.bytes for each in found] == [
            located(each.path).stat().st_size for each in found
        ]
        assert len(splits.packed(found)) == 1, "a task has 128 MiB to read, from afar too"
        for text, what in (
            ("nothing.mcap", "does not exist"),
            ("nothing*", "matches no file"),
            ("capture?/*", "matches no file"),
            ("captures of [z-a]oday/*", "matches no file"),
        ):
            with pytest.raises(RecordingError, match=what) as raised:
                splits.find([bucket.uri(text)])
            assert "secret" not in str(raised.value)
