"""Protobuf's bytes as plain values: its own mapping to JSON is the same; hostile files and bytes
cost little."""

from __future__ import annotations

import base64
import math
from typing import Any

import pytest
from google.protobuf import any_pb2, json_format, struct_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire.payloads import protobuf
from kproxy.wire.payloads.framing import Framed
from kproxy.wire.payloads.plain import PayloadError, SchemaError
from tests.wire.payloads.protos import SCALARS, classes, file, schema

KNOWN = ("any", "struct", "timestamp", "wrappers")
FILE = file(
    "tests/all.proto",
    {
        "All": [
            *(f"{kind} one_{kind} = {nth}" for nth, kind in enumerate(SCALARS, 1)),
            *(f"repeated {kind} some_{kind} = {nth}" for nth, kind in enumerate(SCALARS, 101)),
            "All child = 201",
            "repeated All children = 202",
            ".google.protobuf.Any any = 203",
            ".google.protobuf.Timestamp at = 204",
            ".google.protobuf.Struct struct = 205",
            ".google.protobuf.Int64Value wrapped = 206",
        ],
        "Other": ["string name = 1"],
    },
    tuple(f"google/protobuf/{name}.proto" for name in KNOWN),
)
ALL = classes(FILE)["All"]
READ = protobuf.compiled(schema(FILE).definition)


def read(data: bytes, indexes: bytes = b"\0") -> Any:
    return READ(Framed(1, indexes + data, indexes + data, in_header=False))[0]


def theirs(message: Any) -> Any:
    pool = message.DESCRIPTOR.file.pool
    names = {"preserving_proto_field_name": True}
    return json_format.MessageToDict(message, **names, descriptor_pool=pool)


KINDS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "string": st.text(max_size=5),
    "bytes": st.binary(max_size=5),
    "double": st.floats(),
    "float": st.floats(width=32),
}
KINDS |= {
    kind: st.integers(0 if kind[0] in "uf" else -(1 << 31), (1 << 31) - 1)
    for kind in SCALARS
    if kind not in KINDS
}
scalars = st.fixed_dictionaries(
    {},
    optional={f"one_{kind}": values for kind, values in KINDS.items()}
    | {f"some_{kind}": st.lists(values, max_size=3) for kind, values in KINDS.items()},
)


@given(scalars, scalars)
def test_it_maps_as_protobuf_does(one: dict[str, Any], other: dict[str, Any]) -> None:
    message = ALL(**one, child=ALL(**other), children=[ALL(), ALL(**other)])
    assert read(message.SerializeToString()) == theirs(message)


def test_well_known_types_are_texts_and_values() -> None:
    struct = struct_pb2.Struct()
    struct.update({"a": [1.5, None, {"b": True}]})
    message = ALL()
    message.struct.MergeFrom(type(message.struct).FromString(struct.SerializeToString()))
    message.at.FromJsonString("2026-03-01T09:30:00Z")
    message.wrapped.value = 7
    message.any.type_url = "type.googleapis.com/google.protobuf.Timestamp"
    message.any.value = timestamp_pb2.Timestamp(seconds=1).SerializeToString()
    assert read(message.SerializeToString()) == theirs(message)


def test_an_any_of_an_unknown_type_hides_nothing_else() -> None:
    message = ALL(one_string="seen")
    message.any.type_url, message.any.value = "type.googleapis.com/shop.Nope", b"\1\2"
    unknown = {"@type": "type.googleapis.com/shop.Nope", "value": "AQI="}
    assert read(message.SerializeToString()) == {"one_string": "seen", "any": unknown}


def test_message_indexes_choose_the_message() -> None:
    assert read(b"\x0a\3ann", b"\2\2") == {"name": "ann"}
    for indexes in (b"\2\4", b"\2\1", b"\4\0\0", b"\1", b"\xff" * 9, b"\x90\x90\x01"):
        with pytest.raises(PayloadError, match="message"):
            read(b"\x0a\3ann", indexes)


def test_fields_that_the_file_lacks_are_said() -> None:
    with pytest.raises(PayloadError, match="none of the schema's fields"):
        read(b"\xfa\x3f\1a")
    beside = b"\2\2\x0a\3ann\xfa\x3f\1a"
    by = READ(Framed(1, beside, beside, in_header=False))[1]
    assert by == "Protobuf shop.Other without unknown fields"


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xda\x0c", b"\xd2\x0c\x04", b"\0", b"\2\2"]))
def test_whatever_the_bytes_are_they_are_read_or_refused(data: bytes, front: bytes) -> None:
    try:
        read(front + data)
    except PayloadError as error:
        assert len(str(error)) < 100


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4))
def test_whatever_the_file_is_it_is_used_or_refused(changes: list[tuple[int, int]]) -> None:
    files = FileDescriptorSet(file=[file("b.proto", {"B": ["int64 id = 1", "B more = 2"]})])
    data = bytearray(files.SerializeToString())
    for at, byte in changes:
        data[at % len(data)] = byte
    try:
        found = protobuf.compiled(base64.b64encode(data).decode())
        found(Framed(1, b"\0\x08\1", b"", in_header=False))
    except (SchemaError, PayloadError) as error:
        assert len(str(error)) < 120


def nested(field: bytes, times: int) -> bytes:
    """Bytes of a message in a message …; of the tag of a field."""
    data = b""
    for _ in range(times):
        size, length = b"", len(data)
        while length > 0x7F:
            size, length = size + bytes([length & 0x7F | 0x80]), length >> 7
        data = field + size + bytes([length]) + data
    return data


def test_few_bytes_do_not_become_a_large_value() -> None:
    with pytest.raises(PayloadError, match=r"it is no shop\.All"):
        read(nested(b"\xca\x0c", 5000))
    wide = file(
        "w.proto", {"W": ["repeated W more = 1", *(f"int64 f{n} = {n}" for n in range(2, 4000))]}
    )
    found = protobuf.compiled(schema(wide).definition)
    data = b"\0" + b"\x0a\0" * 100_000
    with pytest.raises(PayloadError, match="too much memory"):
        found(Framed(1, data, data, in_header=False))
    long = file("l.proto", {"L": [f"repeated L {'n' * 5000} = 1"]})
    data = b"\0" + b"\x0a\2\x0a\0" * 20_000
    with pytest.raises(PayloadError, match="it is too large"):
        protobuf.compiled(schema(long).definition)(Framed(1, data, data, in_header=False))


def test_any_in_any_ends() -> None:
    message = any_pb2.Any()
    for _ in range(300):
        outer = any_pb2.Any(type_url="/google.protobuf.Any", value=message.SerializeToString())
        message = outer
    whole = ALL()
    whole.any.ParseFromString(message.SerializeToString())
    with pytest.raises(PayloadError, match="nested too deeply"):
        read(whole.SerializeToString())


def test_a_file_that_is_none_says_so() -> None:
    for definition in ("", "!", base64.b64encode(b"\xff\xff").decode(), 'syntax = "proto3";'):
        with pytest.raises(SchemaError, match="is none of Protobuf"):
            protobuf.compiled(definition)


def test_numbers_that_json_lacks_are_texts() -> None:
    assert read(ALL(some_float=[math.nan, math.inf, 0.1]).SerializeToString()) == {
        "some_float": ["NaN", "Infinity", 0.1]
    }
