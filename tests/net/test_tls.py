"""TLS on either side: what passes, what is recorded of it, and what is said when it fails."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest
import trio

from kproxy.exchange.endings import connection_end
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.net.tls.contexts import broker_contexts
from kproxy.net.tls.settings import BrokerTls, Identity, ListenTls, Trust
from kproxy.recording import entries
from tests.bed import certificates
from tests.bed.certificates import Certificates
from tests.net.proxied import Proxied, proxied, receive_exactly
from tests.net.test_pump import answer, answering, ask


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """All certificates, right and wrong."""
    return certificates.make(tmp_path_factory.mktemp("certificates"))


def server(made: Certificates, certificate: Path | None = None) -> ssl.SSLContext:
    """What a broker has that was not written by us."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate or made.broker)
    return context


def client(made: Certificates, ca: Path | None = None) -> ssl.SSLContext:
    """What a client has that was not written by us."""
    return ssl.create_default_context(cafile=ca or made.ca)


def speaking(
    context: ssl.SSLContext, handler: Callable[..., Awaitable[None]]
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A broker that speaks TLS."""

    async def serve(stream: trio.SocketStream) -> None:
        try:
            await handler(trio.SSLStream(stream, context, server_side=True))
        except (trio.BrokenResourceError, ssl.SSLError):
            await trio.aclose_forcefully(stream)

    return serve


async def connected(proxy: Proxied, context: ssl.SSLContext | None) -> trio.abc.HalfCloseableStream:
    """A client's connection, by TLS if it has a context."""
    stream = await proxy.connect()
    if context is None:
        return stream
    return trio.SSLStream(stream, context, server_hostname="localhost")


async def rest(stream: trio.SocketStream) -> bytes:
    """What comes, if anything, before the connection ends or is reset."""
    found = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while chunk := await stream.receive_some():
            found += chunk
            if len(found) == len(answer(0)):
                break
    return found


def said(proxy: Proxied, event: str) -> list[dict]:
    """The bodies of the notes of a kind that were recorded."""
    assert proxy.summary
    (path,) = proxy.summary.paths
    notes = [entry.body for entry in entries(path) if isinstance(entry, Note)]
    return [body for body in notes if body["event"] == event]


@pytest.mark.parametrize("broker_speaks", [False, True])
@pytest.mark.parametrize("client_speaks", [False, True])
async def test_each_side_speaks_tls_or_not(
    client_speaks: bool, broker_speaks: bool, made: Certificates, tmp_path: Path
) -> None:
    handler = speaking(server(made), answering) if broker_speaks else answering
    changes = {
        "broker_tls": BrokerTls(Trust(made.ca)) if broker_speaks else None,
        "listen_tls": ListenTls(Identity(made.broker)) if client_speaks else None,
    }
    async with proxied(handler, tmp_path / "r.mcap", **changes) as proxy:
        stream = await connected(proxy, client(made) if client_speaks else None)
        async with stream:
            for number in range(50):
                await stream.send_all(ask(number))
                assert await receive_exactly(stream, len(answer(number))) == answer(number)
    assert proxy.summary and proxy.summary.frames_recorded == 100
    (opened,) = said(proxy, "opened")
    agreed = {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384"}
    if broker_speaks:
        assert opened["broker_tls"] == agreed | {
            "peer": "broker",
            "name_verified": True,
            "verified": True,
        }
    if client_speaks:
        assert opened["client_tls"] == agreed | {
            "peer": None,
            "name_verified": False,
            "verified": False,
        }
    assert ("broker_tls" in opened, "client_tls" in opened) == (broker_speaks, client_speaks)


WRONG_BROKERS = {
    "who signed it is not known": (
        lambda made: (server(made), BrokerTls(Trust(made.other_ca))),
        "its certificate is refused: unable to get local issuer certificate (--broker-tls-ca",
    ),
    "it has expired": (
        lambda made: (server(made, made.expired), BrokerTls(Trust(made.ca))),
        "its certificate is refused: certificate has expired",
    ),
    "it is not valid yet": (
        lambda made: (server(made, made.early), BrokerTls(Trust(made.ca))),
        "its certificate is refused: certificate is not yet valid",
    ),
    "it is another host's": (
        lambda made: (server(made, made.elsewhere), BrokerTls(Trust(made.ca))),
        "is not valid for '127.0.0.1' (--broker-tls-name",
    ),
    "it does not speak TLS": (lambda made: (None, BrokerTls(Trust(made.ca))), "TLS failed: it "),
}


@pytest.mark.parametrize("name", WRONG_BROKERS)
async def test_a_broker_that_is_not_who_it_should_be_is_not_spoken_to(
    name: str, made: Certificates, tmp_path: Path
) -> None:
    make, reason = WRONG_BROKERS[name]
    context, tls = make(made)

    async def plain(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"\0\0\0\x04none")
        await stream.aclose()

    handler = speaking(context, answering) if context else plain
    async with proxied(handler, tmp_path / "r.mcap", broker_tls=tls) as proxy:
        async with await proxy.connect() as stream:
            await stream.send_all(ask(0))
            assert await rest(stream) == b""
    assert reason in proxy.logs[0] and len(proxy.logs) == 1, proxy.logs
    (closed,) = said(proxy, "closed")
    assert reason in closed["reason"]
    assert connection_end(Note(CONNECTIONS, 0, closed)).tls_failed


@pytest.mark.parametrize(
    ("names_only", "warning"),
    [
        (False, "certificates of brokers are not verified: whoever is there is taken for one"),
        (True, "host names of brokers are not verified: any certificate that is trusted is taken"),
    ],
)
async def test_verification_that_is_off_is_logged(
    names_only: bool, warning: str, made: Certificates, tmp_path: Path
) -> None:
    handler = speaking(server(made, made.elsewhere), answering)
    tls = BrokerTls(verified=False)
    if names_only:
        tls = BrokerTls(Trust(made.ca), names_verified=False)
    async with proxied(handler, tmp_path / "r.mcap", broker_tls=tls) as proxy:
        async with await proxy.connect() as stream:
            await stream.send_all(ask(0))
            assert await receive_exactly(stream, len(answer(0))) == answer(0)
    assert proxy.logs == [warning]
    (opened,) = said(proxy, "opened")
    assert opened["broker_tls"]["peer"] == "elsewhere", "whom it took for a broker"


async def test_a_certificate_of_a_client_is_for_the_broker_that_requires_one(
    made: Certificates, tmp_path: Path
) -> None:
    context = server(made)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(made.ca)
    for identity in (Identity(made.client), None):
        tls = BrokerTls(Trust(made.ca), identity)
        path = tmp_path / f"{identity is None}.mcap"
        async with proxied(speaking(context, answering), path, broker_tls=tls) as proxy:
            async with await proxy.connect() as stream:
                await stream.send_all(ask(0))
                got = await rest(stream)
        if identity:
            assert got == answer(0)
        else:
            assert got == b""
            # An alert says it, or kproxy guesses it, for the broker has said nothing.
            assert len([line for line in proxy.logs if "requires a certificate" in line]) == 1


def distrust(port: int, context: ssl.SSLContext) -> None:
    """Refuse kproxy's certificate, as OpenSSL does it, with an alert."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(sock, server_hostname="localhost")


async def test_a_client_that_fails_is_rejected_and_recorded(
    made: Certificates, tmp_path: Path
) -> None:
    changes = {"listen_tls": ListenTls(Identity(made.broker))}
    async with proxied(answering, tmp_path / "r.mcap", **changes) as proxy:
        async with await proxy.connect() as stream:  # it speaks plaintext
            await stream.send_all(ask(0))
            assert (await rest(stream))[:1] in (b"", b"\x15")  # an alert, if anything
        await trio.to_thread.run_sync(distrust, proxy.port, client(made, made.other_ca))
        async with await proxy.connect() as stream:  # it says nothing, and goes
            pass
        stream = await connected(proxy, client(made))
        async with stream:
            await stream.send_all(ask(0))
            assert await receive_exactly(stream, len(answer(0))) == answer(0)
    reasons = [
        "it does not speak TLS: set security.protocol=SSL (or SASL_SSL) in the client",
        (
            "it does not trust the certificate's authority: kproxy certs --out DIR writes what"
            " clients of --listen-tls auto need"
        ),
        "it closed the connection during the handshake",
    ]
    assert [line.partition("TLS failed: ")[2] for line in proxy.logs] == reasons, proxy.logs
    closed = {body["connection"]: body for body in said(proxy, "closed")}
    assert [closed[number]["reason"] for number in (1, 2, 3)] == reasons
    ends = [connection_end(Note(CONNECTIONS, 0, closed[number])) for number in (1, 2, 3, 4)]
    assert [end.handshake_failed for end in ends] == [True, True, True, False]
    assert [body["connection"] for body in said(proxy, "opened")] == [1, 2, 3, 4]


async def test_clients_may_have_to_show_a_certificate(made: Certificates, tmp_path: Path) -> None:
    tls = ListenTls(Identity(made.broker), Trust(made.ca))
    shown = client(made)
    shown.load_cert_chain(made.client)
    async with proxied(answering, tmp_path / "r.mcap", listen_tls=tls) as proxy:
        stream = await connected(proxy, shown)
        async with stream:
            await stream.send_all(ask(0))
            assert await receive_exactly(stream, len(answer(0))) == answer(0)
        stream = await connected(proxy, client(made))
        with pytest.raises(trio.BrokenResourceError):
            await stream.send_all(ask(0))
            await stream.receive_some()
        await trio.aclose_forcefully(stream)
    (opened, rejected) = said(proxy, "opened")
    assert opened["client_tls"]["peer"] == "client" and opened["client_tls"]["verified"]
    assert "client_tls" not in rejected
    reason = "TLS failed: it shows no certificate, and one is required (--listen-tls-clients): give"
    assert reason in proxy.logs[0]


async def test_a_client_may_end_without_close_notify(made: Certificates, tmp_path: Path) -> None:
    """As many do; what is due to it comes even so, and its end is no reset."""

    def work(port: int) -> bytes:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            tls = client(made).wrap_socket(sock, server_hostname="localhost")
            tls.sendall(ask(0))
            socket.socket.shutdown(tls, socket.SHUT_WR)
            found = b""
            while len(found) < len(answer(0)):
                found += tls.recv(1000)
            tls.close()
            return found

    handler = functools.partial(answering, after_seconds=0.05)
    tls = ListenTls(Identity(made.broker))
    async with proxied(handler, tmp_path / "r.mcap", listen_tls=tls) as proxy:
        assert await trio.to_thread.run_sync(work, proxy.port) == answer(0)
    (closed,) = said(proxy, "closed")
    assert (closed["ends"][0]["side"], closed["ends"][0]["how"]) == ("client", "eof")
    assert proxy.logs == []


_CLOSE_NOTIFY = b"\x15\3\3\0\2\1\0"
_UNREADABLE = b"\x17\3\3\0\x20" + bytes(32)


@pytest.mark.parametrize("last", [_CLOSE_NOTIFY, _UNREADABLE])
@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
@pytest.mark.parametrize("asks_first", [False, True])
async def test_a_client_that_closes_right_after_the_handshake_has_not_failed(
    version: str, last: bytes, asks_first: bool, made: Certificates, tmp_path: Path
) -> None:
    """Its alert may come without encryption, or with keys that are gone: it has closed, that is
    all. Once it has sent something, its bytes have to be of TLS."""
    context = client(made)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]

    def work(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            tls = context.wrap_socket(sock, server_hostname="localhost")
            if asks_first:
                tls.sendall(ask(0))
                tls.recv(1)
            socket.socket.sendall(tls, last)  # past OpenSSL
            with contextlib.suppress(OSError):
                while socket.socket.recv(tls, 1000):
                    pass
            tls.close()

    tls = ListenTls(Identity(made.broker))

    async def broker(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):  # kproxy resets it, as the client did
            await answering(stream)

    async with proxied(broker, tmp_path / "r.mcap", listen_tls=tls) as proxy:
        await trio.to_thread.run_sync(work, proxy.port)
    (closed,) = said(proxy, "closed")
    end = connection_end(Note(CONNECTIONS, 0, closed))
    assert end.tls_failed == asks_first
    assert end.first and end.first.side == "client"
    assert end.first.how == ("tls" if asks_first else "reset")
    assert asks_first or not any("TLS" in line for line in proxy.logs)


async def test_files_that_change_are_loaded_again(made: Certificates, tmp_path: Path) -> None:
    certificate = tmp_path / "now.pem"
    shutil.copy(made.broker, certificate)
    tls = ListenTls(Identity(certificate))

    async def shown(proxy: Proxied) -> str:
        context = client(made)
        context.check_hostname = False
        stream = await connected(proxy, context)
        async with stream:
            await stream.send_all(ask(0))
            await receive_exactly(stream, len(answer(0)))
            return dict(pair for (pair,) in stream.getpeercert()["subject"])["commonName"]

    async with proxied(answering, listen_tls=tls) as proxy:
        assert await shown(proxy) == "broker"
        certificate.write_text("nothing")
        await logged(proxy, 1)
        assert await shown(proxy) == "broker"
        shutil.copy(made.elsewhere, certificate)
        await logged(proxy, 2)
        assert await shown(proxy) == "elsewhere"
    before, after = proxy.logs
    why = f"{certificate} is not PEM, and as PKCS12 it cannot be read"
    assert before == f"TLS to clients goes on with the files from before: {why}"
    assert after == "files of TLS to clients have changed and are in use"


async def logged(proxy: Proxied, lines: int) -> None:
    """Wait until so many lines are logged."""
    while len(proxy.logs) < lines:
        await trio.sleep(0.02)


@attrs.define(eq=False)
class Disk:
    """A disk that may hang."""

    works: threading.Event = attrs.field(factory=threading.Event)
    asked: threading.Event = attrs.field(factory=threading.Event)

    def holding(self, path: Path) -> Path:
        """A file on it."""
        disk = self

        class File(type(path)):
            def stat(self, **options: bool) -> os.stat_result:
                if not disk.works.is_set():
                    disk.asked.set()
                    disk.works.wait()
                return super().stat(**options)

        return File(path)


async def test_a_disk_that_hangs_holds_up_nobody(made: Certificates) -> None:
    disk = Disk()
    disk.works.set()
    tls = ListenTls(Identity(disk.holding(made.broker)))
    async with proxied(answering, listen_tls=tls) as proxy:
        try:
            disk.works.clear()
            while not disk.asked.is_set():
                await trio.sleep(0.02)
            for number in range(3):
                stream = await connected(proxy, client(made))
                async with stream:
                    await stream.send_all(ask(number))
                    assert await receive_exactly(stream, len(answer(number))) == answer(number)
        finally:
            disk.works.set()
    assert proxy.logs == []


async def test_keys_are_logged_by_an_option_only(
    made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "by the environment"))
    for key_log in (None, tmp_path / "keys"):
        tls = BrokerTls(Trust(made.ca), key_log=key_log)
        listen = ListenTls(Identity(made.broker), key_log=key_log)
        context = server(made)
        context.keylog_filename = None
        async with proxied(
            speaking(context, answering), broker_tls=tls, listen_tls=listen
        ) as proxy:
            shown = client(made)
            shown.keylog_filename = None
            stream = await connected(proxy, shown)
            async with stream:
                await stream.send_all(ask(0))
                await receive_exactly(stream, len(answer(0)))
        assert (tmp_path / "keys").exists() == (key_log is not None)
    assert (tmp_path / "keys").stat().st_mode & 0o777 == 0o600
    written = (tmp_path / "keys").read_text()
    assert written.count("CLIENT_TRAFFIC_SECRET_0") == 2, "one of each side"


def test_a_client_context_verifies_by_default(made: Certificates) -> None:
    context = broker_contexts(BrokerTls(), print).context()
    assert context.check_hostname and context.verify_mode is ssl.CERT_REQUIRED
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    assert context.cert_store_stats()["x509_ca"] > 0, "the authorities of the system"
