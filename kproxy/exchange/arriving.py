"""A request as it arrives at a live proxy, in the vocabulary of an exchange.

It has what filters ask of a request (`filter.Need`: connection, header, request) under the same
names as an `Exchange`, so that one filter serves both. The body is decoded when asked for, once.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

from kproxy import protocol
from kproxy.exchange import facts, topic_records
from kproxy.exchange.body_facts import DecodedFacts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.topic_records import TopicRecord
from kproxy.protocol import ProtocolError, codec


@attrs.frozen(eq=False, slots=False)
class ArrivingRequest:
    """A request that was received and not forwarded yet."""

    frame: bytes = attrs.field(repr=False)
    """The whole frame, or, where no term needs the body, at least its header."""
    number: int
    connection: int
    node_id: int | None
    client_address: str | None
    time_ns: int
    """When it arrived, since 1970."""
    names: TopicNames = attrs.field(factory=TopicNames, repr=False)
    """Of topic ids, as far as the proxy has seen them."""

    @property
    def api_key(self) -> int:
        """As its header says."""
        return int.from_bytes(self.frame[4:6], "big", signed=True)

    @property
    def api_version(self) -> int:
        """As its header says."""
        return int.from_bytes(self.frame[6:8], "big", signed=True)

    @property
    def correlation_id(self) -> int:
        """As its header says."""
        return int.from_bytes(self.frame[8:12], "big", signed=True)

    @property
    def api(self) -> str:
        """The API's name in Kafka."""
        return protocol.api_name(self.api_key)

    @property
    def client_id(self) -> str | None:
        """As its header says."""
        if (self.api_key, self.api_version) == (codec.CONTROLLED_SHUTDOWN, 0):
            return None
        return facts.client_id_in(self.frame)[1]

    @property
    def request_bytes(self) -> int:
        """Its size with its size prefix, as that says."""
        return codec.SIZE_BYTES + int.from_bytes(self.frame[:4], "big", signed=True)

    @functools.cached_property
    def request(self) -> Any:
        """Its body as an attrs value; None if it is opaque."""
        try:
            return protocol.decode_request(self.frame).body
        except ProtocolError:
            return None

    @functools.cached_property
    def facts(self) -> DecodedFacts:
        """What it tells."""
        return DecodedFacts(self.request, None, self.names)

    @property
    def topics(self) -> list[str]:
        """The topics that it names, each once; an id whose name nothing tells comes as text."""
        return self.facts.topics

    @property
    def partitions(self) -> list[TopicPartition]:
        """The partitions that it names, each once."""
        return self.facts.partitions

    @property
    def groups(self) -> list[str]:
        """The ids of the groups that it names, each once."""
        return self.facts.groups

    @property
    def transactional_ids(self) -> list[str]:
        """The transactional ids that it names, each once."""
        return self.facts.transactional_ids

    @functools.cached_property
    def records(self) -> list[TopicRecord]:
        """The records that it produces, decompressed."""
        return topic_records.read(self.facts)
