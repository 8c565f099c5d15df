"""Recordings of several runs of one test: what varies between them is noted in the one to keep."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kproxy import recording
from kproxy.exchange import notes
from kproxy.history.behaviour import Behaviour
from kproxy.history.items import with_gaps
from kproxy.recording.recovery import append_notes
from kproxy.replay.learned import Learned, learn


def learn_from(path: Path, others: Sequence[Path]) -> Learned:
    """Note in a recording what varies between it and others of the same; return that.

    Raises: RecordingError; OSError.
    """
    runs = [_behaviour(each) for each in (path, *others)]
    learned = learn(runs)
    note_learned(path, learned)
    return learned


@contextlib.contextmanager
def rehearsed() -> Iterator[list[Path]]:
    """Yield a list for recordings of runs before the one to keep; remove them at the end."""
    paths: list[Path] = []
    try:
        yield paths
    finally:
        for path in paths:
            shutil.rmtree(path.parent, ignore_errors=True)


def note_learned(path: Path, learned: Learned) -> None:
    """Note what varies in a recording, in place of what is noted there.

    Raises: RecordingError; OSError.
    """
    append_notes(path, lambda now: [notes.learned(now, learned.body())])


def learned_lines(learned: Learned, shown: str) -> Iterable[str]:
    """Yield what was learned, for who recorded it: what is to be asked, a line each."""
    if learned.words:
        count = len(learned.words)
        parts = f"{count} part{'s' * (count != 1)}"
        yield f"learned what varies: {parts} (kproxy learned {shown})"
    for each in learned.asked:
        yield f"{each.word} varies ({each.example}): data? if not, say so: kproxy learned {shown}"


def _behaviour(path: Path) -> Behaviour:
    found = Behaviour()
    for item in with_gaps(lambda told: recording.read(path, told=told), lambda note: None):
        found.add(item)
    return found
