"""A case: a failure, and what the recording has before and after it.

Case(source, exchange, failure) ─▶ before(filter) · after(filter) ─▶ exchanges, in order
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.words.failures import Failure
from kproxy.exchange.words.wording import age
from kproxy.why.sentences import at, named
from kproxy.why.source import Source, all_of


@attrs.frozen(eq=False)
class Case:
    """A failure of an exchange in a recording."""

    source: Source
    exchange: Exchange
    failure: Failure

    def others(self, *wanted: Filter) -> Iterator[Exchange]:
        """Yield the other exchanges that match all of some filters, in order of completion."""
        for each in self.source.exchanges(all_of(*wanted)):
            if each.number != self.exchange.number:
                yield each

    def before(self, *wanted: Filter) -> Iterator[Exchange]:
        """Yield those that were answered before this one was."""
        for each in self.others(*wanted):
            if each.response is not None and each.completed_ns <= self.exchange.completed_ns:
                yield each

    def after(self, *wanted: Filter) -> Iterator[Exchange]:
        """Yield those that began after this one was answered."""
        for each in self.others(*wanted):
            if each.response is not None and each.time_ns >= self.exchange.completed_ns:
                yield each

    def when(self, other: Exchange) -> str:
        """Return the name of another exchange with its time: `Produce #5 of 12:00:00.123, 2.0 s
        before`."""
        distance_ms = (other.time_ns - self.exchange.time_ns) / 1e6
        side = "after it" if distance_ms > 0 else "before"
        return f"{named(other)} of {at(other)}, {age(abs(distance_ms))} {side}"


def api(*names: str) -> Filter:
    """Return the filter for APIs."""
    return matching("api", *names)
