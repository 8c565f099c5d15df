"""What is made of groups of exchanges is what is made of them one by one."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import pytest

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.protocol import messages
from kproxy.recording import RecordingError
from kproxy.recording import exchanges as module
from kproxy.view.show import show_json, show_lines
from kproxy.view.stream import Stream
from tests.bed import needs
from tests.exchange.batches import batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import MS, START_NS, closed, opened, request, response
from tests.recording.making import write

RECORDINGS = [
    *sorted((needs.REPOSITORY / "recordings").rglob("*.mcap")),
    *sorted((needs.REPOSITORY / "tests").rglob("*.mcap")),
]
COUNT = 40
BEAT = messages.HeartbeatRequest(group_id="shop")
Show = Callable[..., None]
FORMS = pytest.mark.parametrize("show", [show_lines, show_json])


def shown(show: Show, paths: Sequence[Path], wanted: str | None = None) -> tuple[str, str]:
    """What a command writes, and the error that ends it."""
    out, error = io.StringIO(), ""
    try:
        show(paths, out, wanted=parse(wanted) if wanted else None)
    except RecordingError as raised:
        error = str(raised)
    return out.getvalue(), error


def one_by_one(
    monkeypatch: pytest.MonkeyPatch, show: Show, paths: Sequence[Path], wanted: str | None = None
) -> tuple[str, str]:
    """The same, of groups of one."""
    with monkeypatch.context() as patch:
        patch.setattr(module, "_GROUP_EXCHANGES", 1)
        return shown(show, paths, wanted)


@pytest.fixture(scope="module")
def beats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three batches of heartbeats on four connections."""
    batches: list[list] = []
    for first in range(1, COUNT + 1, 16):
        entries: list = []
        for number in range(first, min(first + 16, COUNT + 1)):
            body = messages.HeartbeatRequest(group_id="checkout" * number)
            frame = request("Heartbeat", 4, body, number, number % 4 + 1)
            entries += [frame, response(frame, messages.HeartbeatResponse(error_code=27))]
        batches.append(entries)
    return write(tmp_path_factory.mktemp("groups") / "beats.mcap", batches)


def beating(
    numbers: range, connection: int, error: Callable[[int], bool] = lambda number: False
) -> list:
    """Heartbeats of a connection, of which some fail."""
    entries: list = []
    for number in numbers:
        frame = request("Heartbeat", 4, BEAT, number, connection)
        code = 27 * error(number)
        entries += [frame, response(frame, messages.HeartbeatResponse(error_code=code))]
    return entries


@FORMS
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("wanted", [None, "is:routine", "topic:*", "api:Fetch"])
def test_it_is_the_same(
    show: Show, path: Path, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(show, [path], wanted) == one_by_one(monkeypatch, show, [path], wanted)


@FORMS
@pytest.mark.parametrize("size", [2, 7])
def test_the_size_of_a_group_does_not_matter(
    show: Show, beats: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = one_by_one(monkeypatch, show, [beats])
    assert expected[0].count("\n") == COUNT
    monkeypatch.setattr(module, "_GROUP_EXCHANGES", size)
    assert shown(show, [beats]) == expected


def test_noise_is_folded_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two connections send heartbeats, of which some fail; a third ends in between."""
    entries = beating(range(1, 200, 3), 1, lambda number: number % 7 == 0)
    entries += beating(range(2, 200, 3), 2, lambda number: number % 11 == 0)
    entries += beating(range(3, 100, 3), 3)
    entries.append(attrs.evolve(closed(3), time_ns=START_NS + 101 * MS))
    entries.sort(key=lambda entry: entry.time_ns)
    path = write(tmp_path / "noise.mcap", [entries])
    alone = one_by_one(monkeypatch, show_lines, [path])
    assert "×" in alone[0], "some are folded"
    assert shown(show_lines, [path]) == alone


def test_a_recording_begins_with_noise_of_a_connection_that_one_before_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths: list[Path] = []
    for name, ends in (("ends", True), ("open", False), ("last", False)):
        entries = [opened(1, node_id=1), *beating(range(1, 6), 1)]
        if ends:
            entries.append(attrs.evolve(closed(1), time_ns=START_NS + 9 * MS))
        paths.append(write(tmp_path / f"{name}.mcap", [entries]))
    alone = one_by_one(monkeypatch, show_lines, paths)
    assert shown(show_lines, paths) == alone
    lines = alone[0].splitlines()
    assert "" not in lines
    for name in ("ends", "open", "last"):
        (first,) = (line for line in lines if f"{name}#" in line)
        assert f"{name}#1 " in first, "the first of each, and the others counted"
    assert sum("Heartbeat ×4" in line for line in lines) == 3


def test_a_group_is_of_one_batch_and_bounded(beats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []

    def take(exchanges: Sequence[Exchange]) -> list[int]:
        groups.append([each.number for each in exchanges])
        return groups[-1]

    def sizes() -> list[int]:
        groups.clear()
        assert list(Stream([beats]).shown(None, take)) == list(range(1, COUNT + 1))
        return list(map(len, groups))

    assert sizes() == [16, 16, 8]
    monkeypatch.setattr(module, "_GROUP_EXCHANGES", 10)
    assert sizes() == [10, 6, 10, 6, 8]
    rows = [each.row for each in Stream([beats]).shown()]
    bytes_of = [row.request_bytes + row.response_bytes for row in rows]
    monkeypatch.setattr(module, "_GROUP_BYTES", max(bytes_of))
    assert 1 < max(sizes()) < 10
    monkeypatch.setattr(module, "_GROUP_BYTES", min(bytes_of) - 1)  # then each is a large one
    assert sizes() == [1] * COUNT


def test_nothing_keeps_an_exchange_that_was_given(beats: Path) -> None:
    given: list[weakref.ref[object]] = []
    for each in Stream([beats]).shown():
        assert not any(before() for before in given)
        given.append(weakref.ref(each))
        del each
    assert len(given) == COUNT


def test_records_that_a_filter_reads_are_not_kept_for_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small batch may become a thousand times as large."""
    entries: list = []
    for number in range(1, COUNT + 1):
        data = batch(1, number, b"paid" if number % 2 else b"new")
        frame = request("Produce", 9, produce_request({0: data}), number)
        entries += [frame, response(frame, produce_response({0: number}))]
    path = write(tmp_path / "records.mcap", [entries])
    read: list[weakref.ref[object]] = []
    matches = module.Reader._matches

    def one_at_a_time(reader: module.Reader, exchange: Exchange) -> bool:
        assert not any(before() for before in read)
        read.append(weakref.ref(exchange))
        return matches(reader, exchange)

    monkeypatch.setattr(module.Reader, "_matches", one_at_a_time)
    lines, _ = shown(show_lines, [path], "value:paid")
    assert lines.count("\n") == COUNT // 2 and len(read) == COUNT


@FORMS
@pytest.mark.parametrize("wanted", [None, "error:REBALANCE_IN_PROGRESS"])
def test_damage_is_found_where_it_is(
    show: Show, beats: Path, tmp_path: Path, wanted: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = beats.read_bytes()
    path, outcomes = tmp_path / "damaged.mcap", set[int]()
    for at in range(400, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        alone = one_by_one(monkeypatch, show, [path], wanted)
        assert shown(show, [path], wanted) == alone
        if alone[1]:
            outcomes.add(alone[0].count("\n"))
    assert len(outcomes) > 1, "damage was found at several places"


def test_an_end_that_came_before_the_damage_is_shown(tmp_path: Path) -> None:
    data = bytearray((needs.REPOSITORY / "tests/recording/formats/2/large.mcap").read_bytes())
    data[44598] ^= 1
    path = tmp_path / "damaged.mcap"
    path.write_bytes(data)
    text, error = shown(show_json, [path])
    assert '"event": "closed"' in text.splitlines()[-1] and "is damaged" in error
