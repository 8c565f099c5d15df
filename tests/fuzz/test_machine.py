"""A few seconds of fuzzing in every run; `python -m tests.fuzz.machine` goes on for longer."""

from __future__ import annotations

from tests.fuzz import machine
from tests.versions import ALL


def test_the_machine_for_a_few_seconds() -> None:
    inputs_max = 150_000 if ALL else 4_000
    assert machine.run(seed=1, seconds=600, inputs_max=inputs_max) == inputs_max
