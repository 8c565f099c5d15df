"""A few seconds of fuzzing in every run; `python -m tests.fuzz.broker` goes on for longer."""

from __future__ import annotations

from tests.fuzz import broker


def test_the_replaying_broker_for_a_few_seconds() -> None:
    assert broker.run(seed=1, seconds=600, inputs_max=6000) == 6000
