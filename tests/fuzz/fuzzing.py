"""The loop of every fuzz target, and its command line.

    python -m tests.fuzz.machine --seconds 60
    python -m tests.fuzz.machine --inputs 10000000 --seed 7

A target is a function that makes an input of a random source and tries it; it returns how much was
accepted. What fails is told with the seed and the number of the input: `--seed` repeats the run.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

Target = Callable[[random.Random], int]


def fuzz(
    target: Target, seed: int, inputs_max: float, seconds: float = float("inf")
) -> tuple[int, int]:
    """Fuzz; return how many inputs there were, and how much of them was accepted."""
    rng = random.Random(seed)
    until = time.monotonic() + seconds
    inputs = accepted = 0
    while inputs < inputs_max and time.monotonic() < until:
        inputs += 1
        try:
            accepted += target(rng)
        except Exception as error:
            error.add_note(f"repeat it with --seed {seed} --inputs {inputs}")
            raise
    return inputs, accepted


def main(target: Target) -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--inputs", type=int, default=float("inf"), help="stop after this many")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    inputs, accepted = fuzz(target, options.seed, options.inputs, options.seconds)
    print(f"seed {options.seed}: {inputs:,} inputs, {accepted:,} accepted")
