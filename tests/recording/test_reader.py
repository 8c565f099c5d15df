"""Reading: whole, torn, damaged, foreign, growing, several files."""

from __future__ import annotations

import itertools
import os
import warnings
from pathlib import Path

import mcap.writer
import pytest

from kproxy.exchange.entries import ExchangeRow, Note
from kproxy.exchange.pairing import pair
from kproxy.recording import (
    Recording,
    RecordingError,
    RecordingWarning,
    entries,
    info,
    read,
    recordings,
    verify,
)
from kproxy.recording.mcap import DATA_END_BYTES
from tests.recording.making import (
    SETTINGS,
    START_NS,
    body,
    conversation,
    cuts,
    flips,
    oracle_accepts,
    plain,
    plains,
    read_until_refused,
    request,
    rewrite,
    write,
)
from tests.versions import some

ALL = [entry for batch in conversation() for entry in batch]
PLAIN = [plain(entry) for entry in ALL]
STORED = {"compression": "none"}
DATA_END_START = b"\x0f\x04\0\0\0\0\0\0\0"


def rows(path: Path) -> list[ExchangeRow]:
    """The rows of the exchanges of a file."""
    return [exchange.row for exchange in read(path)]


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_one_flipped_bit_anywhere_is_damage(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    for offset in flips(path):
        read, error = read_until_refused(path)
        assert error is not None and "\n" not in str(error)
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]
        if offset % 60 == 0:
            with pytest.raises(RecordingError):
                verify(path)
    verify(path)


def test_the_mcap_package_notices_flips_up_to_the_data_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    data_end = path.read_bytes().rindex(DATA_END_START)
    unnoticed = [offset for offset in flips(path) if oracle_accepts(path.read_bytes())]
    assert unnoticed, "the mcap package checks its summary by now: say so in layout.py"
    assert min(unnoticed) >= data_end
    assert not set(unnoticed) & set(range(data_end + 9, data_end + DATA_END_BYTES))


def test_a_flipped_bit_in_a_torn_file_never_makes_a_wrong_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), **STORED)
    os.truncate(path, path.read_bytes().rindex(DATA_END_START) - 30)
    whole, _ = read_until_refused(path)
    assert whole.pop().body["event"] == "torn"
    assert [plain(entry) for entry in whole] == PLAIN[:6]
    name = path.read_bytes().index(b"kproxy 0.1.0")
    library = range(name - 4, name + 7)
    for offset in flips(path):
        read, error = read_until_refused(path)
        if error is None:
            # Only these cannot be noticed: flips in the torn record itself, and in the library's
            # name, which make the file look like a copy by another tool.
            assert read.pop().body["offset"] <= offset or offset in library
            assert len(read) == 6
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]


def test_reading_can_leave_out_a_damaged_chunk(tmp_path: Path) -> None:
    batches = [[request(n, b"frame %d" % n)] for n in range(1, 4)]
    path = write(tmp_path / "a.mcap", batches, **STORED)
    data = path.read_bytes().replace(b"frame 2", b"frame X", 1)
    path.write_bytes(data)
    first, damaged, third = entries(path, skip_damaged=True)
    assert (body(first), body(third)) == (b"frame 1", b"frame 3")
    assert damaged.body["event"] == "damaged"
    assert damaged.body["what"] == "is damaged: the checksum of a chunk does not match"
    with pytest.raises(RecordingError, match="the checksum of a chunk does not match"):
        list(entries(path))


# ---------------------------------------------------------------- torn


def ends(path: Path) -> list[int]:
    """The sizes to which a file is cut, downwards: all, or those near the ends of records and every
    16th."""
    every = range(path.stat().st_size - 1, 0, -1)
    return some(every, sorted({*cuts(path), *every[::16]}, reverse=True))


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_a_file_cut_anywhere_reads_as_a_beginning_of_it(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    lengths = set()
    for end in ends(path):
        os.truncate(path, end)
        *read, torn = entries(path)
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]
        assert torn.body["event"] == "torn" and torn.body["offset"] <= end
        assert not torn.body["writing"]
        lengths.add(len(read))
    assert lengths == {0, 3, 6, 10}


def test_a_file_cut_anywhere_gives_the_exchanges_of_its_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    for end in ends(path):
        os.truncate(path, end)
        told: list[Note] = []
        recorded = list(read(path, told=told.append))
        expected = list(pair(entries(path)))
        assert [each.number for each in recorded] == [each.number for each in expected]
        for exchange, other in zip(recorded, expected, strict=True):
            assert exchange.request_frame == other.request_frame
            assert exchange.response_frame == other.response_frame
            assert exchange.time == other.time
        assert told[-1].body["event"] == "torn"


def test_zeros_at_the_end_are_a_tear(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    data = path.read_bytes()
    end = data.rindex(DATA_END_START)
    path.write_bytes(data[:end] + b"\0" * 4096)
    *read, torn = entries(path)
    assert len(read) == len(ALL)
    assert torn.body["what"].startswith("ends in zeros")
    path.write_bytes(data[:end] + b"\0" * 4096 + b"\1")
    with pytest.raises(RecordingError, match="no known kind"):
        list(entries(path))


# ---------------------------------------------------------------- other tools


@pytest.mark.parametrize("compression", list(mcap.writer.CompressionType))
@pytest.mark.parametrize(
    "options", [{}, {"chunk_size": 200}, {"enable_crcs": False}, {"enable_data_crcs": True}]
)
def test_what_other_tools_make_of_a_recording(
    tmp_path: Path, compression: mcap.writer.CompressionType, options: dict
) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    for metadata in (True, False):
        copy = rewrite(
            path, tmp_path / "b.mcap", metadata=metadata, compression=compression, **options
        )
        assert plains(entries(copy)) == plains(ALL)
        assert rows(copy) == rows(path)
        assert info(copy).start_ns == START_NS
        assert (info(copy).schema_id, info(copy).format_version) == ("5eed5eed", 3)
        assert not info(copy).native
        verify(copy)


@pytest.mark.parametrize("name", ["aiokafka", "faults", "large", "rotated*"])
@pytest.mark.parametrize("every", [2, 3, 5, 7])
def test_what_other_tools_leave_out_is_missing_and_the_rest_is_its_own(
    tmp_path: Path, name: str, every: int
) -> None:
    count = itertools.count(1)
    paths = sorted((Path(__file__).parent / "formats" / "3").glob(f"{name}.mcap"))
    for path in paths:
        rewrite(
            path,
            tmp_path / path.name,
            keeps=lambda _, topic: topic != "/kafka/pieces" or bool(next(count) % every),
        )
    whole = {each.number: each for each in read(paths)}
    found = list(read([tmp_path / path.name for path in paths]))
    assert found and len({each.number for each in found}) == len(found)
    for each in found:
        own = whole[each.number]
        assert each.request_frame in (None, own.request_frame)
        assert each.response_frame in (None, own.response_frame)


def test_messages_outside_of_chunks_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    copy = rewrite(path, tmp_path / "b.mcap", use_chunking=False)
    for each in (entries, read):
        with pytest.raises(RecordingError, match="rewrite it with chunks"):
            list(each(copy))


def test_flips_in_a_copy_never_make_a_wrong_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    copy = rewrite(path, tmp_path / "b.mcap", enable_data_crcs=True)
    for _ in flips(copy):
        read, _ = read_until_refused(copy)
        if read and isinstance(read[-1], Note) and read[-1].body["event"] == "torn":
            read.pop()
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]


# ---------------------------------------------------------------- not recordings


def test_what_is_not_a_recording_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    (tmp_path / "zero.mcap").write_bytes(b"")
    (tmp_path / "text.mcap").write_text("hello, this is text")
    with (tmp_path / "robot.mcap").open("wb") as file:
        writer = mcap.writer.Writer(file)
        writer.start(profile="ros2")
        writer.finish()
    with (tmp_path / "hollow.mcap").open("wb") as file:
        writer = mcap.writer.Writer(file)
        writer.start(profile="kproxy")
        channel = writer.register_channel("/other", "json", 0)
        writer.add_message(channel, 1, b"{}", 1)
        writer.finish()
    for name, reason in {
        "missing.mcap": "does not exist",
        "empty": "has no recordings",
        "zero.mcap": "is empty",
        "text.mcap": "does not begin as MCAP files do",
        "robot.mcap": "its profile is 'ros2'",
        "/dev/null": "is not a file",
    }.items():
        with pytest.raises(RecordingError, match=reason) as caught:
            list(entries(tmp_path / name))
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert list(entries(tmp_path / "hollow.mcap")) == []


# ---------------------------------------------------------------- several files


def test_files_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    later = write(tmp_path / "a.mcap", [[request(9, b"later")]], start_ns=START_NS + 10**9)
    earlier = write(tmp_path / "b.mcap", [[request(1, b"earlier")]])
    (tmp_path / "c.mcap").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not a recording, and not named like one")
    for paths in (tmp_path, [later, earlier], [str(tmp_path), earlier]):
        assert recordings(paths) == [earlier, later]
        first, between, second = entries(paths)
        assert (body(first), body(second)) == (b"earlier", b"later")
        assert between.body == {"event": "recording", "path": str(later)}


def test_a_folder_of_folders_says_where_recordings_are(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "a.mcap", [])
    with pytest.raises(RecordingError, match="there are 1 in folders below it"):
        list(entries(tmp_path))


def test_links_in_a_ring_and_pipes_are_said(tmp_path: Path) -> None:
    for make, what in (
        (lambda path: path.symlink_to(path.name), "cannot be read"),
        (os.mkfifo, "is not a file"),
    ):
        folder = tmp_path / what
        folder.mkdir()
        make(folder / "bad.mcap")
        write(folder / "good.mcap", conversation())
        for paths in (folder, [folder / "bad.mcap"]):
            with pytest.raises(RecordingError, match=rf"bad\.mcap: {what}"):
                list(read(paths))


def test_who_is_told_no_notes_is_warned_that_a_file_is_torn(tmp_path: Path) -> None:
    path = write(tmp_path / "torn.mcap", conversation())
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.warns(RecordingWarning, match=r"torn.mcap: read up to byte \d+: ends in the"):
        assert list(read(path))
    heard: list[Note] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(read(path, told=heard.append))
    assert heard[-1].body["event"] == "torn"


def test_parts_of_a_recording_that_are_missing_are_told(tmp_path: Path) -> None:
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_ns=1_000_000)
    for number in (1, 3, 5, 7):
        run.write([request(number, b"q")])
    run.close()
    heard: list[Note] = []
    list(read(run.paths, told=heard.append))
    assert "missing" not in [each.body["event"] for each in heard]
    list(read([run.paths[1], run.paths[3]], told=heard.append))
    found = [each.body["what"] for each in heard if each.body["event"] == "missing"]
    beside = "lies beside it: give all files, or their folder"
    assert found == [f"part 1 is not read; it {beside}", f"part 3 is not read; it {beside}"]
    heard.clear()
    list(read(run.paths[3], told=heard.append))
    found = [each.body["what"] for each in heard if each.body["event"] == "missing"]
    assert found == [f"parts 1 to 3 are not read; they {beside.replace('lies', 'lie')}"]
    heard.clear()
    run.paths[1].unlink()
    run.paths[2].unlink()
    list(read(run.paths[3], told=heard.append))
    found = [each.body["what"] for each in heard if each.body["event"] == "missing"]
    assert found == [f"parts 1 to 3 are not read; 1 of them {beside}"]
    heard.clear()
    run.paths[0].unlink()
    list(read(run.paths[3], told=heard.append))
    found = [each.body["what"] for each in heard if each.body["event"] == "missing"]
    assert found == ["parts 1 to 3 are not there"]
