"""Codes that are read without decoding are those of the decoder, whatever the bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange import body_facts, response_codes
from kproxy.exchange.response_codes import LargeResponse, ResponseCodes
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, error_name, messages, schema
from tests.wire.protocol.strategies import bodies

KINDS = sorted(schema.known_versions())


@given(st.data())
def test_the_codes_are_those_of_the_decoder(data: st.DataObject) -> None:
    api_key, version = data.draw(st.sampled_from(KINDS))
    message = schema.message(api_key, schema.RESPONSE)
    assert message is not None
    body = data.draw(bodies(message, version))
    tags = data.draw(st.sampled_from([(), ((7, b"tag"),)]))
    header = messages.ResponseHeader(correlation_id=1, unknown_tags=tags)
    frame = protocol.encode_response(protocol.Response(header, body, version), api_key)
    frame = data.draw(st.one_of(st.just(frame), st.binary(max_size=40).map(frame.__add__)))
    frame = frame[: data.draw(st.sampled_from([len(frame), len(frame) // 2]))]
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, len(frame) - 1))
        frame = frame[:at] + data.draw(st.binary(min_size=1, max_size=1)) + frame[at + 1 :]
    frame = (len(frame) - 4).to_bytes(4) + frame[4:]
    around = data.draw(st.sampled_from([b"", b"\0" * 9, b"\1" * 9]))
    read = response_codes.reader(api_key, version)
    for _ in range(2):  # the second time is as the first
        found = read(around + frame + around, len(around), len(frame)) or ResponseCodes()
    large, cut = LargeResponse(api_key, version), data.draw(st.integers(9, 60))
    in_pieces = [large.take(frame[:cut]), large.take(frame[cut:])]
    try:
        decoded = protocol.decode_response(frame, api_key, version).body
    except ProtocolError:
        decoded = None
    assert [*map(error_name, found.errors)] == body_facts.errors(decoded, api_key, frame)
    assert found.throttle_ms == max(0, getattr(decoded, "throttle_time_ms", 0))
    if api_key != codec.API_VERSIONS and not tags and decoded is not None:
        assert next(filter(None, in_pieces), ResponseCodes()) == found
