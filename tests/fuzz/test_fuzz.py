"""A few seconds of each fuzz target in every run; `python -m tests.fuzz.machine` goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fuzz import broker, filters, machine, recordings
from tests.fuzz.fuzzing import Target, fuzz
from tests.versions import ALL


@pytest.mark.parametrize(
    ("target", "inputs_max", "least", "most"),
    [
        (broker.target, 30, 1, 1),
        (filters.target, 20_000 if ALL else 2_000, 0.05, 0.95),
        (machine.target, 150_000 if ALL else 1_000, 1, 1),
        (recordings.target, 15_000 if ALL else 100, 0.001, float("inf")),
    ],
    ids=lambda value: getattr(value, "__module__", None),
)
def test_a_few_seconds(
    target: Callable[[], Target], inputs_max: int, least: float, most: float
) -> None:
    inputs, accepted = fuzz(target(), 1, inputs_max)
    assert inputs == inputs_max
    assert least <= accepted / inputs <= most
