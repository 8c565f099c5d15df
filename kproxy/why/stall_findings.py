"""Findings about brokers that stood still: for a while they answered nobody.

::

    ──●──●─┬─ requests of several connections are sent ───────────┬●●●●──▶ time
           last response                    nothing of the broker first response

What waits at the broker because it was asked to (polls, joins) is no witness that it stood still,
but its response is one that it did not.

Invariants: a stall has requests of at least two connections, each of which waited for most of it:
one slow request is no stall. No stall reaches over a gap. At most `_KEPT_MAX` of a broker are
remembered, and of each at most `_WAITING_MAX` requests.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.derived import JOINS, POLLS
from kproxy.exchange.entries import INJECTED
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.wording import age, count
from kproxy.history.items import Gap, Item
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import clock, named

STALL_NS = 1_000_000_000
"""Shorter ones are not told."""
_KEPT_MAX = 100
_WAITING_MAX = 1000
_WAITS = frozenset((*POLLS, *JOINS))


@attrs.define(eq=False)
class _Stall:
    """A time in which a broker sent nothing, and those who waited for it."""

    silent_from_ns: int
    until_ns: int
    waiting: list[Exchange] = attrs.field(factory=list[Exchange])
    """The exchanges that were answered behind it, in order."""

    def take(self, exchange: Exchange) -> None:
        """Take an exchange that was answered at its end, or later."""
        if exchange.row.request_sent_ns < self.until_ns and len(self.waiting) < _WAITING_MAX:
            self.waiting.append(attrs.evolve(exchange))  # without what was read of its bodies

    @property
    def from_ns(self) -> int:
        """The time from which on somebody waited."""
        sent_ns = min((each.row.request_sent_ns for each in self.waiting), default=self.until_ns)
        return max(self.silent_from_ns, sent_ns)

    @property
    def length_ns(self) -> int:
        """How long it was."""
        return self.until_ns - self.from_ns

    @property
    def is_proved(self) -> bool:
        """True if requests of several connections waited for most of it."""
        middle_ns = (self.from_ns + self.until_ns) // 2
        most = {each.connection for each in self.waiting if each.row.request_sent_ns <= middle_ns}
        return self.length_ns >= STALL_NS and len(most) > 1


@attrs.define(eq=False)
class _Broker:
    """What is known of one broker."""

    answered_ns: int = 0
    """The arrival of its last response."""
    stalls: list[_Stall] = attrs.field(factory=list[_Stall])
    """All but the last are proved."""

    def add(self, exchange: Exchange) -> None:
        """Take an exchange that it answered."""
        now = exchange.row.response_received_ns
        if now < self.answered_ns:  # kproxy held it meanwhile: the broker did not stand still
            self.stalls = [
                each for each in self.stalls if not each.silent_from_ns < now < each.until_ns
            ]
            return
        if now - self.answered_ns >= STALL_NS:
            self.stalls = self.proved
            if len(self.stalls) < _KEPT_MAX:
                self.stalls.append(_Stall(self.answered_ns, now))
        self.answered_ns = now
        if self.stalls and exchange.api not in _WAITS:
            self.stalls[-1].take(exchange)

    @property
    def proved(self) -> list[_Stall]:
        """The stalls that are proved."""
        return [each for each in self.stalls if each.is_proved]


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
    longest = max(stalls, key=lambda stall: stall.length_ns)
    first, connections = longest.waiting[0], {each.connection for each in longest.waiting}
    waited = count(len(longest.waiting), "request")
    if len(longest.waiting) == _WAITING_MAX:
        waited = f"{waited} or more"
    text = (
        f"Broker {node_id} answered nobody for {age(longest.length_ns / 1e6)}, from"
        f" {clock(longest.from_ns)} to {clock(longest.until_ns)}; {waited} that it then answered,"
        f" on {len(connections)} connections, had waited, {named(first)} as the first of them."
    )
    if len(stalls) > 1:
        text += f" It stood still so {len(stalls)} times."
    shown = "show", f"node_id:{node_id} broker_ms:{STALL_NS // 2_000_000}.."
    return Finding(Harm.LATENCY, "broker that stood still", text, (first.number,), shown)
