"""SASL tokens without headers, after SaslHandshake v0 (KIP-43): passed on, never recorded."""

from __future__ import annotations

import struct

import pytest

from kproxy.exchange.entries import RAW_SASL, REDACTED, TRUNCATED, UNANSWERED, Side
from kproxy.wire.protocol import api_key, decode_request, messages
from tests.proxy.playing import (
    Player,
    end,
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


def test_an_empty_token_answers_plain() -> None:
    player = Player()
    player.connect()
    player.client(handshake("PLAIN"))
    player.broker(handshake_answer())
    player.client(token(b"\0user\0password"))
    player.broker(token(b""))
    player.client(heartbeat(2))
    player.broker(heartbeat_answer(2))
    assert not player.closed
    assert player.to_client().endswith(heartbeat_answer(2))


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


@pytest.mark.parametrize("size", [5, 11, 12, 15])
def test_of_a_token_that_is_cut_off_nothing_is_recorded(size: int) -> None:
    player = Player()
    player.connect()
    player.client(handshake("PLAIN"))
    player.broker(handshake_answer())
    player.client(token(b"\0user\0password")[:size])
    end(player, Side.CLIENT)
    cut = player.frames()[-1]
    assert cut.flags & TRUNCATED and cut.flags & REDACTED and cut.flags & RAW_SASL
    assert cut.data == token(b"\0user\0password")[:4] + b"*" * (size - 4)


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


@pytest.mark.parametrize("split", [0, 2, 4, 6, 9])
@pytest.mark.parametrize("secret", [b"\0user\0pass-word", b"n,,n=user,r=pass-word", b"pass-word"])
def test_a_token_after_a_refused_handshake_is_not_recorded(secret: bytes, split: int) -> None:
    player = Player()
    player.connect()
    player.client(handshake("PLAIN"))
    player.broker(handshake_answer(error_code=33))
    sent = token(secret)
    for part in (sent[:split], sent[split:]):
        if part:
            player.client(part)
    end(player, Side.CLIENT)
    assert b"pass-word" not in b"".join(frame.data for frame in player.frames())
