"""What a request asks for, part by part: by this a second attempt is known from another request.

::

    request ─▶ parts ─▶ place → identities      orders[0] → producer id 5, epoch 0, sequence 16
    later request of the same client ─▶ parts ─┘ shares some? Then it asks the same again

A later request of the same API is no second attempt: it may be about another partition, another
batch, another member. What identifies a part is in tables, `_FIELDS` and `_PARTS`; requests of
other APIs ask the same if their bodies are equal. Clients put records into other batches when they
send them again: without sequence numbers, each record is identified by its timestamp, key, value
and headers.

Invariant: identities are hashes, so that no contents of records are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition, partition_of
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import CarriedBatches
from kproxy.exchange.words.failures import NO_PARTITION, WHOLE
from kproxy.history.coordinator_events import topic_of

GIVES_ID = "MEMBER_ID_REQUIRED"
"""The error that gives a new member its id."""

Parts = dict[TopicPartition, set[int]]
"""Place → what identifies what is asked of it."""
_Part = tuple[TopicPartition, Hashable]


_NOTHING: Parts = {}


class Asked(NamedTuple):
    """What a request asks for."""

    parts: Parts
    """Of an idempotent producer by sequence numbers."""
    by_records: Parts = _NOTHING
    """Of an idempotent producer by records: if its epoch is raised, it numbers them anew."""
    producers: frozenset[tuple[int, int]] = frozenset()
    """Ids and epochs of idempotent producers."""

    def at(self, place: TopicPartition) -> Asked:
        """Return what it asks for at one place."""
        parts, by_records = (
            {place: each[place]} if place in each else {} for each in (self.parts, self.by_records)
        )
        return Asked(parts, by_records, self.producers)


def asked(exchange: Exchange, places: Container[TopicPartition] | None = None) -> Asked | None:
    """Return what a request asks for, of some places or of all; None if that is not known: secrets
    are blanked out."""
    if exchange.request is None or exchange.redacted:
        return None
    if exchange.api != "Produce":
        return Asked(_hashed(_parts(exchange)))
    carried = [each for each in exchange.facts.records if places is None or each.where in places]
    records = _hashed((each.where, one) for each in carried for one in record_identities(each))
    numbers = [(each.where, topic_records.batch_heads(each).sequences) for each in carried]
    numbered = _hashed((where, one) for where, sequences in numbers for one in sequences)
    if not numbered:
        return Asked(records)
    producers = frozenset(one[:2] for _, sequences in numbers for one in sequences)
    return Asked(records | numbered, records, producers)


def wanted(exchange: Exchange) -> Asked | None:
    """Return what a later request asks for that asks the same: a new member that was given its id
    joins with that."""
    request, response = exchange.request, exchange.response
    if exchange.api == "JoinGroup" and response is not None and GIVES_ID in exchange.errors:
        member = request.group_id, response.member_id, request.group_instance_id
        return Asked(_hashed([(WHOLE, member)]))
    return asked(exchange)


def _hashed(pairs: Iterable[_Part]) -> Parts:
    found: Parts = {}
    for place, identity in pairs:
        found.setdefault(place, set()).add(hash(identity))
    return found


def asked_at(found: Parts, places: Iterable[TopicPartition]) -> Parts:
    """Return the parts at these places; all of them if a place concerns the whole request."""
    wanted = set(places)
    if WHOLE in wanted or set(found) == {WHOLE}:
        return found
    topics = {TopicPartition(each.topic, NO_PARTITION) for each in wanted}
    return {place: each for place, each in found.items() if place in wanted | topics}


def fetch_session(body: Any) -> int:
    """Return the fetch session of a request or a response (KIP-227); 0 if there is none."""
    return getattr(body, "session_id", 0) or 0


def mentions(fetch: Exchange, place: TopicPartition) -> bool:
    """Return whether a Fetch in a session changes what is fetched of a partition."""
    forgotten = getattr(fetch.request, "forgotten_topics_data", None)
    changed = (fetch.request.topics, forgotten)
    return any(where == place for each in changed for where, _ in _listed(fetch, each))


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


def record_identities(found: Records) -> Iterator[Hashable]:
    """Yield what identifies each record of a partition, whatever batch it is in."""
    carried = CarriedBatches(found.where, found.data, found.produced, None, ())
    allowance = topic_records.allowance_of([carried])
    for each in topic_records.read_batches(carried, allowance):
        yield each.timestamp, each.key, each.value, each.headers


def _parts(exchange: Exchange) -> Iterator[_Part]:
    api = exchange.api or ""
    if api in _FIELDS:
        return _by_fields(exchange, *_FIELDS[api])
    return _PARTS[api](exchange) if api in _PARTS else iter([(WHOLE, repr(exchange.request))])


def _by_fields(exchange: Exchange, whole: str, each: str | None) -> Iterator[_Part]:
    """Yield each partition that a request lists, by fields of the request and of the partition;
    without such fields, the request."""
    request = exchange.request
    common = tuple(getattr(request, name) for name in whole.split())
    if each is None:
        yield WHOLE, common
    else:
        for where, one in _listed(exchange, request.topics):
            yield where, (common, tuple(getattr(one, name) for name in each.split()))


def _listed(exchange: Exchange, topics: Any, inner: str = "partitions") -> Iterator[_Part]:
    """Yield the partitions that are listed by topic, and their structs."""
    for topic in topics or ():
        for each in getattr(topic, inner) or ():
            number = each if isinstance(each, int) else partition_of(each)
            yield TopicPartition(topic_of(topic, exchange), number), each


def _topics(exchange: Exchange) -> Iterator[_Part]:
    topics = exchange.request.topics
    if topics is None:
        yield WHOLE, "all topics"
    for each in topics or ():
        yield TopicPartition(topic_of(each, exchange), NO_PARTITION), "topic"


def _coordinator(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    for key in request.coordinator_keys or [request.key]:
        yield WHOLE, (request.key_type, key)


def _offsets(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    for group in request.groups or [request]:
        for where, _ in _listed(exchange, group.topics, "partition_indexes"):
            yield where, group.group_id
        if group.topics is None:
            yield WHOLE, group.group_id


def _added(exchange: Exchange) -> Iterator[_Part]:
    request = exchange.request
    for where, _ in _listed(exchange, request.v3_and_below_topics):
        producer = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        yield where, (request.v3_and_below_transactional_id, producer)
    if not request.v3_and_below_topics:
        yield WHOLE, repr(request)


_MEMBER = "group_id generation_id member_id"
_PRODUCER = "transactional_id producer_id producer_epoch"

_FIELDS: dict[str, tuple[str, str | None]] = {
    "Fetch": ("", "fetch_offset"),
    "ListOffsets": ("", "timestamp"),
    "OffsetForLeaderEpoch": ("", "leader_epoch"),
    "JoinGroup": ("group_id member_id group_instance_id", None),
    "SyncGroup": (_MEMBER, None),
    "Heartbeat": (_MEMBER, None),
    "ConsumerGroupHeartbeat": ("group_id member_id member_epoch", None),
    "OffsetCommit": ("group_id generation_id_or_member_epoch member_id", "committed_offset"),
    "InitProducerId": (_PRODUCER, None),
    "AddOffsetsToTxn": (f"{_PRODUCER} group_id", None),
    "TxnOffsetCommit": (f"{_PRODUCER} group_id", "committed_offset"),
    "EndTxn": (f"{_PRODUCER} committed", None),
    "SaslHandshake": ("mechanism", None),
    "ApiVersions": ("", None),
}
"""API → the fields that identify a request, and those of each partition, if it lists some."""
_PARTS: dict[str, Callable[[Exchange], Iterator[_Part]]] = {
    "Metadata": _topics,
    "FindCoordinator": _coordinator,
    "OffsetFetch": _offsets,
    "AddPartitionsToTxn": _added,
    "CreateTopics": _topics,
}
"""API → its parts, where fields do not tell them; of Produce they are records."""
