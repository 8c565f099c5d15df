"""Two recordings of the same app mean the same; of one with a change, that is named, and nothing
else."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings

from kproxy.exchange.exchange import Exchange
from kproxy.look.diff.compare import MEANING, compare
from kproxy.look.diff.lines import lines
from kproxy.look.diff.records import AFTER, BEFORE, UnmatchedRecords
from kproxy.look.lines.meaning import RecordingMeaning
from kproxy.look.report.significance import latency_of, worst
from kproxy.replay import ignore_words
from kproxy.replay.compared import Difference
from kproxy.replay.ignored import Ignored
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange import making
from tests.replay.making import batch, fetch, produce
from tests.replay.test_all_aspects import (
    APPS,
    CHANGES,
    UNREAD,
    Consume,
    Step,
    Value,
    Write,
    changed,
    changed_in,
    recorded,
    run,
    shown,
)
from tests.replay.test_compared import Did
from tests.versions import ALL


def produced(app: list[Step]) -> dict[tuple[int, str], list[Value]]:
    """The values of each key of a partition, in order; what cannot be read is told by partition."""
    found: dict[tuple[int, str], list[Value]] = {}
    for step in app:
        for value in step.values if isinstance(step, Write) else ():
            name = f"[{value[0]}] " if value[2] == UNREAD else value[1]
            found.setdefault((value[0], name), []).append(value)
    return found


def apis(exchanges: Iterable[Exchange]) -> set[tuple[Any, ...]]:
    """What was asked."""
    return {(each.api, each.api_version) for each in exchanges}


def told(found: list[Difference], *aspects: str) -> str:
    """The differences in some aspects."""
    return "\n".join(str(each) for each in found if each.aspect in aspects)


@settings(max_examples=1500 if ALL else 120, deadline=None)
@given(APPS, CHANGES)
@example(
    [*(Write(((0, "k", each),)) for each in f"a{UNREAD}a"), Consume("g", 0, 2, "no")], (3, 0, 8)
).via("a batch that cannot be read is fetched by one of them")
def test_a_change_is_named_and_nothing_else(app: list[Step], change: tuple[int, int, int]) -> None:
    then, again = (recorded(lambda client: run(client, app)) for _ in "12")
    assert compare(then, again) == []
    new = changed(app, change)
    now = recorded(lambda client: run(client, new))
    found = compare(then, now)
    before, after = shown(app), shown(new)
    for aspect in ("commits", "transactions", "groups", "consumed"):
        if before[aspect] == after[aspect]:
            assert not told(found, aspect)
    for aspect in ("commits", "groups"):
        if before[aspect] != after[aspect]:
            assert any(name in told(found, aspect) for name in changed_in(aspect, before, after))
    one, other = produced(app), produced(new)
    differ = {key for key in one.keys() | other.keys() if one.get(key) != other.get(key)}
    if differ:
        assert all(key in told(found, "records", "order") for _, key in differ)
    else:
        assert not told(found, "records", "order")
        assert bool(before["consumed"] != after["consumed"]) == bool(told(found, "consumed"))
    assert bool(apis(then) != apis(now)) == bool(told(found, "apis"))
    others = [each for each in found if "compression" not in each.subject]  # UNREAD is no gzip
    assert not told(others, "requests", "errors", "faults", "latency", "settings")
    if not told(found, *MEANING):
        assert text_of(then) == text_of(now), "git diff shows nothing else"


def text_of(exchanges: Iterable[Exchange]) -> list[str]:
    """The lines that `git diff` compares, in whatever order."""
    meaning = RecordingMeaning()
    for exchange in exchanges:
        meaning.add(exchange)
    return sorted(meaning.lines())


def shown_lines(before: Did, after: Did, *ignore: str) -> list[str]:
    """What `kproxy diff` prints."""
    return [*lines(compare(before.exchanges, after.exchanges, ignore_words.parse(ignore)))]


ORDERS = "records: topic orders, produced by app"


def test_records_differ_by_field() -> None:
    then = Did().wrote('{"id": 1, "at": 5}', '{"id": 2, "at": 6}', "other")
    now = Did().wrote('{"id": 1, "at": 7}', '{"id": 3, "at": 8}', '{"new": 1}', "other")
    assert shown_lines(then, now, "json:at") == [
        ORDERS,
        "  value.id of key 'k'",
        "  - 2",
        "  + 3",
        '  + [0] k → {"new": 1}',
    ]
    assert shown_lines(then, then, "json:at") == []
    assert "  value.at of key 'k'" in shown_lines(then, now)
    many = (Did().wrote(json.dumps({f"f{at}": day for at in range(5)})) for day in (1, 2))
    assert shown_lines(*many)[-2:] == ["  + 2", "  2 more differing parts of key 'k'"]


def test_a_record_of_a_key_in_another_partition_or_order_differs() -> None:
    one = Did().wrote("a", "b")
    assert shown_lines(one, Did().wrote("b", "a"))[:2] == [
        "order: topic orders, produced by app",
        "  key 'k'",
    ]
    there = Did().wrote("a", "b", partition=1)
    assert "  partition of key 'k'" in shown_lines(one, there)
    assert shown_lines(one, there, "partition") == []


def test_what_was_there_before_and_what_consumers_got() -> None:
    found = Did().read("a", "b")
    assert shown_lines(found, Did().read("a", "c"))[0] == "records: topic orders, there before"
    then = Did().wrote("a", "b").read("a", "b")
    assert shown_lines(then, Did().wrote("a", "b").read("a")) == [
        "consumed: topic orders, consumed",
        "  - [0] k → b",
    ]
    changed_too = Did().wrote("a", "c").read("a", "c")
    assert shown_lines(then, changed_too)[0] == ORDERS
    assert "consumed" not in told(compare(then.exchanges, changed_too.exchanges), "consumed")


def test_of_many_differences_the_number_is_told() -> None:
    then, now = Did().wrote(*"abc"), Did().wrote(*map(str, range(100)))
    assert shown_lines(then, now)[-1] == "  … and 80 more: only in the second 80 (--json has all)"
    unmatched = UnmatchedRecords(Ignored(), room_bytes=0)
    for side, did in ((BEFORE, then), (AFTER, now)):
        for record in (each for exchange in did.exchanges for each in exchange.records):
            unmatched.add(side, "app", record)
    assert [*lines([*unmatched.differences({})])] == [
        ORDERS,
        "  - 3 records more, which were not kept",
        "  + 100 records more, which were not kept",
    ]


def test_what_both_have_takes_no_room() -> None:
    unmatched = UnmatchedRecords(Ignored(), room_bytes=1)
    for value, sides in (("a", (BEFORE, AFTER)), ("b", (BEFORE,))):
        for side in sides:
            (exchange,) = Did().wrote(value).exchanges
            unmatched.add(side, "app", *exchange.records)
    assert [*lines([*unmatched.differences({})])] == [ORDERS, "  - [0] k → b"]


def test_recordings_are_read_in_turn() -> None:
    ahead, most = 0, 0

    def read(step: int) -> Iterator[Exchange]:
        nonlocal ahead, most
        for exchange in Did().wrote(*"ab").wrote(*"cd", at=2).wrote(*"ef", at=4).exchanges:
            ahead += step
            most = max(most, abs(ahead))
            yield exchange

    assert not compare(read(1), read(-1)) and most == 1


def test_a_latency_differs_if_it_is_much_and_no_chance() -> None:
    quick, slow = {64: 500, 70: 30}, {200: 500, 210: 30}
    assert worst(latency_of(slow, quick), 2.0) in ("p50", "p95", "p99")
    assert worst(latency_of(quick, slow), 2.0) and not worst(latency_of(quick, slow), 2.0, False)
    assert worst(latency_of(quick, quick), 1.0) is None
    assert worst(latency_of({74: 530}, quick), 2.0) is None, "it is not much"


def test_settings_that_vary_by_chance_are_none() -> None:
    """librdkafka asks for brokers first, or at once for its topic; and it sends a batch that does
    not get smaller as it is."""

    def asked(did: Did, creates: bool, *names: str) -> Did:
        topic = messages.MetadataRequest.MetadataRequestTopic
        request = messages.MetadataRequest(
            topics=[topic(name=name) for name in names], allow_auto_topic_creation=creates
        )
        did.add(12, request, messages.MetadataResponse())
        return did

    then = asked(asked(Did(), False), True, "orders").wrote("a").wrote("b", compression="gzip")
    now = asked(Did(), True, "orders").wrote("a", "b", compression="gzip")
    assert not [
        each for each in compare(then.exchanges, now.exchanges) if "settings" in each.aspect
    ]
    other = asked(Did(), False, "orders").wrote("a", "b", compression="zstd")
    assert shown_lines(now, other) == [
        "settings: client app, Metadata allow_auto_topic_creation",
        "  - True",
        "  + False",
        "settings: client app, Produce compression",
        "  - gzip",
        "  + zstd",
    ]


def test_requests_of_admins_differ_by_field() -> None:
    def made(partitions: int, **configs: str) -> Did:
        did, request = Did(), messages.CreateTopicsRequest
        config = request.CreatableTopicConfig
        topic = request.CreatableTopic(
            name="o" * 99, num_partitions=partitions, replication_factor=1,
            configs=[config(name=name, value=value) for name, value in configs.items()],
        )  # fmt: skip
        did.add(7, request(topics=[topic]), messages.CreateTopicsResponse(topics=[]))
        return did

    assert shown_lines(made(2, a="1"), made(3, a="1", b="2")) == [
        "requests: client app, CreateTopics",
        f"  request.topics.{'o' * 99}.configs.b",
        '  + {"name": "b", "value": "2"}',
        f"  request.topics.{'o' * 99}.num_partitions",
        "  - 2",
        "  + 3",
    ]


# ---- one change in an app that does something of all aspects

APP: dict[str, tuple[Any, Any, str, str]] = {
    "value": (5, 6, "records", "value.amount of key 'k'"),
    "header": (b"x", b"y", "records", "header trace of key 'k'"),
    "more": (0, 1, "records", "{}: one more"),
    "order": ("ab", "ba", "order", "key 'l'"),
    "read": ("a", "ab", "consumed", "l → b"),
    "acknowledged": (True, False, "records", "last word"),
    "refusal": (0, 10, "records", "too large"),
    "fault": ((), (7,), "faults", "7"),
    "produce_version": (9, 8, "apis", "client app, Produce"),
    "acks": (-1, 1, "settings", "client app, Produce acks"),
    "isolation": (0, 1, "settings", "client app, Fetch isolation_level"),
    "error": (0, 29, "errors", "TOPIC_AUTHORIZATION_FAILED"),
    "retention": ("1", "2", "requests", "request.topics.new.configs.retention.ms.value"),
    "answer": (0, 36, "requests", "response.topics.new.error_code"),
    "partitions": (2, 3, "topics", "3 partitions"),
    "subscription": ("orders", "other", "groups", "subscribes to other"),
    "commit": (1, 2, "commits", "group g, orders"),
    "end": ("commit", "abort", "transactions", "transactional id t"),
    "delay_ms": (2, 9, "latency", "p50 ×"),
}
"""What is drawn: a value, another one, the aspect in which that differs, and what is said of it."""


def app_of(found: dict[str, Any]) -> Did:
    """What an app did of which this is drawn."""
    did = Did().metadata(partitions=found["partitions"])
    amount = json.dumps({"id": 1, "amount": found["value"]}).encode()
    written = [Record(0, 1000, b"k", amount, (("trace", found["header"]),))]
    written += [Record(0, 1000, b"k", b"{}: one more")] * found["more"]
    request = produce(encode_batch(written))
    request.acks = found["acks"]
    kind = messages.ProduceResponse
    placed = kind.PartitionProduceResponse(index=0, base_offset=0)
    refused = kind.PartitionProduceResponse(index=0, error_code=found["error"])
    topics = [kind.TopicProduceResponse(name="orders", partition_responses=[placed])]
    did.add(found["produce_version"], request, kind(responses=topics))
    if found["error"]:
        topics = [kind.TopicProduceResponse(name="secret", partition_responses=[refused])]
        asked = produce(encode_batch(written), topic="secret")
        asked.acks = found["acks"]
        did.add(found["produce_version"], asked, kind(responses=topics))
    polled = fetch({0: 9})
    polled.isolation_level = found["isolation"]
    did.add(11, polled, messages.FetchResponse())
    create = messages.CreateTopicsRequest
    config = create.CreatableTopicConfig(name="retention.ms", value=found["retention"])
    new = create.CreatableTopic(name="new", num_partitions=1, configs=[config])
    told = messages.CreateTopicsResponse
    made = told.CreatableTopicResult(name="new", error_code=found["answer"], num_partitions=1)
    did.add(5, create(topics=[new]), told(topics=[made]))
    did.wrote(*found["order"], at=10, key=b"l").read(*found["read"], at=10, key=b"l")
    did.produced(batch("too large", key=b"m"), 5, 1, error_code=found["refusal"])
    did.produced(batch("last word", key=b"m"), 7, 1)
    if not found["acknowledged"]:
        did.entries[-1] = making.unanswered(did.entries[-2])
    did.joined("h", found["subscription"]).committed("g", 9 + found["commit"])
    did.began("t").committed("in", 10, within="t").ended("t", found["end"])
    for second in range(60):
        did.number = 100_000 + second * 1000
        request = messages.MetadataRequest(topics=[])
        asked = making.request("Metadata", 1, request, did.number, fault_ids=found["fault"])
        at_ns = asked.sent_ns + int(found["delay_ms"] * (1 + second % 5 / 9) * 1e6)
        did.entries += [
            asked,
            making.response(asked, messages.MetadataResponse(), received_ns=at_ns),
        ]
    return did


FOLLOWS = {
    "more": {"commits"}, "end": {"commits"}, "answer": {"errors"}, "refusal": {"errors"},
}  # fmt: skip
"""What else differs where something does."""


@pytest.mark.parametrize("seed", range(20 if ALL else 2))
@pytest.mark.parametrize("changed", APP)
def test_what_changed_in_any_aspect_is_named_alone(changed: str, seed: int) -> None:
    drawn = {name: Random(f"{seed} {name}").choice(each[:2]) for name, each in APP.items()}
    one, other, aspect, said = APP[changed]
    before, after = ({**drawn, changed: each} for each in ((one, other), (other, one))[seed % 2])
    found = compare(app_of(before).exchanges, app_of(after).exchanges)
    assert {each.aspect for each in found} == {aspect} | FOLLOWS.get(changed, set())
    assert said in str(found)
    assert not compare(app_of(after).exchanges, app_of(after).exchanges)
