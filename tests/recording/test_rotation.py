"""Recordings in several files, each of which stands alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from kproxy import recording as recorded
from kproxy.exchange import notes
from kproxy.exchange.entries import CONNECTIONS, Entry, Frame, Note
from kproxy.recording import Recording, RecordingWarning, info, read, recordings, verify
from kproxy.recording.encoding import Wall
from kproxy.recording.writer import Writer
from tests.bed.logged import to
from tests.recording.making import SETTINGS, START_NS, event, opened, plains, refusing, request

SECOND = 1_000_000_000


def recording(folder: Path, **more: Any) -> Recording:
    """A recording into `folder/run.mcap`."""
    return Recording(folder / "run.mcap", **(SETTINGS | more))


def at(seconds: float, number: int = 1, size: int = 100) -> Frame:
    """A request some seconds after the start."""
    received_ns = START_NS + int(seconds * SECOND)
    return request(number, b"q" * size, received_ns=received_ns, sent_ns=received_ns + 1000)


def entries(path: Path) -> Iterator[Frame | Note]:
    """What was recorded, without what a file says of those before it: what was pending."""
    for entry in recorded.entries(path):
        if not (isinstance(entry, Note) and entry.body["event"] == "pending"):
            yield entry


def bodies(path: Path) -> list[dict[str, Any]]:
    """What the notes of one file say."""
    return [entry.body for entry in entries(path) if isinstance(entry, Note)]


def test_a_file_ends_by_time(tmp_path: Path) -> None:
    run = recording(tmp_path, rotate_ns=60 * SECOND)
    for seconds in (1, 59.9, 60, 119, 121, 600):
        run.write([at(seconds)])
    run.close()
    assert [path.name for path in run.paths] == [
        "run.mcap", "run-0002.mcap", "run-0003.mcap", "run-0004.mcap",
    ]  # fmt: skip
    assert [len(list(entries(path))) for path in run.paths] == [2, 2, 1, 1]
    for path in run.paths:
        verify(path)


def test_a_file_ends_by_size(tmp_path: Path) -> None:
    run = recording(tmp_path, rotate_bytes=50_000, compression="none")
    for number in range(10):
        run.write([at(0, number, 20_000)])
    run.close()
    assert [len(list(entries(path))) for path in run.paths] == [3, 3, 3, 1]
    assert run.bytes_written < sum(path.stat().st_size for path in run.paths)


def test_all_files_read_as_one_recording(tmp_path: Path) -> None:
    run = recording(tmp_path, rotate_ns=SECOND)
    written = [at(number / 2, number) for number in range(20)]
    for frame in written:
        run.write([frame])
    run.close()
    assert len(run.paths) == 10
    assert recordings(tmp_path) == run.paths
    assert plains(entries(tmp_path)) == plains(written)
    parts = [info(path).metadata for path in run.paths]
    assert len({part["recording"] for part in parts}) == 1
    assert [part["part"] for part in parts] == [str(number) for number in range(1, 11)]


def test_each_file_repeats_what_is_open(tmp_path: Path) -> None:
    run = recording(tmp_path, rotate_ns=10 * SECOND)
    run.write([opened(1, client_address="10.0.0.1:1"), opened(2), at(1)])
    run.write([Note(CONNECTIONS, START_NS, {"event": "client", "connection": 1, "client_id": "a"})])
    run.write(
        [Note(CONNECTIONS, START_NS, {"event": "sasl", "connection": 1, "sasl": {"m": "PLAIN"}})]
    )
    run.write([Note(CONNECTIONS, START_NS, {"event": "closed", "connection": 2})])
    run.write([Note(CONNECTIONS, START_NS, {"event": "client", "connection": 2, "client_id": "b"})])
    run.write([at(11), opened(3, START_NS + 11 * SECOND)])
    run.write([at(22)])
    run.close()
    open_1 = {
        "event": "open",
        "connection": 1,
        "opened_ns": START_NS,
        "client_address": "10.0.0.1:1",
        "client_id": "a",
        "sasl": {"m": "PLAIN"},
    }
    second, third = (bodies(path) for path in run.paths[1:])
    assert second == [open_1, {"event": "opened", "connection": 3}]
    assert third == [
        open_1,
        {"event": "open", "connection": 3, "opened_ns": START_NS + 11 * SECOND},
    ]
    assert next(entries(run.paths[1])).time_ns == START_NS + 11 * SECOND


def test_each_file_repeats_the_topic_ids_and_which_fault_rules_there_are_now(
    tmp_path: Path,
) -> None:
    run = recording(tmp_path, rotate_ns=10 * SECOND)
    for name in ("old", "new"):
        run.write([notes.fault_rules(START_NS, 7, [{"fault_id": 1, "name": name}])])
    run.write([notes.topic_id(START_NS, "aaa", "orders")])
    run.write([notes.topic_id(START_NS, "bbb", "users"), event("other", topics={})])
    run.write([at(11)])
    run.close()
    assert bodies(run.paths[1]) == [
        {"event": "fault_rules", "seed": 7, "rules": [{"fault_id": 1, "name": "new"}]},
        {"event": "topic_id", "topic_id": "aaa", "topic": "orders"},
        {"event": "topic_id", "topic_id": "bbb", "topic": "users"},
    ]


def test_names_that_are_taken_are_passed_over(tmp_path: Path) -> None:
    leftover = tmp_path / "run-0002.mcap"
    leftover.write_bytes(b"older")
    run = recording(tmp_path, rotate_ns=SECOND)
    run.write([at(2)])
    run.close()
    assert [path.name for path in run.paths] == ["run.mcap", "run-0003.mcap"]
    assert leftover.read_bytes() == b"older"


def test_a_file_that_cannot_be_begun_costs_nothing_and_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[str] = []
    run = recording(tmp_path, rotate_ns=SECOND, log=to(logs))
    run.write([opened(1)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing(24))
        run.write([at(2, 1)])
        run.write([at(2.5, 2)])
        assert run.problem is not None and run.problem.strerror == "Too many open files"
    run.write([at(3, 3)])
    assert run.problem is None
    run.close()
    assert [len(list(entries(path))) for path in run.paths] == [3, 2]
    assert len(logs) == 1 and "Too many open files" in logs[0] and "run.mcap" in logs[0]


@pytest.mark.parametrize("what", ["file", "folder", "replaced"])
def test_a_recording_that_is_deleted_goes_on_in_a_new_file(tmp_path: Path, what: str) -> None:
    logs: list[str] = []
    folder = tmp_path / "captures"
    folder.mkdir()
    run = recording(folder, log=to(logs))
    run.write([opened(7), at(0, 1)])
    run.paths[0].unlink()
    if what == "folder":
        folder.rmdir()
    elif what == "replaced":
        run.paths[0].write_text("somebody else's")
    run.write([at(1, 2)])
    run.write([at(2, 3)])
    run.close()
    left = run.paths[-1]
    others = [run.paths[0]] if what == "replaced" else []
    assert {*folder.iterdir()} == {*others, left}
    assert all(each.read_text() == "somebody else's" for each in others)
    verify(left)
    assert [entry.number for entry in entries(left) if isinstance(entry, Frame)] == [2, 3]
    assert [body["connection"] for body in bodies(left)] == [7]
    assert len(logs) == 1 and "was deleted" in logs[0] and left.name in logs[0]


def test_a_recording_that_is_deleted_and_cannot_go_on_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording(tmp_path)
    run.paths[0].unlink()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refusing(30))
        with pytest.raises(OSError, match="Read-only"):
            run.write([at(1, 1)])
    run.write([at(2, 2)])
    run.close()
    (left,) = tmp_path.iterdir()
    assert [entry.number for entry in entries(left)] == [2]


def test_a_recording_that_is_renamed_goes_on(tmp_path: Path) -> None:
    run = recording(tmp_path)
    run.write([at(0, 1)])
    moved = run.paths[0].rename(tmp_path / "moved.mcap")
    run.write([at(1, 2)])
    run.close()
    assert [entry.number for entry in entries(moved)] == [1, 2]
    assert list(tmp_path.iterdir()) == [moved]


@pytest.mark.parametrize("failing", range(1, 5))
def test_a_disk_that_fails_while_rotating(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Writes of the second batch: new head, its opening notes, the old end, the batch."""
    run = recording(tmp_path, rotate_ns=SECOND)
    run.write([opened(1)])
    pwritev, calls = os.pwritev, 0

    def put(fd: int, buffers: list[bytes], offset: int) -> int:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(28, "No space left on device")
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", put)
    if failing == 4:
        with pytest.raises(OSError):
            run.write([at(2, 1)])
    else:
        run.write([at(2, 1)])
    run.write([at(4, 2)])
    run.close()
    assert run.unfinished == ([run.paths[0]] if failing == 3 else [])
    frames = [entry.number for entry in entries(tmp_path) if isinstance(entry, Frame)]
    assert frames == ([2] if failing == 4 else [1, 2])
    assert sorted(run.paths) == sorted(tmp_path.iterdir())


def test_a_connection_is_open_even_if_its_note_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording(tmp_path, rotate_ns=10 * SECOND)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", refusing(28))
        with pytest.raises(OSError):
            run.write([opened(5)])
        with pytest.raises(OSError):
            run.write(
                [opened(6), Note(CONNECTIONS, START_NS, {"event": "closed", "connection": 6})]
            )
    run.write([at(1)])
    run.write([at(2)])
    run.write([at(11)])
    run.close()
    for path in run.paths:  # the next file says it, and so does this one as soon as it can
        assert [body["connection"] for body in bodies(path)] == [5]


def test_the_end_of_a_connection_is_told_even_if_its_note_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording(tmp_path)
    run.write([opened(5)])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwritev", refusing(28))
        for number in (5, 6):  # the second was opened where nothing could be written
            with pytest.raises(OSError):
                ended = {"event": "closed", "connection": number}
                run.write([opened(6), Note(CONNECTIONS, START_NS, ended)])
    run.write([at(1)])
    run.write([at(2)])
    run.close()
    told = [(body["event"], body["connection"]) for body in bodies(run.paths[0])]
    assert told == [("opened", 5), ("closed", 5)]


def test_a_file_in_which_something_unforeseen_went_wrong_is_left_once_a_minute_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording(tmp_path, rotate_bytes=None, rotate_ns=None)
    write = Writer.write

    def defective(writer: Writer, entries: Sequence[Entry], wall: Wall | None = None) -> None:
        if any(type(each) is Frame for each in entries):
            raise ValueError("oh")
        write(writer, entries, wall)

    written = []
    for seconds in (1, 2, 50, 70):
        monkeypatch.setattr(Writer, "write", defective)
        for part in (0.1, 0.2):
            with pytest.raises(ValueError, match="oh"):
                run.write([at(seconds + part)])
        monkeypatch.setattr(Writer, "write", write)
        written.append(at(seconds + 0.3))
        run.write(written[-1:])
    run.close()
    assert [path.name for path in run.paths] == ["run.mcap", "run-0002.mcap", "run-0003.mcap"]
    assert [len(list(entries(path))) for path in run.paths] == [0, 3, 1]
    assert plains(entries(tmp_path)) == plains(written)


def pending(path: Path) -> list[tuple[int, bool]]:
    """What is pending where a file is torn, read alone: numbers, and whether the bytes are in it.

    It is read while it is still written: so a kill would leave it."""
    alone = shutil.copy(path, path.with_suffix(".copy"))
    return [
        (each.number, each.request_frame is not None)
        for each in recorded.read(alone)
        if each.unanswered is not None
    ]


def test_what_is_pending_has_the_times_of_the_systems_clock(tmp_path: Path) -> None:
    ahead_ns = 5 * SECOND
    run, asked = recording(tmp_path, rotate_ns=10 * SECOND), at(0, 1)
    for frame in (asked, at(11, 2)):
        run.write([frame], lambda time_ns: ahead_ns)
    run.close()
    row, _ = sorted(each.row for each in recorded.read(run.paths[-1], told=lambda note: None))
    assert row.request_received_ns == asked.received_ns + ahead_ns
    assert row.request_sent_ns == asked.sent_ns + ahead_ns


def test_of_copies_of_a_file_the_whole_one_is_read(tmp_path: Path) -> None:
    run = recording(tmp_path)
    for number in range(1, 5):
        run.write([at(number, number)])
    run.close()
    (whole,) = run.paths
    torn = tmp_path / "a.mcap"
    torn.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    assert recordings(tmp_path) == [whole, torn]
    assert len(list(read(tmp_path, told=lambda note: None))) == 4


def test_a_file_whose_first_batches_were_refused_says_it_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recording(tmp_path, rotate_ns=10 * SECOND)
    run.write([opened(3), at(0, 1)])
    write = Writer.write

    def full(writer: Writer, entries: Sequence[Entry], wall: Wall | None = None) -> None:
        if any(type(each) is Frame for each in entries):
            raise OSError(28, "No space left on device")
        write(writer, entries, wall)

    monkeypatch.setattr(Writer, "write", full)
    for seconds in (11, 12):
        with pytest.raises(OSError):
            run.write([at(seconds, seconds)])
    monkeypatch.setattr(Writer, "write", write)
    run.write([at(13, 13)])
    run.write([at(14, 14)])
    assert len(run.paths) == 2
    assert pending(run.paths[-1]) == [(1, False), (13, True), (14, True)]
    run.close()


def test_thousands_that_are_pending_are_said_in_small_notes(tmp_path: Path) -> None:
    run = recording(tmp_path, rotate_ns=10 * SECOND)
    run.write([at(0, number) for number in range(1, 5001)])
    run.write([at(11, 5001)])
    said = [
        entry.body
        for entry in recorded.entries(run.paths[-1])
        if isinstance(entry, Note) and entry.body["event"] == "pending"
    ]
    assert max(len(json.dumps(body)) for body in said) < 20_000
    assert len(pending(run.paths[-1])) == 5001
    run.close()


FORMATS = Path(__file__).parent / "formats" / "3"


@pytest.mark.parametrize("gone", [2, 3])
def test_without_a_part_nothing_is_told_that_did_not_happen(gone: int) -> None:
    paths = sorted(FORMATS.glob("rotated*.mcap"), key=lambda path: info(path).part)
    whole = {each.number: each for each in read(paths)}
    with pytest.warns(RecordingWarning, match=f"part {gone} is not read"):
        found = list(read([path for path in paths if info(path).part != gone]))
    assert len({each.number for each in found}) == len(found) < len(whole)
    for each in found:
        assert whole[each.number].undelivered or not each.undelivered
        assert whole[each.number].unanswered or each.open_at_end or not each.unanswered
