"""How a recording is sent, and what it will do to a cluster, found by one pass before that.

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
from kproxy.exchange.topic_records import TopicRecord
from kproxy.proxy.actions import Address
from kproxy.send.apis import NEEDS_ALLOW_ADMIN, is_admin, why_left_out
from kproxy.send.inputs import rounds
from kproxy.send.substitution import Renaming, Where
from kproxy.wire.protocol import messages

_TELLS_OF_CLUSTER = frozenset(("CreateTopics", "DescribeCluster", "Metadata"))
_TIMEOUT_MS = 30_000


@attrs.frozen
class SendSettings:
    """How a recording is sent."""

    renaming: Renaming = attrs.field(factory=Renaming)
    factor: float = 0.0
    """Of the recorded times; 0 sends at once what nothing holds."""
    allow_admin: bool = False
    create_topics: bool = False
    repeat: int = 1
    clients: int = 1

    @property
    def is_load(self) -> bool:
        """True if there are copies, whose records mix: only errors are compared then."""
        return self.repeat * self.clients > 1

    def rounds(self) -> Iterator[list[Renaming]]:
        """Yield the names of the copies that are sent at the same time, time after time."""
        for time in range(1, self.repeat + 1):
            names = [f"-{each}-{time}" for each in range(1, self.clients + 1)]
            yield [
                attrs.evolve(self.renaming, suffix=each if self.is_load else "") for each in names
            ]


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
    partitions: set[Where] = attrs.field(factory=set)
    """Those of the inputs of a service, if these are all that is sent …"""
    records: int = 0
    """… and how many they are."""
    cluster_ids: set[str] = attrs.field(factory=set)
    brokers: set[Address] = attrs.field(factory=set)

    def take(self, exchange: Exchange, allow_admin: bool) -> None:
        """Take the next exchange."""
        api, left_out = exchange.api or "", why_left_out(exchange, allow_admin)
        if exchange.named and is_admin(api) and left_out in ("", NEEDS_ALLOW_ADMIN):
            self.admin[api] += 1
        self._look(exchange)
        self.requests += not left_out

    def feed(self, exchange: Exchange, records: list[TopicRecord]) -> None:
        """Take the next exchange, of which only these records are sent."""
        self._look(exchange)
        self.requests += len(rounds(records, Renaming()))
        self.records += len(records)
        self.partitions |= {(each.topic, each.partition) for each in records}

    @property
    def needed(self) -> dict[str, int]:
        """The topics that the cluster should have, and their partitions as far as is known."""
        if not self.partitions:
            return self.topics
        last = dict(sorted(self.partitions))
        return {name: max(self.topics.get(name, 0), at + 1) for name, at in last.items()}

    def _look(self, exchange: Exchange) -> None:
        api, request, response = exchange.api, exchange.request, exchange.response
        if api not in _TELLS_OF_CLUSTER or request is None or response is None:
            return
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
