"""When a rule hits: which of the exchanges that it means.

Invariant: a decision is a function of the seed, the rule's name and the match's ordinal, the first
being 1. Two runs with the same seed and the same traffic decide alike, and a rule more or less
changes nothing for the others. `times` alone counts what has happened, not what was decided: a
rule that another has won over keeps its turn.
"""

from __future__ import annotations

import hashlib

import attrs

_UNIT = 1 / (1 << 53)


def chance(seed: int, name: str, ordinal: int, draw: int = 0) -> float:
    """A number from 0 up to 1, the same one for the same arguments; `draw` counts several."""
    text = f"{seed}\0{name}\0{ordinal}\0{draw}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) * _UNIT


@attrs.frozen
class Trigger:
    """Which matches of a rule hit, by their ordinal and by the time."""

    probability: float = 1.0
    skip: int = 0
    """So many matches pass first."""
    every: int = 1
    """Of the rest, each n-th."""
    times: int | None = None
    """No more than so many hits."""
    start_after_ns: int = 0
    """Nothing is hit for so long after the rule was loaded (or enabled)."""
    duration_ns: int | None = None
    """And nothing after so long from then."""

    def hits(self, seed: int, name: str, ordinal: int) -> bool:
        """Whether the match of this ordinal hits, time and `times` aside."""
        counted = ordinal - self.skip
        if counted <= 0 or counted % self.every:
            return False
        return self.probability >= 1 or chance(seed, name, ordinal) < self.probability

    def is_time(self, elapsed_ns: int) -> bool:
        """Whether hits are due, so long after the rule was loaded."""
        since = elapsed_ns - self.start_after_ns
        return since >= 0 and (self.duration_ns is None or since < self.duration_ns)
