"""kproxy's own login: by each mechanism, at a broker that may send anything, and in between the
requests of a client."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import Side
from kproxy.proxy.authenticate import Account, LoginFailed, LoginSession, authenticate
from kproxy.replay.sasl import Authentication
from kproxy.wire.protocol import decode_request, error_code, messages
from tests.proxy.playing import (
    Player,
    end,
    heartbeat,
    heartbeat_answer,
    produce,
    response,
)

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
SECRET = "secret-4f1c"
ILLEGAL = error_code("ILLEGAL_SASL_STATE") or 0
FAILED = error_code("SASL_AUTHENTICATION_FAILED") or 0
UNSUPPORTED = error_code("UNSUPPORTED_SASL_MECHANISM") or 0
SESSION = LoginSession("PLAIN", 2, 10_000)
DUE_NS = 8_500_000_000
"""When kproxy logs in anew, after the beginning of SESSION."""


def versions(most: int = 2) -> messages.ApiVersionsResponse:
    kind = messages.ApiVersionsResponse
    each = kind.ApiVersion(api_key=36, min_version=0, max_version=most)
    return kind(api_keys=[each])


def logged_in(
    account: Account, answer: Callable[[Any, int], Any], earlier: LoginSession | None = None
) -> LoginSession:
    """A login at a broker that answers each body, of an API, with this one."""
    steps = authenticate(account, earlier)
    frame = next(steps)
    try:
        while True:
            asked = decode_request(frame)
            key, version = asked.header.api_key, asked.header.api_version
            said = answer(asked.body, key)
            correlation_id = asked.header.correlation_id
            frame = steps.send(
                said if isinstance(said, bytes) else response(key, version, said, correlation_id)
            )
    except StopIteration as stop:
        return stop.value


def broker(
    token: Callable[[bytes], bytes], most: int = 2, **changes: Any
) -> Callable[[Any, int], Any]:
    """A broker that takes a mechanism's tokens."""

    def answer(body: Any, key: int) -> Any:
        if key == 18:
            return versions(most)
        if key == 17:
            return messages.SaslHandshakeResponse(error_code=changes.get("handshake", 0))
        more = {
            name: changes[name] for name in ("error_code", "session_lifetime_ms") if name in changes
        }
        return messages.SaslAuthenticateResponse(auth_bytes=token(body.auth_bytes), **more)

    return answer


WORDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)


@given(WORDS, WORDS, st.sampled_from(MECHANISMS[1:3]))
def test_scram_is_that_of_the_broker(user: str, password: str, mechanism: str) -> None:
    account = Account(mechanism, user, password)
    server = Authentication(mechanism, {user: password}, "0123456789")
    assert logged_in(account, broker(server.token, session_lifetime_ms=7)) == LoginSession(
        mechanism, 2, 7, user
    )
    assert server.done


@pytest.mark.parametrize("mechanism", MECHANISMS[1:3])
def test_a_broker_must_know_the_password_of_scram(mechanism: str) -> None:
    server = Authentication(mechanism, {"alice": SECRET}, "0123456789")

    def token(data: bytes) -> bytes:
        answer = server.token(data)
        return b"v=" + b"A" * len(answer[2:]) if answer.startswith(b"v=") else answer

    with pytest.raises(LoginFailed, match="does not know the password"):
        logged_in(Account(mechanism, "alice", SECRET), broker(token))


@pytest.mark.parametrize(
    ("account", "token"),
    [
        (Account("PLAIN", "alice", "pässword"), "\0alice\0pässword".encode()),
        (
            Account("OAUTHBEARER", password="abc.def", extensions={"logicalCluster": "lkc-1"}),
            b"n,,\x01auth=Bearer abc.def\x01logicalCluster=lkc-1\x01\x01",
        ),
    ],
)
@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_a_token_is_as_clients_send_it(account: Account, token: bytes, most: int) -> None:
    sent: list[bytes] = []
    lifetime = {"session_lifetime_ms": 9} if most else {}
    found = logged_in(account, broker(lambda data: sent.append(data) or b"", most, **lifetime))
    assert sent == [token]
    about = min(most, 2), 9 if most else 0, account.username
    assert found == LoginSession(account.mechanism, *about)
    assert logged_in(account, broker(lambda data: b""), found).version == min(most, 2)


@pytest.mark.parametrize(
    ("changes", "kind", "why"),
    [
        ({"handshake": UNSUPPORTED}, "mechanism", "does not offer"),
        ({"handshake": ILLEGAL}, "mechanism", "takes no login now"),
        ({"error_code": FAILED}, "credentials", "user or password is wrong"),
        ({"most": -1}, "protocol", "no SaslAuthenticate"),
    ],
)
def test_a_refusal_has_a_reason(changes: dict[str, Any], kind: str, why: str) -> None:
    with pytest.raises(LoginFailed, match=why) as caught:
        logged_in(Account("PLAIN", "alice", SECRET), broker(lambda data: b"", **changes))
    assert caught.value.kind == kind


@given(st.data(), st.sampled_from(MECHANISMS))
def test_a_broker_may_send_anything(data: st.DataObject, mechanism: str) -> None:
    """Garbage, or tokens without end: the login ends, after few requests, without a secret."""
    server = Authentication(mechanism, {"alice": SECRET}, "0123456789")
    good = broker(server.token)
    token = st.one_of(st.binary(max_size=40), st.text("rsi=,v0123456789AB+/", max_size=40))
    asked = 0

    def answer(body: Any, key: int) -> Any:
        nonlocal asked
        asked += 1
        kind = data.draw(st.sampled_from(["good", "bytes", "token"]))
        if kind == "good":
            return good(body, key)
        if kind == "token" and key == 36:
            odd = data.draw(token)
            odd = odd.encode() if isinstance(odd, str) else odd
            return messages.SaslAuthenticateResponse(auth_bytes=odd)
        rest = data.draw(st.binary(max_size=60))
        return len(rest).to_bytes(4) + rest

    try:
        logged_in(Account(mechanism, "alice", SECRET), answer)
    except LoginFailed as error:
        assert SECRET not in str(error)
    assert asked <= 4


# In between the requests of a client


def connected() -> Player:
    """A connection at which kproxy has logged in, and a first request is answered."""
    player = Player()
    player.performer.accept(1, None, "127.0.0.1:5000", ("127.0.0.1", 19092))
    player.performer.dialled(1, player.dialled[-1].addresses[0], SESSION)
    player.client(heartbeat(0))
    player.broker(heartbeat_answer(0))
    return player


def test_a_session_is_renewed_before_the_next_request() -> None:
    player = connected()
    player.client(heartbeat(1))
    player.now += DUE_NS
    late = heartbeat(2) + produce(0, correlation_id=3) + heartbeat(4)
    before = player.to_broker()
    player.client(late)
    assert not player.performer.logging_in, "a request is under way"
    player.broker(heartbeat_answer(1))
    assert player.performer.logging_in[1].earlier == SESSION
    assert player.to_broker() == before
    assert (1, Side.CLIENT) in player.paused
    player.performer.logged_in(1, SESSION)
    assert player.to_broker() == before + late and not player.paused
    player.broker(heartbeat_answer(2) + heartbeat_answer(4))
    player.client(heartbeat(5))
    assert not player.performer.logging_in, "the session is a new one"
    end(player, Side.CLIENT)
    apis = [frame.api_key for frame in player.frames()]
    assert set(apis) == {12, 0}, "a login is in the recording"
    assert player.notes("opened")[0].body["broker_login"] == "PLAIN"


def test_an_idle_connection_does_not_log_in() -> None:
    player = connected()
    player.advance(player.now + 3 * DUE_NS)
    assert not player.performer.logging_in


def test_what_the_client_sent_before_it_ended_follows_the_login() -> None:
    player = connected()
    player.now += DUE_NS
    before = player.to_broker()
    player.client(heartbeat(1))
    end(player, Side.CLIENT)
    assert player.performer.logging_in and not player.eofs
    player.performer.logged_in(1, SESSION)
    assert player.to_broker() == before + heartbeat(1)
    player.broker(heartbeat_answer(1))
    assert player.eofs == [(1, Side.BROKER)]


def test_a_login_that_fails_ends_the_connection_and_is_logged_once() -> None:
    player = connected()
    for number in (1, 2, 3):
        if number > 1:
            player.performer.accept(number, None, "127.0.0.1:5000", ("127.0.0.1", 19092))
            player.performer.dialled(number, player.dialled[-1].addresses[0], SESSION)
        player.now += DUE_NS
        player.client(heartbeat(9), number)
        assert number in player.performer.logging_in
        now = player.tick()
        player.perform(player.cluster.closed(number, Side.BROKER, "login", "it is wrong", now))
    assert [log for log in player.logs if "it is wrong" in log] == [
        "connection 1 (127.0.0.1:5000 → bootstrap) ended: it is wrong"
    ]
    assert [note.body["how"] for note in player.notes("closed")] == ["login"] * 3
    assert len(player.closed) == 3


@given(st.integers(0, 1 << 32))
def test_a_login_comes_between_two_frames_whatever_the_chunks(seed: int) -> None:
    chance, player = random.Random(seed), connected()
    one_way = [chance.random() < 0.5 for _ in range(8)]
    requests = [
        produce(0, correlation_id=n, size=chance.choice([10, 100_000])) if each else heartbeat(n)
        for n, each in enumerate(one_way)
    ]
    answers = [heartbeat_answer(n) for n, each in enumerate(one_way) if not each]
    ends = [*itertools.accumulate(map(len, requests), initial=0)]
    stream, before, sent, answered = b"".join(requests), len(player.to_broker()), 0, 0
    while True:
        passed = len(player.to_broker()) - before
        owed = sum(stop <= passed for stop, each in zip(ends[1:], one_way, strict=True) if not each)
        steps = ["login"] if player.performer.logging_in else []
        if sent < len(stream) and not steps and (1, Side.CLIENT) not in player.paused:
            steps.append("send")
        if owed > answered:
            steps.append("answer")
        if not steps:
            break
        if chance.random() < 0.3:
            player.now += DUE_NS
        match chance.choice(steps):
            case "send":
                size = chance.randint(1, chance.choice([20, 200_000]))
                player.client(stream[sent : sent + size])
                sent += size
            case "answer":
                player.broker(answers[answered])
                answered += 1
            case _:
                assert passed in ends and owed == answered, "in the middle of something"
                player.performer.logged_in(1, SESSION)
    assert player.to_broker()[before:] == stream
    assert player.to_client() == heartbeat_answer(0) + b"".join(answers)
