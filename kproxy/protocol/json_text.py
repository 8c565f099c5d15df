"""Expressions for the JSON of a struct whose fields have been read into variables.

    o1_index, o1_records ─▶ '{"index": %s, "records": %s}' % (o1_index, …)

Only fields that the version has, by their snake_case names. Bytes become base64; a uuid the 22
characters that Kafka prints; a float that JSON lacks its name. Unknown tags, if there are any,
stand under "unknown_tags" as {tag: base64}. All the text is ASCII, with `json`'s own separators.

The content of a `records` field is not in the text: it may be large, and whoever wants the JSON
decides what becomes of it. `RECORDS` stands for it, and it is kept in a list; `filled` brings both
together.
"""

from __future__ import annotations

import math
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Any, TypeVar

from kproxy.protocol.schema import Layout, Slot
from kproxy.protocol.source import CODES, Source

RECORDS = "\0"
"""Stands for the content of a `records` field: other text has this character escaped."""


_Content = TypeVar("_Content")


def filled(
    text: str, contents: Sequence[_Content], pieces_of: Callable[[_Content], Iterable[str]]
) -> Iterator[str]:
    """Yield JSON in pieces: the text, and in the place of each content what `pieces_of` makes of
    it."""
    first, *rest = text.split(RECORDS)
    yield first
    for content, after in zip(contents, rest, strict=True):
        yield from pieces_of(content)
        yield after


def struct_text(source: Source, layout: Layout, struct: str) -> str:
    """Return an expression for the JSON of a struct; its fields are the variables that
    `source.member` names."""
    slots = layout.slots + layout.tagged
    form = "{" + ", ".join(f'"{slot.name}": %s' for slot in slots)
    values = [_slot_text(source, slot, source.member(struct, slot.name)) for slot in slots]
    if not layout.flexible:
        return f"{form + '}'!r} % ({', '.join(values)},)" if values else "'{}'"
    tags = source.member(struct, "unknown_tags")
    known = source.value("k", frozenset(slot.tag for slot in layout.tagged))
    before = ", " if slots else ""
    end = f"'}}' if not {tags} else {source.constant('tags_end', tags_end)}"
    values.append(f"{end}({tags}, {known}, {before!r})")
    return f"{form + '%s'!r} % ({', '.join(values)},)"


def _slot_text(source: Source, slot: Slot, value: str) -> str:
    """Return an expression for the JSON of a field, which a variable has."""
    text = _array_text(source, slot, value) if slot.is_array else _value_text(source, slot, value)
    # A tagged struct that is absent is null, too.
    may_be_null = slot.nullable or (slot.struct is not None and slot.tag is not None)
    return f"'null' if {value} is None else {text}" if may_be_null else text


def _array_text(source: Source, slot: Slot, value: str) -> str:
    if slot.kind in _PLAIN_NUMBERS:
        return value
    texts, each = value, source.name("e")
    if slot.struct is None:
        texts = f"[{_value_text(source, slot, each)} for {each} in {value}]"
    return f"'[' + ', '.join({texts}) + ']' if {value} else '[]'"


def _value_text(source: Source, slot: Slot, value: str) -> str:
    if slot.kind == "bool":
        return f"'true' if {value} else 'false'"
    if slot.kind == "records":
        return f"keep({value}) or {RECORDS!r}"
    writer = _WRITERS.get(slot.kind)
    return value if writer is None else f"{source.constant(writer.__name__, writer)}({value})"


def tags_end(tags: Sequence[tuple[int, bytes]], known: frozenset[int], before: str) -> str:
    """Return the end of a struct that has tags: those that are not known, as its last field."""
    texts = [f'"{tag}": {base64_json(raw)}' for tag, raw in tags if tag not in known]
    return f'{before}"unknown_tags": {{{", ".join(texts)}}}}}' if texts else "}"


# ── values ───────────────────────────────────────────────────────────────────────────────────


def uuid_text(raw: bytes) -> str:
    """Return the bytes of a uuid as Kafka prints it: base64url without padding."""
    return b2a_base64(raw, newline=False)[:22].translate(_URL_SAFE).decode()


_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def uuid_json(raw: bytes) -> str:
    """Return the bytes of a uuid as JSON."""
    return f'"{uuid_text(raw)}"'


def base64_json(value: bytes) -> str:
    """Return bytes as JSON."""
    return f'"{b2a_base64(value, newline=False).decode()}"'


def float_json(value: float) -> str:
    """Return a float as JSON; one that JSON lacks becomes its name."""
    return float.__repr__(value) if math.isfinite(value) else f'"{value}"'


_WRITERS: dict[str, Callable[[Any], str]] = {
    "string": encode_basestring_ascii,
    "bytes": base64_json,
    "float64": float_json,
}
"""The function that writes a value of a kind. Numbers are written as Python prints them; structs
and uuids have become text when they were read."""
_PLAIN_NUMBERS = frozenset(CODES) - {"bool", "float64", "uuid"}
"""Kinds whose arrays are written as Python prints lists of them."""
