"""Looks at brokers that no client uses, so that the metrics say of each whether it is up.

::

    each second: Cluster.unused ─▶ connect, close ─▶ Cluster.looked_at

A broker that was looked at is due again after ten rounds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import trio

from kproxy.defects import defect
from kproxy.levels import failure
from kproxy.net.dial import takes_connections
from kproxy.net.pump import Pump
from kproxy.proxy.actions import Address
from kproxy.proxy.cluster import Cluster

_ROUND_SECONDS = 1.0
_ROUNDS = 10
_AT_ONCE = 16
"""Brokers that are looked at together."""


async def look_at(cluster: Cluster, pump: Pump, log: Callable[[str], None]) -> None:
    """Look at the brokers of a cluster until cancelled: at new ones soon."""
    seen: set[int | None] = set()
    limit = trio.CapacityLimiter(_AT_ONCE)

    async def look(node_id: int | None, addresses: Sequence[Address]) -> None:
        answers, ours = False, pump.acceptor.listening
        try:
            async with limit:
                for address in addresses:
                    answers = answers or await takes_connections(address, ours)
            if not pump.draining:
                pump.perform(cluster.looked_at(node_id, answers))
        except Exception as error:
            log(failure(f"a look at a broker failed {defect(error)}"))

    for nth in itertools.count():
        unused = cluster.unused
        due = unused.keys() - (seen if nth % _ROUNDS else ())
        seen = (seen & unused.keys()) | due
        async with trio.open_nursery() as nursery:
            for node_id in due:
                nursery.start_soon(look, node_id, unused[node_id])
        await trio.sleep(_ROUND_SECONDS)
