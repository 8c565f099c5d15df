"""Records and requests as text that is the same for the same behaviour (`meaning`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import attrs

from kproxy.exchange import varying
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.varying import Why
from kproxy.replay.ignored import Ignored, schema_name
from kproxy.wire.payloads.meaning import Decoded, Undecoded
from kproxy.wire.payloads.plain import shown_json

_SHOWN_CHARACTERS = 2000
_BYTES_SHOWN = 32


def record(one: TopicRecord, ignored: Ignored) -> str:
    """Return a record in one line: key → value, headers. What is decoded is shown so, with the name
    of its schema, whose id may be another one in the next run."""
    if ignored.parts:
        ignored = attrs.evolve(ignored, schemas=one.schemas)
    content = ignored.content(one, one.topic)
    given = [f"{name}={data_text(data)}" for name, data in content.headers]
    value = _part(one, "value", content.value)
    if content.decoded_as:
        value = f"{data_text(content.value)} ({content.decoded_as})"
    key = _part(one, "key", content.key)
    text = value if content.key is None else f"{key} → {value}"
    return f"{text}  ({', '.join(given)})" if given else text


def _part(one: TopicRecord, part: str, data: bytes | None) -> str:
    match one.meaning(part):
        case Decoded(value, by):
            return f"{data_text(shown_json(value).encode())} ({schema_name(by)})"
        case Undecoded(why):
            return f"{data_text(data)} ({why})"
        case None:
            return data_text(data)


def data_text(data: bytes | None) -> str:
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


def request(exchange: Exchange) -> dict[str, Any]:
    """Return a request and its response as plain values, without what varies; of responses that are
    about the cluster only the errors. None: it is missing, or cannot be decoded."""
    own = exchange.api in varying.OF_CLUSTER
    return {
        "request": _plain(exchange.request, Why.CLUSTER, Why.OFFSET),
        "errors": ", ".join(exchange.errors),
        "response": {} if own else _plain(exchange.response),
    }


def request_text(meaning: Mapping[str, Any]) -> str:
    """Return a request and its response in one line."""
    sent, received = (_json(meaning[name]) for name in ("request", "response"))
    return " ".join(filter(None, (sent, "→", meaning["errors"], received)))


def _plain(body: Any, *compared: Why) -> Any:
    return None if body is None else varying.meaning(body, *compared)


def _json(message: Any) -> str:
    return "–" if message is None else json.dumps(message, sort_keys=True)
