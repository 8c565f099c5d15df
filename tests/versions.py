"""How much of each product is tested: a part that finds what all of it finds, or all of it.

By default each API is tested in three versions: its oldest, its first flexible one (KIP-482: other
lengths, tagged fields) and its newest. KPROXY_TEST_ALL=1 tests every version, every example of a
product (clients × mechanisms, faults × clients), ten times as many examples of hypothesis, and ten
replays of each app (Kafka Streams at least once, too).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import TypeVar

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Message

S = TypeVar("S")
T = TypeVar("T")

ALL = os.environ.get("KPROXY_TEST_ALL") == "1"


def versions(message: Message) -> list[int]:
    """The versions of a message that are tested."""
    return _taken(message, message.versions)


def kinds(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of some (api key, version), sorted, that are tested."""
    taken = []
    for key, group in itertools.groupby(sorted(found), key=lambda kind: kind[0]):
        request = schema.message(key, schema.REQUEST)
        assert request is not None
        taken += [(key, version) for version in _taken(request, [kind[1] for kind in group])]
    return taken


def some(every: Sequence[T], few: Iterable[T]) -> list[T]:
    """Every example where all are asked for, else a few of them."""
    return list(every if ALL else few)


def pairs(ones: Sequence[S], others: Sequence[T]) -> list[tuple[S, T]]:
    """Every pair where all are asked for, else pairs in which each one and each other occurs."""
    every = list(itertools.product(ones, others))
    longer = range(max(len(ones), len(others)))
    return some(every, [(ones[n % len(ones)], others[n % len(others)]) for n in longer])


def _taken(message: Message, known: Sequence[int]) -> list[int]:
    """The ends of a range of versions, and where it becomes flexible."""
    flexible = [version for version in known if version in message.flexible_versions][:1]
    return some(known, sorted({known[0], *flexible, known[-1]}))
