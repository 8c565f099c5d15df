"""A run is its frames: in the recording, in what is lost, and for whoever looks on."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import (
    NO_RESPONSE,
    ChunkTimes,
    PendingRow,
    Run,
    Side,
    count_frames,
    each,
)
from kproxy.net.recorder import Recorder
from kproxy.recording import entries, read
from kproxy.recording.builder import BatchBuilder
from tests.recording.making import START_NS, plain, plains, write

SPLICES = ([], [(4, 2, b"ab"), (9, 0, b"")], [(8, 1, b"\xff" * 40)])
TIMES = st.tuples(st.integers(1, 2**62), st.one_of(st.just(0), st.integers(-5, 2**43)))


def run_of(
    sizes: list[int], side: Side, times: list[tuple[int, int]], numbers: int, splices
) -> Run:
    """A run of frames of these sizes; times are (received, sent after) of it and of requests."""
    timed = [ChunkTimes(at, at + after if after else 0) for at, after in times]
    requests: list[PendingRow] = [
        (
            place - 7,
            place % 80,
            place % 9,
            numbers + place,
            100 + place if side else sizes[place],
            NO_RESPONSE if place % 80 == 0 else 0,
            timed[-1 - place % 2] if side else timed[0],
            None,
        )
        for place in range(len(sizes))
    ]
    data = b"before"
    for request, size in zip(requests, sizes, strict=True):
        ids = struct.pack(">hhi", request[1], request[2], request[0])
        head = struct.pack(">i", size - 4) + (ids[4:] if side else ids)
        data += (head + bytes(range(256)) * (size // 256 + 1))[:size]
    return Run(side, 3, timed[0], data, 6, requests, sizes, splices if side else ())


runs = st.builds(
    run_of,
    st.lists(st.integers(12, 400) | st.integers(12, 16_383), min_size=1, max_size=60),
    st.sampled_from(Side),
    st.lists(TIMES, min_size=3, max_size=3),
    st.integers(1, 2**60),
    st.sampled_from(SPLICES),
)


@given(st.lists(runs, min_size=1, max_size=5))
def test_a_run_is_read_as_its_frames(tmp_path_factory, made: list[Run]) -> None:
    path = write(tmp_path_factory.mktemp("runs") / "runs.mcap", [made])
    assert plains(entries(path)) == plains(each(made))


@given(st.lists(runs, min_size=1, max_size=5))
def test_a_run_gives_the_exchanges_that_its_frames_give(tmp_path_factory, made: list[Run]) -> None:
    folder: Path = tmp_path_factory.mktemp("runs")
    together = write(folder / "runs.mcap", [made])
    apart = write(folder / "frames.mcap", [list(each(made))])
    assert _said(together) == _said(apart)


def pipelined(
    count: int, api_key: int, cuts: tuple[list[int], list[int]], sent: bool, first: int = 1
) -> list[Run]:
    """Requests of one API and their responses, in chunks that end at these numbers."""
    pending: list[PendingRow] = []
    made: list[Run] = []
    for side, ends in zip(Side, cuts, strict=True):
        at = START_NS + side * 1000
        for start, end in itertools.pairwise(sorted({0, count, *(cut % count for cut in ends)})):
            times = ChunkTimes(at, at + 3 if sent else 0)
            if side is Side.CLIENT:
                pending += [
                    (-place, api_key, 4, first + place, 30, 0, times, None)
                    for place in range(start, end)
                ]
            part = pending[start:end]
            heads = (
                struct.pack(">ii" if side else ">ihhi", *([26] if side else [26, *r[1:3]]), r[0])
                for r in part
            )
            data = b"".join(head.ljust(30, b"x") for head in heads)
            made.append(Run(side, 3, times, data, 0, part, [30] * len(part)))
            at += 10
    return made


CUTS = st.lists(st.integers(1, 1000), max_size=4)


@given(st.integers(1, 40), st.sampled_from([0, 1, 3]), st.tuples(CUTS, CUTS), st.booleans())
def test_pipelined_exchanges_are_those_of_their_frames(
    tmp_path_factory, count: int, api_key: int, cuts: tuple[list[int], list[int]], sent: bool
) -> None:
    folder: Path = tmp_path_factory.mktemp("runs")
    made = pipelined(count, api_key, cuts, sent)
    together = write(folder / "runs.mcap", [made])
    apart = write(folder / "frames.mcap", [list(each(made))])
    assert len(_said(together)) == count
    assert _said(together) == _said(apart)


@given(st.tuples(CUTS, CUTS), st.integers(0, 9))
def test_what_follows_a_lost_response_is_paired_all_the_same(
    cuts: tuple[list[int], list[int]], chunk: int
) -> None:
    made = pipelined(20, 3, cuts, sent=True)
    responses = [run for run in made if run.side]
    lost_run = responses[chunk % len(responses)]
    builder = BatchBuilder()
    for run in made:
        builder.lose([run]) if run is lost_run else builder.add([run])
    builder.finish()
    rows = [row for batch in builder.take() for row in batch.rows_from_before(1 << 31)]
    lost = {request[3] for request in lost_run.requests}
    assert sorted(row.number for row in rows) == list(range(1, 21))
    assert {row.number for row in rows if not row.response_position} == lost
    assert all(row.response_bytes and row.request_position for row in rows)


def test_a_run_may_be_longer_than_positions_tell_apart(tmp_path: Path) -> None:
    count = 70_000
    path = write(tmp_path / "long.mcap", [pipelined(count, 3, ([], [30_000]), sent=True)])
    exchanges = list(read(path))
    assert [exchange.number for exchange in exchanges] == list(range(1, count + 1))
    for exchange in exchanges[65_530:65_540]:
        assert [frame and frame.number for frame in exchange.frames] == [exchange.number] * 2


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
    late = [(START_NS, 0), (START_NS - 1000, 2000), (START_NS - 1000, 500)]
    first, second = run_of([20, 20], Side.BROKER, late, 1, ()).frames()
    assert first.request_sent_ns == START_NS - 500 and second.request_sent_ns == 0


class Refusing:
    """A disk that is full."""

    def wants_pending(self, time_ns: int) -> bool:
        """Want to know nothing."""
        return False

    def append(self, batches) -> None:
        """Take nothing."""
        raise OSError(28, "No space left on device")

    def prepare_close(self) -> None:
        """Have no room even then."""

    def close(self) -> None:
        """Nothing was begun."""


@pytest.mark.parametrize("sizes", [[20], [20, 30, 40]])
def test_what_is_lost_of_a_run_is_counted_by_frames(sizes: list[int]) -> None:
    logs, seen = [], []
    recorder = Recorder(Refusing(), logs.append, seen.extend)
    run = run_of(sizes, Side.CLIENT, [(START_NS, 0)] * 3, 1, ())
    recorder.put([run], 100)
    trio.run(recorder.finish)
    assert recorder.frames_lost == len(sizes) == count_frames([run])
    assert recorder.frame_bytes_lost == sum(sizes)
    assert plains(seen) == plains(run.frames())
