"""A run is its frames: in the recording, in what is lost, and for whoever looks on."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import attrs
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import (
    NO_RESPONSE,
    PIECE_BYTES_MAX,
    ChunkTimes,
    FrameRun,
    Requests,
    Side,
    each_frame,
)
from kproxy.net.recorder import Recorder
from kproxy.recording import entries, read
from tests.recording.making import START_NS, plain, plains, write

SPLICES = ([], [(4, 2, b"ab"), (9, 0, b"")], [(8, 1, b"\xff" * 40)])
TIMES = st.tuples(st.integers(1, 2**62), st.one_of(st.just(0), st.integers(-5, 2**43)))


def run_of(
    sizes: list[int], side: Side, times: list[tuple[int, int]], number: int, kind: int, splices
) -> FrameRun:
    """A run of frames of these sizes, the first two of its requests left out; times are (received,
    sent after) of it and of its requests."""
    own, asked = (ChunkTimes(at, at + after if after else 0) for at, after in times)
    ids = [place - 7 for place in range(len(sizes) + 2)]
    api_key, flags = kind % 80, NO_RESPONSE if kind == 80 else 0
    asked_sizes = [100 + each for each in ids] if side else [20, 20, *sizes]
    about = number, api_key, kind % 9, flags
    requests = Requests(*about, ids, asked_sizes, asked if side else own)
    data = b""
    for correlation_id, size in zip(ids[2:], sizes, strict=True):
        names = struct.pack(">hhi", api_key, kind % 9, correlation_id)
        head = struct.pack(">i", size - 4) + (names[4:] if side else names)
        data += (head + bytes(range(256)) * (size // 256 + 1))[:size]
    return FrameRun(side, 3, own, [data], requests, 2, sizes, splices if side else ())


runs = st.builds(
    run_of,
    st.lists(st.integers(12, 400) | st.integers(12, 16_383), min_size=1, max_size=60),
    st.sampled_from(Side),
    st.lists(TIMES, min_size=2, max_size=2),
    st.integers(1, 2**60),
    st.integers(0, 80),
    st.sampled_from(SPLICES),
)


def in_pieces(run: FrameRun, cuts: list[int]) -> FrameRun:
    """The run of a single frame, as it arrived in several chunks."""
    data = run.data
    ends = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    return attrs.evolve(run, pieces=[memoryview(data)[a:b] for a, b in itertools.pairwise(ends)])


runs |= st.builds(
    in_pieces,
    st.builds(
        run_of,
        st.lists(st.integers(12, 200_000) | st.just(PIECE_BYTES_MAX), min_size=1, max_size=1),
        st.sampled_from(Side),
        st.lists(TIMES, min_size=2, max_size=2),
        st.integers(1, 2**60),
        st.integers(0, 80),
        st.sampled_from(SPLICES),
    ),
    st.lists(st.integers(1, PIECE_BYTES_MAX), max_size=4),
)


@given(st.lists(runs, min_size=1, max_size=5))
def test_a_run_is_read_as_its_frames(tmp_path_factory, made: list[FrameRun]) -> None:
    path = write(tmp_path_factory.mktemp("runs") / "runs.mcap", [made])
    assert plains(entries(path)) == plains(each_frame(made))


@given(st.lists(runs, min_size=1, max_size=5))
def test_a_run_gives_the_exchanges_that_its_frames_give(
    tmp_path_factory, made: list[FrameRun]
) -> None:
    for nth, run in enumerate(made):  # no number is given twice
        run.requests.number += nth * 100
    folder: Path = tmp_path_factory.mktemp("runs")
    together = write(folder / "runs.mcap", [made])
    apart = write(folder / "frames.mcap", [list(each_frame(made))])
    assert _said(together) == _said(apart)


def pipelined(
    count: int, api_key: int, cuts: tuple[list[int], list[int]], sent: bool, first: int = 1
) -> list[FrameRun]:
    """Requests of one API and their responses, in chunks that end at these numbers."""
    asked, answered = ({0, count, *(cut % count for cut in ends)} for ends in cuts)
    made: list[FrameRun] = []
    for nth, (start, end) in enumerate(itertools.pairwise(sorted(asked))):
        times = ChunkTimes(START_NS + 10 * nth, START_NS + 10 * nth + 3 if sent else 0)
        ids, sizes = [-place for place in range(start, end)], [30] * (end - start)
        requests = Requests(first + start, api_key, 4, 0, ids, sizes, times)
        heads = (struct.pack(">ihhi", 26, api_key, 4, each).ljust(30, b"x") for each in ids)
        made.append(FrameRun(Side.CLIENT, 3, times, [b"".join(heads)], requests, 0, sizes))
    asked_runs = [run.requests for run in made]
    at = START_NS + 1000
    for start, end in itertools.pairwise(sorted(asked | answered)):  # one run for each of requests
        times = ChunkTimes(at, at + 3 if sent else 0)
        (requests,) = (
            each for each in asked_runs if each.number <= first + start < each.number + len(each)
        )
        nth = first + start - requests.number
        heads = (struct.pack(">ii", 26, -place).ljust(30, b"x") for place in range(start, end))
        sizes = [30] * (end - start)
        made.append(FrameRun(Side.BROKER, 3, times, [b"".join(heads)], requests, nth, sizes))
        at += 10 * (end in answered)
    return made


CUTS = st.lists(st.integers(1, 1000), max_size=4)


@given(st.integers(1, 40), st.sampled_from([0, 1, 3]), st.tuples(CUTS, CUTS), st.booleans())
def test_pipelined_exchanges_are_those_of_their_frames(
    tmp_path_factory, count: int, api_key: int, cuts: tuple[list[int], list[int]], sent: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("runs")
    made = pipelined(count, api_key, cuts, sent)
    together = write(folder / "runs.mcap", [made])
    apart = write(folder / "frames.mcap", [list(each_frame(made))])
    assert len(_said(together)) == count
    assert _said(together) == _said(apart)


def _said(path: Path) -> list[tuple]:
    positions = {"request_position": 0, "response_position": 0}
    return [
        (
            exchange.row._replace(**positions),
            *(frame and plain(frame) for frame in exchange.frames),
        )
        for exchange in read(path)
    ]


def test_a_request_that_was_answered_before_it_had_all_left_has_no_time_of_leaving() -> None:
    for sent_after_ns, sent_ns in ((2000, 0), (500, START_NS - 500)):
        times = [(START_NS, 0), (START_NS - 1000, sent_after_ns)]
        (frame,) = run_of([20], Side.BROKER, times, 1, 3, ()).frames()
        assert frame.request_sent_ns == sent_ns


def test_a_frame_that_came_in_many_chunks_takes_the_room_of_all() -> None:
    run = run_of([100_000], Side.BROKER, [(START_NS, 0)] * 2, 1, 3, ())
    for entry in (in_pieces(run, [20_000, 40_000, 60_000]), *run.frames()):
        recorder = Recorder(None, print, lambda entries: None)
        recorder.put([entry])
        assert 100_000 < recorder.backlog_bytes < 101_000
