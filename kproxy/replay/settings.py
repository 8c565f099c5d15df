"""What a user decides about a replaying broker."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

from kproxy.replay.ignored import Ignored


class Mode(enum.Enum):
    """What a response is made of."""

    STATE = "state"
    """Of what the recording says of the cluster; where that is not enough, as in SEMANTIC."""
    SEMANTIC = "semantic"
    """As recorded, errors included, to requests that mean the same; records by their offsets."""
    STRICT = "strict"
    """Each connection's frames in order; the first request that differs is reported."""


class Visible(enum.Enum):
    """When consumers see a record that the recording has."""

    ALL = "all"
    """From the start."""
    CAUSAL = "causal"
    """When the client under test has produced it, if it was seen being produced."""


@attrs.frozen
class ReplaySettings:
    """What a user decides about a replaying broker."""

    mode: Mode = Mode.STATE
    listen_port: int = 0
    """Port of the bootstrap listener; 0 for any. The listener of node n is at this + 1 + n."""
    advertised_host: str | None = None
    """The host written into responses; None for the one at which each client reached us."""
    node_ports: Mapping[int, int] = attrs.field(factory=dict)
    """Ports fixed by the user, by node id."""
    visible: Visible = Visible.ALL
    report_unproduced: bool = False
    """Whether a record that was recorded and is never produced again is a finding."""
    ignored: Ignored = attrs.field(factory=Ignored)
    """What is not compared of records."""
    users: Mapping[str, str] = attrs.field(factory=dict)
    """Passwords for SCRAM, by user name."""
    request_bytes_max: int = 100 << 20
    """The largest request; Kafka's socket.request.max.bytes."""
    held_bytes_max: int = 256 << 20
    """What all connections together may hold of requests that are not complete, or wait."""
    idle_seconds: float = 600
    """A connection on which nothing arrives so long is ended; Kafka's connections.max.idle.ms."""
