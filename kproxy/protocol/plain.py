"""Messages as JSON and as plain values: the view that people and scripts get.

    message ─ encoded ─▶ bytes ─ codec.json_writer ─▶ JSON text ─▶ plain values

What fields become is told in `json_text`; `codec.json_writer` writes it out of the bytes, so that
no message is made of bytes that are to be shown only. The content of a `records` field is base64.
"""

from __future__ import annotations

import base64
import json
from typing import Any, cast
from uuid import UUID

from kproxy.protocol import codec, json_text, schema
from kproxy.protocol.codec import Request, Response


def to_json(message: Any, version: int | None = None) -> dict[str, Any]:
    """Return the body of a Request or Response (or a body and its version) as plain values.

    Raises:
        ProtocolError: a value does not fit its field.
    """
    if isinstance(message, Request):
        return to_json(message.body, message.header.api_version)
    if isinstance(message, Response):
        return to_json(message.body, message.body_version)
    if version is None:
        raise TypeError("a body needs its version")
    definition = schema.named(cast("type[Any]", type(message)).__name__)
    encoded: list[bytes] = []
    codec.encoder(definition, version)(message, encoded.append)
    text, contents, _ = codec.json_writer(definition, version)(b"".join(encoded), 0)
    pieces = json_text.filled(text, contents, lambda content: (json_text.base64_json(content),))
    return json.loads("".join(pieces))


def uuid_text(value: UUID) -> str:
    """Return a uuid as Kafka prints it: base64url without padding."""
    return json_text.uuid_text(value.bytes)


def parse_uuid(text: str) -> UUID:
    """Read a uuid as `uuid_text` or as Python writes it.

    Raises:
        ValueError: it is neither.
    """
    if len(text) != 22:
        return UUID(text)
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
