"""Compiles what writes one message in one version as JSON: `write(value, add)`.

A function per struct, whose text is one format of its fields. For a struct `int32 id, string host`
of an array `brokers`::

    def json_Broker(o):
     return '{"id": %d, "host": %s}' % (o.id, text(o.host))

    def write(o, add):
     add('{"brokers": [%s]}' % (", ".join(map(json_Broker, o.brokers)),))

The content of a `records` field is added as it is, in bytes, between two pieces of text: it may be
large, and whoever wants the JSON decides what becomes of it. All the text is ASCII, with `json`'s
own separators.
"""

from __future__ import annotations

import math
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any
from uuid import UUID

import attrs

from kproxy.protocol.compile_decode import structs
from kproxy.protocol.schema import Layout, Slot
from kproxy.protocol.source import Source

WriteJson = Callable[[Any, Callable[[str | bytes], object]], None]


def uuid_text(value: UUID) -> str:
    """A uuid as Kafka prints it: base64url without padding."""
    return urlsafe_b64encode(value.bytes).decode()[:22]


def base64_json(value: bytes) -> str:
    """Bytes as JSON."""
    return f'"{b2a_base64(value, newline=False).decode()}"'


def _uuid_json(value: UUID) -> str:
    return f'"{uuid_text(value)}"'


def _float_json(value: float) -> str:
    """A float that JSON lacks has its name."""
    return float.__repr__(value) if math.isfinite(value) else f'"{value}"'


def _bool_json(value: bool) -> str:
    return "true" if value else "false"


_WRITERS = {
    "string": "text",
    "bytes": "base64",
    "uuid": "uuid",
    "float64": "number",
    "bool": "boolean",
}
"""Kind → what writes one; the others are integers."""


def _unknown_json(tags: tuple[tuple[int, bytes], ...], known: frozenset[int], before: str) -> str:
    """The unknown tags of a struct, as its last field; of a known one there is a field."""
    unknown = [f'"{tag}": {base64_json(raw)}' for tag, raw in tags if tag not in known]
    return f'{before}"unknown_tags": {{{", ".join(unknown)}}}' if unknown else ""


def compile_json(layout: Layout) -> WriteJson:
    """The writer of a layout: `write(value, add)`."""
    source = Source()
    source.namespace |= {
        "text": encode_basestring_ascii,
        "base64": base64_json,
        "uuid": _uuid_json,
        "number": _float_json,
        "boolean": _bool_json,
        "unknown": _unknown_json,
    }
    for struct in structs(layout)[0]:
        in_pieces = _has_records(struct)
        arguments = "o, add" if in_pieces else "o"
        with source.block(f"def json_{struct.name}({arguments}):"):
            writing = _Writing(source, in_pieces)
            _write_struct(writing, struct)
            writing.flush()
    with source.block("def write(o, add):"):
        inner = f"json_{layout.name}"
        source(f"{inner}(o, add)" if _has_records(layout) else f"add({inner}(o))")
    return source.build(f"write {layout.name} v{layout.version} as JSON", "write")


def _has_records(layout: Layout) -> bool:
    return any(
        slot.kind == "records" or (slot.struct is not None and _has_records(slot.struct))
        for slot in layout.slots + layout.tagged
    )


@attrs.define(eq=False)
class _Writing:
    """The text of a struct that is being written: a format, and what fills it."""

    source: Source
    in_pieces: bool
    """Whether it is added, else returned."""
    form: str = ""
    values: list[str] = attrs.Factory(list[str])

    def put(self, form: str, *values: str) -> None:
        """Append to the text."""
        self.form += form
        self.values += values

    def flush(self) -> None:
        """Write the line that gives the text so far."""
        text = f"{self.form!r} % ({', '.join(self.values)},)" if self.values else repr(self.form)
        self.source(f"add({text})" if self.in_pieces else f"return {text}")
        self.form, self.values = "", []


def _write_struct(writing: _Writing, layout: Layout) -> None:
    before = "{"
    for slot in layout.slots + layout.tagged:
        writing.put(f'{before}"{slot.name}": ')
        before = ", "
        if slot.kind == "records" or (slot.struct is not None and _has_records(slot.struct)):
            _write_in_pieces(writing, slot)
        else:
            writing.put(*_value(slot))
    if before == "{":
        writing.put("{")
    known = writing.source.value("k", frozenset(slot.tag for slot in layout.tagged))
    separator = "" if before == "{" else before
    tags = f"unknown(o.unknown_tags, {known}, {separator!r}) if o.unknown_tags else ''"
    writing.put("%s}", tags)


def _value(slot: Slot) -> tuple[str, str]:
    """The format of a field, and what fills it."""
    place = f"o.{slot.name}"
    write = f"json_{slot.struct.name}" if slot.struct else _WRITERS.get(slot.kind)
    if slot.is_array:
        joined = f"', '.join(map({write or 'str'}, {place}))"
        return "%s", f"'null' if {place} is None else '[%s]' % {joined}"
    if write is None:
        return "%d", place
    return "%s", f"'null' if {place} is None else {write}({place})"


def _write_in_pieces(writing: _Writing, slot: Slot) -> None:
    source, place = writing.source, f"o.{slot.name}"
    writing.flush()
    with source.block(f"if {place} is None:"):
        source("add('null')")
    with source.block("else:"):
        if slot.struct is None:
            source(f"add({place})")
        elif slot.is_array:
            source("before = '['")
            with source.block(f"for each in {place}:"):
                source("add(before)", f"json_{slot.struct.name}(each, add)", "before = ', '")
            source("add(']' if before == ', ' else '[]')")
        else:
            source(f"json_{slot.struct.name}({place}, add)")
