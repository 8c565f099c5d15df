"""Compiles the decoder of one message in one version: `decode(data, p) -> (value, p)`.

The function is straight-line: structs are inlined into their loops, adjacent fixed-width fields
and the length that follows them are read by one `unpack_from`, and values are assigned to slots
without calling `__init__`. For a struct `int32 id, string host` of a flexible version::

    o2.id, n = u_iB(data, p)
    p += 4
    if 0 < n < 128:
     q = p + n
     o2.host = data[p + 1 : q].decode()
     p = q
    else:
     …

Nothing is checked against the end on the way (see `wire`): a slice that was too short shows at
the latest in the last line, because `p` only grows.
"""

from __future__ import annotations

import functools
from typing import Any

import attrs

from kproxy.protocol import messages, schema, wire
from kproxy.protocol.schema import Field, Layout, Slot
from kproxy.protocol.source import CODES, Source

LENGTH_CODES = {"string": "h", "bytes": "i", "records": "i"}
"""Struct codes of lengths before KIP-482."""


@attrs.define(eq=False)
class Batch:
    """Fixed-width reads that wait to be done by one `unpack_from`."""

    source: Source
    targets: list[str] = attrs.Factory(list[str])
    codes: str = ""
    after: list[str] = attrs.Factory(list[str])

    def add(self, target: str, code: str, after: str = "") -> None:
        """Read one more value into `target`; then run the line `after`."""
        self.targets.append(target)
        self.codes += code
        if after:
            self.after.append(after)

    def flush(self, back: int = 0) -> None:
        """Write the read; the position stays `back` bytes behind what was read."""
        if not self.targets:
            return
        codes = self.codes
        if codes == "B":
            self.source(f"{self.targets[0]} = data[p]", *(["p += 1"] if not back else []))
        else:
            width = _width(codes) - back
            comma = "," if len(self.targets) == 1 else ""
            read = f"{self.source.unpacker(codes)}(data, p)"
            self.source(f"{', '.join(self.targets)}{comma} = {read}", f"p += {width}")
        self.source(*self.after)
        self.targets, self.codes, self.after = [], "", []


def _width(codes: str) -> int:
    widths = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8}
    return sum(widths[code] for code in codes.replace("16s", "qq"))


def new_source() -> Source:
    """A source that knows what all compiled readers refer to."""
    source = Source()
    source.namespace |= {
        "new": object.__new__,
        "varint": wire.varint,
        "compact_bytes": wire.compact_bytes,
        "compact_bytes_or_null": wire.compact_bytes_or_null,
        "skip_compact_bytes": wire.skip_compact_bytes,
        "count": wire.count,
        "count_or_null": wire.count_or_null,
        "tags": wire.tags,
        "skip_tags": wire.skip_tags,
        "unpack_array": wire.unpack_array,
        "make_uuid": wire.make_uuid,
        "Malformed": wire.Malformed,
        "READ_ERRORS": wire.READ_ERRORS,
    }
    return source


def compile_decode(layout: Layout, refuse: Any) -> Any:
    """The decoder of a layout: `decode(data, p) -> (value, p)`.

    `refuse(data, start)` makes the exception to raise for bytes that do not follow the layout.
    Strings are read as UTF-8; the first message with other bytes in one compiles a second decoder
    that escapes them.
    """
    title = f"{layout.name} v{layout.version}"

    @functools.cache
    def escaping() -> Any:
        return _source(layout, refuse, utf8_only=False).build(f"decode {title}, escaping", "decode")

    source = _source(layout, refuse, utf8_only=True)
    source.constant("escaping", escaping)
    return source.build(f"decode {title}", "decode")


def _source(layout: Layout, refuse: Any, utf8_only: bool) -> Source:
    source = new_source()
    source.utf8_only = utf8_only
    source.constant("refuse", refuse)
    with source.block("def decode(data, p):"):
        source("start = p")
        with source.block("try:"):
            target = source.name("o")
            source(f"{target} = new({class_name(source, layout)})")
            batch = Batch(source)
            write_struct(source, layout, target, batch)
            batch.flush()
            source("if p > len(data): raise Malformed")
        with source.block("except READ_ERRORS:"):
            source("raise refuse(data, start) from None")
        if utf8_only:
            source("except UnicodeDecodeError: return escaping()(data, start)")
        source(f"return {target}, p")
    return source


def class_name(source: Source, layout: Layout) -> str:
    """Make the class of a struct known to the source."""
    cls = messages.message_class(layout.message.name)
    if layout.path:
        cls = getattr(cls, layout.name)
    return source.constant("C_" + layout.name, cls)


def write_struct(source: Source, layout: Layout, target: str, batch: Batch) -> None:
    """Write the reads of a struct's fields into the new object `target`."""
    for field in layout.absent:
        write_default(source, layout, field, f"{target}.{field.name}")
    for slot in layout.tagged:
        write_default(source, layout, slot.field, f"{target}.{slot.name}")
    for slot in layout.slots:
        write_slot(source, slot, f"{target}.{slot.name}", batch)
    if not layout.flexible:
        source(f"{target}.unknown_tags = ()")
        return
    batch.add("n", "B")
    batch.flush()
    if layout.tagged:
        _write_known_tags(source, layout, target)
    else:
        with source.block("if n:"):
            source(f"{target}.unknown_tags, p = tags(data, p, n)")
        with source.block("else:"):
            source(f"{target}.unknown_tags = ()")


def _write_known_tags(source: Source, layout: Layout, target: str) -> None:
    rest, tag, end = source.name("x"), source.name("t"), source.name("e")
    source(f"{target}.unknown_tags = ()")
    with source.block("if n:"):
        source(f"{rest} = []")
        with source.block("if n > 127:"):
            source("n, p = varint(data, p, n)")
            source(f"if n > {wire.TAGS_MAX}: raise Malformed")
        with source.block("for _ in range(n):"):
            source(f"{tag} = data[p]", "p += 1")
            source(f"if {tag} > 127: {tag}, p = varint(data, p, {tag})")
            source("n = data[p]", "p += 1")
            source("if n > 127: n, p = varint(data, p, n)")
            source(f"{end} = p + n")
            word = "if"
            for slot in layout.tagged:
                value = f"{target}.{slot.name}"
                with source.block(f"{word} {tag} == {slot.tag}:"):
                    content = source.name("c")
                    keeps_default = slot.struct is None or slot.is_array
                    source(*([f"{content} = p"] if keeps_default else []))
                    batch = Batch(source)
                    write_slot(source, slot, value, batch)
                    batch.flush()
                    source(f"if p != {end}: raise Malformed")
                    if keeps_default:
                        # A tag with its default is legal, but would not be written again.
                        same = is_default(source, slot, value)
                        source(f"if {same}: {rest}.append(({tag}, data[{content}:{end}]))")
                word = "elif"
            with source.block("else:"):
                source(f"{rest}.append(({tag}, data[p:{end}]))", f"p = {end}")
        source(f"if {rest}: {target}.unknown_tags = tuple({rest})")


def is_default(source: Source, slot: Slot, value: str) -> str:
    """An expression: whether `value` is what an absent tag stands for."""
    if slot.default is None:
        return f"{value} is None"
    if slot.default == [] or isinstance(slot.default, int | str):
        return f"{value} == {slot.default!r}"
    return f"{value} == {source.value('d', slot.default)}"


def write_default(source: Source, layout: Layout, field: Field, target: str) -> None:
    """Write what a field is that was not sent."""
    default = schema.default_value(field)
    if field.is_array and default is not None:
        source(f"{target} = []")
    elif field.defaults_to_struct:
        cls = getattr(messages.message_class(layout.message.name), field.element)
        name = source.name("o")
        source(f"{name} = new({source.constant('C_' + field.element, cls)})")
        for below in field.fields:
            write_default(source, layout, below, f"{name}.{below.name}")
        source(f"{name}.unknown_tags = ()", f"{target} = {name}")
    elif isinstance(default, int | str | None):
        source(f"{target} = {default!r}")
    else:
        source(f"{target} = {source.value('d', default)}")


def write_slot(source: Source, slot: Slot, target: str, batch: Batch) -> None:
    """Write the read of one field."""
    if slot.is_array:
        _write_array(source, slot, target, batch)
    elif slot.kind == "struct":
        _write_inner(source, slot, target, batch)
    elif slot.kind == "uuid":
        raw = source.name("g")
        batch.add(raw, "16s", f"{target} = make_uuid({raw})")
    elif slot.kind in CODES:
        batch.add(target, CODES[slot.kind])
    elif slot.flexible:
        _write_compact_bytes(source, slot, target, batch)
    else:
        _write_bytes(source, slot, target, batch)


def _write_compact_bytes(source: Source, slot: Slot, target: str, batch: Batch) -> None:
    """Here `p` stays at the length until the bytes are read, which saves an addition."""
    text = slot.kind == "string"
    escapes = "" if source.utf8_only else '"utf-8", "surrogateescape"'
    decode = f".decode({escapes})" if text else ""
    batch.add("n", "B")
    batch.flush(back=1)
    with source.block("if 0 < n < 128:"):
        source("q = p + n", f"{target} = data[p + 1 : q]{decode}", "p = q")
    if slot.nullable:
        source(f"elif n == 0: {target} = None; p += 1")
    if not text:
        # Records are rarely shorter than 127 bytes.
        with source.block("elif n and 0 < (b := data[p + 1]) < 128:"):
            source("q = p + n - 127 + (b << 7)", f"{target} = data[p + 2 : q]", "p = q")
    with source.block("else:"):
        read = "compact_bytes_or_null" if slot.nullable else "compact_bytes"
        source(f"q, p = {read}(data, p)")
        value = 'q.decode("utf-8", "surrogateescape")' if text else "q"
        source(f"{target} = None if q is None else {value}" if text else f"{target} = q")


def _write_bytes(source: Source, slot: Slot, target: str, batch: Batch) -> None:
    escapes = "" if source.utf8_only else '"utf-8", "surrogateescape"'
    decode = f".decode({escapes})" if slot.kind == "string" else ""
    batch.add("n", LENGTH_CODES[slot.kind])
    batch.flush()
    with source.block("if n >= 0:"):
        source("q = p + n", f"{target} = data[p:q]{decode}", "p = q")
    source(*([f"elif n == -1: {target} = None"] if slot.nullable else []), "else: raise Malformed")


def _write_inner(source: Source, slot: Slot, target: str, batch: Batch) -> None:
    assert slot.struct is not None
    name = source.name("o")
    cls = class_name(source, slot.struct)
    if not slot.nullable:
        source(f"{name} = new({cls})", f"{target} = {name}")
        write_struct(source, slot.struct, name, batch)
        return
    batch.add("n", "b")
    batch.flush()
    with source.block("if n < 0:"):
        source(f"{target} = None")
    with source.block("else:"):
        source(f"{name} = new({cls})", f"{target} = {name}")
        write_struct(source, slot.struct, name, batch)
        batch.flush()


def _write_array(source: Source, slot: Slot, target: str, batch: Batch) -> None:
    batch.add("n", "B" if slot.flexible else "i")
    batch.flush()
    if slot.flexible and slot.kind in CODES and slot.kind != "uuid":
        _write_compact_numbers(source, slot, target)
        return
    if slot.nullable:
        if slot.flexible:
            source("if n > 127: n, p = count_or_null(data, p, n)")
        with source.block(f"if n == {0 if slot.flexible else -1}:"):
            source(f"{target} = None")
        opening = "else:"
    else:
        opening = "if True:"
    with source.block(opening):
        if slot.flexible and not slot.nullable:
            source("if not 0 < n < 128: n, p = count(data, p, n)")
        if slot.flexible:
            source("n -= 1")
        else:
            source(f"if not 0 <= n <= {wire.COLLECTION_ELEMENTS_MAX}: raise Malformed")
        _write_elements(source, slot, target)


def _write_compact_numbers(source: Source, slot: Slot, target: str) -> None:
    code = CODES[slot.kind]
    width = _width(code)
    name = f"c_{code.replace('?', 't')}"
    short = source.constant(name, (None, *wire.array_unpackers(code)))
    with source.block(f"if 1 < n <= {wire.SHORT_ARRAY_ELEMENTS}:"):
        source(f"{target} = [*{short}[n](data, p)]", f"p += {width} * n - {width}")
    source(f"elif n == 1: {target} = []")
    if slot.nullable:
        source(f"elif n == 0: {target} = None")
    with source.block("else:"):
        if slot.nullable:
            source("if n > 127: n, p = count_or_null(data, p, n)")
        else:
            source("if not 0 < n < 128: n, p = count(data, p, n)")
        # Null still, if a zero came in more bytes than needed.
        source(f"{target} = unpack_array({code!r}, n - 1, data, p) if n else None")
        source(f"if n: p += {width} * n - {width}")


def _write_elements(source: Source, slot: Slot, target: str) -> None:
    if slot.kind == "uuid":
        source("q = p + 16 * n", "if q > len(data): raise Malformed")
        source(f"{target} = [make_uuid(data[i : i + 16]) for i in range(p, q, 16)]", "p = q")
        return
    if slot.kind in CODES:
        code = CODES[slot.kind]
        short = source.constant(f"a_{code.replace('?', 't')}", wire.array_unpackers(code))
        source(
            f"{target} = [*{short}[n](data, p)] if n < {wire.SHORT_ARRAY_ELEMENTS}"
            f" else unpack_array({code!r}, n, data, p)",
            f"p += {_width(code)} * n",
        )
        return
    items, item = source.name("r"), source.name("o")
    source(f"{items} = []", f"{target} = {items}")
    with source.block("for _ in range(n):"):
        batch = Batch(source)
        if slot.struct:
            source(f"{item} = new({class_name(source, slot.struct)})", f"{items}.append({item})")
            write_struct(source, slot.struct, item, batch)
            batch.flush()
        else:
            element = attrs.evolve(slot, is_array=False, nullable=False)
            write_slot(source, element, item, batch)
            batch.flush()
            source(f"{items}.append({item})")
