"""One file as an object: batches, tables, frames by position, and as it grows."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import attrs
import pytest

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    TRUNCATED,
    ChunkTimes,
    FrameRun,
    Position,
    Requests,
    Side,
)
from kproxy.recording import Recording, RecordingFile, Writer, read
from kproxy.recording.file import frame_bytes_in
from tests.recording.making import (
    SETTINGS,
    START_NS,
    body,
    conversation,
    opened,
    request,
    response,
    rewrite,
    write,
)

FORMATS = Path(__file__).parent / "formats" / "2"


def test_a_frame_in_pieces_is_put_together(tmp_path: Path) -> None:
    data = bytes(range(256)) * 12_000
    large = response(1, data)
    path = write(tmp_path / "a.mcap", [[request(1, b"ask")], [large], [request(2, b"ask")]])
    exchange, _ = read(path)
    assert exchange.response_frame == large.data
    assert not exchange.truncated and not exchange.row.response_flags & (FRAGMENT | MORE)


@pytest.mark.parametrize("flags", [0, TRUNCATED])
def test_a_frame_without_its_first_pieces_is_not_there(flags: int, tmp_path: Path) -> None:
    last = response(1, b"the end", flags=FRAGMENT | flags, frame_bytes=100)
    path = write(tmp_path / "a.mcap", [[request(1, b"ask"), last]])
    with RecordingFile(path) as file:
        (row,) = [row for batch in file.batches() for row in file.exchanges(batch)]
        assert row.response_bytes == 100
        assert file.frame(Position.of(row.response_position)) is None
    (exchange,) = read(path)
    assert exchange.response_frame is None and exchange.unanswered is None


def test_one_without_its_last_pieces_is_truncated(tmp_path: Path) -> None:
    whole = request(1, b"ask" * 99)
    first = attrs.evolve(whole, pieces=[whole.data[:40]], flags=FRAGMENT | MORE)
    (exchange,) = read(write(tmp_path / "a.mcap", [[first]]))
    assert exchange.request_frame == whole.data[:40] and exchange.truncated


def test_responses_without_their_requests_have_correlation_ids_of_their_own(
    tmp_path: Path,
) -> None:
    frames = [[make(number, b"said").data for number in (1, 2)] for make in (request, response)]
    asked = Requests(1, 0, 11, 0, [-4, -3], [*map(len, frames[0])], ChunkTimes(START_NS, START_NS))
    runs = [
        FrameRun(side, 3, asked.times, [b"".join(each)], asked, 0, [*map(len, each)])
        for side, each in zip(Side, frames, strict=True)
    ]
    path, nth = write(tmp_path / "a.mcap", [[run] for run in runs]), itertools.count()
    rewrite(path, tmp_path / "b.mcap", keeps=lambda _, topic: "pieces" not in topic or next(nth))
    found = [*read(tmp_path / "b.mcap", told=lambda note: None)]
    assert [(each.request_frame, each.row.correlation_id) for each in found] == [
        (None, -4), (None, -3),
    ]  # fmt: skip


def test_a_position_of_no_frame_has_none(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", [[request(1, b"ask")]])
    with RecordingFile(path) as file:
        list(file.batches())
        for position in (Position(1, 7, 0), Position(1, 0, 7), Position(9, 0, 0)):
            assert file.frame(position) is None
            assert file.frame_bytes(position.integer) is None


def test_a_file_that_grows_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    writer = Writer(path, **SETTINGS)
    with RecordingFile(path) as file:
        assert list(file.batches()) == []
        for number in range(1, 20):
            size = 40_000 if number % 3 == 0 else 40
            writer.write([request(number, b"a" * size), response(number, b"b")])
            (batch,) = file.batches(number - 1)
            assert [row.number for row in file.exchanges(batch)] == [number]
            assert file.torn.body["writing"]
        writer.close()
        assert list(file.batches(19)) == [] and file.torn is None
        assert len(list(file.batches())) == 19


def test_a_file_that_is_closed_opens_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.mcap", conversation())
    file = RecordingFile(path)
    batches = list(file.batches())
    file.close()
    assert [len(list(file.entries(batch))) for batch in batches] == [3, 3, 4]
    file.close()


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
    assert body(found[1].request_frame) == b"early"
    assert found[1].response_frame.endswith(b"late")
    assert (found[1].node_id, found[1].client_address) == (5, "10.0.0.1:9")
    (alone,) = [each for each in read(run.paths[-1]) if each.number == 1]
    assert alone.request_frame is None and alone.response_frame == found[1].response_frame
    positions = {"request_position": 0, "response_position": 0}
    assert alone.row._replace(**positions) == found[1].row._replace(**positions)


def test_a_recording_is_its_owners(tmp_path: Path) -> None:
    folder = tmp_path / "recordings" / "captures"
    run = Recording(folder / "run.mcap", **SETTINGS)
    run.close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(run.paths[0].stat().st_mode) == 0o600


def test_the_bytes_of_a_frame_are_those_that_the_frame_has(tmp_path: Path) -> None:
    large = bytes(range(256)) * 12_000  # in pieces
    requests = [request(number, b"%d" % number) for number in range(2, 9)]
    batches = [[request(1, b"ask"), *requests], [response(1, large)], [response(2, b"")]]
    for path in (
        write(tmp_path / "a.mcap", batches),
        write(tmp_path / "b.mcap", conversation()),
        FORMATS / "large.mcap",
    ):
        with RecordingFile(path) as file:
            pieces = [(batch.number, file.pieces(batch)) for batch in file.batches()]
            positions = [
                Position(number, run, nth)
                for number, found in pieces
                for run in range(len(found))
                for nth in range(len(found.frames(run)))
            ]
            assert len(positions) > 5
            for position in [*positions, *reversed(positions)]:
                frame = file.frame(position)
                data = frame and frame.data
                assert file.frame_bytes(position.integer) == data
                assert frame_bytes_in([file], position.integer) == data
            assert [frame_bytes_in([file], each) for each in (0, -1, 99 << 32)] == [None] * 3
