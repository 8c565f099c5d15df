"""Hostile bytes: nothing but ProtocolError, which says where, in bounded memory."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, diagnose, schema
from kproxy.wire.protocol.schema import Message
from tests.versions import ALL

CUTS = 300 if ALL else 10
"""How often a message is cut off, and how often changed."""


def read(message: Message, version: int, raw: bytes) -> tuple[int | None, ProtocolError | None]:
    """Where decoding ends, or why it refuses; the other readers must say the same."""
    outcomes = []
    for reader in (
        codec.decoder(message, version),
        codec.locate(message, version, ()),
        diagnosed(message, version),
    ):
        try:
            outcomes.append((reader(raw, 0)[1], None))
        except ProtocolError as error:
            outcomes.append((None, error))
    assert [str(error) for _, error in outcomes[1:]] == [str(outcomes[0][1])] * 2
    assert [end for end, _ in outcomes[1:]] == [outcomes[0][0]] * 2
    end, error = outcomes[0]
    if error is not None:
        assert error.api_version == version
        assert error.message == message.name
        assert error.field is not None
        assert 0 <= error.offset <= len(raw)
    return end, error


def diagnosed(message: Message, version: int):
    """The plain walk as a reader."""

    def walk(raw: bytes, start: int):
        notes = diagnose.Walk(codec.layout(message, version), raw, start)
        notes.struct(notes.layout)
        return None, notes.position

    return walk


def check_refused(message: Message, version: int, raw: bytes, data: st.DataObject) -> None:
    """A message is refused by all readers or by none: cut off anywhere, with changed bytes, and in
    its place anything."""
    for size in range(0, len(raw), max(1, len(raw) // CUTS)):
        _, error = read(message, version, raw[:size])
        assert error is not None
        assert error.truncated
    for _ in range(CUTS if raw else 0):
        changed = bytearray(raw)
        place = data.draw(st.integers(0, len(raw) - 1))
        new = data.draw(st.sampled_from(HUGE) | st.binary(min_size=1, max_size=3))
        changed[place : place + len(new)] = new
        read(message, version, bytes(changed))
    read(message, version, data.draw(st.binary(max_size=100)))


HUGE = [
    b"\xff\xff\xff\xff\x0f",  # the largest varint
    b"\xff\xff\xff\xff\x1f",  # more than 32 bits
    b"\xff\xff\xff\xff\xff\x01",  # more than 5 bytes
    b"\x80\x00",  # zero in two bytes
    b"\x81\x00",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x00\x0f\x42\x40",  # exactly as many elements as are allowed
    b"\x00\x0f\x42\x41",
    b"\xc1\x84\x3d",  # … as a compact count
    b"\xc2\x84\x3d",
]


@pytest.mark.parametrize("version", [0, 8, 9, 12])
@pytest.mark.parametrize("filler", [b"\x00", b"\x01", b"\x7f", b"\xff", *HUGE])
def test_memory_is_bounded_by_the_input(version, filler):
    message = schema.named("MetadataResponse")
    decode = codec.decoder(message, version)
    for front in (b"", b"\0\0\0\0", b"\0\0\0\0\xc1\x84\x3d", b"\x00\x0f\x42\x40"):
        raw = (front + filler * 5000)[:5000]
        tracemalloc.start()
        try:
            decode(raw, 0)
        except ProtocolError:
            pass
        finally:
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert peak <= 200 * len(raw) + (1 << 20)


@pytest.mark.parametrize(
    ("name", "version", "raw", "text"),
    [
        (
            "MetadataRequest",
            1,
            "00000001 0005 61",
            "MetadataRequest v1 topics.name at offset 6: needs 5 more bytes, 1 are left",
        ),
        (
            "MetadataRequest",
            0,
            "ffffffff",
            "MetadataRequest v0 topics at offset 4: is null, but is not nullable in this version",
        ),
        (
            "MetadataRequest",
            1,
            "fffffffe",
            "MetadataRequest v1 topics at offset 4: a length of -2",
        ),
        (
            "MetadataRequest",
            1,
            "000f4241",
            (
                "MetadataRequest v1 topics at offset 4:"
                " 1000001 elements, more than 1000000 are not allowed"
            ),
        ),
        (
            "ApiVersionsResponse",
            3,
            "0000 01 00000000 01 03 02 0100",
            (
                "ApiVersionsResponse v3 zk_migration_ready at offset 11:"
                " its tag says 2 bytes, it takes 1"
            ),
        ),
        (
            "ApiVersionsResponse",
            3,
            "0000 01 00000000 914e",
            (
                "ApiVersionsResponse v3 tagged fields at offset 9:"
                " 10001 tags, more than 10000 are not allowed"
            ),
        ),
        (
            "ApiVersionsRequest",
            3,
            "ffffffffffff",
            (
                "ApiVersionsRequest v3 client_software_name at offset 5:"
                " a varint has more than 5 bytes"
            ),
        ),
    ],
)
def test_a_refusal_says_what_and_where(name, version, raw, text):
    _, error = read(schema.named(name), version, bytes.fromhex(raw))
    assert str(error) == text


@given(st.binary(max_size=60))
def test_frames_of_random_bytes(raw):
    for decode in (
        protocol.decode_request,
        protocol.request_body,
        lambda frame: protocol.decode_response(frame, 3, 9),
        lambda frame: protocol.response_body(frame, 3, 9),
    ):
        for frame in (raw, len(raw).to_bytes(4, "big") + raw):
            with contextlib.suppress(ProtocolError):
                decode(frame)


def test_tagged_fields_in_their_tens_of_thousands_are_refused_quickly():
    raw = bytes.fromhex("0000 01 00000000 ffffffff0f") + b"\x05\x00" * 100_000
    _, error = read(schema.named("ApiVersionsResponse"), 3, raw)
    assert "tags" in str(error)
