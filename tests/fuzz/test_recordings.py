"""A few seconds of fuzzing in every run; `python -m tests.fuzz.recordings` goes on for longer."""

from __future__ import annotations

from tests.fuzz import recordings


def test_the_reader_for_a_few_seconds() -> None:
    inputs, given = recordings.run(seed=1, seconds=600, inputs_max=15_000)
    assert inputs == 15_000 and given > 0
