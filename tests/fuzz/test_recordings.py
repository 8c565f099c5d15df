"""A few seconds of fuzzing in every run; `python -m tests.fuzz.recordings` goes on for longer."""

from __future__ import annotations

from tests.fuzz import recordings
from tests.versions import ALL


def test_the_reader_for_a_few_seconds() -> None:
    inputs_max = 15_000 if ALL else 300
    inputs, given = recordings.run(seed=1, seconds=600, inputs_max=inputs_max)
    assert inputs == inputs_max and given > 0
