"""Any message in words, from its definition: the fields that are set, in the definition's order.

Groups, topics and resources appear by name; what has no name is counted. Throttling, error codes
and deadlines are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kproxy.exchange.words.wording import LISTED_MAX, count, joined, listed, shortened
from kproxy.wire.protocol import schema

_FIELDS_MAX = 4
_SKIPPED = frozenset({"throttle_time_ms", "timeout_ms", "error_code", "error_message"})
_NAMED = ("topicName", "groupId", "transactionalId")


def request(body: Any, api_key: int | None) -> str:
    """Describe the body of a request: `orders, payments, include_synonyms`."""
    fields = _set_fields(body, api_key, schema.REQUEST)
    return _worded([_field(field, value) for field, value in fields])


def response(body: Any, api_key: int | None) -> str:
    """Describe the body of a response, by what it lists: `2 groups: checkout, billing`."""
    fields = _set_fields(body, api_key, schema.RESPONSE)
    lists = [(field, value) for field, value in fields if field.is_array]
    if not lists:
        return "" if getattr(body, "error_code", 0) else _describe_empty(body, api_key)
    # Without its field a number means little.
    return _worded([_array(*each) for each in lists if not isinstance(each[1][0], int)])


def _describe_empty(body: Any, api_key: int | None) -> str:
    """Say that a response lists nothing: `no groups`. That is an answer, too."""
    message = None if api_key is None else schema.message(api_key, schema.RESPONSE)
    for field in () if message is None else message.fields:
        if field.is_array and field.fields and getattr(body, field.name) == []:
            return f"no {field.name.replace('_', ' ')}"
    return ""


def _set_fields(
    body: Any, api_key: int | None, direction: str
) -> Iterator[tuple[schema.Field, Any]]:
    """Yield the top-level fields whose value differs from their default."""
    message = None if api_key is None else schema.message(api_key, direction)
    for field in () if message is None else message.fields:
        value = getattr(body, field.name)
        if field.name not in _SKIPPED and value not in (None, [], schema.default_value(field)):
            yield field, value


def _worded(words: list[str]) -> str:
    words = [word for word in words if word]
    return joined(*words[:_FIELDS_MAX], "…" if len(words) > _FIELDS_MAX else "")


def _field(field: schema.Field, value: Any) -> str:
    if field.is_array:
        return _array(field, value)
    if isinstance(value, bool):
        return field.name if value else f"not {field.name}"
    if isinstance(value, str):
        named = field.entity in _NAMED or field.name == "name"
        return shortened(value) if named else f"{field.name} {shortened(value)}"
    if isinstance(value, int | float):
        return f"{field.name} {value}"
    return ""


def _array(field: schema.Field, values: list[Any]) -> str:
    if isinstance(values[0], str):
        return listed(sorted(values))
    if isinstance(values[0], int):
        return f"{field.name} {listed(map(str, values))}"
    if isinstance(values[0], bytes | UUID):
        return count(len(values), _singular(field.name))
    label = _label_field(field.fields)
    # The order on the wire differs between a request and its response.
    names = sorted(str(name) for each in values if label and (name := getattr(each, label)))
    if not names or len(names) > LISTED_MAX:
        of_them = f": {listed(names)}" if names else ""
        return count(len(values), _singular(field.name)) + of_them
    return listed(names)


def _singular(name: str) -> str:
    """Return the name for one element of a list: `partition error` for `partition_errors`."""
    words = name.replace("_", " ")
    return f"{words[:-3]}y" if words.endswith("ies") else words.removesuffix("s")


def _label_field(fields: tuple[schema.Field, ...]) -> str | None:
    """Return the field that a person would call a struct by."""
    strings = [field for field in fields if field.type == "string" and field.name not in _SKIPPED]
    for field in strings:
        if field.entity in _NAMED or field.map_key:
            return field.name
    return strings[0].name if strings else None
