"""One file as an object: batches, tables, frames by position, and as it grows."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from kproxy.exchange.entries import FRAGMENT, MORE, TRUNCATED, Position
from kproxy.recording import Recording, RecordingError, RecordingFile, Writer, read
from kproxy.recording.file import frame_bytes_in
from tests.recording.making import (
    SETTINGS,
    START_NS,
    arrow_table,
    conversation,
    opened,
    plain,
    request,
    response,
    write,
)


def test_a_frame_is_found_by_its_position(tmp_path: Path) -> None:
    batches = [[request(n, b"ask %d" % n), response(n, b"tell %d" % n)] for n in range(1, 30)]
    path = write(tmp_path / "a.mcap", batches)
    with RecordingFile(path) as file:
        rows = [row for batch in file.batches() for row in file.exchanges(batch).rows()]
        for row in reversed(rows):
            asked = file.frame(Position.of(row.request_position))
            answered = file.frame(Position.of(row.response_position))
            assert (asked.data, answered.data) == (b"ask %d" % row.number, b"tell %d" % row.number)
        assert file.frame(Position(999, 0, 0)) is None


def test_a_frame_in_pieces_is_put_together(tmp_path: Path) -> None:
    data = bytes(range(256)) * 12_000
    large = response(1, data)
    path = write(tmp_path / "a.mcap", [[request(1, b"ask")], [large], [request(2, b"ask")]])
    exchange, _ = read(path)
    assert exchange.response_frame == data
    assert not exchange.truncated and not exchange.row.response_flags & (FRAGMENT | MORE)


def test_pieces_that_are_missing_truncate_a_frame(tmp_path: Path) -> None:
    last = response(1, b"the end", flags=FRAGMENT, frame_bytes=100)
    path = write(tmp_path / "a.mcap", [[request(1, b"ask"), last]])
    with RecordingFile(path) as file:
        (row,) = [row for batch in file.batches() for row in file.exchanges(batch).rows()]
        frame = file.frame(Position.of(row.response_position))
        assert frame.data == b"the end" and frame.flags & TRUNCATED


def test_a_position_of_no_frame_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [[request(1, b"ask")]])
    with RecordingFile(path) as file:
        list(file.batches())
        for position in (Position(1, 7, 0), Position(1, 0, 7)):
            with pytest.raises(RecordingError, match="does not decode"):
                file.frame(position)
            with pytest.raises(RecordingError, match="does not decode"):
                file.frame_bytes(position.integer)


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    with RecordingFile(path) as file:
        assert list(file.batches()) == []
        for number in range(1, 20):
            size = 40_000 if number % 3 == 0 else 40
            writer.write([request(number, b"a" * size), response(number, b"b")])
            (batch,) = file.batches(number - 1)
            assert [row.number for row in file.exchanges(batch).rows()] == [number]
            assert file.torn.body["writing"]
        writer.close()
        assert list(file.batches(19)) == [] and file.torn is None
        assert len(list(file.batches())) == 19


def test_a_file_that_is_closed_opens_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    file = RecordingFile(path)
    batches = list(file.batches())
    file.close()
    assert [len(file.frames(batch)) for batch in batches] == [2, 1, 3]
    file.close()


def test_frames_are_not_read_for_exchanges(tmp_path: Path) -> None:
    """A flipped bit in the bytes of a frame is noticed when somebody wants the frame."""
    asked = request(1, b"q" * 40_000)
    batches = [[asked, response(1, b"r" * 40_000, request_bytes=40_000)]]
    path = write(tmp_path / "a.mcap", batches, compression="none")
    path.write_bytes(path.read_bytes().replace(b"q" * 40_000, b"q" * 39_999 + b"p"))
    (exchange,) = read(path)
    assert (exchange.number, exchange.broker_ms, exchange.request_bytes) == (1, 0.37, 40_000)
    with pytest.raises(RecordingError, match="checksum"):
        assert exchange.request_frame


def test_the_stream_is_what_the_messages_say(tmp_path: Path) -> None:
    import pyarrow.ipc

    path = write(tmp_path / "a.mcap", conversation())
    with RecordingFile(path) as file:
        for name in ("frames", "exchanges"):
            stream = b"".join(file.arrow_stream(name))
            assert pyarrow.ipc.open_stream(stream).read_all() == arrow_table(path, f"/kafka/{name}")


def test_requests_may_lie_in_an_earlier_file_than_their_row(tmp_path: Path) -> None:
    run = Recording(tmp_path / "run.mcap", **SETTINGS, rotate_ns=1_000_000_000)
    run.write([opened(node_id=5, client_address="10.0.0.1:9"), request(1, b"early")])
    for second in range(1, 6):
        now = START_NS + second * 1_100_000_000
        run.write([request(second + 1, b"x", received_ns=now, sent_ns=now + 1)])
    late = START_NS + 7_000_000_000
    run.write([response(1, b"late", received_ns=late, sent_ns=late + 1, request_bytes=5)])
    run.close()
    assert len(run.paths) > 5
    found = {exchange.number: exchange for exchange in read(tmp_path)}
    assert (found[1].request_frame, found[1].response_frame) == (b"early", b"late")
    assert (found[1].node_id, found[1].client_address) == (5, "10.0.0.1:9")
    (alone,) = [each for each in read(run.paths[-1]) if each.number == 1]
    assert (alone.request_frame, alone.response_frame) == (None, b"late")
    assert alone.request_bytes == 5 and alone.node_id == 5


def test_a_recording_is_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "recordings" / "captures"
    run = Recording(folder / "run.mcap", **SETTINGS)
    run.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.paths[0].stat().st_mode) == 0o600


def test_entries_and_pieces_keep_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [[entry for batch in conversation() for entry in batch]])
    from kproxy.recording import entries

    expected = [plain(entry) for batch in conversation() for entry in batch]
    assert [plain(entry) for entry in entries(path)] == expected


def test_the_bytes_of_a_frame_are_those_that_the_frame_has(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    file = RecordingFile(path)
    positions = [
        Position(batch.number, run, nth)
        for batch in file.batches()
        if (table := file.frames(batch)) is not None
        for run in range(len(table))
        for nth in range(len(table.run(run)))
    ]
    assert len(positions) > 5
    for position in positions:
        frame, (batch, run, nth) = file.frame(position), position
        assert frame is not None
        assert file.frame_bytes(batch << 32 | run << 16 | nth) == frame.data
    assert file.frame_bytes(99 << 32) is None


def test_a_column_of_positions_gives_the_frames_that_each_of_them_gives(tmp_path: Path) -> None:
    large = bytes(range(256)) * 12_000  # in pieces
    requests = [request(number, b"%d" % number) for number in range(2, 9)]  # one run
    batches = [[request(1, b"ask"), *requests], [response(1, large)], [response(2, b"")]]
    found = _found_at_once([RecordingFile(write(tmp_path / "a.mcap", batches))])
    assert {large, b"ask", b"8", b"", None} <= set(found)
    _found_at_once([RecordingFile(write(tmp_path / "b.mcap", conversation()))])
    rotated = sorted((Path(__file__).parent / "formats/2").glob("rotated*.mcap"))
    assert len(_found_at_once(list(map(RecordingFile, rotated)))) > 20


def _found_at_once(files: list[RecordingFile]) -> list[bytes | None]:
    """Return the frames of the files of a recording, found by their positions."""
    known = [
        Position(batch.number, run, nth).integer
        for file in files
        for batch in file.batches()
        if (table := file.frames(batch)) is not None
        for run in range(len(table))
        for nth in range(len(table.run(run)))
    ]
    integers = [*known, 0, -1, 99 << 32, *reversed(known), 0, *known[::3]]
    found = [frame_bytes_in(files, each) for each in integers]
    assert found[: len(known)] == found[len(known) + 3 :][: len(known)][::-1]
    assert frame_bytes_in(files, 0) is None
    assert frame_bytes_in(files, -1) is None
    for wrong in (known[0] | 0xFFFF, known[0] | 0xFFFF << 16):
        with pytest.raises(RecordingError, match="does not decode"):
            frame_bytes_in(files, wrong)
    return found
