"""Compiles the decoder of one message in one version: `decode(data, p) -> (value, p)`.

The function is straight-line: structs are inlined into their loops, adjacent fixed-width fields
and the length that follows them are read by one `unpack_from`, and values are assigned to slots
without calling `__init__`. For a struct `int32 id, string host` of a flexible version::

    o2.id, n = u_iB(data, p)
    p += 5
    if not 0 < n < 128: n, p = length(data, p, n)
    q = p + n - 1
    o2.host = data[p:q].decode("utf-8", "surrogateescape")
    p = q

Nothing is checked against the end on the way (see `wire`): a slice that was too short shows at
the latest in the last line, because `p` only grows.
"""

from __future__ import annotations

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

    def flush(self) -> None:
        """Write the read."""
        if not self.targets:
            return
        codes = self.codes
        if codes == "B":
            self.source(f"{self.targets[0]} = data[p]", "p += 1")
        else:
            width = _width(codes)
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
        "length": wire.length,
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


def write_decoder(source: Source, layout: Layout, refuse: str) -> None:
    """Write `def decode(data, p)`; `refuse` names what makes the error from (data, start)."""
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
            source(f"raise {refuse}(data, start) from None")
        source(f"return {target}, p")


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
                    source(f"{content} = p")
                    batch = Batch(source)
                    write_slot(source, slot, value, batch)
                    batch.flush()
                    source(f"if p != {end}: raise Malformed")
                    # A tag with its default value is legal but would not be written again.
                    same = is_default(source, slot, value)
                    source(f"if {same}: {rest}.append(({tag}, data[{content}:{end}]))")
                word = "elif"
            with source.block("else:"):
                source(f"{rest}.append(({tag}, data[p:{end}]))", f"p = {end}")
        source(f"if {rest}: {target}.unknown_tags = tuple({rest})")


def is_default(source: Source, slot: Slot, value: str) -> str:
    """An expression: whether `value` is what an absent tag stands for."""
    if slot.struct and not slot.is_array and slot.field.default != "null":
        # Field by field: most structs differ from their default in the first one.
        tests = [is_default(source, below, f"{value}.{below.name}") for below in slot.struct.slots]
        return " and ".join([*tests, f"not {value}.unknown_tags"])
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
    elif field.fields and field.default != "null":
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
    else:
        write_length(source, slot, batch)
        _write_bytes(source, slot, target)


def write_length(source: Source, slot: Slot, batch: Batch) -> None:
    """Write the read of a length or count into `n`: of compact types, plus one and unchecked."""
    if slot.flexible:
        batch.add("n", "B")
    else:
        batch.add("n", "i" if slot.is_array else LENGTH_CODES[slot.kind])
    batch.flush()


def _write_bytes(source: Source, slot: Slot, target: str) -> None:
    decode = '.decode("utf-8", "surrogateescape")' if slot.kind == "string" else ""
    lines = [
        f"q = p + n{' - 1' if slot.flexible else ''}",
        f"{target} = data[p:q]{decode}",
        "p = q",
    ]
    if slot.flexible and not slot.nullable:
        source("if not 0 < n < 128: n, p = length(data, p, n)", *lines)
        return
    if slot.flexible:
        source("if n > 127: n, p = varint(data, p, n)")
        opening = "if n:"
    else:
        opening = "if n >= 0:"
    with source.block(opening):
        source(*lines)
    if slot.flexible:
        source(f"else: {target} = None")
    elif slot.nullable:
        source(f"elif n == -1: {target} = None", "else: raise Malformed")
    else:
        source("else: raise Malformed")


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
    write_length(source, slot, batch)
    if not slot.nullable:
        write_count_check(source, slot)
        _write_elements(source, slot, target)
        return
    if slot.flexible:
        source("if n > 127: n, p = count_or_null(data, p, n)")
    with source.block("if n == 0:" if slot.flexible else "if n == -1:"):
        source(f"{target} = None")
    with source.block("else:"):
        if slot.flexible:
            source("n -= 1")
        else:
            write_count_check(source, slot)
        _write_elements(source, slot, target)


def write_count_check(source: Source, slot: Slot) -> None:
    """Write the check of a count that cannot be null; `n` is the number of elements after it."""
    if slot.flexible:
        source("if not 0 < n < 128: n, p = count(data, p, n)", "n -= 1")
    else:
        source(f"if not 0 <= n <= {wire.COLLECTION_ELEMENTS_MAX}: raise Malformed")


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
    if slot.struct and least_bytes(slot.struct) == 0:
        # Nothing in the data bounds the number of such elements.
        source("if n > len(data) - p: raise Malformed")
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
            source(f"{items}.append({item})")


def least_bytes(layout: Layout) -> int:
    """The fewest bytes that a struct can take."""
    least = int(layout.flexible)
    for slot in layout.slots:
        if slot.struct and not slot.is_array and not slot.nullable:
            least += least_bytes(slot.struct)
        elif slot.struct and not slot.is_array:
            least += 1
        elif slot.width is not None:
            least += slot.width
        else:
            least += 1 if slot.flexible else 4 if slot.is_array else 2
    return least


def compile_decode(layout: Layout, refuse: Any) -> Any:
    """The decoder of a layout: `decode(data, p) -> (value, p)`.

    `refuse(data, start)` makes the exception to raise for bytes that do not follow the layout.
    """
    source = new_source()
    source.constant("refuse", refuse)
    write_decoder(source, layout, "refuse")
    return source.build(f"decode {layout.name} v{layout.version}", "decode")
