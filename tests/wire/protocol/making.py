"""Shared by the codec's tests: every message and version, and the shortest way to their bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import hypothesis

from kproxy.wire.protocol import codec, schema
from kproxy.wire.protocol.record_batch import Batch
from kproxy.wire.protocol.record_json import json_pieces
from kproxy.wire.protocol.records import json_allowance
from kproxy.wire.protocol.schema import Message

DATA = Path(__file__).parent / "data"

MESSAGES = [schema.named(name) for name in schema.message_names()]
BODIES = [message for message in MESSAGES if message.api_key is not None]


def title(value: object) -> str | None:
    """How a parameter is shown in the name of a test."""
    return value.name if isinstance(value, Message) else None


def few(share: int) -> hypothesis.settings:
    """The profile's number of examples divided by `share`; for tests that have many parameters."""
    return hypothesis.settings(
        max_examples=max(2, hypothesis.settings.default.max_examples // share),
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )


def encoded(message: Message, version: int, value: Any) -> bytes:
    """The bytes of a value without any frame around."""
    parts: list[bytes] = []
    codec.encoder(message, version)(value, parts.append)
    return b"".join(parts)


def decoded(message: Message, version: int, data: bytes) -> Any:
    """The value of bytes that hold nothing else."""
    value, end = codec.decoder(message, version)(data, 0)
    assert end == len(data)
    return value


def framed(*parts: bytes) -> bytes:
    """A frame with this content."""
    content = b"".join(parts)
    return len(content).to_bytes(4, "big") + content


def records_plain(found: Batch | Iterable[Batch]) -> Any:
    """The JSON of a batch, or of several, as plain values."""
    if isinstance(found, Batch):
        return records_plain([found])[0]
    data = b"".join(each.raw for each in found)
    return json.loads("".join(json_pieces(data, json_allowance(len(data)))))
