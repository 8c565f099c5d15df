"""The context that a recording's notes give so far: connections, topic ids, fault rules.

    Note, Note, … ─▶ RecordingContext ─▶ peer(connection) · names
    ExchangeRow ───▶                  ─▶ Exchange

Invariant: memory is bounded by the open connections and by the topics that have an id, as long as
those who read forget the connections that have been closed.
"""

from __future__ import annotations

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entities import NAMING, TopicNames
from kproxy.exchange.entries import CONNECTIONS, UNANSWERED, ExchangeRow, Note
from kproxy.exchange.exchange import Exchange, Frames

_USERS_MAX = 8


@attrs.define(eq=False)
class Peer:
    """The facts about a connection that notes tell."""

    client_address: str | None = None
    node_id: int | None = None
    client_id: str | None = None
    users: tuple[tuple[int, str], ...] = ()
    """The last users as whom the client has logged in, each behind the number of the first exchange
    after that: the notes of a chunk are read before its exchanges."""


@attrs.define(eq=False)
class RecordingContext:
    """The facts that the notes so far tell."""

    names: TopicNames = attrs.field(factory=TopicNames)
    peers: dict[int, Peer] = attrs.field(factory=dict)
    """The connections, by number."""
    closed: list[int] = attrs.field(factory=list)
    """Connections that have been closed, and are not forgotten yet."""
    stuck: dict[int, int] = attrs.field(factory=dict)
    """Connections whose last requests were not answered → the first of these."""

    def note(self, note: Note) -> None:
        """Take the next note."""
        body = note.body
        if note.channel != CONNECTIONS:
            if body.get("event") in NAMING:
                self.names.note(body)
            return
        number = endings.connection(body)
        if body.get("event") == "closed":
            self.closed.append(number)
            return
        for name, value in endings.connection_facts(body):
            setattr(self.peer(number), name, value)
        if (user := body.get("user")) is not None:
            peer, found = self.peer(number), (body.get("user_since") or 0, user)
            peer.users = (*(each for each in peer.users if each != found), found)[-_USERS_MAX:]

    def peer(self, number: int) -> Peer:
        """Return the facts about a connection."""
        peer = self.peers.get(number)
        if peer is None:
            peer = self.peers[number] = Peer()
        return peer

    def exchange(self, row: ExchangeRow, frames: Frames) -> Exchange:
        """Return the next exchange, of its row."""
        peer = self.peers.get(row.connection) or self.peer(row.connection)
        waited = None
        if self.stuck or row.response_flags & UNANSWERED:
            waited = self._follow(row)
        return Exchange(
            row, peer.client_address, peer.client_id, frames, self.names, waited, peer.users
        )

    def _follow(self, row: ExchangeRow) -> endings.Unanswered | None:
        """Follow the next exchange; of a request that was never answered, return what it waited
        for. A response to a later request says that the connection is no longer stuck. (That to an
        earlier one may have left, and so come to its end, late.)"""
        stuck = self.stuck.get(row.connection)
        if row.response_bytes:
            if stuck is not None and row.number > stuck:
                del self.stuck[row.connection]
        elif row.response_flags & UNANSWERED:
            self.stuck.setdefault(row.connection, row.number)
            times = row.request_received_ns, row.request_sent_ns, row.response_received_ns or None
            return endings.unanswered(*times, stuck)
        return None

    def take_closed(self) -> list[int]:
        """Return, and forget, the connections that were closed; their rows have been read."""
        closed, self.closed = self.closed, []
        for number in closed:
            self.peers.pop(number, None)
            self.stuck.pop(number, None)
        return closed
