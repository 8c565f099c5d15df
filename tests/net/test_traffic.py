"""Counters of the traffic: what the reader of recordings says of the same exchanges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

from kproxy import recording
from kproxy.exchange.derived import JOINS
from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    Buffer,
    ChunkTimes,
    Frame,
    FrameRun,
    Note,
    Requests,
    Side,
)
from kproxy.net.traffic import BUCKETS_SECONDS, OTHER, Traffic
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.proxy.playing import response

RECORDINGS = [
    needs.REPOSITORY / "recordings" / "demo.mcap",
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    *sorted((needs.REPOSITORY / "tests" / "look" / "why" / "incidents").glob("*.mcap")),
]
pytestmark = pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")


def passing(path: Path) -> Iterator[Frame | Note]:
    """The entries of a recording as they passed: responses with the times of their requests."""
    sent_ns: dict[int, int] = {}
    for entry in recording.entries([path]):
        if isinstance(entry, Frame) and entry.side is Side.CLIENT:
            sent_ns[entry.number] = entry.sent_ns
        elif isinstance(entry, Frame):
            asked_ns = sent_ns.get(entry.number, 0)
            entry.request_sent_ns = asked_ns if asked_ns <= entry.received_ns else 0
        yield entry


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_what_is_counted_is_what_exchanges_say(path: Path) -> None:
    traffic = Traffic()
    traffic.count(passing(path))
    told: Counter[tuple[str, str]] = Counter()
    throttled_ms: Counter[str] = Counter()
    service: Counter[str] = Counter()
    service_us: Counter[str] = Counter()
    for exchange in recording.read(path):
        api = exchange.api or OTHER
        told.update((api, error) for error in exchange.errors)
        throttled_ms[api] += getattr(exchange.response, "throttle_time_ms", 0)
        if exchange.durations.served_us >= 0 and api not in JOINS:
            service[api] += 1
            service_us[api] += exchange.durations.served_us
    counted: Counter[tuple[str, str]] = Counter()
    for api, found in traffic.apis.items():
        for (error, _), count in found.errors.items():
            counted[api, error] += count
        assert found.throttled_ms == throttled_ms[api], api
        assert sum(found.service.buckets) == service[api], api
        assert found.service.sum_ns / 1000 == pytest.approx(service_us[api], abs=service[api]), api
    assert counted == told
    assert sum(traffic.ends.values()) == sum(
        isinstance(each, Note) and each.body["event"] == "closed"
        for each in recording.entries([path])
    )


def frame(number: int, api_key: int, data: bytes, **changes: int) -> Frame:
    pieces: list[Buffer] = [len(data).to_bytes(4) + data]
    about = (Side.BROKER, 1, number, api_key, 0, number, number, pieces, len(data) + 4)
    return attrs.evolve(Frame(*about), **changes)


def test_peers_cannot_make_up_names_without_end() -> None:
    traffic = Traffic()
    for number in range(1, 2000):
        traffic.count([frame(number, 20_000 + number, b"\0\0\0\1\0\0")])
        # Of a Heartbeat: correlation id, error code.
        traffic.count([frame(number, 12, b"\0\0\0\1" + (20_000 + number).to_bytes(2))])
    assert traffic.apis.keys() == {OTHER, "Heartbeat"}
    assert traffic.apis["Heartbeat"].errors == {(OTHER, "broker"): 1999}
    assert len(traffic.apis["Heartbeat"].broker.buckets) == len(BUCKETS_SECONDS) + 1


def test_errors_beside_many_records_are_seen() -> None:
    """Of a Fetch, whose response comes in pieces, or is recorded in several."""
    of_partition = messages.FetchResponse.PartitionData
    partitions = [
        of_partition(partition_index=0, records=bytes(3 << 20)),
        of_partition(partition_index=1, error_code=6),
    ]
    topic = messages.FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)
    body = messages.FetchResponse(throttle_time_ms=7, responses=[topic])
    data = response(1, 12, body, 1)
    pieces = [memoryview(data)[at : at + 700_000] for at in range(0, len(data), 700_000)]
    requests = Requests(1, 1, 12, 0, [1], [100], ChunkTimes(10, 20))
    run = FrameRun(Side.BROKER, 1, ChunkTimes(30), pieces, requests, 0, [len(data)])
    (whole,) = run.frames()
    parts = [attrs.evolve(whole, pieces=[each], flags=FRAGMENT | MORE) for each in pieces]
    parts[-1].flags = FRAGMENT
    for entries in ([run], [whole], parts):
        traffic = Traffic()
        traffic.count(entries)
        fetch = traffic.apis["Fetch"]
        assert fetch.errors == {("NOT_LEADER_OR_FOLLOWER", "broker"): 1}
        assert (fetch.throttled_ms, fetch.exchanges) == (7, 1)
