"""Pairs the frames of a stream into exchanges.

`Pairing` is fed frames and notes and gives exchanges, each when it is complete::

    Note(opened 3) ─────┐
    Frame(request 17) ──┼─▶ Pairing ─▶ Exchange(17)
    Frame(response 17) ─┘

What completes an exchange: its response; the request itself if nobody answers it (Produce with
acks=0); the entry that says that its connection ended first (UNANSWERED), or the "closed" note
of the connection, which therefore comes after the connection's frames; the end of the stream.

Invariants: pairing looks at headers only, so it costs the same for a Heartbeat and for a Fetch of
100 MB. Memory is bounded by what is pending: open connections, unanswered requests, unfinished
frames; and by the topics that have an id. A file that begins in the middle (rotation) or ends in
the middle (kill -9) gives exchanges with one half missing, never an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from kproxy.exchange import endings, entities, facts, rows
from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FRAGMENT,
    LEFT_OUT,
    MORE,
    NO_NODE,
    NO_RESPONSE,
    OPEN_AT_END,
    RAW_SASL,
    SILENCED,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from kproxy.exchange.exchange import Exchange, Halves
from kproxy.exchange.unpacking import Unpacking
from kproxy.payloads.schemas import Schemas


@attrs.define(eq=False)
class Peer:
    """The facts about a connection, told by notes and by its first request."""

    names: TopicNames
    """The names told by the whole stream."""
    client_address: str | None = None
    node_id: int | None = None
    client_id: str | None = None
    is_named: bool = False
    """True if a request has said the client id, or that there is none."""
    pending: dict[int, Frame] = attrs.field(factory=dict)
    """Requests by number, in the order of their arrival."""
    stuck: int | None = None
    """The first request that was not answered before the connection ended."""
    answered_ns: int = 0
    """The arrival of its last response."""

    def exchange(
        self,
        request: Frame | None,
        response: Frame | None,
        ended: Frame | None = None,
        waited: endings.Unanswered | None = None,
    ) -> Exchange:
        """Return an exchange of these halves; `ended` is the UNANSWERED entry of a request."""
        node_id = NO_NODE if self.node_id is None else self.node_id
        row = rows.row_of(request, response, ended, node_id)
        if response is not None:
            if row.request_sent_ns:
                queued_until_ns = min(self.answered_ns, response.received_ns)
                row = row._replace(queued_ns=max(0, queued_until_ns - row.request_sent_ns))
            self.answered_ns = response.received_ns
        about = self.client_address, self.client_id
        return Exchange(row, *about, Halves(request, response), self.names, waited)

    def give_up(
        self,
        request: Frame | None,
        ended: Frame | None,
        ended_ns: int | None,
        *,
        open_at_end: bool = False,
    ) -> Exchange:
        """Return the exchange of a request that will not be answered any more: its connection
        ended, or the recording did before that."""
        given = self.exchange(request, None, ended)
        flags = UNANSWERED | OPEN_AT_END if open_at_end else UNANSWERED
        flags |= 0 if ended is None else ended.flags & SILENCED
        row = given.row._replace(response_flags=flags, response_received_ns=ended_ns or 0)
        return attrs.evolve(given, row=row, unanswered=self.explain_unanswered(given, ended_ns))

    def explain_unanswered(self, exchange: Exchange, ended_ns: int | None) -> endings.Unanswered:
        """Return what an exchange without a response waited for."""
        row = exchange.row
        return self.follow_unanswered(
            row.number, row.request_received_ns, row.request_sent_ns, ended_ns
        )

    def follow_unanswered(
        self, number: int, received_ns: int, sent_ns: int, ended_ns: int | None
    ) -> endings.Unanswered:
        """Follow a request that was never answered, and return what it waited for."""
        waited = endings.unanswered(received_ns, sent_ns, ended_ns, self.stuck)
        self.stuck = self.stuck or number
        return waited

    def follow_response(self, number: int) -> None:
        """Follow a response: to a later request, it says that the connection is no longer stuck.
        (That to an earlier one may have left, and so got its row, late.)"""
        if self.stuck is not None and number > self.stuck:
            self.stuck = None


def pair(entries: Iterable[Frame | Note]) -> Iterator[Exchange]:
    """Yield the exchanges of a stream of entries, each when it is complete."""
    pairing = Pairing()
    for entry in entries:
        yield from pairing.feed(entry)
    yield from pairing.finish()


@attrs.define(eq=False)
class Pairing:
    """Pairs requests and responses as they come; `pair` does it for a whole stream.

    With `_keep`, nothing is decoded here, and frames that it refuses lose their bytes.
    """

    _keep: Callable[[Frame], bool] | None = None
    schemas: Schemas = attrs.field(factory=Schemas, kw_only=True)
    """Those of the records; it gets what the stream tells."""
    unpacking: Unpacking = attrs.field(factory=Unpacking.endless, kw_only=True)
    _connections: dict[int, Peer] = attrs.field(factory=dict, init=False)
    _unfinished: dict[tuple[int, Side], Frame] = attrs.field(factory=dict, init=False)
    _names: TopicNames = attrs.field(
        default=attrs.Factory(
            lambda self: TopicNames(
                self._keep is None, schemas=self.schemas, unpacking=self.unpacking
            ),
            True,
        ),
        init=False,
    )
    _last_ns: int | None = attrs.field(default=None, init=False)
    """The time of the last entry."""

    def feed(self, entry: Frame | Note) -> Sequence[Exchange]:
        """Take the next entry and return the exchanges that it completes."""
        if isinstance(entry, Note):
            return self._note(entry)
        self._last_ns = max(self._last_ns or 0, entry.received_ns)
        if entry.flags & UNANSWERED:
            return self._unanswered(entry)
        if entry.flags & FRAGMENT:
            whole = self._assemble(entry)
            if whole is None:
                return ()
            entry = whole
        elif self._keep is not None and not self._keep(entry):
            entry = attrs.evolve(entry, pieces=[], flags=entry.flags | LEFT_OUT)
        return self._request(entry) if entry.side is Side.CLIENT else self._response(entry)

    def finish(self) -> Sequence[Exchange]:
        """Return the exchanges that remain when the stream ends: requests without a response.

        Entries fed afterwards begin another stream.
        """
        unfinished = {frame.connection for frame in self._unfinished.values()}
        left = [each for number in unfinished for each in self._cut_off(number)]
        for connection in self._connections.values():
            left += self._give_up(connection, self._last_ns, open_at_end=True)
        self._connections.clear()
        self._last_ns = None
        return sorted(left, key=lambda exchange: exchange.number)

    # ---- notes

    def _note(self, note: Note) -> Sequence[Exchange]:
        body = note.body
        event = body.get("event")
        if note.channel == EVENTS and event == "recording":
            # What follows is another recording, whose numbers begin anew.
            return self.finish()
        if note.channel == EVENTS and event in entities.NAMING:
            self._names.note(body)
        if note.channel == CONNECTIONS and event == "closed":
            return self._closed(endings.connection(body), note.time_ns)
        if note.channel == CONNECTIONS:
            # A later file repeats it ("open").
            for name, value in endings.connection_facts(body):
                setattr(self._connection(endings.connection(body)), name, value)
        return ()

    def _closed(self, number: int, now: int) -> Sequence[Exchange]:
        cut_off = self._cut_off(number)
        connection = self._connections.pop(number, None)
        return cut_off if connection is None else [*cut_off, *self._give_up(connection, now)]

    def _connection(self, number: int) -> Peer:
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = Peer(self._names)
        return connection

    def _cut_off(self, number: int) -> list[Exchange]:
        """Close a connection's unfinished frames: the rest of them will not come."""
        exchanges: list[Exchange] = []
        for key in [key for key, frame in self._unfinished.items() if frame.connection == number]:
            frame = self._unfinished.pop(key)
            # Half a request was made; half a response is none.
            if frame.side is Side.CLIENT:
                exchanges += self._request(attrs.evolve(frame, flags=frame.flags | TRUNCATED))
        return exchanges

    # ---- frames

    def _assemble(self, piece: Frame) -> Frame | None:
        """Return the frame that this piece completes, or None while pieces are missing."""
        key = (piece.number, piece.side)
        unfinished = self._unfinished.get(key)
        if unfinished is None:
            unfinished = self._unfinished[key] = attrs.evolve(piece, pieces=[])
        unfinished.flags |= piece.flags
        if self._keep is None or self._keep(piece):
            unfinished.pieces.extend(piece.pieces)
        else:
            unfinished.flags |= LEFT_OUT
        if piece.flags & MORE:
            return None
        del self._unfinished[key]
        flags = unfinished.flags & ~(FRAGMENT | MORE)
        if not flags & LEFT_OUT and sum(map(len, unfinished.pieces)) != piece.frame_bytes:
            # Its first pieces are in a file that we were not given, or got lost.
            flags |= TRUNCATED
        return attrs.evolve(piece, pieces=unfinished.pieces, flags=flags)

    def _request(self, frame: Frame) -> Sequence[Exchange]:
        connection = self._connection(frame.connection)
        if not connection.is_named and connection.client_id is None and not frame.flags & RAW_SASL:
            connection.is_named, connection.client_id = facts.client_id(frame)
        if frame.flags & NO_RESPONSE:
            return (connection.exchange(frame, None),)
        # The same number again: another recording begins in the same stream.
        twin = connection.pending.pop(frame.number, None)
        connection.pending[frame.number] = frame
        return () if twin is None else (connection.give_up(twin, None, None),)

    def _response(self, frame: Frame) -> Sequence[Exchange]:
        if facts.decodable(frame):
            self._names.offer(frame)
        connection = self._connection(frame.connection)
        pending = connection.pending
        if frame.number not in pending:
            return (connection.exchange(None, frame),)
        if frame.api_key in FOLLOWED and facts.decodable(frame):
            follow = functools.partial(self._follow, pending[frame.number], frame)
            self._names.beginnings.offer(follow)
        exchanges = []
        while (first := next(iter(pending))) != frame.number:
            # Brokers answer in order: what was asked before it will not be answered any more.
            exchanges.append(connection.give_up(pending.pop(first), None, frame.received_ns))
        connection.follow_response(frame.number)
        exchanges.append(connection.exchange(pending.pop(first), frame))
        return exchanges

    def _follow(self, asked: Frame, answered: Frame) -> None:
        """Follow an exchange that tells of a beginning."""
        request = facts.request_body(asked.data, asked.flags)
        key, version = answered.api_key, answered.api_version
        response, _ = facts.response_body(answered.data, answered.flags, key, version)
        self._names.beginnings.follow(key, request, response, asked.received_ns)

    def _unanswered(self, frame: Frame) -> Sequence[Exchange]:
        self._unfinished.pop((frame.number, Side.BROKER), None)
        connection = self._connection(frame.connection)
        request = connection.pending.pop(frame.number, None)
        return (connection.give_up(request, frame, frame.received_ns),)

    def _give_up(
        self, connection: Peer, ended_ns: int | None, *, open_at_end: bool = False
    ) -> Sequence[Exchange]:
        pending, connection.pending = connection.pending, {}
        return [
            connection.give_up(request, None, ended_ns, open_at_end=open_at_end)
            for request in pending.values()
        ]
