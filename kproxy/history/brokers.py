"""Brokers: when each stood still, that is, answered nobody for a while.

::

    ──●──●─┬─ requests of several connections are sent ───────────┬●●●●──▶ time
           last response                    nothing of the broker first response

What waits at the broker because it was asked to (polls, joins), or for a quota, is no witness that
it stood still, but its response is one that it did not.

Invariants: a stall has requests of at least two connections, each of which waited for most of it:
one slow request is no stall. No stall reaches over a gap. At most `_KEPT_MAX` of a broker are
remembered, and of each at most `WAITING_MAX` requests.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.derived import JOINS, POLLS
from kproxy.history.ref import Ref

STALL_NS = 1_000_000_000
"""Shorter ones are not told."""
WAITING_MAX = 1000
_KEPT_MAX = 100
_WAITS = frozenset((*POLLS, *JOINS))


@attrs.define(eq=False)
class Stall:
    """A time in which a broker sent nothing, and those who waited for it."""

    silent_from_ns: int
    until_ns: int
    waiting: list[Ref] = attrs.Factory(list)
    """Those that were answered behind it, in order."""

    def take(self, ref: Ref) -> None:
        """Take an exchange that was answered at its end, or later."""
        if ref.sent_ns < self.until_ns and len(self.waiting) < WAITING_MAX:
            self.waiting.append(ref)

    @property
    def from_ns(self) -> int:
        """The time from which on somebody waited."""
        sent_ns = min((each.sent_ns for each in self.waiting), default=self.until_ns)
        return max(self.silent_from_ns, sent_ns)

    @property
    def length_ns(self) -> int:
        """How long it was."""
        return self.until_ns - self.from_ns

    @property
    def is_proved(self) -> bool:
        """True if requests of several connections waited for most of it."""
        middle_ns = (self.from_ns + self.until_ns) // 2
        most = {each.connection for each in self.waiting if each.sent_ns <= middle_ns}
        return self.length_ns >= STALL_NS and len(most) > 1


@attrs.define(eq=False)
class BrokerStalls:
    """What is known of one broker."""

    answered_ns: int = 0
    """The arrival of its last response."""
    stalls: list[Stall] = attrs.Factory(list)
    """All but the last are proved."""

    def take(self, ref: Ref, is_witness: bool) -> None:
        """Take an exchange that it answered; a witness did not want to wait."""
        now = ref.answered_ns
        if now < self.answered_ns:  # kproxy held it meanwhile: the broker did not stand still
            self.stalls = [
                each for each in self.stalls if not each.silent_from_ns < now < each.until_ns
            ]
            return
        if now - self.answered_ns >= STALL_NS:
            self.stalls = self.proved
            if len(self.stalls) < _KEPT_MAX:
                self.stalls.append(Stall(self.answered_ns, now))
        self.answered_ns = now
        if self.stalls and is_witness:
            self.stalls[-1].take(ref)

    @property
    def proved(self) -> list[Stall]:
        """The stalls that are proved."""
        return [each for each in self.stalls if each.is_proved]


@attrs.define(eq=False)
class Brokers:
    """The brokers of a recording."""

    _brokers: dict[int, BrokerStalls] = attrs.field(factory=dict, init=False)
    """By node id."""

    def take(self, ref: Ref, is_throttled: bool) -> None:
        """Take the next exchange; `is_throttled` if it waited for a quota."""
        fate = ref.fate
        none = fate.unanswered is not None or fate.one_way or fate.injected or not ref.sent_ns
        if ref.node_id is not None and not none:
            found = self._brokers.get(ref.node_id)
            if found is None:
                found = self._brokers[ref.node_id] = BrokerStalls()
            found.take(ref, ref.api not in _WAITS and not is_throttled)

    def gap(self, time_ns: int) -> None:
        """Take a gap: nobody knows whom brokers answered in it."""
        for broker in self._brokers.values():
            broker.answered_ns = max(broker.answered_ns, time_ns)

    def stalls(self) -> dict[int, list[Stall]]:
        """Return the stalls of each broker that had any."""
        proved = {node_id: broker.proved for node_id, broker in sorted(self._brokers.items())}
        return {node_id: stalls for node_id, stalls in proved.items() if stalls}
