"""Plans of what tasks read."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies as st

from kproxy import recording, tables
from kproxy.exchange.entries import (
    CONNECTIONS,
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    UNANSWERED,
    Entry,
    Frame,
    Note,
)
from kproxy.exchange.filter import Filter, parse
from kproxy.recording import Recording, Writer, writer
from kproxy.tables import reading, splits
from kproxy.tables.views import chosen
from tests.bed import needs
from tests.recording.making import SETTINGS, START_NS, conversation, request, response, write

_HOUR_NS = 3600 * 1_000_000_000
RECORDINGS = needs.REPOSITORY / "recordings"
COLUMNS = [
    "number", "time", "client_id", "api", "broker_ms", "queued_ms", "service_ms", "fault_ms",
    "held_behind", "unanswered", "topics", "errors", "request_bytes", "response_bytes",
    "request_frame", "response_frame",
]  # fmt: skip


STEPS = {
    "ask": 4, "answer": 4, "ask one way": 1, "ask in pieces": 1, "go on": 1, "answer, and hold": 2,
    "let go": 2, "give up": 1, "close": 1, "chunk": 6, "file": 1,
}  # fmt: skip
"""What may happen, and how often it does."""


class Traffic:
    """A recording of what happens, as a proxy gives it to a writer."""

    def __init__(self, path: Path) -> None:
        self.recording = Recording(path, rotate_ns=_HOUR_NS, **SETTINGS)
        self.entries: list[Entry] = []
        self.now_ns = START_NS
        self.number = 0
        self.asked: dict[int, list[Frame]] = {}
        """What is pending, by connection."""
        self.held: dict[int, list[Frame]] = {}
        """What has not left."""
        self.begun: dict[int, int] = {}
        """Of which request only pieces have come."""
        self.closed = 0

    def happens(self, what: str, connection: int) -> None:
        """Add what happens on a connection, if it can."""
        self.now_ns += 1_000_000
        connection += 10 * self.closed
        asked = self.asked.setdefault(connection, [])
        held = self.held.setdefault(connection, [])
        begun = connection in self.begun
        if what.startswith("ask") and not begun:
            self.number += 1
            if what == "ask":
                asked.append(self.ask(connection))
            elif what == "ask one way":
                held.append(self.ask(connection, flags=NO_RESPONSE, sent_ns=0))
            else:
                self.begun[connection] = self.number
                self.ask(connection, flags=FRAGMENT | MORE, frame_bytes=80, sent_ns=0)
        elif what == "go on" and begun:
            number = self.begun.pop(connection)
            asked.append(self.ask(connection, number, flags=FRAGMENT, frame_bytes=80))
        elif what.startswith("answer") and asked:
            sent_ns = self.now_ns + 7_000 if what == "answer" else 0
            held += [self.answer(asked.pop(0), sent_ns)] if not sent_ns else []
            if sent_ns and asked:
                self.answer(asked.pop(0), sent_ns)
        elif what == "let go" and held:
            held.pop(0).sent_ns = self.now_ns
        elif what in ("give up", "close"):
            for each in asked if what == "give up" else ():
                self.answer(each, 0, pieces=[], frame_bytes=0, flags=UNANSWERED)
            closed = {"event": "closed", "connection": connection}
            self.entries.append(Note(CONNECTIONS, self.now_ns, closed))
            self.closed += 1  # then there are others
        elif what in ("chunk", "file"):
            self.write()
            self.now_ns += _HOUR_NS if what == "file" else 0

    def ask(self, connection: int, number: int = 0, **more: Any) -> Frame:
        """Add a request, or a piece of one."""
        about = {"received_ns": self.now_ns, "sent_ns": self.now_ns + 9_000} | more
        number = number or self.number
        asked = request(number, b"ask" * 10, connection=connection, **about)
        self.entries.append(asked)
        return asked

    def answer(self, asked: Frame, sent_ns: int, **more: Any) -> Frame:
        """Add a response, or that there is none."""
        about = {"request_received_ns": asked.received_ns, "request_sent_ns": asked.sent_ns,
                 "request_bytes": asked.frame_bytes, "received_ns": self.now_ns}  # fmt: skip
        answered = response(asked.number, b"ok", connection=asked.connection, sent_ns=sent_ns,
                            **about, **more)  # fmt: skip
        self.entries.append(answered)
        return answered

    def write(self) -> None:
        """Have what happened written, and what has left since it was."""
        entries, self.entries = self.entries, []
        self.recording.write(entries)


def read(found: Iterable[splits.BatchRange], wanted: Filter | None = None) -> list[dict[str, Any]]:
    """The rows of stretches."""
    return [
        row
        for each in found
        for batch in reading.record_batches(
            each, "exchanges", chosen("exchanges", COLUMNS), wanted=wanted
        )
        for row in batch.to_pylist()
    ]


@hypothesis.given(
    st.lists(
        st.tuples(
            st.sampled_from([step for step, often in STEPS.items() for _ in range(often)]),
            st.integers(1, 3),
        ),
        min_size=1,
        max_size=120,
    ),
    st.integers(1, 4_000),
    st.booleans(),
)
@hypothesis.settings(max_examples=40)
def test_stretches_have_each_exchange_once_wherever_a_recording_is_cut(
    steps: list[tuple[str, int]], size: int, indexed: bool
) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(writer, "FILE_BYTES_MIN", 0 if indexed else 1 << 30),
    ):
        traffic = Traffic(Path(folder) / "a.mcap")
        for what, connection in steps:
            traffic.happens(what, connection)
        traffic.write()
        traffic.recording.close()
        exchanges = list(recording.read(folder))
        numbers = [each.number for each in exchanges]
        assert sorted(numbers) == list(range(1, traffic.number + 1))
        files = splits.find([folder])
        whole = read(splits.stretches(files, splits.END))
        assert [row["number"] for row in whole] == numbers
        found = splits.stretches(files, size)
        assert read(found) == whole
        of_filter = {each.number for each in recording.read(folder, "is:unanswered")}
        expected = [row for row in whole if row["number"] in of_filter]
        assert read(found, parse("is:unanswered")) == expected


def test_files_are_looked_for_once(tmp_path: Path) -> None:
    shutil.copy(RECORDINGS / "demo.mcap", tmp_path / "first.mcap")
    (tmp_path / "empty.mcap").touch()
    found = splits.find([str(tmp_path)])
    for path in (tmp_path / "second.mcap", tmp_path / "empty.mcap"):
        shutil.copy(RECORDINGS / "demo.mcap", path)
    told: list[str] = []
    assert {each.path for each in splits.stretches(found, on_left_out=told.append)} == {
        str(tmp_path / "first.mcap")
    }
    assert found.bytes == (tmp_path / "first.mcap").stat().st_size
    assert told == [f"{tmp_path}/empty.mcap: is empty: nothing was recorded into it"]


def test_recordings_without_an_id_of_the_same_file_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/cut.mcap", "b/cut.mcap", "b/other.mcap")]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        write(path, conversation())
    found = tables.read(list(map(str, paths))).read_all()
    names = [*map(str, paths[:2]), "other"]
    assert set(found["recording"].to_pylist()) == set(names)
    assert set(tables.read(paths[0]).read_all()["recording"].to_pylist()) == {"cut"}


def test_a_large_file_without_an_index_is_one_stretch(tmp_path: Path) -> None:
    path = tmp_path / "recording.mcap"
    writer = Writer(path, **SETTINGS)
    for number in range(1, 60):
        writer.write([request(number, b"ask"), response(number, b"ok")])
    writer.close()
    (whole,) = splits.stretches(splits.find([str(path)]), 1000)
    assert (whole.start, whole.stop, whole.bytes) == (0, splits.END, path.stat().st_size)
