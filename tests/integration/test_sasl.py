"""Logins at the real broker, beyond the first: anew on a live connection, and by bare tokens.

::

    KIP-368   a session ends after SESSION_SECONDS: clients log in anew, or connect anew
    KIP-43    SaslHandshake v0: tokens without Kafka headers, then requests again
    Sarama    the same of a client; and, before a SASL proxy, tokens without a SaslHandshake
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import BinaryIO

import pytest
from confluent_kafka.admin import AdminClient

from kproxy import recording
from kproxy.cli import main
from kproxy.exchange.entries import SASL_TOKEN
from tests.bed import needs, programs, proxies, recorded, replays, scram, ways
from tests.bed.certificates import Certificates
from tests.bed.clients.job import STEADY_COUNT
from tests.bed.kafka import PLAIN_USER, SCRAM_USER, Kafka
from tests.bed.programs import Client, Login
from tests.bed.waiting import until
from tests.bed.ways import Speaks
from tests.integration.test_secrets import assert_absent, written
from tests.integration.test_tls import CLIENTS, LISTENERS, client_marks, login
from tests.net.proxied import unused_port
from tests.versions import some

pytestmark = [pytest.mark.broker, pytest.mark.java]

MECHANISMS = LISTENERS["SASL_SSL"]
LOG_IN_ANEW = {"confluent-kafka", "java-4.3.1", "kafkajs", "kafka-python"}
"""Clients that keep a connection beyond its session; others connect anew."""


@pytest.mark.parametrize(
    ("client", "mechanism"),
    [
        pytest.param(client, mechanism, id=f"{client.name}-{mechanism}", marks=client_marks(client))
        for client, mechanism in some(
            [(client, mechanism) for client in CLIENTS for mechanism in MECHANISMS],
            [(CLIENTS[0], "OAUTHBEARER")],
        )
    ],
)
def test_a_client_works_beyond_its_session(
    client: Client,
    mechanism: str,
    kafka_431: Kafka,
    issued: Certificates,
    prefix: str,
    tmp_path: Path,
) -> None:
    account = login(mechanism)
    assert account
    told = ways.settings(client, Speaks(issued.ca), account)
    options = [*ways.to_brokers("REAUTH", issued), *ways.to_clients(issued.broker)]
    with proxies.running(kafka_431.address_of("REAUTH"), tmp_path, *options) as proxy:
        done = programs.work(client, proxy.bootstrap, prefix, ("create", "steady"), settings=told)
    assert done["steady"]["produced"] == STEADY_COUNT
    logins = [each for each in recorded.exchanges(proxy.recording) if each.api == "SaslHandshake"]
    most = max(Counter(each.connection for each in logins).values())
    assert (most > 1) == (client.name in LOG_IN_ANEW), f"{most} logins on a connection"
    over = "the broker hung up: the client did not log in anew before its session was over"
    assert (over in proxy.log) == (client.name not in LOG_IN_ANEW)
    assert_absent({"the password": account.password.encode()}, proxy)


def test_a_client_that_never_bootstraps_again_works_across_a_restart(
    kafka_431: Kafka, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the port of its broker alone, and kproxy cannot log in to ask which there are."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (client,) = (each for each in CLIENTS if each.name == "java-4.3.1")
    account = login("PLAIN")
    assert account
    waits = {"request.timeout.ms": 10_000, "delivery.timeout.ms": 60_000}
    told = client.login(account) | waits | {"metadata.recovery.strategy": "none"}
    place = kafka_431.sasl_address, tmp_path
    with ThreadPoolExecutor() as threads:
        with proxies.running(*place, "--listen", f"127.0.0.1:{unused_port()}") as proxy:
            steps = "create", "steady"
            work = partial(programs.work, client, proxy.bootstrap, prefix, steps, settings=told)
            working = threads.submit(work)
            path = proxy.recording
            until(lambda: any(x.api == "Produce" for x in recording.read(path)), "it produces")
            until(lambda: any((tmp_path / "state" / "kproxy").glob("*")), "the node is kept")
            assert "does not name its brokers before a login" in proxy.log
        path.rename(tmp_path / "first.mcap")
        with proxies.running(*place, "--listen", proxy.bootstrap) as proxy:
            assert working.result()["steady"]["produced"] == STEADY_COUNT
        assert "does not name its brokers" not in proxy.log
    found = list(recording.read(path))
    assert found and all(each.node_id is not None for each in found)  # none at the bootstrap port


def ask(stream: BinaryIO, request: bytes) -> bytes:
    """Send a frame and return the answer, both without the size."""
    stream.write(struct.pack(">i", len(request)) + request)
    stream.flush()
    (size,) = struct.unpack(">i", stream.read(4))
    return stream.read(size)


def tokens(account: Login) -> Generator[bytes, bytes, None]:
    """The tokens of a client in turn; each takes the answer."""
    if account.mechanism in ("PLAIN", "OAUTHBEARER"):
        plain = f"\0{account.user}\0{account.password}"
        bearer = f"n,,\x01auth=Bearer {account.password}\x01\x01"
        answer = yield (plain if account.mechanism == "PLAIN" else bearer).encode()
        assert answer == b""
    else:
        yield from scram.tokens(account.mechanism, account.user, account.password)


def log_in(port: int, account: Login, ca: Path | None) -> None:
    """Log in by bare tokens, and ask for the brokers."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        if ca:
            context = ssl.create_default_context(cafile=ca)
            client = stack.enter_context(context.wrap_socket(client, server_hostname="127.0.0.1"))
        stream = stack.enter_context(client.makefile("rwb"))
        name = account.mechanism.encode()
        named = struct.pack(">hhihh", 17, 0, 1, -1, len(name)) + name
        assert ask(stream, named)[4:6] == b"\0\0"
        own = tokens(account)
        token = next(own)
        with contextlib.suppress(StopIteration):
            while True:
                token = own.send(ask(stream, token))
        metadata = ask(stream, struct.pack(">hhihi", 3, 1, 2, -1, -1))
        assert metadata[:4] == b"\0\0\0\2"


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    some(
        [(name, each) for name in ("SASL_PLAINTEXT", "SASL_SSL") for each in LISTENERS[name]],
        [("SASL_PLAINTEXT", "PLAIN"), ("SASL_SSL", "SCRAM-SHA-256")],
    ),
)
def test_bare_tokens_pass_and_are_not_recorded(
    listener: str, mechanism: str, kafka_431: Kafka, issued: Certificates, tmp_path: Path
) -> None:
    """By TLS and without; and the recording takes them in its turn."""
    account = login(mechanism)
    assert account
    ca = issued.ca if listener == "SASL_SSL" else None
    listens = ways.to_clients(issued.broker) if ca else []
    options = [*ways.to_brokers(listener, issued), *listens]
    with proxies.running(kafka_431.address_of(listener), tmp_path, *options) as proxy:
        log_in(proxy.port, account, ca)
    assert_absent({"the password": account.password.encode()}, proxy)
    found = [each for each in recording.read(proxy.recording) if each.api == SASL_TOKEN]
    assert len(found) == (2 if "SCRAM" in mechanism else 1)
    assert all(each.redacted for each in found)
    users = ["--user", ":".join(SCRAM_USER)]
    with replays.running(proxy.recording, tmp_path, *listens, *users) as replay:
        log_in(int(replay.bootstrap.rpartition(":")[2]), account, ca)


@pytest.mark.parametrize("options", [["--record-users"], []], ids=["asked for", "not"])
def test_users_are_recorded_if_asked_for(
    options: list[str], kafka_431: Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    """Nothing else of a token; and what is recorded replays."""
    accounts = [*filter(None, map(login, MECHANISMS))]
    at, reaches = kafka_431.address_of("SASL_SSL"), ways.to_brokers("SASL_SSL", issued)
    with proxies.running(at, tmp_path, *reaches, *options) as proxy:
        for each in accounts:
            told = ways.settings(CLIENTS[0], None, each)
            topics = f"{prefix}-{each.mechanism}"
            programs.work(CLIENTS[0], proxy.bootstrap, topics, ("create",), settings=told)
        log_in(proxy.port, accounts[0], None)
    secrets = {each.mechanism: each.password.encode() for each in accounts}
    assert_absent(secrets | {"claims": secrets["OAUTHBEARER"].split(b".")[1]}, proxy)
    assert main(["scan", str(proxy.recording)]) == 0
    found = [*recording.read(proxy.recording)]
    users = [each.user for each in found if each.api == "CreateTopics"]
    users += [found[-1].user]
    expected = [*(each.user for each in accounts), accounts[0].user]
    assert users == (expected if options else [None] * len(expected))
    assert (b'"user' in written(proxy)) == bool(options)
    with replays.running(proxy.recording, tmp_path) as replay:
        log_in(int(replay.bootstrap.rpartition(":")[2]), accounts[0], None)


def test_a_certificate_names_the_user_of_its_client(
    kafka_431: Kafka, issued: Certificates, tmp_path: Path
) -> None:
    options = [*ways.to_clients(issued.broker), "--listen-tls-clients", str(issued.ca)]
    with proxies.running(kafka_431.address, tmp_path, *options, "--record-users") as proxy:
        told = ways.settings(CLIENTS[0], Speaks(issued.ca, issued.client), None)
        client = AdminClient({"bootstrap.servers": proxy.bootstrap, **told})
        assert client.list_topics(timeout=20).brokers
    users = {each.user for each in recording.read(proxy.recording)}
    (tmp_path / "Principal.java").write_text(PRINCIPAL)
    command = [needs.program("java"), str(tmp_path / "Principal.java"), str(issued.client)]
    assert users == {programs.run(command).stdout} and "CN=client,OU=Testing" in str(users)


PRINCIPAL = """
import java.nio.file.*; import java.security.cert.*;
public class Principal { public static void main(String[] arguments) throws Exception {
    String pem = Files.readString(Path.of(arguments[0]));
    pem = pem.substring(pem.indexOf("-----BEGIN CERT"));
    var in = new java.io.ByteArrayInputStream(pem.getBytes());
    var made = CertificateFactory.getInstance("X.509").generateCertificate(in);
    System.out.print(((X509Certificate) made).getSubjectX500Principal().getName());
} }
"""
"""Kafka's default principal of a certificate is what this prints."""


def test_a_bare_token_that_is_refused_is_explained(kafka_431: Kafka, tmp_path: Path) -> None:
    """The broker hangs up: there is no other way to say so."""
    with proxies.running(kafka_431.sasl_address, tmp_path) as proxy:
        with pytest.raises(struct.error):
            log_in(proxy.port, Login("PLAIN", "alice", "not-the-password-of-alice"), None)
        proxy.says("ended: the broker refuses the login with PLAIN: user or password is wrong")
    assert_absent({"the password": b"not-the-password-of-alice"}, proxy)


def sarama(address: str, account: tuple[str, str], *more: str) -> str:
    """Have Sarama log in by bare tokens; what it says at its end."""
    client = programs.go_program("sarama_client.go", programs.SARAMA)
    return programs.run([client, address, *account, *more]).stdout


def test_sarama_logs_in_by_bare_tokens(kafka_431: Kafka, prefix: str, tmp_path: Path) -> None:
    with proxies.running(kafka_431.sasl_address, tmp_path) as proxy:
        done = sarama(proxy.bootstrap, PLAIN_USER, "handshake", f"{prefix}-sarama")
    assert done == "done\n"
    assert_absent({"the password": PLAIN_USER[1].encode()}, proxy)
    found = list(recording.read(proxy.recording))
    assert [each.api for each in found].count("Produce") == 1
    assert all(each.redacted for each in found if each.api == SASL_TOKEN)


@contextlib.contextmanager
def sasl_proxy(broker: str) -> Generator[str]:
    """The address of a SASL proxy before a listener without a login: the first frame of a
    connection is a token of PLAIN, which it answers with four bytes, as Sarama expects it."""
    host, _, port = broker.rpartition(":")

    def relay(source: socket.socket, to: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def serve(client: socket.socket) -> None:
        with client, client.makefile("rb") as stream:
            (size,) = struct.unpack(">i", stream.read(4))
            if stream.read(size) != "\0{}\0{}".format(*PLAIN_USER).encode():
                return
            client.sendall(bytes(4))
            with socket.create_connection((host, int(port))) as kafka:
                threading.Thread(target=relay, args=(kafka, client), daemon=True).start()
                while data := stream.read1():
                    kafka.sendall(data)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = server.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_sarama_logs_in_without_a_handshake(kafka_431: Kafka, tmp_path: Path) -> None:
    """Its first frame is a token, at which a broker would hang up, and a SASL proxy does not."""
    with sasl_proxy(kafka_431.address) as address:
        assert sarama(address, PLAIN_USER, "none") == "done\n"
        with proxies.running(address, tmp_path) as proxy:
            done = sarama(proxy.bootstrap, PLAIN_USER, "none")
    assert done == "done\n"
    assert_absent({"the password": PLAIN_USER[1].encode()}, proxy)
    first, *others = recording.read(proxy.recording)
    assert (first.api, first.redacted) == (SASL_TOKEN, True)
    assert "Metadata" in [each.api for each in others]


def test_a_first_token_that_a_broker_does_not_take_is_explained(
    kafka_431: Kafka, tmp_path: Path
) -> None:
    """A broker without GSSAPI takes none, with kproxy before it or not."""
    refused = sarama(kafka_431.sasl_address, PLAIN_USER, "none")
    assert "EOF" in refused
    with proxies.running(kafka_431.sasl_address, tmp_path) as proxy:
        assert sarama(proxy.bootstrap, PLAIN_USER, "none").count("EOF") == refused.count("EOF")
        proxy.says("if it is a SASL token without a SaslHandshake")
    assert_absent({"the password": PLAIN_USER[1].encode()}, proxy)
