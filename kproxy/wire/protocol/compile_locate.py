"""Compiles functions that find fields in the bytes of a message, and make nothing of the others:
what rewrites or blanks out fields needs their places, not their values.

    Layout, dotted paths ─▶ compile_locate: spans of the fields
    Layout, field        ─▶ compile_seek: where a field starts, over a message that comes in chunks
    Layout, dotted paths ─▶ compile_numbers: those that are not zero; in chunks, too

Invariants: the walk refuses what the decoder refuses. Fixed-width fields, and arrays of them, are
stepped over.
"""

from __future__ import annotations

from typing import Any

import attrs

from kproxy.wire.protocol import wire
from kproxy.wire.protocol.compile_decode import new_source
from kproxy.wire.protocol.schema import Layout, Slot
from kproxy.wire.protocol.source import FunctionSource

UNKNOWN_TAG = -2
"""Stands for the path in the span of a tagged field that the version does not have."""
NUMBERS = {"h": 2, "i": 4, "b": 1}
"""Struct codes of lengths and their widths."""


@attrs.define(eq=False)
class Walker:
    """A walk that is being written; `p` is the position in `data`."""

    source: FunctionSource
    wanted: dict[str, int]
    """The index of each wanted field, by dotted path."""
    chunked: bool = False
    """True if `data` is one chunk of many: then reads ask for more by `yield`."""
    unknown_tags: bool = False
    """True to report tagged fields that the version does not have."""
    nonzero: bool = False
    """True to report the values of wanted fields, all of them numbers, that are not zero."""
    steps: int = 0
    """Bytes to step over before the next read."""

    def step(self) -> None:
        """Write the steps that were collected."""
        if self.steps:
            self.source(f"p += {self.steps}")
        self.steps = 0

    def peek(self, code: str, target: str) -> None:
        """Write the read of the value behind the steps."""
        place = f"p + {self.steps}" if self.steps else "p"
        if code == "B":
            self.source(f"{target} = data[{place}]")
        else:
            self.source(f"{target}, = {self.source.unpacker(code)}(data, {place})")

    def read_byte(self, target: str = "n") -> None:
        """Write the read of one unsigned byte."""
        if self.chunked:
            self.step()
            self._need(1)
        self.peek("B", target)
        self.steps += 1
        self.step()

    def read_varint(self, target: str = "n") -> None:
        """Write the read of an unsigned varint."""
        self.read_byte(target)
        if not self.chunked:
            self.source(f"if {target} > 127: {target}, p = varint(data, p, {target})")
            return
        with self.source.block(f"if {target} > 127:"):
            self.source(f"{target} &= 127", "shift = 7")
            with self.source.block("while True:"):
                self._need(1)
                self.source(
                    "byte = data[p]",
                    "p += 1",
                    f"{target} |= (byte & 127) << shift",
                    "shift += 7",
                    "if byte < 128: break",
                    "if shift > 28: raise refuse(base + p, 'a varint has more than 5 bytes')",
                )
            self.source(
                f"if {target} > 0xFFFFFFFF:"
                " raise refuse(base + p, 'a varint has more than 32 bits')"
            )

    def read_number(self, code: str) -> None:
        """Write the read of a signed number into `n`."""
        if self.chunked:
            self.step()
            self._need(NUMBERS[code])
        self.peek(code, "n")
        self.steps += NUMBERS[code]
        self.step()

    def report_number(self, index: int, width: int) -> None:
        """Write the report of a signed number that is not zero."""
        if self.chunked:
            self.step()
            self._need(width)
        value = f"data[p + {self.steps}:p + {self.steps + width}]"
        with self.source.block(f"if {value} != {bytes(width)!r}:"):
            self.source(f"add(({index}, int.from_bytes({value}, 'big', signed=True)))")
        self.steps += width

    def _need(self, size: int) -> None:
        with self.source.block(f"while end - p < {size}:"):
            self.source(
                "if p >= end: base += end; p -= end; data = yield",
                "else: base += p; data = bytes(data[p:]) + bytes((yield)); p = 0",
                "end = len(data)",
            )

    def refuse_if(self, condition: str, what: str, path: str) -> None:
        """Write a check."""
        if self.chunked:
            self.source(f"if {condition}: raise refuse(base + p, {what!r}, {path!r})")
        else:
            self.source(f"if {condition}: raise Malformed")

    def wants(self, path: str) -> bool:
        """Return whether anything at or below this path is wanted."""
        return any(one == path or one.startswith(path + ".") for one in self.wanted)


def path_of(layout: Layout, slot: Slot) -> str:
    """Return the dotted path of a field."""
    return ".".join((*layout.path, slot.name))


def walk_struct(walker: Walker, layout: Layout) -> None:
    """Write the walk over a struct, its tagged fields included."""
    for slot in layout.slots:
        walk_slot(walker, slot, path_of(layout, slot))
    if layout.flexible:
        walk_tags(walker, layout)


def walk_slot(walker: Walker, slot: Slot, path: str) -> None:
    """Write the walk over one field, and the report of it if it is wanted."""
    index = walker.wanted.get(path)
    if index is None:
        _walk_value(walker, slot, path, None)
        return
    source = walker.source
    if slot.width is not None and walker.nonzero:
        walker.report_number(index, slot.width)
        return
    walker.step()
    if slot.width is not None:
        source(f"add(({index}, p, p, p + {slot.width}))")
        walker.steps = slot.width
        return
    start, content, place = source.name("s"), source.name("c"), source.name("k")
    source(f"{start} = p", f"{place} = len(spans)")
    _walk_value(walker, slot, path, content)
    walker.step()
    source(f"spans.insert({place}, ({index}, {start}, {content}, p))")


def _walk_value(walker: Walker, slot: Slot, path: str, content: str | None) -> None:
    """Write the walk over a value; `content` is a variable for the start of the content behind the
    length."""
    if slot.is_array:
        _walk_array(walker, slot, path, content)
    elif slot.struct:
        _walk_inner(walker, slot, content)
    elif slot.width is not None:
        walker.steps += slot.width
    else:
        _walk_bytes(walker, slot, path, content)


def _walk_bytes(walker: Walker, slot: Slot, path: str, content: str | None) -> None:
    source = walker.source
    if slot.flexible and not walker.chunked:
        _walk_compact_bytes(walker, slot, content)
        return
    if slot.flexible:  # in chunks alone, whose walk wants no content
        walker.read_varint()
        if slot.nullable:
            source("if n: p += n - 1")
        else:
            walker.refuse_if("n == 0", "is null, but is not nullable in this version", path)
            # One step back now is one line less for every string of the walk.
            walker.steps -= 1
            source("p += n")
        return
    walker.read_number("h" if slot.kind == "string" else "i")
    if content:
        source(f"{content} = p")
    if slot.nullable:
        source("if n > 0: p += n")
        walker.refuse_if("n < -1", "a negative length", path)
    else:
        walker.refuse_if("n < 0", "is null or negative, but is not nullable", path)
        source("p += n")


def _walk_compact_bytes(walker: Walker, slot: Slot, content: str | None) -> None:
    """Write the walk over compact bytes; the collected steps are taken together with the length."""
    source, steps = walker.source, walker.steps
    walker.peek("B", "n")
    walker.steps = 0
    place = f"p + {steps}" if steps else "p"
    one, two = (f"{content} = p + {steps + size}; " if content else "" for size in (1, 2))
    source(f"if 0 < n < 128: {one}p += n{f' + {steps}' if steps else ''}")
    if slot.kind != "string":
        second = f"(b := data[p + {steps + 1}])"
        source(f"elif n and 0 < {second} < 128: {two}p += n + {steps - 127} + (b << 7)")
    if content:
        source(f"else: {content}, p = compact_span(data, {place}, {slot.nullable})")
    else:
        source(f"else: p = skip_compact_bytes(data, {place}, {slot.nullable})")


def _walk_inner(walker: Walker, slot: Slot, content: str | None) -> None:
    assert slot.struct is not None
    source = walker.source
    if not slot.nullable:
        if content:
            walker.step()
            source(f"{content} = p")
        walk_struct(walker, slot.struct)
        return
    walker.read_number("b")
    if content:
        source(f"{content} = p")
    with source.block(f"if n > {slot.null_marker}:"):
        walk_struct(walker, slot.struct)
        walker.step()
        source("pass")


def _walk_array(walker: Walker, slot: Slot, path: str, content: str | None) -> None:
    source = walker.source
    most = wire.COLLECTION_ELEMENTS_MAX
    if slot.flexible and not walker.chunked:
        walker.read_byte()
        if slot.nullable:
            source("if n > 127: n, p = count_or_null(data, p, n)")
        else:
            source("if not 0 < n < 128: n, p = count(data, p, n)")
    elif slot.flexible:
        walker.read_varint()
        walker.refuse_if(f"n > {most + 1}", f"more than {most} elements", path)
        if not slot.nullable:
            walker.refuse_if("n == 0", "is null, but is not nullable in this version", path)
    else:
        walker.read_number("i")
        low = -1 if slot.nullable else 0
        walker.refuse_if(f"not {low} <= n <= {most}", "a count that is not allowed", path)
    if content:
        source(f"{content} = p")
    _walk_elements(walker, slot, path)


def _walk_elements(walker: Walker, slot: Slot, path: str) -> None:
    """Write the walk over elements whose count is in `n`: one more in flexible versions; no element
    where it is null or empty."""
    element = attrs.evolve(slot, is_array=False, nullable=False)
    count = "n - 1" if slot.flexible else "n"
    if element.width is None:
        _walk_each(walker, element, path, count)
    else:
        walker.source(f"if n > {int(slot.flexible)}: p += ({count}) * {element.width}")


def _walk_each(walker: Walker, element: Slot, path: str, count: str) -> None:
    with walker.source.block(f"for _ in range({count}):"):
        if element.struct is not None:
            walk_struct(walker, element.struct)
        else:
            _walk_value(walker, element, path, None)
        walker.step()
        walker.source("pass")


def walk_tags(walker: Walker, layout: Layout) -> None:
    """Write the walk over a section of tagged fields."""
    source = walker.source
    path = ".".join((*layout.path, "tagged fields"))
    walker.read_byte()
    with source.block("if n:"):
        if not (layout.tagged or walker.chunked or walker.unknown_tags):
            source("p = skip_tags(data, p, n)")
            return
        number, tag, end = source.name("m"), source.name("t"), source.name("e")
        walker.steps = -1
        walker.step()
        walker.read_varint(number)
        walker.refuse_if(f"{number} > {wire.TAGS_MAX}", f"more than {wire.TAGS_MAX} tags", path)
        with source.block(f"for _ in range({number}):"):
            walker.read_varint(tag)
            size_start = source.name("z")
            if layout.tagged or walker.unknown_tags:
                source(f"{size_start} = p")
            walker.read_varint()
            word = "if"
            for slot in layout.tagged:
                below = path_of(layout, slot)
                with source.block(f"{word} {tag} == {slot.tag}:"):
                    origin = "base + " if walker.chunked else ""
                    source(f"{end} = {origin}p + n")
                    if walker.wants(below) and not walker.nonzero:
                        source(f"add((-1, {size_start}, p, {end}))")
                    walk_slot(walker, slot, below)
                    walker.step()
                    walker.refuse_if(f"{origin}p != {end}", "its tag has another size", below)
                word = "elif"
            with source.block("else:" if layout.tagged else "if True:"):
                if walker.unknown_tags:
                    source(f"add(({UNKNOWN_TAG}, {size_start}, p, p + n))")
                source("p += n")


# ── the functions ────────────────────────────────────────────────────────────────────────────


def compile_locate(
    layout: Layout,
    paths: tuple[str, ...],
    first: str | None,
    whole: bool,
    unknown_tags: bool,
    refuse: Any,
) -> Any:
    """Return `f(data, p) -> (spans, end)`; see `codec.locate`."""
    source = new_source()
    source.constant("refuse", refuse)
    wanted = {path: index for index, path in enumerate(paths)}
    walker = Walker(source, wanted, unknown_tags=unknown_tags)
    slots, tags = _part(layout, first)
    if not whole:
        last = max((i for i, s in enumerate(slots) if walker.wants(s.name)), default=-1)
        tags = tags and any(walker.wants(slot.name) for slot in layout.tagged)
        slots = slots if tags else slots[: last + 1]
    _write_locate(walker, layout, slots, tags)
    what = f"{paths} {first}"
    return source.build(f"locate {layout.name} v{layout.version} {what}", "locate")


def compile_numbers(layout: Layout, paths: tuple[str, ...], refuse: Any) -> Any:
    """Return `f(data, p) -> (numbers, end)`; see `codec.numbers`."""
    source = new_source()
    source.constant("refuse", refuse)
    walker = Walker(source, {path: index for index, path in enumerate(paths)}, nonzero=True)
    _write_locate(walker, layout, list(layout.slots), layout.flexible)
    return source.build(f"numbers {layout.name} v{layout.version} {paths}", "locate")


def _write_locate(walker: Walker, layout: Layout, slots: list[Slot], tags: bool) -> None:
    source = walker.source
    with source.block("def locate(data, p):"):
        source("start = p", "spans = []", "add = spans.append")
        with source.block("try:"):
            for slot in slots:
                walk_slot(walker, slot, slot.name)
            if tags:
                walk_tags(walker, layout)
            walker.step()
            source("if p > len(data): raise Malformed")
        with source.block("except READ_ERRORS:"):
            source("raise refuse(data, start) from None")
        source("return spans, p")


def _part(layout: Layout, first: str | None) -> tuple[list[Slot], bool]:
    """Return the untagged fields from `first` on, and whether tagged fields follow."""
    names = [slot.name for slot in layout.slots]
    if first is None:
        return list(layout.slots), layout.flexible
    if first in names:
        return list(layout.slots[names.index(first) :]), layout.flexible
    if any(slot.name == first for slot in layout.tagged):
        return [], True
    raise ValueError(f"{layout.name} v{layout.version} has no field {first!r}")


def compile_seek(layout: Layout, field: str, refuse: Any) -> Any:
    """Return a generator function without arguments; see `codec.seek`."""
    source = new_source()
    source.constant("refuse", refuse)
    walker = Walker(source, {}, chunked=True)
    slots, _ = _part(layout, field)
    before = list(layout.slots[: len(layout.slots) - len(slots)])
    with source.block("def seek():"):
        source("data = yield", "base = p = 0", "end = len(data)")
        for slot in before:
            walk_slot(walker, slot, slot.name)
        walker.step()
        source("while p > end: base += end; p -= end; data = yield; end = len(data)")
        source("return base + p")
    return source.build(f"seek {layout.name} v{layout.version} {field}", "seek")


def compile_numbers_in_chunks(layout: Layout, paths: tuple[str, ...], refuse: Any) -> Any:
    """Return a generator function without arguments; see `codec.numbers_in_chunks`."""
    source = new_source()
    source.constant("refuse", refuse)
    wanted = {path: index for index, path in enumerate(paths)}
    walker = Walker(source, wanted, chunked=True, nonzero=True)
    with source.block("def walk():"):
        source("data = yield", "base = p = 0", "end = len(data)", "found = []")
        source("add = found.append")
        walk_struct(walker, layout)
        walker.step()
        source("while p > end: base += end; p -= end; data = yield; end = len(data)")
        source("return found")
    return source.build(f"numbers in chunks {layout.name} v{layout.version} {paths}", "walk")
