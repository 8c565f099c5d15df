"""What is made of groups of exchanges is what is made of them one by one."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.protocol import messages
from kproxy.recording import RecordingError
from kproxy.recording import exchanges as module
from kproxy.view import jsonl
from kproxy.view.lines import PLAIN, Folding, Lined
from kproxy.view.spread import Work, spread
from kproxy.view.stream import Stream
from tests.bed import needs
from tests.exchange.making import closed, request, response
from tests.recording.making import write

RECORDINGS = [
    *sorted((needs.REPOSITORY / "recordings").rglob("*.mcap")),
    *sorted((needs.REPOSITORY / "tests").rglob("*.mcap")),
]
COUNT = 40
Form = Callable[..., Iterator[str]]


def lines(path: Path, grouped: bool, wanted: str | None = None) -> Iterator[str]:
    """The lines of `show` and of its JSON, as they come, and the notices."""
    stream = Stream([path], parse(wanted) if wanted else None)
    folding = Folding(PLAIN)
    if grouped:
        work = Work[Lined | ConnectionEnd](folding.lined, lambda end: (end,))
        for each in spread(stream, work, processes=1):
            yield from folding.fold(each)
    else:
        for each in stream.shown():
            yield from folding.take(each)
    yield from folding.flush()
    yield from stream.notices


def json_lines(path: Path, grouped: bool, wanted: str | None = None) -> Iterator[str]:
    """The same for its JSON."""
    stream = Stream([path], parse(wanted) if wanted else None)
    if grouped:
        work = Work(
            lambda exchanges: jsonl.lines(exchanges, stream.recording),
            lambda end: (jsonl.end_line(end, stream.recording),),
        )
        yield from spread(stream, work, processes=1)
    else:
        for each in stream.shown():
            if isinstance(each, ConnectionEnd):
                yield jsonl.end_line(each, stream.recording)
            else:
                yield "".join(jsonl.lines([each], stream.recording))
    yield from stream.notices


FORMS = pytest.mark.parametrize("form", [lines, json_lines], ids=["lines", "json"])


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


@FORMS
@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("wanted", [None, "is:routine", "topic:*", "api:Fetch"])
def test_lines_are_the_same(form: Form, path: Path, wanted: str | None) -> None:
    assert "".join(form(path, True, wanted)) == "".join(form(path, False, wanted))


@FORMS
@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_the_size_of_a_group_does_not_matter(
    form: Form, beats: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(form(beats, False))
    assert len(expected) == COUNT
    monkeypatch.setattr(module, "_GROUP_EXCHANGES", size)
    assert list(form(beats, True)) == expected


def test_noise_is_folded_alike_in_a_group(tmp_path: Path) -> None:
    """Heartbeats of two connections, of which some fail, and one connection ends in between."""
    entries: list = []
    for number in range(1, 200):
        connection = number % 3 + 1
        if connection == 3 and number > 100:
            continue
        frame = request(
            "Heartbeat", 4, messages.HeartbeatRequest(group_id="shop"), number, connection
        )
        code = 27 * (number % 11 == 0 or number % 7 == 0)
        entries += [frame, response(frame, messages.HeartbeatResponse(error_code=code))]
        if number == 100:
            entries.append(closed(3))
    path = write(tmp_path / "noise.mcap", [entries])
    alone = list(lines(path, False))
    assert any("×" in line for line in alone), "some are folded"
    assert list(lines(path, True)) == alone


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
    assert [number for group in groups for number in group] == list(range(1, COUNT + 1))
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


@FORMS
@pytest.mark.parametrize("wanted", [None, "error:REBALANCE_IN_PROGRESS"])
def test_damage_is_found_where_it_is(
    form: Form, beats: Path, tmp_path: Path, wanted: str | None
) -> None:
    whole = beats.read_bytes()

    def taken(path: Path, grouped: bool) -> tuple[list[str], str]:
        found: list[str] = []
        try:
            found.extend(form(path, grouped, wanted))
        except RecordingError as error:
            return found, str(error)
        return found, ""

    path, outcomes = tmp_path / "damaged.mcap", set[int]()
    for at in range(400, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        alone = taken(path, grouped=False)
        assert taken(path, grouped=True) == alone
        if alone[1]:
            outcomes.add(len(alone[0]))
    assert len(outcomes) > 1, "damage was found at several places"
