"""What a cluster decides, put in: the fields of recorded requests as another cluster has them.

::

    recorded request ─ translate ─▶ the same with this cluster's ids, epochs, offsets; renamed
    recorded and new response ─ learn ─▶ maps: recorded → new

Fields are found by the schema (`select`): a new API is understood without a line of its own. Each
kind of field is one entry of `_KINDS`: how it is found, and what is put in. What a cluster decides
of a partition, a producer or a member is keyed by the recorded name of that.

Invariant: what no pair of responses has told stays as it was recorded.
"""

from __future__ import annotations

import bisect
import functools
import operator
import re
import struct
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import attrs

from kproxy.exchange import embedded, meanings
from kproxy.exchange.entities import TopicNames, partition_of, topic_of
from kproxy.exchange.meanings import GROUP, PREDICATES, RECORDS, TOPIC, TRANSACTIONAL_ID
from kproxy.wire.payloads import internal
from kproxy.wire.protocol import ProtocolError, codec, consumer_protocol, schema
from kproxy.wire.protocol.record_batch import BATCH_HEADER, entries
from kproxy.wire.protocol.schema import NO_UUID, Field
from kproxy.wire.protocol.select import Predicate, select_of

Where = tuple[str, int]
"""A topic and a partition, as they were recorded."""

_INTERNAL = internal.TOPICS | {"__cluster_metadata", "__remote_log_metadata"}
_GENERATIONS = frozenset(("generation_id", "member_epoch", "generation_id_or_member_epoch"))
_LEADER_EPOCHS = "leader_epoch", "last_fetched_epoch"
_NOT_READ = frozenset(("log_start_offset", "high_watermark"))
_COMMITTED_MAX = 1000
_ANCHOR = re.compile(r"(\\.|\[\^?\]?(?:\\.|[^]\\])*\])|\^", re.DOTALL)
"""A `^`, or an escape or a class, in which it is none."""
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT, _CRC_AT, _CHECKED_AT = 43, 17, 21


@attrs.frozen
class Renaming:
    """The names that are sent instead of the recorded ones."""

    topic_prefix: str = ""
    group_prefix: str = ""
    """Of groups and transactional ids."""
    suffix: str = ""
    """Of groups, transactional ids and client ids: each copy of a conversation has its own."""

    def topic(self, name: str) -> str:
        """Return the name of a topic."""
        return name if not name or name in _INTERNAL else self.topic_prefix + name

    def group(self, name: str) -> str:
        """Return the name of a group, or a transactional id."""
        return f"{self.group_prefix}{name}{self.suffix}" if name else name


_Spans = list[tuple[int, int, int]]
"""First offset, the other one for it, how many there are; in their order."""
_first = operator.itemgetter(0)


@attrs.define(eq=False)
class Offsets:
    """The offsets of a partition: recorded → new. Those of produced records are known. Others are
    as far behind the last one that is known before them, or behind all that was produced."""

    produced_to: int = 0
    """The recorded offset behind all that was produced."""
    end: int = 0
    """The new one."""
    _spans: _Spans = attrs.field(factory=list, init=False)
    _back: _Spans = attrs.field(factory=list, init=False)
    """New → recorded."""
    _committed: dict[int, int] = attrs.field(factory=dict, init=False)

    def __call__(self, offset: int) -> int:
        """Return the new offset for a recorded one; negative ones have a meaning of their own."""
        if offset < 0 or not self._spans:
            return offset
        at = max(0, bisect.bisect_right(self._spans, offset, key=_first) - 1)
        recorded, new, count = self._spans[at]
        if count and offset >= self.produced_to:
            recorded, new = self.produced_to, self.end
        return max(0, offset + new - recorded)

    def committed(self, offset: int) -> int:
        """Return the new offset for one that is committed, the same each time: what is produced
        meanwhile may come to be before it."""
        new = self._committed.setdefault(offset, self(offset))
        if len(self._committed) > _COMMITTED_MAX:
            del self._committed[next(iter(self._committed))]
        return new

    def is_known(self, offset: int) -> bool:
        """Return whether this was produced, and where is known."""
        return _holds(self._spans, offset)

    def is_taken(self, new: int) -> bool:
        """Return whether a new offset is that of a record which was produced."""
        return _holds(self._back, new)

    def learn(self, recorded: int, new: int, count: int = 0) -> None:
        """Learn that a recorded offset is another one now, of so many records if they were
        produced."""
        _put(self._spans, recorded, new, count)
        if count:
            _put(self._back, new, recorded, count)
            self.produced_to = max(self.produced_to, recorded + count)
            self.end = max(self.end, new + count)


def _holds(spans: _Spans, offset: int) -> bool:
    at = bisect.bisect_right(spans, offset, key=_first) - 1
    return at >= 0 and offset < spans[at][0] + spans[at][2]


def _put(spans: _Spans, first: int, other: int, count: int) -> None:
    at = bisect.bisect_left(spans, first, key=_first)
    end = bisect.bisect_left(spans, first + max(1, count), at, key=_first)
    if at and (before := spans[at - 1]) == (first - before[2], other - before[2], before[2]):
        at, first, other, count = at - 1, before[0], before[1], before[2] + count
    spans[at:end] = [(first, other, count)]


@attrs.define(eq=False)
class Substitution:
    """The maps of one conversation."""

    renaming: Renaming = attrs.field(factory=Renaming)
    topic_ids: dict[str, uuid.UUID] = attrs.field(factory=dict)
    """The ids of topics, by their new names: those of the cluster, shared by all."""
    offsets: dict[Where, Offsets] = attrs.field(factory=dict, init=False)
    _producers: dict[int, dict[int, tuple[int, int]]] = attrs.field(factory=dict, init=False)
    """Recorded producer id → recorded epoch → id and epoch, the last one last."""
    _members: dict[str, str] = attrs.field(factory=dict, init=False)
    _generations: dict[tuple[str, int], int] = attrs.field(factory=dict, init=False)
    """By recorded member and generation, or epoch of KIP-848; the last one of a member by −1."""

    def translate(self, body: Any, names: TopicNames) -> None:
        """Change a decoded body to what this cluster and the renaming have. `names` are those of
        the recording's topic ids."""
        changes: dict[tuple[int, str], tuple[Any, str, list[Any]]] = {}
        functions = _functions(type(body))
        for path, value, within in select_of(type(body), _is_put_in).found(body):
            inner, name = within[-1], path.rpartition(".")[2]
            change = changes.setdefault((id(inner), name), (inner, name, []))
            change[2].append(functions[path](self, value, within, names))
        for inner, name, values in changes.values():
            several = isinstance(getattr(inner, name), list)
            setattr(inner, name, values if several else values[0])
        for inner, place in _topic_ids(body):
            self._complete(inner, place, names)
        self._rename_embedded(body)

    def topics(self, body: Any, names: TopicNames) -> set[str]:
        """Return the topics in a recorded body, by the names that are sent."""
        found = set(select_of(type(body), _is_topic_name).values(body))
        found |= {
            names.name(getattr(inner, each.id_field)) or "" for inner, each in _topic_ids(body)
        }
        return {self.renaming.topic(each) for each in found if each}

    def _complete(self, inner: Any, place: _IdPlace, names: TopicNames) -> None:
        """Put in the id of a topic; and where a version has either the name or the id, both: the
        version that is sent may be another."""
        topic_id = getattr(inner, place.id_field)
        name = getattr(inner, place.name_field) if place.name_field else ""
        if topic_id != NO_UUID:
            recorded = names.name(topic_id)
            name = self.renaming.topic(recorded) if recorded else ""
            if place.either or (name and place.name_field and name not in self.topic_ids):
                setattr(inner, place.name_field, name)
        if name and (place.either or topic_id != NO_UUID):
            setattr(inner, place.id_field, self.topic_ids.get(name, NO_UUID))

    def _rename_embedded(self, body: Any) -> None:
        """Rename the topics in subscriptions and assignments."""
        if not self.renaming.topic_prefix or type(body).__name__ not in embedded.MESSAGES:
            return
        for inner, _, field, kind in embedded.places(body, {}):
            data = getattr(inner, field)
            found, undecoded = consumer_protocol.read(kind, data)
            if found is None or undecoded:
                continue
            rename = self.renaming.topic
            if kind == embedded.SUBSCRIPTION:
                found.topics = [rename(each) for each in found.topics]
                owned = found.owned_partitions
            else:
                owned = found.assigned_partitions
            for each in owned:
                each.topic = rename(each.topic)
            version = min(int.from_bytes(data[:2], "big"), schema.named(kind).versions[-1])
            parts = [data[:2]]
            codec.encoder(schema.named(kind), version)(found, parts.append)
            setattr(inner, field, b"".join(parts))

    # ---- what is put in, by kind

    def _topic(self, value: str, within: tuple[Any, ...], names: TopicNames) -> str:
        return self.renaming.topic(value)

    def _regex(self, value: str, within: tuple[Any, ...], names: TopicNames) -> str:
        """A regular expression (RE2) that whole names match: `^` would not hold behind a prefix."""
        prefix = self.renaming.topic_prefix
        if not value or not prefix:
            return value
        unanchored = _ANCHOR.sub(r"\1", value)
        return f"{re.escape(prefix)}(?:{unanchored})"

    def _group(self, value: str, within: tuple[Any, ...], names: TopicNames) -> str:
        return self.renaming.group(value)

    def _keyed(self, value: str, within: tuple[Any, ...], names: TopicNames) -> str:
        """A name whose kind stands beside it."""
        kinds = meanings.meanings_by_kind(type(within[0]).__name__)
        for struct_ in reversed(within):
            for each in set(meanings.KIND_FIELDS.values()):
                if (kind := getattr(struct_, each, None)) is not None:
                    found = kinds.get(kind)
                    if found is TOPIC:
                        return self.renaming.topic(value)
                    return self.renaming.group(value) if found else value
        return value

    def _producer_id(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        return self.producer(value, -1)[0]

    def _producer_epoch(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        struct_ = within[-1]
        fields = (each for each in type(struct_).__slots__ if each.endswith("producer_id"))
        producer_id = next((getattr(struct_, each) for each in fields), -1)
        return self.producer(producer_id, value)[1]

    def producer(self, producer_id: int, epoch: int) -> tuple[int, int]:
        """Return the id and the epoch of a recorded producer."""
        epochs = self._producers.get(producer_id)
        if epochs is None:
            return producer_id, epoch
        if epoch in epochs:
            return epochs[epoch]
        recorded, (new_id, new_epoch) = next(reversed(epochs.items()))
        return new_id, max(0, new_epoch + epoch - recorded)

    def _member(self, value: str, within: tuple[Any, ...], names: TopicNames) -> str:
        return self._members.get(value, value)

    def _generation(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        member = getattr(within[-1], "member_id", "")
        if value <= 0:
            return value  # none, or a member of KIP-848 that comes or leaves
        newest = self._generations.get((member, -1), value)
        return self._generations.get((member, value), newest)

    def _offset(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        known = self.offsets.get((topic_of(within, names), partition_of(within[-1])))
        return value if known is None else known(value)

    def _committed(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        where = topic_of(within, names), partition_of(within[-1])
        return self.offsets.setdefault(where, Offsets()).committed(value)

    def _leader_epoch(self, value: int, within: tuple[Any, ...], names: TopicNames) -> int:
        return -1  # not known: the broker does not check it then

    def _records(self, value: bytes, within: tuple[Any, ...], names: TopicNames) -> bytes:
        """Put the producer into the batches of an idempotent producer, and their checksum."""
        from crc32c import crc32c

        data: bytearray | None = None
        for start, end, magic in _batches(value):
            if magic != 2 or end - start < BATCH_HEADER.size:
                continue
            recorded = _PRODUCER.unpack_from(value, start + _PRODUCER_AT)
            new = self.producer(*recorded)
            if new == recorded:
                continue
            data = bytearray(value) if data is None else data
            _PRODUCER.pack_into(data, start + _PRODUCER_AT, *new)
            with memoryview(data) as view:
                crc = crc32c(view[start + _CHECKED_AT : end])
            data[start + _CRC_AT : start + _CHECKED_AT] = crc.to_bytes(4, "big")
        return value if data is None else bytes(data)

    # ---- what pairs of responses tell

    def learn(self, request: Any, recorded: Any, sent: Any, new: Any, names: TopicNames) -> None:
        """Learn from the recorded request and response, the request that was sent, and the
        response to it."""
        if getattr(recorded, "producer_id", -1) >= 0:
            found = getattr(new, "producer_id", -1), getattr(new, "producer_epoch", -1)
            if found[0] < 0:  # an older version of EndTxn: the producer stays as it is
                found = getattr(sent, "producer_id", -1), getattr(sent, "producer_epoch", -1)
            if found[0] >= 0:
                epochs = self._producers.setdefault(recorded.producer_id, {})
                epochs.pop(recorded.producer_epoch, None)
                epochs[recorded.producer_epoch] = found
        member = getattr(recorded, "member_id", None) or getattr(request, "member_id", None)
        if member and hasattr(recorded, "member_id"):
            given = getattr(new, "member_id", None) or getattr(sent, "member_id", None)
            if given:
                self._members[member] = given
            for name in _GENERATIONS:
                pair = getattr(recorded, name, 0), getattr(new, name, 0)
                if min(pair) > 0:
                    self._generations[member, pair[0]] = pair[1]
                    self._generations[member, -1] = pair[1]

    def learn_offset(self, where: Where, recorded: int, new: int, produced: int = 0) -> None:
        """Learn an offset of a partition; of a Produce it is the first of so many records."""
        if recorded >= 0 and new >= 0:
            known = self.offsets.setdefault(where, Offsets())
            if produced or recorded >= known.produced_to:
                known.learn(recorded, new, produced)


def _batches(data: bytes) -> list[tuple[int, int, int]]:
    """Return where the batches are; none where one cannot be."""
    try:
        return list(entries(data))
    except ProtocolError:
        return []


def _is_topic_name(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.entity == "topicName"


_Put = Callable[[Substitution, Any, tuple[Any, ...], TopicNames], Any]
_KINDS: tuple[tuple[Predicate, _Put], ...] = (
    (_is_topic_name, Substitution._topic),
    (
        lambda field, _: field.name.endswith("topic_regex") and field.type.endswith("string"),
        Substitution._regex,
    ),
    (PREDICATES[GROUP], Substitution._group),
    (PREDICATES[TRANSACTIONAL_ID], Substitution._group),
    (meanings.has_kind_field, Substitution._keyed),
    (lambda field, _: field.name.endswith("producer_id"), Substitution._producer_id),
    (lambda field, _: field.name.endswith("producer_epoch"), Substitution._producer_epoch),
    (lambda field, _: field.name == "member_id", Substitution._member),
    (lambda field, _: field.name in _GENERATIONS, Substitution._generation),
    (lambda field, _: field.name.endswith(_LEADER_EPOCHS), Substitution._leader_epoch),
    (lambda field, _: field.name == "committed_offset", Substitution._committed),
    (
        lambda field, _: field.name.endswith("offset") and field.name not in _NOT_READ,
        Substitution._offset,
    ),
    (PREDICATES[RECORDS], Substitution._records),
)
"""How a kind of field is found → what is put in."""


def _function(field: Field, beside: tuple[Field, ...]) -> _Put | None:
    return next((put for is_kind, put in _KINDS if is_kind(field, beside)), None)


def _is_put_in(field: Field, beside: tuple[Field, ...]) -> bool:
    return _function(field, beside) is not None


@functools.cache
def _functions(body: type) -> dict[str, Any]:
    """Return what is put in, by the path of a field."""
    places = select_of(body, _is_put_in).places
    return {place.path: _function(place.fields[-1], place.beside) for place in places}


def name_topics(body: Any, names: TopicNames) -> None:
    """Put the names of topics where a version has their ids instead."""
    for inner, place in _topic_ids(body):
        if place.either and not getattr(inner, place.name_field):
            setattr(inner, place.name_field, names.name(getattr(inner, place.id_field)) or "")


class _IdPlace(NamedTuple):
    """A field with the id of a topic."""

    id_field: str
    name_field: str
    """The field beside it with the name; "" if there is none."""
    either: bool
    """No version has both."""


def _has_topic_id(field: Field, beside: tuple[Field, ...]) -> bool:
    return meanings.is_topic_id(field)


@functools.cache
def _id_places(body: type) -> dict[str, _IdPlace]:
    found: dict[str, _IdPlace] = {}
    for place in select_of(body, _has_topic_id).places:
        topic_id = place.fields[-1]
        name = next(filter(meanings.is_own_topic_name, place.beside), None)
        either = name is not None and not {*name.versions} & {*topic_id.versions}
        found[place.path] = _IdPlace(topic_id.name, name.name if name else "", either)
    return found


def _topic_ids(body: Any) -> list[tuple[Any, _IdPlace]]:
    """Return the structs in a body that have the id of a topic, and where."""
    places = _id_places(type(body))
    found = select_of(type(body), _has_topic_id).found(body) if places else ()
    return [(within[-1], places[path]) for path, _, within in found]
