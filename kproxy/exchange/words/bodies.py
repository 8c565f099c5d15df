"""An exchange as text, in a few words: one entry of a table per API.

An entry is a pair of functions, one for the request and one for the response; both get the decoded
body and what is known around it::

    "Produce": (_produce_request, _produce_response)

    orders[0] 3 records, 812 B, acks=all  →  offset 41
    └───────────── request ────────────┘     └ response

The entries stand beside their functions in `data`, `groups` and `cluster`. APIs without one get
`generic`'s: the fields that are set, in the definition's order. Error codes, throttling and opaque
bodies are the same for all APIs and not the table's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from kproxy.exchange.entries import SASL_TOKEN
from kproxy.exchange.words import cluster, data, groups
from kproxy.exchange.words.wording import (
    LISTED_MAX,
    Context,
    Words,
    count,
    joined,
    listed,
    shortened,
)
from kproxy.units import format_bytes
from kproxy.wire.protocol import schema

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

_WORDS: Words = {**data.WORDS, **groups.WORDS, **cluster.WORDS}

_EMPTY = frozenset({"Fetch", "ShareFetch"})
_HEARTBEATS = frozenset({"Heartbeat", "ConsumerGroupHeartbeat", "ShareGroupHeartbeat"})


class ExchangeText(NamedTuple):
    """An exchange in words."""

    request: str
    response: str
    """The words for the response; empty if it reports success and nothing else."""
    noise: str | None = None
    """None if something happened. Otherwise the word for it where many like it are counted: `empty`
    for a Fetch, no word for a heartbeat."""


def text_of(exchange: Exchange) -> ExchangeText:
    """Put an exchange in words."""
    request, response = exchange.request, exchange.response
    api = exchange.api
    if api == SASL_TOKEN:
        return ExchangeText(_token(exchange.request_bytes), _token(exchange.response_bytes))
    context = Context(exchange.topic_names, request)
    of_request, of_response = _WORDS.get(api or "", (None, None))
    request_text = response_text = ""
    if request is not None:
        request_text = (
            of_request(request, context) if of_request else _any_request(request, exchange.api_key)
        )
    if response is not None:
        response_text = (
            of_response(response, context)
            if of_response
            else _any_response(response, exchange.api_key)
        )
        if response_text == request_text:
            # A response that only repeats the request reports success.
            response_text = ""
    return ExchangeText(request_text, response_text, _noise(exchange, response_text))


def _noise(exchange: Exchange, response_text: str) -> str | None:
    if response_text == "empty":
        quiet = exchange.api in _EMPTY
    else:
        quiet = not response_text and exchange.api in _HEARTBEATS and _is_idle(exchange.request)
    if not quiet or exchange.response is None or exchange.row.fault_ids:
        return None
    # `uneventful` is the cheaper answer, and mostly enough.
    return response_text if exchange.uneventful or not exchange.errors else None


def _is_idle(heartbeat: Any) -> bool:
    """Return whether a heartbeat only says that its member is alive: it does not join, leave or
    report what it owns."""
    if getattr(heartbeat, "member_epoch", 1) <= 0:
        return False
    news = ("subscribed_topic_names", "subscribed_topic_regex", "topic_partitions")
    return all(getattr(heartbeat, name, None) is None for name in news)


def _token(frame_bytes: int | None) -> str:
    return "" if frame_bytes is None else f"token {format_bytes(max(0, frame_bytes - 4))}"


# ---- any body, by its schema
#
# Groups, topics and resources appear by name; what has no name is counted. Throttling, error codes
# and deadlines are left out.


_FIELDS_MAX = 4
_SKIPPED = frozenset({"throttle_time_ms", "timeout_ms", "error_code", "error_message"})
_NAMED = ("topicName", "groupId", "transactionalId")


def _any_request(body: Any, api_key: int | None) -> str:
    """Describe the body of a request: `orders, payments, include_synonyms`."""
    fields = _set_fields(body, api_key, schema.REQUEST)
    return _worded([_field(field, value) for field, value in fields])


def _any_response(body: Any, api_key: int | None) -> str:
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
