"""The context that a recording's notes give so far: connections, topic ids, fault rules.

    Note, Note, … ─▶ RecordingContext ─▶ peer(connection) · names

Invariant: memory is bounded by the open connections and by the topics that have an id, as long as
those who read forget the connections that have been closed.
"""

from __future__ import annotations

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entities import NAMING, TopicNames
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.pairing import Peer


@attrs.define(eq=False)
class RecordingContext:
    """The facts that the notes so far tell."""

    names: TopicNames = attrs.field(factory=TopicNames)
    peers: dict[int, Peer] = attrs.field(factory=dict)
    """The connections, by number."""
    closed: list[int] = attrs.field(factory=list)
    """Connections that have been closed, and are not forgotten yet."""

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

    def peer(self, number: int) -> Peer:
        """Return the facts about a connection."""
        peer = self.peers.get(number)
        if peer is None:
            peer = self.peers[number] = Peer(self.names)
        return peer

    @property
    def any_stuck(self) -> bool:
        """True while some connection has unanswered requests after its last response."""
        return any(peer.stuck is not None for peer in self.peers.values())

    def forget(self) -> None:
        """Forget the closed connections, once their rows have been read."""
        for number in self.closed:
            self.peers.pop(number, None)
        self.closed.clear()
