"""Messages as plain values, ready for `json.dumps`: the view that people and scripts get."""

from __future__ import annotations

import base64
import functools
import math
from collections.abc import Callable
from typing import Any
from uuid import UUID

from kproxy.protocol import codec, schema
from kproxy.protocol.codec import Request, Response
from kproxy.protocol.schema import Layout, Slot


def to_json(message: Any, version: int | None = None) -> dict[str, Any]:
    """The body of a Request or Response (or a body and its version) as plain values.

    Only fields that the version has, by their snake_case names. Bytes become base64; a uuid the 22
    characters that Kafka prints; a float that JSON lacks its name. Unknown tags, if there are any,
    stand under "unknown_tags" as {tag: base64}.
    """
    if isinstance(message, Request):
        return to_json(message.body, message.header.api_version)
    if isinstance(message, Response):
        return to_json(message.body, message.body_version)
    if version is None:
        raise TypeError("a body needs its version")
    return _struct_writer(codec.layout(schema.named(type(message).__name__), version))(message)


def uuid_text(value: UUID) -> str:
    """A uuid as Kafka prints it: base64url without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode()[:22]


def parse_uuid(text: str) -> UUID:
    """Read a uuid as `uuid_text` or as Python writes it.

    Raises:
        ValueError: it is neither.
    """
    if len(text) != 22:
        return UUID(text)
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))


def _bytes_text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _float(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


_SCALARS: dict[str, Callable[[Any], Any]] = {
    "uuid": uuid_text,
    "bytes": _bytes_text,
    "records": _bytes_text,
    "float64": _float,
}


@functools.cache
def _struct_writer(layout: Layout) -> Callable[[Any], dict[str, Any]]:
    converters = [(slot.name, _converter(slot)) for slot in layout.slots + layout.tagged]
    known = {slot.tag for slot in layout.tagged}

    def write(value: Any) -> dict[str, Any]:
        plain: dict[str, Any] = {}
        for name, convert in converters:
            field = getattr(value, name)
            plain[name] = field if convert is None or field is None else convert(field)
        unknown = [(tag, raw) for tag, raw in value.unknown_tags if tag not in known]
        if unknown:
            plain["unknown_tags"] = {str(tag): _bytes_text(raw) for tag, raw in unknown}
        return plain

    return write


def _converter(slot: Slot) -> Callable[[Any], Any] | None:
    one = _struct_writer(slot.struct) if slot.struct else _SCALARS.get(slot.kind)
    if not slot.is_array:
        return one
    if one is None:
        return list
    return lambda values: [one(value) for value in values]
