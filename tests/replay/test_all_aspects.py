"""A replay that compares everything is red exactly if Kafka would show something else to somebody.

::

    an app, drawn ─▶ a model of Kafka behind a proxy ─▶ its recording ─┐
         └─ the same, or with one change ──────────────────────────────┴─▶ replay ─▶ green, or red

What Kafka would show is told by `shown`, which knows nothing of the product. Not compared are:
order across partitions and keys, and of records without a key, and of what cannot be read; times;
sizes of batches; versions; offsets as numbers; polls; retries; what aborted transactions held; what
is in transactions that are still open at the end; and a commit before which there are no records.

A value may be UNREAD: its batch, which the broker takes, is no gzip. No consumer gets past it.

Whatever a replay makes of it: while it works, each reader is served what Kafka would serve.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import attrs
import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import AbortedTransactions
from kproxy.history.behaviour import Behaviour
from kproxy.look.lines.meaning import RecordingMeaning
from kproxy.replay.compared import Compared, differences, parse_aspects
from kproxy.replay.ignored import Ignored
from kproxy.replay.settings import Expect
from kproxy.replay.unreadable import damage_of
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.record_batch import BATCH_HEADER, Record
from kproxy.wire.protocol.records import encode_batch
from tests.replay.making import Recorded, fetch, produce
from tests.replay.running import CAUSAL, App, Live, findings, loaded_of
from tests.replay.test_unreadable import damaged, sealed
from tests.versions import ALL

UNREAD = "?"
PARTITIONS = {"k": 0, "l": 0, "m": 1}
"""The partition of each key."""
Value = tuple[int, str, str]
"""Partition, key, value."""


@attrs.frozen
class Write:
    """Records that an app produces."""

    values: tuple[Value, ...]
    end: str = "plain"
    """"plain", or the end of a transaction: "commit", "abort", "open"."""


@attrs.frozen
class Consume:
    """A consumer that reads so many records of a partition, from the beginning."""

    group: str
    partition: int
    records: int
    commit: str = "plain"
    """"no", "plain", or the end of the transaction in which it commits."""
    lag: int = 0
    """How many of those read are behind the offset that it commits."""
    member: bool = False
    """Whether it joins the group."""


Step = Write | Consume
ENDS = ["plain", "plain", "commit", "commit", "abort", "open"]
VALUES = st.tuples(st.sampled_from("klm"), st.sampled_from(f"aabb{UNREAD}")).map(
    lambda drawn: (PARTITIONS[drawn[0]], *drawn)
)
WRITES = st.builds(
    Write, st.lists(VALUES, min_size=1, max_size=3).map(tuple), st.sampled_from(ENDS)
)
CONSUMERS = st.builds(
    Consume,
    st.sampled_from(["g", "h"]),
    st.sampled_from([0, 0, 1]),
    st.integers(1, 3),
    st.sampled_from(["no", *ENDS[:-1]]),
    st.integers(0, 1),
    st.booleans(),
)
APPS = st.lists(st.one_of(WRITES, CONSUMERS), min_size=1, max_size=5)


def transactional_id(number: int) -> str:
    """The transactional id of a step: two take turns, and the next aborts what one left open."""
    return f"t{number % 2}"


# ---- what Kafka would show


@attrs.define(eq=False)
class Ended:
    """A transaction."""

    end: str
    group: str = ""
    committed: dict[tuple[str, int], int] = attrs.Factory(dict)


Logs = dict[int, list[tuple[Value, Ended | None]]]
"""The records of each partition, and the ends of their transactions."""


def shown(app: list[Step]) -> dict[str, Any]:
    """What Kafka would show of a run of the app."""
    logs: Logs = {0: [], 1: []}
    transactions: dict[str, list[Ended]] = {"t0": [], "t1": []}
    given_out: set[tuple[int, int]] = set()
    committed: dict[tuple[str, int], int] = {}
    members: set[str] = set()
    for number, step in enumerate(app):
        end = step.end if isinstance(step, Write) else step.commit
        ended = Ended(end) if end in ("commit", "abort", "open") else None
        begun = transactions[transactional_id(number)]
        if isinstance(step, Consume):
            members |= {step.group} if step.member else set()
            read = list(_visible(logs[step.partition]))[: step.records]
            given_out |= {(step.partition, index) for index in read}
            before = {(step.group, step.partition): max(0, len(read) - step.lag)}
        if ended is not None:
            for each in begun:
                each.end = "abort" if each.end == "open" else each.end
        if isinstance(step, Write):
            for value in step.values:
                logs[value[0]].append((value, ended))
            begun += [ended] if ended and step.values else []
        elif step.commit == "plain":
            committed.update(before)
        elif ended is not None:
            ended.group = step.group
            begun.append(ended)
            committed.update(before if end == "commit" else {})
    order: dict[tuple[int, str, str], list[str]] = {}
    for (partition, key, value), ended in [each for log in logs.values() for each in log]:
        if ended is None or ended.end == "commit":
            kind = UNREAD if value == UNREAD else ""
            order.setdefault((partition, key, kind), []).append(value)
    return {
        "order": order,
        "commits": {key: count for key, count in committed.items() if count},
        "transactions": {
            name: once((each.end, each.group) for each in begun)
            for name, begun in transactions.items()
        },
        "consumed": Counter(logs[partition][index][0][1:] for partition, index in given_out),
        "groups": members,
        "logs": logs,
    }


def once(ends: Iterable[Any]) -> list[Any]:
    """Each run of the same once: how many transactions there are depends on polls."""
    return [end for end, _ in itertools.groupby(ends)]


def _visible(log: list[tuple[Value, Ended | None]]) -> Any:
    """The places of the records that readers of committed records see."""
    for index, ((_, _, value), ended) in enumerate(log):
        if ended is not None and ended.end == "open":
            return
        if value == UNREAD and (ended is None or ended.end == "commit"):
            return
        if ended is None or ended.end == "commit":
            yield index


# ---- one change


def dropped(values: list[Any], at: int) -> None:
    """Without one record."""
    del values[at]


def doubled(values: list[Any], at: int) -> None:
    """One of them twice."""
    values.insert(at, values[at])


def altered(values: list[Any], at: int) -> None:
    """Another value."""
    values[at] = (*values[at][:2], "z")


def moved(values: list[Any], at: int) -> None:
    """Another partition."""
    values[at] = (1 - values[at][0], *values[at][1:])


def swapped(values: list[Any], at: int) -> None:
    """One and the next of its key change places."""
    later = [one for one in range(at + 1, len(values)) if values[one][:2] == values[at][:2]]
    for other in [] if UNREAD in [each[2] for each in values] else later[:1]:
        values[at], values[other] = values[other], values[at]


OF_VALUES: list[Callable[[list[Any], int], None]] = [dropped, doubled, altered, moved, swapped]
OF_WRITES = {f"{end} it": {"end": end} for end in ("commit", "abort", "open")}
OF_CONSUMERS: dict[str, Callable[[Consume], dict[str, Any]]] = {
    "no commit": lambda step: {"commit": "no"},
    "commit": lambda step: {"commit": "plain" if step.commit == "no" else "no"},
    "another end": lambda step: {"commit": "abort" if step.commit == "commit" else "commit"},
    "another offset": lambda step: {"lag": 1 - step.lag},
    "another group": lambda step: {"group": "other"},
    "fewer": lambda step: {"records": step.records - 1},
    "more": lambda step: {"records": step.records + 1},
    "membership": lambda step: {"member": not step.member},
    "another partition": lambda step: {"partition": 1 - step.partition},
}
CHANGES = st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 179))


def changed(app: list[Step], change: tuple[int, int, int]) -> list[Step]:
    """The app with one change: the step, the record, and how."""
    number, record, how = change
    found = list(app)
    step = found[number % len(found)]
    if isinstance(step, Consume):
        alter = list(OF_CONSUMERS.values())[how % len(OF_CONSUMERS)]
        step = attrs.evolve(step, **alter(step))
    elif step.values and (how % 5 < 4 or step.end == "plain"):
        values = list(step.values)
        OF_VALUES[how % len(OF_VALUES)](values, record % len(values))
        step = attrs.evolve(step, values=tuple(values))
    else:
        step = attrs.evolve(step, **list(OF_WRITES.values())[how % len(OF_WRITES)])
    found[number % len(found)] = step
    return found


# ---- running an app


def run(
    client: App, app: list[Step], after: Callable[[list[Step]], object] = lambda done: None
) -> None:
    """Run the app; call `after` after each step, with those that are done."""
    for number, step in enumerate(app):
        if isinstance(step, Write):
            write(client, transactional_id(number), step)
        else:
            consume(client, transactional_id(number), step)
        after(app[: number + 1])


def write(client: App, name: str, step: Write) -> None:
    """Each record in a batch of its own."""
    who = initialized(client, name) if step.end != "plain" else {}
    for sequence, value in enumerate(step.values):
        more = {**who, "base_sequence": sequence, "transactional": True} if who else {}
        request = produce(batch_of([value], **more), value[0])
        request.transactional_id = name if who else None
        client.ask(9, request)
    if step.end in ("commit", "abort") and step.values:
        end(client, name, who, step.end)


def batch_of(values: list[Value], **more: Any) -> bytes:
    """A batch of these."""
    found = [Record(at, 1000, one[1].encode(), one[2].encode()) for at, one in enumerate(values)]
    if UNREAD not in [one[2] for one in values]:
        return encode_batch(found, base_offset=0, **more)
    data = encode_batch(found, base_offset=0, compression="gzip", **more)
    return sealed(damaged(data, BATCH_HEADER.size, b"no gzip"))


def initialized(client: App, name: str) -> dict[str, int]:
    """Its producer id and epoch."""
    request = messages.InitProducerIdRequest
    who = client.ask(4, request(transactional_id=name, transaction_timeout_ms=60_000))
    return {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}


def end(client: App, name: str, who: dict[str, int], how: str) -> None:
    """End a transaction."""
    request = messages.EndTxnRequest
    ended = request(transactional_id=name, committed=how == "commit", **who)
    assert client.ask(3, ended).error_code == 0


def consume(client: App, name: str, step: Consume) -> None:
    """Join, read, commit, leave."""
    member: dict[str, Any] = joined(client, step.group) if step.member else {}
    offsets = read(client, step.partition, step.records)
    last = len(offsets) - 1 - step.lag
    offset = offsets[last] + 1 if last >= 0 else 0
    if step.commit == "plain":
        commit(client, "OffsetCommit", 8, step, offset, **member)
    elif step.commit != "no":
        who = initialized(client, name)
        more = {"transactional_id": name, **who, **member}
        commit(client, "TxnOffsetCommit", 3, step, offset, **more)
        if step.commit != "open":
            end(client, name, who, step.commit)
    if member:
        request = messages.LeaveGroupRequest
        me = request.MemberIdentity(member_id=member["member_id"])
        client.ask(5, request(group_id=step.group, members=[me]))


def joined(client: App, group: str) -> dict[str, Any]:
    """Be the only member of a group, as commits say it."""
    request = messages.JoinGroupRequest
    protocol = request.JoinGroupRequestProtocol(name="range", metadata=b"\0\0\0\0\0\1\0\6orders")
    more = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000}
    more |= {"group_id": group, "protocol_type": "consumer", "protocols": [protocol]}
    first = client.ask(9, request(member_id="", **more))
    answer = client.ask(9, request(member_id=first.member_id, **more))
    sync = messages.SyncGroupRequest
    mine = [sync.SyncGroupRequestAssignment(member_id=answer.member_id, assignment=b"")]
    more = {"generation_id": answer.generation_id, "member_id": answer.member_id}
    assert client.ask(3, sync(group_id=group, assignments=mine, **more)).error_code == 0
    return {
        "generation_id_or_member_epoch": answer.generation_id,
        "member_id": answer.member_id,
    }


def read(client: App, partition: int, wanted: int) -> list[int]:
    """The offsets of so many committed records."""
    return [each.offset for each in read_records(client, partition, wanted, True)]


def read_records(client: App, partition: int, wanted: int, committed: bool) -> list[Record]:
    """So many records, fetched batch by batch; the `committed` ones or all."""
    found: list[Record] = []
    offset = 0
    while len(found) < wanted:
        asked = fetch({partition: offset}, max_wait_ms=0, isolation_level=int(committed))
        asked.topics[0].partitions[0].partition_max_bytes = 1
        (answer,) = client.ask(11, asked).responses[0].partitions
        batches = list(records.batches(bytes(answer.records or b"")))
        if not batches:
            break
        transactions = AbortedTransactions(answer.aborted_transactions or ())
        for each in batches:
            if not transactions.is_dropped(each) and not each.control:
                if damage_of(each):
                    return found
                found += [one for one in each.records if one.offset >= offset]
            offset = each.last_offset + 1
    return found


def commit(client: App, api: str, version: int, step: Consume, offset: int, **more: Any) -> None:
    """Commit an offset."""
    request = getattr(messages, f"{api}Request")
    place = getattr(request, f"{api}RequestPartition")
    place = place(partition_index=step.partition, committed_offset=offset)
    topic = getattr(request, f"{api}RequestTopic")(name="orders", partitions=[place])
    answer = client.ask(version, request(group_id=step.group, topics=[topic], **more))
    assert answer.topics[0].partitions[0].error_code == 0


def recorded(app: Callable[[App], None]) -> list[Exchange]:
    """The recording of an app."""
    live = Live(Recorded().metadata("orders", 2).loaded)
    return _run(live, app)


def _run(live: Live, app: Callable[[App], None]) -> list[Exchange]:
    live.app.ask(12, messages.MetadataRequest(topics=None))
    app(live.app)
    return [each for each in live.recorded() if isinstance(each, Exchange)]


def replayed(then: list[Exchange], app: Callable[[App], None]) -> list[str]:
    """What a replay finds that compares everything."""
    live = Live(loaded_of(then), settings=CAUSAL)
    exchanges = _run(live, app)
    found = findings(live)
    compared = Compared(parse_aspects(["all"]), Expect.ALL)
    behaviours = [Behaviour(), Behaviour()]
    for behaviour, each in zip(behaviours, (exchanges, then), strict=True):
        for exchange in each:
            behaviour.add(exchange)
    told = differences(*behaviours, Ignored())
    return found + [f"{each.aspect}: {each.text}" for each in told if compared.fails(each)]


def usual(client: App) -> None:
    """An app that the others below differ from in what is not compared."""
    for value in "ab":
        client.ask(9, produce(batch_of([(0, "k", value)])))
    client.ask(9, produce(batch_of([(0, "l", "x")])))
    client.ask(9, produce(batch_of([(1, "m", "y")]), 1))
    read_all(client, "g")


def read_all(client: App, *groups: str) -> None:
    """Read and commit all of it."""
    for partition in (0, 1):
        for group in groups:
            consume(client, "t", Consume(group, partition, 9, member=True))


def in_other_batches(client: App) -> None:
    """Other sizes of batches, another order across keys and partitions."""
    client.ask(9, produce(batch_of([(1, "m", "y")]), 1))
    client.ask(9, produce(batch_of([(0, "l", "x"), (0, "k", "a")])))
    client.ask(9, produce(batch_of([(0, "k", "b")])))
    read_all(client, "g")


def in_other_versions(client: App) -> None:
    """Other versions, and more time between two requests."""
    for version, value in zip((3, 8), "ab", strict=True):
        client.ask(version, produce(batch_of([(0, "k", value)])))
        client.network.advance(client.network.clock.now + 10_000_000_000)
    client.ask(7, produce(batch_of([(0, "l", "x")])))
    client.ask(5, produce(batch_of([(1, "m", "y")]), 1))
    read_all(client, "g")


def again_and_again(client: App) -> None:
    """Retries of an idempotent producer, more polls, and more commits."""
    who = {"producer_id": 77, "producer_epoch": 0}
    for sequence, value in enumerate([(0, "k", "a"), (0, "k", "b"), (0, "l", "x")]):
        for _ in "12":
            client.ask(9, produce(batch_of([value], **who, base_sequence=sequence)))
    client.ask(9, produce(batch_of([(1, "m", "y")]), 1))
    read(client, 0, 2)
    consume(client, "t", Consume("g", 0, 1))
    consume(client, "t", Consume("g", 0, 1, "plain", 1))
    read_all(client, "g", "g")


@pytest.mark.parametrize("other", [usual, in_other_batches, in_other_versions, again_and_again])
def test_what_is_not_compared_is_green(other: Callable[[App], None]) -> None:
    assert replayed(recorded(usual), other) == []
    assert replayed(recorded(other), usual) == []


@settings(max_examples=1500 if ALL else 120, deadline=None)
@given(APPS, CHANGES)
@example([Write(((0, "k", "a"), (0, "k", "b")))], (0, 0, 4))
@example(
    [Write(((0, "k", "a"),), "open"), Consume("g", 1, 1), Write(((0, "k", "b"),), "commit")],
    (0, 0, 0),
)
@example([Write(((1, "m", "a"), (1, "m", "b"))), Consume("g", 1, 2, "commit")], (1, 0, 3))
@example([Write(((1, "m", "a"), (1, "m", "b"))), Consume("g", 1, 2, "abort")], (1, 0, 2))
@example([Write(((1, "m", "a"), (1, "m", "b"))), Consume("g", 1, 2, "plain")], (1, 0, 5))
@example([Write(((1, "m", "a"), (1, "m", "b"))), Consume("g", 1, 1, "no")], (1, 0, 6))
@example([Write(((1, "m", "a"), (1, "m", "b"))), Consume("g", 1, 2, "no")], (1, 0, 5))
@example([Write(((0, "k", UNREAD),), "open"), Write(((1, "m", "a"),))], (0, 0, 4))
@example([Write(((0, "k", UNREAD),)), Write(((1, "m", "a"),))], (0, 0, 0))
@example([Write(((0, "k", UNREAD),)), Consume("g", 0, 1)], (0, 0, 2))
def test_a_replay_is_red_if_somebody_would_see_a_difference(
    app: list[Step], change: tuple[int, int, int]
) -> None:
    then = recorded(lambda client: run(client, app))
    assert replayed(then, lambda client: run(client, app)) == []
    now = changed(app, change)
    if now == app:
        return
    found = replayed(then, lambda client: run(client, now))
    before, after = shown(app), shown(now)
    del before["logs"], after["logs"]
    for aspect in before:
        if before[aspect] != after[aspect]:
            event(f"{aspect} differ")
    if before["order"] != after["order"]:
        assert found  # and what consumers get differs with it
        return
    for aspect in before:
        if before[aspect] != after[aspect]:
            told = "\n".join(each for each in found if each.startswith(f"{aspect}: "))
            assert any(name in told for name in changed_in(aspect, before, after)), aspect
    if before != after:
        return
    if not any(end == "open" for ends in after["transactions"].values() for end, _ in ends):
        event("nothing differs")
        assert found == []


def changed_in(aspect: str, before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    """What differs in an aspect, by the name that people know."""
    one, other = before[aspect], after[aspect]
    if aspect == "groups":
        return {f"group {name}" for name in one ^ other}
    keys = [key for key in (*one, *other) if one.get(key) != other.get(key)]
    return {_NAMES[aspect](key) for key in keys}


_NAMES: dict[str, Callable[[Any], str]] = {
    "commits": lambda key: f"group {key[0]}, orders[{key[1]}]",
    "transactions": lambda name: f"transactional id {name}",
    "consumed": lambda key: f"key '{key[0]}', '{key[1]}'",
}


@settings(max_examples=300 if ALL else 60, deadline=None)
@given(APPS, CHANGES)
def test_git_diff_names_what_was_changed(app: list[Step], change: tuple[int, int, int]) -> None:
    texts: list[list[str]] = []
    for each in (app, app, changed(app, change)):
        meaning = RecordingMeaning()
        for exchange in recorded(lambda client, each=each: run(client, each)):
            meaning.add(exchange)
        texts.append([*meaning.lines()])
    first, again, now = texts
    assert first == again
    before, after = shown(app), shown(changed(app, change))
    differing = "\n".join({*first} ^ {*now})
    for name in before["transactions"]:
        ends = [
            once(end for end, _ in each["transactions"][name] if end != "open")
            for each in (before, after)
        ]
        assert ends[0] == ends[1] or f"transactions of {name}: " in differing
    for group in before["groups"] ^ after["groups"]:
        assert f"group {group}, classic" in differing
    for group, partition in before["commits"].items() ^ after["commits"].items():
        assert f"  commits orders[{group[1]}] after " in differing, (group, partition)
    readable = [{k: v for k, v in each["order"].items() if not k[2]} for each in (before, after)]
    assert readable[0] == readable[1] or first != now


def served(client: App) -> dict[tuple[int, bool], list[Value]]:
    """The values that readers get, by partition and by whether they want committed records."""
    return {
        (partition, committed): [
            (partition, (one.key or b"").decode(), (one.value or b"").decode())
            for one in read_records(client, partition, 99, committed)
        ]
        for partition in (0, 1)
        for committed in (False, True)
    }


def in_kafka(app: list[Step]) -> dict[tuple[int, bool], list[Value]]:
    """The same from Kafka."""
    logs: Logs = shown(app)["logs"]
    found: dict[tuple[int, bool], list[Value]] = {}
    for partition, log in logs.items():
        values = [value for value, _ in log]
        unread = [index for index, value in enumerate(values) if value[2] == UNREAD]
        found[partition, False] = values[: unread[0]] if unread else values
        found[partition, True] = [log[index][0] for index in _visible(log)]
    return found


@settings(max_examples=1500 if ALL else 120, deadline=None)
@given(APPS, st.lists(CHANGES, max_size=3))
def test_readers_are_served_what_the_app_has_written(
    app: list[Step], changes: list[tuple[int, int, int]]
) -> None:
    """Recorded or not, in the order of then or another one, in the same transactions or others."""
    then = recorded(lambda client: run(client, app))
    now = app
    for change in changes:
        now = changed(now, change)

    def works(client: App) -> None:
        run(client, now, lambda done: compared.append((served(client), in_kafka(done))))

    compared: list[Any] = []
    replayed(then, works)
    for number, (found, expected) in enumerate(compared):
        assert found == expected, f"after step {number}"
