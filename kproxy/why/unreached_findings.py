"""Findings about brokers that could not be reached: connections that ended before they began.

ConnectionEnd (down) ─▶ by broker: how many, from when until when ─▶ Finding

Invariant: memory is bounded by the number of brokers.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.words.wording import count
from kproxy.history.items import Item
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import clock


@attrs.define(eq=False)
class _Missed:
    """The connections that did not reach one broker."""

    first: ConnectionEnd
    last: ConnectionEnd
    connections: int = 0


@attrs.define(eq=False)
class Unreached:
    """Finds brokers that could not be reached."""

    _brokers: dict[int | None, _Missed] = attrs.field(factory=dict[int | None, _Missed], init=False)
    """By node id; None: the bootstrap addresses."""

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, ConnectionEnd) and item.is_unreached:
            found = self._brokers.setdefault(item.node_id, _Missed(item, item))
            found.last = item
            found.connections += 1

    def found(self) -> list[Finding]:
        """Return a finding for each broker."""
        known = [node_id for node_id in self._brokers if node_id is not None]
        order = [*sorted(known), *([None] if None in self._brokers else [])]
        return [_finding(node_id, self._brokers[node_id]) for node_id in order]


def _finding(node_id: int | None, missed: _Missed) -> Finding:
    who = "no bootstrap address could" if node_id is None else f"broker {node_id} could not"
    when = f"at {clock(missed.first.time_ns)}"
    if missed.connections > 1:
        when = f"between {clock(missed.first.time_ns)} and {clock(missed.last.time_ns)}"
    times = count(missed.connections, "connection")
    why = f": {missed.first.reason}" if missed.first.reason else ""
    shown = "why", f"connection:{missed.first.connection}"
    text = f"{times} ended {when} because {who} be reached{why}."
    return Finding(Harm.LATENCY, "broker that could not be reached", text, (), shown)
