"""Facts of a recording: what is the same in another run that does the same, without what varies.

::

    Exchange … ─▶ Behaviour ─▶ facts of an aspect ─┬─▶ lines of `git diff` (`look.lines.meaning`)
                                                   └─▶ differences of a replay (`compared`)

A fact is a text about something with a name, which is shown as a subject: several groups with
random ids in their names are one subject. A new aspect is one entry of `FACTS`.

Left out are order across partitions and keys, times, sizes of batches, acks, versions, offsets as
numbers, polls, what a retry repeats, what aborted transactions held, and commits before which no
record is known.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.wording import count
from kproxy.history.behaviour import Behaviour, GroupUse, TopicUse
from kproxy.history.transactions import ABORTED, COMMITTED, OPEN, UNKNOWN, Transaction
from kproxy.replay.differences import short, text_of
from kproxy.replay.ignored import Ignored

_RANDOM_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-fA-F]{12,}")
_VARYING_NUMBER = re.compile(r"(?<=[-_#])\d+$|\d+(\.\d+)+|\d{4,}")
"""Numbers in client ids: a counter, the version of the client, a process id."""


class Fact(NamedTuple):
    """A fact of an aspect."""

    subject: str
    """What it is about, as it is shown."""
    name: Hashable
    """The name of that."""
    text: str


def without_random_ids(name: str) -> str:
    """Return a name with `*` in place of ids that are drawn by chance."""
    return _RANDOM_ID.sub("*", name)


@functools.lru_cache(1 << 12)
def client_text(client_id: str | None) -> str:
    """Return a client id without the parts that differ from process to process."""
    return _VARYING_NUMBER.sub("*", without_random_ids(client_id or "")) or "a client"


def clients_text(client_ids: set[str]) -> str:
    """Return clients without what differs from process to process."""
    return ", ".join(sorted({client_text(each) for each in client_ids}))


def end_text(transaction: Transaction) -> str:
    """Return how a transaction ended: commit, abort, open, or unknown."""
    if transaction.end == OPEN and transaction.may_be_committed:
        return UNKNOWN
    return {COMMITTED: "commit", ABORTED: "abort"}.get(transaction.end, transaction.end)


def without_repeats(ends: Iterable[str]) -> list[str]:
    """Return how transactions ended, one after the other, each run of the same once: how many there
    are depends on what each poll brought."""
    return [end for end, _ in itertools.groupby(ends)]


def is_any_partition(topic: TopicUse, record: TopicRecord, ignored: Ignored) -> bool:
    """Return whether the record may be in another partition in the next run."""
    return topic.partition_count != 1 and not ignored.compares_partition(record, record.topic)


class CommitPosition(NamedTuple):
    """How far a group has committed: the offset itself depends on earlier content of the topic, and
    on markers."""

    where: str
    """The partition; the topic for all together, where a record may be in another partition in the
    next run."""
    before: int
    """Known records before it. Where there is none, nothing is said: consumers also commit where
    they have read nothing, or not, by chance."""
    past: int
    """Offsets past the last known records of the topic."""


def positions(behaviour: Behaviour, group: GroupUse, ignored: Ignored) -> Iterator[CommitPosition]:
    """Yield how far a group has committed the topics of which records are known."""
    by_topic: dict[str, dict[int, int]] = {}
    for (name, partition), offset in group.committed.items():
        if not ignored.frees(name):
            by_topic.setdefault(name, {})[partition] = offset
    for name, offsets in sorted(by_topic.items()):
        topic = behaviour.topics.get(name, TopicUse())
        known = topic.known_offsets()
        before = {
            partition: sum(
                min(end, offset) - start
                for start, end in known.get(partition, ())
                if start < offset
            )
            for partition, offset in offsets.items()
        }
        past = sum(
            max(0, offsets[each] - spans[-1][1]) for each, spans in known.items() if each in offsets
        )
        if topic.sample is not None and is_any_partition(topic, topic.sample, ignored):
            found = {name: sum(before.values())}
        else:
            found = {f"{name}[{each}]": many for each, many in sorted(before.items())}
        yield from (CommitPosition(where, many, past) for where, many in found.items() if many)


def _topics(behaviour: Behaviour, ignored: Ignored) -> Iterator[tuple[str, TopicUse]]:
    """Yield the topics in which not any record may be."""
    return ((name, each) for name, each in behaviour.topics.items() if not ignored.frees(name))


def _order(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for topic_name, topic in _topics(behaviour, ignored):
        for each in topic.produced:
            record = each.record
            if record.key is not None and each.end == COMMITTED:
                partition = (
                    record.partition if ignored.compares_partition(record, topic_name) else None
                )
                key = ignored.content(record, topic_name).key
                subject = f"{topic_name}, key {short(text_of(key))}"
                yield Fact(subject, (record.key, partition), _value(record, ignored))


def _commits(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for name, group in behaviour.groups.items():
        for where, before, past in positions(behaviour, group, ignored):
            text = f"committed after {count(before, 'record')}"
            # Behind the last record of a transaction is its marker, which clients pass or not.
            if past and not behaviour.transactions:
                text += f" and {count(past, 'offset')} past the last one"
            yield Fact(f"group {without_random_ids(name)}, {where}", name, text)


def _transactions(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for name, begun in behaviour.transactions.items():
        for each in begun:
            held = (without_random_ids(group) for group, offsets in each.offsets.items() if offsets)
            groups, end = ", ".join(sorted(held)), end_text(each)
            text = f"{end} with offsets of {groups}" if groups else end
            yield Fact(f"transactional id {without_random_ids(name)}", name, text)


def _consumed(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for name, topic in _topics(behaviour, ignored):
        for _, record in topic.fetched:
            key = ignored.content(record, name).key
            key = "" if key is None else f"key {text_of(key)}, "
            yield Fact(f"topic {name}", name, f"{key}{_value(record, ignored)}")


def _groups(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for name, group in behaviour.groups.items():
        if group.clients:
            topics = ", ".join(sorted(group.topics)) or "nothing"
            of = f"{group.kind}, of {clients_text(group.clients)}"
            yield Fact(f"group {without_random_ids(name)}", name, f"{of}, subscribes to {topics}")


def _isolation(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for name, topic in behaviour.topics.items():
        for client in sorted({client_text(client) for client, _ in topic.isolation}):
            reads = {level for each, level in topic.isolation if client_text(each) == client}
            texts = [f"reads {'un' * (not each)}committed records" for each in sorted(reads)]
            yield Fact(f"topic {name}, client {client}", (name, client), " and ".join(texts))


BEFORE = "committed before the last record was acknowledged"
AFTER = "committed after the last record was acknowledged"


def _acknowledged(behaviour: Behaviour, ignored: Ignored) -> Iterator[Fact]:
    for group_name, group in behaviour.groups.items():
        read = {topic for topic, _ in group.committed}
        known = group.moved_ns and any(positions(behaviour, group, ignored))
        for name, topic in _topics(behaviour, ignored) if known else ():
            times = [each.acknowledged_ns for each in topic.produced if each.end == COMMITTED]
            if times and name not in read:
                subject = f"group {without_random_ids(group_name)}, {name}"
                text = AFTER if max(times) <= group.moved_ns else BEFORE
                yield Fact(subject, (group_name, name), text)


def _value(record: TopicRecord, ignored: Ignored) -> str:
    content = ignored.content(record, record.topic)
    text = f"{content.decoded_as} {text_of(content.value)}".lstrip()
    return f"{text} with headers {content.headers}" if content.headers else text


FACTS: dict[str, Callable[[Behaviour, Ignored], Iterator[Fact]]] = {
    "order": _order,
    "commits": _commits,
    "transactions": _transactions,
    "consumed": _consumed,
    "groups": _groups,
    "isolation": _isolation,
    "acknowledged": _acknowledged,
}
"""Aspect → its facts, in order."""
