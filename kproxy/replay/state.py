"""What all connections to a replaying broker share.

A handler is a plain function of this state and a `Call`; one small module has those of an area, in
a table by API name.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from kproxy.proxy.actions import Address
from kproxy.replay.call import Call
from kproxy.replay.fetch import Fetches
from kproxy.replay.groups import Groups
from kproxy.replay.load import Loaded
from kproxy.replay.produced import ProduceCheck
from kproxy.replay.producers import Producers
from kproxy.replay.report import Report
from kproxy.replay.semantic import Semantic
from kproxy.replay.timers import Timers
from kproxy.replay.topics import ClusterState


class Visible(enum.Enum):
    """When consumers see a record that the recording has."""

    ALL = "all"
    """From the start."""
    CAUSAL = "causal"
    """When the client under test has produced it, if it was seen being produced."""


@attrs.frozen
class Settings:
    """What a user decides about a replaying broker."""

    listen_port: int = 0
    """Port of the bootstrap listener; 0 for any. The listener of node n is at this + 1 + n."""
    advertised_host: str | None = None
    """The host written into responses; None for the one at which each client reached us."""
    node_ports: Mapping[int, int] = attrs.field(factory=dict)
    """Ports fixed by the user, by node id."""
    visible: Visible = Visible.ALL
    partition_ignored: bool = False
    """Whether a record counts as the recorded one wherever in its topic it is produced."""
    headers_ignored: frozenset[str] = frozenset()
    """Names of record headers that are not compared."""
    users: Mapping[str, str] = attrs.field(factory=dict)
    """Passwords for SCRAM, by user name."""
    request_bytes_max: int = 100 << 20
    """The largest request; Kafka's socket.request.max.bytes."""


@attrs.define(eq=False)
class State:
    """The cluster, and everything that handlers keep."""

    loaded: Loaded
    settings: Settings
    report: Report
    timers: Timers = attrs.Factory(Timers)
    listening: dict[int, Address] = attrs.Factory(dict)
    """Where each node listens."""
    responses: list[tuple[Call, Any]] = attrs.Factory(list)
    """What was answered later, to be sent."""
    check: ProduceCheck = attrs.field(init=False)
    ranges: dict[int, tuple[int, int]] = attrs.field(factory=dict, init=False)
    """Api key → least and greatest version that is served."""
    fetches: Fetches = attrs.field(init=False)
    groups: Groups = attrs.field(init=False)
    producers: Producers = attrs.field(init=False)
    semantic: Semantic = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        settings, loaded = self.settings, self.loaded
        self.check = ProduceCheck(
            loaded, self.report, settings.partition_ignored, settings.headers_ignored
        )
        self.fetches = Fetches()
        self.groups = Groups(loaded, self.timers, self.respond)
        self.producers = Producers(loaded.producer_id_max + 1)
        self.semantic = Semantic(loaded.others, self.report)

    @property
    def cluster(self) -> ClusterState:
        """Brokers and topics."""
        return self.loaded.cluster

    def respond(self, call: Call, body: Any) -> None:
        """Answer a request whose handler returned LATER."""
        self.responses.append((call, body))

    def address(self, call: Call, node_id: int) -> Address:
        """What a client is told of a node."""
        host = self.settings.advertised_host or call.connection.local_address[0]
        return host, self.listening[node_id][1]


Handler = Callable[[State, Call], Any]
