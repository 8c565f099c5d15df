"""What was pending when a recording was torn is there, whichever of its files it lies in."""

from __future__ import annotations

import itertools
import operator
import os
import shutil
import signal
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    ChunkTimes,
    Entry,
    ExchangeRow,
    Frame,
    FrameRun,
    Note,
    Requests,
    Side,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import pair
from kproxy.look.lines.jsonl import to_json
from kproxy.look.lines.stream import Stream
from kproxy.recording import Recording, RecordingFile, Writer, entries, read, recordings, recover
from kproxy.recording.cut import cut
from kproxy.recording.opened import OpenRecordings
from kproxy.wire.protocol import messages
from tests.exchange.making import request
from tests.recording import killed_pending, making
from tests.recording.making import SETTINGS, START_NS
from tests.wire.protocol.making import few

ROOT = Path(__file__).parents[2]
HEARTBEAT, PRODUCE = 12, 0
ACTIONS = ("open", "close", "ask", "ask", "ask", "ask alone", "ask in vain", "answer", "answer",
           "answer late", "write", "write", "write")  # fmt: skip


class Traffic:
    """A proxy's connections: each action makes the entries that a proxy makes of it."""

    def __init__(self) -> None:
        self.now = START_NS
        self.number = 0
        self.opened = 0
        self.pending: dict[int, deque[tuple[Requests, int]]] = {}
        """Requests and the place of one among them, by connection."""
        self.unsent: list[ChunkTimes] = []

    def act(self, action: str, nth: int) -> list[Entry]:
        """Return what is to be recorded of it."""
        self.now += 1_000_000
        for times in self.unsent:  # what was late leaves with what comes next
            times.sent_ns = self.now
        self.unsent.clear()
        if action == "open" or not self.pending:
            self.opened += 1
            self.pending[self.opened] = deque()
            about = {"event": "opened", "connection": self.opened, "client_address": "10.0.0.1:1"}
            return [Note(CONNECTIONS, self.now, about)]
        connection = sorted(self.pending)[nth % len(self.pending)]
        if action == "close":
            del self.pending[connection]
            about = {"event": "closed", "connection": connection}
            return [Note(CONNECTIONS, self.now, about)]
        if action.startswith("answer"):
            return self._answer(connection, 1 + nth % 3, late=action == "answer late")
        return self._ask(connection, 1 + nth % 4, action)

    def _ask(self, connection: int, count: int, action: str) -> list[Entry]:
        times = ChunkTimes(self.now, self.now + 1000)
        in_vain = action == "ask in vain"
        key, flags = (PRODUCE, NO_RESPONSE) if in_vain else (HEARTBEAT, 0)
        numbers = range(self.number + 1, self.number + count + 1)
        self.number += count
        requests = Requests(numbers[0], key, 0, flags, [*numbers], [40] * count, times)
        data = b"".join(
            struct.pack(">ihhih", 36, key, 0, number, -1).ljust(40, b"q") for number in numbers
        )
        if not in_vain:
            self.pending[connection] += [(requests, nth) for nth in range(count)]
        run = FrameRun(Side.CLIENT, connection, times, [data], requests, 0, [40] * count)
        return list(run.frames()) if action == "ask alone" else [run]

    def _answer(self, connection: int, count: int, late: bool) -> list[Entry]:
        pending = self.pending[connection]
        requests = [pending.popleft() for _ in range(min(count, len(pending)))]
        if not requests:
            return []
        times = ChunkTimes(self.now, 0 if late else self.now + 1000)
        if late:
            self.unsent.append(times)
        made: list[Entry] = []
        for asked, each in itertools.groupby(requests, key=operator.itemgetter(0)):
            places = [nth for _, nth in each]
            heads = [struct.pack(">iih", 6, asked[nth].number, 0) for nth in places]
            sizes = [10] * len(places)
            origin = connection, times, [b"".join(heads)]
            made.append(FrameRun(Side.BROKER, *origin, asked, places[0], sizes))
        return made


def killed(folder: Path, actions: Sequence[tuple[str, int]], share: float) -> list[Path]:
    """Record actions, and leave the last file as a kill in mid-write leaves it."""
    run = Recording(folder / "run.mcap", **SETTINGS, rotate_bytes=6000, rotate_ns=None)
    traffic = Traffic()
    taken: list[Entry] = []
    size = written = 0
    for action, nth in actions:
        if action == "write":
            size = run.bytes_written
            run.write(taken)
            written, taken = run.bytes_written, []
        else:
            taken += traffic.act(action, nth)
    whole = folder / "whole"
    whole.mkdir()
    paths = [Path(shutil.copy(path, whole)) for path in run.paths]
    run.close()
    last = paths[-1].stat().st_size
    cut = int((written - size) * share)
    if cut < last - _head_bytes(paths[-1]):
        os.truncate(paths[-1], last - cut)
    return paths


def both(folder: Path, actions: Sequence[tuple[str, int]]) -> list[list[Path]]:
    """Record the same actions into one file, and into several; as a kill leaves them then."""
    runs = [
        Recording(folder / str(size) / "run.mcap", **SETTINGS, rotate_bytes=size, rotate_ns=None)
        for size in (None, 5000)
    ]
    traffic = Traffic()
    taken: list[Entry] = []
    for action, nth in actions:
        if action == "write":
            for run in runs:
                run.write(taken)
            taken = []
        else:
            taken += traffic.act(action, nth)
    found: list[list[Path]] = []
    for run in runs:
        left = folder / run.path.parent.name / "left"
        left.mkdir()
        found.append([Path(shutil.copy(path, left)) for path in run.paths])
        run.close()
    return found


def with_rows(paths: Sequence[Path]) -> set[int]:
    """The exchanges that have a row in files."""
    files = [RecordingFile(path) for path in paths]
    batches = ((file, batch) for file in files for batch in file.batches())
    return {row.number for file, batch in batches for row in file.exchanges(batch)}


def _head_bytes(path: Path) -> int:
    """Where the first batch ends that is not of what was open before."""
    with RecordingFile(path) as file:
        return next((batch.offset for batch in file.batches() if batch.number > 0), 1 << 62)


KINDS = {
    killed_pending.POLL: ("Fetch", "broker"),
    killed_pending.PRODUCE: ("Produce", "broker"),
    killed_pending.PIECES: ("Produce", "proxy"),
    killed_pending.TOKEN: ("SaslToken", "broker"),
    killed_pending.ONE_WAY: ("Produce", None),
    killed_pending.DROPPED: ("Heartbeat", "proxy"),
    killed_pending.HELD: ("Heartbeat", None),
    killed_pending.LATER: ("Heartbeat", "earlier"),
}
"""What each is, and waited for."""


def shown(paths: Sequence[Path]) -> list[dict[str, object]]:
    """What `show --json` says of what was pending, but for what is in the bytes."""
    found = [each for each in read(paths) if each.number in KINDS]
    bodies = {"request", "response", "errors", "topics", "groups", "opaque", "client_id"}
    return [
        {name: value for name, value in to_json(each).items() if name not in bodies}
        for each in sorted(found, key=lambda each: each.number)
    ]


def asked(paths: Sequence[Path]) -> list[int]:
    """The requests whose frames lie in files."""
    frames = (entry for entry in entries(paths) if isinstance(entry, Frame))
    return sorted(frame.number for frame in frames if _is_request(frame))


def _is_request(frame: Frame) -> bool:
    return frame.side is Side.CLIENT and not frame.flags & MORE


def said(paths: Sequence[Path]) -> dict[int, tuple[object, ...]]:
    """What is said of the exchanges of files, each of which is there once."""
    found = list(read(paths))
    numbers = [exchange.number for exchange in found]
    assert len(set(numbers)) == len(numbers)
    return {
        each.number: (
            each.connection, each.client_address, each.api, each.request_frame,
            each.response_frame, each.unanswered is not None,
        )
        for each in found
    }  # fmt: skip


@few(2)
@given(
    st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), min_size=30, max_size=200),
    st.floats(0, 1),
)
def test_every_request_that_lies_in_the_files_is_an_exchange(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]], share: float
) -> None:
    paths = killed(tmp_path_factory.mktemp("killed"), actions, share)
    expected = asked(paths)
    before = said(paths)
    assert sorted(before) == expected
    frames = {
        each.number: (each.request_frame, each.response_frame) for each in pair(entries(paths))
    }
    assert {number: about[3:5] for number, about in before.items()} == frames
    opened = OpenRecordings.of(paths)
    assert sorted(exchange.number for exchange in opened.exchanges()) == expected
    assert recover(paths[-1]).was_complete is False
    assert said(paths) == before
    assert recover(paths[-1]).was_complete


def test_a_kill_between_the_head_of_a_file_and_what_is_open_loses_nothing(tmp_path: Path) -> None:
    actions = [("open", 0), ("ask", 0), ("write", 0)]
    rounds = [("ask", 1), ("answer", 1), ("write", 0)] * 30
    actions += [("open", 0), *rounds, ("ask", 0), *rounds]
    paths = killed(tmp_path, actions, 0)
    with RecordingFile(paths[-1]) as last:
        head_bytes = next(last.batches()).offset
    os.truncate(paths[-1], head_bytes)
    os.truncate(paths[-2], paths[-2].stat().st_size - 100)
    before = said(paths)
    assert len(paths) > 2 and sorted(before) == asked(paths)
    assert not recover(paths[-1]).was_complete
    assert said(paths) == before
    alone = {each.number for each in read(paths[-1], told=lambda note: None)}
    assert alone == {number for number, about in before.items() if about[-1]}
    assert not recover(paths[-2]).was_complete
    assert said(paths) == before


def placeless(exchange: Exchange) -> ExchangeRow:
    """The row of an exchange without the places of its frames: a file more is a chunk more."""
    return exchange.row._replace(request_position=0, response_position=0)


@few(2)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 11)), min_size=60, max_size=150))
def test_it_makes_no_difference_in_how_many_files_it_lies(
    tmp_path_factory: pytest.TempPathFactory, actions: list[tuple[str, int]]
) -> None:
    one, several = both(tmp_path_factory.mktemp("both"), actions)
    whole, rotated = ({each.number: each for each in read(paths)} for paths in (one, several))
    assert said(several) == said(one)
    assert {number: placeless(each) for number, each in whole.items()} == {
        number: placeless(each) for number, each in rotated.items()
    }
    alone = {each.number: each for each in read(several[-1])}
    left = rotated.keys() - with_rows(several)
    assert left == alone.keys() - with_rows(several[-1:])
    for number in left:
        row, same = alone[number].row, rotated[number].row
        assert row == same and alone[number].unanswered == rotated[number].unanswered


def test_a_response_that_lies_in_two_files_is_whole(
    tmp_path: Path,
) -> None:
    later_ns = 10_000_000_000
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_bytes=None, rotate_ns=later_ns // 2)
    asked = making.request(1, b"q" * 40)
    first = making.response(1, b"a" * 60, flags=FRAGMENT | MORE, frame_bytes=100)
    at_ns = first.received_ns + later_ns
    last = making.response(
        1, b"b" * 40, flags=FRAGMENT, frame_bytes=100, received_ns=at_ns, sent_ns=at_ns
    )
    run.write([asked, first])
    begun = attrs.evolve(making.request(2, b"q" * 40), received_ns=at_ns, sent_ns=at_ns)
    run.write([begun])
    size = run.paths[-1].stat().st_size
    run.write([last])
    whole = [path.read_bytes() for path in run.paths]
    run.close()
    assert len(whole) == 2
    run.paths[0].write_bytes(whole[0])
    answered: list[bool] = []
    for end in (*range(size, len(whole[1]), 16), len(whole[1])):
        run.paths[1].write_bytes(whole[1][:end])
        seen = {each.number: each.response_frame for each in pair(entries(run.paths))}
        told = {number: about[4] for number, about in said(run.paths).items()}
        assert told.keys() == seen.keys() == {1, 2}
        assert (told[1] is None) == (seen[1] is None)
        assert told[1] in (None, b"a" * 60 + b"b" * 40)
        answered.append(told[1] is not None)
    assert not answered[0] and answered[-1]


def test_a_request_without_an_answer_that_lies_in_two_files_is_there_once(tmp_path: Path) -> None:
    later_ns = 10_000_000_000
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_bytes=None, rotate_ns=later_ns // 2)
    whole = making.request(1, b"q" * 90, flags=NO_RESPONSE)
    flags, at_ns = FRAGMENT | NO_RESPONSE, whole.received_ns + later_ns
    run.write([attrs.evolve(whole, pieces=[whole.data[:60]], flags=flags | MORE, sent_ns=0)])
    rest = attrs.evolve(whole, pieces=[whole.data[60:]], flags=flags, received_ns=at_ns)
    run.write([attrs.evolve(rest, sent_ns=at_ns)])
    run.close()
    assert len(run.paths) == 2
    assert [each.request_frame for each in read(run.paths)] == [whole.data]


def test_requests_of_every_kind_are_there_once_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "run.mcap"
    program = [sys.executable, "-m", "tests.recording.killed_pending", str(path)]
    assert subprocess.run(program, check=False, cwd=ROOT).returncode == -signal.SIGKILL
    paths = recordings(tmp_path)
    last = tmp_path / "alone" / "last.mcap"
    last.parent.mkdir()
    shutil.copy(paths[-1], last)
    assert len(paths) == 4
    numbers = [each.number for each in read(paths)]
    assert len(set(numbers)) == len(numbers)
    for where in (paths, [last]):
        found = {each.number: each for each in read(where) if each.number in KINDS}
        waited = {
            number: (each.api, each.unanswered and each.unanswered.waited_for)
            for number, each in found.items()
        }
        assert waited == KINDS
        assert found[killed_pending.POLL].row.max_wait_ms == killed_pending.MAX_WAIT_MS
        assert found[killed_pending.DROPPED].faults == ["gone"]
        assert found[killed_pending.HELD].response_bytes == 10
        assert all((each.request_frame is None) == (where != paths) for each in found.values())
    before = shown(paths)
    assert shown([last]) == before
    for where, to in ((paths, tmp_path / "alone" / "all.cut"), ([last], tmp_path / "last.cut")):
        cut(where, to, None, "0")
        assert shown([to]) == before
        assert Stream([to]).count_unopened() == Stream(where).count_unopened()
    for torn, where in ((paths[-1], paths), (last, [last])):
        assert not recover(torn).was_complete
        assert shown(where) == before


def test_a_foreign_note_about_what_is_pending_says_what_it_can(tmp_path: Path) -> None:
    asked = [START_NS, 40, 12]
    columns = ["request_received_ns", "request_bytes", "api_key", "number", "fault_ids", "new", []]
    bodies = [
        {"columns": 5, "exchanges": {}},
        {"columns": columns, "exchanges": [None, 7, "x", [], [*asked, 1, [7, "x", 1 << 40], {}]]},
        {"columns": columns, "exchanges": [[*asked, 2, None, None, None, 8], [1 << 70, True]]},
    ]
    writer = Writer(tmp_path / "a.mcap", **SETTINGS)
    writer.write([Note(EVENTS, START_NS, {"event": "pending"} | body) for body in bodies])
    writer.abandon()
    found = [(each.number, each.api, each.faults) for each in read(tmp_path / "a.mcap")]
    assert found == [(1, "Heartbeat", ["7"]), (2, "Heartbeat", [])]
    assert not recover(tmp_path / "a.mcap").was_complete
    assert [(each.number, each.api) for each in read(tmp_path)] == [each[:2] for each in found]


def test_a_note_that_names_a_wrong_place_says_the_rest(tmp_path: Path) -> None:
    columns = ["number", "request_received_ns", "request_bytes", "api_key", "request_position"]
    beat = request("Heartbeat", 4, messages.HeartbeatRequest(group_id="g"), 1)
    wrong = {"event": "pending", "columns": columns}
    wrong["exchanges"] = [[7, START_NS, 40, 12, (1 << 32) + (9 << 16)]]
    writer = Writer(tmp_path / "a.mcap", **SETTINGS)
    writer.write([beat, Note(EVENTS, START_NS, wrong)])
    writer.abandon()
    assert [(each.number, each.api) for each in read(tmp_path)] == [
        (1, "Heartbeat"),
        (7, "Heartbeat"),
    ]
    assert not recover(tmp_path / "a.mcap").was_complete
    assert [each.number for each in read(tmp_path)] == [1, 7]


def test_what_a_note_alone_says_stays_with_what_was_pending(tmp_path: Path) -> None:
    columns = [
        "number", "request_received_ns", "request_sent_ns", "response_received_ns",
        "request_bytes", "response_bytes", "api_key", "max_wait_ms",
    ]  # fmt: skip
    held = [1, START_NS, START_NS + 1, START_NS + 2_000_000, 40, 10, 1, 500]
    body = {"event": "pending", "columns": columns, "exchanges": [held]}
    writer = Writer(tmp_path / "a.mcap", **SETTINGS)
    writer.write([Note(EVENTS, START_NS, body)])
    writer.abandon()
    (found,) = read(tmp_path / "a.mcap")
    assert found.row.max_wait_ms == 500
