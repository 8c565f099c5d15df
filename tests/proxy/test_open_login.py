"""No token of a login reaches a recording, however it comes: first of all, cut off, like a request.

::

    what a connection says before ─▶ a token, whole or cut off ─▶ nothing of it is in any entry

A token passes as it came, and so does what the broker says to it. The users of logins are recorded.
"""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy.exchange.entries import NO_API, RAW_SASL, REDACTED, Frame, Side
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import messages, schema
from tests.proxy.playing import (
    BROKER,
    Player,
    begin,
    end,
    heartbeat,
    heartbeat_answer,
    produce,
    request,
    response,
)

HANDSHAKE, AUTHENTICATE, VERSIONS = 17, 36, 18
SECRET = b"s3cr3t-Passw0rd"
PLAIN = b"\0alice\0" + SECRET
SCRAM = b"n,,n=alice,r=" + SECRET


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4) + data


def shake(player: Player, version: int, mechanism: str = "PLAIN", error: int = 0) -> None:
    asked = messages.SaslHandshakeRequest(mechanism=mechanism)
    answer = messages.SaslHandshakeResponse(error_code=error, mechanisms=[mechanism])
    frame = request(HANDSHAKE, min(version, 1), asked, 1)
    player.client(frame[:6] + version.to_bytes(2) + frame[8:])
    player.broker(response(HANDSHAKE, min(version, 1), answer, 1))


def ask_versions(player: Player) -> None:
    player.client(request(VERSIONS, 3, messages.ApiVersionsRequest(), 1))
    player.broker(response(VERSIONS, 3, messages.ApiVersionsResponse(), 1))


def log_in(player: Player) -> None:
    shake(player, 1)
    authenticate(player, response(AUTHENTICATE, 2, messages.SaslAuthenticateResponse(), 2))


def log_in_by_tokens(player: Player) -> None:
    shake(player, 0)
    player.client(framed(PLAIN))
    player.broker(framed(b""))


def authenticate(player: Player, answer: bytes, version: int = 2) -> None:
    asked = messages.SaslAuthenticateRequest(auth_bytes=PLAIN)
    player.client(request(AUTHENTICATE, version, asked, 2))
    player.broker(answer)


def refusal_with_more() -> bytes:
    """A refusal with bytes that no field explains, so that the recording has nothing of it."""
    answer = messages.SaslAuthenticateResponse(error_code=58, error_message="no")
    return framed(response(AUTHENTICATE, 0, answer, 2)[4:] + b"more")


def refuse(player: Player) -> None:
    """A step of a login that the broker refuses."""
    refusal = messages.SaslAuthenticateResponse(error_code=58)
    authenticate(player, response(AUTHENTICATE, 2, refusal, 2))


def refuse_beside(player: Player) -> None:
    """A request is answered while a login without a handshake waits for its refusal."""
    asked = messages.SaslAuthenticateRequest(auth_bytes=PLAIN)
    player.client(heartbeat(5) + request(AUTHENTICATE, 2, asked, 6))
    player.broker(heartbeat_answer(5))
    refusal = messages.SaslAuthenticateResponse(error_code=58)
    player.broker(response(AUTHENTICATE, 2, refusal, 6))


def in_flight(player: Player) -> None:
    """A login begins anew while an older request waits for its answer."""
    begin(player)
    player.client(heartbeat(5))
    frame = messages.SaslHandshakeRequest(mechanism="GSSAPI")
    player.client(request(HANDSHAKE, 0, frame, 6) + framed(b"\x60\x82 first"))
    answer = messages.SaslHandshakeResponse(mechanisms=["GSSAPI"])
    player.broker(heartbeat_answer(5) + response(HANDSHAKE, 0, answer, 6) + framed(b"go on"))


BEFORE = {
    "nothing": lambda player: None,
    "ApiVersions": ask_versions,
    "SaslHandshake v0": lambda player: shake(player, 0),
    "SaslHandshake v1": lambda player: shake(player, 1),
    "SaslHandshake v2": lambda player: shake(player, 2),
    "a refused SaslHandshake v0": lambda player: shake(player, 0, error=33),
    "a refused SaslHandshake v1": lambda player: shake(player, 1, error=33),
    "an unknown mechanism": lambda player: shake(player, 1, "X-OURS"),
    "a login, and another": lambda player: (log_in(player), begin(player), shake(player, 1)),
    "no login, and one": lambda player: (begin(player), shake(player, 0)),
    "a login by tokens": log_in_by_tokens,
    "one anew with a request in flight": in_flight,
    "a login, and a refused one": lambda player: (log_in(player), refuse(player)),
    "a login, a request, and a refused one": lambda player: (
        log_in(player),
        begin(player),
        refuse_beside(player),
    ),
    "no login, and a refused one": lambda player: (begin(player), refuse(player), begin(player)),
    "a refused login, and a request": lambda player: (
        shake(player, 1),
        refuse(player),
        begin(player),
    ),
    "a refused login with bytes behind the answer, and a request": lambda player: (
        shake(player, 1),
        authenticate(player, refusal_with_more(), version=0),
        begin(player),
    ),
    "a refused SCRAM login, and a request": lambda player: (
        shake(player, 1, "SCRAM-SHA-256"),
        refuse(player),
        begin(player),
    ),
    "a refused SaslHandshake, and a request": lambda player: (
        shake(player, 1, error=33),
        begin(player),
    ),
    "a login whose answer is unreadable, and a request": lambda player: (
        shake(player, 1),
        authenticate(player, framed((2).to_bytes(4) + b"\0")),
        begin(player),
    ),
}
"""What a connection says before the token."""


def assert_absent(player: Player, secret: bytes = SECRET) -> None:
    kept = player.entries
    data = b"".join(frame.data for frame in kept if isinstance(frame, Frame))
    said = json.dumps([note.body for note in kept if not isinstance(note, Frame)])
    for part in (secret[start : start + 4] for start in range(len(secret) - 3)):
        assert part not in data
        assert part.decode("latin-1") not in said + str(player.logs)
        number = str(int.from_bytes(part))
        assert number not in said + str(player.logs), "it is told as a number"
        for frame in kept:
            if isinstance(frame, Frame):
                assert frame.correlation_id.to_bytes(4, signed=True) != part


def connected(before: str) -> Player:
    player = Player(Settings([BROKER], 19092, record_users=True))
    player.connect()
    BEFORE[before](player)
    return player


@pytest.mark.parametrize("cut", [0, 1, 3, 9, 20])
@pytest.mark.parametrize("token", [PLAIN, SCRAM, SECRET], ids=["plain", "scram", "bare"])
@pytest.mark.parametrize("before", BEFORE)
def test_of_a_token_nothing_is_recorded(before: str, token: bytes, cut: int) -> None:
    player = connected(before)
    sent = framed(token)[: len(token) + 4 - cut]
    passed = player.to_broker()
    for piece in (sent[:5], sent[5:9], sent[9:]):
        player.client(piece)
    if not cut:
        player.broker(framed(b"r=" + SECRET))
        assert not player.closed
        assert player.to_client().endswith(framed(b"r=" + SECRET))
    end(player, Side.CLIENT)
    assert player.to_broker() == passed + sent
    assert_absent(player)
    marked = [frame for frame in player.frames() if frame.flags & RAW_SASL]
    assert marked and all(frame.flags & REDACTED for frame in marked)
    assert all(frame.api_key == NO_API for frame in marked)


@pytest.mark.parametrize("answer", [b"", b"\0\0", SECRET])
def test_a_connection_goes_on_after_a_token_without_a_handshake(answer: bytes) -> None:
    """As Sarama does it with `Net.SASL.Handshake=false`, before a SASL proxy."""
    player = connected("nothing")
    player.client(framed(PLAIN))
    player.broker(framed(answer))
    begin(player)
    player.client(heartbeat(7))
    player.broker(heartbeat_answer(7))
    assert not player.closed and player.to_client().endswith(heartbeat_answer(7))
    assert player.frames()[-2].data == heartbeat(7)
    assert_absent(player)


def like_a_request(key: int, version: int, rest: bytes = SECRET) -> bytes:
    """A token that begins as a request does."""
    return key.to_bytes(2) + version.to_bytes(2) + rest


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(schema.known_versions())) | st.tuples(st.just(18), st.integers(0, 127)),
    st.sampled_from(sorted(BEFORE)) | st.just("rules"),
)
@example((12, 4), "rules")
@example((36, 0), "SaslHandshake v0")
@example((18, 99), "ApiVersions")
@example((7, 0), "nothing")  # of all requests the one whose header has no client id
def test_a_token_that_begins_like_a_request_is_not_recorded(
    kind: tuple[int, int], before: str
) -> None:
    """With fault rules that want to see such requests, too."""
    player = Player(Settings([BROKER], 19092))
    if before == "rules":
        rules = Rules([Rule(error="NOT_COORDINATOR"), Rule(duplicate=True)])
        player = Player(cluster=Cluster(Settings([BROKER], 19092, record_users=True), rules))
    player.connect()
    BEFORE.get(before, BEFORE["nothing"])(player)
    token = like_a_request(*kind)
    player.client(framed(token))
    assert player.to_broker().endswith(framed(token)), "it passes as it came"
    player.broker(framed(b"r=" + SECRET))
    end(player, Side.CLIENT)
    assert_absent(player)


@pytest.mark.parametrize("size", [400_000, 1_500_000])
def test_a_token_in_pieces_is_not_recorded(size: int) -> None:
    """Where kproxy holds much, too, so that pieces are small."""
    player = Player(Settings([BROKER], 19092, held_bytes_max=1 << 20))
    player.connect()
    token = framed(SECRET + bytes(size))
    for start in range(0, len(token), 60_000):
        player.client(token[start : start + 60_000])
    player.broker(framed(SECRET))
    assert not player.closed and player.to_broker() == token
    assert_absent(player)


def test_a_large_first_request_is_recorded() -> None:
    """No broker takes a token of this size; a producer's first request has it."""
    player = connected("ApiVersions")
    frame = produce(1, size=3_000_000, correlation_id=4)
    for start in range(0, len(frame), 65_536):
        player.client(frame[start : start + 65_536])
    player.broker(response(0, 9, messages.ProduceResponse(responses=[]), 4))
    sent = [each.data for each in player.frames(Side.CLIENT) if each.number == 2]
    assert len(sent) > 1 and b"".join(sent) == frame


@pytest.mark.parametrize(
    "before", ["ApiVersions", "SaslHandshake v1", "a refused login, and a request", "nothing"]
)
def test_before_an_answer_a_connection_is_watched_and_then_not(before: str) -> None:
    """After it, what does not decode is recorded as it came."""
    opaque = framed(like_a_request(999, 3))
    player = connected(before)
    if "login" in before:
        log_in(player)
    elif "Handshake" in before:
        authenticate(player, response(AUTHENTICATE, 2, messages.SaslAuthenticateResponse(), 2))
    else:
        begin(player)
    player.client(opaque)
    assert player.frames()[-1].data == opaque
    assert not player.frames()[-1].flags & REDACTED


@pytest.mark.parametrize("requests", [1, 100])
def test_requests_that_nobody_answers_do_not_end_the_watch(requests: int) -> None:
    """What a producer without answers (acks=0) sends decodes, and is recorded."""
    player = connected("ApiVersions")
    for _ in range(requests):
        player.client(produce(0))
    assert player.frames()[-1].data == produce(0)
    player.client(framed(PLAIN))
    assert_absent(player)


def test_the_word_of_a_broker_that_breaks_the_protocol_is_not_logged() -> None:
    """A SaslAuthenticate is answered by a bare token: not even as a correlation id."""
    player = connected("SaslHandshake v1")
    asked = messages.SaslAuthenticateRequest(auth_bytes=PLAIN)
    player.client(request(AUTHENTICATE, 2, asked, 2))
    player.broker(framed(SECRET))
    assert player.closed
    assert_absent(player)


@pytest.mark.parametrize(
    "before", ["nothing", "ApiVersions", "SaslHandshake v0", "a login, and another"]
)
@pytest.mark.parametrize("start", [b"s3cr", b"\xa3cr3", b"n,,n"])
@pytest.mark.parametrize("side", [Side.CLIENT, Side.BROKER])
def test_what_may_be_of_a_token_is_not_told_as_a_number(
    before: str, start: bytes, side: Side
) -> None:
    """Four bytes of it, where a size or a correlation id should be."""
    player = connected(before)
    if side is Side.CLIENT:
        player.client(start + b"t-Passw0rd")
    else:
        player.client(framed(PLAIN) if before == "SaslHandshake v0" else heartbeat(7))
        player.broker(start + b"t-Passw0rd" if before != "nothing" else framed(start + b"more"))
    said = str(player.logs) + str([each for each in player.entries if not isinstance(each, Frame)])
    for signed in (True, False):
        assert str(int.from_bytes(start, signed=signed)) not in said


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tail", [SECRET, b"\0\0\x7f\xff" + SECRET, b"\0\0" + bytes(4) + SECRET])
def test_what_a_broker_says_in_place_of_a_handshakes_answer_is_not_recorded(
    version: int, tail: bytes
) -> None:
    """Its correlation id is right, and what follows is none of the handshake's fields."""
    player = connected("nothing")
    player.client(request(HANDSHAKE, version, messages.SaslHandshakeRequest(mechanism="PLAIN"), 1))
    player.broker(answer := framed((1).to_bytes(4) + tail))
    assert player.to_client() == answer, "it passes as it came"
    assert_absent(player)


def test_a_first_token_that_a_broker_refuses_is_explained() -> None:
    player = connected("nothing")
    player.client(framed(PLAIN))
    end(player, Side.BROKER)
    assert "a SASL token without a SaslHandshake" in str(player.logs)
    assert_absent(player)


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_login_that_a_rule_refuses_has_not_succeeded(phase: str) -> None:
    rules = Rules([Rule(api="SaslAuthenticate", error="SASL_AUTHENTICATION_FAILED", phase=phase)])
    player = Player(cluster=Cluster(Settings([BROKER], 19092, record_users=True), rules))
    player.connect()
    shake(player, 1)
    asked = messages.SaslAuthenticateRequest(auth_bytes=PLAIN)
    player.client(request(AUTHENTICATE, 2, asked, 2))
    if phase == "after":
        player.broker(response(AUTHENTICATE, 2, messages.SaslAuthenticateResponse(), 2))
    begin(player)
    player.client(framed(PLAIN))
    assert_absent(player)
