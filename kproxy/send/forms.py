"""Requests and responses that name one thing in older versions, and a list of them in newer ones.

::

    group_id, topics ─ complete ─▶ the same, and groups = [one]       older ↔ newer, in a body
    groups = [a, b] ─ one_by_one ─▶ groups = [a]; groups = [b] ─ complete ─▶ …

Invariant: a body that `complete` has seen can be sent, or compared, in any version.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from kproxy.wire.protocol import schema
from kproxy.wire.protocol.schema import Field

LISTS = {
    "FindCoordinatorRequest": "coordinator_keys",
    "FindCoordinatorResponse": "coordinators",
    "LeaveGroupRequest": "members",
    "LeaveGroupResponse": "members",
    "OffsetFetchRequest": "groups",
    "OffsetFetchResponse": "groups",
}
"""Message → the list of its newer versions; older ones have what its elements have."""
MESSAGES = {*LISTS, "DeleteTopicsRequest"}
_NAMES = {"coordinator_keys": "key", "topics": "topic_names"}
"""Lists of names: the field of older versions."""


def complete(body: Any, version: int) -> None:
    """Put in the other form of what this version has."""
    message = schema.named(type(body).__name__)
    fields = {field.name: field for field in message.fields}
    if message.name == "DeleteTopicsRequest":
        kind = type(body).DeleteTopicState
        body.topics = body.topics or [kind(name=each) for each in body.topic_names]
        body.topic_names = [each.name for each in body.topics if each.name is not None]
    if not (name := LISTS.get(message.name)):
        return
    field, single = fields[name], _NAMES.get(name)
    if version not in field.versions:
        one = getattr(body, single) if single else _struct(body, field, type(body))
        setattr(body, name, [one])
    elif len(getattr(body, name)) == 1:
        (one,) = getattr(body, name)
        if single:
            setattr(body, single, one)
        for inner in field.fields:
            if inner.name in fields and not getattr(body, inner.name):
                value = _value(getattr(one, inner.name), fields[inner.name], type(body))
                setattr(body, inner.name, value)


def one_by_one(body: Any) -> Iterator[Any]:
    """Yield a request for each element of the list, which may be for brokers of their own, or a
    version that has no list."""
    name = LISTS.get(type(body).__name__, "")
    elements = getattr(body, name) if name else ()
    if len(elements) < 2:
        yield body
        return
    for each in elements:
        part = copy.copy(body)
        setattr(part, name, [each])
        complete(part, schema.named(type(body).__name__).versions[-1])
        yield part


def _struct(value: Any, field: Field, kind: Any) -> Any:
    """Return a struct that has what another one has, whose class is another."""
    made = getattr(kind, field.element)()
    for inner in field.fields:
        if hasattr(value, inner.name):
            setattr(made, inner.name, _value(getattr(value, inner.name), inner, kind))
    return made


def _value(value: Any, field: Field, kind: Any) -> Any:
    if not field.fields or value is None:
        return value
    return [_struct(each, field, kind) for each in value]
