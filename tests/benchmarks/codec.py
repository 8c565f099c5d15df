"""How fast the codec is, against kio (Rust reader) and kafka-python, on the same bytes, in one run.

    python -m tests.benchmarks.codec

Prints the best time of many runs in microseconds; ratios are ours against theirs, above 1 is
faster. No timed assertion: machines differ, the ratios hardly.
"""

from __future__ import annotations

import gc
import io
import pkgutil
import struct
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import attrs

from kproxy.protocol import codec, messages, schema

ADDRESSES = ("brokers.node_id", "brokers.host", "brokers.port")


@attrs.frozen
class Case:
    """One message that is measured."""

    title: str
    name: str
    version: int
    body: Any


def cases() -> list[Case]:
    """The messages that make most of the traffic, of the size that a busy cluster gives them."""
    return [
        Case("Metadata, 1,000 partitions", "MetadataResponse", 12, metadata()),
        Case("JoinGroup, 100 members", "JoinGroupResponse", 9, join_group()),
        Case("OffsetFetch, 100 partitions", "OffsetFetchResponse", 8, offset_fetch()),
        Case("OffsetCommit, 100 partitions", "OffsetCommitRequest", 9, offset_commit()),
        Case("Produce, 100 partitions", "ProduceRequest", 9, produce()),
        Case("Fetch, 100 partitions", "FetchResponse", 12, fetch()),
    ]


def metadata() -> Any:
    """10 topics of 100 partitions on 3 brokers."""
    cls = messages.MetadataResponse
    partitions = [
        cls.MetadataResponsePartition(
            partition_index=index,
            leader_id=index % 3,
            leader_epoch=7,
            replica_nodes=[0, 1, 2],
            isr_nodes=[0, 1, 2],
        )
        for index in range(100)
    ]
    return cls(
        brokers=[
            cls.MetadataResponseBroker(node_id=n, host=f"broker-{n}.kafka.example.org", port=9092)
            for n in range(3)
        ],
        cluster_id="5L6g3nShT-eMCtK--X86sw",
        controller_id=1,
        topics=[
            cls.MetadataResponseTopic(
                name=f"orders-{n}", topic_id=uuid.UUID(int=n + 1), partitions=partitions
            )
            for n in range(10)
        ],
    )


def join_group() -> Any:
    """What the leader of a group of 100 gets."""
    cls = messages.JoinGroupResponse
    return cls(
        generation_id=5,
        protocol_type="consumer",
        protocol_name="range",
        leader="consumer-1",
        member_id="consumer-1",
        members=[
            cls.JoinGroupResponseMember(member_id=f"consumer-{n}", metadata=bytes(60))
            for n in range(100)
        ],
    )


def offset_fetch() -> Any:
    """One group, 10 topics of 10 partitions."""
    cls = messages.OffsetFetchResponse
    partitions = [
        cls.OffsetFetchResponsePartitions(
            partition_index=n, committed_offset=1_000_000 + n, committed_leader_epoch=7, metadata=""
        )
        for n in range(10)
    ]
    topics = [
        cls.OffsetFetchResponseTopics(name=f"orders-{n}", partitions=partitions) for n in range(10)
    ]
    return cls(groups=[cls.OffsetFetchResponseGroup(group_id="billing", topics=topics)])


def offset_commit() -> Any:
    """10 topics of 10 partitions."""
    cls = messages.OffsetCommitRequest
    partitions = [
        cls.OffsetCommitRequestPartition(
            partition_index=n, committed_offset=1_000_000 + n, committed_metadata=""
        )
        for n in range(10)
    ]
    return cls(
        group_id="billing",
        generation_id_or_member_epoch=5,
        member_id="consumer-1",
        topics=[
            cls.OffsetCommitRequestTopic(name=f"orders-{n}", partitions=partitions)
            for n in range(10)
        ],
    )


def produce() -> Any:
    """10 topics of 10 partitions with 1 KB of records each."""
    cls = messages.ProduceRequest
    partitions = [cls.PartitionProduceData(index=n, records=bytes(1000)) for n in range(10)]
    return cls(
        acks=-1,
        timeout_ms=30000,
        topic_data=[
            cls.TopicProduceData(name=f"orders-{n}", partition_data=partitions) for n in range(10)
        ],
    )


def fetch() -> Any:
    """10 topics of 10 partitions with 1 KB of records each."""
    cls = messages.FetchResponse
    partitions = [
        cls.PartitionData(
            partition_index=n,
            high_watermark=1_000_000,
            last_stable_offset=1_000_000,
            log_start_offset=0,
            aborted_transactions=None,
            records=bytes(1000),
        )
        for n in range(10)
    ]
    return cls(
        session_id=1,
        responses=[
            cls.FetchableTopicResponse(topic=f"orders-{n}", partitions=partitions)
            for n in range(10)
        ],
    )


def best_us(function: Callable[[], object]) -> float:
    """The best time of one call, in microseconds."""
    function()
    best = float("inf")
    until = time.perf_counter() + 0.3
    while time.perf_counter() < until:
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def kio_functions(case: Case, raw: bytes) -> tuple[Callable[[], object], Callable[[], object]]:
    """Decode and encode with kio."""
    from kio.index import load_request_schema, load_response_schema
    from kio.serial import entity_reader, entity_writer

    message = schema.named(case.name)
    load = load_request_schema if message.direction == "request" else load_response_schema
    entity: Any = load(message.api_key, case.version)
    read, write = entity_reader(entity), entity_writer(entity)
    value, _ = read(raw, 0)

    def encode() -> bytes:
        out = io.BytesIO()
        write(out, value)
        return out.getvalue()

    assert encode() == raw
    return lambda: read(raw, 0), encode


def kafka_python_functions(
    case: Case, raw: bytes
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Decode and encode with kafka-python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import kafka.protocol

        for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
            if ".old" not in module.name and "generate" not in module.name:
                found = getattr(import_module(module.name), case.name, None)
                if found is not None:
                    break
        else:
            raise LookupError(case.name)
    value = found.decode(raw, version=case.version)
    value._header = None
    value.API_VERSION = case.version
    assert bytes(value.encode()) == raw
    return lambda: found.decode(raw, version=case.version), value.encode


def replace_addresses(raw: bytes, locate: codec.Locate) -> bytes:
    """What the proxy does to a Metadata response, in its shortest form."""
    spans, _ = locate(raw, 0)
    parts: list[bytes] = []
    position = 0
    for index, start, _, end in spans:
        if index == 1:
            parts += (raw[position:start], b"\x0a127.0.0.1")
            position = end
        elif index == 2:
            parts += (raw[position:start], struct.pack(">i", 19092))
            position = end
    parts.append(raw[position:])
    return b"".join(parts)


def measure(case: Case) -> None:
    """Print the lines of one message."""
    message = schema.named(case.name)
    encode = codec.encoder(message, case.version)
    decode = codec.decoder(message, case.version)
    walk = codec.locate(message, case.version, ())

    def encoded() -> bytes:
        parts: list[bytes] = []
        encode(case.body, parts.append)
        return b"".join(parts)

    raw = encoded()
    ours = best_us(lambda: decode(raw, 0)), best_us(encoded)
    kio = tuple(map(best_us, kio_functions(case, raw)))
    kafka_python = tuple(map(best_us, kafka_python_functions(case, raw)))
    walked = best_us(lambda: walk(raw, 0))
    print(f"{case.title} (v{case.version}, {len(raw):,} bytes)")
    for what, mine, rust, python in zip(("decode", "encode"), ours, kio, kafka_python, strict=True):
        print(
            f"  {what}   kproxy {mine:8.1f}   kio {rust:8.1f} ({rust / mine:5.2f}x)"
            f"   kafka-python {python:8.1f} ({python / mine:5.2f}x)"
        )
    print(f"  walk     kproxy {walked:8.1f}   = {walked / ours[0]:.0%} of decoding")
    if case.name == "MetadataResponse":
        locate = codec.locate(message, case.version, ADDRESSES, whole=False)
        spliced = best_us(lambda: replace_addresses(raw, locate))
        print(f"  addresses       {spliced:8.1f}   = {spliced / ours[0]:.2%} of decoding")


_IMPORT = """
import sys, time
import attrs
start = time.process_time()
import kproxy.protocol
print((time.process_time() - start) * 1000)
"""
_FIRST_USE = """
import sys, time
import kproxy.protocol
from kproxy.protocol import codec, schema
name, version, data = sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3])
start = time.process_time()
codec.decoder(schema.named(name), version)(data, 0)
print((time.process_time() - start) * 1000)
"""


def fresh_ms(program: str, *arguments: str, runs: int = 7) -> float:
    """The best of some runs of a program that prints milliseconds, each in a new interpreter."""
    command = [sys.executable, "-c", program, *arguments]
    return min(float(subprocess.check_output(command)) for _ in range(runs))


def first_use_ms(name: str, version: int, runs: int = 7) -> float:
    """The CPU time of the first decoding of a message; its body has Kafka's defaults."""
    parts: list[bytes] = []
    codec.encoder(schema.named(name), version)(messages.message_class(name)(), parts.append)
    return fresh_ms(_FIRST_USE, name, str(version), b"".join(parts).hex(), runs=runs)


def longest_first_uses() -> dict[str, float]:
    """The ten messages whose first use takes longest in their newest version, in milliseconds."""
    newest = {name: schema.named(name).versions[-1:] for name in schema.message_names()}
    once = {name: first_use_ms(name, *last, runs=1) for name, last in newest.items() if last}
    longest = sorted(once, key=lambda name: -once[name])[:20]
    found = {name: first_use_ms(name, *newest[name]) for name in longest}
    return dict(sorted(found.items(), key=lambda one: -one[1])[:10])


def main() -> None:
    """Print all figures."""
    gc.freeze()
    for case in cases():
        measure(case)
    print(f"import of kproxy.protocol over attrs: {fresh_ms(_IMPORT):.1f} ms")
    for case in cases():
        print(f"first use of {case.name}: {first_use_ms(case.name, case.version):.1f} ms")
    print("the longest first uses of all messages:")
    for name, milliseconds in longest_first_uses().items():
        print(f"  {name}: {milliseconds:.1f} ms")


if __name__ == "__main__":
    main()
