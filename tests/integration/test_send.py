"""A recording as the clients of a broker: what differs is told, and nothing else."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from kproxy import recording
from kproxy.wire.protocol import (
    Response,
    api_key,
    codec,
    codes,
    decode_request,
    encode_response,
    messages,
)
from tests.bed import kafka, needs, proxies, replays
from tests.bed.answering import answering
from tests.bed.certificates import Certificates
from tests.bed.clients.job import KEPT
from tests.bed.proxies import KPROXY
from tests.bed.waiting import until
from tests.exchange.batches import batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import MS, START_NS, request, response
from tests.integration.conftest import Record
from tests.integration.test_replay import mark
from tests.recording import making
from tests.versions import ALL, some

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
CLIENTS = ["java-4.4.0", "confluent-kafka", "kafkajs", "aiokafka", "kafka-python"]
DIRECTIONS = [("4.3.1", "3.9.2"), ("3.9.2", "4.3.1")]
FEW = [("java-4.4.0", *DIRECTIONS[0]), ("confluent-kafka", *DIRECTIONS[1])]
EVERY = [(client, *each) for client in CLIENTS for each in DIRECTIONS]
CONFIGS = {
    "message.downconversion.enable",  # KIP-724: gone in 4.0
    "message.format.version",
    "message.timestamp.difference.max.ms",
    "message.timestamp.after.max.ms",  # KIP-1030: another default
}


def send(
    path: Path, bootstrap: str, *options: str, code: int = 0, **login: str
) -> subprocess.CompletedProcess:
    """Run `kproxy send` to its end."""
    command = [KPROXY, "send", str(path), "--bootstrap", bootstrap, "--timing", "fast", *options]
    environment = {**os.environ, **login}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return done


def rows(output: str) -> list[list[str]]:
    """The rows of the table of differences: API, what, recorded, now, times, first."""
    lines = output.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("API") and "recorded" in line]
    assert heads, output
    head = lines[heads[0]]
    names = ("API", "what", "recorded", "now", "times", "first")
    starts = [head.index(each) for each in names[:4]]
    bounds = [*starts, head.index("times") - 1]
    return [
        [line[a:b].strip() for a, b in itertools.pairwise(bounds)] for line in lines[heads[0] + 1 :]
    ]


def known(path: Path) -> dict[str, tuple[int, int]]:
    """The versions that the broker of a recording says it knows."""
    found = {}
    for each in recording.read(path, "api:ApiVersions"):
        for api in getattr(each.response, "api_keys", ()):
            name = needs_name(api.api_key)
            found[name] = api.min_version, api.max_version
    return found


def needs_name(key: int) -> str:
    """The name of an API."""
    from kproxy.wire.protocol import api_name

    return api_name(key)


@pytest.mark.broker
@pytest.mark.parametrize(
    ("client", "recorded", "now"),
    [pytest.param(*each, marks=mark(each[0])) for each in some(EVERY, FEW)],
)
def test_another_version_of_the_broker_differs_in_what_it_says_and_nothing_else(
    client: str, recorded: str, now: str, record: Record, request, tmp_path: Path
) -> None:
    """Producers, groups of both protocols, transactions, and what an admin does."""
    worked = record(client, recorded)
    broker = request.getfixturevalue(f"kafka_{now.replace('.', '')}")
    new, prefix = tmp_path / "new.mcap", f"{tmp_path.name[-12:]}-"
    prefixes = "--topic-prefix", prefix, "--group-prefix", prefix
    done = send(
        worked.path, broker.address, "--allow-admin", *prefixes, "--record", str(new), code=1
    )
    offered = known(new)
    for api, what, then, here in rows(done.stdout):
        if here.startswith("sent as"):
            least, most = offered[api]
            assert not least <= int(then[1:]) <= most, (api, then)
            assert least <= int(here.removeprefix("sent as v")) <= most
        elif here == "not sent":
            assert what.startswith("ListConfigResources v1"), what  # of 4.0, with more than v0
        else:
            assert api in ("CreateTopics", "DescribeConfigs"), (api, what, then, here)
            assert what.split()[1] in CONFIGS, (api, what, then, here)
    ledger = f"{prefix}{worked.prefix}-ledger"
    read = [
        each.value.decode()
        for exchange in recording.read(new, "api:Fetch")
        for each in exchange.records
        if each.topic == ledger and each.value in {kept.encode() for kept in KEPT}
    ]
    assert read[:3] == KEPT


GROUP_OF_THREE = """
import sys, threading, time
from confluent_kafka import Consumer, Producer

bootstrap, topic, protocol = sys.argv[1:]
settings = {"bootstrap.servers": bootstrap, "group.id": topic, "group.protocol": protocol,
            "auto.offset.reset": "earliest", "enable.auto.commit": False}

def consume(number, seconds):
    consumer, end = Consumer({**settings, "client.id": f"c{number}"}), time.monotonic() + seconds
    consumer.subscribe([topic])
    while time.monotonic() < end:
        message = consumer.poll(0.1)
        if message is not None and not message.error() and message.offset() % 10 == 0:
            consumer.commit(message, asynchronous=True)
    consumer.close()

producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
producer.list_topics(topic)
members = [threading.Thread(target=consume, args=each) for each in ((1, 6), (2, 3), (3, 4.5))]
for member in members:
    member.start()
for number in range(300):
    producer.produce(topic, f"value {number}", f"key {number % 20}")
    if number % 20 == 0:
        producer.flush()
        time.sleep(0.1)
producer.flush()
"""


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["classic", "consumer"] if ALL else ["classic"])
def test_a_group_of_three_forms_as_it_did(
    protocol: str, kafka_431: kafka.Kafka, tmp_path: Path
) -> None:
    """It forms, twice a member leaves, and all that was read is read, on topics of other names."""
    topic = f"three-{tmp_path.name[-12:]}"
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        program = [sys.executable, "-c", GROUP_OF_THREE, proxy.bootstrap, topic, protocol]
        subprocess.run(program, check=True, timeout=60)
    for timing in ("fast", "recorded") if ALL else ("fast",):
        prefix = "--topic-prefix", f"{timing}-", "--group-prefix", f"{timing}-"
        options = "--same-cluster", "--create-topics", "--timing", timing, *prefix
        done = send(proxy.recording, kafka_431.address, *options)
        assert "no differences" in done.stdout


def readable(message: Any) -> Any:
    """A message, unless it says that the topic is not known yet."""
    return None if message is None or message.error() else message


@pytest.mark.broker
def test_several_producers_to_a_partition_may_come_in_another_order(
    kafka_431: kafka.Kafka, prefix: str, tmp_path: Path
) -> None:
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap, "linger.ms": 0}
        Producer(settings).list_topics(prefix)  # creates it

        def produce(name: int) -> None:
            producer = Producer({**settings, "enable.idempotence": name == 1})
            for number in range(100):
                producer.produce(prefix, f"v{name}-{number}", partition=0)
                producer.poll(0)
                if number % 10 == 0:
                    producer.flush()
            producer.flush()

        begin = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**settings, **begin, "group.id": prefix})
        consumer.subscribe([prefix])
        producers = [threading.Thread(target=produce, args=(each,)) for each in range(3)]
        for each in producers:
            each.start()
        for count in range(300):
            message = until(lambda: readable(consumer.poll(0.5)), "it reads")
            if count % 7 == 0:
                consumer.commit(message, asynchronous=True)
        for each in producers:
            each.join()
        consumer.close()
    for time in range(5 if ALL else 2):
        names = "--topic-prefix", f"{time}-", "--group-prefix", f"{time}-"
        done = send(proxy.recording, kafka_431.address, "--same-cluster", "--create-topics", *names)
        assert done.stdout.endswith("no differences\n")


@pytest.mark.broker
def test_what_changes_the_cluster_is_not_sent_and_its_own_cluster_gets_nothing(
    record: Record, kafka_431: kafka.Kafka, kafka_392: kafka.Kafka, tmp_path: Path
) -> None:
    worked = record("confluent-kafka", "4.3.1")
    refused = send(worked.path, kafka_431.address, code=2)
    assert "this is the cluster of the recording" in refused.stderr and not refused.stdout
    new = tmp_path / "new.mcap"
    done = send(
        *(worked.path, kafka_392.address, "--create-topics", "--record", str(new)),
        *("--topic-prefix", f"{tmp_path.name[-12:]}-", "--group-prefix", "safe-"),
        code=1,
    )
    assert "does not send, without --allow-admin, what changes the cluster" in done.stderr
    apis = {each.api for each in recording.read(new)}
    assert not {each for each in apis if each and each.startswith(("Create", "Delete", "Alter"))}
    assert {"Produce", "Fetch", "JoinGroup", "EndTxn"} <= apis
    assert not [row for row in rows(done.stdout) if row[0] in ("Produce", "Fetch", "JoinGroup")]


@pytest.mark.broker
def test_what_was_refused_in_part_is_in_the_topic_once(
    kafka_431: kafka.Kafka, prefix: str, tmp_path: Path
) -> None:
    """The leader of one of two partitions was another: the client came again with that."""
    told = messages.MetadataResponse
    numbers = range(2)
    parts = [told.MetadataResponsePartition(partition_index=each) for each in numbers]
    topic = told.MetadataResponseTopic(name=prefix, partitions=parts)
    named = messages.MetadataRequest.MetadataRequestTopic(name=prefix)
    asked_of = messages.MetadataRequest(topics=[named])
    refused = produce_response({0: -1, 1: 0}, topic=prefix)
    refused.responses[0].partition_responses[0].error_code = codes.NOT_LEADER_OR_FOLLOWER
    pairs = [
        ("Metadata", asked_of, told(topics=[topic])),
        ("Produce", produce_request({0: batch(2), 1: batch(3)}, prefix), refused),
        ("Produce", produce_request({0: batch(2)}, prefix), produce_response({0: 0}, topic=prefix)),
    ]
    frames = []
    for number, (api, asked, answered) in enumerate(pairs, 1):
        frame = request(api, 8, asked, number)
        frame.received_ns = frame.sent_ns = START_NS + number * MS
        frames += [frame, response(frame, answered)]
    done = send(making.write(tmp_path / "a.mcap", [frames]), kafka_431.address, "--create-topics")
    assert done.stdout.endswith("no differences\n")
    consumer = Consumer({"bootstrap.servers": kafka_431.address, "group.id": prefix})
    ends = [consumer.get_watermark_offsets(TopicPartition(prefix, each)) for each in numbers]
    assert ends == [(0, 2), (0, 3)]
    consumer.close()


def test_the_recording_itself_answers_as_recorded_and_as_often_as_asked(tmp_path: Path) -> None:
    with replays.running(DEMO, tmp_path) as replay:
        own = send(DEMO, replay.bootstrap, code=2)
        assert "this is the cluster of the recording" in own.stderr and not own.stdout
        done = send(DEMO, replay.bootstrap, "--same-cluster", "--record", str(tmp_path / "n.mcap"))
        assert done.stdout.endswith("no differences\n")
        proposed = shlex.split(done.stderr.splitlines()[-1].partition("next: kproxy ")[2])
        assert proposed[:3] == ["diff", str(DEMO), str(tmp_path / "n.mcap")]
        subprocess.run([KPROXY, *proposed], check=True)  # which finds no difference
        assert [each.api for each in recording.read(tmp_path / "n.mcap", "api:Produce")]
        asked = [
            [
                each.request.allow_auto_topic_creation
                for each in recording.read(path, "api:Metadata")
            ]
            for path in (DEMO, tmp_path / "n.mcap")
        ]
        assert any(asked[0]) and asked[1] and not any(asked[1])
        again = send(DEMO, replay.bootstrap, "--same-cluster", "--repeat", "2", "--clients", "3")
        replay.code = 1  # which has these records once
        sent = sum(1 for _ in recording.read(DEMO, told=lambda note: None))
        assert f"sent {sent * 6} requests" in again.stdout
        assert again.stdout.endswith("of copies only errors are compared\n")
    gone = send(DEMO, replay.bootstrap, "--same-cluster", code=2)
    assert gone.stderr.count("\n") == 1 and "refuses connections: nothing was sent" in gone.stderr


def test_a_diff_is_proposed_only_of_one_recording(tmp_path: Path) -> None:
    folder, new = tmp_path / "two", tmp_path / "new.mcap"
    folder.mkdir()
    shutil.copy(DEMO, folder)
    (folder / "torn.mcap").write_bytes(DEMO.read_bytes()[:40])
    with replays.running(DEMO, tmp_path) as replay:
        done = send(folder, replay.bootstrap, "--same-cluster", "--record", str(new))
    assert done.stdout.endswith("no differences\n") and new.exists()
    assert "next:" not in done.stderr


def test_what_a_broker_refuses_is_told_with_what_follows_of_it(tmp_path: Path) -> None:
    rule = "name=big api=Produce error=MESSAGE_TOO_LARGE times=1"
    with replays.running(DEMO, tmp_path, "--visible", "causal", "--fault", rule) as replay:
        done = send(DEMO, replay.bootstrap, "--same-cluster", code=1)
    (refused,) = [row for row in rows(done.stdout) if row[0] == "Produce"]
    assert refused[2:] == ["NONE", "MESSAGE_TOO_LARGE"]
    where = refused[1]
    assert [row[1:] for row in rows(done.stdout) if row[0] == "Fetch"] == [
        [f"{where} records", "6 came", "did not come"],
        [where, "NONE", "OFFSET_OUT_OF_RANGE"],
    ]


def test_a_disk_that_is_full_is_told_and_holds_nothing_up(tmp_path: Path) -> None:
    with replays.running(DEMO, tmp_path) as replay:
        command = [KPROXY, "send", DEMO, "--bootstrap", replay.bootstrap, "--same-cluster"]
        command += ["--timing", "fast", "--record", tmp_path / "new.mcap"]
        limited = ["sh", "-c", 'ulimit -f 4; exec "$@"', "sh", *map(str, command)]
        done = subprocess.run(limited, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1 and "no differences" in done.stdout, done.stdout + done.stderr
    assert "cannot write the recording: File too large" in done.stderr.splitlines()[-1]


def test_too_few_open_files_are_told_before_anything_is_sent() -> None:
    command = [KPROXY, "send", DEMO, "--bootstrap", "127.0.0.1:1"]
    limited = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", *map(str, command)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=90)
    assert done.returncode == 2 and "no room for connections" in done.stderr


@pytest.mark.parametrize("how", ["broker", "signal"])
def test_an_early_end_says_what_was_sent(how: str, tmp_path: Path) -> None:
    with replays.running(DEMO, tmp_path) as replay:
        command = [KPROXY, "send", str(DEMO), "--bootstrap", replay.bootstrap, "--same-cluster"]
        command += ["--timing", "20", "--record", str(tmp_path / "new.mcap")]
        sending = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        proxies.until((tmp_path / "new.mcap").exists, "it has begun")
        proxies.until(lambda: "Produce" in shown(tmp_path / "new.mcap"), "something was produced")
        if how == "signal":
            sending.send_signal(signal.SIGINT)
        else:
            replay.process.kill()
            replay.process.wait()
            replay.code = -signal.SIGKILL
        out, err = sending.communicate(timeout=30)
    assert sending.returncode == 1, out + err
    (line,) = err.splitlines()
    assert "requests were sent, up to #" in line and "Traceback" not in err
    assert ("stopped by a signal" if how == "signal" else "refuses connections") in line


@pytest.mark.broker
@pytest.mark.skipif(not ALL, reason="takes long: KPROXY_TEST_ALL=1")
def test_over_tls_kproxy_logs_in_again_before_a_session_ends(
    kafka_431: kafka.Kafka, issued: Certificates, prefix: str, tmp_path: Path
) -> None:
    with proxies.running(kafka_431.address, tmp_path) as proxy:
        producer = Producer({"bootstrap.servers": proxy.bootstrap, "linger.ms": 0})
        producer.list_topics(prefix)  # creates it
        for number in range(8):
            producer.produce(prefix, f"{number}")
            producer.flush()
    times_ns = [each.time_ns for each in recording.read(proxy.recording, "api:Produce")]
    factor = 2.5 * kafka.SESSION_SECONDS * 1e9 / (times_ns[-1] - times_ns[0])
    options = "--broker-tls-ca", str(issued.ca), "--same-cluster", "--timing", f"{factor}"
    user, password = kafka.PLAIN_USER
    login = {"KPROXY_SASL_USERNAME": user, "KPROXY_SASL_PASSWORD": password}
    done = send(proxy.recording, kafka_431.address_of("REAUTH"), *options, **login)
    assert "all answered" in done.stdout and done.stdout.endswith("no differences\n")


def test_what_is_torn_is_told(tmp_path: Path) -> None:
    torn = tmp_path / "torn.mcap"
    torn.write_bytes(DEMO.read_bytes()[: DEMO.stat().st_size * 6 // 10])
    with answering(garbage) as port:
        done = send(torn, f"127.0.0.1:{port}", code=2)
    assert f"{torn}: read up to byte" in done.stderr.splitlines()[0]
    torn.write_bytes(DEMO.read_bytes()[:40])
    done = send(torn, "127.0.0.1:1", code=2)  # which it does not even ask
    assert "no request is there to send" in done.stderr and not done.stdout


def lacking(stream: socket.socket) -> None:
    """Be a broker with groups that knows neither coordinators nor how topics are created."""
    own, found = messages.ApiVersionsResponse, messages.MetadataResponse(brokers=[], topics=[])
    apis = [
        own.ApiVersion(api_key=api_key(api), max_version=4) for api in ("Metadata", "JoinGroup")
    ]
    with stream.makefile("rb") as asked:
        while size := asked.read(4):
            request = decode_request(size + asked.read(int.from_bytes(size)))
            body = own(api_keys=apis) if request.header.api_key == codec.API_VERSIONS else found
            header = messages.ResponseHeader(correlation_id=request.header.correlation_id)
            response = Response(header, body, request.header.api_version)
            stream.sendall(encode_response(response, request.header.api_key))


def garbage(stream: socket.socket) -> None:
    """Answer with what is too short."""
    stream.recv(1 << 10)
    stream.sendall(bytes.fromhex("0000000400000000"))
    stream.recv(1 << 10)


def endless(stream: socket.socket) -> None:
    """Begin an answer of 2 GiB."""
    stream.sendall(bytes.fromhex("7fffffff00000000"))
    stream.recv(1 << 10)
    stream.recv(1 << 10)


@pytest.mark.parametrize(
    ("answer", "options", "why"),
    [
        (garbage, (), "does not answer in Kafka's protocol"),
        (endless, (), "does not answer in Kafka's protocol"),
        (lacking, ("--create-topics",), "CreateTopics is not known"),
        (lacking, (), "FindCoordinator is not known"),  # which something was sent before
    ],
)
def test_what_is_no_broker_that_it_can_send_to_ends_it_in_a_line(
    answer: Callable[[socket.socket], None], options: tuple[str, ...], why: str
) -> None:
    with answering(answer) as port:
        done = send(DEMO, f"127.0.0.1:{port}", *options, code=1 if "Find" in why else 2)
    assert why in done.stderr.splitlines()[-1]


def shown(path: Path) -> str:
    """What `kproxy show` says of a recording that is still written."""
    command = [sys.executable, "-m", "kproxy", "show", str(path)]
    return subprocess.run(command, capture_output=True, text=True).stdout
