"""What is said of a login: by which mechanism it can fail through a proxy, and why it was refused.

A scripted client and broker: no client of a test bed has a KDC, or an account of AWS.
"""

from __future__ import annotations

import pytest

from kproxy.exchange.entries import Side
from kproxy.wire.protocol import api_key, decode_request, decode_response, error_code, messages
from tests.proxy.playing import Player, end, heartbeat, heartbeat_answer, request, response

HANDSHAKE, AUTHENTICATE = api_key("SaslHandshake"), api_key("SaslAuthenticate")
FAILED = error_code("SASL_AUTHENTICATION_FAILED") or 0
UNSUPPORTED = error_code("UNSUPPORTED_SASL_MECHANISM") or 0
TOKENS = {
    "PLAIN": b"\0alice\0secret-1",
    "SCRAM-SHA-256": b"n,,n=bob,r=secret-2",
    "SCRAM-SHA-512": b"n,,n=bob,r=secret-3",
    "OAUTHBEARER": b"n,,\x01auth=Bearer secret-4\x01\x01",
    "GSSAPI": b"\x60\x82\x02\x01\x06\x09secret-5",
    "AWS_MSK_IAM": b'{"host":"kproxy","x-amz-signature":"secret-6"}',
}
"""Mechanism → the first token of a client."""
REFUSED = "the broker refuses the login with {} (SASL_AUTHENTICATION_FAILED): {}"
WRONG = dict.fromkeys(TOKENS, "user or password is wrong") | {
    "OAUTHBEARER": "the token has expired, or is not one that the broker takes",
    "GSSAPI": "its ticket is for kproxy's host instead of the broker's",
    "AWS_MSK_IAM": "it signed kproxy's host instead of the broker's",
}
"""Mechanism → what may be wrong."""


def shake(
    player: Player, mechanism: str, version: int = 1, error: int = 0, number: int = 1
) -> None:
    """The client names a mechanism; the broker takes it, or not."""
    body = messages.SaslHandshakeRequest(mechanism=mechanism)
    player.client(request(HANDSHAKE, version, body, 1), number)
    offered = messages.SaslHandshakeResponse(error_code=error, mechanisms=["PLAIN", "OAUTHBEARER"])
    player.broker(response(HANDSHAKE, version, offered, 1), number)


def authentication(token: bytes) -> bytes:
    return request(AUTHENTICATE, 2, messages.SaslAuthenticateRequest(auth_bytes=token), 2)


def log_in(
    player: Player, token: bytes, error: int = 0, answer: bytes = b"", session_ms: int = 0
) -> None:
    """The client sends a token; the broker takes it, or not."""
    player.client(authentication(token))
    body = messages.SaslAuthenticateResponse(
        error_code=error,
        auth_bytes=answer,
        error_message="refused: secret-0" if error else None,
        session_lifetime_ms=session_ms,
    )
    player.broker(response(AUTHENTICATE, 2, body, 2))


def connected() -> Player:
    player = Player()
    player.connect()
    return player


def closing(player: Player) -> dict:
    """Both sides end; what is noted of it."""
    end(player, Side.BROKER)
    end(player, Side.CLIENT)
    (note,) = player.notes("closed")
    return note.body


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    ("mechanism", "what"),
    [
        ("GSSAPI", "its ticket is for the Kerberos service at the host that it connects to"),
        ("AWS_MSK_IAM", "it signs the host that it connects to, which is kproxy's"),
    ],
)
def test_a_mechanism_that_names_the_host_is_logged_once(
    mechanism: str, what: str, version: int
) -> None:
    player = connected()
    shake(player, mechanism, version)
    (line,) = player.logs
    assert line.startswith(f"a client logs in with {mechanism}: {what}")
    player.connect(2)
    shake(player, mechanism, version, number=2)
    assert len(player.logs) == 1


@pytest.mark.parametrize("mechanism", TOKENS)
def test_a_token_of_any_mechanism_passes_and_is_not_recorded(mechanism: str) -> None:
    player = connected()
    for _ in range(2):  # again: it logs in anew on the same connection (KIP-368)
        shake(player, mechanism)
        log_in(player, TOKENS[mechanism], answer=b"\x60secret-of-the-broker")
        player.client(heartbeat(3))
        player.broker(heartbeat_answer(3))
    assert player.to_broker().count(TOKENS[mechanism]) == 2
    assert player.to_client().count(b"\x60secret-of-the-broker") == 2
    assert b"secret" not in b"".join(frame.data for frame in player.frames())
    assert not player.closed


def test_a_mechanism_that_is_not_text_passes_as_one_that_is_not_known() -> None:
    player = connected()
    asked = messages.SaslHandshakeRequest(mechanism="PLAIN")
    player.client(request(HANDSHAKE, 1, asked, 1).replace(b"PLAIN", b"PLA\xff\xff"))
    assert b"PLA\xff\xff" in player.to_broker() and not player.closed
    offered = messages.SaslHandshakeResponse(error_code=UNSUPPORTED, mechanisms=["PLAIN"])
    player.broker(response(HANDSHAKE, 1, offered, 1))
    assert "a mechanism that kproxy does not know" in closing(player)["reason"]
    assert b"PLA\xff" not in b"".join(frame.data for frame in player.frames())


@pytest.mark.parametrize("mechanism", TOKENS)
def test_a_refused_login_is_said_in_one_line_and_noted(mechanism: str) -> None:
    player = connected()
    shake(player, mechanism)
    log_in(player, TOKENS[mechanism], FAILED)
    reason = REFUSED.format(mechanism, WRONG[mechanism])
    assert closing(player)["reason"] == reason
    assert [line for line in player.logs if "ended" in line] == [
        f"connection 1 (127.0.0.1:5000 → bootstrap) ended: {reason}"
    ]
    assert "secret" not in str(player.logs)


def test_a_refused_login_is_the_reason_of_a_reset() -> None:
    """As KafkaJS ends it."""
    player = connected()
    shake(player, "PLAIN")
    log_in(player, TOKENS["PLAIN"], FAILED)
    player.performer.reset(1, Side.CLIENT)
    (note,) = player.notes("closed")
    assert note.body["reason"] == REFUSED.format("PLAIN", WRONG["PLAIN"])
    assert note.body["how"] == "reset"


def test_an_answer_to_a_bearer_token_is_a_refusal() -> None:
    """The error comes when the client has asked for it, and not every client does."""
    player = connected()
    shake(player, "OAUTHBEARER")
    log_in(player, TOKENS["OAUTHBEARER"], answer=b'{"status":"invalid_token"}')
    reason = closing(player)["reason"]
    assert reason == f"the broker refuses the login with OAUTHBEARER: {WRONG['OAUTHBEARER']}"


def test_a_login_that_succeeds_at_last_is_no_reason_for_an_end() -> None:
    player = connected()
    shake(player, "PLAIN")
    log_in(player, TOKENS["PLAIN"], FAILED)
    shake(player, "PLAIN")
    log_in(player, TOKENS["PLAIN"])
    assert closing(player)["reason"] == "" and player.logs == []


@pytest.mark.parametrize("is_over", [True, False])
def test_a_session_that_is_over_is_the_reason_why_a_broker_hangs_up(is_over: bool) -> None:
    player = connected()
    shake(player, "PLAIN")
    log_in(player, TOKENS["PLAIN"], session_ms=2000)
    player.now += 2_000_000_000 if is_over else 1_000_000_000
    player.client(heartbeat(3))
    reason = closing(player)["reason"]
    assert reason.startswith("the broker hung up: the client did not log in anew") == is_over
    assert len(player.logs) == is_over


def test_a_mechanism_that_the_broker_does_not_offer_is_named() -> None:
    player = connected()
    shake(player, "SCRAM-SHA-256", error=UNSUPPORTED)
    assert closing(player)["reason"] == (
        "the broker does not offer SCRAM-SHA-256, only PLAIN, OAUTHBEARER"
        " (UNSUPPORTED_SASL_MECHANISM)"
    )


def test_a_broker_that_hangs_up_on_a_bare_token_has_refused_it() -> None:
    """After SaslHandshake v0 it has no other way to say so."""
    player = connected()
    shake(player, "PLAIN", version=0)
    player.client(len(TOKENS["PLAIN"]).to_bytes(4) + TOKENS["PLAIN"])
    reason = "the broker refuses the login with PLAIN: user or password is wrong"
    assert closing(player)["reason"] == reason
    assert [line.partition("ended: ")[2] for line in player.logs] == [reason]


@pytest.mark.parametrize(
    ("ending", "version"),
    [("not offered", 0), ("not offered", 1), ("refused", 1), ("hung up", 0)],
)
def test_a_mechanism_that_does_not_exist_may_be_a_secret(ending: str, version: int) -> None:
    """A client was given its password in the wrong place."""
    player = connected()
    shake(player, "secret-0", version, UNSUPPORTED if ending == "not offered" else 0)
    if ending == "refused":
        log_in(player, b"\0alice\0secret-1", FAILED)
    elif ending == "hung up":
        player.client(len(b"\0alice\0secret-1").to_bytes(4) + b"\0alice\0secret-1")
    assert "a mechanism that kproxy does not know" in closing(player)["reason"]
    assert "secret" not in f"{player.logs} {[note.body for note in player.notes('closed')]}"
    assert player.to_broker().count(b"secret-0") == 1
    frames = player.frames()
    assert b"secret" not in b"".join(frame.data for frame in frames)
    assert decode_request(frames[0].data).body.mechanism == "*" * len("secret-0")
    assert decode_response(frames[1].data, HANDSHAKE, version).body.mechanisms[0] == "PLAIN"


@pytest.mark.parametrize("mechanism", [*TOKENS, "plain", "SCRAM_SHA_512", "scram-sha256"])
def test_a_mechanism_that_exists_is_kept_however_it_is_spelled(mechanism: str) -> None:
    player = connected()
    shake(player, mechanism, error=UNSUPPORTED)
    assert decode_request(player.frames()[0].data).body.mechanism == mechanism
    assert closing(player)["reason"].startswith(f"the broker does not offer {mechanism}, only")
