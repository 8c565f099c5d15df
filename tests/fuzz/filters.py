"""Fuzzes the filter language: mutated filters, which are filters or mistakes that are pointed at.

    python -m tests.fuzz.filters --seconds 60
    python -m tests.fuzz.filters --inputs 1000000 --seed 7

Whatever the text: `parse` gives a filter or a FilterError with a column in the text; a filter reads
back as it writes itself, and answers of odd exchanges.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import FilterError, parse
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from tests.exchange.filters import exchanges
from tests.exchange.making import START_NS
from tests.fuzz.mutate import mutated

CORPUS = [
    *(key.example for key in (*KEYS, *PATHS)),
    *(f"is:{name}" for name in QUALITIES),
    "api:Fetch topic:orders-* broker_ms:50..",
    "(group:billing or not topic:orders,payments) time:12:03..12:05",
    'client_id:"my app \\"1\\" \\*" and not (is:error or is:opaque) or number:-1..5',
    "time:2026-05-01T12:03:10.25+02:00..2026-05-02 time:+1s..+2min key:'a b'",
    "error:6 or error:UNKNOWN_ERROR_CODE_999 or error:*AUTH*",
]
PIECES = [
    " or ",
    " not ",
    "(",
    ")",
    ",",
    "*",
    '"',
    "\\",
    ":",
    "..",
    "is:",
    "topic:",
    "99999999999999",
]


def text(rng: random.Random) -> str:
    """A filter, changed."""
    chosen = " ".join(rng.choices(CORPUS, k=rng.randint(1, 2)))
    if rng.random() < 0.7:
        for _ in range(rng.randint(0, 3)):
            place = rng.randint(0, len(chosen))
            chosen = chosen[:place] + rng.choice(PIECES) + chosen[place + rng.randint(0, 3) :]
        return chosen
    return mutated(chosen.encode(), rng).decode("utf-8", "surrogateescape")


def check(text: str, odd: Sequence[Exchange]) -> bool:
    """Read it and try it; returns whether it is a filter."""
    try:
        found = parse(text)
    except FilterError as error:
        assert 1 <= error.column <= max(1, len(text))
        assert "\n" not in str(error)
        return False
    assert parse(str(found)) == found, str(found)
    found = found.starting(START_NS).within(lambda name: name == "shop")
    for exchange in odd:
        found.matches(exchange)
    return True


def run(seed: int, seconds: float, inputs_max: int | None = None) -> tuple[int, int]:
    """Fuzz; returns how many texts there were and how many of them were filters."""
    rng = random.Random(seed)
    odd = exchanges()[:16]
    until = time.monotonic() + seconds
    inputs = filters = 0
    while time.monotonic() < until and (inputs_max is None or inputs < inputs_max):
        given = text(rng)
        inputs += 1
        try:
            filters += check(given, odd)
        except Exception:
            print(f"seed {seed}, input {inputs}: {given!r}", file=sys.stderr)
            raise
    return inputs, filters


def main() -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.filters")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, default=None, help="stop after this many")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    seconds = float("inf") if options.inputs else options.seconds
    inputs, filters = run(options.seed, seconds, options.inputs)
    print(f"seed {options.seed}: {inputs:,} texts, {filters:,} filters")


if __name__ == "__main__":
    main()
