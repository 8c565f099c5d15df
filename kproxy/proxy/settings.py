"""The settings of the proxy, and what its connections share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from kproxy.exchange.derived import PENDING_REQUESTS_MAX
from kproxy.proxy.actions import Address
from kproxy.proxy.budget import Budget
from kproxy.proxy.interests import Interests
from kproxy.proxy.topics import Topics


@attrs.frozen
class Settings:
    """The proxy's addresses, those that it advertises, and its limits."""

    bootstrap: Sequence[Address]
    """Broker addresses to begin with, tried in turn."""
    listen_port: int = 0
    """The port of the bootstrap listener; 0 for any. The listener of node n is at this + 1 + n."""
    advertised_host: str | None = None
    """The host written into responses; None for the one at which each client reached us."""
    node_ports: Mapping[int, int] = attrs.field(factory=dict)
    """Ports fixed by the user, by node id."""
    idle_seconds: float = 600
    """A connection on which nothing arrives for this long is closed, as Kafka does."""
    request_bytes_max: int = 100 << 20
    """The largest request; Kafka's socket.request.max.bytes."""
    pending_requests_max: int = PENDING_REQUESTS_MAX
    """With this many requests unanswered on a connection its client is not read from."""
    nodes_max: int = 1000
    """The most brokers that get a listener."""
    record_users: bool = False
    """Whether the users as whom clients log in are recorded."""
    probes: bool = False
    """Whether brokers that no client uses are probed, so that `Cluster.reachable` tells of them."""
    probes_log_in: bool = False
    """Whether a probe logs in: kproxy has credentials."""
    hang_up_hints: bool = True
    """Whether to guess why a broker hangs up: one that is a recording says so itself."""
    held_bytes_max: int = 256 << 20
    """The memory for unfinished and held-back frames of all connections together."""


@attrs.define(eq=False)
class Numbers:
    """Numbers the exchanges of all connections, from 1 on."""

    _next: int = attrs.field(default=1, init=False)

    @property
    def taken(self) -> int:
        """How many there are so far."""
        return self._next - 1

    def take(self, count: int = 1) -> int:
        """Return the first of the next `count` numbers, which are taken."""
        first = self._next
        self._next += count
        return first


@attrs.frozen
class Shared:
    """The state and settings that all connections of a cluster share."""

    settings: Settings
    interests: Interests
    brokers: Callable[[], Mapping[int, Address]]
    budget: Budget
    log_once: Callable[[str], bool]
    """Returns True the first time that it gets a text: then it is to be logged."""
    topics: Topics
    numbers: Numbers = attrs.field(factory=Numbers)
    answered: set[str] = attrs.field(factory=set)
    """The settings whose brokers have answered an ApiVersions (`diagnosis.address_source`)."""
