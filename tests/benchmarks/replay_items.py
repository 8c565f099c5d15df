"""The longest time for which one request holds up the clients of other connections.

    python -m tests.benchmarks.replay_items [--items 1000000] [--only ListOffsets] [--recording F]
                                            [--through off|plain|no-record|rule]

One client sends a request that names a million things, of every kind that can, and waits for the
response; or a million tiny requests at once. Another client asks for the versions again and again
meanwhile, on a connection of its own. A line says how long the large one took, and of the other's
round trips the median, the 99th percentile and the longest. `--through` puts a `kproxy run` between
the clients and the replay.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.bed import needs, proxies, replays
from tests.benchmarks.proxies import cpu_seconds, resident_mib

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
WAIT_SECONDS = 120
THROUGH = {
    "plain": (),
    "no-record": ("--no-record",),
    "rule": ("--fault", "api=ListOffsets delay=1ms"),
}
"""Ways to put a proxy in between, and its options."""


def _topics(items: int) -> list[str]:
    return [f"topic-{number}" for number in range(items)]


def metadata(items: int) -> tuple[int, Any]:
    """Metadata of topics that do not exist."""
    kind = messages.MetadataRequest
    topics = [kind.MetadataRequestTopic(name=name) for name in _topics(items)]
    return 12, kind(topics=topics, allow_auto_topic_creation=False)


def list_offsets(items: int) -> tuple[int, Any]:
    """ListOffsets of the partitions of one topic."""
    kind = messages.ListOffsetsRequest
    partitions = [
        kind.ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(items)
    ]
    return 7, kind(topics=[kind.ListOffsetsTopic(name="orders", partitions=partitions)])


def offset_fetch(items: int) -> tuple[int, Any]:
    """OffsetFetch of the partitions of one topic."""
    kind = messages.OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(name="orders", partition_indexes=[*range(items)])
    return 8, kind(groups=[kind.OffsetFetchRequestGroup(group_id="g", topics=[topic])])


def offset_commit(items: int) -> tuple[int, Any]:
    """OffsetCommit for the partitions of one topic."""
    kind = messages.OffsetCommitRequest
    partitions = [
        kind.OffsetCommitRequestPartition(partition_index=each, committed_offset=1)
        for each in range(items)
    ]
    topic = kind.OffsetCommitRequestTopic(name="orders", partitions=partitions)
    return 8, kind(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])


def describe_configs(items: int) -> tuple[int, Any]:
    """DescribeConfigs of topics."""
    kind = messages.DescribeConfigsRequest
    found = [
        kind.DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
        for name in _topics(items)
    ]
    return 4, kind(resources=found)


def delete_records(items: int) -> tuple[int, Any]:
    """DeleteRecords in the partitions of one topic."""
    kind = messages.DeleteRecordsRequest
    partitions = [
        kind.DeleteRecordsPartition(partition_index=each, offset=0) for each in range(1, items + 1)
    ]
    return 2, kind(topics=[kind.DeleteRecordsTopic(name="none", partitions=partitions)])


def fetch(items: int) -> tuple[int, Any]:
    """Fetch from the partitions of one topic."""
    kind = messages.FetchRequest
    partitions = [
        kind.FetchPartition(partition=each, fetch_offset=0, partition_max_bytes=1)
        for each in range(items)
    ]
    topic = kind.FetchTopic(topic="none", partitions=partitions)
    return 11, kind(max_wait_ms=500, min_bytes=1, topics=[topic])


def produce(items: int) -> tuple[int, Any]:
    """Produce to the partitions of one topic."""
    kind = messages.ProduceRequest
    data = [kind.PartitionProduceData(index=each, records=b"") for each in range(items)]
    topic = kind.TopicProduceData(name="none", partition_data=data)
    return 9, kind(acks=-1, timeout_ms=1000, topic_data=[topic])


def add_partitions_to_txn(items: int) -> tuple[int, Any]:
    """AddPartitionsToTxn of the partitions of one topic."""
    kind = messages.AddPartitionsToTxnRequest
    topic = kind.AddPartitionsToTxnTopic(name="orders", partitions=[*range(items)])
    return 3, kind(
        v3_and_below_transactional_id="t",
        v3_and_below_producer_id=1,
        v3_and_below_topics=[topic],
    )


def create_topics(items: int) -> tuple[int, Any]:
    """CreateTopics that only validates."""
    kind = messages.CreateTopicsRequest
    topics = [
        kind.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in _topics(items)
    ]
    return 5, kind(topics=topics, validate_only=True)


def delete_topics(items: int) -> tuple[int, Any]:
    """DeleteTopics that do not exist."""
    kind = messages.DeleteTopicsRequest
    return 6, kind(topics=[kind.DeleteTopicState(name=name) for name in _topics(items)])


def describe_groups(items: int) -> tuple[int, Any]:
    """DescribeGroups that do not exist."""
    return 5, messages.DescribeGroupsRequest(groups=_topics(items))


def find_coordinator(items: int) -> tuple[int, Any]:
    """FindCoordinator of groups."""
    return 4, messages.FindCoordinatorRequest(key_type=0, coordinator_keys=_topics(items))


def join_group(items: int) -> tuple[int, Any]:
    """JoinGroup with protocols."""
    kind = messages.JoinGroupRequest
    found = [kind.JoinGroupRequestProtocol(name=name, metadata=b"") for name in _topics(items)]
    return 7, kind(
        group_id="j",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=found,
    )


def all_topics(items: int) -> tuple[int, Any]:
    """Metadata of all topics: whether that is large depends on the recording."""
    return 12, messages.MetadataRequest(topics=None)


LARGE: dict[str, Callable[[int], tuple[int, Any]]] = {
    "Metadata": metadata,
    "all topics": all_topics,
    "ListOffsets": list_offsets,
    "OffsetFetch": offset_fetch,
    "OffsetCommit": offset_commit,
    "DescribeConfigs": describe_configs,
    "DeleteRecords": delete_records,
    "Fetch": fetch,
    "Produce": produce,
    "AddPartitionsToTxn": add_partitions_to_txn,
    "CreateTopics": create_topics,
    "DeleteTopics": delete_topics,
    "DescribeGroups": describe_groups,
    "FindCoordinator": find_coordinator,
    "JoinGroup": join_group,
}


def framed(version: int, body: Any, correlation_id: int = 1) -> bytes:
    """A request's frame."""
    name = type(body).__name__.removesuffix("Request")
    key = protocol.api_key(name)
    assert key is not None
    header = messages.RequestHeader(
        api_key=key, api_version=version, correlation_id=correlation_id, client_id="large"
    )
    return protocol.encode_request(protocol.Request(header, body))


TINY = framed(0, messages.ApiVersionsRequest())


def connected(bootstrap: str) -> socket.socket:
    """A connection."""
    host, _, port = bootstrap.rpartition(":")
    made = socket.create_connection((host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.settimeout(WAIT_SECONDS)
    return made


def response_bytes(sock: socket.socket) -> int:
    """Read one response; its size; 0 where the connection ends instead."""
    head = b""
    while len(head) < 4:
        data = sock.recv(4 - len(head))
        if not data:
            return 0
        head += data
    size = left = int.from_bytes(head, "big")
    while left:
        data = sock.recv(min(left, 1 << 20))
        if not data:
            return 0
        left -= len(data)
    return size


def ask_meanwhile(bootstrap: str, stop: threading.Event, took: list[float]) -> None:
    """Ask for the versions again and again, every few milliseconds."""
    with connected(bootstrap) as sock:
        while not stop.is_set():
            started = time.perf_counter()
            sock.sendall(TINY)
            response_bytes(sock)
            took.append((time.perf_counter() - started) * 1000)
            stop.wait(0.002)


def wait(seconds: float) -> int:
    """Send nothing, for comparison: the machine itself holds up clients, too."""
    time.sleep(seconds)
    return 0


def send_large(bootstrap: str, data: bytes, responses: int) -> int:
    """Send requests, and read the responses meanwhile; the size of all of them."""
    with connected(bootstrap) as sock:
        sender = threading.Thread(target=_send_all, args=(sock, data), daemon=True)
        sender.start()
        size = sum(response_bytes(sock) for _ in range(responses))
        sender.join(WAIT_SECONDS)
    return size


def _send_all(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # it is refused
        sock.sendall(data)


def measure(name: str, bootstrap: str, data: bytes, responses: int, pid: int) -> None:
    """One large request, and what others notice of it."""
    stop, took, before = threading.Event(), list[float](), cpu_seconds(pid)
    other = threading.Thread(target=ask_meanwhile, args=(bootstrap, stop, took), daemon=True)
    other.start()
    time.sleep(0.3)
    took.clear()
    started = time.perf_counter()
    size = send_large(bootstrap, data, responses) if data else wait(5)
    seconds = time.perf_counter() - started
    stop.wait(0.2)  # what is left to do behind the response
    stop.set()
    other.join(WAIT_SECONDS)
    used = cpu_seconds(pid) - before
    took.sort()
    print(
        f"  {name:20} {len(data) / 1e6:6.1f} MB in {seconds:6.2f} s (CPU {used:5.2f}), answer"
        f" {size / 1e6:5.1f} MB;"
        f" others: median {statistics.median(took):5.1f} p99 {took[len(took) * 99 // 100]:6.1f}"
        f" max {took[-1]:7.1f} ms  ({resident_mib(pid):.0f} MiB)",
        flush=True,
    )


@contextlib.contextmanager
def serving(options: argparse.Namespace, folder: Path) -> Iterator[tuple[str, int]]:
    """What is asked: its address, and its process."""
    with replays.running(options.recording, folder / "replay") as replay:
        if options.through == "off":
            yield replay.bootstrap, replay.process.pid
            replay.process.send_signal(signal.SIGINT)
            replay.code = replay.process.wait()  # 1 where a client has named what was not recorded
            return
        how = "--rotate", "off", *THROUGH[options.through]
        with proxies.running(replay.bootstrap, folder / "proxy", *how) as proxy:
            yield proxy.bootstrap, proxy.process.pid
        replay.process.send_signal(signal.SIGINT)
        replay.code = replay.process.wait()


def main() -> None:
    """Parse what was typed, and measure each kind of request in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--recording", type=Path, default=DEMO)
    parser.add_argument("--through", choices=["off", *THROUGH], default="off")
    parser.add_argument("--only", nargs="*", default=["nothing", *LARGE, "tiny"])
    options = parser.parse_args()
    print(f"{options.items} items, through kproxy: {options.through}")
    for name in options.only:
        responses = options.items if name == "tiny" else 1
        data = TINY * options.items if name == "tiny" else b""
        if name in LARGE:
            data = framed(*LARGE[name](options.items))
        with tempfile.TemporaryDirectory() as folder:
            with serving(options, Path(folder)) as (bootstrap, pid):
                measure(name, bootstrap, data, responses, pid)


if __name__ == "__main__":
    main()
