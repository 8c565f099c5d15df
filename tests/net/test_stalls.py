"""kproxy says when it stood still itself: else the broker would be blamed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.look.lines.stream import Stream
from kproxy.net import stalls
from kproxy.recording.notices import Notices
from tests.recording.making import conversation, write

SECOND = 1_000_000_000


@pytest.mark.parametrize(("late_seconds", "told"), [(0.0, 0), (0.4, 0), (0.5, 1), (30.0, 1)])
async def test_a_late_turn_is_told(autojump_clock, late_seconds: float, told: int) -> None:
    def times() -> Iterator[int]:
        now = 1_700_000_000 * SECOND
        for late in (0.0, late_seconds, 0.0):
            yield now
            now += int((stalls.TICK_SECONDS + late) * SECOND)
            yield now

    found: list[Note] = []
    clock = times()
    with pytest.raises(RuntimeError):  # the clock stops
        await stalls.watch(lambda: next(clock), found.append)
    assert [note.body["seconds"] for note in found] == [late_seconds] * told


def test_many_stalls_are_one_line_among_the_others() -> None:
    said = Notices()
    for nth in range(28):
        said.note(notes.lost(1, 9, "full", nth * SECOND, nth * SECOND + 1))
        said.note(notes.stood_still(nth * SECOND, nth * SECOND + 500_000_000 + nth * 10**6))
        assert len(said.texts) == (nth + 2 if nth < 3 else 2)
    lost, still = said.texts
    assert lost.startswith("28 frames (252 bytes)")
    assert still.startswith("kproxy itself stood still 28 times, for 0.527 s at most")


def test_whoever_looks_at_the_recording_is_told(tmp_path: Path) -> None:
    note = notes.stood_still(1_700_000_000 * SECOND, 1_700_000_001 * SECOND + 30_000_000)
    stream = Stream([write(tmp_path / "a.mcap", [*conversation(), [note]])])
    assert list(stream.exchanges())
    (notice,) = stream.notices
    assert "kproxy itself stood still for 1.03 s until 22:13:21.030" in notice
