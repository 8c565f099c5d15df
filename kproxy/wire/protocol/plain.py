"""Messages as plain values, of which `json` makes text: the view that people and scripts get.

    body ─ plain_of ─▶ dicts, lists, texts, numbers ─▶ JSON text ─ filled ─▶ with all its records

Only fields that the version has, by their snake_case names. Bytes become base64; a uuid the 22
characters that Kafka prints; a float that JSON lacks its name. Unknown tags, if there are any,
stand under "unknown_tags" as {tag: base64}.

The content of a `records` field may be large, and whoever wants it decides what becomes of it: he
puts `RECORDS` in its place, and `filled` brings both together.
"""

from __future__ import annotations

import base64
import functools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, cast
from uuid import UUID

from kproxy.wire.protocol import codec, schema
from kproxy.wire.protocol.codec import Request, Response
from kproxy.wire.protocol.schema import Layout, Message, Slot
from kproxy.wire.protocol.source import FunctionSource

RECORDS = "\ud800"
"""Stands for a content: half of a pair alone is in no text that was decoded."""
dumps = json.JSONEncoder(allow_nan=False, check_circular=False).encode
"""Gives the JSON of plain values, in ASCII."""
_RECORDS_JSON = dumps(RECORDS)
_Content = TypeVar("_Content")
Plain = Callable[[Any, Callable[[bytes], Any]], dict[str, Any]]
"""Gets a body, and a function that makes what stands in the place of a content."""


def plain_of(body: Any, version: int) -> Plain:
    """Return the function that makes plain values of bodies of this kind, in a version."""
    return _plain(schema.named(cast("type[Any]", type(body)).__name__), version)


def to_json(message: Any, version: int | None = None) -> dict[str, Any]:
    """Return the body of a Request or Response (or a body and its version) as plain values; the
    content of a `records` field is base64."""
    if isinstance(message, Request):
        return to_json(message.body, message.header.api_version)
    if isinstance(message, Response):
        return to_json(message.body, message.body_version)
    if version is None:
        raise TypeError("a body needs its version")
    return plain_of(message, version)(message, base64_text)


def filled(
    text: str, contents: Sequence[_Content], pieces_of: Callable[[_Content], Iterable[str]]
) -> Iterator[str]:
    """Yield JSON in pieces: the text, and in the place of each `RECORDS` what `pieces_of` makes of
    its content."""
    if not contents:
        yield text
        return
    first, *rest = text.split(_RECORDS_JSON)
    yield first
    for content, after in zip(contents, rest, strict=True):
        yield from pieces_of(content)
        yield after


@functools.cache
def _plain(message: Message, version: int) -> Plain:
    source = FunctionSource()
    source.namespace |= {"b64": base64_text, "uuid": uuid_text, "float": _float, "tags": _tags}
    with source.block("def plain(o, keep):"):
        source(f"return {_struct(source, codec.layout(message, version), 'o')}")
    return source.build(f"plain {message.name} v{version}", "plain")


def _struct(source: FunctionSource, layout: Layout, struct: str) -> str:
    """Return an expression for the plain values of a struct."""
    slots = layout.slots + layout.tagged
    members = [f'"{slot.name}": {_value(source, slot, f"{struct}.{slot.name}")}' for slot in slots]
    if layout.flexible:
        known = source.value("k", frozenset(slot.tag for slot in layout.tagged))
        tags = f"{struct}.unknown_tags"
        members.append(f"**(tags({tags}, {known}) if {tags} else {{}})")
    return f"{{{', '.join(members)}}}"


def _value(source: FunctionSource, slot: Slot, value: str) -> str:
    """Return an expression for the plain value of a field."""
    one = source.name("e") if slot.is_array else value
    form = _struct(source, slot.struct, one) if slot.struct else _FORMS.get(slot.kind)
    if form is None:
        return value
    text = form.replace("{0}", one) if slot.struct is None else form
    if slot.is_array:
        text = f"[{text} for {one} in {value}]"
    # A tagged struct that is absent is null, too.
    may_be_null = slot.nullable or (slot.struct is not None and slot.tag is not None)
    return f"(None if {value} is None else {text})" if may_be_null else text


_FORMS = {
    "bytes": "b64({0})",
    "records": "keep({0})",
    "uuid": "uuid({0})",
    "float64": "float({0})",
}
"""What becomes of values that JSON does not have."""


def _tags(tags: Sequence[tuple[int, bytes]], known: frozenset[int]) -> dict[str, Any]:
    """Return the tags that the version does not have, as a member of their struct."""
    found = {str(tag): base64_text(raw) for tag, raw in tags if tag not in known}
    return {"unknown_tags": found} if found else {}


# ── values ───────────────────────────────────────────────────────────────────────────────────


def base64_text(value: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(value).decode()


def _float(value: float) -> Any:
    return value if math.isfinite(value) else str(value)


def uuid_text(value: UUID) -> str:
    """Return a uuid as Kafka prints it: base64url without padding."""
    return base64.urlsafe_b64encode(value.bytes)[:22].decode()


def parse_uuid(text: str) -> UUID:
    """Read a uuid as `uuid_text` or as Python writes it.

    Raises:
        ValueError: it is neither.
    """
    if len(text) != 22:
        return UUID(text)
    return UUID(bytes=base64.b64decode(f"{text}==", altchars=b"-_", validate=True))
