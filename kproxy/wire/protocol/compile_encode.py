"""Compiles the encoder of one message in one version: `encode(value, w)`.

`w` is the `append` of a list of bytes. Adjacent fixed-width fields, and the length that follows
them, are packed together. For a struct `int32 id, string host` of a flexible version::

    s = o1.host.encode("utf-8", "surrogateescape")
    n = len(s) + 1
    if n < 128: w(p_iB(o1.id, n))
    else: w(p_i(o1.id)); w(write_varint(n))
    w(s)

Fields that the version does not have are left out. A value that does not fit makes one of
`WRITE_ERRORS`; the codec turns it into a `ProtocolError` that names the field.
"""

from __future__ import annotations

from struct import error as StructError
from typing import Any, Final

import attrs

from kproxy.wire.protocol import wire
from kproxy.wire.protocol.compile_decode import LENGTH_CODES, is_default
from kproxy.wire.protocol.schema import Layout, Slot
from kproxy.wire.protocol.source import CODES, FunctionSource

WRITE_ERRORS: Final = (
    StructError,
    TypeError,
    AttributeError,
    ValueError,
    IndexError,
    OverflowError,
)
"""The exceptions of a compiled encoder for bad values."""


@attrs.define(eq=False)
class WriteBatch:
    """Fixed-width values that are collected for one `pack`."""

    source: FunctionSource
    write: str
    values: list[str] = attrs.Factory(list)
    codes: str = ""

    def add(self, value: str, code: str) -> None:
        """Write one more value."""
        self.values.append(value)
        self.codes += code

    def statement(self, value: str = "", code: str = "") -> str:
        """Return the statement that writes the collected values, and one more; they stay
        collected."""
        values = [*self.values, value] if code else self.values
        if not values:
            return "pass"
        codes = self.codes + code
        if codes == "B":
            return f"{self.write}(ONE_BYTE[{values[0]}])"
        return f"{self.write}({self.source.packer(codes)}({', '.join(values)}))"

    def flush(self) -> None:
        """Write the statement, and start collecting anew."""
        if self.values:
            self.source(self.statement())
        self.clear()

    def clear(self) -> None:
        """Start collecting anew."""
        self.values, self.codes = [], ""

    def flush_length(self) -> None:
        """Write the collected values and the unsigned varint `n`."""
        if not self.values:
            self.source(f"{self.write}(ONE_BYTE[n] if n < 128 else write_varint(n))")
            return
        self.source(
            f"if n < 128: {self.statement('n', 'B')}",
            f"else: {self.statement()}; {self.write}(write_varint(n))",
        )
        self.clear()


def compile_encode(layout: Layout, in_steps: bool = False) -> Any:
    """Return the encoder of a layout: `encode(value, w)`, or a generator that does the same and
    yields before each element of an array; it raises WRITE_ERRORS."""
    source = FunctionSource(in_steps=in_steps)
    source.namespace |= {
        "ONE_BYTE": wire.ONE_BYTE,
        "write_varint": wire.write_varint,
        "write_tags": wire.write_tags,
        "pack_array": wire.pack_array,
    }
    with source.block("def encode(o, w):"):
        source.begin_step()
        batch = WriteBatch(source, "w")
        _write_struct(source, layout, "o", batch)
        batch.flush()
        source("return")
    title = f"{layout.name} v{layout.version}{' in steps' if in_steps else ''}"
    return source.build(f"encode {title}", "encode")


def _write_struct(source: FunctionSource, layout: Layout, value: str, batch: WriteBatch) -> None:
    for slot in layout.slots:
        _write_slot(source, slot, f"{value}.{slot.name}", batch)
    if not layout.flexible:
        return
    known = _write_known_tags(source, layout, value) if layout.tagged else "()"
    tags = source.name("t")
    source(f"{tags} = {value}.unknown_tags")
    condition = tags if known == "()" else f"{tags} or {known}"
    with source.block(f"if {condition}:"):
        source(batch.statement(), f"{batch.write}(write_tags({known}, {tags}))")
    source(f"else: {batch.statement('0', 'B')}")
    batch.clear()


def _write_known_tags(source: FunctionSource, layout: Layout, value: str) -> str:
    known = source.name("k")
    source(f"{known} = []")
    for slot in layout.tagged:
        field = source.name("v")
        source(f"{field} = {value}.{slot.name}")
        with source.block(f"if not ({is_default(source, slot, field)}):"):
            parts, write = source.name("b"), source.name("w")
            source(f"{parts} = []", f"{write} = {parts}.append")
            inner = WriteBatch(source, write)
            _write_slot(source, slot, field, inner)
            inner.flush()
            source(f'{known}.append(({slot.tag}, b"".join({parts})))')
    return known


def _write_slot(source: FunctionSource, slot: Slot, value: str, batch: WriteBatch) -> None:
    if slot.is_array:
        _write_array(source, slot, value, batch)
    elif slot.struct:
        _write_inner(source, slot, value, batch)
    elif slot.kind == "uuid":
        batch.add(f"{value}.bytes", "16s")
    elif slot.kind in CODES:
        batch.add(value, CODES[slot.kind])
    else:
        _write_bytes(source, slot, value, batch)


def _write_bytes(source: FunctionSource, slot: Slot, value: str, batch: WriteBatch) -> None:
    raw = source.name("s")
    encode = '.encode("utf-8", "surrogateescape")' if slot.kind == "string" else ""
    size = f"n = len({raw})" + (" + 1" if slot.flexible else "")
    if slot.nullable:
        source(f"{raw} = {value}")
        with source.block(f"if {raw} is None:"):
            source(f'{raw} = b""', f"n = {0 if slot.flexible else -1}")
        with source.block("else:"):
            source(*([f"{raw} = {raw}{encode}"] if encode else []), size)
    else:
        source(f"{raw} = {value}{encode}", size)
    _write_length(slot, batch, LENGTH_CODES[slot.kind])
    source(f"{batch.write}({raw})")


def _write_length(slot: Slot, batch: WriteBatch, code: str) -> None:
    if slot.flexible:
        batch.flush_length()
    else:
        batch.add("n", code)
        batch.flush()


def _write_inner(source: FunctionSource, slot: Slot, value: str, batch: WriteBatch) -> None:
    assert slot.struct is not None
    inner = source.name("o")
    source(f"{inner} = {value}")
    if not slot.nullable:
        _write_struct(source, slot.struct, inner, batch)
        return
    batch.flush()
    with source.block(f"if {inner} is None:"):
        source(f'{batch.write}(b"\\xff")')
    with source.block("else:"):
        batch.add("1", "b")
        _write_struct(source, slot.struct, inner, batch)
        batch.flush()


def _write_array(source: FunctionSource, slot: Slot, value: str, batch: WriteBatch) -> None:
    items = source.name("r")
    source(f"{items} = {value}")
    size = f"n = len({items})" + (" + 1" if slot.flexible else "")
    if slot.nullable:
        source(f"if {items} is None: {items} = (); n = {0 if slot.flexible else -1}")
        source(f"else: {size}")
    else:
        source(size)
    _write_length(slot, batch, "i")
    if slot.kind == "uuid":
        source(f'{batch.write}(b"".join([one.bytes for one in {items}]))')
    elif slot.kind in CODES:
        code = CODES[slot.kind]
        short = source.constant(f"a_{code.replace('?', 't')}", wire.array_packers(code))
        source(
            f"n = len({items})",
            f"{batch.write}({short}[n](*{items}) if n < {wire.SHORT_ARRAY_ELEMENTS}"
            f" else pack_array({code!r}, {items}, n))",
        )
    else:
        item = source.name("o")
        with source.loop(f"for {item} in {items}:"):
            element = attrs.evolve(slot, is_array=False, nullable=False)
            if slot.struct:
                _write_struct(source, slot.struct, item, batch)
            else:
                _write_slot(source, element, item, batch)
            batch.flush()
            source("pass")
