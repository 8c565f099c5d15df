"""What a recording will do to a cluster, found by one pass before anything is sent.

::

    Exchange … ─▶ SendPlan: how much, what changes the cluster, which topics, which cluster it was
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.proxy.actions import Address
from kproxy.send.apis import NEEDS_ALLOW_ADMIN, is_admin, why_left_out
from kproxy.wire.protocol import messages

_READ = frozenset(("CreateTopics", "DescribeCluster", "Metadata"))
_TIMEOUT_MS = 30_000


@attrs.define(eq=False)
class SendPlan:
    """The findings of a pass."""

    requests: int = 0
    """Those that will be sent."""
    admin: Counter[str] = attrs.field(factory=Counter)
    """By API, the requests that change the cluster."""
    topics: dict[str, int] = attrs.field(factory=dict)
    """The topics that clients asked for, and their partitions as far as they were told."""
    created: set[str] = attrs.field(factory=set)
    """The topics that clients created."""
    cluster_ids: set[str] = attrs.field(factory=set)
    brokers: set[Address] = attrs.field(factory=set)

    def take(self, exchange: Exchange, allow_admin: bool) -> None:
        """Take the next exchange."""
        api, left_out = exchange.api or "", why_left_out(exchange, allow_admin)
        if exchange.named and is_admin(api) and left_out in ("", NEEDS_ALLOW_ADMIN):
            self.admin[api] += 1
        if api in _READ and exchange.request is not None and exchange.response is not None:
            self._look(api, exchange.request, exchange.response)
        self.requests += not left_out

    def _look(self, api: str, request: Any, response: Any) -> None:
        if api == "CreateTopics":
            self.created |= {each.name for each in response.topics if not each.error_code}
            return
        if response.cluster_id:
            self.cluster_ids.add(response.cluster_id)
        self.brokers |= {(each.host, each.port) for each in response.brokers}
        if api == "Metadata" and request.topics:
            for topic in response.topics:
                if topic.name:
                    known = self.topics.get(topic.name, 0)
                    self.topics[topic.name] = max(known, len(topic.partitions))

    def note(self, note: Note) -> None:
        """Take a note: that of a connection shows the address of a broker."""
        start = endings.connection_start(note)
        host, _, port = ((start and start.broker_address) or "").rpartition(":")
        if host and port.isdecimal():
            self.brokers.add((host.strip("[]"), int(port)))


def creations(topics: dict[str, int]) -> Iterator[Any]:
    """Yield a request for each topic to create, with this many partitions."""
    kind = messages.CreateTopicsRequest
    for name, partitions in topics.items():
        topic = kind.CreatableTopic(
            name=name, num_partitions=partitions or -1, replication_factor=-1
        )
        yield kind(topics=[topic], timeout_ms=_TIMEOUT_MS)
