"""`kproxy.testing` without pytest: for blocking, asyncio and trio code, and in trouble."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from pathlib import Path

import attrs
import pytest
import trio
from confluent_kafka import Consumer, Producer, TopicPartition

from kproxy import demo
from kproxy.exchange.entries import EVENTS, Note
from kproxy.net.host import Host
from kproxy.proxy.faults import RuleError
from kproxy.recording import RecordingError, info, read
from kproxy.testing import record, replay, sessions
from kproxy.testing.sessions import Mismatch
from kproxy.wire.payloads.schemas import Schema, note_of
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def is_refused(bootstrap: str) -> bool:
    """Whether nobody listens there."""
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 5).close()
    except ConnectionRefusedError:
        return True
    return False


BEFORE: set[threading.Thread] = set()
"""What ran when the test began: a test of a hanging disk leaves a thread behind, for one."""


@pytest.fixture(autouse=True)
def before() -> None:
    """Note what runs."""
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def threads() -> set[str]:
    """The names of kproxy's threads that have been started since, and run, but for the one of all
    runs."""
    new = set(threading.enumerate()) - BEFORE
    return {each.name for each in new if each.name.startswith("kproxy-")}


def test_a_recording_serves_blocking_code() -> None:
    with replay(DEMO) as broker:
        assert demo.produce(broker.bootstrap) == demo.RECORDS
        consumed = demo.consume(broker.bootstrap)
        seen = broker.consumed("orders")
        assert sorted((r.partition, r.offset, r.key, r.value) for r in seen) == consumed
        assert {each.value for each in broker.produced("orders")} == {each[3] for each in consumed}
        assert broker.produced("others") == []
        (commit,) = broker.exchanges("api:OffsetCommit")
        assert "billing: orders[" in repr(commit) and " object at " not in repr(commit)
    assert is_refused(broker.bootstrap) and threads() == set()
    assert broker.produced("orders"), "it can be looked at afterwards"


def test_records_of_a_replay_have_the_schemas_of_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "new.mcap"
    with replay(DEMO) as real, record(real.bootstrap, path) as broker:
        demo.produce(broker.bootstrap)
        demo.consume(broker.bootstrap)
        body = note_of([17], Schema("AVRO", '"string"'))
        broker._watcher.note(Note(EVENTS, time.time_ns(), body))
    with replay(path, expect="none") as broker:
        demo.consume(broker.bootstrap)
        one, *_ = broker.consumed("orders")
    assert one.decoded == json.loads(one.value)
    assert attrs.evolve(one, value=b"\0\0\0\0\x11\6ann").decoded == "ann"


@pytest.mark.parametrize(
    "what", [{"drop": True}, {"error": "KAFKA_STORAGE_ERROR"}, {"truncate": 40}]
)
def test_what_a_consumer_did_not_get_was_not_consumed(what: dict[str, object]) -> None:
    with replay(DEMO, visible="all", unplayed="allow") as broker:
        quiet = {"bootstrap.servers": broker.bootstrap, "log_level": 0, "group.id": "g"}
        consumer = Consumer({**quiet, "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("orders", index, 0) for index in range(4)])
        with broker.fault(api="Fetch", phase="after", **what) as fault:
            assert consumer.consume(12, 1) == [] or "error" in what
            assert fault.fired, "counted inside the block"
        consumer.close()
        assert fault.fired
        assert broker.consumed() == []


async def aiokafka_reads(bootstrap: str) -> list[bytes]:
    """The demo's records with an asyncio client."""
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        "orders", bootstrap_servers=bootstrap, group_id="billing", auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        found = [await asyncio.wait_for(consumer.getone(), 10) for _ in range(demo.RECORDS)]
    finally:
        await consumer.stop()
    return [each.value for each in found]


def test_a_recording_serves_asyncio_code() -> None:
    async def main() -> list[bytes]:
        async with replay(DEMO, visible="all", unplayed="allow") as broker:
            found = await aiokafka_reads(broker.bootstrap)
            with broker.fault(api="Heartbeat", latency="1ms"):
                pass
            assert len(broker.consumed("orders")) == demo.RECORDS
            return found

    assert len(set(asyncio.run(main()))) == demo.RECORDS
    with replay(DEMO, visible="all", unplayed="allow") as broker:
        assert len(set(asyncio.run(aiokafka_reads(broker.bootstrap)))) == demo.RECORDS


async def test_a_recording_serves_trio_code() -> None:
    async with replay(DEMO) as broker:
        assert await trio.to_thread.run_sync(demo.produce, broker.bootstrap) == demo.RECORDS
        assert len(broker.produced()) == demo.RECORDS
    with replay(DEMO, unplayed="allow"):
        await trio.lowlevel.checkpoint()


async def test_a_cancelled_task_leaves_nothing_open() -> None:
    with trio.move_on_after(0.2):
        async with replay(DEMO) as broker:
            await trio.sleep_forever()
    assert is_refused(broker.bootstrap) and threads() == set()


@pytest.mark.parametrize("cancels", [1, 3])
def test_a_task_that_is_cancelled_while_it_begins_leaves_nothing_open(cancels: int) -> None:
    async def use() -> None:
        async with replay(DEMO):
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(use())
        for _ in range(cancels):
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert threads() == set()

    asyncio.run(main())
    assert threads() == set()


def test_a_loop_that_ends_ends_what_its_tasks_began() -> None:
    async def use() -> None:
        async with replay(DEMO):
            await asyncio.sleep(60)

    async def main() -> list[asyncio.Task[None]]:
        task = asyncio.create_task(use())
        await asyncio.sleep(0)
        return [task]

    assert asyncio.run(main())[0].cancelled()
    assert threads() == set()


def test_leaving_tells_what_the_client_did_otherwise() -> None:
    with pytest.raises(Mismatch, match=r"orders: the record of key '.*' has value") as raised:
        with replay(DEMO) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce("orders", key="customer-0", value="nothing of the kind")
            assert producer.flush(10) == 0, "the client itself sees no error"
    text = str(raised.value)
    assert "value 'nothing of the kind', recorded '{" in text
    assert "… and 10 more like it" in text


def test_what_is_wrong_in_the_block_is_what_comes_out_of_it() -> None:
    with pytest.raises(ZeroDivisionError):
        with replay(DEMO) as broker:
            print(1 // 0)
    assert is_refused(broker.bootstrap) and threads() == set()


def test_a_recording_is_made_where_real_brokers_are(
    mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "made.mcap"
    with record(mock_brokers, path) as broker:
        with broker.fault(name="late", api="Produce", latency="1ms") as fault:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            producer.produce(prefix, "one")
            assert producer.flush(10) == 0
        assert fault.fired == 1
        assert [each.value for each in broker.produced(prefix)] == [b"one"]
    (written,) = read(path, "api:Produce")
    assert written.faults == ["late"]
    with record(mock_brokers) as broker:
        pass
    with pytest.raises(FileExistsError), record(mock_brokers, path):
        pass
    assert threads() == set()


def test_times_count_from_the_start_of_the_recording_as_in_the_file_of_it(
    mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "made.mcap"
    with record(mock_brokers, path) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(prefix, "one")
        assert producer.flush(10) == 0
    first = broker.exchanges()[0]
    until_us = (first.row.request_received_ns - info(path).start_ns) // 1000
    assert until_us > 0
    for wanted in (f"time:..+{until_us // 2}us", f"time:+{until_us // 2}us.."):
        in_file = {each.number for each in read(path, wanted)}
        assert {each.number for each in broker.exchanges(wanted)} == in_file


def test_times_of_a_replay_count_from_when_it_began() -> None:
    began_ns = time.time_ns()
    with replay(DEMO, unplayed="allow") as broker:
        listening_ns = time.time_ns()
        demo.consume(broker.bootstrap)
    first_ns = broker.exchanges()[0].row.request_received_ns
    assert broker.exchanges(f"time:..+{(first_ns - listening_ns) // 1000}us") == []
    assert broker.exchanges(f"time:..+{(first_ns - began_ns) // 1000 + 1}us")


def test_what_cannot_be_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="does not exist"), replay(tmp_path / "none.mcap"):
        pass
    with pytest.raises(ValueError, match="no recording is given"):
        replay([])
    with pytest.raises(ValueError, match="visible is 'causal' or 'all', not 'none'"):
        replay(DEMO, visible="none")
    with pytest.raises(ValueError, match="cannot be ignored"):
        record("localhost:9092", ignore=["values"])
    with pytest.raises(ValueError, match="the port is missing"), record("localhost:"):
        pass
    with replay(DEMO, unplayed="allow") as broker, pytest.raises(RuleError, match="topics"):
        with broker.fault(topics="orders", drop=True):
            pass
    assert threads() == set()


def test_what_fails_late_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def fail(bootstrap: str, *others: object) -> None:
        opened.append(bootstrap)
        raise MemoryError

    monkeypatch.setattr(sessions, "Broker", fail)
    with pytest.raises(MemoryError), replay(DEMO):
        pass
    assert is_refused(opened[0]) and threads() == set()


def test_what_fails_at_the_end_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = Host.stop

    def fail(host: Host[str]) -> None:
        stop(host)
        raise ArithmeticError

    monkeypatch.setattr(Host, "stop", fail)
    with pytest.raises(ArithmeticError), replay(DEMO, unplayed="allow") as broker:
        pass
    assert is_refused(broker.bootstrap) and threads() == set()


def test_a_recording_serves_again_with_no_findings_of_the_first_time() -> None:
    session = replay(DEMO)
    with pytest.raises(Mismatch), session:
        pass
    with session as broker:
        assert demo.produce(broker.bootstrap) == demo.RECORDS


@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_a_torn_recording_is_refused(share: float, tmp_path: Path) -> None:
    data = DEMO.read_bytes()
    path = tmp_path / "torn.mcap"
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(RecordingError, match=r"torn\.mcap: .*`kproxy recover`") as raised:
        with replay(path, unplayed="allow"):
            pass
    assert "\n" not in str(raised.value)
    assert threads() == set()
