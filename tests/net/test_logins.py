"""kproxy logs in at brokers for clients, whatever a broker, a command or an endpoint does."""

from __future__ import annotations

import base64
import contextlib
import http.server
import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from kproxy.net import logins, running
from kproxy.net.handshake import Failures
from kproxy.net.logins import Logins, fetch_token
from kproxy.net.security import security
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls
from kproxy.proxy import down
from kproxy.proxy.authenticate import KINDS, LoginFailed
from kproxy.wire.protocol import error_code, messages
from tests.net.proxied import proxied, receive_exactly
from tests.net.test_health import address, get, until
from tests.proxy.playing import heartbeat, heartbeat_answer, response

SECRET = "secret-8c2d"
PLAIN = Credentials("PLAIN", "alice", SECRET)
FAILED = error_code("SASL_AUTHENTICATION_FAILED") or 0
UNSUPPORTED = error_code("UNSUPPORTED_SASL_MECHANISM") or 0


class Broker:
    """A broker that wants a login, and answers heartbeats then."""

    def __init__(self, **changes: object) -> None:
        """`changes` are what it does otherwise: `handshake` and `authenticate` are errors,
        `lifetime_ms` is that of a session, `token` is what it takes; `answer` is bytes for all."""
        self.changes = changes
        self.tokens: list[bytes] = []
        self.open = 0

    async def __call__(self, stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.EndOfChannel, trio.BrokenResourceError):
            while True:
                (size,) = struct.unpack(">i", await receive_exactly(stream, 4))
                data = await receive_exactly(stream, size)
                key, version, number = struct.unpack_from(">hhi", data)
                sent = self.changes.get("answer")
                if sent is None:
                    sent = self.answer(key, version, number, data)
                elif not sent:
                    await trio.sleep_forever()
                await stream.send_all(sent)

    def answer(self, key: int, version: int, number: int, data: bytes) -> bytes:
        """Its response to a request."""
        if key == 12:
            return heartbeat_answer(number)
        if key == 18:
            kind = messages.ApiVersionsResponse
            each = kind.ApiVersion(api_key=36, min_version=0, max_version=2)
            return response(key, version, kind(api_keys=[each]), number)
        if key == 17:
            kind = messages.SaslHandshakeResponse
            error = self.changes.get("handshake", 0)
            return response(key, version, kind(error_code=error, mechanisms=["GSSAPI"]), number)
        self.tokens.append(data)
        good = self.changes.get("token", b"").encode() if "token" in self.changes else b""
        error = self.changes.get("authenticate", 0 if good in data else FAILED)
        lifetime_ms = 0 if error else self.changes.get("lifetime_ms", 0)
        body = messages.SaslAuthenticateResponse(
            error_code=error, error_message=f"not {SECRET}", session_lifetime_ms=lifetime_ms
        )
        return response(key, version, body, number)


@pytest.mark.parametrize(
    ("changes", "kind", "why"),
    [
        ({"handshake": UNSUPPORTED}, "mechanism", "does not offer PLAIN, only GSSAPI"),
        ({"authenticate": FAILED}, "credentials", "refuses the login with PLAIN"),
        ({"answer": b"HTTP/1.1 400 Bad Request\r\n\r\n"}, "protocol", "does not answer in Kafka's"),
        ({"answer": b"\x15\x03\x03\0\x02\x02\x28"}, "protocol", "speak TLS"),
        ({"answer": b"\0\0\0\5hello"}, "protocol", "is not Kafka's"),
        ({"answer": b""}, "timeout", "no login within 0.5 s"),
    ],
)
async def test_a_login_that_fails_ends_the_connection(
    changes: dict, kind: str, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(logins, "LOGIN_SECONDS", 0.5)
    failures = Failures()
    monkeypatch.setattr("kproxy.net.security.Failures", lambda: failures)
    path = tmp_path / "r.mcap"
    async with proxied(Broker(**changes), path, credentials=PLAIN, authenticate=True) as proxy:
        for _ in range(2):
            async with await proxy.connect() as client:
                assert await client.receive_some() == b""
    (line,) = (log for log in proxy.logs if "connections to it end" in log)
    assert why in line and f"127.0.0.1:{proxy.broker_port}" in line
    assert failures.logins.keys() == set(KINDS), "each has a series from the start"
    assert (+failures.logins).keys() == {kind}
    assert failures.logins[kind] == 2 or kind not in ("mechanism", "credentials"), "it may lock it"
    assert SECRET not in "".join(proxy.logs) and SECRET.encode() not in path.read_bytes()


async def test_health_wants_the_login_of_kproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is down while that fails, whatever clients do that log in themselves; said once."""
    monkeypatch.setattr(down, "_ROUND_NS", 50_000_000)
    monkeypatch.setattr(down, "_UNUSED_INTERVAL_NS", 50_000_000)
    monkeypatch.setattr(down, "_LOGIN_INTERVAL_NS", 50_000_000)
    broker = Broker()
    health = {"health": ("127.0.0.1", 0), "credentials": PLAIN}
    async with proxied(broker, **health) as proxy:
        where = address(proxy, "health")
        await until(where, 200, listening=True, broker=True)
        broker.changes["authenticate"] = FAILED
        await until(where, 503, listening=True, broker=False)
        seen = len(broker.tokens)
        while len(broker.tokens) < seen + 5:
            async with await proxy.connect() as client:
                await client.send_all(heartbeat(1))
                await receive_exactly(client, len(heartbeat_answer(1)))
        assert (await get(where, "/readyz"))[0] == 503
        del broker.changes["authenticate"]
        await until(where, 200, listening=True, broker=True)
        said = [line for line in proxy.logs if line.startswith("the bootstrap broker")]
        assert [line.partition(": no login")[0] for line in said] == [
            "the bootstrap broker is down",
            "the bootstrap broker answers again",
        ]


async def test_credentials_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_has_terminal", lambda: False)
    found = [(None, attrs.evolve(PLAIN, password="new")), (None, None)]
    login = {"credentials": PLAIN, "authenticate": True, "read_client": found.pop}
    async with proxied(Broker(token="new"), **login) as proxy:
        for says in (
            "the properties from before stay in use: that TLS",
            "properties are loaded",
            "",
        ):
            got = b""
            async with await proxy.connect() as client:
                with contextlib.suppress(trio.BrokenResourceError):
                    await client.send_all(heartbeat(1))
                    got = await client.receive_some()
            assert bool(got) == (not says), "only the new password is taken"
            if says:
                signal.raise_signal(signal.SIGHUP)
                while not any(log.startswith(says) for log in proxy.logs):
                    await trio.sleep(0.01)


async def test_it_is_ready_as_soon_as_other_credentials_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running, "_has_terminal", lambda: False)
    found = [(None, attrs.evolve(PLAIN, password="new"))]
    login = {"health": ("127.0.0.1", 0), "credentials": PLAIN, "read_client": found.pop}
    async with proxied(Broker(token="new"), **login) as proxy:
        where = address(proxy, "health")
        await until(where, 503, listening=True, broker=False)
        signal.raise_signal(signal.SIGHUP)
        await until(where, 200, listening=True, broker=True)  # and not after 30 s


@pytest.mark.parametrize(
    ("mechanism", "tls", "warned"),
    [
        ("PLAIN", None, True),
        ("OAUTHBEARER", BrokerTls(verified=False), True),
        ("PLAIN", BrokerTls(), False),
        ("SCRAM-SHA-256", None, False),
    ],
)
def test_who_shows_a_password_to_whoever_is_there_is_warned(
    mechanism: str, tls: BrokerTls | None, warned: bool
) -> None:
    said: list[tuple[str, str]] = []
    log = lambda *line: said.append(line)  # noqa: E731
    security(tls, None, [], log, attrs.evolve(PLAIN, mechanism=mechanism))
    shown = f"{mechanism} shows a password or a token"
    assert any(shown in line and level == "warning" for line, level in said) == warned


async def test_a_client_works_for_many_sessions_and_nothing_of_it_is_recorded(
    tmp_path: Path,
) -> None:
    broker, path = Broker(lifetime_ms=20), tmp_path / "r.mcap"
    async with proxied(broker, path, credentials=PLAIN, authenticate=True) as proxy:
        async with await proxy.connect() as client:
            number = 0
            while len(broker.tokens) < 5:
                number += 1
                await client.send_all(heartbeat(number))
                answer = heartbeat_answer(number)
                assert await receive_exactly(client, len(answer)) == answer
    assert proxy.summary and proxy.summary.frames_recorded == 2 * number
    assert all(f"\0alice\0{SECRET}".encode() in token for token in broker.tokens)
    assert SECRET.encode() not in path.read_bytes()


async def test_a_login_anew_that_fails_ends_the_connection() -> None:
    broker = Broker(lifetime_ms=1)
    async with proxied(broker, credentials=PLAIN, authenticate=True) as proxy:
        async with await proxy.connect() as client:
            await client.send_all(heartbeat(1))
            await receive_exactly(client, len(heartbeat_answer(1)))
            broker.changes["authenticate"] = FAILED
            with pytest.raises((trio.BrokenResourceError, trio.EndOfChannel)):
                while True:
                    await client.send_all(heartbeat(2))
                    await receive_exactly(client, len(heartbeat_answer(2)))
        why = "ended: kproxy could not log in anew: the broker refuses"
        while not any(why in log for log in proxy.logs):
            await trio.sleep(0.01)


async def test_a_client_that_goes_during_a_login_anew_leaves_nothing_behind() -> None:
    broker = Broker(lifetime_ms=1)
    async with proxied(broker, credentials=PLAIN, authenticate=True) as proxy:
        client = await proxy.connect()
        await client.send_all(heartbeat(1))
        await receive_exactly(client, len(heartbeat_answer(1)))
        broker.changes["answer"] = b""
        await client.send_all(heartbeat(2))
        await client.aclose()
    assert not [log for log in proxy.logs if "defect" in log], proxy.logs


# Tokens


def jwt(seconds: float, name: str = "a") -> str:
    """A token that nobody signed, and that holds for so long."""
    claims = json.dumps({"sub": name, "exp": time.time() + seconds}).encode()
    parts = [base64.urlsafe_b64encode(each).decode().strip("=") for each in (b"{}", claims, b"")]
    return ".".join(parts)


class Endpoint:
    """A token endpoint: each request and its answer."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status, self.body, self.headers = 200, b"", {}
        self.go_on = threading.Event()
        self.go_on.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.asked.append((self.headers["Authorization"], body))
                outer.go_on.wait(20)
                self.send_response(outer.status)
                for name, value in outer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(outer.body)

            do_GET = do_POST

            def log_message(self, *about: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.go_on.set()
    made.server.shutdown()
    thread.join()
    made.server.server_close()


def at(endpoint: Endpoint) -> Credentials:
    return Credentials("OAUTHBEARER", "id:1", SECRET, endpoint=endpoint.url, scope="kafka x")


async def test_an_endpoint_gives_a_token_to_a_client_by_its_secret(endpoint: Endpoint) -> None:
    endpoint.body = json.dumps({"access_token": "t-1", "expires_in": 300}).encode()
    found = await fetch_token(at(endpoint))
    assert (found.text, found.seconds) == ("t-1", 300) and "t-1" not in repr(found)
    ((authorization, body),) = endpoint.asked
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"id:1:{SECRET}"
    assert body == "grant_type=client_credentials&scope=kafka+x"


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (401, SECRET, "the token endpoint at 127.0.0.1 answers 401"),
        (302, "", "the token endpoint at 127.0.0.1 answers 302"),
        (200, f"<p>{SECRET}", "is no token"),
        (200, json.dumps({"error": SECRET}), "is no token"),
        (200, json.dumps({"access_token": "a\nb"}), "is no token"),
        (200, json.dumps({"access_token": "a" * 100_000}), "is no token"),
        (200, "{" * 10_000, "is no token"),
        (200, '{"access_token": "abc", "expires_in": NaN}', "is no token"),
        (200, '{"access_token": "abc", "expires_in": "inf"}', "is no token"),
    ],
)
async def test_an_endpoint_that_gives_none_is_named_and_not_quoted(
    status: int, body: str, why: str, endpoint: Endpoint
) -> None:
    endpoint.status, endpoint.body = status, body.encode()
    endpoint.headers = {"Location": f"{endpoint.url}/elsewhere"} if status == 302 else {}
    with pytest.raises(LoginFailed, match=why) as caught:
        await fetch_token(at(endpoint))
    assert caught.value.kind == "token" and SECRET not in str(caught.value)
    assert len(endpoint.asked) == 1, "a redirect would take the secret elsewhere"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print('t-1')", ""),
        ('print(\'{"access_token": "t-1", "expires_in": 5}\')', ""),
        (f"import sys; print('{SECRET}'); sys.exit(3)", "ends with exit code 3"),
        (f"import sys; sys.stderr.write('{SECRET}')", "is no token"),
        ("while True: print('a' * 9999)", "is no token"),
        ("import os; print('t-1', flush=True); os.fork() or os.system('sleep 600')", ""),
        ("import os; print(os.environ.get('KPROXY_SASL_PASSWORD', 't-1'))", ""),
    ],
)
async def test_a_command_gives_a_token(
    code: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KPROXY_SASL_PASSWORD", SECRET)
    (tmp_path / "token.py").write_text(code)
    command = f"{sys.executable} {tmp_path / 'token.py'}"
    wanted = Credentials("OAUTHBEARER", token_command=command)
    if not why:
        assert (await fetch_token(wanted)).text == "t-1"
        return
    with pytest.raises(LoginFailed, match=why) as caught:
        await fetch_token(wanted)
    assert SECRET not in str(caught.value)


async def test_a_token_is_fetched_again_before_it_ends_and_kept_where_that_fails(
    tmp_path: Path, mock_clock: trio.testing.MockClock
) -> None:
    path = tmp_path / "token"
    made = Logins(Credentials("OAUTHBEARER", token_file=path), Failures())
    first, second = jwt(100, "a"), jwt(1000, "b")
    path.write_text(f"{first}\n")
    assert (await made._account()).password == first
    path.write_text(second)
    mock_clock.jump(70)
    assert (await made._account()).password == first
    path.unlink()
    mock_clock.jump(10)
    assert (await made._account()).password == first, "it still holds"
    path.write_text(second)
    mock_clock.jump(1)
    assert (await made._account()).password == second
    path.unlink()
    mock_clock.jump(1000)
    with pytest.raises(LoginFailed, match="no such file"):
        await made._account()


async def test_an_endpoint_that_hangs_holds_up_only_who_waits_for_it(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "_FETCH_SECONDS", 2.0)
    endpoint.body = json.dumps({"access_token": "t-1", "expires_in": 0.2}).encode()
    broker = Broker(token="t-1")
    async with proxied(broker, credentials=at(endpoint), authenticate=True) as proxy:
        async with await proxy.connect() as served:
            await served.send_all(heartbeat(1))
            await receive_exactly(served, len(heartbeat_answer(1)))
            endpoint.go_on.clear()
            await trio.sleep(0.2)  # the token's time
            async with await proxy.connect() as waits:
                while len(endpoint.asked) < 2:
                    await trio.sleep(0.01)
                for number in range(2, 50):
                    await served.send_all(heartbeat(number))
                    await receive_exactly(served, len(heartbeat_answer(number)))
                assert await waits.receive_some() == b""
    assert any("no token for kproxy's login: it takes too long" in log for log in proxy.logs)


def test_a_token_of_aws_is_signed_by_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    token = trio.run(fetch_token, Credentials("AWS_MSK_IAM", region="eu-west-1"))
    url = base64.urlsafe_b64decode(token.text + "=" * (-len(token.text) % 4)).decode()
    assert url.startswith("https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert 800 < token.seconds <= 900
