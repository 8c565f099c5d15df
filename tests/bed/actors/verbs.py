"""What an actor can do, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable

import attrs

PATIENCE_SECONDS = 30
"""So long an actor waits for all that it does together."""


@attrs.define
class Produced:
    """What became of records, in the order in which the client heard of it."""

    delivered: list[str] = attrs.field(factory=list)
    """The values that were acknowledged."""
    partitions: list[int] = attrs.field(factory=list)
    """Where each of them went."""
    seconds: list[float] = attrs.field(factory=list)
    """How long each of them took."""
    errors: dict[str, str] = attrs.field(factory=dict)
    """Value → why it was not delivered."""
    throttled_ms: float = 0
    """The longest throttle time that the client reports."""


@attrs.define
class Consumed:
    """What arrived."""

    values: list[str] = attrs.field(factory=list)
    at: list[float] = attrs.field(factory=list)
    """When each of them did, in seconds."""
    committed: int = 0
    """Of partition 0, in the end."""
    errors: list[str] = attrs.field(factory=list)


@attrs.frozen
class Actor:
    """One client."""

    produce: Callable[..., Produced]
    consume: Callable[..., Consumed]
