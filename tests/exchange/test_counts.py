"""Counts do not depend on how exchanges are divided, nor on the order of the parts."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy import recording
from kproxy.exchange.counts import Counts
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.merging import merge
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"


@cache
def exchanges() -> list[Exchange]:
    return [each for name in ("java-4.4.0", "faults", "transactions")
            for each in recording.read([FORMATS / f"{name}.mcap"])]  # fmt: skip


def plain(counts: Counts) -> dict[str, Any]:
    return {
        name: {key: attrs.asdict(each) for key, each in getattr(counts, name).items()}
        for name in ("clients", "topics", "failures")
    }


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_parts_in_any_order_are_the_whole(data):
    whole, parts = Counts(), [Counts() for _ in range(4)]
    for number, each in enumerate(exchanges()):
        place = each.name, number
        whole.add(each, place)
        parts[data.draw(st.integers(0, 3))].add(each, place)
    together = Counts()
    for part in data.draw(st.permutations(parts)):
        merge(together, part)
    assert plain(together) == plain(whole)
    assert together.total.count == len(exchanges())
