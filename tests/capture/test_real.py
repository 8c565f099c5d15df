"""What tcpdump captures of real clients before and behind kproxy is what kproxy records."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy import recording
from kproxy.exchange.entries import UNANSWERED, Frame, Note
from kproxy.proxy import rewrite
from tests.bed import needs, programs, proxies
from tests.bed.kafka import PLAIN_USER, Kafka
from tests.bed.packets import pcap, timed
from tests.bed.waiting import until
from tests.capture.test_importer import talks
from tests.integration import test_sasl
from tests.versions import ALL

KPROXY = proxies.KPROXY
API_VERSIONS = 18
CLOCK_NS = 2_000_000
"""The clocks of kproxy and of the kernel may be so far apart."""
SIX = ("confluent-kafka", "aiokafka", "kafka-python", "java-4.4.0", "kafkajs", "sarama")
Exchanges = dict[int, list]
"""Number → API key and version, correlation id, the request, its response, whether it has none, the
times at which its client, and its listener, sent them."""


@contextlib.contextmanager
def captured(path: Path) -> Iterator[None]:
    """Capture all TCP of this machine's loopback."""
    words = [needs.program("tcpdump"), "-i", "lo", "-U", "-B", "262144", "-w", str(path), "tcp"]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    if "listening" not in process.stderr.readline():
        process.wait()
        needs.missing("this machine lets nobody capture packets")
    try:
        yield
        last, seen = os.urandom(20), b""
        with socket.create_server(("127.0.0.1", 0)) as server, path.open("rb") as file:

            def is_written() -> bool:  # what comes behind all others
                nonlocal seen
                seen = seen[-len(last) :] + file.read()
                return last in seen

            with socket.create_connection(server.getsockname()) as client:
                client.sendall(last)
                until(is_written, "the capture is written")
    finally:
        process.terminate()
        said = process.communicate()[1]
    # its buffer takes all that these tests send: only --immediate-mode would waste it
    assert "\n0 packets dropped by kernel" in said


def imported(capture: Path, *options: str) -> Path:
    """Import a capture, and return the recording."""
    out = capture.with_suffix(".mcap")
    programs_said = subprocess.run(
        [KPROXY, "import", str(capture), "--out", str(out), *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert programs_said.returncode == 0, programs_said.stderr
    return out


def connections(path: Path) -> dict[tuple[str, str], Exchanges]:
    """Return the exchanges of a recording, by the addresses of client and listener."""
    ends, found = dict[int, tuple[str, str]](), defaultdict[tuple[str, str], Exchanges](dict)
    for entry in recording.entries([path]):
        if isinstance(entry, Note):
            if entry.body["event"] == "opened":
                ends[entry.body["connection"]] = (
                    entry.body["client_address"],
                    entry.body["listener"],
                )
        elif isinstance(entry, Frame) and entry.connection in ends:
            kind = entry.api_key, entry.api_version, entry.correlation_id
            exchanges = found[ends[entry.connection]]
            exchange = exchanges.setdefault(entry.number, [kind, b"", b"", 0, [0, 0]])
            exchange[1 + entry.side] += entry.data
            exchange[3] |= entry.flags & UNANSWERED
            exchange[4][entry.side] = entry.sent_ns if entry.side else entry.received_ns
    return found


def assert_both_ends(own: Path, capture: Path) -> None:
    """Each connection of kproxy's recording is in that of the capture, as its client's and as its
    broker's."""
    mine, theirs = connections(own), connections(capture)
    all_theirs = [[each[:4] for each in exchanges.values()] for exchanges in theirs.values()]
    assert mine
    for ends, exchanges in mine.items():
        ours, seen = list(exchanges.values()), list(theirs.get(ends, {}).values())
        for (kind, request, response, none, times), other in zip(ours, seen, strict=True):
            assert [kind, request, none] == [*other[:2], other[3]]
            assert response == other[2] or is_changed(response, *kind[:2])
            assert times[0] > other[4][0] - CLOCK_NS  # on the wire before kproxy has read it,
            assert times[1] < other[4][1] + CLOCK_NS or none  # and not before it has written it
        assert [each[:4] for each in ours] in all_theirs


def is_changed(response: bytes, key: int, version: int) -> bool:
    """Return whether kproxy changes this response for its clients."""
    return key == API_VERSIONS or bool(rewrite.find_all(response, key, version))


def test_clients_are_as_kproxy_recorded_them(
    mock_brokers: str, tmp_path: Path, prefix: str
) -> None:
    """librdkafka and aiokafka, in front of kproxy and behind it."""
    capture = tmp_path / "all.pcap"
    with captured(capture), proxies.running(mock_brokers, tmp_path / "own") as proxy:
        for name in ("confluent-kafka", "aiokafka"):
            client = programs.named(name)
            programs.work(client, proxy.bootstrap, f"{prefix}{name}", client.steps["mock"])
    path = imported(capture)
    assert_both_ends(proxy.recording, path)
    assert_tshark_agrees(capture, path, proxy.port)


@pytest.mark.broker
@pytest.mark.skipif(not ALL, reason="takes a minute")
@pytest.mark.parametrize("name", SIX)
def test_six_clients_of_a_broker(name: str, kafka_431: Kafka, tmp_path: Path, prefix: str) -> None:
    """All that they do, in front of kproxy and behind it."""
    capture, bare = tmp_path / "all.pcap", name == "sarama"
    address = kafka_431.sasl_address if bare else kafka_431.address
    with captured(capture), proxies.running(address, tmp_path / "own") as proxy:
        if bare:
            test_sasl.sarama(proxy.bootstrap, PLAIN_USER, "handshake", prefix)
        else:
            client = programs.named(name)
            programs.work(client, proxy.bootstrap, prefix, client.steps["4.3.1"])
    assert_both_ends(proxy.recording, imported(capture))


def assert_tshark_agrees(capture: Path, path: Path, port: int) -> None:
    """tshark sees as many requests at a port, with these API keys and correlation ids."""
    fields = ("kafka.api_key", "kafka.api_version", "kafka.correlation_id")
    words = [needs.program("tshark"), "-r", str(capture), "-d", f"tcp.port=={port},kafka"]
    words += ["-Y", f"kafka && tcp.dstport == {port}", "-T", "fields"]
    words += [word for field in fields for word in ("-e", field)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    theirs = [
        tuple(map(int, each))
        for line in said.splitlines()
        for each in zip(*(part.split(",") for part in line.split("\t")), strict=True)
    ]
    ours = [
        exchange[0]
        for (_, listener), exchanges in connections(path).items()
        if listener.endswith(f":{port}")
        for exchange in exchanges.values()
    ]
    assert sorted(theirs) == sorted(ours) and ours


async def speak_tls(bootstrap: str, keys: Path) -> None:
    """Produce and consume over TLS, with a key log."""
    import aiokafka

    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.keylog_filename = os.fspath(keys)
    tls = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with aiokafka.AIOKafkaProducer(**tls) as producer:
        for number in range(20):
            await producer.send_and_wait("secret", bytes(number * 2000))
    async with aiokafka.AIOKafkaConsumer("secret", auto_offset_reset="earliest", **tls) as consumer:
        for _ in range(20):
            await consumer.getone()


def test_tls_is_read_with_the_keys_of_its_clients(mock_brokers: str, tmp_path: Path) -> None:
    """Decrypted by tshark; without the keys, it is told that there is TLS."""
    needs.program("tshark")
    capture, keys = tmp_path / "tls.pcap", tmp_path / "keys"
    with captured(capture):
        with proxies.running(mock_brokers, tmp_path / "own", "--listen-tls", "auto") as proxy:
            asyncio.run(speak_tls(proxy.bootstrap, keys))
    assert_both_ends(proxy.recording, imported(capture, "--tls-keys", str(keys)))
    without = subprocess.run(
        [KPROXY, "import", str(capture), "--out", str(tmp_path / "x.mcap")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "TLS connections without keys (--tls-keys)" in without.stderr


@pytest.mark.parametrize("stopped", [False, True])
def test_a_pipe_is_followed(stopped: bool, tmp_path: Path) -> None:
    """What a capture tool writes is in the recording while it goes on; its end is the end, or a
    signal."""
    out = tmp_path / "x.mcap"
    words = [KPROXY, "import", "-", "--follow", "--out", str(out)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False) as it:
        assert it.stdin is not None and it.stdout is not None
        packets, sent = talks()
        data = pcap(timed(packets))
        it.stdin.write(data[: len(data) // 2])
        it.stdin.flush()

        def has_exchanges() -> bool:
            with contextlib.suppress(recording.RecordingError):  # its head is not written yet
                return out.exists() and bool(connections(out))
            return False

        until(has_exchanges, "exchanges are there")
        it.stdin.write(data[len(data) // 2 :])
        it.stdin.flush()
        if stopped:
            it.send_signal(signal.SIGTERM)  # SIGINT is ignored where tests run in the background
        else:
            it.stdin.close()
        it.stdout.read()
    assert it.returncode == 0
    found = sum(len(each) for each in connections(out).values())
    assert found == sum(side == 0 for each in sent.values() for side, _ in each)


@pytest.mark.parametrize("tool", ["gzip", "zstd"])
def test_packed_captures(tool: str, tmp_path: Path) -> None:
    """gzip and zstd are found by what the file begins with."""
    plain, packed = tmp_path / "x.pcap", tmp_path / "packed"
    plain.write_bytes(pcap(timed(talks()[0])))
    with packed.open("wb") as file:
        subprocess.run([needs.program(tool), "-c", str(plain)], stdout=file, check=True)
    assert connections(imported(packed)) == connections(imported(plain))
