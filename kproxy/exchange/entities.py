"""What an exchange is about: topics, partitions, groups, transactional ids.

The schema says which fields hold them: Kafka's definitions give string fields an entity type
(topicName, groupId, transactionalId). Three things it does not say are tables here: topic ids,
partition numbers, and names whose kind is told by a field beside them (the key of a
FindCoordinator, the resources of configs and ACLs).

Newer versions carry only the id of a topic (Fetch 13, Produce 13, …). `TopicNames` knows the names
that a recording has told: in its notes, and in responses that have both::

    topic_id note ───────────▶ TopicNames ─▶ name of an id
    Metadata and its like ───▶     └ looked into when a name is missing, not before
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from uuid import UUID

import attrs

from kproxy import protocol
from kproxy.exchange import embedded
from kproxy.exchange.entries import Frame
from kproxy.protocol import ProtocolError, schema
from kproxy.protocol.plain import parse_uuid, uuid_text
from kproxy.protocol.schema import Field
from kproxy.protocol.select import Found, Predicate, select, select_of

TOPIC = "topicName"
GROUP = "groupId"
TRANSACTIONAL_ID = "transactionalId"

_PARTITION_NAMES = frozenset({"partition", "partition_index", "partition_id"})
_PARTITIONS_NAMES = frozenset({"partitions", "partition_indexes", "partition_ids"})

_COORDINATORS = {0: GROUP, 1: TRANSACTIONAL_ID}
_CONFIG_RESOURCES = {2: TOPIC, 32: GROUP}
_ACL_RESOURCES = {2: TOPIC, 3: GROUP, 5: TRANSACTIONAL_ID}
_KIND_FIELDS = {
    "key": "key_type",
    "coordinator_keys": "key_type",
    "resource_name": "resource_type",
    "resource_name_filter": "resource_type_filter",
}
"""Field → the field beside it that says what it names."""

_UNREAD_MAX = 16
_UNOPENED_MAX = 10_000


class TopicPartition(NamedTuple):
    """One partition of a topic."""

    topic: str
    partition: int


# ── what the schema says ─────────────────────────────────────────────────────────────────────


def _is_topic_name(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.entity == TOPIC


def _is_topic_id(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.type == "uuid" and field.name == "topic_id"


def is_topic(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has the name or the id of a topic."""
    return _is_topic_name(field, beside) or _is_topic_id(field, beside)


def is_group(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has the id of a group; not all of Kafka's definitions say so."""
    return field.entity == GROUP or (field.name == "group_id" and field.type == "string")


def is_transactional_id(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has a transactional id."""
    return field.entity == TRANSACTIONAL_ID


def is_partition(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has the number of a partition, or several."""
    if field.element != "int32":
        return False
    if field.name == "index":  # Produce, FetchSnapshot
        return any(other.type == "records" or other.name == "base_offset" for other in beside)
    return field.name in (_PARTITIONS_NAMES if field.is_array else _PARTITION_NAMES)


def _is_told_by_kind(field: Field, beside: tuple[Field, ...]) -> bool:
    kind = _KIND_FIELDS.get(field.name)
    return kind is not None and any(other.name == kind for other in beside)


def is_named_topic_id(field: Field, beside: tuple[Field, ...]) -> bool:
    """Whether a field has a topic's id, and the struct its name, in the same version or another."""
    return _is_topic_id(field, beside) and any(_is_own_name(other) for other in beside)


def _is_own_name(field: Field) -> bool:
    return field.entity == TOPIC and not field.is_array


_PREDICATES = {TOPIC: is_topic, GROUP: is_group, TRANSACTIONAL_ID: is_transactional_id}


@functools.cache
def apis_with(entity: str) -> frozenset[int]:
    """The ApiKeys whose requests or responses can name such a thing, in any version."""
    return frozenset(
        key
        for key in schema.api_names()
        for direction in (schema.REQUEST, schema.RESPONSE)
        if (message := schema.message(key, direction)) is not None
        if select(message, _PREDICATES[entity]).places
        or (entity in _kinds(message.name).values() and select(message, _is_told_by_kind).places)
        or (entity == TOPIC and message.name in embedded.MESSAGES)
    )


@functools.cache
def tells_topic_ids(api_key: int, api_version: int) -> bool:
    """Whether responses of this version have topic ids together with the topics' names."""
    message = schema.message(api_key, schema.RESPONSE)
    if message is None:
        return False
    # Newer versions of Fetch and others have the id in place of the name, not beside it.
    return any(
        place.in_version(api_version)
        and any(_is_own_name(other) and api_version in other.versions for other in place.beside)
        for place in select(message, is_named_topic_id).places
    )


# ── topic ids ────────────────────────────────────────────────────────────────────────────────


NAMING = frozenset(("topic_id", "fault_rules", "fault", "session_refused"))
"""The events whose notes tell names."""


@attrs.define(eq=False)
class TopicNames:
    """The names of topic ids, and of fault rules, as far as one stream of entries has told them.

    Memory is bounded by the topics that there are: responses wait unread, but not many of them.
    """

    reads_ahead: bool = True
    """Whether `offer` reads when many responses wait; else the oldest is forgotten instead: who
    offers them on an event loop must not decode there."""
    _names: dict[UUID, str] = attrs.field(factory=dict, init=False)
    _unread: list[Frame] = attrs.field(factory=list, init=False)
    _unopened: deque[Callable[[], Frame | None]] = attrs.field(
        factory=lambda: deque(maxlen=_UNOPENED_MAX), init=False
    )
    _noted: bool = attrs.field(default=False, init=False)
    _rules: dict[int, str] = attrs.field(factory=dict[int, str], init=False)

    def __len__(self) -> int:
        """How much is kept: names, and responses that wait."""
        return len(self._names) + len(self._unread)

    def note(self, body: dict[str, Any]) -> None:
        """Take the body of a note of `NAMING`; a foreign file's may hold anything."""
        rules = body.get("rules")
        for rule in [
            {**body, "name": body.get("rule")},
            *(rules if isinstance(rules, list) else []),
        ]:
            match rule:
                case {"fault_id": int(fault_id), "name": str(name)}:
                    self._rules[fault_id] = name
                case _:
                    pass
        topic_id, topic = body.get("topic_id"), body.get("topic")
        if isinstance(topic_id, str) and isinstance(topic, str):
            try:
                self._names[parse_uuid(topic_id)] = topic
            except ValueError:
                return
            self._noted = True

    @property
    def wants_any(self) -> bool:
        """Whether responses may tell what no note does."""
        return not self._noted

    def wants(self, api_key: int, api_version: int) -> bool:
        """Whether a response may tell what no note does."""
        return not self._noted and tells_topic_ids(api_key, api_version)

    def rule(self, fault_id: int) -> str:
        """The name of a fault rule; its number where none is known."""
        return self._rules.get(fault_id, str(fault_id))

    def offer(self, response: Frame) -> None:
        """Take a whole response; it is read if a name is missed, and there are no notes."""
        if not self.wants(response.api_key, response.api_version):
            return
        self._unread.append(response)
        if len(self._unread) >= _UNREAD_MAX:
            if self.reads_ahead:
                self._read()
            else:
                del self._unread[0]

    def offer_unopened(self, opener: Callable[[], Frame | None]) -> None:
        """Take what opens a whole response that may tell names; it is opened if one is missed."""
        self._unopened.append(opener)

    def learn(self, body: Any) -> None:
        """Take the names that stand beside ids in a body."""
        found = _readers(type(body)).named_ids
        if found is None:
            return
        for _, topic_id, within in found(body):
            if topic_id.int and (name := _own_topic_name(within[-1])):
                self._names[topic_id] = name

    def name(self, topic_id: UUID) -> str | None:
        """The name of a topic, None if nothing told it."""
        if topic_id not in self._names and (self._unread or self._unopened):
            self._read()
        return self._names.get(topic_id)

    def text(self, topic_id: UUID) -> str:
        """The name of a topic; if nothing told it, its id as Kafka prints it."""
        return self.name(topic_id) or uuid_text(topic_id)

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        opened = [opener() for opener in self._unopened]
        self._unopened.clear()
        for frame in [*unread, *(frame for frame in opened if frame is not None)]:
            try:
                response = protocol.decode_response(frame.data, frame.api_key, frame.api_version)
            except ProtocolError:
                continue
            self.learn(response.body)


# ── what bodies name ─────────────────────────────────────────────────────────────────────────


def topics(bodies: Iterable[Any], names: TopicNames) -> list[str]:
    """The topics that bodies name, each once, in order of appearance.

    An id whose name nothing told comes as text. What consumers embed in JoinGroup and SyncGroup
    counts too.
    """
    found: dict[str, None] = {}
    for body in bodies:
        names.learn(body)
        for value in _named(body, TOPIC):
            if isinstance(value, UUID):
                value = names.text(value) if value.int else ""
            found[value] = None
    found.pop("", None)
    return list(found)


def names_of(bodies: Iterable[Any], entity: str) -> list[str]:
    """The groups or transactional ids (GROUP, TRANSACTIONAL_ID) that bodies name, each once."""
    found = dict.fromkeys([value for body in bodies for value in _named(body, entity)])
    found.pop("", None)
    return list(found)


def partitions(bodies: Iterable[Any], names: TopicNames) -> list[TopicPartition]:
    """The partitions that bodies name, each once, in order of appearance."""
    found: dict[TopicPartition, None] = {}
    for body in bodies:
        read = _readers(type(body)).partitions
        if read is None:
            continue
        names.learn(body)
        topic, of = "", None
        for _, partition, within in read(body):
            # Those of a topic follow each other, in structs that do not repeat its name.
            holder = within[-2] if _is_nameless(type(within[-1])) else within[-1]
            if holder is not of:
                topic, of = topic_of(within, names), holder
            if topic:
                found[TopicPartition(topic, partition)] = None
    return list(found)


def topic_of(within: tuple[Any, ...], names: TopicNames) -> str:
    """The topic that the innermost of these structs names; "" if none does."""
    for struct in reversed(within):
        name = _own_topic_name(struct)
        if name:
            return name
        topic_id = getattr(struct, "topic_id", None)
        if isinstance(topic_id, UUID) and topic_id.int:
            return names.text(topic_id)
    return ""


def partition_of(struct: Any) -> int:
    """The number of the partition that a struct is about; -1 if it has none."""
    name = _partition_field(type(struct))
    return -1 if name is None else getattr(struct, name)


@functools.cache
def _partition_field(struct: type) -> str | None:
    fields = _fields(struct)
    numbers = (field for field in fields if is_partition(field, fields) and not field.is_array)
    return next((field.name for field in numbers), None)


@attrs.frozen
class _Readers:
    """What reads the names in bodies of one class; None where there are no such."""

    named: dict[str, Callable[[Any], list[Any]]]
    """By entity."""
    told_by_kind: Callable[[Any], list[Found]] | None
    named_ids: Callable[[Any], list[Found]] | None
    partitions: Callable[[Any], list[Found]] | None
    embedded: bool


@functools.lru_cache(maxsize=1024)
def _readers(body: type) -> _Readers:
    def found(predicate: Predicate) -> Callable[[Any], list[Found]] | None:
        selection = select_of(body, predicate)
        return selection.found if selection.places else None

    chosen = {entity: select_of(body, predicate) for entity, predicate in _PREDICATES.items()}
    return _Readers(
        {entity: selection.values for entity, selection in chosen.items() if selection.places},
        found(_is_told_by_kind),
        found(is_named_topic_id),
        found(is_partition),
        body.__name__ in embedded.MESSAGES,
    )


def _named(body: Any, entity: str) -> list[Any]:
    readers = _readers(type(body))
    read = readers.named.get(entity)
    values = [] if read is None else read(body)
    if readers.told_by_kind is not None:
        for found in readers.told_by_kind(body):
            if _kind(type(body).__name__, found) == entity:
                values.append(found.value)
    if entity == TOPIC and readers.embedded:
        values += embedded.topics(body)
    return values


def _kind(message: str, found: Found) -> str | None:
    kind = getattr(found.within[-1], _KIND_FIELDS[found.path.rpartition(".")[2]])
    return _kinds(message).get(kind)


def _kinds(message: str) -> dict[int, str]:
    if message.startswith("FindCoordinator"):
        return _COORDINATORS
    return _ACL_RESOURCES if "Acls" in message else _CONFIG_RESOURCES


@functools.cache
def _fields(struct: type) -> tuple[Field, ...]:
    message, _, name = struct.__qualname__.partition(".")
    found = schema.named(message)
    return found.structs[name] if name else found.fields


@functools.cache
def _is_nameless(struct: type) -> bool:
    """Whether a struct has neither the name nor the id of a topic; a message itself may not."""
    return "." in struct.__qualname__ and not any(
        field.entity == TOPIC or field.name == "topic_id" for field in _fields(struct)
    )


@functools.cache
def _topic_name_fields(struct: type) -> tuple[str, ...]:
    return tuple(f.name for f in _fields(struct) if f.entity == TOPIC and not f.is_array)


def _own_topic_name(struct: Any) -> str:
    """The topic's name in one of a struct's own fields; "" if there is none."""
    for name in _topic_name_fields(type(struct)):
        if value := getattr(struct, name):
            return value
    return ""
