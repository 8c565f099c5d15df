"""Every message, with anything in it, is the same to all who read it: byte for byte.

The codec, whole and in steps; frames; `locate`, `seek` and `select`; JSON; and what is damaged is
refused by all of them alike.
"""

from __future__ import annotations

import base64
import json
import math
import uuid

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, diagnose, schema
from kproxy.wire.protocol.schema import Layout, Message, Slot
from kproxy.wire.protocol.select import select
from tests.versions import versions
from tests.wire.protocol.making import MESSAGES, decoded, encoded, few, title
from tests.wire.protocol.strategies import bodies
from tests.wire.protocol.test_compile_locate import sought, start_of
from tests.wire.protocol.test_diagnose import check_refused
from tests.wire.protocol.test_plain import text


@pytest.mark.parametrize("message", MESSAGES, ids=title)
def test_every_message_is_the_same_to_all_who_read_it(message):
    @few(16)
    @given(st.data())
    def check(data):
        version = data.draw(st.sampled_from(versions(message)))
        body = data.draw(bodies(message, version))
        if message.name == "ApiVersionsResponse" and body.error_code == 35:
            body.error_code = 0  # such an answer is one of version 0
        raw = encoded(message, version, body)
        assert decoded(message, version, raw) == body
        check_in_steps(message, version, body, raw)
        if message.api_key is not None:
            check_frame(message, version, body, raw, data)
            found = protocol.to_json(body, version)
            assert json.loads(json.dumps(found, allow_nan=False)) == found
            assert found == expected(body, codec.layout(message, version))
        check_refused(message, version, raw, data)
        paths = all_paths(codec.layout(message, version))
        check_paths(message, version, raw, paths, data.draw(st.sampled_from(paths or [None])))
        check_tags(message, version, body, raw)
        check_contents(message, version, body, raw)
        check_selected(message, version, body)
        layout = codec.layout(message, version)
        if slots := (*layout.slots, *layout.tagged):
            slot = data.draw(st.sampled_from(slots))
            start = start_of(message, version, slot.name, raw)
            check_first(message, version, slot, raw, start)
            check_seek(message, version, slot, raw, start, data.draw(st.integers(2, 9)))

    check()


def in_steps(work):
    """The result of work in steps."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return done.value


def check_in_steps(message, version, body, data):
    """The readers and writers that pause between elements do the same."""
    parts = list[bytes]()
    for _ in codec.encoder_in_steps(message, version)(body, parts.append):
        pass
    assert b"".join(parts) == data
    assert in_steps(codec.decoder_in_steps(message, version)(data, 0)) == (body, len(data))
    large = codec.decoder_in_steps(message, version)(bytearray(data), 0)
    found, _ = in_steps(large)
    assert repr(found) == repr(body), "not a bytearray anywhere"
    if data:
        with pytest.raises(ProtocolError, match=f"^{message.name} v{version}: does not follow"):
            in_steps(codec.decoder_in_steps(message, version)(data[:-1], 0))


def check_frame(message, version, body, raw, data):
    """In a frame, with a header, and bytes that nobody knows behind it."""
    header = schema.named("RequestHeader" if message.direction == "request" else "ResponseHeader")
    trailing = data.draw(st.binary(max_size=2))
    if message.direction == "request":
        head_version = protocol.request_header_version(message.api_key, version)
        head = data.draw(bodies(header, head_version))
        head = attrs.evolve(head, api_key=message.api_key, api_version=version)
        frame = protocol.encode_request(protocol.Request(head, body, trailing))
        found = protocol.decode_request(frame)
        assert protocol.encode_request(found) == frame
        start = protocol.request_body(frame)
    else:
        head_version = protocol.response_header_version(message.api_key, version)
        head = data.draw(bodies(header, head_version))
        response = protocol.Response(head, body, version, trailing)
        frame = protocol.encode_response(response, message.api_key)
        found = protocol.decode_response(frame, message.api_key, version)
        assert found.body_version == version
        assert protocol.encode_response(found, message.api_key) == frame
        start = protocol.response_body(frame, message.api_key, version)
    assert (found.header, found.body, found.trailing) == (head, body, trailing)
    assert frame[start:] == raw + trailing


@attrs.define(eq=False)
class Notes(diagnose.Walk):
    """A walk that notes where each field is; what `locate` is held against."""

    found: list[tuple[str, int, int]] = attrs.Factory(list)

    def slot(self, slot, path):
        """Walk one field and note it; array elements are part of their array."""
        place, start = len(self.found), self.position
        super().slot(slot, path)
        if slot.is_array or slot.struct is None or slot.field.type == slot.struct.name:
            self.found.insert(place, (path, start, self.position))


def noted(message: Message, version: int, data: bytes) -> list[tuple[str, int, int]]:
    """(path, start, end) of every field, in byte order, outer before inner."""
    layout = codec.layout(message, version)
    notes = Notes(layout, data, 0)
    notes.struct(layout)
    arrays = {path for path in all_paths(layout) if slot_at(layout, path).is_array}
    found: list[tuple[str, int, int]] = []
    end_of_array: dict[str, int] = {}
    for path, start, end in notes.found:
        # An array of primitives notes its elements under its own path: only the array counts.
        if path in arrays and start < end_of_array.get(path, -1):
            continue
        end_of_array[path] = end
        found.append((path, start, end))
    return found


def all_paths(layout: Layout) -> list[str]:
    """The dotted path of every field of a version."""
    found = []
    for slot in layout.slots + layout.tagged:
        found.append(".".join((*layout.path, slot.name)))
        if slot.struct:
            found += all_paths(slot.struct)
    return found


def slot_at(layout: Layout, path: str) -> Slot:
    """The field at this path."""
    *above, name = path.split(".")
    for step in above:
        layout = layout.slot(step).struct
    return layout.slot(name)


def check_paths(message, version, raw, paths, one):
    """Every field is where the plain walk has it; alone as well, wherever the message starts."""
    spans, end = codec.locate(message, version, tuple(paths))(raw, 0)
    assert end == len(raw)
    found = [(paths[i], start, stop) for i, start, _, stop in spans if i >= 0]
    assert found == noted(message, version, raw)
    if one:
        alone, end = codec.locate(message, version, (one,))(b"head" + raw, 4)
        assert end == len(raw) + 4
        wanted = [(start, stop) for path, start, stop in found if path == one]
        assert [(s - 4, e - 4) for i, s, _, e in alone if i == 0] == wanted


def check_tags(message, version, body, raw):
    """Unknown tags are located at any depth."""
    spans, end = codec.locate(message, version, (), unknown_tags=True)(raw, 0)
    assert end == len(raw)
    assert sorted(raw[content:stop] for _, _, content, stop in spans) == sorted(tags_of(body))
    assert {index for index, *_ in spans} <= {-2}


def tags_of(value):
    """The contents of all unknown tags in a value."""
    if isinstance(value, list):
        return [content for each in value for content in tags_of(each)]
    slots = getattr(type(value), "__slots__", ()) if hasattr(value, "unknown_tags") else ()
    below = [c for slot in slots if slot != "unknown_tags" for c in tags_of(getattr(value, slot))]
    return [content for _, content in getattr(value, "unknown_tags", ())] + below


def check_contents(message, version, body, raw):
    """The content of strings comes behind their length."""
    slots = codec.layout(message, version).slots
    names = [slot.name for slot in slots if slot.kind == "string" and not slot.is_array]
    spans, _ = codec.locate(message, version, tuple(names))(raw, 0)
    assert len(spans) == len(names)
    for index, start, content, end in spans:
        value = getattr(body, names[index])
        assert raw[content:end].decode("utf-8", "surrogateescape") == (value or "")
        assert content > start


def check_first(message, version, slot, raw, start):
    """A walk from a field on finds the same; so does one that does not go to the end."""
    layout = codec.layout(message, version)
    paths = tuple(path for path in all_paths(layout) if f"{path}.".startswith(f"{slot.name}."))
    found = codec.locate(message, version, paths)(raw, 0)
    assert codec.locate(message, version, paths, first=slot.name)(raw, start) == found
    spans, end = codec.locate(message, version, paths, whole=False)(raw, 0)
    assert spans == found[0]
    assert end == len(raw) if slot.tag is not None else end <= len(raw)


def check_seek(message, version, slot, raw, start, size):
    """seek stops where the field starts, however the bytes arrive."""
    for step in (1, size, max(len(raw), 1)):
        chunks = [raw[at : at + step] for at in range(0, len(raw), step)] or [b""]
        offset, sent = sought(message, version, slot.name, chunks)
        assert offset == start
        assert start <= sent < start + step + 1


def check_selected(message, version, body):
    """`select` finds each field, and has its path."""
    selection = select(message, lambda field, beside: True)
    assert len(selection.values(body)) == len(selection.found(body))
    assert set(selection.paths(version)) == set(all_paths(codec.layout(message, version)))


def expected(struct, layout):
    """The same from the layout, slot by slot."""
    slots = layout.slots + layout.tagged
    found = {slot.name: value(slot, getattr(struct, slot.name)) for slot in slots}
    known = {slot.tag for slot in layout.tagged}
    unknown = {str(tag): text(raw) for tag, raw in struct.unknown_tags if tag not in known}
    return found | ({"unknown_tags": unknown} if unknown else {})


def value(slot, found):
    if isinstance(found, list):
        return [value(slot, each) for each in found]
    if isinstance(found, bytes):
        return text(found)
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    if isinstance(found, uuid.UUID):
        return base64.urlsafe_b64encode(found.bytes).decode().rstrip("=")
    return found if slot.struct is None or found is None else expected(found, slot.struct)
