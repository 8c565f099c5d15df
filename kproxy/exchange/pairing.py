"""Pairs the frames of a stream into exchanges, while they pass.

`Pairing` is fed frames and notes and gives exchanges, each when it is complete::

    Note(opened 3) ─────┐
    Frame(request 17) ──┼─▶ Pairing: Follower, RecordingContext ─▶ Exchange(17)
    Frame(response 17) ─┘

What completes an exchange: its response; the request itself if nobody answers it (Produce with
acks=0); the entry that says that its connection ended first (UNANSWERED), or the "closed" note
of the connection, which therefore comes after the connection's frames; the end of the stream.

Invariants: pairing looks at headers only, so it costs the same for a Heartbeat and for a Fetch of
100 MB. Memory is bounded by what is pending: open connections, unanswered requests, unfinished
frames; and by the topics that have an id. A stream that begins or ends in the middle gives
exchanges with one half missing, never an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs

from kproxy.exchange import facts
from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FRAGMENT,
    LEFT_OUT,
    MORE,
    NO_RESPONSE,
    TRUNCATED,
    UNANSWERED,
    UNPLACED,
    ExchangeRow,
    Frame,
    Note,
    Side,
)
from kproxy.exchange.exchange import Exchange, Halves
from kproxy.exchange.follower import Follower
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.unpacking import Unpacking
from kproxy.wire.payloads.schemas import Schemas


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
    _follower: Follower = attrs.field(factory=Follower, init=False)
    _context: RecordingContext = attrs.field(
        default=attrs.Factory(
            lambda self: RecordingContext(
                TopicNames(self._keep is None, schemas=self.schemas, unpacking=self.unpacking)
            ),
            True,
        ),
        init=False,
    )
    _unfinished: dict[tuple[int, Side], Frame] = attrs.field(factory=dict, init=False)
    _frames: dict[int, Frame] = attrs.field(factory=dict, init=False)
    """The frames of exchanges that are not complete, by their places: how many came before."""
    _unsent: dict[int, Frame] = attrs.field(factory=dict, init=False)
    """The requests that had not left when they came, by their numbers."""
    _last_place: int = attrs.field(default=0, init=False)
    _last_ns: int = attrs.field(default=0, init=False)
    """The time of the last entry."""

    def feed(self, entry: Frame | Note) -> Sequence[Exchange]:
        """Take the next entry and return the exchanges that it completes."""
        if isinstance(entry, Note):
            return self._note(entry)
        self._last_ns = max(self._last_ns, entry.received_ns)
        if entry.flags & UNANSWERED:
            self._unfinished.pop((entry.number, Side.BROKER), None)
        elif entry.flags & FRAGMENT:
            whole = self._assemble(entry)
            if whole is None:
                return ()
            entry = whole
        elif self._keep is not None and not self._keep(entry):
            entry = attrs.evolve(entry, pieces=[], flags=entry.flags | LEFT_OUT)
        return self._frame(entry)

    def finish(self) -> Sequence[Exchange]:
        """Return the exchanges that remain when the stream ends: requests without a response.

        Entries fed afterwards begin another stream.
        """
        found = [each for number in self._cut_connections() for each in self._cut_off(number)]
        found += self._exchanges(self._follower.left(self._last_ns))
        self._follower, self._frames, self._last_ns = Follower(), {}, 0
        self._unsent.clear()
        self._context.peers.clear()
        return sorted(found, key=lambda exchange: exchange.number)

    # ---- notes

    def _note(self, note: Note) -> Sequence[Exchange]:
        if note.channel == EVENTS and note.body.get("event") == "recording":
            # What follows is another recording, whose numbers begin anew.
            return self.finish()
        found: list[Exchange] = []
        closes = note.channel == CONNECTIONS and note.body.get("event") == "closed"
        if closes and isinstance(number := note.body.get("connection"), int):
            found += self._cut_off(number)
            for request in [each for each in self._unsent.values() if each.connection == number]:
                self._follower.sent(self._unsent.pop(request.number))
        self._context.note(note)
        self._follower.note(note)
        found += self._exchanges(self._follower.take())
        self._context.take_closed()
        return found

    def _cut_connections(self) -> set[int]:
        return {frame.connection for frame in self._unfinished.values()}

    def _cut_off(self, number: int) -> list[Exchange]:
        """Close a connection's unfinished frames: the rest of them will not come."""
        exchanges: list[Exchange] = []
        for key in [key for key, frame in self._unfinished.items() if frame.connection == number]:
            frame = self._unfinished.pop(key)
            # Half a request was made; half a response is none.
            if frame.side is Side.CLIENT:
                flags = frame.flags & ~(FRAGMENT | MORE) | TRUNCATED
                exchanges += self._frame(attrs.evolve(frame, flags=flags))
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

    def _frame(self, frame: Frame) -> Sequence[Exchange]:
        self._last_place += 1
        if frame.side is Side.CLIENT and not (frame.sent_ns or frame.flags & NO_RESPONSE):
            self._unsent[frame.number] = frame
        elif frame.side is Side.BROKER and (request := self._unsent.pop(frame.number, None)):
            self._follower.sent(request)
        if not frame.flags & UNANSWERED:
            self._frames[self._last_place] = frame
        if frame.side is Side.BROKER and facts.decodable(frame):
            self._context.names.offer(frame)
        self._follower.frame(frame, self._last_place)
        return self._exchanges(self._follower.take())

    def _exchanges(self, rows: Iterable[ExchangeRow]) -> list[Exchange]:
        return [self._exchange(row) for row in rows]

    def _exchange(self, row: ExchangeRow) -> Exchange:
        request = self._frames.pop(row.request_position, None)
        response = self._frames.pop(row.response_position, None)
        placed = UNPLACED if response is not None else 0
        row = row._replace(request_position=0, response_position=placed)
        if row.api_key in FOLLOWED and request is not None and response is not None:
            if facts.decodable(response):
                follow = functools.partial(self._follow, row, request, response)
                self._context.names.beginnings.offer(follow)
        return self._context.exchange(row, Halves(request, response))

    def _follow(self, row: ExchangeRow, asked: Frame, answered: Frame) -> None:
        """Follow an exchange that tells of a beginning."""
        request = facts.request_body(asked.data, asked.flags)
        key, version = row.api_key, row.api_version
        response, _ = facts.response_body(answered.data, answered.flags, key, version)
        self._context.names.beginnings.follow(key, request, response, asked.received_ns)
