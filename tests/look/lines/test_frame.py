"""`kproxy show --frame`, `--follow` and `--records`."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.exchange.pairing import pair
from kproxy.look.lines import frame
from kproxy.look.lines.lines import LineStyle
from kproxy.look.lines.show import show_records
from kproxy.wire import protocol
from kproxy.wire.protocol import codec, messages, records, schema
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.batches import marker
from tests.exchange.bodies import (
    exchange,
    fetch_request,
    fetch_response,
    filled,
    produce_request,
    produce_response,
    subscription,
)
from tests.exchange.making import answer, closed, opened, request, response
from tests.recording.making import write
from tests.versions import ALL

M = messages
HEX = re.compile(r"^([0-9a-f]{4,})  ((?:[0-9a-f]{2} ?)+)")


def bytes_shown(lines: list[str]) -> list[bytes]:
    """The bytes in the hex of each frame, `?` where there are none; they say where they are."""
    frames: list[bytes] = []
    for line in lines:
        if found := HEX.match(line):
            if int(found[1], 16) == 0:
                frames.append(b"")
            assert int(found[1], 16) >= len(frames[-1])
            frames[-1] = frames[-1].ljust(int(found[1], 16), b"?") + bytes.fromhex(found[2])
    return frames


@pytest.mark.parametrize("key", sorted(schema.api_names()))
def test_every_field_of_every_api_stands_beside_its_bytes(key):
    """In the newest version, with something in every field."""
    name = schema.api_name(key)
    requested, responded = schema.message(key, schema.REQUEST), schema.message(key, schema.RESPONSE)
    version = max(requested.versions)
    asked = filled(requested.name, requested.fields, version)
    answered = filled(responded.name, responded.fields, version)
    made = exchange(name, version, asked, answered)
    lines = list(frame.lines(made))
    assert not [line for line in lines if "is not" in line or "bytes more" in line]
    text = "\n".join(lines)
    for message in (requested, responded):
        for slot in codec.layout(message, version).slots:
            assert re.search(rf"\b{slot.name}\b", text), slot.name
    assert bytes_shown(lines) == [made.request_frame, made.response_frame]


def unknown_tags(cls: type, fields, value, version: int, draw, flexible: bool):
    """Give a value, and all structs in it, tagged fields that nobody knows."""
    for field in fields:
        inner = getattr(value, field.name)
        if field.fields and inner is not None and version in field.versions:
            for each in inner if field.is_array else [inner]:
                unknown_tags(cls, field.fields, each, version, draw, flexible)
    if flexible:
        value.unknown_tags = draw
    return value


@settings(max_examples=1000 if ALL else 100, deadline=None)
@given(
    kind=st.sampled_from(sorted(schema.known_versions())),
    tags=st.dictionaries(
        st.one_of(st.integers(100, 200), st.just(2**31 - 1)), st.binary(max_size=300), max_size=3
    ),
    header=st.dictionaries(st.integers(5, 2**31), st.binary(max_size=9), max_size=2),
    behind=st.binary(max_size=3),
)
def test_each_byte_of_a_frame_has_one_line(kind, tags, header, behind):
    """Tagged fields that nobody knows, in any struct and in the header, and what is behind."""
    key, version = kind
    unknown, of_header = (tuple(sorted(each.items())) for each in (tags, header))
    asked, answered = (schema.message(key, each) for each in (schema.REQUEST, schema.RESPONSE))
    bodies = [
        unknown_tags(
            getattr(M, each.name), each.fields, filled(each.name, each.fields, version), version,
            unknown, version in each.flexible_versions,
        )
        for each in (asked, answered)
    ]  # fmt: skip
    sent = protocol.Request(M.RequestHeader(api_key=key, api_version=version), bodies[0], behind)
    if codec.request_header_version(key, version) >= 2:
        sent.header.unknown_tags = of_header
    frame_1 = request(schema.api_name(key), version, getattr(M, asked.name)())
    frame_1.pieces = [protocol.encode_request(sent)]
    got = protocol.Response(M.ResponseHeader(correlation_id=101), bodies[1], version, behind)
    if codec.response_header_version(key, version) >= 1:
        got.header.unknown_tags = of_header
    (made,) = pair([frame_1, answer(frame_1, protocol.encode_response(got, key))])
    for _, data, rows in frame.halves(made):
        at = 0
        for row in rows:
            if row.end > row.start:
                assert row.start == at, row
                at = row.end
            assert row.text
        assert at == len(data)
    text = "\n".join(frame.lines(made))
    known = codec.response_header_version(key, version) >= 1
    assert all(f"tag {tag}, unknown" in text for tag, _ in of_header) or not known


def test_records_are_expanded():
    value = json.dumps({"order": 17, "lines": [1]}).encode()
    data = records.encode_batch(
        [
            Record(41, 1_700_000_000_000, b"k", value, (("trace", b"\xff"),)),
            Record(42, 1_700_000_000_001, None, None),
        ],
        compression="zstd",
    )
    made = exchange(
        "Fetch", 11, fetch_request({0: 41}), fetch_response({0: data + marker(True, 43)})
    )
    text = "\n".join(line.strip() for line in frame.lines(made))
    assert "batch @41..42, 2 records, zstd" in text
    assert "@41 2023-11-14T22:13:20.000Z" in text
    assert 'value {\n"order": 17,\n"lines": [\n1\n]\n}' in re.sub(r"\n +", "\n", text)
    assert "header trace: 0xff (1 B)" in text
    assert "value null" in text
    assert "COMMIT" in text


def test_what_is_embedded_and_what_numbers_mean():
    J = M.JoinGroupRequest
    protocol = J.JoinGroupRequestProtocol(name="range", metadata=subscription("orders"))
    asked = J(group_id="g", protocol_type="consumer", protocols=[protocol])
    text = "\n".join(
        frame.lines(exchange("JoinGroup", 5, asked, M.JoinGroupResponse(error_code=25)))
    )
    assert "topics=['orders']" in text
    assert "error_code 25 UNKNOWN_MEMBER_ID" in text
    assert "api_key 11 JoinGroup" in text


def test_eight_bytes_a_line_where_it_is_narrow():
    asked = produce_request({0: bytes(4000)})
    lines = list(frame.lines(exchange("Produce", 9, asked), LineStyle(width=80)))
    assert max(line.count(" 00") for line in lines) == 8
    assert "… 3938 bytes more" in "\n".join(lines)


# ---- recordings


@pytest.fixture
def recorded(tmp_path):
    """Two connections: one produces three records and one fetches them."""
    path = tmp_path / "some.mcap"
    made = [Record(n, 1_700_000_000_000 + n, b"k%d" % n, b"v%d" % n) for n in range(3)]
    data = records.encode_batch(made)
    asked = request("Produce", 9, produce_request({0: data}), 1)
    fetched = request("Fetch", 11, fetch_request({0: 41}), 2, connection=2)
    write(
        path,
        [
            [
                opened(1, node_id=2),
                opened(2),
                asked,
                fetched,
                response(fetched, fetch_response({0: records.rebase(data, 41)})),
                response(asked, produce_response({0: 41})),
                closed(1),
            ]
        ],
    )
    return path


def test_the_records_of_a_topic(recorded):
    out = io.StringIO()
    show_records([recorded], "orders", None, out)
    lines = out.getvalue().splitlines()
    assert lines[0] == (
        "orders[0] @41      2023-11-14T22:13:20.000Z #2     consumed by app          k0 v0"
    )
    assert [("produced" in line, line.split()[1]) for line in lines] == [
        *[(False, f"@{n}") for n in (41, 42, 43)],
        *[(True, f"@{n}") for n in (41, 42, 43)],
    ]
    for topic, partition in (("orders", 1), ("other", None)):
        out = io.StringIO()
        show_records([recorded], topic, partition, out)
        assert out.getvalue() == ""


@pytest.mark.parametrize("width", [80, 119, 120, 200])
def test_keys_and_values_are_seen_on_every_terminal(recorded, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    out.isatty = lambda: True
    show_records([recorded], "orders", None, out)
    found = out.getvalue().splitlines()
    assert all(line.endswith(f"k{n % 3} v{n % 3}") for n, line in enumerate(found)), found
    assert all(len(line) <= width for line in found)
    if width < 120:
        assert found[0] == "[0] @41   22:13:20.000 #2    to   app      k0 v0"
