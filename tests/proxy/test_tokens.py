"""SASL tokens without headers, after SaslHandshake v0 (KIP-43): passed on, never recorded."""

from __future__ import annotations

import struct

import pytest

from kproxy.exchange.entries import RAW_SASL, REDACTED, UNANSWERED
from kproxy.wire.protocol import api_key, decode_request, messages
from tests.proxy.playing import (
    Player,
    heartbeat,
    heartbeat_answer,
    request,
    response,
)

HEARTBEAT = 12


def handshake(mechanism: str) -> bytes:
    body = messages.SaslHandshakeRequest(mechanism=mechanism)
    return request(api_key("SaslHandshake"), 0, body, 1)


def handshake_answer(error_code: int = 0) -> bytes:
    body = messages.SaslHandshakeResponse(error_code=error_code, mechanisms=["PLAIN"])
    return response(api_key("SaslHandshake"), 0, body, 1)


def token(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_tokens_without_headers_pass_and_never_reach_the_recording(size: int) -> None:
    player = Player()
    player.connect()

    def send(to, data: bytes) -> None:
        for start in range(0, len(data), size):
            to(data[start : start + size])

    send(player.client, handshake("SCRAM-SHA-256"))
    send(player.broker, handshake_answer())
    for _ in range(2):
        send(player.client, token(b"n,,n=user,r=secret-nonce"))
        send(player.broker, token(b"r=secret,s=salt,i=4096"))
    send(player.client, heartbeat(2))
    send(player.broker, heartbeat_answer(2))
    assert player.to_broker().endswith(token(b"n,,n=user,r=secret-nonce") + heartbeat(2))
    assert player.to_client().endswith(token(b"r=secret,s=salt,i=4096") + heartbeat_answer(2))
    recorded = player.frames()
    assert b"secret" not in b"".join(frame.data for frame in recorded)
    tokens = [frame for frame in recorded if frame.flags & RAW_SASL]
    assert len(tokens) == 4 and all(frame.flags & REDACTED for frame in tokens)
    assert [frame.number for frame in recorded] == [1, 1, 2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize("split", [100, 6])
def test_a_last_token_that_is_never_answered_does_not_break_the_pairing(split: int) -> None:
    player = Player()
    player.connect()
    player.client(handshake("GSSAPI"))
    player.broker(handshake_answer())
    player.client(token(b"\x60\x82ticket"))
    player.broker(token(b"challenge"))
    player.client(token(b"\x60\x82last"))
    player.client(heartbeat(2))
    player.broker(heartbeat_answer(2)[:split])
    player.broker(heartbeat_answer(2)[split:])
    assert not player.closed
    assert player.frames()[-1].api_key == HEARTBEAT
    assert player.frames()[-2].flags & UNANSWERED and player.frames()[-2].number == 3


def test_a_refused_handshake_is_followed_by_requests() -> None:
    player = Player()
    player.connect()
    player.client(handshake("PLAIN"))
    player.broker(handshake_answer(error_code=33))
    player.client(heartbeat(2))
    assert decode_request(player.frames()[-1].data).body.group_id == "g"


def test_a_token_sent_before_the_handshake_is_answered_is_not_recorded() -> None:
    player = Player()
    player.connect()
    player.client(handshake("PLAIN") + token(b"\0user\0pass-word") + heartbeat(2))
    player.broker(handshake_answer() + token(b"") + heartbeat_answer(2))
    assert not player.closed
    assert b"pass-word" not in b"".join(frame.data for frame in player.frames())
    assert [frame.number for frame in player.frames()] == [1, 2, 3, 1, 2, 3]


def test_a_refusal_does_not_uncover_the_tokens_of_a_later_handshake() -> None:
    player = Player()
    player.connect()
    player.client(handshake("GSSAPI") + token(b"first-secret") + handshake("PLAIN"))
    player.broker(handshake_answer(error_code=33))
    player.client(token(b"\0user\0second-secret"))
    assert b"secret" not in b"".join(frame.data for frame in player.frames())
