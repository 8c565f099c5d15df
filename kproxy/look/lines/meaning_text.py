"""Records and requests as text that is the same for the same behaviour (`meaning`)."""

from __future__ import annotations

import hashlib
import json
from typing import Any, cast

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.replay.ignored import Ignored, schema_name
from kproxy.wire import protocol
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import shown_json

_SHOWN_CHARACTERS = 2000
_BYTES_SHOWN = 32

_VOLATILE = frozenset(
    {
        "host", "port", "rack", "brokers", "nodes", "replica_nodes", "isr_nodes",
        "offline_replicas", "client_host", "topic_id", "member_id", "node_id", "broker_id",
        "leader_id", "controller_id", "cluster_id", "producer_id", "correlation_id",
        "unknown_tags", "error_message", "synonyms", "documentation", "include_synonyms",
        "include_documentation",
    }
)  # fmt: skip
"""Fields that depend on the cluster or the time, not on what the client does."""
_VOLATILE_ENDINGS = ("_ms", "_epoch", "_timestamp", "_bytes", "_size")
_DEFAULT_SOURCES = frozenset({4, 5})
"""Sources of configs in DescribeConfigs: a broker's file, or the default."""


def record(one: TopicRecord, ignored: Ignored) -> str:
    """Return a record in one line: key → value, headers. What is decoded is shown so, with the name
    of its schema, whose id may be another one in the next run."""
    if ignored.parts:
        ignored = attrs.evolve(ignored, schemas=one.schemas)
    content = ignored.content(one, one.topic)
    given = [f"{name}={_text(data)}" for name, data in content.headers]
    value = _part(one, "value", content.value)
    if content.decoded_as:
        value = f"{_text(content.value)} ({content.decoded_as})"
    key = _part(one, "key", content.key)
    text = value if content.key is None else f"{key} → {value}"
    return f"{text}  ({', '.join(given)})" if given else text


def _part(one: TopicRecord, part: str, data: bytes | None) -> str:
    match one.meaning(part):
        case Decoded(value, by):
            return f"{_text(shown_json(value).encode())} ({schema_name(by)})"
        case Undecoded(why):
            return f"{_text(data)} ({why})"
        case None:
            return _text(data)


def _text(data: bytes | None) -> str:
    """Return bytes as text, or as hex where they are no UTF-8; long ones cut, with a digest."""
    if data is None:
        return "null"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = data[:_BYTES_SHOWN].hex(" ", 4)
        if len(data) <= _BYTES_SHOWN:
            return text
        return f"{text} … {len(data)} bytes, {_digest(data)}"
    if len(text) > _SHOWN_CHARACTERS:
        return f"{text[:_SHOWN_CHARACTERS]} … {len(data)} bytes, {_digest(data)}"
    return text


def _digest(data: bytes) -> str:
    return f"sha256 {hashlib.sha256(data).hexdigest()[:16]}"


def request(exchange: Exchange) -> str:
    """Return a request and its response as JSON, without volatile fields."""
    sent = _json(exchange.request_message)
    received = _json(exchange.response_message)
    errors = f"{', '.join(exchange.errors)} " if exchange.errors else ""
    return f"{sent} → {errors}{received}"


def _json(message: Any) -> str:
    if message is None:
        return "–"
    return json.dumps(_plain(protocol.to_json(message)), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        found = [_plain(each) for each in cast("list[Any]", value) if not _is_default(each)]
        return sorted(found, key=repr)
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value)
    return {
        name: _plain(each)
        for name, each in fields.items()
        if name not in _VOLATILE and not name.endswith(_VOLATILE_ENDINGS)
    }


def _is_default(value: Any) -> bool:
    """Return whether a value is a config of a DescribeConfigs response that nobody has set."""
    return isinstance(value, dict) and cast("Any", value).get("config_source") in _DEFAULT_SOURCES
