"""Exchanges: a request and its response, paired, timed and named.

What a person reads, filters and exports. All that does not concern bodies comes from the row that
a recording has of it (`entries.ExchangeRow`)::

    row ──▶ Exchange ──▶ number, api, broker_ms, …
               └─ asked for bytes ─▶ Frame ─▶ request, response, errors, topics, records …

Invariants: frames are opened, and bodies decoded, when they are asked for, once. `pairing` makes
exchanges of a stream of frames; `recording` reads them from tables.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Protocol

import attrs

from kproxy import protocol
from kproxy.exchange import body_facts, endings, facts, timing, topic_records
from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.entries import (
    INJECTED,
    LEFT_OUT,
    NO_API,
    NO_NODE,
    NO_RESPONSE,
    RAW_SASL,
    REDACTED,
    SASL_TOKEN,
    TRUNCATED,
    ExchangeRow,
    Frame,
    Side,
)
from kproxy.exchange.lazily import Lazily
from kproxy.exchange.topic_records import TopicRecord
from kproxy.protocol import codec
from kproxy.units import moment

# A look into the enum costs as much as opening a frame does otherwise.
_CLIENT, _BROKER = Side.CLIENT, Side.BROKER


class Frames(Protocol):
    """Where the frames of exchanges are."""

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Open a frame of an exchange; None if there is none."""
        ...

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Open it, and return its bytes alone."""
        ...


@attrs.frozen(eq=False)
class Halves:
    """The frames of one exchange, as they were paired."""

    request: Frame | None
    response: Frame | None

    def frame(self, row: ExchangeRow, side: Side) -> Frame | None:
        """Return one of them."""
        return self.request if side is _CLIENT else self.response

    def data(self, row: ExchangeRow, side: Side) -> bytes | None:
        """Return the bytes of one of them."""
        frame = self.frame(row, side)
        return None if frame is None else frame.data


@attrs.frozen(eq=False, repr=False, slots=False)
class Exchange:
    """A request and what became of it.

    Its attributes are the keys of `kproxy show --json`, plus the frames. All that does not concern
    bodies comes from its `row`; frames are opened, and bodies and what is read out of them
    (`errors`, `opaque`, `request`, `response`) decoded, at first use.
    """

    row: ExchangeRow
    client_address: str | None
    _connection_client_id: str | None
    _frames: Frames
    topic_names: TopicNames
    """Of the whole stream that it comes from."""
    unanswered: endings.Unanswered | None = None
    """Of a request that ought to have been answered and was not: what it waited for."""

    def __repr__(self) -> str:
        return f"<Exchange {self.text}>"

    @property
    def text(self) -> str:
        """The line of `kproxy show`, whole."""
        from kproxy.exchange.words.line import text

        return text(self)

    # ---- what it was

    @property
    def number(self) -> int:
        """Counts requests over the whole recording, from 1."""
        return self.row.number

    @property
    def connection(self) -> int:
        """The number of its connection."""
        return self.row.connection

    @property
    def node_id(self) -> int | None:
        """The broker that the connection leads to; None on a bootstrap address."""
        return None if self.row.node_id == NO_NODE else self.row.node_id

    @Lazily
    def api(self) -> str | None:
        """The API's name in Kafka; None if not even the request's header arrived."""
        if self._has(RAW_SASL):
            return SASL_TOKEN
        return None if self.api_key is None else protocol.api_name(self.api_key)

    @Lazily
    def api_key(self) -> int | None:
        """The number of the API; None if the request has none."""
        return self.row.api_key if self._named else None

    @property
    def api_version(self) -> int | None:
        """Of the request."""
        return self.row.api_version if self._named else None

    @property
    def correlation_id(self) -> int | None:
        """Of the request."""
        return self.row.correlation_id if self._named else None

    @property
    def _named(self) -> bool:
        return self.row.api_key != NO_API and not self._has(RAW_SASL)

    @Lazily
    def client_id(self) -> str | None:
        """As the first request of its connection says, or where that is not known its own."""
        if self._connection_client_id is None and not self._has(RAW_SASL):
            request = self._frames.frame(self.row, _CLIENT)
            if request is not None:
                return facts.client_id(request)[1]
        return self._connection_client_id

    @property
    def request_bytes(self) -> int | None:
        """Size of the request with its size prefix; None if unknown."""
        return self.row.request_bytes or None

    @property
    def response_bytes(self) -> int | None:
        """Size of the response with its size prefix; None if there is none."""
        return self.row.response_bytes or None

    # ---- when

    @property
    def time_ns(self) -> int:
        """When the request arrived, since 1970."""
        row = self.row
        return row.request_received_ns or row.response_received_ns

    @Lazily
    def time(self) -> datetime:
        """When the request arrived, UTC."""
        return moment(self.time_ns)

    @property
    def broker_ns(self) -> int | None:
        """From sending the request's last byte on to the arrival of the response's."""
        row = self.row
        if not (row.request_sent_ns and row.response_bytes) or self.injected:
            return None
        return row.response_received_ns - row.request_sent_ns

    @Lazily
    def broker_ms(self) -> float | None:
        """From sending the request's last byte on to the arrival of the response's."""
        broker_ns = self.broker_ns
        return None if broker_ns is None else facts.milliseconds(broker_ns)

    @property
    def max_wait_ms(self) -> int | None:
        """How long a Fetch lets the broker wait for records; None for other requests."""
        return self.row.max_wait_ms if self.row.api_key == codec.FETCH else None

    @Lazily
    def proxy_ms(self) -> float | None:
        """How long the proxy kept the request and the response; None if it still has one."""
        row = self.row
        if row.response_bytes and not row.response_sent_ns:
            return None
        if not row.request_sent_ns:
            if not self.injected or not row.response_sent_ns:
                return None
            return facts.milliseconds(row.response_sent_ns - row.request_received_ns)
        kept_ns = row.request_sent_ns - row.request_received_ns
        if row.response_bytes:
            kept_ns += row.response_sent_ns - row.response_received_ns
        return facts.milliseconds(kept_ns)

    @property
    def queued_ns(self) -> int:
        """How long it waited, sent on, for the response to an earlier request of its connection."""
        return self.row.queued_ns

    broker_parts_us = Lazily(timing.broker_parts_us)
    queued_ms = Lazily(timing.queued_ms)
    waiting_ms = Lazily(timing.waiting_ms)
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
    def ordinary(self) -> bool:
        """Whether it is a request and its response, both understood, to which nothing happened on
        the way."""
        row = self.row
        if row.request_flags or row.response_flags or row.fault_ids:
            return False
        return self.request is not None and self.response is not None

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
        if not self.row.fault_ids:
            return []
        return [self.topic_names.rule(fault_id) for fault_id in self.row.fault_ids]

    def _has(self, flag: int) -> bool:
        return bool((self.row.request_flags | self.row.response_flags) & flag)

    # ---- the bytes

    @Lazily
    def request_frame(self) -> bytes | None:
        """The request as its client sent it, size prefix included."""
        return self._frames.data(self.row, _CLIENT)

    @Lazily
    def response_frame(self) -> bytes | None:
        """The response as its broker sent it (before addresses were rewritten)."""
        return self._frames.data(self.row, _BROKER)

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

    # ---- what they say

    @Lazily
    def request(self) -> Any:
        """The request's body as an attrs value; None if there is none or it is opaque."""
        return facts.request_body(self.request_frame, self.row.request_flags)

    @Lazily
    def response(self) -> Any:
        """The response's body as an attrs value; None if there is none or it is opaque."""
        return self._response[0]

    @property
    def response_version(self) -> int:
        """The version of the response's body: the request's, but 0 where a broker does not know
        that of an ApiVersions request (KIP-511)."""
        return self._response[1]

    @Lazily
    def _response(self) -> tuple[Any, int]:
        row = self.row
        return facts.response_body(
            self.response_frame, row.response_flags, self.api_key, self.api_version
        )

    @property
    def opaque(self) -> bool:
        """Whether it has a body that could not be decoded (unknown API or version, malformed)."""
        row = self.row
        if isinstance(self.facts, BodyFacts):
            return False
        if self.request is None and facts.has_body(self.request_frame, row.request_flags):
            return True
        return self.response is None and facts.has_body(self.response_frame, row.response_flags)

    @Lazily
    def errors(self) -> list[str]:
        """Kafka's names of the errors in the response, each once, in order of appearance."""
        return self.facts.errors

    @Lazily
    def error_messages(self) -> list[str]:
        """What the broker says of its errors, each once, in order of appearance."""
        return self.facts.error_messages

    @Lazily
    def topics(self) -> list[str]:
        """The topics that it names, each once; an id whose name nothing tells comes as text."""
        return self.facts.topics

    @Lazily
    def partitions(self) -> list[TopicPartition]:
        """The partitions that it names, each once."""
        return self.facts.partitions

    @Lazily
    def groups(self) -> list[str]:
        """The ids of the groups that it names, each once."""
        return self.facts.groups

    @Lazily
    def transactional_ids(self) -> list[str]:
        """The transactional ids that it names, each once."""
        return self.facts.transactional_ids

    @Lazily
    def records(self) -> list[TopicRecord]:
        """The records that it produces or fetches, decompressed, in order."""
        return topic_records.read(self.decoded_facts)

    @Lazily
    def facts(self) -> BodyFacts | DecodedFacts:
        """What its bodies tell; found without decoding them, where that was not done."""
        row = self.row
        if "_response" in vars(self):
            return self.decoded_facts
        kind = (row.api_key, row.api_version) if self._named else None
        frames = self.request_frame, self.response_frame
        flags = row.request_flags, row.response_flags
        return body_facts.of_frames(kind, frames, flags, self.topic_names)

    @Lazily
    def decoded_facts(self) -> DecodedFacts:
        """The same of its decoded bodies."""
        about = self.topic_names, self.api_key, self.response_frame
        return DecodedFacts(self.request, self.response, *about)

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
