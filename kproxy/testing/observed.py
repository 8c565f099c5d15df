"""The traffic so far as exchanges, for the assertions of a test.

::

    Frame, Run, Note ─ take ─▶ entries ─ exchanges ─▶ Leaving ─▶ Pairing ─▶ Exchange …

Invariants: entries are paired on demand, once, when they have left; traffic that a test does not
look at only takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from kproxy.exchange.entries import Entry, ExchangeRow, Note, each
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.leaving import Leaving
from kproxy.exchange.pairing import Pairing
from kproxy.wire.payloads.schemas import Schemas


@attrs.define(eq=False)
class Observed:
    """The complete exchanges of a run."""

    schemas: Schemas = attrs.field(factory=Schemas)
    """Those of its records."""
    wall_row: Callable[[ExchangeRow], ExchangeRow] = lambda row: row
    """Moves the times of a row to the system's clock, if that was set meanwhile."""
    _entries: list[Entry] = attrs.field(factory=list, init=False)
    """Entries that are not paired yet."""
    _leaving: Leaving = attrs.field(factory=Leaving, init=False)
    _cut_off: set[int] = attrs.field(factory=set, init=False)
    """Numbers of the exchanges whose response a fault rule cut off: only a note says so."""
    _pairing: Pairing = attrs.field(
        default=attrs.Factory(lambda self: Pairing(schemas=self.schemas), True), init=False
    )
    _exchanges: list[Exchange] = attrs.field(factory=list, init=False)

    def take(self, entries: Sequence[Entry]) -> None:
        """Take entries that have passed."""
        self._entries += entries

    def exchanges(self) -> list[Exchange]:
        """Return all exchanges so far, in the order in which they were completed."""
        entries, self._entries = self._entries, []
        for entry in each(self._leaving.take(entries)):
            if isinstance(entry, Note) and entry.body.get("action") == "truncate":
                self._cut_off.add(entry.body["number"])
            for exchange in self._pairing.feed(entry):
                row = self.wall_row(exchange.row)
                same = row is exchange.row
                self._exchanges.append(exchange if same else attrs.evolve(exchange, row=row))
        return list(self._exchanges)

    def whole_exchanges(self) -> list[Exchange]:
        """Return all exchanges so far but those whose response was cut off."""
        return [each for each in self.exchanges() if each.number not in self._cut_off]
