"""What a replay compares besides single records: which changes are differences, and how they are
told."""

from __future__ import annotations

from typing import Any

import pytest

from kproxy.history.behaviour import Behaviour
from kproxy.history.producers import produced
from kproxy.look.lines.meaning import RecordingMeaning
from kproxy.replay import ignore_words
from kproxy.replay.compared import ASPECTS, RECORDS, Compared, Difference, differences
from kproxy.replay.settings import Expect
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange import making
from tests.replay.making import Recorded, batch, fetch, produce

UUIDS = [f"{number}a1b2c3d-1111-4222-8333-444455556666" for number in range(4)]


class Did(Recorded):
    """What clients did, in the words of a test."""

    def wrote(self, *values: str | None, at: int = 0, key: bytes | None = b"k", **more: Any) -> Did:
        """Produced a batch, and got the offset of its first record."""
        partition = more.pop("partition", 0)
        self.produced(batch(*values, key=key, **more), at, partition)
        return self

    def wrote_in(self, name: str, *values: str, at: int, code: int = 0, sequence: int = 0) -> Did:
        """Produced a batch in a transaction."""
        more = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        request = produce(batch(*values, transactional=True, **more))
        request.transactional_id = name
        kind = messages.ProduceResponse
        placed = kind.PartitionProduceResponse(index=0, base_offset=at, error_code=code)
        topic = kind.TopicProduceResponse(name="orders", partition_responses=[placed])
        self.add(9, request, kind(responses=[topic]))
        return self

    def read(self, *values: str, at: int = 0, key: bytes | None = b"k") -> Did:
        """Fetched records from an offset on."""
        self.fetched(batch(*values, base_offset=at, key=key), at)
        return self

    def committed(
        self, group: str, offset: int, partition: int = 0, within: str = "", code: int = 0
    ) -> Did:
        """Committed an offset, by itself or in a transaction."""
        api = "TxnOffsetCommit" if within else "OffsetCommit"
        request, response = (getattr(messages, f"{api}{side}") for side in ("Request", "Response"))
        place = getattr(request, f"{api}RequestPartition")
        place = place(partition_index=partition, committed_offset=offset)
        topic = getattr(request, f"{api}RequestTopic")(name="orders", partitions=[place])
        done = getattr(response, f"{api}ResponsePartition")
        done = done(partition_index=partition, error_code=code)
        answer = getattr(response, f"{api}ResponseTopic")(name="orders", partitions=[done])
        more = {"transactional_id": within, "producer_id": 7} if within else {}
        asked = request(group_id=group, topics=[topic], **more)
        self.add(3 if within else 8, asked, response(topics=[answer]))
        return self

    def ended(self, name: str, how: str = "commit", version: int = 3, code: int = 0) -> Did:
        """Ended a transaction."""
        request = messages.EndTxnRequest(
            transactional_id=name, producer_id=7, committed=how == "commit"
        )
        more = {"producer_id": 7, "producer_epoch": 1} if version >= 5 else {}
        self.add(version, request, messages.EndTxnResponse(error_code=code, **more))
        return self

    def lost_end(self, name: str, how: str = "commit") -> Did:
        """Wanted to end a transaction, and got no answer."""
        self.ended(name, how)
        *self.entries, asked, _ = self.entries
        self.entries += [asked, making.unanswered(asked)]
        return self

    def began(self, name: str) -> Did:
        """Got a producer id."""
        request = messages.InitProducerIdRequest(transactional_id=name)
        self.add(4, request, messages.InitProducerIdResponse(producer_id=7))
        return self

    def added_partitions(self, name: str) -> Did:
        """Named a partition of a transaction, as producers do before KIP-890."""
        request, response = messages.AddPartitionsToTxnRequest, messages.AddPartitionsToTxnResponse
        topic = request.AddPartitionsToTxnTopic(name="orders", partitions=[0])
        done = response.AddPartitionsToTxnPartitionResult(partition_index=0)
        answer = response.AddPartitionsToTxnTopicResult(name="orders", results_by_partition=[done])
        more: Any = {"v3_and_below_transactional_id": name, "v3_and_below_topics": [topic]}
        self.add(3, request(**more), response(results_by_topic_v3_and_below=[answer]))
        return self

    def beat(self, group: str, *topics: str, code: int = 0, regex: str | None = None) -> Did:
        """Sent a heartbeat of KIP-848."""
        request = messages.ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id="m",
            subscribed_topic_names=list(topics) or None,
            subscribed_topic_regex=regex,
        )
        self.add(1, request, messages.ConsumerGroupHeartbeatResponse(error_code=code))
        return self

    def joined(self, group: str, topic: str = "orders", code: int = 0, **changes: Any) -> Did:
        """Joined a classic group."""
        request = messages.JoinGroupRequest
        data = b"\0\0\0\0\0\1" + len(topic).to_bytes(2, "big") + topic.encode() + b"\0\0\0\0"
        protocol = request.JoinGroupRequestProtocol(name="range", metadata=data)
        asked = request(group_id=group, protocol_type="consumer", protocols=[protocol])
        self.add(9, asked, messages.JoinGroupResponse(error_code=code), **changes)
        return self

    def invoiced(self, value: str, at: int = 0) -> Did:
        """Produced to another topic."""
        kind = messages.ProduceResponse
        placed = kind.PartitionProduceResponse(index=0, base_offset=at)
        topic = kind.TopicProduceResponse(name="invoices", partition_responses=[placed])
        self.add(9, produce(batch(value), topic="invoices"), kind(responses=[topic]))
        self.number += 3  # what comes next comes after the response
        return self

    def deleted_groups(self, *groups: str) -> Did:
        """Deleted groups."""
        response = messages.DeleteGroupsResponse
        results = [response.DeletableGroupResult(group_id=each) for each in groups]
        request = messages.DeleteGroupsRequest(groups_names=list(groups))
        self.add(2, request, response(results=results))
        return self

    def deleted_topic(self) -> Did:
        """Deleted the topic."""
        request, response = messages.DeleteTopicsRequest, messages.DeleteTopicsResponse
        result = response.DeletableTopicResult(name="orders")
        self.add(4, request(topic_names=["orders"]), response(responses=[result]))
        return self


def told(now: Recorded, then: Recorded, *words: str) -> list[str]:
    """The differences; a ? stands before what is missing."""
    behaviours = [Behaviour(), Behaviour()]
    for behaviour, was in zip(behaviours, (now, then), strict=True):
        for exchange in was.exchanges:
            behaviour.add(exchange)
    found = differences(*behaviours, ignore_words.parse(words))
    return [f"{'?' * each.missing}{each.aspect}: {each.text}" for each in found]


def all_of_it() -> Did:
    """All aspects of behaviour."""
    did = Did().wrote("a", "b").read("a", "b").committed("g", 2).joined("g")
    return did.wrote_in("t", "c", at=2).committed("g", 3, within="t").ended("t")


def test_what_is_not_repeated_at_all_is_missing() -> None:
    assert told(Did(), all_of_it()) == [
        "?commits: group g, orders[0]: not repeated (recorded: committed after 3 records)",
        "?transactions: transactional id t: not repeated (recorded: commit with offsets of g)",
        (
            "?consumed: topic orders: 2 records not given out, but in the recording; "
            "the first: key 'k', 'a'"
        ),
        "?groups: group g: not repeated (recorded: classic, of app, subscribes to orders)",
        "?isolation: topic orders, client app: not repeated (recorded: reads uncommitted records)",
    ]


def two(first: str, second: str) -> Did:
    return (
        Did()
        .wrote_in("t", "a", at=0)
        .ended("t", first)
        .wrote_in("t", "b", at=2, sequence=1)
        .ended("t", second)
    )


def commits_after(count: int) -> Did:
    return Did().wrote("a", "b", "c").committed("g", count)


LONG = "x" * 100


@pytest.mark.parametrize(
    ("now", "then", "line"),
    [
        (Did().wrote("b", "a"), Did().wrote("a", "b"),
         "order: orders, key 'k': number 1: 'b' (recorded: 'a')"),
        (Did().wrote(LONG + "2").wrote(LONG + "1", at=1), Did().wrote(LONG + "1", LONG + "2"),
         f"order: orders, key 'k': number 1: …{'x' * 20}2' (recorded: …{'x' * 20}1')"),
        (commits_after(1), commits_after(2),
         ("commits: group g, orders[0]: committed after 1 record "
         "(recorded: committed after 2 records)")),
        (commits_after(0), commits_after(1),
         "?commits: group g, orders[0]: not repeated (recorded: committed after 1 record)"),
        (commits_after(-1), commits_after(1),
         "?commits: group g, orders[0]: not repeated (recorded: committed after 1 record)"),
        (commits_after(1), commits_after(0),
         "commits: group g, orders[0]: committed after 1 record (recorded: none)"),
        (two("commit", "abort"), two("commit", "commit"),
         "transactions: transactional id t: number 2: abort (recorded: none)"),
        (Did().wrote_in("t", "a", at=0).ended("t"), two("commit", "abort"),
         "?transactions: transactional id t: number 2: none (recorded: abort)"),
        (two("commit", "abort"), Did().wrote_in("t", "a", at=0).ended("t"),
         "transactions: transactional id t: number 2: abort (recorded: none)"),
        (Did().wrote_in("t", "a", at=0), Did().wrote_in("t", "a", at=0).ended("t"),
         "transactions: transactional id t: open (recorded: commit)"),
        (Did().read("a"), Did().read("a", "b"),
         ("?consumed: topic orders: 1 record not given out, but in the recording; "
         "the first: key 'k', 'b'")),
        (Did().read("a", "b"), Did().read("a"),
         ("consumed: topic orders: 1 record given out, but not in the recording; "
         "the first: key 'k', 'b'")),
        (Did().joined("g", "other"), Did().joined("g"),
         ("groups: group g: classic, of app, subscribes to other "
         "(recorded: classic, of app, subscribes to orders)")),
        (Did().beat("g", "orders"), Did().joined("g"),
         ("groups: group g: consumer, of app, subscribes to orders "
         "(recorded: classic, of app, subscribes to orders)")),
    ],
)  # fmt: skip
def test_each_change_is_told_in_a_line(now: Did, then: Did, line: str) -> None:
    assert told(now, then) == [line]


@pytest.mark.parametrize(
    ("now", "then"),
    [
        pytest.param(Did().committed("g", 9), Did(), id="a commit where no records are known"),
        pytest.param(
            Did().wrote("a").committed("g", 1, code=codes.ILLEGAL_GENERATION),
            Did().wrote("a"),
            id="a commit that was refused",
        ),
        pytest.param(
            Did().committed("g", 1, within="t", code=codes.ILLEGAL_GENERATION),
            Did(),
            id="a commit in a transaction that was refused",
        ),
        pytest.param(
            Did().wrote("a").committed("g", 1, within="t").ended("t", "abort"),
            Did().wrote("a").wrote_in("t", "x", at=1).committed("g", 0, within="t")
            .ended("t", "abort"),
            id="offsets that were aborted",
        ),
        pytest.param(
            Did().wrote("a").committed("g", 1).deleted_groups("g"), Did().wrote("a"), id="no group"
        ),
        pytest.param(
            Did().wrote_in("t", "a", at=0).ended("t", code=codes.CONCURRENT_TRANSACTIONS)
            .ended("t"),
            Did().wrote_in("t", "a", at=0).ended("t"),
            id="an end that was refused",
        ),
        pytest.param(
            Did().wrote_in("t", "a", at=0).ended("t", version=5).ended("t", version=5),
            Did().began("t").added_partitions("t").wrote_in("t", "a", at=0).ended("t"),
            id="KIP-890",
        ),
        pytest.param(
            Did().wrote_in("t", "a", at=0).began("t"),
            Did().wrote_in("t", "a", at=0).ended("t", "abort").began("t"),
            id="the next producer aborts",
        ),
        pytest.param(
            Did().wrote_in("t", "a", at=0).lost_end("t", "abort").began("t"),
            Did().wrote_in("t", "a", at=0).ended("t", "abort").began("t"),
            id="the next producer aborts, at the latest",
        ),
        pytest.param(
            Did().joined("g", code=codes.MEMBER_ID_REQUIRED).joined("g"),
            Did().joined("g"),
            id="a join in two steps",
        ),
        pytest.param(
            Did().beat("g", code=codes.GROUP_AUTHORIZATION_FAILED), Did(), id="a refused beat"
        ),
    ],
)  # fmt: skip
def test_what_nobody_sees_is_no_difference(now: Did, then: Did) -> None:
    assert told(now, then) == []


def test_offsets_count_when_their_transaction_is_committed() -> None:
    now = Did().wrote("a", "b").committed("g", 1).committed("g", 2, within="t")
    then = Did().wrote("a", "b").committed("g", 1).committed("g", 2, within="t").ended("t")
    assert told(now, then) == [
        (
            "commits: group g, orders[0]: committed after 1 record "
            "(recorded: committed after 2 records)"
        ),
        (
            "transactions: transactional id t: open with offsets of g "
            "(recorded: commit with offsets of g)"
        ),
    ]


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_an_end_that_is_not_known_may_be_any(how: str) -> None:
    unknown = Did().wrote_in("t", "a", at=0).lost_end("t").began("t")
    known = Did().wrote_in("t", "a", at=0).ended("t", how)
    assert told(unknown, known) == told(known, unknown) == []
    unknown.wrote_in("t", "b", at=2, sequence=1).ended("t")
    known.wrote_in("t", "b", at=2, sequence=1).ended("t", "abort")
    line = "transactions: transactional id t: number 2: abort (recorded: commit)"
    assert [each for each in told(known, unknown) if each.startswith("transactions")] == [line]
    text = RecordingMeaning()
    for exchange in unknown.exchanges:
        text.add(exchange)
    assert "transactions of t: unknown, commit" in text.lines()
    offsets = Did().wrote_in("t", "a", at=0).committed("g", 1, within="t").lost_end("t")
    assert "unknown with offsets of g" in told(offsets, Did().wrote_in("t", "a", at=0))[0]


def test_a_pattern_is_a_subscription() -> None:
    (line,) = told(Did().beat("g", regex="o.*"), Did().beat("g", regex="p.*"))
    assert line.endswith("subscribes to all like o.* "
                         "(recorded: consumer, of app, subscribes to all like p.*)")  # fmt: skip


def test_groups_of_random_names_are_compared_in_any_order() -> None:
    def groups(*committed: tuple[str, int]) -> Did:
        did = Did().wrote("a", "b", "c")
        for name, offset in committed:
            did.committed(f"app-{name}", offset).joined(f"app-{name}", f"topic{offset}")
        return did

    then = groups((UUIDS[0], 1), (UUIDS[1], 2))
    assert told(groups((UUIDS[2], 2), (UUIDS[3], 1)), then) == []
    subject = "group app-*"
    assert told(groups((UUIDS[2], 3), (UUIDS[3], 1)), then) == [
        (
            f"commits: {subject}, orders[0]: committed after 3 records "
            "(recorded: committed after 2 records)"
        ),
        (
            f"groups: {subject}: classic, of app, subscribes to topic3 "
            "(recorded: classic, of app, subscribes to topic2)"
        ),
    ]
    assert [line[:16] for line in told(groups((UUIDS[2], 2)), then)] == [
        "?commits: group ",
        "?groups: group a",
    ]


def test_transactional_ids_of_random_names_are_compared_in_any_order() -> None:
    def ended(ids: list[str], *how: str) -> Did:
        did = Did()
        for number, name in enumerate(ids):
            did.wrote_in(f"t-{name}", f"{number}", at=number, sequence=number)
        for name, end in zip(ids, how, strict=True):
            did.ended(f"t-{name}", end)
        return did

    then = ended(UUIDS[:2], "commit", "abort")
    assert told(ended(UUIDS[2:], "abort", "commit"), then) == []
    assert told(ended(UUIDS[2:], "abort", "abort"), then) == [
        "transactions: transactional id t-*: abort (recorded: commit)"
    ]


def test_keys_that_begin_alike_are_keys_of_their_own() -> None:
    one, other = (b"x" * 100 + end for end in (b"1", b"2"))
    now = Did().wrote("b", key=other).wrote("a", key=one, at=1)
    assert told(now, Did().wrote("a", key=one).wrote("b", key=other, at=1)) == []


def test_a_topic_that_was_deleted_begins_again() -> None:
    def did(*values: str) -> Did:
        found = Did().wrote("a", "b").read("a", "b").committed("g", 2).deleted_topic()
        return found.wrote(*values).read(*values)

    then = did("c", "d")
    assert told(did("c", "d"), then) == []
    assert told(did("d", "c"), then) == ["order: orders, key 'k': number 3: 'd' (recorded: 'c')"]
    assert told(did("c"), then)[0].startswith("?consumed: topic orders: 1 record not given out")
    assert not any("commits" in line for line in told(Did(), then)), "its offsets went with it"
    later = Did().wrote("a", "b").committed("g", 2).deleted_topic().wrote("c", "d").read("c", "d")
    assert told(later, then) == [
        (
            "?consumed: topic orders: 2 records not given out, but in the recording; "
            "the first: key 'k', 'a'"
        )
    ]


def test_a_replay_gives_batches_of_another_size_the_offset_of_their_first_record() -> None:
    now = Did().wrote("b", "a", at=1).wrote("c", at=2)
    assert [each.value for each in produced(now.exchanges)] == [b"b", b"a", b"c"]
    assert told(now, Did().wrote("a", "b", "c")) == [
        "order: orders, key 'k': number 1: 'b' (recorded: 'a')"
    ]


def test_the_partition_of_a_record_without_a_key_may_be_any() -> None:
    def did(partition: int, key: bytes | None) -> Did:
        found = Did()
        found.metadata(partitions=2)
        found.wrote("a", partition=partition, key=key)
        return found.committed("g", 1, partition)

    assert told(did(0, None), did(1, None)) == []
    assert told(did(0, b"k"), did(1, b"k")) == [
        "?commits: group g, orders[1]: not repeated (recorded: committed after 1 record)",
        "commits: group g, orders[0]: committed after 1 record (recorded: none)",
    ]
    assert told(did(0, b"k"), did(1, b"k"), "partition") == []


def test_ignored_parts_of_values_are_not_compared() -> None:
    def did(number: int) -> Did:
        value, other = f'{{"id": {number}, "n": "a"}}', '{"id": 3, "n": "b"}'
        values = (value, other) if number < 3 else (other, value)
        return Did().wrote(*values).read(*values)

    assert told(did(1), did(2), "json:id") == []
    assert [line[:9] for line in told(did(1), did(2))] == ["?consumed", "consumed:"]
    assert [line[:6] for line in told(did(1), did(3), "json:id")] == ["order:"]


def test_ignored_headers_are_not_compared() -> None:
    def did(trace: bytes) -> Did:
        data = encode_batch([Record(0, 1000, None, b"a", (("trace", trace),))], base_offset=0)
        found = Did()
        found.fetched(data)
        return found

    assert len(told(did(b"1"), did(b"2"))) == 2
    assert told(did(b"1"), did(b"2"), "header:trace") == []


@pytest.mark.parametrize("aspect", [each for each in ASPECTS if each != RECORDS])
@pytest.mark.parametrize("expect", Expect)
@pytest.mark.parametrize("compared", [True, False])
def test_what_fails_is_chosen(aspect: str, expect: Expect, compared: bool) -> None:
    found = Compared(frozenset({aspect}) if compared else frozenset(), expect)
    assert found.fails(Difference(aspect, "it", "this", "that")) == compared
    missing = {Expect.ALL: True, Expect.PRODUCED: compared, Expect.NONE: False}[expect]
    assert found.fails(Difference(aspect, "it", "this", None)) == missing


def test_a_commit_past_the_end_is_told() -> None:
    then, now = (Did().read("a", "b").committed("g", offset) for offset in (2, 3))
    line = "commits: group g, orders[0]: committed after 2 records and 1 offset past the last one"
    assert told(now, then) == [f"{line} (recorded: committed after 2 records)"]
    marked = [Did().read("a", "b").committed("g", offset) for offset in (2, 3)]
    for each in marked:  # the third offset may be the marker's
        each.added_partitions("t").ended("t")
    assert told(*marked) == []


def test_a_commit_before_what_was_made_of_it_is_acknowledged_is_told() -> None:
    def did(work: str) -> Did:
        """c: commit all that was read; i: produce an invoice. The input is there before."""
        found = Did().wrote("a", "b").read("a", "b")
        for number, step in enumerate(work):
            found = found.committed("g", work[: number + 1].count("c")) if step == "c" else found
            found = found.invoiced(str(work[:number].count("i")), number) if step == "i" else found
        return found

    line = "acknowledged: group g, invoices: committed before the last record was acknowledged"
    line += " (recorded: committed after the last record was acknowledged)"
    assert told(did("cici"), did("icic")) == told(did("cici"), did("iicc")) == [line]
    assert told(did("icic"), did("iicc")) == told(did("iicc"), did("icic")) == []
    assert told(did("icic"), did("cici")) == [], "that is as good"


def test_a_reader_of_uncommitted_records_is_told() -> None:
    def read(level: int) -> Did:
        found = Did().read("a")
        found.entries[-2] = making.request(
            "Fetch", 11, fetch({0: 0}, isolation_level=level), found.number
        )
        return found

    line = "isolation: topic orders, client app: reads uncommitted records"
    assert told(read(0), read(1)) == [f"{line} (recorded: reads committed records)"]
    assert told(read(0), read(1), "isolation") == told(read(1), read(1)) == []


def test_each_aspect_may_be_ignored_as_a_whole() -> None:
    words = [each for each in ASPECTS if each != RECORDS]
    assert ignore_words.parse(words).aspects == {*words}
    assert told(Did(), all_of_it(), *words) == []
