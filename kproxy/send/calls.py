"""A request under way, and the client that sends it: what a conversation knows of them."""

from __future__ import annotations

from collections import deque
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange
from kproxy.proxy import redact
from kproxy.send import compared, forms
from kproxy.send.compared import Fetched
from kproxy.send.fetching import RecordedFetchSession
from kproxy.send.order import JOIN_GROUP, Outstanding
from kproxy.send.sender import SendLink
from kproxy.send.substitution import Where
from kproxy.wire.protocol import codec

LEAVE_GROUP, SYNC_GROUP = 13, 14


@attrs.define(eq=False)
class SentCall:
    """A request under way."""

    exchange: Exchange
    size_bytes: int
    client: SentClient
    ticket: int
    blocks_others: bool
    """Requests of other connections wait for its response, too."""
    request: Any = None
    """Its body as it is sent."""
    version: int = 0
    left_out: set[Where] = attrs.field(factory=set)
    """Partitions that were refused for the moment in the recording: for them it came again."""
    taken: list[Any] = attrs.field(factory=list)
    """What was answered of a Produce of which only the rest is sent again."""
    fetched: dict[Any, Fetched] | None = None
    failing_ns: int = 0
    """Since when it gets no answer that it can use; 0: it does."""
    is_counted: bool = False
    is_timed: bool = False
    might_bring: bool = False
    """When a Fetch was sent last, something was being produced that it should bring."""
    last_fetches: int = 0

    @property
    def api(self) -> str:
        """The name of its API."""
        return self.exchange.api or ""


@attrs.define(eq=False)
class SentClient:
    """A recorded connection."""

    client_id: str | None
    outstanding: Outstanding = attrs.field(factory=Outstanding)
    session: RecordedFetchSession = attrs.field(factory=RecordedFetchSession)
    links: dict[int | None, SendLink] = attrs.field(factory=dict)
    queue: deque[SentCall] = attrs.field(factory=deque)
    """What waits for its own order."""
    sending: SentCall | None = None
    """What begins, and is not sent yet."""
    produced: dict[Where, tuple[int, int, int]] = attrs.field(factory=dict)
    """What it has produced last: the ticket, the recorded offset and the new one."""
    has_ended: bool = False


def decoded(response: bytes, key: int, version: int) -> Any:
    """Decode a response without its secrets: differences are shown.

    Raises: ProtocolError.
    """
    if redact.is_sensitive(key):
        response = redact.redact(response, Side.BROKER, key, version) or response
    body = codec.decode_response_body(response, key, version)[0]
    forms.complete(body, version)
    return body


def answered_ns(exchange: Exchange) -> int:
    """Return when the recording has the response; later than all else if it has none."""
    return 1 << 63 if exchange.response_frame is None else exchange.completed_ns


def forms_group(entry: Exchange | ConnectionEnd) -> bool:
    """Return whether this is a step of a group that forms."""
    return isinstance(entry, Exchange) and entry.api_key in (JOIN_GROUP, SYNC_GROUP)


def has_records(exchange: Exchange) -> bool:
    """Return whether a client has got records by this."""
    return bool(
        exchange.response is not None and compared.fetched(exchange.response, exchange.topic_names)
    )
