"""What was committed in transactions has to be in some again, with the offsets of the same groups,
however they are cut; without `--compare`.

::

    an app, drawn ─▶ with transactions, cut somehow ─▶ its recording ─┐
         └─ cut otherwise: green; changed in one thing: red ──────────┴─▶ replay
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from kproxy.exchange.exchange import Exchange
from kproxy.replay.ignore_words import parse
from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire.protocol import codes, messages, records
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.replay.making import Playing, Recorded, batch, produce
from tests.replay.running import CAUSAL, App, Live, findings, loaded_of
from tests.replay.test_all_aspects import Consume, batch_of, commit, end, initialized
from tests.replay.test_compared import UUIDS, Did
from tests.versions import ALL

PARTITIONS = 2
Value = tuple[int, str, str]
"""Partition, key, value."""


@attrs.frozen
class Work:
    """An input that a consumer of a group has read, and what the app makes of it."""

    group: str
    outputs: tuple[Value, ...]


@attrs.frozen
class How:
    """How an app works: what varies, and what may be changed in it."""

    seed: int = 0
    """How transactions and batches are cut, which are aborted and tried again, and their ids."""
    transaction: str = "commit"
    """"commit", "abort", "open", or "none"."""
    offsets: str = "in it"
    """"in it", "outside", "none", or "not in one": in all but one."""
    groups: str = ""
    """The end of the names of groups."""
    left_out: int | None = None
    """The work that is done with a plain producer and a plain commit, or without offsets."""


def drawn(seed: int) -> list[Work]:
    """An app: it reads in one or two groups, and writes equal records more than once."""
    of = random.Random(seed)
    groups = ["g", "h"][: of.randint(1, 2)]
    keys = {"k": 0, "l": 1}

    def value() -> Value:
        key = of.choice("kl")
        return keys[key], key, of.choice("ab")

    works = [
        Work(of.choice(groups), tuple(value() for _ in range(of.randint(0, 3))))
        for _ in range(of.randint(1, 6))
    ]
    last = [Work(group, (value(),) if of.random() < 0.7 else ()) for group in groups]
    return [*works, Work(groups[0], (value(),)), *last]


def run(client: App, works: list[Work], how: How) -> None:
    """Do the work, in transactions."""
    of = random.Random(how.seed)
    name, is_new = f"t{how.seed}", of.random() < 0.5
    client.ask(9, produce(batch_of([(0, "k", "a")])))  # one that is in no transaction
    position = 0
    while position < len(works):
        size = of.randint(1, len(works))
        if how.left_out is not None and position <= how.left_out < position + size:
            size = max(1, how.left_out - position)
        part, first = works[position : position + size], position
        position += size
        now = how
        if how.offsets == "not in one":
            now = attrs.evolve(how, offsets="none" if first == how.left_out else "in it")
        plain = how.transaction == "none" or (first == how.left_out and now is how)
        if plain:
            for one in part:
                write(client, of, one.outputs, how, None, "", False)
        else:
            while of.random() < 0.2:  # tried once more
                transact(client, of, part, now, name, is_new, of.choice(["abort", "open"]))
            transact(client, of, part, now, name, is_new, how.transaction)
        if plain or how.offsets == "outside":
            for group in {one.group for one in part}:
                commit_of(client, "OffsetCommit", 8, group + how.groups, position)


def transact(
    client: App, of: random.Random, part: list[Work], how: How, name: str, is_new: bool, ending: str
) -> None:
    """Work in a transaction; with `is_new` as of KIP-890, which names no partitions."""
    who = initialized(client, name)
    split = of.randint(0, len(part))  # more of it than one Produce, and in any order of the APIs
    write(client, of, [v for one in part[:split] for v in one.outputs], how, who, name, is_new)
    if how.offsets == "in it":
        for group in {one.group for one in part}:
            more = {"transactional_id": name, **who}
            version = 5 if is_new else 3
            commit_of(client, "TxnOffsetCommit", version, group + how.groups, split, **more)
    rest = [v for one in part[split:] for v in one.outputs]
    write(client, of, rest, how, who, name, is_new, first=1000)
    if ending != "open" and (how.offsets == "in it" or any(one.outputs for one in part)):
        end(client, name, who, ending)


def write(
    client: App,
    of: random.Random,
    values: Any,
    how: How,
    who: dict[str, int] | None,
    name: str,
    is_new: bool,
    first: int = 0,
) -> None:
    """Produce values, in batches of any size."""
    left = list(values)
    while left:
        size = of.randint(1, len(left))
        batch = [one for one in left[:size] if one[0] == left[0][0]]
        for one in batch:
            left.remove(one)
        more: dict[str, Any] = {}
        if who is not None:
            if not is_new:
                added(client, name, who, batch[0][0])
            more = {**who, "base_sequence": first + 10 * len(left), "transactional": True}
        request = produce(batch_of(batch, **more), batch[0][0])
        request.transactional_id = name if who is not None else None
        client.ask(9, request)


def added(client: App, name: str, who: dict[str, int], partition: int) -> None:
    """Name a partition of a transaction."""
    request = messages.AddPartitionsToTxnRequest
    topic = request.AddPartitionsToTxnTopic(name="orders", partitions=[partition])
    body = request(
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=who["producer_id"],
        v3_and_below_producer_epoch=who["producer_epoch"],
        v3_and_below_topics=[topic],
    )
    answer = client.ask(3, body)
    assert not answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code


def commit_of(client: App, api: str, version: int, group: str, offset: int, **more: Any) -> None:
    """Commit an offset of a group."""
    commit(client, api, version, Consume(group, 0, 0), offset, **more)


def recorded(works: list[Work], how: How) -> list[Exchange]:
    """The recording of an app."""
    live = Live(Recorded().metadata("orders", PARTITIONS).loaded)
    live.app.ask(12, messages.MetadataRequest(topics=None))
    run(live.app, works, how)
    return [each for each in live.recorded() if isinstance(each, Exchange)]


def replayed(then: list[Exchange], works: list[Work], how: How, settings: Any) -> list[str]:
    """What a replay finds by default."""
    live = Live(loaded_of(then), settings=settings)
    run(live.app, works, how)
    return findings(live)


CHANGES: dict[str, Callable[[How, random.Random, list[Work]], How]] = {
    "no transaction": lambda how, of, works: attrs.evolve(how, transaction="none"),
    "no transaction for one": lambda how, of, works: attrs.evolve(
        how, left_out=of.choice([at for at, one in enumerate(works) if one.outputs])
    ),
    "offsets outside of it": lambda how, of, works: attrs.evolve(how, offsets="outside"),
    "no offsets": lambda how, of, works: attrs.evolve(how, offsets="none"),
    "aborted": lambda how, of, works: attrs.evolve(how, transaction="abort"),
    "left open": lambda how, of, works: attrs.evolve(how, transaction="open"),
    "no offsets for one": lambda how, of, works: attrs.evolve(
        how,
        offsets="not in one",
        left_out=of.choice([at for at, one in enumerate(works) if one.outputs]),
    ),
    "another group": lambda how, of, works: attrs.evolve(how, groups="2"),
}
SETTINGS = [
    ReplaySettings(visible=visible, ignored=parse(words), fails_fast=True)
    for visible in Visible
    for words in ([], ["partition"])
]


@pytest.mark.parametrize("seed", range(1000 if ALL else 12))
def test_an_app_is_green_however_it_is_cut_and_red_if_it_is_changed(seed: int) -> None:
    of = random.Random(seed)
    works, how = drawn(seed), How(of.randrange(1000))
    then = recorded(works, how)
    settings = of.choice(SETTINGS)
    for _ in range(2):
        other = How(of.randrange(1000))
        assert replayed(then, works, other, settings) == [], other
    for name, change in CHANGES.items():
        now = change(How(of.randrange(1000)), of, works)
        assert replayed(then, works, now, settings), (name, now)


# ---- what is said


def did(*values: str, offsets: str = "t", end: str = "commit", group: str = "g") -> Did:
    """A transaction with records and offsets of a group; `offsets` are in it if it is "t"."""
    found = Did().wrote_in("t", *values, at=0) if values else Did()
    if offsets != "none":
        found.committed(group, 1, within=offsets)
    return found.ended("t", end)


def told(then: Did, now: Did, settings: ReplaySettings = CAUSAL) -> list[str]:
    """What a replay of `then` finds in `now`."""
    broker = Playing(then.loaded, settings)
    client = broker.connect()
    name = messages.InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=60_000)
    who = client.ask(4, name)
    for exchange in now.exchanges:
        body = exchange.request
        if isinstance(body, messages.ProduceRequest) and body.transactional_id:
            (one,) = body.topic_data[0].partition_data
            (found,) = records.batches(bytes(one.records or b""))
            more = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
            again = [attrs.evolve(each, offset=at) for at, each in enumerate(found.records)]
            more["base_sequence"] = found.base_sequence
            one.records = encode_batch(again, transactional=True, **more)
        elif isinstance(body, messages.EndTxnRequest | messages.TxnOffsetCommitRequest):
            body.producer_id, body.producer_epoch = who.producer_id, who.producer_epoch
        client.ask(exchange.api_version or 0, body)
    broker.end()
    return [f"{each.kind}: {each.text}" for each in broker.report.findings]


RECORDS = "differs: orders: 3 records were produced outside a transaction; recorded in one"
OFFSETS = "differs: group g: its offsets were committed outside a transaction; recorded in one"
NO_OFFSETS = (
    "not produced: group g: its offsets were not committed in a transaction; recorded in one"
)
THEN = did("a", "b", "c")


@pytest.mark.parametrize(
    ("now", "found"),
    [
        (did("a", "b", "c"), []),
        (Did().wrote("a", "b", "c").committed("g", 3), [RECORDS, OFFSETS]),
        (Did().wrote("a", "b", "c").committed("g", 1, within="t").ended("t"), [RECORDS]),
        (Did().wrote("a", "b", "c"), [RECORDS, NO_OFFSETS]),
        (did("a", "b", "c", offsets=""), [OFFSETS]),
        (did("a", "b", "c", offsets="none"), [NO_OFFSETS]),
        (did("a", "b", "c", group="h"), [NO_OFFSETS]),
        (did("a", "b", "c").committed("g", 3), [OFFSETS]),
    ],
)
def test_it_is_said_once_in_a_sentence(now: Did, found: list[str]) -> None:
    assert told(THEN, now) == found


def test_of_one_record_and_of_equal_ones_it_is_said_how_many() -> None:
    one = "differs: orders: 1 record was produced outside a transaction; recorded in one"
    assert told(did("a"), Did().wrote("a"))[0] == one
    both = did("a", "b").wrote("a", at=3)  # "a" is recorded in a transaction, and outside
    assert told(both, did("b", "a").wrote("a")) == []
    assert told(both, Did().wrote("a").wrote_in("t", "a", "b", at=1).committed("g", 1, within="t")
                .ended("t")) == []  # fmt: skip
    assert told(both, did("b").wrote("a", "a")) == [one]


def test_the_offsets_of_a_group_go_with_each_record() -> None:
    def twice(first: bool, second: bool) -> Did:
        found = Did().wrote_in("t", "a", at=0)
        found = (found.committed("g", 1, within="t") if first else found).ended("t")
        found.wrote_in("t", "b", at=2, sequence=1)
        return (found.committed("g", 2, within="t") if second else found).ended("t")

    one = "differs: orders: 1 record was committed without offsets of group g in the transaction; "
    assert told(twice(True, True), twice(True, True)) == []
    assert told(twice(True, True), twice(True, False)) == [one + "recorded with"]
    assert told(twice(True, True), twice(False, True)) == [one + "recorded with"]
    assert told(twice(True, True), did("a", "b")) == [], "however many transactions there are"
    assert told(did("a", "b"), twice(True, True)) == []
    assert told(did("a", "b"), twice(True, False)) == [one + "recorded with"]
    assert told(twice(True, False), twice(True, True)) == [], "more is fine"


@pytest.mark.parametrize("then", [Did.began, lambda did, _: did], ids=["and begins anew", "at all"])
def test_what_an_unanswered_end_was_to_commit_may_be_committed_or_not(then: Any) -> None:
    lost = Did().began("t").wrote_in("t", "a", at=0).committed("g", 1, within="t").lost_end("t")
    lost = then(lost, "t")
    values = [Playing(lost.loaded).connect().values(isolation_level=level) for level in (0, 1)]
    assert values == [["a"], ["a"]], "readers of committed records do not miss it"
    for now in (
        Did(),
        did("a"),
        did("a", end="abort"),
        did("a", end="abort").wrote_in("t", "a", at=2).committed("g", 1, within="t").ended("t"),
        Did().wrote("a"),
    ):
        assert told(lost, now) == []
    both = then(did("a", "b").wrote_in("t", "b", at=3, sequence=1).lost_end("t"), "t")
    assert told(both, did("b", "a")) == [], "the one that is known to be committed is demanded"
    assert "was never produced" in told(both, did("a"))[0]


def test_of_a_transaction_outside_of_the_recording_the_records_are_demanded() -> None:
    cut = Did().wrote_in("t", "a", at=0)
    values = [Playing(cut.loaded).connect().values(isolation_level=level) for level in (0, 1)]
    assert values == [["a"], ["a"]]
    assert "was never produced" in told(cut, Did())[0]
    assert "was aborted" in told(cut, did("a", offsets="none", end="abort"))[0]
    assert told(cut, Did().wrote("a")) == [], "nobody knows how it ended"
    assert told(cut, did("a", offsets="none")) == []
    both = did("a", "b").wrote_in("t", "b", at=3, sequence=1)
    assert told(both, did("b", "a").wrote("b")) == []
    one = "differs: orders: 1 record was produced outside a transaction; recorded in one"
    assert told(both, did("b").wrote("a", "b")) == [one]


def test_an_unanswered_end_that_was_to_abort_or_was_tried_again_is_known() -> None:
    aborted = Did().began("t").wrote_in("t", "a", at=0).lost_end("t", "abort").began("t")
    assert "was aborted when recorded" in told(aborted, did("a", offsets="none"))[0]
    tried = Did().began("t").wrote_in("t", "a", at=0).lost_end("t").ended("t")
    assert "never produced" in told(tried, Did())[0]


def test_of_a_transaction_without_records_the_offsets_are_demanded() -> None:
    only = did()
    only.metadata()
    assert told(only, Did()) == told(only, did(end="abort")) == [NO_OFFSETS]
    assert told(only, did(group="h")) == [NO_OFFSETS]
    assert told(only, Did().committed("g", 1)) == [OFFSETS]
    assert told(only, did().committed("g", 2, within="t").ended("t")) == []
    both = did("a", group="h").committed("g", 1, within="t").ended("t")
    assert told(both, did("a", group="h")) == [NO_OFFSETS]
    (other,) = told(both, did("a").committed("h", 1, within="t").ended("t"))
    assert "1 record was committed without offsets of group h in the transaction" in other
    assert told(did(end="abort"), Did()) == [], "it was not committed"
    assert told(Did().committed("g", 1), Did()) == [], "it was in no transaction"


def test_where_nothing_is_done_the_records_and_the_groups_are_named() -> None:
    *records, group = sorted(told(THEN, Did()), key=lambda each: "group" in each)
    assert group == NO_OFFSETS and len(records) == 3
    assert all("never produced" in each for each in records)


@pytest.mark.parametrize(
    ("then", "now"),
    [
        pytest.param(did("a").committed("g", 3), did("a").committed("g", 3), id="both ways"),
        pytest.param(did("a", offsets=""), did("a"), id="outside when recorded"),
        pytest.param(Did().wrote("a"), did("a", offsets="none"), id="a transaction is new"),
        pytest.param(
            did("a", end="abort").wrote_in("t", "a", at=2, sequence=1).ended("t"),
            did("a", offsets="none"),
            id="offsets of one that was aborted",
        ),
        pytest.param(
            did("a").committed("g", 2, within="t").ended("t"), did("a"), id="fewer transactions"
        ),
        pytest.param(did("a", group=f"g-{UUIDS[0]}"), did("a", group=f"g-{UUIDS[1]}"), id="random"),
        pytest.param(
            did("a").committed("h", 1, within="t", code=codes.ILLEGAL_GENERATION).ended("t"),
            did("a"),
            id="refused",
        ),
    ],
)
def test_what_needs_no_transaction_is_green(then: Did, now: Did) -> None:
    assert told(then, now) == []


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_is_in_no_transaction(magic: int) -> None:
    broker = Playing(did("a").loaded, CAUSAL)
    client = broker.connect()
    record = Record(0, 1000, b"k", b"a")
    client.produce(encode_message_set([record], magic=magic), version=2)
    assert client.values(isolation_level=1) == ["a"], "a reader has it at once"
    broker.end()
    assert "1 record was produced outside a transaction" in broker.report.findings[0].text


def test_in_semantic_mode_it_is_the_same() -> None:
    then = Did()
    then.metadata()
    then.began("t").wrote_in("t", "a", at=0).committed("g", 1, within="t").ended("t")
    then.committed("h", 1)
    settings = attrs.evolve(CAUSAL, mode=Mode.SEMANTIC)
    for offsets, group, found in (("t", "g", 0), ("", "h", 1)):
        broker = Playing(then.loaded_for(Mode.SEMANTIC), settings)
        client = broker.connect()
        now = Did().began("t").wrote_in("t", "a", at=0).committed(group, 1, within=offsets)
        for exchange in now.ended("t").exchanges:
            client.ask(exchange.api_version or 0, exchange.request)
        broker.end()
        assert [each.text[:7] for each in broker.report.findings] == ["group g"] * found


def test_the_end_of_a_test_waits_for_the_offsets() -> None:
    broker = Playing(did("a").loaded, CAUSAL)
    client, check = broker.connect(), broker.broker.state.check
    client.produce(batch("a"))
    assert check.lacks_records
    check.committing.in_transactions.add("g")
    assert not check.lacks_records
