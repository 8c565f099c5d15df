"""What shall become of one exchange: decided by rules, carried out by the connection.

::

    request, whole ─▶ on_request ─▶ RequestVerdict ─┬─▶ broker: as it came, changed, never, twice
                                                    └─ on_response ─▶ kept with the PendingRequest
    response, whole ─▶ on_response ─▶ ResponseVerdict ─▶ client: as it came, changed, late, never

Invariants: a verdict is a value; whoever decides it does not touch the connection, and whoever
carries it out knows no rule. Bytes are whole frames, size prefix included, with the broker's own
addresses (they are rewritten behind the verdict). Responses leave in the order of their requests.
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
class ResponseVerdict:
    """What shall become of a response."""

    frame: bytes | None = None
    """What the client gets in its place; None: as it came."""
    delay_ns: int = 0
    """Leave so long after it arrived (our own: after it was due); what is behind it waits."""
    dropped: bool = False
    """The client never gets it."""
    ending: Ending | None = None
    """End the connection when it is its turn, after `ending_bytes` of it."""
    ending_bytes: int = 0
    ending_delay_ns: int = 0
    """Of DISCONNECT: let nothing pass any more, in either direction, and close so much later."""
    bytes_per_second: int = 0
    """Leave no faster than this; 0: at once."""
    fault_ids: Sequence[int] = ()
    """The rules that took part in the exchange, those of the request's verdict among them."""
    notes: Sequence[Note] = ()
    """What to record about it, beside the notes of the request's verdict."""


@attrs.frozen
class RequestVerdict:
    """What shall become of a request."""

    frames: Sequence[bytes] | None = None
    """What the broker gets in its place; None: as it came, (): nothing. Of several frames, which
    must bear the same correlation id, the client gets only the response to the first."""
    delay_ns: int = 0
    """Leave so long after it arrived; what is behind it on its connection waits."""
    ending: Ending | None = None
    """End the connection instead of sending it on, after `ending_bytes` of it (all of them: the
    broker gets the request, and then the connection ends)."""
    ending_bytes: int = 0
    ending_delay_ns: int = 0
    """Of DISCONNECT: let nothing pass any more, in either direction, and close so much later."""
    bytes_per_second: int = 0
    """Leave no faster than this; 0: at once."""
    own_response: ResponseVerdict | None = None
    """Our own response (its `frame`), where the broker gets nothing; it waits for its turn. Without
    one, a request that the broker does not get is never answered."""
    known_response: ResponseVerdict | None = None
    """What `on_response` will decide, where that is known before the response has arrived: then
    `on_response` need not be called, nor the response be held whole."""
    on_response: Callable[[bytes, int], ResponseVerdict | None] | None = None
    """Decides on the broker's response, given whole, and the time at which it arrived."""
    fault_ids: Sequence[int] = ()
    """The rules that took part."""
    notes: Sequence[Note] = ()
    """What to record about it."""


@attrs.frozen
class RequestContext:
    """Where a request comes from: what its bytes do not say."""

    connection: int
    number: int
    """Of the exchange."""
    node_id: int | None
    client_address: str
    received_ns: int
    topic_names: TopicNames = attrs.field(factory=TopicNames)
    """Of topic ids, as far as responses have told them, on any connection."""
    brokers: Mapping[int, Address] = attrs.field(factory=dict)
    """The brokers' own addresses by node id, as far as responses have named them."""


class Decider(Protocol):
    """Whoever decides. One for all connections; it may keep what it likes by connection."""

    @property
    def generation(self) -> int:
        """Counts changes of the rules: while it stays, so do the answers of `wants`."""
        ...

    def wants(self, api_key: int, api_version: int) -> bool:
        """Whether requests of this kind must be shown to `on_request`, whole. Asked once for each
        kind, and again when `generation` has changed."""
        ...

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> RequestVerdict | None:
        """Decide on a request; None leaves it and its response alone."""
        ...

    def closed(self, connection: int) -> None:
        """A connection has ended: forget it."""
        ...
