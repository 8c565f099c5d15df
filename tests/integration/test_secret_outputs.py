"""No secret reaches anything that kproxy writes or answers: a script talks of nothing but secrets.

::

    client ─ a session for each mechanism and API ─▶ kproxy run ─▶ broker: answers by the script
                                                       │
       recording (raw, decompressed, torn) · log · /status … · show, why, stats, export, report

Each secret is the same, so one search finds them all: in the clear, in hex, and in base64 at any
offset. What passes is compared, so that the script is heard as it is.
"""

from __future__ import annotations

import base64
import contextlib
import re
import socket
import socketserver
import threading
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet
import pytest

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.entries import SASL_TOKEN, Side
from kproxy.wire.protocol import api_key
from tests.bed import needs, programs, proxies, replays, ways
from tests.bed.programs import Login
from tests.bed.proxies import Proxy
from tests.integration.test_secrets import written
from tests.proxy.test_redact import APIS, SECRET, request, response, secret_frames, versions
from tests.versions import ALL, some

NEEDLE = b"s3cr3t"
"""The beginning of SECRET, as it is in any encoding of text."""
FORMS = [NEEDLE, NEEDLE.hex().encode()] + [
    base64.b64encode(bytes(offset) + NEEDLE)[offset + 1 if offset else 0 : -4 if offset else None]
    for offset in range(3)
]
Session = list[tuple[bytes, bytes]]
"""What is asked on a connection, and answered."""

_B64 = base64.b64encode(SECRET.encode()).decode()
_TOKENS = {
    "PLAIN": [(f"\0alice\0{SECRET}", "")],
    "SCRAM-SHA-256": [
        (f"n,,n=bob,r={SECRET}", f"r={SECRET}{SECRET},s={_B64},i=4096"),
        (f"c=biws,r={SECRET}{SECRET},p={_B64}", f"v={_B64}"),
    ],
    "OAUTHBEARER": [(f"n,,\x01auth=Bearer {SECRET}\x01\x01", f'{{"status":"{SECRET}"}}')],
    "GSSAPI": [(f"\x60\x82\x02{SECRET}", f"\x60\x82\x01{SECRET}"), (f"\x05{SECRET}", SECRET)],
    "AWS_MSK_IAM": [(f'{{"x-amz-signature":"{SECRET}"}}', f'{{"request-id":"{SECRET}"}}')],
}
_TOKENS["SCRAM-SHA-512"] = _TOKENS["SCRAM-SHA-256"]
"""Mechanism → tokens of the client and of the broker, in turn."""


def frame(data: bytes) -> bytes:
    """Bytes behind their size."""
    return len(data).to_bytes(4) + data


def handshake(mechanism: str, version: int) -> tuple[bytes, bytes]:
    """A client names a mechanism, and the broker takes it."""
    answer = response("SaslHandshake", version, mechanisms=[mechanism])
    return request("SaslHandshake", version, mechanism=mechanism), answer


def sessions() -> dict[str, Session]:
    """Sessions that hold the secret wherever one can be, by name."""
    found: dict[str, Session] = {}
    for mechanism, tokens in _TOKENS.items():
        pairs = [(sent.encode(), answer.encode()) for sent, answer in tokens]
        login = [handshake(mechanism, 1)] + [
            (
                request("SaslAuthenticate", version, auth_bytes=sent),
                response("SaslAuthenticate", version, auth_bytes=answer),
            )
            for version in versions("SaslAuthenticate")
            for sent, answer in pairs
        ]
        refused = response("SaslAuthenticate", 2, error_code=58, error_message=SECRET)
        again = (request("SaslAuthenticate", 2, auth_bytes=SECRET.encode() * 2), refused)
        found[mechanism] = [*login, *login, again]
        found[f"{mechanism} without headers"] = [
            handshake(mechanism, 0),
            *((frame(sent), frame(answer)) for sent, answer in pairs),
        ]
    for api in APIS[1:]:
        version = max(versions(api))
        sides = dict(secret_frames(api, version))
        asked = sides.get(Side.CLIENT) or request(api, version)
        found[api] = [(asked, sides.get(Side.BROKER) or response(api, version))]
    found["bytes behind a token"] = [
        (frame(request("SaslAuthenticate", 0, auth_bytes=b"")[4:] + SECRET.encode()), b"")
    ]
    found["a version of the future"] = [
        (frame(api_key("SaslAuthenticate").to_bytes(2) + b"\0\x63\0\0\0\7" + SECRET.encode()), b"")
    ]
    return found


@contextlib.contextmanager
def scripted(script: dict[str, Session]) -> Iterator[str]:
    """A broker that answers what the script has, and hangs up on anything else; its address."""
    answers = {asked: answer for session in script.values() for asked, answer in session}

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while size := self.rfile.read(4):
                answer = answers.get(size + self.rfile.read(int.from_bytes(size)))
                if not answer:
                    return
                self.wfile.write(answer)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield "{}:{}".format(*server.server_address[:2])
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def talking(port: int, session: Session, then: bytes = b"") -> Iterator[None]:
    """Say what is asked in a session, and hear what is answered; say one thing more, and stay."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as client,
        client.makefile("rwb") as stream,
    ):
        for asked, answer in session:
            stream.write(asked)
            stream.flush()
            assert stream.read(len(answer)) == answer, "it passes as it is"
        client.sendall(then)
        yield


def assert_no_secret(name: str, output: bytes) -> None:
    """No form of the secret is in an output, which has something to say."""
    assert output, f"{name} says nothing"
    for form in FORMS:
        assert form not in output, f"the secret is in {name}"


def answers_of_control(proxy: Proxy) -> Iterator[tuple[str, bytes]]:
    """What the control port answers, by path."""
    url = re.search(r"http://\S+", proxy.says("metrics: http"))
    assert url
    for path in ("metrics", "status", "connections", "faults"):
        with urllib.request.urlopen(url[0].replace("/metrics", f"/{path}"), timeout=10) as answer:
            yield path, answer.read()


def views(path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[tuple[str, bytes]]:
    """All that commands write about a recording, by command."""
    kinds = {(each.api, each.api_version): each for each in recording.read(path)}
    numbers = [str(each.number) for each in kinds.values()]
    frames = [["show", "--frame", number, str(path)] for number in numbers]
    stories = [["why", str(path), f"number:{number}"] for number in numbers]
    named = (["show"], ["show", "--json"], ["stats"], ["textconv"], ["tail"])
    for command in (*([*each, str(path)] for each in named), *frames, *stories):
        assert main(command) == 0, command
        said = capfd.readouterr()
        yield " ".join(command), (said.out + said.err).encode()
    for form in ("parquet", "jsonl", "mcap"):
        target = path.with_name(f"exported.{form}")
        assert main(["export", str(path), "--to", str(target)]) == 0
        table = pyarrow.parquet.read_table(target) if form == "parquet" else None
        yield form, str(table.to_pylist()).encode() if table else target.read_bytes()
    page = path.with_name("exported.html")
    assert main(["export", str(path), "--to", str(page)]) == 0
    packed = re.findall(rb'id="(?:content|portion-\d+)">([^<]+)<', page.read_bytes())
    assert len(packed) > 1
    yield "html", b"".join(zlib.decompress(base64.b64decode(each)) for each in packed)


def report(path: Path, folder: Path) -> Iterator[tuple[str, bytes]]:
    """What `kproxy analyze` makes of a recording, by file."""
    assert main(["analyze", str(path), "--out", str(folder)]) == 0
    for each in folder.rglob("*"):
        if each.suffix == ".parquet":
            yield str(each), str(pyarrow.parquet.read_table(each).to_pylist()).encode()
        elif each.is_file() and each.stat().st_size:
            yield str(each), each.read_bytes()


def test_what_is_searched_for_is_found() -> None:
    secret = SECRET.encode()
    for offset in range(3):
        assert any(form in base64.b64encode(bytes(offset) + secret) for form in FORMS)
    for each in (secret, secret.hex().encode(), repr(secret).encode(), str([SECRET]).encode()):
        assert any(form in each for form in FORMS)


def test_no_output_has_a_secret(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    script = sessions()
    with (
        scripted(script) as address,
        proxies.running(address, tmp_path, "--control", "127.0.0.1:0") as proxy,
        contextlib.ExitStack() as stack,
    ):
        for number, session in enumerate(script.values()):
            stack.enter_context(talking(proxy.port, session))
            asked = b"".join(asked for asked, _ in session[:2])
            with talking(proxy.port, [], asked[: -1 - number % 5]):  # cut off, here and there
                pass
        for name, output in answers_of_control(proxy):
            assert_no_secret(name, output)
    assert_no_secret("the log", proxy.log.encode())
    assert_no_secret("the recording", written(proxy))
    for name, output in views(proxy.recording, capfd):
        assert_no_secret(name, output)
    if ALL:  # Spark takes its time, and the report is made of the same tables
        for name, output in report(proxy.recording, tmp_path / "analysis"):
            assert_no_secret(name, output)
    assert main(["scan", str(proxy.recording)]) == 0, capfd.readouterr().out
    tokens = [each for each in recording.read(proxy.recording) if each.api == SASL_TOKEN]
    assert len(tokens) >= len(_TOKENS) and all(each.redacted for each in tokens)


def test_a_recording_that_breaks_off_has_no_secret(tmp_path: Path) -> None:
    """kproxy is killed with tokens on their way; the file is completed afterwards."""
    script = sessions()
    with (
        scripted(script) as address,
        proxies.running(address, tmp_path) as proxy,
        contextlib.ExitStack() as stack,
    ):
        for session in script.values():
            stack.enter_context(talking(proxy.port, session))
            half = session[min(1, len(session) - 1)][0][:-1]
            stack.enter_context(talking(proxy.port, session[:-1][:1], half))
        proxy.process.kill()
        proxy.process.wait()
        proxy.code = -9
    assert_no_secret("the torn file", proxy.recording.read_bytes())
    assert main(["recover", str(proxy.recording)]) == 0
    assert_no_secret("the file that was completed", written(proxy))


@pytest.mark.parametrize("mechanism", some(list(_TOKENS)[:3], ["SCRAM-SHA-256"]))
def test_a_replay_keeps_no_secret(mechanism: str, tmp_path: Path) -> None:
    """Neither what it says, nor a recording of it, whether it takes the login or not."""
    client = programs.named("confluent-kafka")
    demo = needs.REPOSITORY / "recordings" / "demo.mcap"
    with replays.running(demo, tmp_path / "replay", "--user", f"bob:{NEEDLE.decode()}") as replay:
        with proxies.running(replay.bootstrap, tmp_path / "run") as proxy:
            for password in (NEEDLE.decode(), f"{NEEDLE.decode()}-that-is-wrong"):
                told = ways.settings(client, None, Login(mechanism, "bob", password))
                done = programs.work(client, proxy.bootstrap, "t", ("connect",), settings=told)
                right = password == NEEDLE.decode() or "SCRAM" not in mechanism
                assert (done["connect"]["saw"] is None) == right, done
        replay.code = 1 if "SCRAM" in mechanism else 0
    assert_no_secret("the log of the replay", replay.log.encode())
    assert_no_secret("the log", proxy.log.encode())
    assert_no_secret("the recording", written(proxy))
