"""A request at the broker, and the ways to answer it.

::

    Call ─▶ handler(state, call) ─┬─▶ body: the response
                                  ├─▶ LATER: `state.respond(call, body)` comes
                                  ├─▶ NONE: there is no response (acks=0)
                                  └─▶ CLOSE: the connection ends
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from kproxy.proxy.verdicts import Verdict
    from kproxy.replay.connection import Connection


class Reply(enum.Enum):
    """What a handler returns instead of a body."""

    LATER = "later"
    NONE = "none"
    CLOSE = "close"
    """Brokers do it where a response has no place for an error."""


LATER, NONE, CLOSE = Reply.LATER, Reply.NONE, Reply.CLOSE


@attrs.define(eq=False)
class Call:
    """One request."""

    connection: Connection
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any
    now: int
    frame: bytes = b""
    """The request as it came, size prefix included."""
    verdict: Verdict | None = None
    """What a rule has decided about it."""
