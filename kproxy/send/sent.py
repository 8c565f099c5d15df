"""What was sent to a cluster, and what came of it, as figures that grow.

::

    ask ─▶ answer · differs ─▶ ended
"""

from __future__ import annotations

from collections import Counter

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.proxy.actions import Address
from kproxy.send.compared import Deviation


@attrs.define(eq=False)
class Sent:
    """What was sent, what came of it."""

    left_out: Counter[str] = attrs.field(factory=Counter)
    """Why requests were not sent."""
    requests: int = 0
    answered: int = 0
    one_way: int = 0
    """Requests that nobody answers."""
    connections: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    latencies: dict[str, Histogram] = attrs.field(factory=dict)
    """By API, in microseconds."""
    differences: dict[Deviation, list[int]] = attrs.field(factory=dict)
    """How often, and the number of the first exchange."""
    last: Exchange | None = None
    """The exchange that was sent last."""
    began: float = 0.0
    seconds: float = 0.0
    """For how long it has been sent."""
    ended: str = ""
    """Why it ended early; "" if it did not."""
    is_load: bool = False
    """Copies were sent, of which only errors are compared."""
    lost: dict[Address, str] = attrs.field(factory=dict)
    """Brokers that were given up, and why."""
    records: int = 0
    """Of the inputs of a service, those that were written …"""
    all_records: int = 0
    """… and all of them; 0 if a conversation is sent."""

    def ask(self, exchange: Exchange) -> None:
        """Count a request that is sent."""
        self.requests += 1
        self.one_way += exchange.one_way
        self.last = exchange

    def answer(self, api: str, taken_ns: int) -> None:
        """Count its first answer."""
        self.answered += 1
        self.time(api, taken_ns)

    def time(self, api: str, taken_ns: int) -> None:
        """Count a latency."""
        self.latencies.setdefault(api, Histogram()).add(taken_ns // 1000)

    def differs(self, difference: Deviation, number: int) -> None:
        """Count a difference of an exchange."""
        self.differences.setdefault(difference, [0, number])[0] += 1
