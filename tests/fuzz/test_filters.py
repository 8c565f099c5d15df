"""A few seconds of fuzzing in every run; `python -m tests.fuzz.filters` goes on for longer."""

from __future__ import annotations

from tests.fuzz import filters


def test_the_filter_language_for_a_few_seconds() -> None:
    inputs, found = filters.run(seed=1, seconds=600, inputs_max=20_000)
    assert inputs == 20_000
    assert 0.05 < found / inputs < 0.95
