"""Hypothesis strategies for Kafka's messages, made from the same table as the codec.

`bodies(message, version)` draws objects whose every field of that version is anything that the
definition allows: null, empty, unicode, bytes that are not UTF-8, the ends of the number ranges,
lengths that need long varints, unknown tags, defaults. Fields of other versions keep their
defaults, as they do when bytes of that version are decoded.
"""

from __future__ import annotations

import functools
from typing import Any

import hypothesis
from hypothesis import strategies as st

from kproxy.wire.protocol import messages, schema
from kproxy.wire.protocol.diagnose import RANGES
from kproxy.wire.protocol.schema import Layout, Message, Slot
from tests.wire.protocol.making import encoded

LONG = 130
"""Longer than what a one-byte varint can say."""

TEXT = st.one_of(
    st.text(max_size=6),
    st.sampled_from(["", "topic", "Grüße", "日本", "x" * LONG]),
)
TEXT_OF_ANY_BYTES = st.one_of(
    TEXT, st.binary(max_size=4).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
)
BYTES = st.one_of(st.binary(max_size=6), st.just(b"\x80" * LONG))
NUMBERS = {
    kind: st.one_of(st.sampled_from([low, -1 if low else 1, 0, 1, high]), st.integers(low, high))
    for kind, (low, high) in RANGES.items()
}
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    **NUMBERS,
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.one_of(st.just(schema.NO_UUID), st.uuids()),
    "bytes": BYTES,
    "records": BYTES,
}


@functools.cache
def bodies(
    message: Message, version: int, tame: bool = False, tags: bool = True
) -> st.SearchStrategy[Any]:
    """Objects of the message's class, in one version.

    `tame` ones hold only what other implementations accept: strings that are unicode, error codes
    that exist, plausible times, no tags that could be left out or that another version knows.
    Without `tags` there are no unknown tags at all.
    """
    return _struct(schema.layout(message, version), tame, tags)


def drawn(message: Message, version: int, count: int, tags: bool = True) -> list[bytes]:
    """The encodings of some bodies.

    Tame ones: Java replaces what is not UTF-8, and refuses a tag that only later versions have.
    """
    found: list[bytes] = []

    @hypothesis.settings(
        max_examples=count,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(bodies(message, version, tame=True, tags=tags))
    def draw(body: Any) -> None:
        found.append(encoded(message, version, body))

    draw()
    return found


def _struct(layout: Layout, tame: bool, tags: bool) -> st.SearchStrategy[Any]:
    cls: Any = messages.message_class(layout.message.name)
    if layout.path:
        cls = getattr(cls, layout.name)
    fields = {slot.name: _slot(slot, tame, tags) for slot in layout.slots}
    for slot in layout.tagged:
        # Half of them absent: then they have their default.
        default = getattr(cls(), slot.name)
        some = _slot(slot, tame, tags)
        if tame:
            some = some.map(_without_defaults)
        fields[slot.name] = st.one_of(st.just(default), some)
    if layout.flexible and tags:
        known = {slot.tag for slot in layout.tagged}
        if tame:
            known |= {field.tag for field in layout.absent}
        numbers = st.sampled_from([n for n in (0, 1, 5, 127, 128, 20_000) if n not in known])
        some = st.dictionaries(numbers, BYTES, max_size=2)
        pairs = some.map(lambda found: tuple(sorted(found.items())))
        fields["unknown_tags"] = st.one_of(st.just(()), pairs)
    return st.builds(cls, **fields)


def _without_defaults(value: Any) -> Any:
    """None for a struct of defaults: other implementations do not send it."""
    return None if hasattr(value, "unknown_tags") and value == type(value)() else value


def _slot(slot: Slot, tame: bool, tags: bool) -> st.SearchStrategy[Any]:
    if slot.struct:
        one = _struct(slot.struct, tame, tags)
    elif tame and slot.kind == "int16" and slot.name.endswith("error_code"):
        one = st.sampled_from([-1, 0, 1, 35, 100])
    elif tame and slot.kind == "int64" and slot.name.endswith("_ms"):
        one = st.integers(0, 1 << 40)
    elif slot.kind == "string":
        one = TEXT if tame else TEXT_OF_ANY_BYTES
    else:
        one = SCALARS[slot.kind]
    if slot.is_array:
        some = st.lists(one, max_size=2)
        one = some if slot.struct else st.one_of(some, st.lists(one, min_size=40, max_size=LONG))
        if slot.kind not in ("int32", "int16", "int64", "uuid"):
            one = some
    return st.one_of(st.none(), one) if slot.nullable else one
