"""A request as it arrives at a live proxy, in the vocabulary of an exchange.

It has what filters ask of a request (`filter.Need`: connection, header, request) under the same
names as an `Exchange`, so that one filter serves both: of fault rules, which see frames (`of`), and
of `run --only`, which sees headers. The body is decoded when asked for, once.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

from kproxy.exchange import facts, topic_records
from kproxy.exchange.body_facts import BodyFacts, body_facts
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.fields import Need
from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec


@attrs.frozen(eq=False, slots=False)
class ArrivingRequest:
    """A request that was received and not forwarded yet; an attribute it does not have is None."""

    api: str | None
    """The API's name in Kafka; SASL_TOKEN for a token without a header."""
    api_key: int | None
    api_version: int | None
    correlation_id: int | None
    client_id: str | None
    request_bytes: int
    """The size of the frame with its size prefix, according to that prefix."""
    number: int
    connection: int
    node_id: int | None
    client_address: str | None
    time_ns: int
    """The time of arrival, since 1970."""
    frame: bytes = attrs.field(default=b"", repr=False)
    """The whole frame; a part of it, or nothing, where no term needs the body."""
    names: TopicNames = attrs.field(factory=TopicNames, repr=False)
    """The names of topic ids that the proxy has seen so far."""

    @classmethod
    def of(
        cls,
        frame: bytes,
        number: int,
        connection: int,
        node_id: int | None,
        client_address: str | None,
        time_ns: int,
        names: TopicNames | None = None,
    ) -> ArrivingRequest:
        """Return a request that has a header, read without decoding the body."""
        api_key, api_version, correlation_id = (
            int.from_bytes(frame[start:end], "big", signed=True)
            for start, end in ((4, 6), (6, 8), (8, 12))
        )
        return cls(
            protocol.api_name(api_key),
            api_key,
            api_version,
            correlation_id,
            facts.client_id_of(api_key, api_version, frame)[1],
            codec.SIZE_BYTES + int.from_bytes(frame[:4], "big", signed=True),
            number,
            connection,
            node_id,
            client_address,
            time_ns,
            frame,
            TopicNames() if names is None else names,
        )

    @functools.cached_property
    def request(self) -> Any:
        """The decoded body; None if it is opaque."""
        try:
            return protocol.decode_request(self.frame).body
        except ProtocolError:
            return None

    @functools.cached_property
    def facts(self) -> BodyFacts:
        """The facts in the body."""
        return body_facts(self.request, None, self.names)

    def __getattr__(self, name: str) -> Any:
        """Return a field that the body tells, as an exchange would.

        Raises: AttributeError, when no field of this name is told by requests.
        """
        field = FIELDS.get(name)
        if field is None or field.need is not Need.REQUEST:
            raise AttributeError(name)
        return field.make(self)

    @functools.cached_property
    def records(self) -> list[TopicRecord]:
        """The records that it produces, decompressed."""
        return topic_records.read(self.facts, self.names.schemas)
