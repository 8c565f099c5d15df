"""Exchanges: a request and its response, paired, timed and named.

What a person reads, filters and exports. All that does not concern bodies comes from the row that
a recording has of it (`entries.ExchangeRow`)::

    row ──▶ Exchange ──▶ number, api, broker_ms, …
               └─ asked for bytes ─▶ Frame ─▶ request, response, errors, topics, records …

Invariants: frames are opened, and bodies decoded, when they are asked for, once. `pairing` makes
exchanges of a stream of frames; `recording` follows them in files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from kproxy.exchange import (
    body_facts,
    derived,
    endings,
    facts,
    meanings,
    response_codes,
    topic_records,
)
from kproxy.exchange.body_facts import BodyFacts
from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    CLIENT_ENDED,
    INJECTED,
    NO_API,
    NO_NODE,
    NO_RESPONSE,
    OPEN_AT_END,
    RAW_SASL,
    REDACTED,
    SASL_TOKEN,
    SILENCED,
    TRUNCATED,
    UNANSWERED,
    WITHHELD,
    ExchangeRow,
    Frame,
    Side,
)
from kproxy.exchange.fields import ExchangeField, Lazily, Need, Type, fields_of, flag, path
from kproxy.exchange.routine import is_routine
from kproxy.exchange.topic_records import TopicRecords
from kproxy.units import moment
from kproxy.wire import protocol
from kproxy.wire.protocol import schema

if TYPE_CHECKING:
    from kproxy.exchange.words.bodies import ExchangeText

# A look into the enum costs as much as opening a frame does otherwise.
_CLIENT, _BROKER = Side.CLIENT, Side.BROKER


class Frames(Protocol):
    """The frames of exchanges, wherever they are kept."""

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Open a frame of an exchange; None if there is none."""
        ...

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Open a frame of an exchange and return its bytes alone."""
        ...


@attrs.frozen(eq=False)
class Halves:
    """The frames of one exchange that was paired from a stream."""

    request: Frame | None
    response: Frame | None

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Return the request's frame or the response's."""
        return self.request if side is _CLIENT else self.response

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Return the bytes of the request's frame or the response's."""
        frame = self.frame(row, side)
        return None if frame is None else frame.data


def _api(exchange: Exchange) -> str | None:
    row = exchange.row
    if (row.request_flags | row.response_flags) & RAW_SASL:
        return SASL_TOKEN
    return None if row.api_key == NO_API else protocol.api_name(row.api_key)


def _header(name: str) -> Callable[[Exchange], int | None]:
    """Return a reader of a header field: None for a request without a header."""
    return lambda exchange: getattr(exchange.row, name) if exchange.named else None


@attrs.frozen(eq=False, repr=False, slots=False)
class Exchange:
    """A request and its outcome.

    Its fields are the keys of `kproxy show --json`, the columns of tables, and, by their `key`, the
    keys of filters. Those that need a body open and decode frames, at first use.
    """

    row: ExchangeRow
    _client_address: str | None
    _connection_client_id: str | None
    _frames: Frames
    topic_names: TopicNames
    """The names told by the whole stream that the exchange comes from."""
    _unanswered: endings.Unanswered | None = None
    _users: tuple[tuple[int, str], ...] = ()
    """Those of its connection, each behind the number of its first exchange."""

    def __repr__(self) -> str:
        return f"<Exchange {self.text}>"

    @property
    def name(self) -> str:
        """The name of the exchange among all that are read: `#12`, or `shop#12` where several
        recordings are."""
        return f"{self.topic_names.recording}#{self.row.number}"

    @Lazily
    def words(self) -> ExchangeText:
        """Its request and its response in a few words."""
        from kproxy.exchange.words.bodies import text_of

        return text_of(self)

    @property
    def text(self) -> str:
        """The whole line of `kproxy show`."""
        from kproxy.exchange.words.line import text

        return text(self)

    # ---- the fields, in the order of the JSON

    number = ExchangeField(
        Type.INT64, Need.HEADER, "number of the exchange: counts requests of the recording from 1",
        path("row.number"),
    )  # fmt: skip
    time = ExchangeField(
        Type.TIME, Need.HEADER, "when the request arrived, UTC",
        lambda exchange: moment(exchange.time_ns),
    )  # fmt: skip
    connection = ExchangeField(
        Type.INT32, Need.CONNECTION, "number of the connection",
        path("row.connection"),
    )  # fmt: skip
    client_address = ExchangeField(
        Type.TEXT, Need.CONNECTION, "host and port of the client",
        lambda exchange: exchange._client_address, nullable=True,
    )  # fmt: skip
    client_id = ExchangeField(
        Type.TEXT, Need.HEADER, "client.id, as the first request of the connection says",
        lambda exchange: exchange._client_id(), nullable=True,
    )  # fmt: skip
    user = ExchangeField(
        Type.TEXT, Need.ROW, "user of the last login; null if unknown (run --record-users)",
        lambda exchange: exchange._user(), nullable=True,
    )  # fmt: skip
    node_id = ExchangeField(
        Type.INT32, Need.CONNECTION, "broker of the connection; null on a bootstrap address",
        path("row.node_id", none=NO_NODE), nullable=True,
    )  # fmt: skip
    api = ExchangeField(
        Type.TEXT, Need.HEADER, "name of the API; null if half a header arrived",
        _api, nullable=True,
    )  # fmt: skip
    api_key = ExchangeField(
        Type.INT16, Need.HEADER, "number of the API; null where the request has none",
        _header("api_key"), nullable=True,
    )  # fmt: skip
    api_version = ExchangeField(
        Type.INT16, Need.HEADER, "version of the request",
        _header("api_version"), nullable=True,
    )  # fmt: skip
    correlation_id = ExchangeField(
        Type.INT32, Need.HEADER, "correlation id of the request",
        _header("correlation_id"), nullable=True,
    )  # fmt: skip
    request_bytes = ExchangeField(
        Type.INT32, Need.HEADER, "size of the request with its size prefix",
        path("row.request_bytes", none=0), unit="bytes", nullable=True,
    )  # fmt: skip
    response_bytes = ExchangeField(
        Type.INT32, Need.ROW, "size of the response; null if there is none",
        path("row.response_bytes", none=0), unit="bytes", nullable=True,
    )  # fmt: skip
    broker_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "what the broker took: queued_ms + waiting_ms + service_ms",
        path("durations.broker_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    queued_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "of broker_ms, the wait behind earlier requests of its connection",
        path("durations.queued_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    waiting_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "of broker_ms, what may be a long poll or the joining of a group",
        path("durations.waiting_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    service_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "of broker_ms, what the broker took for certain",
        path("durations.service_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    proxy_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "what kproxy added, both ways, without fault_ms",
        path("durations.proxy_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    fault_ms = ExchangeField(
        Type.FLOAT, Need.ROW, "what fault rules added, both ways; null if unknown",
        path("fault_us", none=UNKNOWN, per=1000), unit="ms", nullable=True,
    )  # fmt: skip
    held_behind = ExchangeField(
        Type.INT64, Need.ROW, "number of the exchange behind whose delay by a rule it was held",
        path("row.held_behind", none=0), nullable=True,
    )  # fmt: skip
    topics = ExchangeField(
        Type.TEXTS, Need.REQUEST, "topics that it names; an id, where nothing tells the name",
        meanings.TOPIC, key="topic",
    )  # fmt: skip
    partitions = ExchangeField(
        Type.PARTITIONS, Need.REQUEST, "partitions that it names",
        meanings.PARTITION, key="partition",
    )  # fmt: skip
    groups = ExchangeField(
        Type.TEXTS, Need.REQUEST, "groups that it names",
        meanings.GROUP, key="group",
    )  # fmt: skip
    transactional_ids = ExchangeField(
        Type.TEXTS, Need.REQUEST, "transactional ids that it names",
        meanings.TRANSACTIONAL_ID, key="transactional_id",
    )  # fmt: skip
    errors = ExchangeField(
        Type.TEXTS, Need.RESPONSE, "names of the errors that the client was told",
        meanings.ERROR, key="error",
    )  # fmt: skip
    error_messages = ExchangeField(
        Type.TEXTS, Need.RESPONSE, "what the response says of the errors",
        meanings.ERROR_MESSAGE, key="error_message",
    )  # fmt: skip
    unreadable = ExchangeField(
        Type.TEXTS, Need.RESPONSE, "records that cannot be read: where they are, and why",
        lambda exchange: [each.text for each in exchange.records.unreadable], in_json=False,
    )  # fmt: skip
    routine = ExchangeField(
        Type.BOOL, Need.RESPONSE, "it has errors, all of them routine of the protocol",
        is_routine,
    )  # fmt: skip
    opaque = ExchangeField(
        Type.BOOL, Need.RESPONSE, "it has a body that could not be decoded",
        lambda exchange: exchange._opaque(),
    )  # fmt: skip
    redacted = ExchangeField(
        Type.BOOL, Need.ROW, "secrets were blanked out of it",
        flag(REDACTED),
    )  # fmt: skip
    injected = ExchangeField(
        Type.BOOL, Need.ROW, "one of its frames was made by kproxy",
        flag(INJECTED),
    )  # fmt: skip
    truncated = ExchangeField(
        Type.BOOL, Need.ROW, "one of its frames stops in the middle",
        flag(TRUNCATED),
    )  # fmt: skip
    undelivered = ExchangeField(
        Type.BOOL, Need.ROW, "its response came and did not reach the client, or not whole",
        lambda exchange: derived.undelivered(exchange.row),
    )  # fmt: skip
    late = ExchangeField(
        Type.BOOL, Need.ROW, "its response left when the client had ended its side",
        lambda exchange: exchange.is_late, in_json=False,
    )  # fmt: skip
    one_way = ExchangeField(
        Type.BOOL, Need.ROW, "brokers do not answer it: Produce with acks=0",
        flag(NO_RESPONSE), in_json=False,
    )  # fmt: skip
    faults = ExchangeField(
        Type.TEXTS, Need.ROW, "names of the fault rules that touched it",
        lambda exchange: [exchange.topic_names.rule(each) for each in exchange.row.fault_ids],
        key="fault",
    )  # fmt: skip
    unanswered = ExchangeField(
        Type.WAITED, Need.ROW, "what a request waited for that was never answered",
        lambda exchange: exchange._unanswered, nullable=True,
    )  # fmt: skip
    request_received_ns = ExchangeField(
        Type.INT64, Need.ROW, "when the request arrived, ns since 1970; 0: unknown",
        path("row.request_received_ns"), unit="ns", in_json=False,
    )  # fmt: skip
    request_sent_ns = ExchangeField(
        Type.INT64, Need.ROW, "when it was sent on; 0: it was not, or unknown",
        path("row.request_sent_ns"), unit="ns", in_json=False,
    )  # fmt: skip
    response_received_ns = ExchangeField(
        Type.INT64, Need.ROW, "when the response arrived, or the connection ended",
        path("row.response_received_ns"), unit="ns", in_json=False,
    )  # fmt: skip
    response_sent_ns = ExchangeField(
        Type.INT64, Need.ROW, "when the response was sent on",
        path("row.response_sent_ns"), unit="ns", in_json=False,
    )  # fmt: skip
    queued_ns = ExchangeField(
        Type.INT64, Need.ROW, "queued_ms, exact",
        path("row.queued_ns"), unit="ns", in_json=False,
    )  # fmt: skip
    max_wait_ms = ExchangeField(
        Type.INT32, Need.ROW, "how long a Fetch lets the broker wait for records",
        path("row.max_wait_ms"), unit="ms", in_json=False,
    )  # fmt: skip
    request = ExchangeField(
        Type.BODY, Need.REQUEST, "body of the request, JSON",
        lambda exchange: facts.request_body(
            exchange.request_frame, exchange.row.request_flags, exchange.request_kind
        ),
        nullable=True,
    )  # fmt: skip
    response = ExchangeField(
        Type.BODY, Need.RESPONSE, "body of the response, JSON",
        lambda exchange: facts.response_body(
            exchange.response_frame, exchange.row.response_flags, *exchange.response_kind
        )[0],
        nullable=True,
    )  # fmt: skip
    request_frame = ExchangeField(
        Type.BYTES, Need.REQUEST, "the request as its client sent it, size prefix included",
        lambda exchange: exchange._frames.data(exchange.row, _CLIENT), nullable=True,
        in_json=False,
    )  # fmt: skip
    response_frame = ExchangeField(
        Type.BYTES, Need.RESPONSE, "the response as its broker sent it, addresses as they came",
        lambda exchange: exchange._frames.data(exchange.row, _BROKER), nullable=True,
        in_json=False,
    )  # fmt: skip

    # ---- what they are computed of: the row

    @property
    def time_ns(self) -> int:
        """The time of the request's arrival, since 1970."""
        row = self.row
        return row.request_received_ns or row.response_received_ns

    @property
    def completed_ns(self) -> int:
        """The latest time that is known of the exchange."""
        return derived.completed_ns(self.row)

    @Lazily
    def _flags(self) -> int:
        return derived.flags(self.row)

    @property
    def named(self) -> bool:
        """True if the request has a header: then it has an API, a version, a correlation id."""
        return self.row.api_key != NO_API and not self.has(RAW_SASL)

    @property
    def request_kind(self) -> bytes | None:
        """What stands in the request's header for its API and version; None if it has none."""
        row = self.row
        return facts.kind(row.api_key, row.api_version) if self.named else None

    @property
    def response_kind(self) -> tuple[int, int] | tuple[None, None]:
        """API and version of the request; None if it has no header."""
        row = self.row
        return (row.api_key, row.api_version) if self.named else (None, None)

    @property
    def is_copy(self) -> bool:
        """True if kproxy sent it, as the copy of a client's request; the broker answers it."""
        return bool(self.row.request_flags & INJECTED)

    @property
    def got_no_response(self) -> bool:
        """True if a response was due and did not reach the client."""
        due = not self.row.response_bytes and not self.has(NO_RESPONSE)
        return due or self.undelivered

    @property
    def silenced(self) -> bool:
        """True if a response did not reach the client because of a fault rule."""
        return self.has(WITHHELD | SILENCED) and self.got_no_response

    @property
    def is_late(self) -> bool:
        """True if the response left when the client had ended its side: a client of Kafka that does
        so has closed its socket, but a FIN alone does not prove that it no longer reads. A poll
        that is left behind is not late: nobody waits for it."""
        return self.has(CLIENT_ENDED) and self.row.api_key not in derived.POLL_KEYS

    @property
    def may_be_lost(self) -> bool:
        """True if the client did not get the response, or had ended its side before it left."""
        return self.undelivered or self.has(CLIENT_ENDED)

    @property
    def open_at_end(self) -> bool:
        """True if the recording ends before the response, and before the connection ended."""
        flags = self.row.response_flags
        ended = flags & OPEN_AT_END or not self.row.response_received_ns
        return bool(flags & UNANSWERED and ended)

    @Lazily
    def broker_ns(self) -> int | None:
        """The broker's time, exact."""
        row = self.row
        times = row.request_sent_ns, row.response_received_ns
        found = derived.broker_ns(*times, row.response_bytes, self._flags)
        return None if found == UNKNOWN else found

    @Lazily
    def durations(self) -> derived.Durations:
        """The broker's time and kproxy's, in microseconds; `UNKNOWN` where one is."""
        return derived.durations(self.row, self._wait_max_ms)

    @property
    def kept_ns(self) -> int:
        """The time for which kproxy kept it, both ways, by itself or by a rule."""
        return derived.kept_ns(self.row)

    @property
    def fault_us(self) -> int:
        """The time that fault rules added, both ways, in microseconds."""
        return derived.microseconds(self.row.fault_ns)

    def has(self, flag: int) -> bool:
        """Return whether the request or the response has a flag."""
        return bool(self._flags & flag)

    @property
    def ordinary(self) -> bool:
        """True if request and response were both understood and nothing happened to them on the
        way."""
        row = self.row
        if row.request_flags or row.response_flags or row.fault_ids or row.fault_ns > 0:
            return False
        if not row.response_sent_ns and self.undelivered:
            return False
        return self.request is not None and self.response is not None

    @Lazily
    def uneventful(self) -> bool:
        """True if it is ordinary, and its response has no error and no message of one: then its
        line is the words of its bodies alone."""
        if not self.ordinary:
            return False
        return not (self.facts.errors or self.facts.error_messages)

    @property
    def left_open(self) -> bool:
        """True if the recording ends before the response left, whether it had come or not."""
        return self.open_at_end or bool(self.row.response_flags & OPEN_AT_END)

    def _client_id(self) -> str | None:
        """Return the client id of the connection, or the request's own where that is not known."""
        if self._connection_client_id is None and not self.has(RAW_SASL):
            request = self._frames.frame(self.row, _CLIENT)
            if request is not None:
                return facts.client_id(request)[1]
        return self._connection_client_id

    def _user(self) -> str | None:
        number = self.row.number
        return next((user for since, user in reversed(self._users) if since <= number), None)

    def _wait_max_ms(self) -> int:
        """Return how long a poll lets its broker wait, by its row or else by its body."""
        if self.row.max_wait_ms > 0:
            return self.row.max_wait_ms
        if self.request is None:
            return self.row.max_wait_ms or UNKNOWN
        return max(0, getattr(self.request, "max_wait_ms", 0))

    # ---- the frames

    @Lazily
    def frames(self) -> tuple[Frame | None, Frame | None]:
        """The request and the response as they stand in the recording."""
        row = self.row
        return self._frames.frame(row, _CLIENT), self._frames.frame(row, _BROKER)

    @property
    def request_sent(self) -> bytes | None:
        """The request as it was sent on; None if that is not known."""
        return facts.sent(self.frames[0])

    @property
    def response_sent(self) -> bytes | None:
        """The response as it was sent on (addresses rewritten); None if that is not known."""
        return facts.sent(self.frames[1])

    @property
    def response_told(self) -> bytes | None:
        """The response as the client got it, if a rule changed it; None otherwise."""
        changed = facts.is_changed_by_rule(self.row.response_flags)
        return self.response_sent if changed else None

    @property
    def broker_errors(self) -> list[str] | None:
        """The errors that the broker answered with, where a rule had the client told others; None
        otherwise."""
        if self.response_told is None or self.response is None:
            return None
        found = body_facts.errors(self.response, self.api_key, self.response_frame)
        return None if found == self.errors else found

    # ---- the bodies

    @property
    def response_version(self) -> int:
        """The version of the response's body: the request's, but 0 where a broker does not know
        that of an ApiVersions request (KIP-511); −1 if there is none."""
        row, frame = self.row, self.response_frame
        if frame is None or self.response is None:
            return -1
        return protocol.response_version(frame, row.api_key, row.api_version)

    def _opaque(self) -> bool:
        row = self.row
        if self.request is None and facts.has_body(self.request_frame, row.request_flags):
            return True
        return self.response is None and facts.has_body(self.response_frame, row.response_flags)

    @property
    def why_opaque(self) -> str:
        """Why a body could not be decoded, the request's first; "" if none is opaque."""
        both = (self.undecoded(direction) for direction in (schema.REQUEST, schema.RESPONSE))
        return next(filter(None, both), "")

    def undecoded(self, direction: str) -> str:
        """Return why the request or the response could not be decoded; "" if it could."""
        row, is_request = self.row, direction == schema.REQUEST
        frame = self.request_frame if is_request else self.response_frame
        flags = row.request_flags if is_request else row.response_flags
        kind = (row.api_key, row.api_version) if self.named else None
        return facts.why_undecoded(frame, flags, kind, is_request)

    @Lazily
    def records(self) -> TopicRecords:
        """The records that the exchange produces or fetches, decompressed, in order."""
        with self.topic_names.unpacking.of(self) as allowance:
            return topic_records.read(self.facts, self.topic_names.schemas, allowance)

    @property
    def told(self) -> Any:
        """The response as the client got it, if a rule changed it; None otherwise, and where that
        is opaque."""
        told, row = self.response_told, self.row
        return (
            None if told is None else facts.response_body(told, 0, row.api_key, row.api_version)[0]
        )

    @Lazily
    def facts(self) -> BodyFacts:
        """The facts in the bodies."""
        response, told = self.response, self.told
        found = body_facts.body_facts(self.request, response, self.topic_names, told)
        if response is None and told is None:
            errors = body_facts.errors(None, self.api_key, self.response_frame)
            return found._replace(errors=errors) if errors else found
        return found

    @Lazily
    def told_errors(self) -> list[str]:
        """`errors`, without a look into the request; most responses are not even decoded."""
        # Where `Lazily` keeps them: asked for by name, they would be made.
        if (known := self.__dict__.get("facts")) is not None:
            return known.errors
        row, frame = self.row, self.response_frame
        if self.named and frame is not None and not row.response_flags:
            codes = response_codes.reader(row.api_key, row.api_version)(frame, 0, len(frame))
            return [] if codes is None else [*map(protocol.error_name, codes.errors)]
        told = self.told
        body = self.response if told is None else told
        return body_facts.errors(body, self.api_key, self.response_frame)

    @Lazily
    def request_message(self) -> protocol.Request | None:
        """The request, header and body; None if there is none or it is opaque."""
        return facts.decoded_request(self.frames[0], self.request_frame)

    @Lazily
    def response_message(self) -> protocol.Response | None:
        """The response, header and body; None if there is none or it is opaque."""
        return facts.decoded_response(
            self.frames[1], self.response_frame, self.api_key, self.api_version
        )


FIELDS = fields_of(Exchange)
"""All fields, by name, in the order in which JSON and tables have them."""
