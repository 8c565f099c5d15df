"""Logging in at the replaying broker."""

from __future__ import annotations

import contextlib

import pytest

from kproxy.replay.settings import ReplaySettings
from kproxy.wire.protocol import error_name, messages
from tests.bed import scram
from tests.replay.making import Client, Playing, Recorded

USERS = ReplaySettings(users={"bob": "secret"})


def connect(settings: ReplaySettings = USERS) -> Client:
    return Playing(Recorded().metadata().loaded, settings).connect()


def handshake(client: Client, mechanism: str, version: int = 1):
    return client.ask(version, messages.SaslHandshakeRequest(mechanism=mechanism))


def authenticate(client: Client, token: bytes):
    return client.ask(2, messages.SaslAuthenticateRequest(auth_bytes=token))


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_any_credentials_will_do(mechanism: str) -> None:
    client = connect()
    assert handshake(client, mechanism).error_code == 0
    answer = authenticate(client, b"whatever")
    assert (answer.error_code, answer.auth_bytes) == (0, b"")


def test_raw_tokens_follow_a_handshake_of_version_0() -> None:
    client = connect()
    handshake(client, "PLAIN", version=0)
    client.bytes(b"\0\0\0\x03abc")
    assert client.frames == [b"\0\0\0\0"]
    assert client.ask(4, messages.ApiVersionsRequest()).error_code == 0


def log_in(client: Client, mechanism: str, name: str, password: str) -> str:
    """Log in as a client does; "in", or the error."""
    assert handshake(client, mechanism).error_code == 0
    own = scram.tokens(mechanism, name, password)
    token = next(own)
    with contextlib.suppress(StopIteration):
        while True:
            answer = authenticate(client, token)
            if answer.error_code:
                return error_name(answer.error_code)
            token = own.send(answer.auth_bytes)
    return "in"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_takes_the_users_that_were_given(mechanism: str) -> None:
    assert log_in(connect(), mechanism, "bob", "secret") == "in"
    assert log_in(connect(), mechanism, "bob", "wrong") == "SASL_AUTHENTICATION_FAILED"
    assert log_in(connect(), mechanism, "eve", "secret") == "SASL_AUTHENTICATION_FAILED"


def test_scram_without_users_says_what_to_give() -> None:
    client = connect(ReplaySettings())
    answer = handshake(client, "SCRAM-SHA-256")
    assert error_name(answer.error_code) == "UNSUPPORTED_SASL_MECHANISM"
    (finding,) = client.playing.report.findings
    assert "--user NAME:PASSWORD" in finding.text


@pytest.mark.parametrize("token", [b"", b"n,,", b"n,,n=bob", b"\xff\xff", b"n,,x"])
def test_a_malformed_token_is_refused(token: bytes) -> None:
    client = connect()
    handshake(client, "SCRAM-SHA-256")
    assert error_name(authenticate(client, token).error_code) == "SASL_AUTHENTICATION_FAILED"


TOKEN = b"\0alice\0s3cr3t-Passw0rd"


@pytest.mark.parametrize("asks_versions", [False, True])
def test_a_token_without_a_handshake_logs_in(asks_versions: bool) -> None:
    """As Sarama sends it with `Net.SASL.Handshake=false`."""
    client = connect()
    if asks_versions:
        client.ask(3, messages.ApiVersionsRequest())
    client.bytes(len(TOKEN).to_bytes(4) + TOKEN)
    assert client.frames == [b"\0\0\0\0"]
    assert client.ask(4, messages.MetadataRequest(topics=None)).brokers
    assert not client.playing.report.findings and client.number not in client.playing.closed


@pytest.mark.parametrize("token", [TOKEN, b"\0\x03li" + TOKEN])
@pytest.mark.parametrize("before", ["nothing", "a handshake", "a login, and a handshake"])
def test_of_what_may_be_a_token_nothing_is_told(before: str, token: bytes) -> None:
    client = connect()
    if "login" in before:
        handshake(client, "PLAIN")
        authenticate(client, TOKEN)
    if "handshake" in before:
        handshake(client, "PLAIN")
    client.bytes(len(token).to_bytes(4) + token)
    told = f"{[str(each) for each in client.playing.report.findings]} {client.playing.logs}"
    assert all(part not in told for part in ("97", "27753", "API", "Metadata", "li"))
    assert ("may be a SASL token" in told) == (client.number in client.playing.closed)
