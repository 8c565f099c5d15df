"""The settings of a replaying broker."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence

import attrs

from kproxy.replay.ignored import Ignored
from kproxy.wire.payloads.own import OwnDecoder


class Mode(enum.Enum):
    """The source of responses."""

    STATE = "state"
    """The state of the recorded cluster; as in SEMANTIC for APIs that the state does not model."""
    SEMANTIC = "semantic"
    """Recorded responses, errors included, to requests of the same meaning; records are found by
    their offsets."""
    STRICT = "strict"
    """The frames of each connection in order; the first request that differs is reported."""


class Visible(enum.Enum):
    """The time from which consumers see a recorded record."""

    ALL = "all"
    """From the start."""
    CAUSAL = "causal"
    """From the time the client under test has produced it, if a client produced it in the
    recording."""


class Expect(enum.Enum):
    """The part of the recording that clients must repeat: where they do not, the replay fails."""

    ALL = "all"
    """Every aspect of it, compared or not."""
    PRODUCED = "produced"
    """Its records, and the aspects that are compared."""
    NONE = "none"
    """Nothing."""

    @property
    def visible(self) -> Visible:
        """When consumers see recorded records, unless the user says it: those that clients must
        produce again are not there before."""
        return Visible.ALL if self is Expect.NONE else Visible.CAUSAL


@attrs.frozen
class ReplaySettings:
    """The user's choices for a replaying broker."""

    mode: Mode = Mode.STATE
    listen_port: int = 0
    """Port of the bootstrap listener; 0 for any. The listener of node n is at this + 1 + n."""
    advertised_host: str | None = None
    """The host written into responses; None for the one at which each client reached us."""
    node_ports: Mapping[int, int] = attrs.field(factory=dict)
    """Ports fixed by the user, by node id."""
    visible: Visible = Visible.ALL
    compares_records: bool = True
    """False to take produced records that the recording does not hold."""
    fails_fast: bool = False
    """True to refuse topics that the recording does not hold, and all reads after the first
    difference, with an error at which clients give up; by default they wait."""
    ignored: Ignored = attrs.field(factory=Ignored)
    """The parts of records that are not compared."""
    decoders: Sequence[OwnDecoder] | None = None
    """A user's own decoders; None for those of installed packages."""
    users: Mapping[str, str] = attrs.field(factory=dict)
    """Passwords for SCRAM, by user name."""
    request_bytes_max: int = 100 << 20
    """The largest request; Kafka's socket.request.max.bytes."""
    held_bytes_max: int = 256 << 20
    """Limit of incomplete and waiting requests of all connections together."""
    idle_seconds: float = 600
    """A connection is ended after so long without data; Kafka's connections.max.idle.ms."""
