"""Exchanges: a request and its response, paired, timed and named.

`Pairing` is fed the frames and notes of a recording and gives exchanges, when they are complete::

    Note(opened 3) ─────┐
    Frame(request 17) ──┼─▶ Pairing ─▶ Exchange(17)
    Frame(response 17) ─┘

What completes an exchange: its response; the request itself if nobody answers it (acks=0); the
entry that says that its connection ended first (UNANSWERED), or the "closed" note of the
connection, which therefore comes after its frames; the end of the stream.

Invariants: pairing looks at headers only, so it costs the same for a Heartbeat and for a Fetch of
100 MB; bodies are decoded when asked for, once. Memory is bounded by what is pending: open
connections, unanswered requests, unfinished frames; and by the topics that have an id. A file that
begins in the middle (rotation) or ends in the middle (kill -9) gives exchanges with one half
missing, never an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from kproxy import protocol
from kproxy.exchange import endings, entities, facts, timing, topic_records
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    FRAGMENT,
    INJECTED,
    LEFT_OUT,
    MORE,
    NO_API,
    NO_RESPONSE,
    RAW_SASL,
    REDACTED,
    SASL_TOKEN,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Note,
    Side,
)
from kproxy.exchange.topic_records import TopicRecord

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@attrs.define(eq=False)
class _Connection:
    """What the notes, and its first request, tell of a connection; and what is pending on it."""

    names: TopicNames
    """Of the whole stream."""
    client_address: str | None = None
    node_id: int | None = None
    client_id: str | None = None
    pending: dict[int, Frame] = attrs.field(factory=dict)
    """Requests by number, in the order in which they were asked."""
    stuck: int | None = None
    """The first request that was not answered before the connection ended."""
    answered_ns: int = 0
    """When its last response arrived."""


@attrs.frozen(eq=False, repr=False)
class Exchange:
    """A request and what became of it.

    Its attributes are the keys of `kproxy show --json`, plus the frames. Bodies are decoded when
    what is read out of them (`errors`, `opaque`, `request`, `response`, …) is first used.
    """

    number: int
    """Counts requests over the whole recording, from 1."""
    connection: int
    client_address: str | None
    node_id: int | None
    """The broker that the connection leads to; None on a bootstrap address."""
    api_key: int | None
    api_version: int | None
    correlation_id: int | None
    request_bytes: int | None
    """Size of the request with its size prefix; None if unknown."""
    response_bytes: int | None
    """Size of the response with its size prefix; None if there is none."""
    _row: Frame
    """The frame that all of the above comes from: the request, or in its absence the response."""
    _request: Frame | None
    _response: Frame | None
    _connection_client_id: str | None
    topic_names: TopicNames
    """Of the whole stream that it comes from."""
    unanswered: endings.Unanswered | None = None
    """Of a request that ought to have been answered and was not: what it waited for."""
    queued_ns: int = 0
    """How long it waited, sent on, for the response to an earlier request of its connection."""

    def __repr__(self) -> str:
        return f"<Exchange {self.text}>"

    @property
    def text(self) -> str:
        """The line of `kproxy show`, whole."""
        from kproxy.exchange.words.line import text

        return text(self)

    @property
    def api(self) -> str | None:
        """The API's name in Kafka; None if not even the request's header arrived."""
        if self._row.flags & RAW_SASL:
            return SASL_TOKEN
        return None if self.api_key is None else protocol.api_name(self.api_key)

    @functools.cached_property
    def client_id(self) -> str | None:
        """As the request's header says, else as its connection's other requests do."""
        if self._request is not None and not self._request.flags & RAW_SASL:
            found, client_id = facts.client_id(self._request)
            if found:
                return client_id
        return self._connection_client_id

    @property
    def time(self) -> datetime:
        """When the request arrived, UTC."""
        return _EPOCH + timedelta(microseconds=self._request_received_ns // 1000)

    @property
    def _request_received_ns(self) -> int:
        row = self._row
        if row.side is Side.CLIENT:
            return row.received_ns
        return row.request_received_ns or row.received_ns

    @property
    def _request_sent_ns(self) -> int:
        # The response is the younger witness: its request may have been recorded before it left.
        for frame in (self._response, self._row):
            if frame is not None and frame.side is Side.BROKER and frame.request_sent_ns:
                return frame.request_sent_ns
        sent_ns = self._request.sent_ns if self._request is not None else 0
        # A request counts as handed on when the last of those handed on with it was; where that
        # was after its own answer, its time is not known.
        late = self._response is not None and sent_ns > self._response.received_ns
        return 0 if late else sent_ns

    @property
    def broker_ms(self) -> float | None:
        """From handing on the request's last byte to the arrival of the response's."""
        response, sent_ns = self._response, self._request_sent_ns
        if response is None or not sent_ns or response.flags & INJECTED:
            return None
        return facts.milliseconds(response.received_ns - sent_ns)

    @property
    def proxy_ms(self) -> float | None:
        """How long the proxy kept the request and the response; None if it still has one."""
        sent_ns, response = self._request_sent_ns, self._response
        if response is not None and response.flags & INJECTED and not sent_ns:
            if not response.sent_ns:
                return None
            return facts.milliseconds(response.sent_ns - self._request_received_ns)
        if not sent_ns or (response is not None and not response.sent_ns):
            return None
        kept_ns = sent_ns - self._request_received_ns
        if response is not None:
            kept_ns += response.sent_ns - response.received_ns
        return facts.milliseconds(kept_ns)

    queued_ms = property(timing.queued_ms)
    waiting_ms = property(timing.waiting_ms)
    service_ms = property(timing.service_ms)

    # ---- what happened to it on the way

    @property
    def redacted(self) -> bool:
        """Whether secrets were blanked out of it before it was recorded."""
        return self._has(REDACTED)

    @property
    def injected(self) -> bool:
        """Whether one of its frames was made by the proxy."""
        return self._has(INJECTED)

    @property
    def truncated(self) -> bool:
        """Whether one of its frames stops in the middle."""
        return self._has(TRUNCATED)

    @property
    def left_out(self) -> bool:
        """Whether one of its frames was too large to be kept, so that its body is not known."""
        return self._has(LEFT_OUT)

    @property
    def one_way(self) -> bool:
        """Whether the request is one that brokers do not answer (Produce with acks=0)."""
        return self._has(NO_RESPONSE)

    @property
    def faults(self) -> list[str]:
        """The names of the fault rules that touched it."""
        found = dict.fromkeys(each for frame in self._frames() for each in frame.fault_ids)
        return [self.topic_names.rule(fault_id) for fault_id in found]

    def _frames(self) -> Iterator[Frame]:
        return (frame for frame in (self._request, self._response) if frame is not None)

    def _has(self, flag: int) -> bool:
        return any(frame.flags & flag for frame in self._frames())

    @functools.cached_property
    def request_frame(self) -> bytes | None:
        """The request as its client sent it, size prefix included."""
        return None if self._request is None else self._request.data

    @functools.cached_property
    def response_frame(self) -> bytes | None:
        """The response as its broker sent it (before addresses were rewritten)."""
        return None if self._response is None else self._response.data

    @property
    def request_sent(self) -> bytes | None:
        """The request as it was handed on; None if that is not known."""
        return facts.sent(self._request)

    @property
    def response_sent(self) -> bytes | None:
        """The response as it was handed on (addresses rewritten); None if that is not known."""
        return facts.sent(self._response)

    # ---- what they say

    @property
    def request(self) -> Any:
        """The request's body as an attrs value; None if there is none or it is opaque."""
        return None if self.request_message is None else self.request_message.body

    @property
    def response(self) -> Any:
        """The response's body as an attrs value; None if there is none or it is opaque."""
        return None if self.response_message is None else self.response_message.body

    @property
    def opaque(self) -> bool:
        """Whether it has a body that could not be decoded (unknown API or version, malformed)."""
        return (self.request_message is None and facts.has_body(self._request)) or (
            self.response_message is None and facts.has_body(self._response)
        )

    @functools.cached_property
    def errors(self) -> list[str]:
        """Kafka's names of the errors in the response, each once, in order of appearance."""
        return facts.errors(self.response, self.api_key, self.response_frame)

    @functools.cached_property
    def error_messages(self) -> list[str]:
        """What the broker says of its errors, each once, in order of appearance."""
        return [] if self.response is None else facts.error_messages(self.response)

    @functools.cached_property
    def topics(self) -> list[str]:
        """The topics that it names, each once; an id whose name nothing tells comes as text."""
        return entities.topics(self._bodies(), self.topic_names)

    @functools.cached_property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that it names, each once."""
        return entities.partitions(self._bodies(), self.topic_names)

    @functools.cached_property
    def groups(self) -> list[str]:
        """The ids of the groups that it names, each once."""
        return entities.names_of(self._bodies(), entities.GROUP)

    @functools.cached_property
    def transactional_ids(self) -> list[str]:
        """The transactional ids that it names, each once."""
        return entities.names_of(self._bodies(), entities.TRANSACTIONAL_ID)

    @functools.cached_property
    def records(self) -> list[TopicRecord]:
        """The records that it produces or fetches, decompressed, in order."""
        return topic_records.read(self.request, self.response, self.topic_names)

    def _bodies(self) -> list[Any]:
        return [body for body in (self.request, self.response) if body is not None]

    @functools.cached_property
    def request_message(self) -> protocol.Request | None:
        """The request, header and body; None if there is none or it is opaque."""
        return facts.decoded_request(self._request, self.request_frame)

    @functools.cached_property
    def response_message(self) -> protocol.Response | None:
        """The response, header and body; None if there is none or it is opaque."""
        return facts.decoded_response(
            self._response, self.response_frame, self.api_key, self.api_version
        )


def pair(entries: Iterable[Frame | Note]) -> Iterator[Exchange]:
    """Yield the exchanges of a stream of entries, each when it is complete."""
    pairing = Pairing()
    for entry in entries:
        yield from pairing.feed(entry)
    yield from pairing.finish()


@attrs.define(eq=False)
class Pairing:
    """Pairs requests and responses as they come; `pair` is the same for a whole stream.

    With `_keep`, nothing is decoded here, and of frames that it refuses the bytes are left out.
    """

    _keep: Callable[[Frame], bool] | None = None
    _connections: dict[int, _Connection] = attrs.field(factory=dict, init=False)
    _unfinished: dict[tuple[int, Side], Frame] = attrs.field(factory=dict, init=False)
    _names: TopicNames = attrs.field(
        default=attrs.Factory(lambda self: TopicNames(self._keep is None), True), init=False
    )
    _last_ns: int | None = attrs.field(default=None, init=False)
    """When the last entry came."""

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
        """Return what is left when the stream ends: requests without a response.

        What is fed afterwards is the beginning of another stream.
        """
        unfinished = {frame.connection for frame in self._unfinished.values()}
        left = [each for number in unfinished for each in self._cut_off(number)]
        for connection in self._connections.values():
            left += self._give_up(connection, self._last_ns)
        self._connections.clear()
        self._last_ns = None
        return sorted(left, key=lambda exchange: exchange.number)

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
            for name, value in endings.about(body):
                setattr(self._connection(endings.connection(body)), name, value)
        return ()

    def _closed(self, number: int, now: int) -> Sequence[Exchange]:
        cut_off = self._cut_off(number)
        connection = self._connections.pop(number, None)
        return cut_off if connection is None else [*cut_off, *self._give_up(connection, now)]

    def _connection(self, number: int) -> _Connection:
        connection = self._connections.get(number)
        if connection is None:
            connection = self._connections[number] = _Connection(self._names)
        return connection

    def _cut_off(self, number: int) -> list[Exchange]:
        """Make the best of a connection's unfinished frames: nothing more of them will come."""
        exchanges: list[Exchange] = []
        for key in [key for key, frame in self._unfinished.items() if frame.connection == number]:
            frame = self._unfinished.pop(key)
            # Half a request was made; half a response is none.
            if frame.side is Side.CLIENT:
                exchanges += self._request(attrs.evolve(frame, flags=frame.flags | TRUNCATED))
        return exchanges

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
        if connection.client_id is None and not frame.flags & RAW_SASL:
            connection.client_id = facts.client_id(frame)[1]
        if frame.flags & NO_RESPONSE:
            return (_exchange(connection, frame, None),)
        # The same number again: another recording begins in the same stream.
        twin = connection.pending.pop(frame.number, None)
        connection.pending[frame.number] = frame
        return () if twin is None else (_given_up(connection, twin, None),)

    def _response(self, frame: Frame) -> Sequence[Exchange]:
        if facts.decodable(frame):
            self._names.offer(frame)
        connection = self._connection(frame.connection)
        pending = connection.pending
        if frame.number not in pending:
            return (_exchange(connection, frame, frame),)
        exchanges = []
        while (first := next(iter(pending))) != frame.number:
            # Brokers answer in order: what was asked before it will not be answered any more.
            exchanges.append(_given_up(connection, pending.pop(first), frame.received_ns))
        connection.stuck = None
        exchanges.append(_exchange(connection, pending.pop(first), frame))
        connection.answered_ns = frame.received_ns
        return exchanges

    def _unanswered(self, frame: Frame) -> Sequence[Exchange]:
        self._unfinished.pop((frame.number, Side.BROKER), None)
        connection = self._connection(frame.connection)
        asked = connection.pending.pop(frame.number, frame)
        return (_given_up(connection, asked, frame.received_ns, frame.request_sent_ns),)

    def _give_up(self, connection: _Connection, ended_ns: int | None) -> Sequence[Exchange]:
        pending, connection.pending = connection.pending, {}
        return [_given_up(connection, asked, ended_ns) for asked in pending.values()]


def _given_up(
    connection: _Connection, asked: Frame, ended_ns: int | None, sent_ns: int = 0
) -> Exchange:
    """Make an exchange of a request that will not be answered any more."""
    sent_ns = asked.sent_ns or sent_ns or asked.request_sent_ns
    waited = endings.unanswered(asked, sent_ns, ended_ns, connection.stuck)
    connection.stuck = connection.stuck or asked.number
    return _exchange(connection, asked, None, waited)


def _exchange(
    connection: _Connection,
    row: Frame,
    response: Frame | None,
    waited: endings.Unanswered | None = None,
) -> Exchange:
    """Make an exchange of its halves.

    `row` is the request; where that is not in the stream, what came instead from the broker.
    """
    request = row if row.side is Side.CLIENT else None
    named = row.api_key != NO_API and not row.flags & RAW_SASL
    request_bytes = row.frame_bytes if request is not None else row.request_bytes
    sent_ns = 0 if response is None else response.request_sent_ns or row.sent_ns
    return Exchange(
        row.number,
        row.connection,
        connection.client_address,
        connection.node_id,
        row.api_key if named else None,
        row.api_version if named else None,
        row.correlation_id if named else None,
        request_bytes or None,
        None if response is None else response.frame_bytes,
        row,
        request,
        response,
        connection.client_id,
        connection.names,
        waited,
        max(0, connection.answered_ns - sent_ns) if sent_ns else 0,
    )
