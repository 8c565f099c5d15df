"""Findings about brokers that stood still: for a while they answered nobody.

::

    ──●──●─┬─ requests of several connections are sent ───────────┬●●●●──▶ time
           last response                    nothing of the broker first response

What waits at the broker because it was asked to (polls, joins) is no witness that it stood still,
but its response is one that it did not.

Invariants: a stall has requests of at least two connections, each of which waited for most of it:
one slow request is no stall. No stall reaches over a gap. At most `_KEPT_MAX` of a broker are
remembered.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.derived import JOINS, POLLS
from kproxy.exchange.entries import INJECTED
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import age, count
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import clock, named
from kproxy.why.source import Gap, Item

STALL_NS = 1_000_000_000
"""Shorter ones are not told."""
_KEPT_MAX = 100
_WAITS = frozenset((*POLLS, *JOINS))


@attrs.define(eq=False)
class _Stall:
    """A time in which a broker sent nothing, and those who waited."""

    from_ns: int
    until_ns: int
    first: Exchange
    """The exchange that was answered first."""
    requests: int = 0
    connections: set[int] = attrs.field(factory=set[int])

    def take(self, exchange: Exchange) -> None:
        """Count an exchange if it waited for most of the stall."""
        if exchange.row.request_sent_ns <= (self.from_ns + self.until_ns) // 2:
            self.requests += 1
            self.connections.add(exchange.connection)


@attrs.define(eq=False)
class _Broker:
    """What is known of one broker."""

    answered_ns: int = 0
    """The arrival of its last response."""
    stalls: list[_Stall] = attrs.field(factory=list[_Stall])
    """Only the last of them may not be proved, or not yet."""

    def add(self, exchange: Exchange) -> None:
        """Take an exchange that it answered."""
        sent_ns, now = exchange.row.request_sent_ns, exchange.row.response_received_ns
        if now < self.answered_ns:  # kproxy held it meanwhile: the broker did not stand still
            self.stalls = [each for each in self.stalls if not each.from_ns < now < each.until_ns]
            return
        from_ns, self.answered_ns = max(self.answered_ns, sent_ns), now
        if exchange.api in _WAITS:
            return
        if now - from_ns >= STALL_NS:
            self.stalls = self.proved
            if len(self.stalls) < _KEPT_MAX:
                self.stalls.append(_Stall(from_ns, now, exchange))
        if self.stalls:
            self.stalls[-1].take(exchange)

    @property
    def proved(self) -> list[_Stall]:
        """The stalls in which several connections waited."""
        return [each for each in self.stalls if len(each.connections) > 1]


@attrs.define(eq=False)
class Stalls:
    """Finds brokers that stood still."""

    _brokers: dict[int, _Broker] = attrs.field(factory=dict[int, _Broker], init=False)
    """By node id."""

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):
            for broker in self._brokers.values():
                broker.answered_ns = max(broker.answered_ns, item.time_ns)
        if not isinstance(item, Exchange) or item.node_id is None or item.response_bytes is None:
            return
        if item.row.request_sent_ns and not item.row.response_flags & INJECTED:
            self._brokers.setdefault(item.node_id, _Broker()).add(item)

    def found(self) -> list[Finding]:
        """Return a finding for each broker."""
        proved = {node_id: broker.proved for node_id, broker in self._brokers.items()}
        return [_finding(node_id, stalls) for node_id, stalls in sorted(proved.items()) if stalls]


def _finding(node_id: int, stalls: list[_Stall]) -> Finding:
    longest = max(stalls, key=lambda stall: stall.until_ns - stall.from_ns)
    how_long, first = age((longest.until_ns - longest.from_ns) / 1e6), longest.first
    others = count(longest.requests, "request")
    text = (
        f"Broker {node_id} answered nobody for {how_long}, from {clock(longest.from_ns)} to"
        f" {clock(longest.until_ns)}, while {others} on {len(longest.connections)} connections"
        f" waited; {named(first)} was answered first."
    )
    if len(stalls) > 1:
        text += f" It stood still so {len(stalls)} times."
    shown = "show", f"node_id:{node_id} broker_ms:{STALL_NS // 2_000_000}.."
    return Finding(Harm.LATENCY, "broker that stood still", text, (first.number,), shown)
