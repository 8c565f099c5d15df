"""A case: a failure, and the history around it.

::

    exchange N ─▶ Case(history, failure) ─┬─ before: the history as it is when N is complete
                  later exchanges ─▶ … ───┴─ after:  the history at the end of the recording

What the history sees behind N, it keeps apart from what was before (`History.close`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.failures import Failure
from kproxy.exchange.words.wording import age
from kproxy.history.history import History
from kproxy.history.kept import Extents
from kproxy.history.ref import Ref
from kproxy.look.why.sentences import NOT_RECORDED, at, named

Value = TypeVar("Value")


@attrs.frozen(eq=False)
class Case:
    """A failure of an exchange in a recording."""

    history: History
    exchange: Exchange
    failure: Failure

    def told_before(self, fact: Extents[Value]) -> tuple[Ref, Value] | None:
        """Return what a fact was when the request came, and the last exchange that shows it."""
        now_ns = self.exchange.time_ns
        found = fact.until(now_ns)
        if found is None:
            return None
        return found.last if found.last.completed_ns <= now_ns else found.first, found.value

    def told_after(self, fact: Extents[Value]) -> tuple[Ref, Value] | None:
        """Return what a fact is after the response, and the first exchange that shows it."""
        found = fact.since(self.exchange.completed_ns)
        return None if found is None else (found.first, found.value)

    def told_nearest(self, fact: Extents[Value]) -> tuple[Ref, Value] | None:
        """Return what a fact was when the response came, or else is after it."""
        found = fact.until(self.exchange.completed_ns)
        return (found.last, found.value) if found is not None else self.told_after(fact)

    def broker_before(self, fact: Extents[int], role: str) -> Iterator[str]:
        """Yield which broker had a role before the exchange."""
        if before := self.told_before(fact):
            yield f"{self.when(before[0])}, named broker {before[1]} as {role}."

    def broker_after(self, fact: Extents[int], unknown: str) -> Iterator[str]:
        """Yield which broker has the role after it."""
        if after := self.told_after(fact):
            yield f"{self.when(after[0])}, names broker {after[1]}."
        elif unknown:
            yield f"{unknown} {NOT_RECORDED}."

    def when(self, other: Exchange | Ref) -> str:
        """Return the name of another exchange with its time: `Produce #5 of 12:00:00.123, 2.0 s
        before`."""
        distance_ms = (other.time_ns - self.exchange.time_ns) / 1e6
        side = "after it" if distance_ms > 0 else "before"
        return f"{named(other)} of {at(other)}, {age(abs(distance_ms))} {side}"
