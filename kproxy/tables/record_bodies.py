"""Find records or offsets in small bodies of one partition, in many bodies at once.

::

    frames of one message and version ─▶ walk of its layout, one field of all frames at a time
                                           ─▶ topic, partition, and the bytes of a field

Most bodies that carry records are small and alike: one topic, one partition, no tagged fields. They
are read here; others, and malformed ones, are left to the decoder (`protocol.decode_request_body`
and others).

Invariant: the results are those of the decoder; a body that the decoder refuses gives none.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import numpy as np

from kproxy.exchange.meanings import PARTITION, PREDICATES, TOPIC, Meaning
from kproxy.protocol import ProtocolError, codec, schema
from kproxy.protocol.schema import Layout, Slot
from kproxy.protocol.select import select
from kproxy.tables.record_spans import UnusualError, varints

_PADDING = bytes(64)
_STRING_BYTES_MAX = 32767


class RecordsPlace(NamedTuple):
    """The topic and partition of a body, and the place of its field."""

    topic: str | UUID
    partition: int
    start: int
    """Offset in the frame at which the field begins, after its length."""
    stop: int
    """Offset in the frame at which the field ends."""


class RecordsShape(NamedTuple):
    """The position of the field in a version of a message."""

    layout: Layout
    topics: str
    partitions: str
    topic: Slot
    partition: Slot
    field: Slot


@functools.cache
def shape(api_key: int, version: int, direction: str, wanted: Meaning) -> RecordsShape | None:
    """Return the position of the field in a version, if it is in partitions in topics, and nowhere
    else; or None."""
    message = schema.message(api_key, direction)
    if message is None or version not in message.versions:
        return None
    places = [
        each for each in select(message, PREDICATES[wanted]).places if each.in_version(version)
    ]
    if len(places) != 1 or len(places[0].fields) != 3:
        return None
    topics, partitions, field = (each.name for each in places[0].fields)
    layout = codec.layout(message, version)
    of_topic = _inner(layout, topics)
    of_partition = None if of_topic is None else _inner(of_topic, partitions)
    if of_topic is None or of_partition is None:
        return None
    names = [each for each in of_topic.slots if PREDICATES[TOPIC](each.field, ())]
    beside = places[0].beside
    numbers = [each for each in of_partition.slots if PREDICATES[PARTITION](each.field, beside)]
    found = of_partition.slot(field)
    if len(names) != 1 or len(numbers) != 1 or found is None or found.tag is not None:
        return None
    return RecordsShape(layout, topics, partitions, names[0], numbers[0], found)


def _inner(layout: Layout, name: str) -> Layout | None:
    slot = layout.slot(name)
    return slot.struct if slot is not None and slot.tag is None and slot.is_array else None


def find(frames: Sequence[bytes], shape: RecordsShape) -> list[RecordsPlace | None]:
    """Return the place of the field in each frame; None for frames that must be decoded."""
    joined = b"".join([*frames, _PADDING])
    ends = np.cumsum(np.fromiter(map(len, frames), np.int64, len(frames)))
    starts = np.append(0, ends[:-1])
    walk = _BodyWalk(np.frombuffer(joined, np.uint8), starts, ends, shape)
    try:
        walk.header()
        walk.struct(shape.layout)
    except (UnusualError, ProtocolError):
        return [None] * len(frames)
    walk.ok &= walk.p == ends
    topic_starts, topic_stops = walk.spans["topic"]
    first, last = walk.spans["field"]
    spans = (each.tolist() for each in (walk.ok, topic_starts, topic_stops, walk.partition))
    of_field = (each.tolist() for each in (first - starts, last - starts))
    names: dict[bytes, str | UUID] = {}
    by_id = shape.topic.kind == "uuid"
    found: list[RecordsPlace | None] = []
    for ok, begin, end, partition, start, stop in zip(*spans, *of_field, strict=True):
        if not ok:
            found.append(None)
            continue
        raw = joined[begin:end]
        topic = names.get(raw)
        if topic is None:
            text = UUID(bytes=raw) if by_id else raw.decode("utf-8", "surrogateescape")
            topic = names[raw] = text
        found.append(RecordsPlace(topic, partition, start, stop))
    return found


@attrs.define(eq=False)
class _BodyWalk:
    """A walk over many frames in parallel; `ok` is False for frames that must be decoded."""

    data: Any
    p: Any
    ends: Any
    shape: RecordsShape
    ok: Any = attrs.field(default=attrs.Factory(lambda self: self.p < self.ends, True))
    partition: Any = None
    spans: dict[str, tuple[Any, Any]] = attrs.field(factory=dict)

    def header(self) -> None:
        """Walk over the header in front of the body."""
        message = self.shape.layout.message
        self.need(self.number(4) == self.ends - self.p)
        request = message.direction == schema.REQUEST
        if request:
            self.need(self.number(2) == message.api_key)
            self.need(self.number(2) == self.shape.layout.version)
            self.step(4)
            length = self.number(2)
            self.need(length >= 0)
            self.step(np.maximum(length, 0))
            flexible = codec.request_header_version(message.api_key, self.shape.layout.version) == 2
        else:
            self.step(4)
            flexible = codec.response_header_version(message.api_key, self.shape.layout.version) > 0
        if flexible:
            self.need(self.number(1) == 0)

    def struct(self, layout: Layout) -> None:
        """Walk over a struct without tagged fields."""
        for slot in layout.slots:
            name = self._name(slot)
            begin = self.p
            if slot.is_array:
                self.array(slot)
            elif slot.width is not None:
                if name == "partition":
                    self.partition = self.number(slot.width)
                else:
                    self.step(slot.width)
            elif slot.struct is not None:
                raise UnusualError
            else:
                begin = self.bytes(slot)
            if name is not None:
                self.spans[name] = begin, self.p
            if name == "topic":
                self.need(self.p > begin)
        if layout.flexible:
            self.need(self.number(1) == 0)

    def _name(self, slot: Slot) -> str | None:
        for name in ("topic", "partition", "field"):
            if slot is getattr(self.shape, name):
                return name
        return None

    def array(self, slot: Slot) -> None:
        """Walk over an array: of one element if it contains the field, otherwise empty."""
        count = self.length(slot, 4)
        if slot.struct is None or slot.name not in (self.shape.topics, self.shape.partitions):
            self.need((count == 0) | (count == -1) if slot.nullable else count == 0)
            return
        self.need(count == 1)
        self.struct(slot.struct)

    def bytes(self, slot: Slot) -> Any:
        """Walk over bytes or text; return where they begin."""
        is_text = slot.kind == "string"
        length = self.length(slot, 2 if is_text else 4)
        self.need(length >= (-1 if slot.nullable else 0))
        if is_text:
            self.need(length <= _STRING_BYTES_MAX)
        begin = self.p
        self.step(np.maximum(length, 0))
        return begin

    def length(self, slot: Slot, width: int) -> Any:
        """Read a length or a count."""
        if not slot.flexible:
            return self.number(width)
        n, p = varints(self.data, self.p)
        self.step(p - self.p)
        return n - 1

    def number(self, width: int) -> Any:
        """Read a number."""
        raw = self.data[self.p[:, np.newaxis] + np.arange(width)]
        self.step(width)
        return raw.view(f">i{width}").ravel().astype(np.int64)

    def step(self, size: Any) -> None:
        """Advance in each frame, at most to its end."""
        self.p = self.p + size
        self.need(self.p <= self.ends)
        self.p = np.minimum(self.p, self.ends)

    def need(self, condition: Any) -> None:
        """Clear `ok` of the frames that do not meet a condition."""
        self.ok &= condition
