"""Says what is wrong with bytes or values that a compiled codec refused.

Compiled codecs keep no account of where they are. When one refuses, these functions go over the
same layout again, step by step, and raise the `ProtocolError` that names field and offset. They
are the plain reading of Kafka's wire format, and slow; tests hold the compiled codecs against
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast
from uuid import UUID

import attrs

from kproxy.wire.protocol.errors import ProtocolError
from kproxy.wire.protocol.schema import FIXED_WIDTHS, Layout, Slot
from kproxy.wire.protocol.wire import COLLECTION_ELEMENTS_MAX, TAGS_MAX

RANGES = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}


@attrs.define(eq=False)
class Walk:
    """A walk over the bytes of one message, to find the error in them."""

    layout: Layout
    data: bytes
    position: int

    def refusal(self, what: str, field: str | None, *, truncated: bool = False) -> ProtocolError:
        """Return the error for the present position."""
        return ProtocolError(
            what,
            api_key=self.layout.message.api_key,
            api_version=self.layout.version,
            offset=self.position,
            field=field,
            message=self.layout.message.name,
            truncated=truncated,
        )

    def take(self, size: int, field: str) -> int:
        """Step over `size` bytes; return their start."""
        left = len(self.data) - self.position
        if size > left:
            raise self.refusal(
                f"needs {size} more bytes, {max(left, 0)} are left", field, truncated=True
            )
        start = self.position
        self.position += size
        return start

    def number(self, size: int, field: str) -> int:
        """Read a signed big-endian number."""
        start = self.take(size, field)
        return int.from_bytes(self.data[start : start + size], "big", signed=True)

    def varint(self, field: str) -> int:
        """Read an unsigned varint of at most 32 bits."""
        value = 0
        for shift in range(0, 35, 7):
            byte = self.data[self.take(1, field)]
            value |= (byte & 127) << shift
            if byte < 128:
                break
        else:
            raise self.refusal("a varint has more than 5 bytes", field)
        if value > 0xFFFFFFFF:
            raise self.refusal("a varint has more than 32 bits", field)
        return value

    def size(self, slot: Slot, path: str) -> int:
        """Read a length or count; -1 is null."""
        if slot.flexible:
            size = self.varint(path) - 1
        else:
            size = self.number(2 if slot.kind == "string" and not slot.is_array else 4, path)
        if size < -1:
            raise self.refusal(f"a length of {size}", path)
        if size == -1 and not slot.nullable:
            raise self.refusal("is null, but is not nullable in this version", path)
        if slot.is_array and size > COLLECTION_ELEMENTS_MAX:
            raise self.refusal(
                f"{size} elements, more than {COLLECTION_ELEMENTS_MAX} are not allowed", path
            )
        return size

    def struct(self, layout: Layout) -> None:
        """Walk a struct."""
        for slot in layout.slots:
            self.slot(slot, ".".join((*layout.path, slot.name)))
        if layout.flexible:
            self.tags(layout)

    def slot(self, slot: Slot, path: str) -> None:
        """Walk one field."""
        if slot.is_array:
            element = attrs.evolve(slot, is_array=False, nullable=False)
            for _ in range(max(self.size(slot, path), 0)):
                self.slot(element, path)
        elif slot.struct:
            if not slot.nullable or self.number(1, path) > slot.null_marker:
                self.struct(slot.struct)
        elif slot.kind in FIXED_WIDTHS:
            self.take(FIXED_WIDTHS[slot.kind], path)
        else:
            self.take(max(self.size(slot, path), 0), path)

    def tags(self, layout: Layout) -> None:
        """Walk a section of tagged fields."""
        path = ".".join((*layout.path, "tagged fields"))
        count = self.varint(path)
        if count > TAGS_MAX:
            raise self.refusal(f"{count} tags, more than {TAGS_MAX} are not allowed", path)
        known = {slot.tag: slot for slot in layout.tagged}
        for _ in range(count):
            tag, size = self.varint(path), self.varint(path)
            end = self.position + size
            if tag in known:
                name = ".".join((*layout.path, known[tag].name))
                self.slot(known[tag], name)
                if self.position != end:
                    taken = self.position - end + size
                    raise self.refusal(f"its tag says {size} bytes, it takes {taken}", name)
            else:
                self.take(size, path)


def refusal_of_bytes(layout: Layout, data: bytes, start: int) -> ProtocolError:
    """Return the error for bytes that a compiled reader refused."""
    walk = Walk(layout, data, start)
    try:
        walk.struct(layout)
    except ProtocolError as error:
        return error
    return walk.refusal("does not follow its definition", None)


def refusal_of_value(layout: Layout, value: Any) -> ProtocolError:
    """Return the error for a value that a compiled encoder refused."""
    found = _complaint(layout, value)
    path, what = found or (None, "cannot be encoded")
    return ProtocolError(
        what,
        api_key=layout.message.api_key,
        api_version=layout.version,
        field=path,
        message=layout.message.name,
    )


def _complaint(layout: Layout, value: Any) -> tuple[str, str] | None:
    for slot in (*layout.slots, *layout.tagged):
        path = ".".join((*layout.path, slot.name))
        try:
            found = _slot_complaint(slot, getattr(value, slot.name), path)
        except AttributeError:
            return path, f"type {type(value).__name__} has no such attribute"
        if found:
            return found
    tags = getattr(value, "unknown_tags", None)
    if layout.flexible and not _are_tags(tags):
        return ".".join((*layout.path, "unknown_tags")), "is not a tuple of (tag, bytes)"
    return None


def _are_tags(tags: Any) -> bool:
    try:
        return all(0 <= tag < 1 << 32 and isinstance(content, bytes) for tag, content in tags)
    except (TypeError, ValueError):
        return False


def _slot_complaint(slot: Slot, value: Any, path: str) -> tuple[str, str] | None:
    if value is None:
        if slot.nullable or (slot.tag is not None and slot.default is None):
            return None
        return path, "is None, but is not nullable in this version"
    if slot.is_array:
        if not isinstance(value, list | tuple):
            return path, f"has type {type(value).__name__}, expected a list"
        element = attrs.evolve(slot, is_array=False, nullable=False)
        values = cast("Iterable[Any]", value)
        found = (_slot_complaint(element, one, path) for one in values)
        return next(filter(None, found), None)
    if slot.struct:
        return _complaint(slot.struct, value)
    return _primitive_complaint(slot, value, path)


def _primitive_complaint(slot: Slot, value: Any, path: str) -> tuple[str, str] | None:
    expected: Any = {
        "string": str,
        "bytes": bytes | bytearray | memoryview,
        "records": bytes | bytearray | memoryview,
        "uuid": UUID,
        "float64": int | float,
    }.get(slot.kind, int)
    if not isinstance(value, expected):
        return path, f"has type {type(value).__name__}, expected {slot.kind}"
    if slot.kind in RANGES:
        low, high = RANGES[slot.kind]
        if not low <= value <= high:
            return path, f"{value} is not an {slot.kind}"
    if slot.kind == "string":
        try:
            size = len(value.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            return path, "is not encodable as UTF-8"
        if not slot.flexible and size > 32767:
            return path, f"is {size} bytes long, more than 32767 are not allowed"
    return None
