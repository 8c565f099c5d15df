"""How long responses take: as long as the recorded brokers took, or so many times that.

::

    Exchange … ─▶ Pace.add ─▶ times by API, in their order
                                 └─▶ delay_ns: the next one of the API, the first again at the end

Of a broker's time only its own service counts: a Fetch waits for records, and a JoinGroup for other
members, by itself.
"""

from __future__ import annotations

from array import array
from itertools import cycle

import attrs

from kproxy.exchange.exchange import Exchange

_KEPT_MAX = 10_000
"""So many times of an API are kept: 80 KB."""


@attrs.define(eq=False)
class Pace:
    """The recorded times of brokers; `factor` 2 is twice as slow."""

    factor: float = 1.0
    times: dict[int, array[int]] = attrs.Factory(dict)
    """As they were recorded, by API key."""
    _next: dict[int, cycle[int]] = attrs.field(factory=dict, init=False)

    def add(self, exchange: Exchange) -> None:
        """Take how long a recorded exchange took."""
        service_ms = exchange.service_ms
        if service_ms is not None and exchange.api_key is not None:
            times = self.times.setdefault(exchange.api_key, array("q"))
            if len(times) < _KEPT_MAX:
                times.append(int(service_ms * 1e6))

    def delay_ns(self, api_key: int) -> int:
        """How long the next response of an API takes; one that was not recorded leaves at once."""
        if api_key not in self._next:
            self._next[api_key] = cycle(self.times.get(api_key) or (0,))
        return int(next(self._next[api_key]) * self.factor)
