"""What passed so far, as exchanges: what a test makes its assertions on.

::

    Frame, Run, Note ─ take ─▶ entries ─ exchanges ─▶ Pairing ─▶ Exchange …

Invariant: entries are paired when somebody asks, once; what a test does not ask for costs it no
more than memory.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import Entry, each
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import Pairing


@attrs.define(eq=False)
class Observed:
    """The exchanges of a run, as far as they are complete."""

    _entries: list[Entry] = attrs.field(factory=list, init=False)
    """What is not paired yet."""
    _pairing: Pairing = attrs.field(factory=Pairing, init=False)
    _exchanges: list[Exchange] = attrs.field(factory=list, init=False)

    def take(self, entries: list[Entry]) -> None:
        """Take what has passed."""
        self._entries += entries

    def exchanges(self) -> list[Exchange]:
        """All exchanges so far, in the order in which they were completed."""
        entries, self._entries = self._entries, []
        for entry in each(entries):
            self._exchanges += self._pairing.feed(entry)
        return list(self._exchanges)
