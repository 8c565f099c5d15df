"""A replay is red exactly if a reader of committed records would see others than when it was
recorded.

::

    an app, drawn ─▶ a model of Kafka behind a proxy ─▶ its recording ─┐
         └─ the same, or with changes ─────────────────────────────────┴─▶ replay ─▶ green, or red
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kproxy.replay.fetch import EARLIEST
from kproxy.wire.protocol import error_name, messages, records
from tests.replay.making import Recorded, batch, fetch, produce
from tests.replay.running import App, Live, Replayed, loaded_of
from tests.replay.test_generations import IDS, create, created, delete, deleted, shown
from tests.replay.test_log_start import offset_at
from tests.versions import ALL

PARTITIONS = 2


@attrs.frozen
class Write:
    """Records that an app produces: (partition, value)."""

    values: tuple[tuple[int, str], ...]
    end: str = "plain"
    """"plain", or the end of a transaction: "commit", "abort", "open"."""


@attrs.frozen
class Trim:
    """Deletes records up to an offset, or up to the end."""

    partition: int
    offset: int


RECREATE, READ = "delete and create the topic", "read it"
Step = Write | Trim | str

VALUES = st.tuples(st.integers(0, PARTITIONS - 1), st.sampled_from("ab"))
WRITES = st.builds(
    Write,
    st.lists(VALUES, min_size=1, max_size=3).map(tuple),
    st.sampled_from(["plain", "plain", "commit", "commit", "abort", "open"]),
)
TRIMS = st.builds(Trim, st.integers(0, PARTITIONS - 1), st.integers(-1, 3))
APPS = st.lists(st.one_of(WRITES, WRITES, TRIMS, st.sampled_from([READ, RECREATE])), max_size=7)
CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9), st.integers(0, 9), st.sampled_from(["drop", "twice", "other", "move"])
    )
    | st.tuples(
        st.integers(0, 9), st.just(0), st.sampled_from(["commit", "abort", "open", "retry"])
    ),
    max_size=2,
)


def changed(app: list[Step], changes: list[tuple[int, int, str]]) -> list[Step]:
    """The app with changes, each of (step, record, how)."""
    found, retried = list(app), set[int]()
    for number, record, how in changes:
        if not found:
            break
        if not isinstance(step := found[number % len(found)], Write):
            continue
        values = list(step.values)
        at = record % len(values) if values else 0
        if how == "retry":
            retried.add(number % len(found))
        elif how in ("commit", "abort", "open"):
            step = attrs.evolve(step, end=how if step.end != "plain" else "plain")
        elif not values:
            continue
        elif how == "drop":
            del values[at]
        elif how == "twice":
            values.insert(at, values[at])
        elif how == "other":
            values[at] = values[at][0], "z"
        else:
            values[at] = 1 - values[at][0], values[at][1]
        found[number % len(found)] = attrs.evolve(step, values=tuple(values))
    result: list[Step] = []
    for number, step in enumerate(found):
        if number in retried and isinstance(step, Write):
            result.append(attrs.evolve(step, end="abort"))
        result.append(step)
    return result


def committed(app: list[Step]) -> list[Counter[tuple[int, str]]]:
    """What readers of committed records see of each generation of the topic."""
    found = [Counter[tuple[int, str]]()]
    for step in app:
        if step == RECREATE:
            found.append(Counter())
        elif isinstance(step, Write) and step.end in ("plain", "commit"):
            found[-1].update(step.values)
    return found


def run(client: App, app: list[Step]) -> list[Any]:
    """Run the app; what it reads, which is what readers of committed records see."""
    seen: list[Any] = [create(client)]
    for number, step in enumerate(app):
        if step == RECREATE:
            seen += [delete(client), create(client)]
        elif isinstance(step, Write):
            write(client, number, step)
        elif isinstance(step, Trim):
            seen.append(error_name(trim(client, step)))
        else:
            for partition in range(PARTITIONS):
                seen += [read(client, partition, 1), read(client, partition, 0)]
    return seen


def trim(client: App, step: Trim) -> int:
    request = messages.DeleteRecordsRequest
    asked = request.DeleteRecordsPartition(partition_index=step.partition, offset=step.offset)
    topic = request.DeleteRecordsTopic(name="orders", partitions=[asked])
    (found,) = client.ask(2, request(topics=[topic])).topics
    return found.partitions[0].error_code


def write(client: App, number: int, step: Write) -> None:
    more: dict[str, Any] = {}
    name = f"t{number}"
    if step.end != "plain":
        request = messages.InitProducerIdRequest
        who = client.ask(4, request(transactional_id=name, transaction_timeout_ms=60_000))
        more = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
        for sequence, (partition, value) in enumerate(step.values):
            data = batch(value, transactional=True, base_sequence=sequence, **more)
            client.ask(9, produce(data, partition))
    for partition, value in step.values if step.end == "plain" else ():
        client.ask(9, produce(batch(value), partition))
    if step.end in ("commit", "abort") and step.values:
        ended = messages.EndTxnRequest(
            transactional_id=name, committed=step.end == "commit", **more
        )
        assert client.ask(3, ended).error_code == 0


def read(client: App, partition: int, isolation_level: int) -> Any:
    """The first offset of a partition, and its records from there on, with their offsets."""
    start = offset_at(client, EARLIEST, partition)
    asked = fetch({partition: start}, max_wait_ms=0, isolation_level=isolation_level)
    (found,) = client.ask(11, asked).responses[0].partitions
    aborted = {each.producer_id for each in found.aborted_transactions or ()}
    values: list[tuple[int, bytes | None]] = []
    for each in records.batches(bytes(found.records)):
        if not each.control and each.producer_id not in aborted:  # each has one transaction
            values += [(one.offset, one.value) for one in each.records if one.offset >= start]
    return start, values, found.high_watermark, found.last_stable_offset


def model(app: list[Step]) -> Live:
    """A cluster in which the topic can be created as often as the app does."""
    was = Recorded().metadata("other")
    for topic_id in IDS[: 1 + app.count(RECREATE)]:
        shown(created(was, topic_id, PARTITIONS), topic_id, PARTITIONS)
        deleted(was)
    return Live(was.loaded)


@settings(max_examples=1500 if ALL else 120, deadline=None)
@given(APPS.filter(lambda app: app.count(RECREATE) < len(IDS)), CHANGES)
@example([Write(((0, "a"),), "abort"), Write(((0, "a"),), "commit"), READ], [])
@example([Write(((0, "a"),), "commit"), READ], [(0, 0, "open")])
@example([Write(((0, "a"), (0, "a")), "commit")], [(0, 0, "retry")])
@example([Write(((0, "a"),)), RECREATE, Write(((0, "b"),)), READ], [(0, 0, "drop")])
def test_a_replay_is_red_if_readers_would_see_a_difference(
    app: list[Step], changes: list[tuple[int, int, str]]
) -> None:
    live = model(app)
    seen = run(live.app, app)
    loaded = loaded_of(live.recorded())
    now = changed(app, changes)
    replayed = Replayed(loaded)
    seen_now = run(replayed.app, now)
    found = replayed.findings()
    if now == app:
        assert (found, seen_now) == ([], seen)
    elif committed(now) != committed(app):
        assert found
    elif not any(isinstance(step, Write) and step.end == "open" for step in now):
        assert found == []  # one that is left open holds up readers, so it may be told


def test_the_model_shows_what_kafka_would_show() -> None:
    app = [Write(((0, "a"), (1, "b")), "commit"), Write(((0, "x"),), "abort"), READ]
    app += [Write(((0, "c"),), "open"), Write(((0, "d"),)), Trim(0, 1), READ, RECREATE, READ]
    a, x, c, d = (0, b"a"), (2, b"x"), (4, b"c"), (5, b"d")
    other = [(0, [(0, b"b")], 2, 2)] * 2
    assert run(model(app).app, app)[1:] == [
        *[(0, [a], 4, 4), (0, [a, x], 4, 4), *other],
        "NONE",
        *[(1, [], 6, 4), (1, [x, c, d], 6, 4), *other],
        *["NONE", "NONE"],
        *[(0, [], 0, 0)] * 4,
    ]
