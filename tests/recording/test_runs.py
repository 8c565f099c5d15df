"""A run is its frames: in the recording, in what is lost, and for whoever looks on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import (
    CONNECTIONS,
    NO_RESPONSE,
    ChunkTimes,
    Note,
    PendingRequest,
    Run,
    Side,
    each,
    frame_count,
)
from kproxy.net.recorder import Recorder
from kproxy.recording.format import CHUNK_BYTES, ROW_BYTES
from tests.recording.making import START_NS, oracle_messages, plains, write

SPLICES = ([], [(4, 2, b"ab"), (9, 0, b"")], [(8, 1, b"\xff" * 40)])
TIMES = st.tuples(st.integers(1, 2**62), st.one_of(st.just(0), st.integers(-5, 2**43)))


def run_of(
    sizes: list[int], side: Side, times: list[tuple[int, int]], numbers: int, splices
) -> Run:
    """A run of frames of these sizes; times are (received, sent after) of it and of requests."""
    timed = [ChunkTimes(at, at + after if after else 0) for at, after in times]
    requests: list[PendingRequest] = [
        (
            place - 7,
            place % 80,
            place % 9,
            numbers + place,
            100 + place,
            place % 2 * NO_RESPONSE,
            timed[-1 - place % 2],
            None,
        )
        for place in range(len(sizes))
    ]
    data = b"before" + bytes(range(256)) * (sum(sizes) // 256 + 1)
    return Run(side, 3, timed[0], data, 6, requests, sizes, splices if side else ())


runs = st.builds(
    run_of,
    st.lists(st.integers(8, 400) | st.integers(8, 16_383), min_size=1, max_size=60),
    st.sampled_from(Side),
    st.lists(TIMES, min_size=3, max_size=3),
    st.integers(1, 2**60),
    st.sampled_from(SPLICES),
)


@given(st.lists(runs, min_size=1, max_size=5))
def test_a_run_is_written_as_its_frames_are(tmp_path_factory, made: list[Run]) -> None:
    folder: Path = tmp_path_factory.mktemp("runs")
    together = write(folder / "runs.mcap", [made])
    apart = write(folder / "frames.mcap", [list(each(made))])
    assert together.read_bytes() == apart.read_bytes()


@pytest.mark.parametrize("splices", SPLICES)
def test_a_long_run_becomes_several_chunks(tmp_path: Path, splices) -> None:
    run = run_of([90] * 5000, Side.BROKER, [(START_NS, 5000)] * 3, 1, splices)
    after = Note(CONNECTIONS, START_NS, {"event": "closed", "connection": 3})
    together = write(tmp_path / "runs.mcap", [[run, after]])
    apart = write(tmp_path / "frames.mcap", [[*run.frames(), after]])
    assert together.read_bytes() == apart.read_bytes()
    tables = oracle_messages(together, "/kafka/headers")
    assert sum(map(len, tables)) == 5000 * ROW_BYTES
    assert max(map(len, tables)) < ROW_BYTES * CHUNK_BYTES / 180


def test_a_request_that_was_answered_before_it_had_all_left_has_no_time_of_leaving() -> None:
    late = [(START_NS, 0), (START_NS - 1000, 2000), (START_NS - 1000, 500)]
    first, second = run_of([20, 20], Side.BROKER, late, 1, ()).frames()
    assert first.request_sent_ns == START_NS - 500 and second.request_sent_ns == 0


class Refusing:
    """A disk that is full."""

    def write(self, batch) -> None:
        """Take nothing."""
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("sizes", [[20], [20, 30, 40]])
def test_what_is_lost_of_a_run_is_counted_by_frames(sizes: list[int]) -> None:
    logs, seen = [], []
    recorder = Recorder(Refusing(), logs.append, seen.extend)
    run = run_of(sizes, Side.CLIENT, [(START_NS, 0)] * 3, 1, ())
    recorder.put([run], 100)
    recorder.finish()
    assert recorder.frames_lost == len(sizes) == frame_count([run])
    assert recorder.frame_bytes_lost == sum(sizes)
    assert plains(seen) == plains(run.frames())
