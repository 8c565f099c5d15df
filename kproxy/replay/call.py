"""A decoded request at the broker, and the ways to answer it.

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
    from kproxy.replay.connection import ReplayConnection


class Reply(enum.Enum):
    """A handler's result when it returns no body."""

    LATER = "later"
    NONE = "none"
    CLOSE = "close"
    """For responses that have no field for an error: brokers end the connection."""


LATER, NONE, CLOSE = Reply.LATER, Reply.NONE, Reply.CLOSE


class Unanswerable(Exception):
    """A request without a response: its connection ends; the text says why, or is empty."""


@attrs.define(eq=False)
class Call:
    """One request to be answered."""

    connection: ReplayConnection
    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: Any
    now: int
    frame: bytes | bytearray = b""
    """The request's bytes, size prefix included."""
    steps: int = 0
    """The number of steps that its handler took."""
