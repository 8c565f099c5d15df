"""Reading: whole, torn, damaged, foreign, growing, several files."""

from __future__ import annotations

import os
from pathlib import Path

import mcap.writer
import pytest

from kproxy.exchange.entries import Frame, Note
from kproxy.recording import (
    ROW_FIELDS,
    RecordingError,
    Writer,
    entries,
    info,
    read,
    recordings,
    rows,
    tables,
    verify,
)
from kproxy.recording.format import DATA_END_BYTES, FRAME_HEAD, MESSAGE_HEAD, ROW
from tests.recording.making import (
    SETTINGS,
    START_NS,
    conversation,
    event,
    flips,
    opened,
    oracle_accepts,
    plain,
    plains,
    read_until_refused,
    request,
    response,
    rewrite,
    write,
)

ALL = [entry for batch in conversation() for entry in batch]
PLAIN = [plain(entry) for entry in ALL]
STORED = {"compression": "none"}
DATA_END_START = b"\x0f\x04\0\0\0\0\0\0\0"


def names(path: Path) -> list[str]:
    """The fields of the first row of a file, as a row's user would look them up."""
    table = next(rows(path))
    return dict(zip([name for name, _ in ROW_FIELDS], ROW.unpack_from(table), strict=True))


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_one_flipped_bit_anywhere_is_damage(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    for offset in flips(path):
        read, error = read_until_refused(path)
        assert error is not None and "\n" not in str(error)
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]
        if offset % 64 == 0:
            with pytest.raises(RecordingError):
                verify(path)
    verify(path)


def test_the_mcap_package_notices_flips_up_to_the_data_end(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    data_end = path.read_bytes().rindex(DATA_END_START)
    unnoticed = [offset for offset in flips(path) if oracle_accepts(path.read_bytes())]
    assert unnoticed, "the mcap package checks its summary by now: say so in format.py"
    assert min(unnoticed) >= data_end
    assert not set(unnoticed) & set(range(data_end + 9, data_end + DATA_END_BYTES))


def test_a_flipped_bit_in_a_torn_file_never_makes_a_wrong_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), **STORED)
    os.truncate(path, path.read_bytes().rindex(DATA_END_START) - 30)
    whole, _ = read_until_refused(path)
    assert whole.pop().body["event"] == "torn"
    assert [plain(entry) for entry in whole] == PLAIN
    name = path.read_bytes().index(b"kproxy 0.1.0")
    library = range(name - 4, name + 7)
    for offset in flips(path):
        read, error = read_until_refused(path)
        if error is None:
            # Only these cannot be noticed: flips in the torn record itself, and in the library's
            # name, which make the file look like a copy by another tool.
            assert read.pop().body["offset"] <= offset or offset in library
            assert len(read) == len(PLAIN)
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]


def test_reading_can_leave_out_a_damaged_chunk(tmp_path: Path) -> None:
    batches = [[request(n, b"frame %d" % n)] for n in range(1, 4)]
    path = write(tmp_path / "a.mcap", batches, **STORED)
    data = path.read_bytes().replace(b"frame 2", b"frame X", 1)
    path.write_bytes(data)
    first, damaged, third = entries(path, skip_damaged=True)
    assert (first.data, third.data) == (b"frame 1", b"frame 3")
    assert damaged.body["event"] == "damaged"
    assert damaged.body["what"] == "is damaged: the checksum of a chunk does not match"
    with pytest.raises(RecordingError, match="the checksum of a chunk does not match"):
        list(entries(path))


def test_a_damaged_chunk_at_the_end_is_left_out_too(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.mcap", [[request(1, b"frame 1")], [request(2, b"frame 2")]], **STORED
    )
    path.write_bytes(path.read_bytes().replace(b"frame 2", b"frame X"))
    first, damaged = entries(path, skip_damaged=True)
    assert (first.data, damaged.body["event"]) == (b"frame 1", "damaged")


def test_a_damaged_table_costs_no_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [[request(1, b"frame 1")]], **STORED)
    data = bytearray(path.read_bytes())
    data[data.rindex(DATA_END_START) - 1] ^= 1  # the last byte of the last table
    path.write_bytes(data)
    first, damaged = entries(path, skip_damaged=True)
    assert (first.data, damaged.body["event"]) == (b"frame 1", "damaged")


# ---------------------------------------------------------------- torn


@pytest.mark.parametrize("compression", ["adaptive", "none"])
def test_a_file_cut_anywhere_reads_as_a_beginning_of_it(tmp_path: Path, compression: str) -> None:
    path = write(tmp_path / "a.mcap", conversation(), compression=compression)
    size = path.stat().st_size
    lengths = set()
    for end in range(size - 1, 0, -1):
        os.truncate(path, end)
        *read, torn = entries(path)
        assert [plain(entry) for entry in read] == PLAIN[: len(read)]
        assert torn.body["event"] == "torn" and torn.body["offset"] <= end
        assert not torn.body["writing"]
        lengths.add(len(read))
    assert lengths == {0, 3, 6, 10}


def test_a_file_cut_anywhere_has_the_rows_of_its_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    whole = b"".join(rows(path))
    for end in range(path.stat().st_size - 1, 0, -3):
        os.truncate(path, end)
        told: list[Note] = []
        read = b"".join(rows(path, torn=told.append))
        frames = [entry for entry in entries(path) if isinstance(entry, Frame)]
        assert read == whole[: 64 * sum(1 for frame in frames if not frame.flags & 16)]
        assert [note.body["event"] for note in told] == ["torn"]


def test_a_torn_file_does_not_verify(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(RecordingError, match="`kproxy recover` completes it"):
        verify(path)


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


def test_a_growing_file_is_read_as_far_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    for count in range(1, 4):
        writer.write([request(count, b"grow")])
        *read, torn = entries(path)
        assert len(read) == count
        assert torn.body["writing"] and "still being written" in torn.body["what"]
    writer.close()
    assert len(list(entries(path))) == 3


# ---------------------------------------------------------------- rows


def test_rows_say_what_frames_say(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), **STORED)
    frames = [entry for entry in entries(path) if isinstance(entry, Frame)]
    whole = [frame for frame in frames if not frame.flags & 16]
    read = [ROW.unpack_from(table, at) for table in rows(path) for at in range(0, len(table), 64)]
    assert [row[2] for row in read] == [frame.number for frame in whole]
    assert [row[6] for row in read] == [frame.frame_bytes for frame in whole]
    row = names(path)
    assert (row["received_ns"], row["sent_after_us"]) == (START_NS + 1_000_000, 30)
    assert (row["connection"], row["api_version"], row["side"]) == (3, 11, 0)


def test_a_row_leads_to_its_frame(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), **STORED)
    data = path.read_bytes()
    seen = 0
    for table in tables(path):
        records = table.data_offset + 49  # a stored chunk's header
        for at in range(0, len(table.rows), 64):
            row = table.rows[at : at + 64]
            message = records + ROW.unpack(row)[5]
            assert data[message + MESSAGE_HEAD.size : message + FRAME_HEAD.size] == row
            seen += 1
    assert seen == 5


def test_rows_are_read_without_the_frames(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation(), **STORED)
    expected = list(rows(path))
    path.write_bytes(path.read_bytes().replace(b"x" * 90, b"y" * 90))
    assert list(rows(path)) == expected
    with pytest.raises(RecordingError):
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
        assert b"".join(rows(copy)) == b"".join(rows(path))
        assert info(copy).start_ns == START_NS
        assert (info(copy).schema_id, info(copy).format_version) == ("5eed5eed", 1)
        assert not info(copy).native
        verify(copy)


def test_messages_outside_of_chunks_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    copy = rewrite(path, tmp_path / "b.mcap", use_chunking=False)
    for each in (entries, rows):
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


def test_an_unreadable_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.mcap", [])

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(RecordingError, match="cannot be read: Permission denied"):
        list(entries(path))


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    copy = rewrite(path, tmp_path / "b.mcap")
    copy.write_bytes(
        copy.read_bytes().replace(b"format_version\1\0\0\0001", b"format_version\1\0\0\0002")
    )
    with pytest.raises(RecordingError, match="format version 2: read it with a newer kproxy"):
        list(entries(copy))


# ---------------------------------------------------------------- several files


def test_files_are_read_in_the_order_of_their_times(tmp_path: Path) -> None:
    later = write(tmp_path / "a.mcap", [[request(9, b"later")]], start_ns=START_NS + 10**9)
    earlier = write(tmp_path / "b.mcap", [[request(1, b"earlier")]])
    (tmp_path / "c.mcap").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("not a recording, and not named like one")
    for paths in (tmp_path, [later, earlier], [str(tmp_path), earlier]):
        assert recordings(paths) == [earlier, later]
        first, between, second = entries(paths)
        assert (first.data, second.data) == (b"earlier", b"later")
        assert between.body == {"event": "recording", "path": str(later)}


def test_a_folder_of_folders_says_where_recordings_are(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path / "below" / "a.mcap", [])
    with pytest.raises(RecordingError, match="there are 1 in folders below it"):
        list(entries(tmp_path))


def test_exchanges_are_read_over_several_files(tmp_path: Path) -> None:
    write(tmp_path / "a.mcap", [[opened(), request(1, b"\0\0\0\4abcd")]])
    later = [[response(1, b"\0\0\0\2ok")]]
    write(tmp_path / "b.mcap", later, start_ns=START_NS + 1)
    exchanges = list(read(tmp_path))
    assert [exchange.number for exchange in exchanges] == [1, 1]


def test_one_foreign_file_among_several_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.mcap", [[event("x")]])
    (tmp_path / "b.mcap").write_text("something else entirely")
    with pytest.raises(RecordingError, match=r"b\.mcap: is not a recording"):
        list(entries(tmp_path))
