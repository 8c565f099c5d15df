"""What a chunk holds, in short: for the index of its file (`batch_index`).

Of exchanges of which any piece is in the chunk, not only of those that end there: so a chunk that
holds nothing that a filter looks for can be passed over with all that is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from kproxy.exchange.entries import MORE, NO_RESPONSE, RAW_SASL, UNANSWERED, Note
from kproxy.exchange.follower import BROKER_SIDE, LATE

HAS_NOTES, HAS_UNANSWERED, HAS_FLAGS, HAS_FAULTS, HAS_HEADLESS, HAS_SCHEMAS = 1, 2, 4, 8, 16, 32
_NONE = 1 << 62
_NUMBER_MAX = (1 << 63) - 1

Seen = tuple[int, int, int, int, int, int, int, int]
"""A piece: its first number, how many frames it has, when the requests arrived, connection, API key
and version, flags, how many rules touched it."""


@attrs.frozen
class ChunkFacts:
    """The facts about one chunk."""

    rows: int = 0
    """The number of exchanges that end in it, as far as its writer knows."""
    has: int = 0
    connections: frozenset[int] = frozenset()
    kinds: frozenset[int] = frozenset()
    """APIs and versions: key << 16 | version."""
    first_ns: int = _NONE
    """The first and the last time at which a request of its exchanges arrived."""
    last_ns: int = -1
    first: int = _NONE
    """The least and the greatest number of an exchange."""
    last: int = -1

    @classmethod
    def of(cls, seen: Sequence[Seen], notes: Iterable[Note]) -> ChunkFacts:
        """Return the facts about a chunk with these pieces and notes."""
        has = 0
        for note in notes:
            has |= HAS_NOTES | HAS_SCHEMAS * (note.body.get("event") == "schema")
        if not seen:
            return cls(has=has)
        numbers, counts, times_ns, connections, keys, versions, flags, faults = zip(
            *seen, strict=True
        )
        apis = {*zip(keys, versions, strict=True)}
        for each in set(flags):
            own = each & ~(BROKER_SIDE | LATE)
            has |= HAS_FLAGS * bool(own) | HAS_UNANSWERED * bool(own & UNANSWERED)
            has |= HAS_HEADLESS * bool(own & RAW_SASL)
        return cls(
            sum(count for count, each in zip(counts, flags, strict=True) if _ends(each)),
            has | HAS_FAULTS * any(faults),
            frozenset(connections),
            frozenset(key << 16 | version & 0xFFFF for key, version in apis),
            min(times_ns),
            max(times_ns),
            min(numbers),
            min(max(map(int.__add__, numbers, counts)) - 1, _NUMBER_MAX),
        )


def _ends(flags: int) -> bool:
    """Return whether exchanges end with a piece with these flags."""
    if flags & (MORE | LATE):
        return False
    return bool(flags & (BROKER_SIDE | NO_RESPONSE))
