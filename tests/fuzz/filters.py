"""Fuzzes the filter language: mutated filters, which are filters or mistakes that are pointed at.

Whatever the text: `parse` gives a filter or a FilterError with a column in the text; a filter reads
back as it writes itself, and answers of odd exchanges.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import FilterError, parse
from kproxy.exchange.filter.keys import KEYS, PATHS, QUALITIES
from tests.exchange.filters import exchanges
from tests.exchange.making import START_NS
from tests.fuzz.fuzzing import Target, main
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


def target() -> Target:
    """Return what tries a text."""
    odd = exchanges()[:16]

    def filter_text(rng: random.Random) -> int:
        given = text(rng)
        try:
            return check(given, odd)
        except Exception as error:
            error.add_note(repr(given))
            raise

    return filter_text


if __name__ == "__main__":
    main(target())
