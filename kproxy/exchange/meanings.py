"""The meanings of the fields of Kafka's definitions: one table of predicates.

    Meaning ─▶ PREDICATES ─▶ select(message, predicate) ─▶ where fields of that meaning are

Kafka's definitions give string fields an entity type (topicName, groupId, transactionalId). What
they do not say is told by names and types here: error codes, topic ids, numbers of partitions, and
names whose kind stands in a field beside them (the key of a FindCoordinator, the resources of
configs and ACLs). New APIs are understood without a line of their own.
"""

from __future__ import annotations

import enum
import functools

from kproxy.exchange import embedded
from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import REQUEST, RESPONSE, Field
from kproxy.wire.protocol.select import Predicate, Selection, select, select_of


class Meaning(enum.Enum):
    """The meaning of a field of Kafka's messages."""

    ERROR = "the code of an error"
    ERROR_MESSAGE = "the broker's own words for an error"
    THROTTLE = "how long the client is to wait, for a quota's sake"
    TOPIC = "the name or the id of a topic, or several"
    PARTITION = "the number of a partition, or several"
    GROUP = "the id of a group, or several"
    TRANSACTIONAL_ID = "a transactional id, or several"
    RECORDS = "record batches"
    OFFSET = "of a partition: the first offset of what was written, or its high watermark"
    ABORTED = "of a partition: the aborted transactions in what was fetched"

    __hash__ = object.__hash__  # an enum's own is slow, and this is looked up for every body


ERROR, ERROR_MESSAGE, THROTTLE = Meaning.ERROR, Meaning.ERROR_MESSAGE, Meaning.THROTTLE
TOPIC, PARTITION = Meaning.TOPIC, Meaning.PARTITION
GROUP, TRANSACTIONAL_ID = Meaning.GROUP, Meaning.TRANSACTIONAL_ID
RECORDS, OFFSET, ABORTED = Meaning.RECORDS, Meaning.OFFSET, Meaning.ABORTED

_TOPIC_NAME = "topicName"
_PARTITION_NAMES = frozenset({"partition", "partition_index", "partition_id"})
_PARTITIONS_NAMES = frozenset({"partitions", "partition_indexes", "partition_ids"})
_OFFSET_NAMES = frozenset({"base_offset", "high_watermark"})

_COORDINATORS = {0: GROUP, 1: TRANSACTIONAL_ID}
_CONFIG_RESOURCES = {2: TOPIC, 32: GROUP}
_ACL_RESOURCES = {2: TOPIC, 3: GROUP, 5: TRANSACTIONAL_ID}
KIND_FIELDS = {
    "key": "key_type",
    "coordinator_keys": "key_type",
    "resource_name": "resource_type",
    "resource_name_filter": "resource_type_filter",
}
"""Name field → the field beside it that says which kind of name it is."""


def _is_error(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.type == "int16" and field.name.endswith("error_code")


def _is_error_message(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.type == "string" and field.name.endswith("error_message")


def _is_throttle(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.name == "throttle_time_ms"


def _is_topic(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.entity == _TOPIC_NAME or is_topic_id(field)


def _is_partition(field: Field, beside: tuple[Field, ...]) -> bool:
    if field.element != "int32":
        return False
    if field.name == "index":  # Produce, FetchSnapshot
        return any(other.type == "records" or other.name == "base_offset" for other in beside)
    return field.name in (_PARTITIONS_NAMES if field.is_array else _PARTITION_NAMES)


def _is_group(field: Field, beside: tuple[Field, ...]) -> bool:
    # Not all of Kafka's definitions say so.
    return field.entity == "groupId" or (field.name == "group_id" and field.type == "string")


def _is_transactional_id(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.entity == "transactionalId"


def _is_records(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.type == "records"


def _is_offset(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.name in _OFFSET_NAMES and any(_is_error(each, beside) for each in beside)


def _is_aborted(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.name == "aborted_transactions"


PREDICATES: dict[Meaning, Predicate] = {
    ERROR: _is_error,
    ERROR_MESSAGE: _is_error_message,
    THROTTLE: _is_throttle,
    TOPIC: _is_topic,
    PARTITION: _is_partition,
    GROUP: _is_group,
    TRANSACTIONAL_ID: _is_transactional_id,
    RECORDS: _is_records,
    OFFSET: _is_offset,
    ABORTED: _is_aborted,
}


def has_kind_field(field: Field, beside: tuple[Field, ...]) -> bool:
    """Return whether a field has a name, and a field beside it says which kind of name."""
    kind = KIND_FIELDS.get(field.name)
    return kind is not None and any(other.name == kind for other in beside)


def is_named_topic_id(field: Field, beside: tuple[Field, ...]) -> bool:
    """Return whether a field has a topic's id in a struct that also has the name, in any
    version."""
    return is_topic_id(field) and any(is_own_topic_name(other) for other in beside)


def is_topic_id(field: Field) -> bool:
    """Return whether a field has the id of a topic."""
    return field.type == "uuid" and field.name == "topic_id"


def is_own_topic_name(field: Field) -> bool:
    """Return whether a field has the name of its struct's own topic."""
    return field.entity == _TOPIC_NAME and not field.is_array


def meanings_by_kind(message: str) -> dict[int, Meaning]:
    """Return the meanings of the numbers of kinds in a message."""
    if message.startswith("FindCoordinator"):
        return _COORDINATORS
    return _ACL_RESOURCES if "Acls" in message else _CONFIG_RESOURCES


def fields_in_body(body: type, meaning: Meaning) -> Selection:
    """Return the fields with a meaning in bodies of a class."""
    return select_of(body, PREDICATES[meaning])


@functools.cache
def apis_with(meaning: Meaning, *directions: str) -> frozenset[int]:
    """Return the ApiKeys whose requests or responses have a field with a meaning, in any
    version."""
    return frozenset(
        key
        for key in schema.api_names()
        for direction in directions or (REQUEST, RESPONSE)
        if (message := schema.message(key, direction)) is not None
        if select(message, PREDICATES[meaning]).places
        or (
            meaning in meanings_by_kind(message.name).values()
            and select(message, has_kind_field).places
        )
        or (meaning is TOPIC and message.name in embedded.MESSAGES)
    )


@functools.cache
def tells_topic_ids(api_key: int, api_version: int) -> bool:
    """Return whether responses of this version have topic ids together with the topics' names."""
    message = schema.message(api_key, RESPONSE)
    if message is None:
        return False
    # Newer versions of Fetch and others have the id in place of the name, not beside it.
    return any(
        place.in_version(api_version)
        and any(
            is_own_topic_name(other) and api_version in other.versions for other in place.beside
        )
        for place in select(message, is_named_topic_id).places
    )
