"""Messages as JSON and as plain values: the view that people and scripts get.

Only fields that the version has, by their snake_case names. Bytes become base64; a uuid the 22
characters that Kafka prints; a float that JSON lacks its name. Unknown tags, if there are any,
stand under "unknown_tags" as {tag: base64}.
"""

from __future__ import annotations

import base64
import functools
import json
from typing import Any, cast
from uuid import UUID

from kproxy.protocol import codec, schema
from kproxy.protocol.codec import Request, Response
from kproxy.protocol.compile_json import WriteJson, base64_json, compile_json, uuid_text

__all__ = ["json_pieces", "parse_uuid", "to_json", "uuid_text"]


def to_json(message: Any, version: int | None = None) -> dict[str, Any]:
    """The body of a Request or Response (or a body and its version) as plain values."""
    if isinstance(message, Request):
        return to_json(message.body, message.header.api_version)
    if isinstance(message, Response):
        return to_json(message.body, message.body_version)
    if version is None:
        raise TypeError("a body needs its version")
    pieces = json_pieces(message, version)
    return json.loads(
        "".join([base64_json(each) if isinstance(each, bytes) else each for each in pieces])
    )


def json_pieces(body: Any, version: int) -> list[str | bytes]:
    """The JSON of a body in pieces: text, and the content of `records` fields as it is."""
    pieces: list[str | bytes] = []
    _writer(cast("type[Any]", type(body)), version)(body, pieces.append)
    return pieces


@functools.lru_cache(maxsize=1024)
def _writer(body: type, version: int) -> WriteJson:
    return compile_json(codec.layout(schema.named(body.__name__), version))


def parse_uuid(text: str) -> UUID:
    """Read a uuid as `uuid_text` or as Python writes it.

    Raises:
        ValueError: it is neither.
    """
    if len(text) != 22:
        return UUID(text)
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
