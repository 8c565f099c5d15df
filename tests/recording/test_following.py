"""A recording that grows is followed to its end: every exchange once, and waiting is said."""

from __future__ import annotations

from pathlib import Path

from kproxy import recording
from kproxy.recording.following import FileFollower, Follow
from tests.exchange.making import MS
from tests.look.lines.test_tail import beats, begin


def test_each_exchange_comes_once_over_rotations_and_nothing_waits(tmp_path: Path) -> None:
    made = begin(tmp_path / "live.mcap", rotate_ns=100 * MS)
    notes: list[str] = []
    follower = FileFollower([tmp_path / "live.mcap"], lambda note: notes.append(note.body["event"]))
    found = follower.found()

    def names() -> list[str]:
        """The exchanges up to the next wait."""
        return [each.name for each in iter(lambda: next(found, None), None)]

    assert names() == []
    seen: list[str] = []
    for numbers in ((1, 2), (3,), (200, 201), (500,)):
        made.write([*beats(*numbers)])
        for _ in range(4):  # the end of a file is waited for, too
            seen += names()
    assert seen == [f"#{number}" for number in (1, 2, 3, 200, 201, 500)]
    assert len(follower.paths) == len(made.paths) > 1
    made.close()
    assert names() == [] and "torn" not in notes
    assert [each.name for each in recording.read(tmp_path)] == seen


def test_a_finished_recording_is_not_waited_for(tmp_path: Path) -> None:
    made = begin(tmp_path / "one.mcap", rotate_ns=100 * MS)
    made.write([*beats(1)])
    made.write([*beats(300)])
    made.close()
    follower = FileFollower([made.paths[0]], lambda note: None, follow=Follow.WHILE_WRITTEN)
    found = [each.name for each in follower.found() if each is not None]
    assert found == ["#1"] and follower.paths == made.paths[:1]
