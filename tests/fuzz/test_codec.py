"""A few seconds of fuzzing in every run; `python -m tests.fuzz.codec` goes on for longer."""

from __future__ import annotations

from tests.fuzz import codec
from tests.versions import ALL


def test_the_codec_for_a_few_seconds():
    inputs_max = 200_000 if ALL else 4_000
    inputs, accepted = codec.run(seed=1, seconds=600, inputs_max=inputs_max)
    assert inputs == inputs_max
    assert 0.05 < accepted / inputs < 0.95
