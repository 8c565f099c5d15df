"""Several producers write to a partition at once, and a consumer reads it, by seeds.

In the recording the records are in one order, in the made-up cluster in another: that is no
difference, but what is planted is.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import BATCH_HEADER
from tests.exchange.batches import batch
from tests.exchange.bodies import fetch_request, fetch_response, produce_request, produce_response
from tests.exchange.making import MS, START_NS, request, response
from tests.send.made_up import MadeUp

WRITES = st.lists(
    st.tuples(
        st.integers(1, 3),  # which producer
        st.integers(1, 3),  # how many records
        st.booleans(),  # whether others have this value, too
        st.integers(0, 40),  # for how long it was under way before it was in the log …
        st.integers(0, 40),  # … and until it was answered
    ),
    min_size=1,
    max_size=12,
)
CONSUMER = 9
Commit = messages.OffsetCommitRequest


class Log:
    """The partition in the made-up cluster, and what it does wrong."""

    def __init__(self, sizes: list[int], fault: str, victims: list[int]) -> None:
        self.batches: dict[int, bytes] = {}
        self.end = self.committed = 0
        self._sizes, self._fault, self._victims = sizes, fault, victims
        self._kept_free = -1

    def answer(self, body: Any) -> Any:
        """Answer what clients of the recording ask."""
        if isinstance(body, messages.ProduceRequest):
            (data,) = [each.records for each in body.topic_data[0].partition_data]
            return produce_response({0: self._write(body.timeout_ms, data)})
        if isinstance(body, messages.FetchRequest):
            (first,) = [each.fetch_offset for each in body.topics[0].partitions]
            found = [
                data for at, data in sorted(self.batches.items()) if first <= at < self._shown()
            ]
            return fetch_response({0: b"".join(found[: None if self._fault == "doubled" else 2])})
        if isinstance(body, Commit):
            self.committed = body.topics[0].partitions[0].committed_offset
            return messages.OffsetCommitResponse()
        if isinstance(body, messages.ListOffsetsRequest):
            return earliest()[1]
        return committed(self.committed)

    def _shown(self) -> int:
        """Up to where it is replicated."""
        return self.end if self._kept_free in {-1, *self.batches} else self._kept_free

    def _write(self, number: int, data: bytes) -> int:
        at, size = self.end, self._sizes[number]
        is_victim = number == self._victims[0]
        if self._fault == "order" and is_victim:
            self._kept_free = at  # for the next one of this producer
            at += self._sizes[self._victims[1]]
        elif self._fault == "order" and number == self._victims[1]:
            at = self._kept_free
        if self._fault == "changed" and is_victim:
            data = data[: BATCH_HEADER.size] + data[BATCH_HEADER.size :].replace(b"v", b"w")
        self.end = max(self.end, at + size)
        if not (self._fault == "lost" and is_victim):
            self.batches[at] = at.to_bytes(8) + data[8:]
        if self._fault == "doubled" and is_victim:
            self.batches[self.end] = self.end.to_bytes(8) + data[8:]
            self.end += size
        return at


def committed(offset: int) -> Any:
    """The response to OffsetFetch."""
    kind = messages.OffsetFetchResponse
    part = kind.OffsetFetchResponsePartition(committed_offset=offset)
    return kind(topics=[kind.OffsetFetchResponseTopic(name="orders", partitions=[part])])


def earliest() -> tuple[Any, Any]:
    """What ListOffsets asks and tells of the first record."""
    asks, tells = messages.ListOffsetsRequest, messages.ListOffsetsResponse
    asked = asks.ListOffsetsPartition(timestamp=-2)
    told = tells.ListOffsetsPartitionResponse(offset=0)
    return (
        asks(replica_id=-1, topics=[asks.ListOffsetsTopic(name="orders", partitions=[asked])]),
        tells(topics=[tells.ListOffsetsTopicResponse(name="orders", partitions=[told])]),
    )


def recorded(writes: list[Any], reads: set[int], comes_late: bool) -> list[Any]:
    """The frames: writes are in the log one each 10 ms, in this order; a read brings what has come
    since the one before, and is committed; then it is asked what was committed before. A consumer
    that comes late asks where to begin."""
    frames, offset, read_to, unread = [], 0, 0, b""
    asked_ms, answered_ms, consumed_ms = {}, {}, 0
    asks_committed = messages.OffsetFetchRequest(group_id="g", topics=None)

    def say(api: str, version: int, connection: int, ms: tuple[int, int], *bodies: Any) -> None:
        asked = request(api, version, bodies[0], len(frames) + 1, connection)
        asked.received_ns = asked.sent_ns = START_NS + ms[0] * MS
        told_ns = START_NS + ms[1] * MS
        told = response(asked, bodies[1], received_ns=told_ns, sent_ns=told_ns)
        frames.extend((asked, told))

    for number, (producer, size, is_common, before, after) in enumerate(writes):
        log_ms = 50 + 10 * number
        asked_ms[producer] = max(asked_ms.get(producer, 0) + 1, log_ms - 1 - before)
        answered_ms[producer] = max(answered_ms.get(producer, 0) + 1, log_ms + after)
        data = batch(size, value=b"v" if is_common else b"v%d" % number)
        body = produce_request({0: data})
        body.timeout_ms = number
        times = asked_ms[producer], answered_ms[producer]
        say("Produce", 8, producer, times, body, produce_response({0: offset}))
        unread += offset.to_bytes(8) + data[8:]
        offset += size
        if number in reads or number == len(writes) - 1:
            if comes_late and not read_to:
                consumed_ms = log_ms - 1
                say("ListOffsets", 4, CONSUMER, (log_ms - 3, log_ms - 2), *earliest())
            times = consumed_ms, log_ms + 1
            say("Fetch", 4, CONSUMER, times, fetch_request({0: read_to}), _fetched(unread))
            times = log_ms + 2, log_ms + 3
            if read_to:
                say("OffsetFetch", 5, CONSUMER, times, asks_committed, committed(read_to))
            part = Commit.OffsetCommitRequestPartition(committed_offset=offset)
            topic = Commit.OffsetCommitRequestTopic(name="orders", partitions=[part])
            body = Commit(group_id="g", topics=[topic])
            times = log_ms + 4, log_ms + 5
            say("OffsetCommit", 2, CONSUMER, times, body, messages.OffsetCommitResponse())
            consumed_ms, read_to, unread = log_ms + 6, offset, b""
    say("OffsetFetch", 5, CONSUMER, (1000, 1001), asks_committed, committed(offset))
    return sorted(frames, key=lambda each: each.received_ns)


def _fetched(data: bytes) -> Any:
    return fetch_response({0: data})


@pytest.mark.parametrize("fault", ["", "lost", "doubled", "changed", "order"])
@given(WRITES, st.sets(st.integers(0, 11)), st.data())
def test_another_order_of_several_producers_is_no_difference(fault, writes, reads, data) -> None:
    sizes = [size for _, size, *_ in writes]
    pairs = [[n] for n in range(len(writes))]
    if fault == "order":  # of two that nobody reads between
        two, reads = itertools.combinations(range(len(writes)), 2), set()
        pairs = [[a, b] for a, b in two if writes[a][0] == writes[b][0]]
    assume(pairs)
    victims = data.draw(st.sampled_from(pairs))
    log = Log(sizes, fault, victims)
    made_up = MadeUp(log.answer)
    chance = random.Random(data.draw(st.integers(0, 1 << 32)))
    made_up.delay_ns = lambda: chance.choice((1, 1, 20, 60)) * MS
    made_up.send(recorded(writes, reads, data.draw(st.booleans())))
    size = f"{sizes[victims[0]]} came"
    expected = {
        "": set(),
        "lost": {("Fetch", "records", size)},
        "doubled": {("Fetch", "records at", "once")},
        "changed": {("Fetch", "record at", "v")},
        "order": {("Produce", "order of records", "as they were sent")},
    }[fault]
    found = {
        (
            each.api,
            each.what.removeprefix("orders[0] ").rstrip(" 0123456789"),
            "v" if "v" in each.recorded and fault == "changed" else each.recorded,
        )
        for each in made_up.sender.sent.differences
    }
    assert found == expected
    assert made_up.sender.sent.answered == made_up.sender.sent.requests
