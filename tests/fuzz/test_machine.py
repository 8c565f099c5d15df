"""A few seconds of fuzzing in every run; `python -m tests.fuzz.machine` goes on for longer."""

from __future__ import annotations

from tests.fuzz import machine


def test_the_machine_for_a_few_seconds() -> None:
    assert machine.run(seed=1, seconds=600, inputs_max=150_000) == 150_000
