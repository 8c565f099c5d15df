"""What `kproxy stats` counts of bodies: errors, topics, records, throttling.

    Exchange ─ decoded ────────────▶ told_by ─┐
    frames ─ only what is counted ─▶ Looker ──┴─▶ Told

Of the APIs that come often nothing is decoded: `codec.locate` walks over a body by its lengths, and
what is counted is read where it lies; records are counted from the heads of their batches.

Invariant: both ways tell the same, or the second tells nothing.
"""

from __future__ import annotations

import enum
import functools
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

import attrs

from kproxy.exchange import topic_records
from kproxy.exchange.entities import TopicNames, TopicPartition, is_partition, is_topic
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.facts import is_error_code
from kproxy.protocol import ProtocolError, api_key, codec, error_name, records, schema
from kproxy.protocol.codec import Locate
from kproxy.protocol.record_batch import BATCH_HEADER, CONTROL, ENTRY_OVERHEAD
from kproxy.protocol.schema import Field
from kproxy.protocol.select import Place, select

OFTEN = frozenset(
    {"Produce", "Fetch", "ListOffsets", "OffsetCommit", "OffsetFetch", "OffsetForLeaderEpoch"}
    | {"Heartbeat", "LeaveGroup", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn"}
    | {"TxnOffsetCommit", "InitProducerId"}
)
"""APIs of which nothing is decoded: their topics stand in plain fields, by name or by id, before
what belongs to them."""

_REQUEST_HEAD = struct.Struct(">ihhih")
"""Size, API key and version, correlation id, length of the client id."""
_RESPONSE_HEAD = struct.Struct(">ii")
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PRODUCE = api_key("Produce")

Sequence = tuple[int, TopicPartition, int]
"""Of a batch of an idempotent producer: its id and epoch, to where, its base sequence."""


class Told(NamedTuple):
    """What the bodies of one exchange tell."""

    errors: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    throttled: bool = False
    records: tuple[tuple[str, int, int], ...] = ()
    """Topic, how many records, bytes of their batches."""
    sequences: tuple[Sequence, ...] = ()
    """What producers sent, to see what they send again."""


NOTHING = Told()


def told_by(exchange: Exchange) -> Told:
    """What the bodies of an exchange tell, decoded."""
    found = list(topic_records.heads(exchange.request, exchange.response, exchange.topic_names))
    sequences: Iterable[Sequence] = ()
    if exchange.api_key == _PRODUCE:
        sequences = (each for one in found for each in _sequences(one.data, one.where))
    return Told(
        tuple(exchange.errors),
        tuple(exchange.topics),
        bool(getattr(exchange.response, "throttle_time_ms", 0)),
        tuple((each.where.topic, each.count or 0, each.bytes) for each in found),
        tuple(sequences),
    )


def _sequences(data: bytes, where: TopicPartition) -> Iterator[Sequence]:
    try:
        batches = records.batches(data)
    except ProtocolError:
        return
    for batch in batches:
        if batch.producer_id >= 0 and batch.base_sequence >= 0:
            yield _producer(batch.producer_id, batch.producer_epoch), where, batch.base_sequence


def _producer(producer_id: int, producer_epoch: int) -> int:
    return producer_id << 16 | producer_epoch & 0xFFFF


# ---------------------------------------------------------------- without decoding


class _Kind(enum.Enum):
    """What a field is counted as."""

    ERROR = enum.auto()
    TOPIC_NAME = enum.auto()
    TOPIC_ID = enum.auto()
    PARTITION = enum.auto()
    RECORDS = enum.auto()
    THROTTLE = enum.auto()


_ERROR, _NAME, _ID, _PARTITION, _RECORDS, _THROTTLE = _Kind


@attrs.frozen
class _Walk:
    """How to get over the bodies of one message in one version."""

    flexible: bool
    """Whether tagged fields stand before the body."""
    locate: Locate
    kinds: tuple[_Kind | None, ...]
    """Of what is located; at last that of what only surrounds it."""


@functools.cache
def _walk(key: int, version: int, direction: str) -> _Walk:
    message = schema.message(key, direction)
    assert message is not None
    places = [place for place in select(message, _is_counted).places if place.in_version(version)]
    paths = tuple(place.path for place in places)
    flexible = version in message.flexible_versions
    kinds = (*map(_kind, places), None)
    return _Walk(flexible, codec.locate(message, version, paths), kinds)


def _is_counted(field: Field, beside: tuple[Field, ...]) -> bool:
    return (
        is_error_code(field, beside)
        or is_topic(field, beside)
        or topic_records.is_records(field, beside)
        or _is_partition_of_records(field, beside)
        or field.name == "throttle_time_ms"
    )


def _is_partition_of_records(field: Field, beside: tuple[Field, ...]) -> bool:
    return is_partition(field, beside) and any(each.type == "records" for each in beside)


def _kind(place: Place) -> _Kind:
    field = place.fields[-1]
    if is_topic(field, place.beside):
        return _ID if field.type == "uuid" else _NAME
    if field.type == "records":
        return _RECORDS
    if field.name == "throttle_time_ms":
        return _THROTTLE
    return _ERROR if is_error_code(field, place.beside) else _PARTITION


@attrs.define(eq=False)
class _Found:
    """What was found in the bodies of one exchange."""

    errors: dict[int, None] = attrs.field(factory=dict[int, None])
    topics: dict[str, None] = attrs.field(factory=dict[str, None])
    throttled: bool = False
    records: list[tuple[str, int, int]] = attrs.field(factory=list[tuple[str, int, int]])
    sequences: list[Sequence] = attrs.field(factory=list[Sequence])


@attrs.define(eq=False)
class Looker:
    """Looks into frames for what is counted; `names` are those of the recording."""

    names: TopicNames
    _by_id: dict[bytes, str] = attrs.field(factory=dict[bytes, str], init=False)

    def told(
        self, key: int, version: int, request: bytes | None, response: bytes | None
    ) -> Told | None:
        """What a request and its response tell; None where they must be decoded to know."""
        try:
            if not codec.is_known(key, version):
                return None
            found = _Found()
            if request is not None and not self._request(key, version, request, found):
                return None
            if response is not None and not self._response(key, version, response, found):
                return None
        except (ProtocolError, IndexError, struct.error):
            return None
        errors = tuple(map(error_name, found.errors)) if found.errors else ()
        topics, counted = tuple(found.topics), tuple(found.records)
        return Told(errors, topics, found.throttled, counted, tuple(found.sequences))

    def _request(self, key: int, version: int, frame: bytes, found: _Found) -> bool:
        size, own_key, own_version, _, length = _REQUEST_HEAD.unpack_from(frame)
        if (own_key, own_version, size) != (key, version, len(frame) - 4) or length < -1:
            return False
        at = _REQUEST_HEAD.size + max(0, length)
        walk = _walk(key, version, schema.REQUEST)
        if walk.flexible:
            if frame[at]:
                return False  # tagged fields in the header: nobody sends any
            at += 1
        self._look(walk, frame, at, found, key == _PRODUCE)
        return True

    def _response(self, key: int, version: int, frame: bytes, found: _Found) -> bool:
        size, _ = _RESPONSE_HEAD.unpack_from(frame)
        if size != len(frame) - 4:
            return False
        at = _RESPONSE_HEAD.size
        walk = _walk(key, version, schema.RESPONSE)
        if walk.flexible:
            if frame[at]:
                return False
            at += 1
        self._look(walk, frame, at, found, False)
        return True

    def _look(self, walk: _Walk, data: bytes, at: int, found: _Found, produced: bool) -> None:
        topic, partition_at, kinds = "", 0, walk.kinds
        for index, start, content, end in walk.locate(data, at)[0]:
            kind = kinds[index]
            if kind is _ERROR:
                if data[start] or data[start + 1]:
                    found.errors[_INT16.unpack_from(data, start)[0]] = None
            elif kind is _NAME or kind is _ID:
                named = data[content:end]
                topic = self._topic(named) if kind is _ID else _text(named)
                if topic:
                    found.topics[topic] = None
            elif kind is _PARTITION:
                partition_at = start
            elif kind is _RECORDS:
                if content < end:
                    count, sequences = _heads(data, content, end, produced)
                    found.records.append((topic, count, end - content))
                    for producer, sequence in sequences:
                        partition = _INT32.unpack_from(data, partition_at)[0]
                        where = TopicPartition(topic, partition)
                        found.sequences.append((producer, where, sequence))
            elif kind is _THROTTLE:
                found.throttled = data[start:end] != _ZERO

    def _topic(self, topic_id: bytes) -> str:
        """The name of a topic, as far as it is known."""
        name = self._by_id.get(topic_id)
        if name is None:
            parsed = UUID(bytes=topic_id)
            if not parsed.int:
                return ""
            if self.names.name(parsed) is None:
                return self.names.text(parsed)  # what comes may tell its name
            name = self._by_id[topic_id] = self.names.text(parsed)
        return name


_ZERO = bytes(4)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _heads(
    data: bytes, start: int, end: int, produced: bool
) -> tuple[int, Iterable[tuple[int, int]]]:
    """How many records there are, and of those that are produced producers and sequences."""
    if end - start >= BATCH_HEADER.size:
        head = BATCH_HEADER.unpack_from(data, start)
        if head[3] == 2 and head[1] + ENTRY_OVERHEAD == end - start:  # one batch, as nearly always
            producer_id, producer_epoch, base_sequence, count = head[9:]
            count = 0 if head[5] & CONTROL else max(0, count)
            if produced and producer_id >= 0 and base_sequence >= 0:
                return count, ((_producer(producer_id, producer_epoch), base_sequence),)
            return count, ()
    batches = data[start:end]
    found = _sequences(batches, _NOWHERE) if produced else ()
    return records.summary(batches).records or 0, [(each[0], each[2]) for each in found]


_NOWHERE = TopicPartition("", -1)
