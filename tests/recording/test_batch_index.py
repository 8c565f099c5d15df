"""The index of batches: what is read with it is what is read without it, and less of the file."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import attrs
import hypothesis
import mcap.reader
import pytest
from hypothesis import strategies as st

from kproxy import recording
from kproxy.exchange.entries import CONNECTIONS, Frame, Note
from kproxy.exchange.filter import Filter, parse
from kproxy.recording import (
    RecordingError,
    RecordingFile,
    batch_index,
    recover,
    verify,
    writer,
)
from kproxy.recording.writer import Writer
from tests.exchange.filters import FILTERS
from tests.recording import making
from tests.recording.making import request, response

CONNECTION_COUNT = 20
EACH = 40
BYTES = 3000


@pytest.fixture(autouse=True)
def in_small_files() -> Iterator[None]:
    """Small files have an index, too."""
    with mock.patch.object(writer, "FILE_BYTES_MIN", 0):
        yield


def traffic(path: Path, interleaved: bool, close: bool = True) -> Path:
    """A recording of connections at once, or one after the other."""
    made = Writer(path, **making.SETTINGS)
    names = range(1, CONNECTION_COUNT + 1)
    made.write([making.opened(each, client_address=f"10.0.0.{each}:5000") for each in names])
    made.write(
        Note(CONNECTIONS, making.START_NS, {
            "event": "client_id", "connection": each, "client_id": f"app-{each}",
        })
        for each in names
    )  # fmt: skip
    for number in range(1, CONNECTION_COUNT * EACH + 1):
        connection = 1 + (number % CONNECTION_COUNT if interleaved else (number - 1) // EACH)
        more = {"connection": connection, "api_key": number % 3, "api_version": 9}
        body = os.urandom(BYTES)
        made.write([request(number, body, **more), response(number, body, **more)])
    if close:
        made.close()
    else:
        made.abandon()
    return path


def bytes_read(action: Callable[[], Any]) -> int:
    """How many bytes an action reads of files."""

    def now() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = now()
    action()
    return now() - before


def numbers(path: Path, wanted: str | Filter) -> list[int]:
    """The numbers of the exchanges that match."""
    return [each.number for each in recording.read(path, wanted)]


def index_of(path: Path) -> list[batch_index.ChunkFacts] | None:
    """What the index of a file says, if it is used."""
    with RecordingFile(path) as file:
        file.use_index()
        found = [batch.facts for batch in file.batches() if batch.facts is not None]
    return found or None


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts bytes read")
@pytest.mark.parametrize(("interleaved", "share"), [(True, 0.5), (False, 0.15)])
def test_one_connection_takes_a_part_of_the_file(
    interleaved: bool, share: float, tmp_path: Path
) -> None:
    path = traffic(tmp_path / "some.mcap", interleaved)
    for wanted in ("connection:7", "client_id:app-7", "client_address:10.0.0.7*"):
        expected = [each.number for each in recording.read(path) if each.connection == 7]
        assert len(expected) == EACH
        read = bytes_read(lambda wanted=wanted: numbers(path, wanted))
        assert numbers(path, wanted) == expected
        assert read < path.stat().st_size * share
    every = bytes_read(lambda: numbers(path, "time:..2020-01-01"))
    assert every < path.stat().st_size * 0.1


@hypothesis.given(making.batches_of_entries, st.lists(FILTERS, min_size=1, max_size=4))
@hypothesis.settings(max_examples=40)
def test_filters_mean_the_same_with_it(
    batches: list[list[Frame | Note]], filters: list[Filter]
) -> None:
    frames = [each for batch in batches for each in batch if isinstance(each, Frame)]
    hypothesis.assume(len({(each.side, each.number) for each in frames}) == len(frames))
    for nth, frame in enumerate(frames):  # no answer before its request
        hypothesis.assume(
            not frame.side or frame.number not in {e.number for e in frames[nth + 1 :]}
        )
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(writer, "FILE_BYTES_MIN", 0):
        path = making.write(Path(folder) / "some.mcap", batches)
        every = list(recording.read(path, told=lambda note: None))
        matching = [[e.number for e in every if wanted.matches(e)] for wanted in filters]
        assert [numbers(path, wanted) for wanted in filters] == matching


def test_notes_and_unanswered_requests_are_told_with_it(tmp_path: Path) -> None:
    path = making.write(
        tmp_path / "some.mcap",
        [
            [making.opened(), making.opened(4), request(1, b"x" * 30)],
            [request(2, b"x" * 30, connection=4), response(2, b"y" * 30, connection=4)],
            [making.event("topic_id", topic_id="x", topic="orders")],
            [request(3, b"x" * 30), request(4, b"x" * 30, connection=4)],
            [response(4, b"y" * 30, connection=4), Note(CONNECTIONS, making.START_NS + 9_000_000, {
                "event": "closed", "connection": 3,
            })],
        ],
    )  # fmt: skip
    assert index_of(path) is not None
    told: list[Note] = []
    found = list(recording.read(path, "connection:3", told.append))
    every: list[Note] = []
    expected = [each for each in recording.read(path, told=every.append) if each.connection == 3]
    assert [(e.number, e.unanswered) for e in found] == [(e.number, e.unanswered) for e in expected]
    assert [each.body for each in told] == [each.body for each in every]
    assert "index" not in {each.body["event"] for each in every}


def test_what_only_the_end_of_its_connection_ends_is_found_by_who_begins_behind_it(
    tmp_path: Path,
) -> None:
    path = making.write(
        tmp_path / "some.mcap",
        [
            [making.opened(), making.opened(4), request(1, b"x" * 30)],
            [request(2, b"x" * 30), response(2, b"y" * 30, sent_ns=0)],
            [request(3, b"x" * 30, connection=4), response(3, b"y" * 30, connection=4)],
            [Note(CONNECTIONS, making.START_NS + 9_000_000, {"event": "closed", "connection": 3})],
        ],
    )
    with RecordingFile(path) as file:
        last = list(file.batches())[-2]
    with RecordingFile(path) as file:
        file.use_index()
        file.skip_to(last.offset)
        rows = [row for batch in file.batches() for row in file.exchanges(batch)]
    assert sorted(rows) == sorted(each.row for each in recording.read(path) if each.number != 3)
    assert sorted(numbers(path, "is:unanswered")) == [1, 2]


def test_what_was_asked_long_before_is_found_by_its_time(tmp_path: Path) -> None:
    later = {"received_ns": making.START_NS + 10**10, "sent_ns": making.START_NS + 10**10}
    answer = response(1, b"y", **later)
    batches = [[request(1, b"x" * 30)], [request(2, b"x" * 30, **later), answer]]
    path = making.write(tmp_path / "some.mcap", batches)
    assert index_of(path) is not None
    (found,) = recording.read(path, "time:..+5s")
    assert (found.number, found.response_frame) == (1, answer.data)


def test_other_readers_take_it_for_a_note(tmp_path: Path) -> None:
    path = traffic(tmp_path / "some.mcap", True)
    verify(path)
    with path.open("rb") as file:
        reader = mcap.reader.make_reader(file, validate_crcs=True)
        events = [json.loads(each.data) for _, _, each in reader.iter_messages("/kafka/events")]
    assert [each["event"] for each in events] == ["index"]


def test_a_small_file_has_none(tmp_path: Path) -> None:
    with mock.patch.object(writer, "FILE_BYTES_MIN", 16 << 20):
        assert index_of(traffic(tmp_path / "some.mcap", True)) is None


def test_recover_writes_it(tmp_path: Path) -> None:
    whole = traffic(tmp_path / "whole.mcap", False)
    torn = traffic(tmp_path / "torn.mcap", False, close=False)
    assert index_of(torn) is None
    with mock.patch("kproxy.recording.recovery.FILE_BYTES_MIN", 0):
        recover(torn)
    verify(torn)
    known, made = index_of(torn), index_of(whole)
    assert known is not None and made is not None
    assert [each.connections for each in known[:-1]] == [each.connections for each in made]
    assert numbers(torn, "connection:7") == numbers(whole, "connection:7")


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording with an index."""
    with mock.patch.object(writer, "FILE_BYTES_MIN", 0):
        return traffic(tmp_path_factory.mktemp("indexed") / "some.mcap", False)


@pytest.mark.parametrize("share", [0.001, 0.2, 0.4, 0.6, 0.8, 0.95, 0.999])
def test_what_is_damaged_of_it_is_said_or_not_used(
    share: float, indexed: Path, tmp_path: Path
) -> None:
    expected = numbers(indexed, "connection:7")
    data = bytearray(indexed.read_bytes())
    with RecordingFile(indexed) as file:
        begin = list(file.batches())[-1].offset
    damaged = tmp_path / "damaged.mcap"
    data[begin + int((len(data) - begin) * share)] ^= 4
    damaged.write_bytes(data)
    try:
        assert numbers(damaged, "connection:7") == expected
    except RecordingError as error:
        assert "damaged" in str(error)


def test_one_that_belongs_to_other_bytes_is_not_used(indexed: Path, tmp_path: Path) -> None:
    data = bytearray(indexed.read_bytes())
    other = tmp_path / "other.mcap"
    with RecordingFile(indexed) as file:
        begin = list(file.batches())[-1].offset
    end = data.rindex(b"\x0f" + (4).to_bytes(8, "little"))
    data[end + 9 : end + 13] = b"\1\2\3\4"  # the CRC of all that is before
    other.write_bytes(data)
    assert begin < end
    with pytest.raises(RecordingError, match="the summary at its end does not match"):
        index_of(other)


def test_one_that_lies_is_noticed(tmp_path: Path) -> None:
    of = batch_index.ChunkFacts.of

    def lie(*given: Any) -> batch_index.ChunkFacts:
        return attrs.evolve(of(*given), kinds=frozenset({5 << 16}))

    with mock.patch.object(batch_index.ChunkFacts, "of", lie):
        path = traffic(tmp_path / "some.mcap", False)
    with pytest.raises(RecordingError, match="the index at the end of the file says otherwise"):
        numbers(path, "connection:7")


def test_a_file_that_is_still_written_or_torn_is_read_as_before(
    indexed: Path, tmp_path: Path
) -> None:
    data = indexed.read_bytes()
    for size in (len(data) // 2, len(data) - 1, len(data) - 300):
        torn = tmp_path / f"{size}.mcap"
        torn.write_bytes(data[:size])
        assert index_of(torn) is None
        with pytest.warns(recording.RecordingWarning):
            found = numbers(torn, parse("connection:3"))
        assert found == numbers(indexed, "connection:3") or size == len(data) // 2
