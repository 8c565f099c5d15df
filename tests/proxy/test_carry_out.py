"""A verdict carried out on a frame, whole or in pieces: both lead to the same bytes at one time."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from kproxy.proxy import carry_out
from kproxy.proxy.output import Departure, Output
from kproxy.proxy.verdicts import Ending, Verdict

FRAME = bytes(range(40))

VERDICTS = st.builds(
    Verdict,
    delay_ns=st.sampled_from([0, 5]),
    bytes_per_second=st.sampled_from([0, 1000]),
    ending=st.sampled_from([None, *Ending]),
    ending_bytes=st.integers(0, 50),
    ending_delay_ns=st.sampled_from([0, 7]),
)


def departures(verdict: Verdict, frame: bytes, arrived_ns: int) -> list[Departure]:
    """What becomes of a whole frame by itself."""
    out = Output()
    carry_out.begin(verdict, arrived_ns, out)
    for each in carry_out.frames_to_send(verdict, frame):
        out.replace(each)
    carry_out.end(verdict, out)
    return out.finish() or [Departure(pieces=out.pieces)]


def left(leaving: list[Departure]) -> tuple[bytes, int, int, object]:
    """The bytes that leave, when and how fast, and how the connection ends behind them."""
    data = b"".join(bytes(piece) for each in leaving for piece in each.pieces)
    due_ns = max(each.due_ns for each in leaving)
    rate = max(each.bytes_per_second for each in leaving)
    endings = [(each.ending, each.ending_delay_ns) for each in leaving if each.ending]
    return data, due_ns, rate, endings


@given(VERDICTS, st.lists(st.integers(1, 39), max_size=4))
def test_in_pieces_as_whole(verdict: Verdict, cuts: list[int]) -> None:
    out = Output()
    edges = [0, *sorted(set(cuts)), len(FRAME)]
    for start, stop in itertools.pairwise(edges):
        piece = FRAME[start:stop]
        carry_out.begin(verdict, 100, out)
        out.replace(piece[: carry_out.bytes_to_send(verdict, start, piece)])
    carry_out.end(verdict, out)
    out.replace(b"behind")
    found = out.finish()
    if found is None:
        assert out.pieces == [*out.pieces[:-1], b"behind"]
        assert b"".join(out.pieces[:-1]) == FRAME and verdict.ending is None
        return
    *mine, behind = found
    assert behind.pieces == [b"behind"] and behind.due_ns == behind.bytes_per_second == 0
    assert left(mine) == left(departures(verdict, FRAME, 100))


@given(VERDICTS)
def test_what_leaves_is_the_front_of_the_frame_when_it_is_due(verdict: Verdict) -> None:
    data, due_ns, rate, endings = left(departures(verdict, FRAME, 100))
    cut = len(FRAME) if verdict.ending is None else verdict.ending_bytes
    assert data == FRAME[:cut]
    late = verdict.delay_ns or verdict.bytes_per_second
    assert due_ns == (100 + verdict.delay_ns if late else 0)
    assert rate == verdict.bytes_per_second
    assert endings == ([(verdict.ending, verdict.ending_delay_ns)] if verdict.ending else [])


def test_other_frames_leave_in_place_of_one() -> None:
    assert left(departures(Verdict(frames=(b"a", b"b")), FRAME, 0))[0] == b"ab"
    assert left(departures(Verdict(frames=()), FRAME, 0))[0] == b""
    cut = Verdict(frames=(b"abc", b"d"), ending=Ending.RESET, ending_bytes=2)
    assert left(departures(cut, FRAME, 0))[0] == b"ab"
