"""What is not Kafka, and what cannot be: one line that says so, and everybody else goes on."""

from __future__ import annotations

import signal
import socket
import ssl
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient

from tests.bed import proxies, recorded

pytestmark = pytest.mark.broker

METADATA_V0 = bytes.fromhex("00000012000300000000000100047465737400000000")
"""Metadata v0 for all topics, client id "test", as people send it with nc."""


@pytest.fixture
def proxy(mock_brokers: str, tmp_path: Path) -> Iterator[proxies.Proxy]:
    """A proxy before the mock cluster."""
    with proxies.running(mock_brokers, tmp_path) as running:
        yield running


def tls_hello() -> bytes:
    """What a client says that believes the port to speak TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    client = context.wrap_bio(incoming, outgoing)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


BAD = {
    "TLS": (tls_hello(), "TLS"),
    "HTTP": (b"GET / HTTP/1.1\r\nHost: localhost:9092\r\n\r\n", "HTTP"),
    "2 GiB": (b"\x7f\xff\xff\xff" + b"\x00" * 64, "limit of 104857600 bytes"),
    "size -1": (b"\xff\xff\xff\xff" + b"\x00" * 64, "negative size"),
    "no header": (b"\x00\x00\x00\x03\x00\x03\x00", "header|3 bytes"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_not_kafka_ends_its_connection_only(proxy: proxies.Proxy, what: str) -> None:
    sent, named = BAD[what]
    bystander = AdminClient({"bootstrap.servers": proxy.bootstrap})
    assert len(bystander.list_topics(timeout=10).brokers) == 3
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        ours = f":{client.getsockname()[1]}"
        client.sendall(sent)
        assert ended(client), "the connection is closed, nothing is answered"
    line = proxy.says(rf"{ours}\b.*ended: .*({named})")
    assert len(proxy.log.splitlines()) == 1, f"one line: {proxy.log}"
    assert len(line) < 250
    assert len(bystander.list_topics(timeout=10).brokers) == 3


def ended(client: socket.socket) -> bool:
    """Whether the other side closes or resets, without having said anything."""
    try:
        return client.recv(4096) == b""
    except ConnectionResetError:
        return True


def test_a_proxy_before_what_is_not_kafka_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as web:
        port = web.getsockname()[1]
        with proxies.running(f"127.0.0.1:{port}", tmp_path) as proxy:
            web.accept()[0].close()  # kproxy looks whether somebody is there
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                client.sendall(METADATA_V0)
                server, _ = web.accept()
                with server:
                    server.recv(4096)
                    server.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                    assert ended(client)
            proxy.says(r"HTTP.*--bootstrap")


def test_metadata_v0_sent_with_nc_is_answered_with_our_addresses(proxy: proxies.Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        client.sendall(METADATA_V0)
        client.shutdown(socket.SHUT_WR)  # as nc does at the end of its input
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert struct.unpack_from(">iii", answer) == (len(answer) - 4, 1, 3)
    position, seen = 12, {}
    for _ in range(3):
        node, length = struct.unpack_from(">ih", answer, position)
        host = answer[position + 6 : position + 6 + length].decode()
        (port,) = struct.unpack_from(">i", answer, position + 6 + length)
        seen[node] = (host, port)
        position += 10 + length
    assert set(seen) == {1, 2, 3}
    for host, port in seen.values():
        with socket.create_connection((host, port), timeout=10) as client:
            client.sendall(METADATA_V0)
            assert client.recv(4)
    proxy.stop()
    assert recorded.count(recorded.exchanges(proxy.recording))["Metadata"] == 4


def test_produce_without_acks_is_recorded_without_a_response(
    proxy: proxies.Proxy, prefix: str
) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap, "acks": 0})
    producer.produce(prefix, b"fire and forget")
    assert producer.flush(10) == 0
    # the next request on the same connection is answered: nothing waits for the Produce
    assert prefix in producer.list_topics(timeout=10).topics
    proxy.stop()
    malformed = {"ApiVersions": 3}
    found = recorded.exchanges(proxy.recording, malformed)
    (produced,) = [each for each in found if each.api == "Produce"]
    assert produced.one_way and produced.response_frame is None
    shown = kproxy("show", "--json", str(proxy.recording)).stdout
    assert shown.count('"value": "fire and forget"') == 1


def kproxy(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [proxies.KPROXY, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def test_a_second_interrupt_does_not_wait_for_answers(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with proxies.running(f"127.0.0.1:{port}", tmp_path) as proxy:
            silent.accept()[0].close()  # kproxy looks whether somebody is there
            with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
                client.sendall(METADATA_V0)
                with silent.accept()[0] as server:
                    assert server.recv(4096) == METADATA_V0
                    started = time.monotonic()
                    proxy.process.send_signal(signal.SIGINT)
                    proxy.says("again")
                    proxy.stop()
                    assert time.monotonic() - started < 4, "the first alone waits 5 s"
    (exchange,) = recorded.exchanges(proxy.recording)
    assert exchange.api == "Metadata" and exchange.response_frame is None
