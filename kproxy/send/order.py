"""The order in which recorded requests are sent, and what each of them waits for.

::

    exchanges, as they were completed ─ ahead ─▶ as they were requested ─▶ send, when nothing that
                                                                           holds it is outstanding

A request is sent after the responses that had arrived before it in the recording: on any
connection, because a client may have asked because of them (a consumer joins when the topic has
been made). Responses of polls without records are left out on other connections: nobody acts on
them. All that holds a request holds the later ones too, so one loop sends all of them in turn.

Invariant: memory is bounded by how far `ahead` looks (once for all copies of a recording), by what
a copy holds, and by what is outstanding. Where a request was answered later than that, it is sent
later than it was.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.wire.protocol.codes import MEMBER_ID_REQUIRED

AHEAD = 10_000
"""The exchanges to look ahead at most …"""
_AHEAD_BYTES = 16 << 20
"""… and their bytes."""
HELD_MAX, HELD_BYTES_MAX = 1000, 16 << 20
"""What a copy of the recording takes before it has its turn, of what all copies share: the fastest
is so far in front of the slowest at most."""
_TURN = 100
"""Exchanges that are read in one go."""
_LAST = 1 << 62
JOIN_GROUP = 11


class SendItem(NamedTuple):
    """An exchange to send, or the end of a connection."""

    time_ns: int
    number: int
    """Of the exchange; the end of a connection comes behind all of the same time."""
    connection: tuple[str | None, int]
    """The recording, and the connection in it."""
    entry: Exchange | ConnectionEnd

    @property
    def size_bytes(self) -> int:
        """The bytes of its frames."""
        if isinstance(self.entry, ConnectionEnd):
            return 0
        return self.entry.row.request_bytes + self.entry.row.response_bytes

    @property
    def after_ns(self) -> int:
        """What was answered before this time comes before it: before it was asked, or, where that
        cannot wait for it, before it was answered itself. A member that is only given its id holds
        up the others until it comes with it: it must not come before they have joined."""
        entry = self.entry
        if isinstance(entry, Exchange) and gives_an_id(entry):
            return entry.completed_ns
        return self.time_ns


def gives_an_id(exchange: Exchange) -> bool:
    """Return whether of a JoinGroup nothing comes but the id of the member (KIP-394)."""
    error_code = getattr(exchange.response, "error_code", 0)
    return exchange.api_key == JOIN_GROUP and error_code == MEMBER_ID_REQUIRED


def items(
    found: Iterable[tuple[str | None, Exchange | ConnectionEnd]],
) -> Iterator[SendItem]:
    """Yield what is found in recordings, each with the id of its own, as items."""
    for ends, (recording, each) in enumerate(found, _LAST):
        number = each.number if isinstance(each, Exchange) else ends
        yield SendItem(each.time_ns, number, (recording, each.connection), each)


def ahead(found: Iterable[SendItem]) -> Iterator[SendItem | None]:
    """Yield items, which come as they were completed, in the order of their beginnings; and None
    from time to time while it reads on, so that others have their turn."""
    waiting: list[SendItem] = []
    total_bytes = 0
    for number, item in enumerate(found):
        if not number % _TURN:
            yield None
        heapq.heappush(waiting, item)
        total_bytes += item.size_bytes
        while len(waiting) > AHEAD or (total_bytes > _AHEAD_BYTES and len(waiting) > 1):
            first = heapq.heappop(waiting)
            total_bytes -= first.size_bytes
            yield first
    while waiting:
        yield heapq.heappop(waiting)


@attrs.define(eq=False)
class Outstanding:
    """Requests that were sent and are not answered, by when the recording has their responses."""

    _due: list[tuple[int, int]] = attrs.field(factory=list, init=False)
    _open: set[int] = attrs.field(factory=set, init=False)

    def __len__(self) -> int:
        return len(self._open)

    def sent(self, ticket: int, answered_ns: int) -> None:
        """Note that a request is under way, which was answered at this time."""
        heapq.heappush(self._due, (answered_ns, ticket))
        self._open.add(ticket)

    def answered(self, ticket: int) -> None:
        """Note that a request is answered, or never will be."""
        self._open.discard(ticket)

    def hold(self, time_ns: int) -> bool:
        """Return whether a request of this time must wait."""
        while self._due and self._due[0][1] not in self._open:
            heapq.heappop(self._due)
        return bool(self._due) and self._due[0][0] < time_ns
