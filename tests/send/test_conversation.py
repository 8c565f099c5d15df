"""What clients of a recording ask a cluster, and in what order, by a cluster that is made up."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kproxy.exchange.entries import NO_RESPONSE
from kproxy.send.planned import SendSettings
from kproxy.send.sender import ClusterGone, Do
from kproxy.wire.protocol import codes, messages
from tests.exchange.batches import batch
from tests.exchange.bodies import (
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
)
from tests.exchange.making import MS, START_NS, request, response
from tests.send.made_up import BLOCKS, NOTHING, REFUSED, Later, MadeUp

SPANS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(0, 40), st.integers(1, 40)), min_size=1, max_size=12
)
"""Requests: the connection, when it was asked, how long it took."""


def conversation(spans: list[tuple[int, int, int]]) -> list[Any]:
    """Frames of requests that are answered in the order in which they were asked on each
    connection; the key says which one it is."""
    kind, frames, last = messages.FindCoordinatorRequest, [], {}
    for number, (connection, asked, took) in enumerate(sorted(spans, key=lambda each: each[1]), 1):
        at_ns = START_NS + asked * MS
        frame = request("FindCoordinator", 1, kind(key=f"{number}"), number, connection)
        frame.received_ns = frame.sent_ns = at_ns
        last[connection] = max(last.get(connection, 0), at_ns + took * MS) + 1
        ends = dict.fromkeys(("received_ns", "sent_ns"), last[connection])
        frames += [frame, response(frame, messages.FindCoordinatorResponse(), **ends)]
    return sorted(frames, key=lambda each: each.received_ns)


@given(SPANS, st.sets(st.integers(1, 12)), st.lists(st.integers(0, 50)))
@example([(1, 0, 1), (1, 0, 1), (2, 2, 1)], set(), [1, 0]).via("the later one connects first")
def test_all_is_asked_once_after_what_was_answered_before(spans, hangs_up, delays_ms) -> None:
    frames = conversation(spans)
    requests = {each.number: each for each in frames if each.side.name == "CLIENT"}
    ends_ns = {each.number: each.received_ns for each in frames if each.side.name == "BROKER"}
    hangs_up &= {*requests}
    asked: list[int] = []

    def answer(body: Any) -> Any:
        number = int(body.key)
        asked.append(number)
        before = [each for each in requests if ends_ns[each] < requests[number].received_ns]
        assert {*before} <= {*asked}
        return None if number in hangs_up else messages.FindCoordinatorResponse()

    made_up = MadeUp(answer)
    delays = itertools.chain(delays_ms, itertools.repeat(1))
    made_up.delay_ns = lambda: next(delays) * MS
    made_up.send(frames)
    assert sorted(asked) == sorted(requests)
    for connection in (1, 2, 3):
        own = [each for each in asked if requests[each].connection == connection]
        assert own == sorted(own)
    sent = made_up.sender.sent
    lost = sum(times for times, _ in sent.differences.values())
    assert sent.requests == len(asked) == sent.answered + lost
    assert lost >= len(hangs_up)


@given(st.data())
def test_members_join_in_the_order_that_they_had(data) -> None:
    """So the same one leads, however long each takes to connect."""
    kind = messages.JoinGroupRequest
    asked = [
        request("JoinGroup", 5, kind(group_id="g", group_instance_id=f"{n}"), n, connection=n)
        for n in range(1, 4)
    ]
    joined = messages.JoinGroupResponse()
    answers = [response(each, joined, received_ns=asked[-1].sent_ns + MS) for each in asked]
    made_up = MadeUp(lambda body: joined)
    made_up.delay_ns = lambda: data.draw(st.integers(0, 100)) * MS
    made_up.send([*asked, *answers])
    assert [each.group_instance_id for each in made_up.asked] == ["1", "2", "3"]
    joins_ns = [at for what, link, at in made_up.log if what is Do.WRITE and link.is_recorded]
    assert min(later - at for at, later in itertools.pairwise(joins_ns)) >= 20 * MS


@pytest.mark.parametrize("is_only_given_its_id", [True, False])
def test_a_member_that_is_only_given_its_id_waits_for_what_came_before_that(
    is_only_given_its_id: bool,
) -> None:
    """It holds up the others until it comes with it."""
    error_code = codes.MEMBER_ID_REQUIRED if is_only_given_its_id else codes.NONE
    joined, metadata = messages.JoinGroupResponse(error_code=error_code), messages.MetadataResponse
    before = request("Metadata", 4, messages.MetadataRequest())
    join = request("JoinGroup", 5, messages.JoinGroupRequest(group_id="g"), 2, connection=2)
    told = response(before, metadata(), received_ns=join.sent_ns + MS)
    made_up = MadeUp(
        lambda body: joined if isinstance(body, messages.JoinGroupRequest) else metadata()
    )
    delays = iter([50 * MS])  # the first connection takes long
    made_up.delay_ns = lambda: next(delays, MS)
    made_up.send([before, join, told, response(join, joined)])
    kinds = [type(each).__name__ for each in made_up.asked]
    assert (kinds == ["MetadataRequest", "JoinGroupRequest"]) is is_only_given_its_id


def test_a_fetch_goes_on_until_all_that_was_recorded_has_come() -> None:
    batches = {0: batch(2), 2: batch(3, offset=2)}
    asked = request("Fetch", 4, fetch_request({0: 0}))
    frames = [asked, response(asked, fetch_response({0: b"".join(batches.values())}))]
    offsets = []

    def answer(body: Any) -> Any:
        offsets.append(body.topics[0].partitions[0].fetch_offset)
        return fetch_response({0: batches[offsets[-1]]})

    made_up = MadeUp(answer)
    made_up.send(frames)
    assert offsets == [0, 2]
    assert not made_up.sender.sent.differences


def test_a_fetch_without_a_recorded_answer_is_sent() -> None:
    """The recording ends, or a file of it does."""
    made_up = MadeUp(lambda body: fetch_response({0: batch(2)}))
    made_up.send([request("Fetch", 4, fetch_request({0: 0}))])
    assert len(made_up.asked) == 1 and not made_up.sender.sent.differences


def produced(count: int) -> list[Any]:
    """Frames of so many requests that were produced one after the other, half a second each."""
    frames = []
    for number in range(1, count + 1):
        asked = request("Produce", 8, produce_request({0: batch(1)}), number)
        asked.received_ns = asked.sent_ns = START_NS + number * 500 * MS
        frames += [asked, response(asked, produce_response({0: number}))]
    return frames


def test_what_a_broker_that_is_gone_led_goes_to_who_leads_it_then() -> None:
    def answer(body: Any) -> Any:
        if len(made_up.asked) == 2:
            made_up.refusing.add(1)
            return None
        return produce_response({0: len(made_up.asked)})

    made_up = MadeUp(answer, nodes=(1, 2, 3))
    made_up.send(produced(5))
    sent = made_up.sender.sent
    assert len(made_up.asked) == 5 and sent.answered == 4 and not sent.lost
    ((differs, _),) = sent.differences.items()
    assert differs.what == "response"  # of the one that was under way


def test_a_broker_that_stays_away_is_given_up_and_others_go_on() -> None:
    made_up = MadeUp(lambda body: messages.MetadataResponse(), nodes=(1, 2))
    made_up.refusing.add(2)
    made_up.leader = 2
    other = request("Metadata", 4, messages.MetadataRequest(), 9, connection=9)
    frames = [*produced(3), other, response(other, messages.MetadataResponse())]
    made_up.send(frames)
    sent = made_up.sender.sent
    assert sent.lost == {("broker2", 2): REFUSED} and sent.answered == 1
    assert [(each.api, each.now, times) for each, (times, _) in sent.differences.items()] == [
        ("Produce", "not sent", 3)
    ]
    assert made_up.sender.now_ns < 15_000 * MS  # it is waited for once


def test_partitions_that_the_cluster_lacks_are_told_once_and_not_waited_for() -> None:
    kind = messages.MetadataResponse

    def metadata(count: int) -> Any:
        numbers = range(count)
        parts = [kind.MetadataResponsePartition(partition_index=n, leader_id=1) for n in numbers]
        return kind(topics=[kind.MetadataResponseTopic(name="orders", partitions=parts)])

    asked = request("Metadata", 4, messages.MetadataRequest(topics=None), 1)
    frames = [asked, response(asked, metadata(3))]
    for number in range(2, 5):
        asked = request("Produce", 8, produce_request({0: batch(1), 2: batch(1)}), number)
        frames += [asked, response(asked, produce_response({0: number, 2: number}))]
        asked = request("Fetch", 4, fetch_request({2: 0}), number + 10, connection=2)
        frames += [asked, response(asked, fetch_response({2: batch(1)}))]
    made_up = MadeUp(
        lambda body: (
            metadata(1) if isinstance(body, messages.MetadataRequest) else produce_response({0: 1})
        )
    )
    made_up.send(frames)
    sent = made_up.sender.sent
    assert [tuple(each) for each in sent.differences] == [
        ("Metadata", "orders partitions", "3", "1")
    ]
    (left_out,) = sent.left_out.items()
    assert left_out == ("partitions that the cluster does not have", 3)  # nothing but them
    assert sent.requests == sent.answered == 4 and made_up.sender.now_ns < 1000 * MS


def test_a_topic_that_the_cluster_lacks_is_told_once_and_not_waited_for() -> None:
    kind, commit = messages.MetadataResponse, messages.OffsetCommitRequest
    named = messages.MetadataRequest.MetadataRequestTopic(name="orders")
    there = kind.MetadataResponseTopic(
        name="orders", partitions=[kind.MetadataResponsePartition(leader_id=1)]
    )
    gone = kind.MetadataResponseTopic(
        name="orders", error_code=codes.UNKNOWN_TOPIC_OR_PARTITION, partitions=[]
    )
    topic = commit.OffsetCommitRequestTopic(
        name="orders", partitions=[commit.OffsetCommitRequestPartition()]
    )
    pairs = [
        ("Metadata", 4, messages.MetadataRequest(topics=[named]), kind(topics=[there])),
        ("Produce", 8, produce_request({0: batch(1)}), produce_response({0: 0})),
        ("Fetch", 4, fetch_request({0: 0}), fetch_response({0: batch(1)})),
        ("OffsetCommit", 2, commit(topics=[topic]), messages.OffsetCommitResponse()),
    ]
    asked = [request(*each[:3], number) for number, each in enumerate(pairs * 3, 1)]
    pairs_of = zip(asked, pairs * 3, strict=True)
    frames = [each for frame, pair in pairs_of for each in (frame, response(frame, pair[3]))]
    made_up = MadeUp(lambda body: kind(topics=[gone]))
    made_up.has_topics = False
    made_up.send(frames)
    sent = made_up.sender.sent
    differs = ("Metadata", "orders", "NONE", "UNKNOWN_TOPIC_OR_PARTITION")
    assert {tuple(each): times for each, (times, _) in sent.differences.items()} == {differs: 3}
    assert sent.left_out == {"partitions that the cluster does not have": 9}
    assert sent.requests == 3 and made_up.sender.now_ns < 1000 * MS


@pytest.mark.parametrize("flags", [0, NO_RESPONSE])
def test_a_client_goes_on_where_a_broker_that_took_no_more_hangs_up(flags: int) -> None:
    frames = produced(3)
    frames[0].flags = flags
    made_up = MadeUp(lambda body: BLOCKS if len(made_up.asked) == 1 else produce_response({0: 2}))
    made_up.send([each for each in frames if not (flags and each is frames[1])])
    assert len(made_up.asked) == 3 and made_up.sender.sent.answered == 2


def test_an_error_that_passes_has_its_time_from_when_it_came() -> None:
    codes_here = iter([codes.NOT_LEADER_OR_FOLLOWER])
    made_up = MadeUp(lambda body: produce_response({0: 1}, next(codes_here, 0)))
    delays = iter([MS, 12_000 * MS])  # to connect, and to answer
    made_up.delay_ns = lambda: next(delays, MS)
    made_up.send(produced(1))
    assert len(made_up.asked) == 2 and not made_up.sender.sent.differences


def test_where_no_broker_is_left_it_ends() -> None:
    made_up = MadeUp(lambda body: NOTHING, nodes=(1, 2))
    made_up.refusing |= {1, 2}
    with pytest.raises(ClusterGone, match=REFUSED):
        made_up.send(produced(1))


@pytest.mark.parametrize(
    ("answer", "why"), [(NOTHING, "no answer in 30"), (b"", "another request")]
)
def test_a_broker_that_does_not_do_its_part_is_given_up(answer: Any, why: str) -> None:
    made_up = MadeUp(lambda body: answer)
    with pytest.raises(ClusterGone, match=f"is given up: 3 times in a row: .*{why}"):
        made_up.send(produced(5))
    assert len(made_up.asked) == 3


def test_a_login_that_ends_is_done_again_when_nothing_is_under_way() -> None:
    made_up = MadeUp(lambda body: produce_response({0: 1}), lifetime_ms=1000)
    made_up.send(produced(6), SendSettings(factor=1.0))
    done = [what for what, link, _ in made_up.log if link.is_recorded]
    assert done.count(Do.LOG_IN) >= 2 and made_up.sender.sent.answered == 6
    assert Do.OPEN not in done[1:]


@given(st.data())
def test_what_a_cluster_refuses_of_a_produce_is_written_once(data) -> None:
    """In the recording and here: the client came again with what was refused, and only with it."""
    partitions = data.draw(st.sets(st.integers(0, 3), min_size=1))
    refusals = st.sampled_from([codes.NOT_LEADER_OR_FOLLOWER, codes.UNKNOWN_TOPIC_OR_PARTITION])
    drawn = st.dictionaries(st.sampled_from(sorted(partitions)), refusals)
    recorded, *here = data.draw(st.lists(drawn, min_size=1, max_size=4))

    def answered(asked: Any, refused: dict[int, int]) -> Any:
        (topic,) = asked.topic_data
        found = produce_response({each.index: 7 for each in topic.partition_data})
        for each in found.responses[0].partition_responses:
            each.error_code = refused.get(each.index, 0)
            if each.error_code:
                each.base_offset = -1
        return found

    frames = []
    for number, (wanted, refused) in enumerate([(partitions, recorded), ({*recorded}, {})], 1):
        if wanted:
            body = produce_request({each: batch(1) for each in sorted(wanted)})
            asked = request("Produce", 8, body, number)
            asked.received_ns = asked.sent_ns = START_NS + number * 500 * MS
            frames += [asked, response(asked, answered(body, refused))]
    written: list[int] = []

    def answer(body: Any) -> Any:
        found = answered(body, here.pop(0) if here else {})
        written.extend(
            each.index for each in found.responses[0].partition_responses if not each.error_code
        )
        return found

    made_up = MadeUp(answer)
    made_up.partitions = 4
    made_up.send(frames)
    assert sorted(written) == sorted(partitions)
    assert not made_up.sender.sent.differences


def test_a_request_is_written_before_the_next_one_is_made() -> None:
    """Else the time that it takes to make them would be in their latencies."""
    frames = conversation([(1, 0, 5), (1, 10, 40), (1, 10, 40), (1, 10, 40)])
    made_up = MadeUp(lambda body: messages.FindCoordinatorResponse())
    wake, writes = made_up.sender.wake, [0]

    def woken(now_ns: int) -> None:
        wake(now_ns)
        writes.append([what for what, *_ in made_up.sender.outputs].count(Do.WRITE))

    made_up.sender.wake = woken
    made_up.send(frames)
    assert max(writes) == 1 and len(made_up.asked) == 4


def test_a_coordinator_that_is_gone_is_waited_for_once() -> None:
    kind, frames = messages.HeartbeatRequest, []
    for number in range(1, 6):
        asked = request("Heartbeat", 4, kind(group_id="g", member_id="m"), number)
        asked.received_ns = asked.sent_ns = START_NS + number * 500 * MS
        frames += [asked, response(asked, messages.HeartbeatResponse())]
    gone = codes.NOT_COORDINATOR
    made_up = MadeUp(lambda body: messages.HeartbeatResponse(error_code=gone))
    made_up.coordinator_error = codes.COORDINATOR_NOT_AVAILABLE
    made_up.send(frames)
    assert [each.now for each in made_up.sender.sent.differences] == ["NOT_COORDINATOR"]
    assert made_up.sender.now_ns < 25_000 * MS


def said(api: str, version: int, ms: tuple[int, int], asked: Any, answered: Any, on: int) -> Any:
    """The frames of a request and its response, which came at these times on this connection."""
    asked_ns, told_ns = (START_NS + each * MS for each in ms)
    frame = request(api, version, asked, on * 1000 + ms[0], on, received_ns=asked_ns)
    frame.sent_ns = asked_ns
    return [frame, response(frame, answered, received_ns=told_ns, sent_ns=told_ns)]


def wrote(ms: tuple[int, int], offset: int, on: int, value: bytes = b"v") -> Any:
    """A Produce of one record."""
    asked = produce_request({0: batch(1, value=value)})
    return said("Produce", 8, ms, asked, produce_response({0: offset}), on)


def read(ms: tuple[int, int], first: int, *values: bytes, on: int = 9, isolation: int = 0) -> Any:
    """A Fetch of records from this offset on, and what it brought."""
    found = (batch(1, offset=at, value=each) for at, each in enumerate(values, first))
    asked = fetch_request({0: first}, isolation_level=isolation)
    return said("Fetch", 4, ms, asked, fetch_response({0: b"".join(found)}), on)


class Partition:
    """A partition in the made-up cluster, in which records come to be at given offsets."""

    def __init__(self, places: dict[bytes, int]) -> None:
        self.log: dict[int, bytes] = {}
        self.fetched: list[int] = []
        """Where Fetches began."""
        self._places = places

    def answer(self, body: Any) -> Any:
        """Answer a Produce, or a Fetch."""
        if isinstance(body, messages.FetchRequest):
            self.fetched.append(first := body.topics[0].partitions[0].fetch_offset)
            found = sorted(each for each in self.log.items() if each[0] >= first)
            return fetch_response({0: b"".join(data for _, data in found)})
        data = body.topic_data[0].partition_data[0].records
        at = next(at for value, at in self._places.items() if value in data)
        self.log[at] = at.to_bytes(8) + data[8:]
        return produce_response({0: at})


def in_order(*exchanges: Any) -> list[Any]:
    """Frames as they came."""
    frames = itertools.chain.from_iterable(exchanges)
    return sorted(frames, key=lambda each: each.received_ns)


def test_a_fetch_that_waits_for_what_is_still_to_be_produced_costs_nothing_meanwhile() -> None:
    frames = in_order(wrote((60_000, 60_010), 0, 1), read((0, 60_020), 0, b"v"))
    made_up = MadeUp(Partition({b"v": 0}).answer)
    wake, wakes = made_up.sender.wake, []

    def woken(now_ns: int) -> None:
        wakes.append(now_ns)
        wake(now_ns)

    made_up.sender.wake = woken
    made_up.send(frames, SendSettings(factor=1.0))
    assert not made_up.sender.sent.differences and len(made_up.asked) == 3
    assert made_up.sender.now_ns > 60_000 * MS and len(wakes) < 200


@pytest.mark.parametrize("ends_ms", [0, 50])
def test_a_fetch_of_what_nobody_produces_waits_for_no_more_than_what_came_before(
    ends_ms: int,
) -> None:
    """What comes behind it is left out, or not there yet."""
    create, created = messages.CreateTopicsRequest(), messages.CreateTopicsResponse()
    left_out = [
        said("CreateTopics", 5, (each, each + 1), create, created, 1)
        for each in ((10,) if ends_ms else (10, 30))
    ]
    partition = Partition({})
    partition.log[0] = batch(1)
    made_up = MadeUp(partition.answer)
    frames = in_order(read((0, 20), 0, b"v"), *left_out)
    made_up.send(frames, SendSettings(factor=1.0), ends_ms * MS)
    assert partition.fetched == [0] and not made_up.sender.sent.differences
    assert 10 * MS < made_up.sender.now_ns < 1000 * MS


def test_a_fetch_goes_back_to_what_is_now_before_what_it_has_brought() -> None:
    """The second record is the first one here, as is known when the third one has come."""
    partition = Partition({b"first": 1, b"second": 0, b"third": 2})
    frames = in_order(
        wrote((0, 10), 0, 1, b"first"),
        wrote((20, 40), 1, 2, b"second"),
        wrote((20, 40), 2, 3, b"third"),
        read((30, 50), 1, b"second", b"third"),
    )

    def answer(body: Any) -> Any:
        told, later = partition.answer(body), Later()
        if 0 not in partition.log or partition.fetched or len(partition.log) < 2:
            return told
        made_up.after(100 * MS, lambda: later.then(told))
        return later

    made_up = MadeUp(answer)
    made_up.send(frames)
    assert partition.fetched[0] == 2 and partition.fetched[-1] == 0
    assert not made_up.sender.sent.differences


def test_records_that_do_not_come_are_waited_for_once() -> None:
    frames = in_order(
        wrote((0, 1), 0, 1, b"lost"),
        *(read((10 + 2 * each, 11 + 2 * each), 0, b"lost", isolation=1) for each in range(20)),
    )
    partition = Partition({b"lost": 0})

    def answer(body: Any) -> Any:
        told = partition.answer(body)
        partition.log.clear()
        return told

    made_up = MadeUp(answer)
    made_up.send(frames)
    ((differs, (times, _)),) = made_up.sender.sent.differences.items()
    assert differs.now == "did not come" and times == 20
    assert made_up.sender.now_ns < 2500 * MS


def test_a_topic_that_was_just_created_is_no_topic_that_the_cluster_lacks() -> None:
    """Its brokers do not tell of it at once."""
    create, created = messages.CreateTopicsRequest, messages.CreateTopicsResponse

    def answer(body: Any) -> Any:
        if isinstance(body, create):
            return created(topics=[created.CreatableTopicResult(name="orders")])
        if not made_up.has_topics:
            made_up.has_topics = True
            return produce_response({0: -1}, codes.UNKNOWN_TOPIC_OR_PARTITION)
        return produce_response({0: 0})

    made_up = MadeUp(answer)
    made_up.has_topics = False
    asked = create(topics=[create.CreatableTopic(name="orders")])
    told = created(topics=[created.CreatableTopicResult(name="orders")])
    frames = in_order(said("CreateTopics", 5, (0, 1), asked, told, 1), wrote((2, 3), 0, 1))
    made_up.send(frames, SendSettings(allow_admin=True))
    assert not made_up.sender.sent.differences and not made_up.sender.sent.left_out
