"""Messages as JSON and as plain values: the view that people and scripts get.

::

    body ─▶ '{"index": 1, "records": \\0}' ─▶ '{"index": 1, "records": ', content, '}'

Only fields that the version has, by their snake_case names. Bytes become base64; a uuid the 22
characters that Kafka prints; a float that JSON lacks its name. Unknown tags, if there are any,
stand under "unknown_tags" as {tag: base64}. All the text is ASCII, with `json`'s own separators.

The content of a `records` field is given as it is, in bytes, between two pieces of text: it may be
large, and whoever wants the JSON decides what becomes of it.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, cast
from uuid import UUID

from kproxy.protocol import codec, schema
from kproxy.protocol.codec import Request, Response
from kproxy.protocol.schema import Field, Layout, Slot
from kproxy.protocol.select import select_of
from kproxy.protocol.source import Source

Text = Callable[[Any], str]
"""A function that writes a value as JSON."""

_RECORDS = "\0"
"""Stands for the content of a `records` field: other text has this character escaped."""


def to_json(message: Any, version: int | None = None) -> dict[str, Any]:
    """Return the body of a Request or Response (or a body and its version) as plain values."""
    if isinstance(message, Request):
        return to_json(message.body, message.header.api_version)
    if isinstance(message, Response):
        return to_json(message.body, message.body_version)
    if version is None:
        raise TypeError("a body needs its version")
    pieces = json_pieces(message, version)
    return json.loads(
        "".join([_base64_json(each) if isinstance(each, bytes) else each for each in pieces])
    )


def json_pieces(body: Any, version: int) -> list[str | bytes]:
    """Return the JSON of a body in pieces: text, and the content of `records` fields as it is."""
    kind = cast("type[Any]", type(body))
    text = _writer(kind, version)(body)
    if _RECORDS not in text:
        return [text]
    first, *rest = text.split(_RECORDS)
    contents = select_of(kind, _is_records).values(body)
    pieces: list[str | bytes] = [first]
    for content, piece in zip(contents, rest, strict=True):
        pieces += (content, piece)
    return pieces


def _is_records(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.type == "records"


# ── the writers ──────────────────────────────────────────────────────────────────────────────


@functools.lru_cache(maxsize=1024)
def _writer(body: type, version: int) -> Text:
    """Return the function that writes bodies of this class and version: one expression, as calls
    for each field would be most of the time."""
    layout = codec.layout(schema.named(body.__name__), version)
    source = Source(namespace={"tags_end": _tags_end})
    with source.block("def write(body):"):
        source(f"return {_struct_text(source, layout, 'body')}")
    return source.build(f"JSON of {layout.name} v{layout.version}", "write")


def _struct_text(source: Source, layout: Layout, struct: str) -> str:
    """Return an expression for the JSON of a struct, which an expression gives."""
    slots = layout.slots + layout.tagged
    form = "{" + ", ".join(f'"{slot.name}": %s' for slot in slots) + "%s"
    values = [_slot_text(source, slot, f"{struct}.{slot.name}") for slot in slots]
    known = source.value("k", frozenset(slot.tag for slot in layout.tagged))
    before, tags = ", " if slots else "", f"{struct}.unknown_tags"
    end = f"'}}' if not {tags} else tags_end({tags}, {known}, {before!r})"
    return f"{form!r} % ({', '.join([*values, end])},)"


def _slot_text(source: Source, slot: Slot, value: str) -> str:
    """Return an expression for the JSON of a field, which an expression gives."""
    if not slot.is_array:
        text = _value_text(source, slot, value)
        never_null = slot.struct is None and slot.kind not in _NULLABLE
        return text if never_null else f"'null' if {value} is None else {text}"
    each = source.name("e")
    texts = f"[{_value_text(source, slot, each)} for {each} in {value}]"
    return f"'null' if {value} is None else '[' + ', '.join({texts}) + ']' if {value} else '[]'"


def _value_text(source: Source, slot: Slot, value: str) -> str:
    if slot.struct is not None:
        return _struct_text(source, slot.struct, value)
    if slot.kind == "bool":
        return f"'true' if {value} else 'false'"
    writer = _WRITERS.get(slot.kind, str)
    return f"{source.constant(f'text_{slot.kind}', writer)}({value})"


def _tags_end(tags: Sequence[tuple[int, bytes]], known: frozenset[int], before: str) -> str:
    """Return the end of a struct that has tags: those that are not known, as its last field."""
    texts = [f'"{tag}": {_base64_json(raw)}' for tag, raw in tags if tag not in known]
    return f'{before}"unknown_tags": {{{", ".join(texts)}}}}}' if texts else "}"


# ── values ───────────────────────────────────────────────────────────────────────────────────


def uuid_text(value: UUID) -> str:
    """Return a uuid as Kafka prints it: base64url without padding."""
    return base64.urlsafe_b64encode(value.bytes).decode()[:22]


def parse_uuid(text: str) -> UUID:
    """Read a uuid as `uuid_text` or as Python writes it.

    Raises:
        ValueError: it is neither.
    """
    if len(text) != 22:
        return UUID(text)
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))


def _base64_json(value: bytes) -> str:
    return f'"{b2a_base64(value, newline=False).decode()}"'


def _uuid_json(value: UUID) -> str:
    return f'"{uuid_text(value)}"'


def _float_json(value: float) -> str:
    """Return a float as JSON; one that JSON lacks becomes its name."""
    return float.__repr__(value) if math.isfinite(value) else f'"{value}"'


def _records_mark(value: bytes) -> str:
    return _RECORDS


_WRITERS: dict[str, Text] = {
    "string": encode_basestring_ascii,
    "bytes": _base64_json,
    "records": _records_mark,
    "uuid": _uuid_json,
    "float64": _float_json,
}
"""The function that writes a value of a kind; the other kinds are integers, and booleans."""
_NULLABLE = frozenset(_WRITERS)
