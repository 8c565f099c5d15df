"""Compiles the decoder of one message in one version: `decode(data, p) -> (value, p)`.

The function is straight-line: structs are inlined into their loops (one that a message has in
several places becomes a function, so that the source stays small), adjacent fixed-width fields
and the length that follows them are read by one `unpack_from`, and values are assigned to slots
without calling `__init__`. For a struct `int32 id, string host` of a flexible version::

    o2.id, n = u_iB(data, p)
    if 0 < n < 128:
     q = p + 5
     p += n + 4
     o2.host = data[q:p].decode()
    else:
     …

Nothing is checked against the end on the way (see `wire`): a slice that was too short shows at
the latest in the last line, because `p` only grows.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import attrs

from kproxy.wire.protocol import messages, schema, wire
from kproxy.wire.protocol.schema import Field, Layout, Slot
from kproxy.wire.protocol.source import CODES, FunctionSource

LENGTH_CODES = {"string": "h", "bytes": "i", "records": "i"}
"""Struct codes of lengths before KIP-482."""
INLINED_TEXTS = 8
"""The strings that a message may have before each of them is read by a function: compiling more
lines would take longer than they save in many calls. Descriptions of groups have more, and are
rare."""


@attrs.define(eq=False)
class ReadBatch:
    """Fixed-width reads that are collected for one `unpack_from`."""

    source: FunctionSource
    targets: list[str] = attrs.Factory(list)
    codes: str = ""
    after: list[str] = attrs.Factory(list)

    def add(self, target: str, code: str, after: str = "") -> None:
        """Read one more value into `target`; then run the line `after`."""
        self.targets.append(target)
        self.codes += code
        if after:
            self.after.append(after)

    def flush(self) -> None:
        """Write the read; the position moves behind what was read."""
        width = self.read()
        if width:
            self.source(f"p += {width}")

    def read(self, back: int = 0) -> int:
        """Write the read, without moving the position; return how far behind it the next field
        starts, less `back`."""
        targets, codes = self.targets, self.codes
        if not targets:
            return 0
        if codes == "B":
            self.source(f"{targets[0]} = data[p]")
        else:
            comma = "," if len(targets) == 1 else ""
            read = f"{self.source.unpacker(codes)}(data, p)"
            self.source(f"{', '.join(targets)}{comma} = {read}")
        self.source(*self.after)
        self.targets, self.codes, self.after = [], "", []
        return _width(codes) - back


def _width(codes: str) -> int:
    widths = {"?": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "d": 8}
    return sum(widths[code] for code in codes.replace("16s", "qq"))


def new_source() -> FunctionSource:
    """Return a source that knows the names that all compiled readers use."""
    source = FunctionSource()
    source.namespace |= {
        "varint": wire.varint,
        "compact_text": wire.compact_text,
        "compact_text_or_null": wire.compact_text_or_null,
        "compact_texts": wire.compact_texts,
        "compact_bytes": wire.compact_bytes,
        "compact_bytes_or_null": wire.compact_bytes_or_null,
        "skip_compact_bytes": wire.skip_compact_bytes,
        "compact_span": wire.compact_span,
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


def compile_decode(layout: Layout, refuse: Any, *, in_steps: bool = False) -> Any:
    """Return the decoder of a layout: `decode(data, p) -> (value, p)`, or a generator that returns
    that and yields before each element of an array.

    `refuse(data, start)` makes the exception to raise for bytes that do not follow the layout.
    Strings are read as UTF-8; the first message with other bytes in one compiles a second decoder
    that escapes them.
    """
    title = f"{layout.name} v{layout.version}"
    title += " in steps" * in_steps

    def begun() -> FunctionSource:
        source = new_source()
        source.in_steps = in_steps
        source.constant("refuse", refuse)
        return source

    @functools.cache
    def escaping() -> Any:
        return _write_decoder(begun(), layout).build(f"decode {title}, escaping", "decode")

    source = begun()
    source.utf8_only = True
    source.constant("escaping", escaping)
    return _write_decoder(source, layout).build(f"decode {title}", "decode")


def _write_decoder(source: FunctionSource, layout: Layout) -> FunctionSource:
    found, places = structs(layout)
    texts = [slot for one in found for slot in one.slots if slot.kind == "string"]
    source.inlines = len(texts) <= INLINED_TEXTS
    for inner in found:
        if places[inner.name] < 2:
            continue
        with source.block(f"def read_{inner.name}(data, p):"):
            source.begin_step()
            batch = ReadBatch(source)
            _write_fields(source, inner, "o", batch)
            batch.flush()
            source("return o, p")
        source.functions.add(inner.name)
    wait = "yield from " if source.in_steps else ""
    with source.block("def decode(data, p):"):
        source.begin_step()
        source("start = p")
        with source.block("try:"):
            target = source.name("o")
            batch = ReadBatch(source)
            write_struct(source, layout, target, batch)
            batch.flush()
            source("if p > len(data): raise Malformed")
        with source.block("except READ_ERRORS:"):
            source("raise refuse(data, start) from None")
        if source.utf8_only:
            source(f"except UnicodeDecodeError: return ({wait}escaping()(data, start))")
        source(f"return {target}, p")
    return source


def structs(layout: Layout) -> tuple[list[Layout], Counter[str]]:
    """Return each struct of a message once, inner ones first, and the number of fields that have
    it."""
    found: dict[str, Layout] = {}
    places: Counter[str] = Counter()

    def visit(outer: Layout) -> None:
        for slot in outer.slots + outer.tagged:
            if slot.struct:
                places[slot.struct.name] += 1
                if slot.struct.name not in found:
                    visit(slot.struct)
                    found[slot.struct.name] = slot.struct

    visit(layout)
    return [*found.values(), layout], places


def new(source: FunctionSource, layout: Layout, struct: str = "") -> str:
    """Return an expression for a new object of a struct (of that name, else the layout's), with
    nothing set."""
    cls = messages.message_class(layout.message.name)
    struct = struct or (layout.name if layout.path else "")
    if struct:
        cls = getattr(cls, struct)
    return source.constant(f"new_{struct}", functools.partial(object.__new__, cls)) + "()"


def write_struct(source: FunctionSource, layout: Layout, target: str, batch: ReadBatch) -> None:
    """Write the reads of a struct into the variable `target`: it becomes a new object."""
    if layout.name in source.functions:
        batch.flush()
        wait = "yield from " * source.in_steps
        source(f"{target}, p = {wait}read_{layout.name}(data, p)")
    else:
        _write_fields(source, layout, target, batch)


def _write_fields(source: FunctionSource, layout: Layout, target: str, batch: ReadBatch) -> None:
    source(f"{target} = {new(source, layout)}")
    for field in layout.absent:
        write_default(source, layout, field, f"{target}.{field.name}")
    for slot in layout.tagged:
        write_default(source, layout, slot.field, f"{target}.{slot.name}")
    for slot in layout.slots:
        write_slot(source, slot, f"{target}.{slot.name}", batch)
    if layout.flexible:
        batch.add("n", "B")
        batch.flush()
        _write_tags(source, layout, target)
    else:
        source(f"{target}.unknown_tags = ()")


def _write_tags(source: FunctionSource, layout: Layout, target: str) -> None:
    unknown = f"{target}.unknown_tags"
    if layout.tagged:
        _write_known_tags(source, layout, target)
    elif not source.inlines:
        source(f"{unknown}, p = tags(data, p, n)")
    else:
        with source.block("if n:"):
            source(f"{unknown}, p = tags(data, p, n)")
        with source.block("else:"):
            source(f"{unknown} = ()")


def _write_known_tags(source: FunctionSource, layout: Layout, target: str) -> None:
    rest, tag, end = source.name("x"), source.name("t"), source.name("e")
    unknown = f"{target}.unknown_tags"
    source(f"{unknown} = ()")
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
                    keeps_default = slot.struct is None or slot.is_array or slot.nullable
                    source(*([f"{content} = p"] if keeps_default else []))
                    batch = ReadBatch(source)
                    write_slot(source, slot, value, batch)
                    batch.flush()
                    source(f"if p != {end}: raise Malformed")
                    if keeps_default:
                        # A tag with its default is legal, but would not be written again.
                        same = is_default(source, slot, value)
                        source(f"if {same}: {rest}.append(({tag}, bytes(data[{content}:{end}])))")
                word = "elif"
            with source.block("else:"):
                source(f"{rest}.append(({tag}, bytes(data[p:{end}])))", f"p = {end}")
        source(f"if {rest}: {unknown} = tuple({rest})")


def is_default(source: FunctionSource, slot: Slot, value: str) -> str:
    """Return an expression for whether `value` is the default of an absent tag."""
    if slot.default is None:
        return f"{value} is None"
    if slot.default == [] or isinstance(slot.default, int | str):
        return f"{value} == {slot.default!r}"
    return f"{value} == {source.value('d', slot.default)}"


def write_default(source: FunctionSource, layout: Layout, field: Field, target: str) -> None:
    """Write the default of a field that was not sent."""
    default = schema.default_value(field)
    if field.is_array and default is not None:
        source(f"{target} = []")
    elif field.defaults_to_struct:
        name = source.name("o")
        source(f"{name} = {new(source, layout, field.element)}")
        for below in field.fields:
            write_default(source, layout, below, f"{name}.{below.name}")
        source(f"{name}.unknown_tags = ()", f"{target} = {name}")
    elif isinstance(default, int | str | None):
        source(f"{target} = {default!r}")
    else:
        source(f"{target} = {source.value('d', default)}")


def write_slot(source: FunctionSource, slot: Slot, target: str, batch: ReadBatch) -> None:
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


def _write_compact_bytes(source: FunctionSource, slot: Slot, target: str, batch: ReadBatch) -> None:
    """Write the read of compact bytes; `p` stays in place until the length is known, which saves an
    addition."""
    text = slot.kind == "string"
    read = f"compact_{'text' if text else 'bytes'}{'_or_null' if slot.nullable else ''}"
    if text and not source.inlines:
        batch.flush()
        source(f"{target}, p = {read}(data, p)")
        return
    batch.add("n", "B")
    at = batch.read(back=1)
    place = f"p + {at}" if at else "p"
    step = f"p += n + {at}" if at else "p += n"
    with source.block("if 0 < n < 128:"):
        source(f"q = p + {at + 1}", step, _content(source, slot, target))
    if slot.nullable:
        with source.block("elif n == 0:"):
            source(f"{target} = None", f"p += {at + 1}")
    with source.block("else:"):
        source(f"{target}, p = {read}(data, {place})")


def _write_bytes(source: FunctionSource, slot: Slot, target: str, batch: ReadBatch) -> None:
    batch.add("n", LENGTH_CODES[slot.kind])
    batch.flush()
    with source.block("if n >= 0:"):
        source("q = p", "p += n", _content(source, slot, target))
    source(*([f"elif n == -1: {target} = None"] if slot.nullable else []), "else: raise Malformed")


def _content(source: FunctionSource, slot: Slot, target: str) -> str:
    """Return the statement that reads a string or bytes from q to p."""
    if slot.kind == "string":
        escapes = "" if source.utf8_only else '"utf-8", "surrogateescape"'
        return f"{target} = data[q:p].decode({escapes})"
    # Large data may be a bytearray.
    return f"{target} = bytes(data[q:p])" if source.in_steps else f"{target} = data[q:p]"


def _write_inner(source: FunctionSource, slot: Slot, target: str, batch: ReadBatch) -> None:
    assert slot.struct is not None
    name = source.name("o")
    if not slot.nullable:
        write_struct(source, slot.struct, name, batch)
        source(f"{target} = {name}")
        return
    batch.add("n", "b")
    batch.flush()
    with source.block(f"if n <= {slot.null_marker}:"):
        source(f"{target} = None")
    with source.block("else:"):
        write_struct(source, slot.struct, name, batch)
        batch.flush()
        source(f"{target} = {name}")


def _write_array(source: FunctionSource, slot: Slot, target: str, batch: ReadBatch) -> None:
    batch.add("n", "B" if slot.flexible else "i")
    batch.flush()
    if not slot.nullable:
        _write_elements(source, slot, target)
        return
    if slot.flexible:
        source("if n > 127: n, p = count_or_null(data, p, n)")
    source(f"if n == {0 if slot.flexible else -1}: {target} = None")
    with source.block("else:"):
        _write_elements(source, slot, target)


def _write_elements(source: FunctionSource, slot: Slot, target: str) -> None:
    if slot.flexible and not slot.nullable:
        condition = "if not 0 < n < 128: " if source.inlines else ""
        source(f"{condition}n, p = count(data, p, n)")
    elif not slot.flexible:
        source(f"if not 0 <= n <= {wire.COLLECTION_ELEMENTS_MAX}: raise Malformed")
    count = "n - 1" if slot.flexible else "n"
    if not source.in_steps and _write_at_once(source, slot, target, count):
        return
    items, item = source.name("r"), source.name("o")
    source(f"{items} = {target} = []")
    with source.loop(f"for _ in range({count}):"):
        batch = ReadBatch(source)
        if slot.struct:
            write_struct(source, slot.struct, item, batch)
        else:
            element = attrs.evolve(slot, is_array=False, nullable=False)
            write_slot(source, element, item, batch)
        batch.flush()
        source(f"{items}.append({item})")


def _write_at_once(source: FunctionSource, slot: Slot, target: str, count: str) -> bool:
    """Write the read of an array whose elements one expression reads; False: there is none."""
    if slot.kind == "uuid":
        source(f"q = p + 16 * ({count})", "if q > len(data): raise Malformed")
        source(f"{target} = [make_uuid(data[i : i + 16]) for i in range(p, q, 16)]", "p = q")
        return True
    if slot.kind in CODES:
        code = CODES[slot.kind]
        source(*(["n -= 1"] if slot.flexible else []))
        short = source.constant(f"a_{code.replace('?', 't')}", wire.array_unpackers(code))
        source(
            f"{target} = [*{short}[n](data, p)] if n < {wire.SHORT_ARRAY_ELEMENTS}"
            f" else unpack_array({code!r}, n, data, p)",
            f"p += {_width(code)} * n",
        )
        return True
    if slot.flexible and slot.kind == "string":
        source(f"{target}, p = compact_texts(data, p, {count})")
        return True
    return False
