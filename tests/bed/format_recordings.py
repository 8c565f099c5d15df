"""Makes the recordings of tests/recording/formats/N, N being the format that this kproxy writes.

    python -m tests.bed.format_recordings

To be run once for each format, before anything else changes: it fills a folder that is not there
yet, and prints the rows for the table of tests/recording/test_formats.py. It needs Java, Maven
and Node.js; the traffic is that of real clients, through `kproxy run`, before a broker of Apache
Kafka.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from pathlib import Path

import confluent_kafka

from kproxy import recording
from kproxy.recording.layout import FORMAT_VERSION, STORED_BYTES_MIN
from tests.bed import kafka, needs, programs, proxies
from tests.bed.actors import with_aiokafka, with_confluent
from tests.bed.actors.judge import create
from tests.bed.programs import Login
from tests.bed.waiting import until
from tests.recording.test_formats import digest, values_of

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats"

CLIENTS = ("confluent-kafka", "aiokafka", "kafka-python", "java-4.4.0", "kafkajs")
STEPS = ("create", "produce", "group", "group848")
"""Of these each does what it can: it produces in every compression, and reads that as a group."""

FAULTS = (
    "name=refused api=Produce error=NOT_LEADER_OR_FOLLOWER times=1",
    "name=told api=Produce phase=after skip=1 error=REQUEST_TIMED_OUT times=1",
    "name=lost api=Produce skip=3 drop=true times=1",
    "name=cut api=Produce skip=5 phase=after disconnect=true times=1",
    "name=twice api=Produce skip=7 duplicate=true times=1",
    "name=late api=Fetch latency=30ms times=2",
    "name=half api=Fetch skip=2 truncate=20 times=1",
    "name=away api=OffsetCommit error=NOT_COORDINATOR times=1",
)
"""Before and after the broker; each of them must hit."""


def main() -> None:
    """Start a broker, record what there is to record, put it in its place."""
    target = FORMATS / str(FORMAT_VERSION)
    if target.exists():
        sys.exit(f"{target} is there, and is never made again")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with kafka.running(kafka.VERSIONS[0], folder / "broker") as broker:
            warm_up = ("create", "produce", "group", "transactions")
            programs.work(programs.named("confluent-kafka"), broker.address, "warm-up", warm_up)
            for each in CLIENTS:
                record_client(broker.address, folder / each, each, STEPS)
            transactions = ("create", "transactions")
            record_client(broker.address, folder / "transactions", CLIENTS[0], transactions)
            record_login(broker.sasl_address, folder / "login")
            record_login(broker.sasl_address, folder / "users", "--record-users")
            record_faults(broker.address, folder / "faults")
            record_large(broker.address, folder / "large")
            record_rotated(broker.address, folder / "rotated")
            record_torn(broker.address, folder / "torn")
            record_cut(broker.address, folder / "cut")
        target.mkdir(parents=True)
        for path in sorted(folder.glob("*/recording*.mcap")):
            kept = target / path.name.replace("recording", path.parent.name)
            kept.write_bytes(path.read_bytes())
        for kept in sorted(target.iterdir()):
            exchanges = list(recording.read(kept))
            about = f'"{digest(exchanges)}", {len(exchanges)}, {len(values_of(kept))}'
            print(f'    "{FORMAT_VERSION}/{kept.name}": Recorded({about}),')


def record_client(cluster: str, folder: Path, client: str, steps: tuple[str, ...]) -> None:
    """Record the steps of a client's job that it can do."""
    program = programs.named(client)
    possible = tuple(step for step in steps if step in program.steps[kafka.VERSIONS[0]])
    with proxies.running(cluster, folder) as proxy:
        programs.work(program, proxy.bootstrap, folder.name, possible)


def record_login(cluster: str, folder: Path, *options: str) -> None:
    """Record a client that logs in, with its password blanked out."""
    client, login = programs.named("confluent-kafka"), Login("PLAIN", *kafka.PLAIN_USER)
    with proxies.running(cluster, folder, *options) as proxy:
        programs.work(client, proxy.bootstrap, folder.name, ("create",), login)


def record_faults(cluster: str, folder: Path) -> None:
    """Record what rules break, and how a client survives it."""
    create(cluster, "faults")
    values = [f"value-{number}" for number in range(8)]
    rules = [word for rule in FAULTS for word in ("--fault", rule)]
    with proxies.running(cluster, folder, *rules, "--seed", "2", "--expect-faults") as proxy:
        bootstrap, quick = proxy.bootstrap, {"request_timeout_ms": 1000, "one_by_one": True}
        produced = with_confluent.produce(bootstrap, ["faults"], values, **quick)
        assert produced.delivered == values, produced
        consumed = with_confluent.consume(bootstrap, "faults", len(values), "faults")
        assert consumed.values == values, consumed


def record_large(cluster: str, folder: Path) -> None:
    """Record frames that are stored apart from the table of exchanges, and not compressed."""
    create(cluster, "large")
    value = "x" * STORED_BYTES_MIN
    with proxies.running(cluster, folder) as proxy:
        produced = with_confluent.produce(proxy.bootstrap, ["large"], [value])
        consumed = with_confluent.consume(proxy.bootstrap, "large", 1)
        assert produced.delivered == consumed.values == [value]


def record_rotated(cluster: str, folder: Path) -> None:
    """Record three files, with a connection on which a long poll goes on over two rotations."""
    create(cluster, "rotated")
    create(cluster, "rotated-empty")
    with proxies.running(cluster, folder, "--rotate", "1s") as proxy:
        waiting = long_poll(proxy.bootstrap, "rotated-empty", 60_000)
        producer = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap, "log_level": 0})

        def rotated() -> bool:
            producer.produce("rotated", key="key", value="value", headers={"trace": b"5f3a"})
            assert producer.flush(10) == 0
            return len(list(folder.glob("*.mcap"))) == 3

        until(rotated, "it is rotated")
        outside = confluent_kafka.Producer({"bootstrap.servers": cluster})
        outside.produce("rotated-empty", value="at last")
        assert outside.flush(10) == 0
        message = waiting.poll(10)
        assert message is not None and message.value() == b"at last"
        waiting.close()


def record_torn(cluster: str, folder: Path) -> None:
    """Record until it is killed in the middle of traffic, with a long poll going on."""
    create(cluster, "torn")
    create(cluster, "torn-empty")
    with proxies.running(cluster, folder) as proxy:
        waiting = long_poll(proxy.bootstrap, "torn-empty", 60_000)
        producer = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap, "log_level": 0})

        def flowing() -> bool:
            producer.produce("torn", key="key", value="value", headers={"trace": b"5f3a"})
            producer.flush(10)
            found = list(recording.read(proxy.recording))
            asked = any(each.api == "Fetch" and each.response_frame is None for each in found)
            return asked and sum(each.api == "Produce" for each in found) > 5

        until(flowing, "a long poll and some produces are recorded")
        proxy.process.send_signal(signal.SIGKILL)
        proxy.process.wait()
        proxy.code = -signal.SIGKILL
        waiting.close()


def record_cut(cluster: str, folder: Path) -> None:
    """Record something, and keep the first half of its bytes."""
    create(cluster, "cut")
    values = [f"value-{number}" for number in range(8)]
    with proxies.running(cluster, folder) as proxy:
        with_aiokafka.produce(proxy.bootstrap, ["cut"], values, one_by_one=True)
        with_aiokafka.consume(proxy.bootstrap, "cut", len(values), "cut")
    os.truncate(proxy.recording, proxy.recording.stat().st_size // 2)


def long_poll(bootstrap: str, topic: str, wait_ms: int) -> confluent_kafka.Consumer:
    """Begin to wait for the first record of a topic."""
    settings = {"bootstrap.servers": bootstrap, "group.id": topic, "log_level": 0}
    settings |= {"fetch.wait.max.ms": wait_ms, "socket.timeout.ms": wait_ms + 60_000}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    return consumer


if __name__ == "__main__":
    main()
