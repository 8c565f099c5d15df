"""The same asked again: the requests in which a client asks once more for what it did not get.

::

    request ─▶ parts ─▶ place → identities      orders[0] → producer id 5, epoch 0, sequence 16
    later request of the same client ─▶ parts ─┘ has them all? Then it asks the same again

A later request of the same API is no second attempt: it may be about another partition, another
batch, another member. What identifies each part of a request is in one table, `_PARTS`; requests of
other APIs ask the same if their bodies are equal.

Invariant: two requests are said to ask the same only if all that identifies a part is equal, and
nothing between them makes the second one another (a transaction that has ended meanwhile).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import Any

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import CarriedBatches
from kproxy.exchange.words.failures import NO_PARTITION, WHOLE
from kproxy.why.sentences import host_of

GIVES_ID = "MEMBER_ID_REQUIRED"
"""The error that gives a new member its id."""

Parts = dict[TopicPartition, set[Hashable]]
_Part = tuple[TopicPartition, Hashable]


def is_comparable(exchange: Exchange) -> bool:
    """Return whether the recording shows what an exchange asks for: secrets are blanked out."""
    return exchange.request is not None and not exchange.redacted


def parts(
    exchange: Exchange, by_records: bool = False, places: Container[TopicPartition] | None = None
) -> Parts:
    """Return what identifies each part of a request, of some places or of all. With `by_records`,
    batches are identified by their records, even those that an idempotent producer has numbered."""
    if exchange.request is None:
        return {}
    if exchange.api == "Produce":
        pairs = _batches(exchange, by_records, places)
    else:
        pairs = _PARTS.get(exchange.api or "", _body)(exchange)
    found: Parts = {}
    for place, identity in pairs:
        found.setdefault(place, set()).add(identity)
    return found


def is_numbered(exchange: Exchange) -> bool:
    """Return whether a request carries batches of an idempotent producer."""
    return any(topic_records.batch_heads(each).sequences for each in exchange.facts.records)


def wanted(exchange: Exchange, by_records: bool = False) -> Parts:
    """Return what identifies the parts of a request when they are asked for again: a new member
    that was given its id joins with that."""
    request, response = exchange.request, exchange.response
    if exchange.api == "JoinGroup" and response is not None and GIVES_ID in exchange.errors:
        return {WHOLE: {(request.group_id, response.member_id, request.group_instance_id)}}
    return parts(exchange, by_records)


def asked_for(found: Parts, places: Iterable[TopicPartition]) -> Parts:
    """Return the parts at these places; all of them if a place concerns the whole request."""
    wanted = set(places)
    if WHOLE in wanted or set(found) == {WHOLE}:
        return found
    topics = {TopicPartition(each.topic, NO_PARTITION) for each in wanted}
    return {place: each for place, each in found.items() if place in wanted | topics}


def asks_for(exchange: Exchange, wanted: Parts, by_records: bool = False) -> bool:
    """Return whether a request asks for all of these parts."""
    found = parts(exchange, by_records, wanted)
    return all(each <= found.get(place, set()) for place, each in wanted.items())


def fetch_session(body: Any) -> int:
    """Return the fetch session of a request or a response (KIP-227); 0 if there is none."""
    return getattr(body, "session_id", 0) or 0


def mentions(fetch: Exchange, place: TopicPartition) -> bool:
    """Return whether a Fetch in a session changes what is fetched of a partition."""
    forgotten = _partitions(topics="forgotten_topics_data")(fetch)
    return place in parts(fetch) or any(each == place for each, _ in forgotten)


def same_client(one: Exchange, other: Exchange) -> bool:
    """Return whether two exchanges are of one client, or of two on one host with one client id."""
    if one.connection == other.connection:
        return True
    return one.client_id == other.client_id and host_of(one) == host_of(other)


def is_anonymous(exchange: Exchange) -> bool:
    """Return whether nothing in a request tells its sender from others of the same client id: then
    only its connection does."""
    request = exchange.request
    if exchange.api == "JoinGroup":
        named = request.member_id or request.group_instance_id
        return not named and GIVES_ID not in exchange.errors
    return exchange.api == "InitProducerId" and not request.transactional_id


def separates(between: Exchange, first: Exchange) -> bool:
    """Return whether a request that looks like `first` after `between` is about something else."""
    if between.api not in _SEPARATED_BY.get(first.api or "", ()):
        return False
    return set(between.transactional_ids) == set(first.transactional_ids)


_BEGINS = ("AddPartitionsToTxn", "AddOffsetsToTxn", "InitProducerId")
_ENDS = ("EndTxn", "InitProducerId")
_SEPARATED_BY = {
    "EndTxn": _BEGINS,
    "AddPartitionsToTxn": _ENDS,
    "AddOffsetsToTxn": _ENDS,
    "TxnOffsetCommit": _ENDS,
}
"""API → the requests of a transactional id that end one transaction, or begin the next."""


# ── what identifies a part ───────────────────────────────────────────────────────────────────


def _batches(
    exchange: Exchange, by_records: bool, places: Container[TopicPartition] | None
) -> Iterator[_Part]:
    for each in exchange.facts.records:
        if places is not None and each.where not in places:
            continue
        sequences = () if by_records else topic_records.batch_heads(each).sequences
        if sequences:
            yield from ((each.where, numbers) for numbers in sequences)
        else:
            yield from ((each.where, identity) for identity in record_identities(each))


def record_identities(found: Records) -> Iterator[Hashable]:
    """Yield what identifies each record of a partition, whatever batch it is in."""
    carried = CarriedBatches(found.where, found.data, found.produced, None, ())
    allowance = topic_records.allowance_of([carried])
    for each in topic_records.read_batches(carried, allowance):
        yield each.timestamp, each.key, each.value, each.headers


def _partitions(*fields: str, topics: str = "topics", inner: str = "partitions") -> Any:
    """Return the finder for requests that list partitions by topic; `fields` belong to each."""

    def find(exchange: Exchange) -> Iterator[_Part]:
        for topic in getattr(exchange.request, topics) or ():
            for each in getattr(topic, inner) or ():
                number = each if isinstance(each, int) else _number(each)
                values = tuple(getattr(each, field) for field in fields)
                yield TopicPartition(_topic(exchange, topic), number), values

    return find


def _number(partition: Any) -> int:
    number = getattr(partition, "partition_index", None)
    return partition.partition if number is None else number


def _topic(exchange: Exchange, topic: Any) -> str:
    name = getattr(topic, "name", None) or getattr(topic, "topic", None)
    return name or exchange.topic_names.text(topic.topic_id)


def _with(find: Callable[[Exchange], Iterator[_Part]], *fields: str) -> Any:
    """Return a finder whose parts are identified by fields of the whole request, too."""

    def found(exchange: Exchange) -> Iterator[_Part]:
        common = tuple(getattr(exchange.request, field) for field in fields)
        yield from ((place, (common, identity)) for place, identity in find(exchange))

    return found


def _fields(*fields: str) -> Any:
    """Return the finder for requests that are identified as a whole by some of their fields."""

    def find(exchange: Exchange) -> Iterator[_Part]:
        yield WHOLE, tuple(getattr(exchange.request, field) for field in fields)

    return find


def _topics(exchange: Exchange) -> Iterator[_Part]:
    topics = exchange.request.topics
    if topics is None:
        yield WHOLE, "all topics"
    for each in topics or ():
        yield TopicPartition(_topic(exchange, each), NO_PARTITION), "topic"


def _coordinator(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    for key in request.coordinator_keys or [request.key]:
        yield WHOLE, (request.key_type, key)


def _offsets(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    for group in request.groups or [request]:
        for topic in group.topics or ():
            for number in topic.partition_indexes:
                yield TopicPartition(_topic(exchange, topic), number), group.group_id
        if group.topics is None:
            yield WHOLE, group.group_id


def _added(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    whose = (
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
    )
    for topic in request.v3_and_below_topics or ():
        for number in topic.partitions:
            yield TopicPartition(topic.name, number), whose
    if not request.v3_and_below_topics:
        yield from _body(exchange)


def _body(exchange: Exchange) -> Iterator[_Part]:
    yield WHOLE, repr(exchange.request)


_MEMBER = ("group_id", "generation_id", "member_id")
_PRODUCER = ("transactional_id", "producer_id", "producer_epoch")

_PARTS: dict[str, Callable[[Exchange], Iterator[_Part]]] = {
    "Fetch": _partitions("fetch_offset"),
    "ListOffsets": _partitions("timestamp"),
    "OffsetForLeaderEpoch": _partitions("leader_epoch"),
    "Metadata": _topics,
    "FindCoordinator": _coordinator,
    "JoinGroup": _fields("group_id", "member_id", "group_instance_id"),
    "SyncGroup": _fields(*_MEMBER),
    "Heartbeat": _fields(*_MEMBER),
    "ConsumerGroupHeartbeat": _fields("group_id", "member_id", "member_epoch"),
    "OffsetCommit": _with(
        _partitions("committed_offset"), "group_id", "generation_id_or_member_epoch", "member_id"
    ),
    "OffsetFetch": _offsets,
    "InitProducerId": _fields(*_PRODUCER),
    "AddPartitionsToTxn": _added,
    "AddOffsetsToTxn": _fields(*_PRODUCER, "group_id"),
    "TxnOffsetCommit": _with(_partitions("committed_offset"), *_PRODUCER, "group_id"),
    "EndTxn": _fields(*_PRODUCER, "committed"),
    "CreateTopics": _topics,
    "SaslHandshake": _fields("mechanism"),
    "ApiVersions": _fields(),
}
"""API → its parts; of Produce they are `_batches`."""
