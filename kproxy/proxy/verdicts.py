"""Verdicts on a request and on its response: decided by rules, carried out by a connection.

::

    request, whole ─▶ Decider.on_request ─▶ Verdict ─┬─▶ broker: as it came, changed, never, twice
                                                     └─ .response ─▶ kept with the pending request
    response ──────▶ .response, a Verdict or a function that gives one ─▶ client

Invariants: a verdict is a value. The decider does not touch the connection; the code that carries
a verdict out (`carry_out`) knows no rule. Bytes are whole frames, size prefix included, with the
broker's own addresses (kproxy's are put in behind the verdict). Responses leave in the order of
their requests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import attrs

from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import Note
from kproxy.proxy.actions import Address


class Ending(enum.Enum):
    """How a verdict ends a connection."""

    DISCONNECT = "disconnect"
    """Close both sides, after what was sent before."""
    RESET = "reset"
    """Reset both sides at once."""
    BLACKHOLE = "blackhole"
    """Keep both sides open, and let nothing pass any more, in either direction."""


@attrs.frozen
class Verdict:
    """The decision about one frame, a request or a response."""

    frames: Sequence[bytes] | None = None
    """The frames that leave in its place; None: the frame as it came; (): none. Several frames must
    bear the same correlation id; the client gets only the response to the first."""
    delay_ns: int = 0
    """Leave this long after it arrived (a response of our own: after its turn came); the bytes
    behind it wait."""
    bytes_per_second: int = 0
    """Leave no faster than this; 0: at once."""
    ending: Ending | None = None
    """End the connection behind the first `ending_bytes` of the first frame."""
    ending_bytes: int = 0
    ending_delay_ns: int = 0
    """Let nothing pass from then on, in either direction, and end this much later."""
    response: Verdict | Respond | None = None
    """For a request: the verdict on its response, or, where that depends on the response, a
    function that returns it for the whole response. Where the broker gets nothing (`frames` is
    empty), the `frames` of this verdict are our own response; None: there is never a response."""
    fault_ids: Sequence[int] = ()
    """The rules that took part in the exchange so far."""
    notes: Sequence[Note] = ()
    """Notes that the recording gets about this frame."""

    @property
    def dropped(self) -> bool:
        """True if nothing leaves in place of the frame, and the connection goes on."""
        return self.frames is not None and not self.frames and self.ending is None

    @property
    def own_response(self) -> Verdict | None:
        """Our own response to a request that the broker does not get."""
        return self.response if self.dropped and isinstance(self.response, Verdict) else None


NOTHING = Verdict()
"""The frame leaves as it came, at once."""

Respond = Callable[[bytes, int], Verdict | None]
"""The broker's whole response, and the time at which it arrived → the verdict on it."""


@attrs.frozen
class RequestContext:
    """The facts about a request that its bytes do not have."""

    connection: int
    number: int
    """The number of the exchange."""
    node_id: int | None
    client_address: str
    received_ns: int
    topic_names: TopicNames = attrs.field(factory=TopicNames)
    """The names of topic ids that responses have named on any connection."""
    brokers: Callable[[], Mapping[int, Address]] = dict
    """Returns the brokers' own addresses that responses have named, by node id."""


class Decider(Protocol):
    """The one who decides: one for all connections; it may keep state by connection."""

    @property
    def generation(self) -> int:
        """Counts changes of the rules: while it stays, so do the answers of `wants`."""
        ...

    def wants(self, api_key: int, api_version: int) -> bool:
        """Return whether requests of this kind must be shown to `on_request`, whole.

        Connections ask once for each kind, and again when `generation` has changed.
        """
        ...

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> Verdict | None:
        """Decide on a request; None leaves it and its response alone."""
        ...

    def closed(self, connection: int) -> None:
        """Forget a connection, which has ended."""
        ...
