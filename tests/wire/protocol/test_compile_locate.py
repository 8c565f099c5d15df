"""locate and seek find what decode reads, and refuse what it refuses."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.protocol import ProtocolError, codec, diagnose, messages, schema
from kproxy.wire.protocol.schema import Layout, Message, Slot
from tests.wire.protocol.making import MESSAGES, encoded, few, title
from tests.wire.protocol.strategies import bodies


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


@pytest.mark.parametrize("message", MESSAGES, ids=title)
def test_every_field_is_located_where_it_is(message):
    """All paths at once and each alone, tags, contents, walks from a field on, seek in chunks of
    any size: on the same bytes."""

    @few(16)
    @given(st.data())
    def check(data):
        version = data.draw(st.sampled_from(message.versions))
        body = data.draw(bodies(message, version))
        raw = encoded(message, version, body)
        size = data.draw(st.integers(2, 9))
        check_paths(message, version, raw)
        check_tags(message, version, body, raw)
        check_contents(message, version, body, raw)
        layout = codec.layout(message, version)
        for slot in (*layout.slots, *layout.tagged):
            start = start_of(message, version, slot.name, raw)
            check_first(message, version, slot, raw, start)
            check_seek(message, version, slot, raw, start, size)

    check()


def check_paths(message, version, raw):
    """Every field is where the plain walk has it; alone as well, wherever the message starts."""
    paths = tuple(all_paths(codec.layout(message, version)))
    spans, end = codec.locate(message, version, paths)(raw, 0)
    assert end == len(raw)
    found = [(paths[i], start, stop) for i, start, _, stop in spans if i >= 0]
    assert found == noted(message, version, raw)
    for path in paths[:: max(1, len(paths) // 3)]:
        alone, end = codec.locate(message, version, (path,))(b"head" + raw, 4)
        assert end == len(raw) + 4
        wanted = [(start, stop) for one, start, stop in found if one == path]
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


def start_of(message: Message, version: int, name: str, raw: bytes) -> int:
    """Where a top-level field starts, or of a tagged one the tagged section."""
    layout = codec.layout(message, version)
    walk = diagnose.Walk(layout, raw, 0)
    for slot in layout.slots:
        if slot.name == name:
            break
        walk.slot(slot, slot.name)
    return walk.position


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


def sought(message: Message, version: int, name: str, chunks: list[bytes]) -> tuple[int, int]:
    """What `seek` returns, and how many bytes it was sent."""
    walk = codec.seek(message, version, name)
    next(walk)
    sent = 0
    for chunk in chunks:
        sent += len(chunk)
        try:
            walk.send(chunk)
        except StopIteration as stop:
            return stop.value, sent
    raise AssertionError("the end was reached before the field")


# ── by hand ──────────────────────────────────────────────────────────────────────────────────

FETCH = schema.named("FetchResponse")


def fetch(*endpoints: messages.FetchResponse.NodeEndpoint) -> bytes:
    """A Fetch response v17 with one partition and these endpoints behind it."""
    partition = messages.FetchResponse.PartitionData(records=b"r" * 200)
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    body = messages.FetchResponse(responses=[topic], node_endpoints=list(endpoints))
    return encoded(FETCH, 17, body)


def test_a_tagged_field_comes_with_its_size():
    raw = fetch(
        messages.FetchResponse.NodeEndpoint(node_id=1, host="one"),
        messages.FetchResponse.NodeEndpoint(node_id=2, host="two"),
    )
    spans, end = codec.locate(FETCH, 17, ("node_endpoints.host", "node_endpoints"))(raw, 0)
    around, whole, one, two = spans
    assert end == around[3] == whole[3] == len(raw)
    assert around[0] == -1
    assert around[2] - around[1] == 1
    assert raw[around[1]] == around[3] - around[2]
    assert whole == (1, around[2], around[2] + 1, end)
    assert [raw[s:e] for _, s, _, e in (one, two)] == [b"\x04one", b"\x04two"]
    assert [raw[c:e] for _, _, c, e in (one, two)] == [b"one", b"two"]


def test_without_endpoints_there_is_nothing_to_locate():
    raw = fetch()
    assert codec.locate(FETCH, 17, ("node_endpoints.host",))(raw, 0) == ([], len(raw))
    assert codec.locate(FETCH, 4, ("node_endpoints.host",))(bytes(8), 0) == ([], 8)


def test_seek_streams_records_without_keeping_them():
    partition = messages.FetchResponse.PartitionData(records=b"r" * 5_000_000)
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[partition])
    raw = encoded(FETCH, 17, messages.FetchResponse(responses=[topic, topic]))
    chunks = [raw[at : at + 65536] for at in range(0, len(raw), 65536)]
    assert sought(FETCH, 17, "node_endpoints", chunks) == (len(raw) - 1, len(raw))


def test_seek_refuses_what_is_malformed():
    walk = codec.seek(FETCH, 17, "node_endpoints")
    next(walk)
    with pytest.raises(ProtocolError, match=r"^FetchResponse v17 responses .*is null"):
        walk.send(bytes(12))
    for raw in ("ff" * 20, "00" * 10 + "ffffffff0f"):
        walk = codec.seek(FETCH, 17, "node_endpoints")
        next(walk)
        with pytest.raises(ProtocolError):
            walk.send(bytes.fromhex(raw))
            walk.send(bytes(10))


def test_a_refusal_behind_the_first_field_names_field_and_offset():
    raw = fetch(messages.FetchResponse.NodeEndpoint(node_id=1, host="one"))
    start = start_of(FETCH, 17, "node_endpoints", raw)
    locate = codec.locate(FETCH, 17, ("node_endpoints.host",), first="node_endpoints")
    refused = rf"node_endpoints.* at offset {len(raw) - 1}"
    with pytest.raises(ProtocolError, match=refused) as caught:
        locate(raw[:-1], start)
    assert caught.value.truncated
    message = schema.named("MetadataRequest")
    locate = codec.locate(message, 12, (), first="allow_auto_topic_creation")
    with pytest.raises(ProtocolError, match="allow_auto_topic_creation at offset 5: needs 1 more"):
        locate(b"12345", 5)


@pytest.mark.parametrize("path", ["nonsense", "topics.nonsense", "topics.name.length"])
def test_a_path_that_no_version_has_is_a_mistake(path):
    with pytest.raises(ValueError, match="has no field"):
        codec.locate(schema.named("MetadataResponse"), 12, (path,))


def test_asking_for_what_a_version_does_not_have_is_a_mistake():
    with pytest.raises(ValueError, match="no field 'node_endpoints'"):
        codec.seek(FETCH, 4, "node_endpoints")
    with pytest.raises(ValueError, match="has no version 99"):
        codec.locate(FETCH, 99, ())
