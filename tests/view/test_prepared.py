"""What is made of exchanges ahead, in groups, is what is made of them one by one."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.protocol import messages
from kproxy.recording import RecordingError
from kproxy.recording import exchanges as module
from kproxy.view.lines import PLAIN, Folding, prepare
from kproxy.view.stream import Stream
from tests.bed import needs
from tests.exchange.making import request, response
from tests.recording.making import write

RECORDINGS = [
    *sorted((needs.REPOSITORY / "recordings").rglob("*.mcap")),
    *sorted((needs.REPOSITORY / "tests").rglob("*.mcap")),
]
COUNT = 40


def lines(path: Path, prepares: bool, wanted: str | None = None) -> Iterator[str]:
    stream = Stream([path], parse(wanted) if wanted else None)
    stream.prepare = prepare if prepares else None
    folding = Folding(PLAIN)
    for each in stream.shown():
        yield from folding.take(each)
    yield from folding.flush()
    yield from stream.notices


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
    return write(tmp_path_factory.mktemp("prepared") / "beats.mcap", batches)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("wanted", [None, "is:routine", "topic:*", "api:Fetch"])
def test_lines_are_the_same(path: Path, wanted: str | None) -> None:
    assert list(lines(path, True, wanted)) == list(lines(path, False, wanted))


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_the_size_of_a_group_does_not_matter(
    beats: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(lines(beats, False))
    assert len(expected) == COUNT
    monkeypatch.setattr(module, "_GROUP_EXCHANGES", size)
    assert list(lines(beats, True)) == expected


def test_a_group_is_of_one_batch_and_bounded(beats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []

    def take(exchanges: Sequence[Exchange]) -> None:
        groups.append([each.number for each in exchanges])

    def sizes() -> list[int]:
        groups.clear()
        assert len(list(Stream([beats], prepare=take).shown())) == COUNT
        return list(map(len, groups))

    assert sizes() == [16, 16, 8]
    monkeypatch.setattr(module, "_GROUP_EXCHANGES", 10)
    assert sizes() == [10, 6, 10, 6, 8]
    assert [number for group in groups for number in group] == list(range(1, COUNT + 1))
    rows = [each.row for each in Stream([beats]).shown()]
    bytes_of = [row.request_bytes + row.response_bytes for row in rows]
    monkeypatch.setattr(module, "_GROUP_BYTES", max(bytes_of))
    assert max(sizes()) < 10 and sum(sizes()) == COUNT
    monkeypatch.setattr(module, "_GROUP_BYTES", min(bytes_of) - 1)  # then each is a large one
    assert sum(sizes()) == 0


def test_a_group_does_not_keep_what_it_has_given(beats: Path) -> None:
    given: list[weakref.ref[object]] = []
    for each in Stream([beats], prepare=prepare).shown():
        assert not any(before() for before in given)
        given.append(weakref.ref(each))
        del each
    assert len(given) == COUNT


def test_damage_is_found_where_it_is(beats: Path, tmp_path: Path) -> None:
    whole = beats.read_bytes()

    def taken(path: Path, prepares: bool) -> tuple[list[str], str]:
        found: list[str] = []
        try:
            found.extend(lines(path, prepares))
        except RecordingError as error:
            return found, str(error)
        return found, ""

    path, outcomes = tmp_path / "damaged.mcap", set[int]()
    for at in range(400, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        alone = taken(path, prepares=False)
        assert taken(path, prepares=True) == alone
        if alone[1]:
            outcomes.add(len(alone[0]))
    assert len(outcomes) > 1, "damage was found at several places"
