"""The delay of responses: the service time of the recorded brokers, or a multiple of it.

::

    Exchange … ─▶ Pace.add ─▶ times by API, in their order
                                 └─▶ delay_ns: the next time of the API, at the end from the start

Only a broker's own service time is used: the replaying broker itself lets a Fetch wait for records,
and a JoinGroup for other members.
"""

from __future__ import annotations

from array import array
from itertools import cycle

import attrs

from kproxy.exchange.exchange import Exchange

_KEPT_MAX = 10_000
"""At most this many times of an API are kept: 80 KB."""
_FACTORS = {"fast": 0.0, "recorded": 1.0}
_FACTOR_MAX = 1000


def parse_factor(timing: str | float) -> float:
    """Return the factor for recorded times that `timing` names, or is; 0 means no delays.

    Raises: ValueError.
    """
    try:
        factor = float(_FACTORS.get(timing, timing) if isinstance(timing, str) else timing)
    except (TypeError, ValueError):
        factor = -1.0
    if not 0 <= factor <= _FACTOR_MAX:
        raise ValueError(
            f"timing is 'fast', 'recorded' or a factor up to {_FACTOR_MAX}, not {timing!r}"
        )
    return factor


@attrs.define(eq=False)
class Pace:
    """The recorded times of brokers; `factor` 2 is twice as slow."""

    factor: float = 1.0
    times: dict[int, array[int]] = attrs.Factory(dict)
    """Recorded times in nanoseconds, by API key."""
    _next: dict[int, cycle[int]] = attrs.field(factory=dict, init=False)

    def add(self, exchange: Exchange) -> None:
        """Add the service time of a recorded exchange."""
        service_ms = exchange.service_ms
        if service_ms is not None and exchange.api_key is not None:
            times = self.times.setdefault(exchange.api_key, array("q"))
            if len(times) < _KEPT_MAX:
                times.append(int(service_ms * 1e6))

    def delay_ns(self, api_key: int) -> int:
        """Return the delay of the next response of an API; 0 if the API was not recorded."""
        if api_key not in self._next:
            self._next[api_key] = cycle(self.times.get(api_key) or (0,))
        return int(next(self._next[api_key]) * self.factor)
