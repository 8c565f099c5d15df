"""The story of a topic: its partitions, who wrote and read it, how far, and what was found.

exchanges of the topic and of groups ─┬─▶ History ─▶ sentences on writers, readers, commits
                                      ├─▶ ErrorCounts ─▶ sentences on errors
                                      └─▶ Findings ─▶ sentences on what went wrong

Invariant: memory is bounded by clients and partitions; lists name at most `_NAMED_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.terms import grouped
from kproxy.exchange.words.wording import age, count, listed, partitions
from kproxy.history.events import RELATED_APIS
from kproxy.history.logs import (
    CREATED,
    DELETED,
    FETCHED,
    Change,
    ClientUse,
    CommittedOffset,
    Logs,
    TopicState,
)
from kproxy.history.rows import SENT, TRIED, WROTE
from kproxy.look.why.finding import told
from kproxy.look.why.findings import Findings
from kproxy.look.why.sentences import NOT_RECORDED, ErrorCounts, at, named, who
from kproxy.look.why.source import StorySource
from kproxy.units import format_bytes
from kproxy.wire.protocol import error_name

_NAMED_MAX = 10


def topic_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of a topic."""
    errors, findings, is_named = ErrorCounts(), Findings(value), False
    apis = matching("api", *RELATED_APIS, "Fetch").node
    for item in source.read(Filter(grouped([matching("topic", value).node, apis], one=True))):
        source.watch(findings.history, item, findings.add(item))
        if isinstance(item, Exchange) and value in item.topics:
            is_named = True
            errors.add(item, _errors_of(item, value))
    if not is_named:
        return
    logs = findings.history.logs
    topic = logs.topics.get(value, TopicState(value))
    yield from told(findings.found())
    yield from _partitions(topic)
    yield from _clients(topic, (WROTE, SENT, TRIED), "Nobody wrote to it in the recording.")
    yield from _clients(topic, (FETCHED,), "Nobody fetched it in the recording.")
    yield from _commits(logs, value)
    yield from errors.lines(names_client=True)


def _partitions(topic: TopicState) -> Iterator[str]:
    latest = topic.counts.latest
    if latest is not None and latest.value:
        has = count(latest.value, "partition")
        yield f"Topic {topic.name} has {has} ({named(latest.first)})."
    else:
        yield f"The number of partitions of topic {topic.name} {NOT_RECORDED}."
    for each in topic.changes[:_NAMED_MAX]:
        yield f"{at(each.ref)} {_changed(each)} ({named(each.ref)})."
    more = len(topic.changes[_NAMED_MAX:]) + topic.changes_more
    if more:
        yield f"It was changed {more} more times."


def _changed(change: Change) -> str:
    if change.what in (CREATED, DELETED):
        return f"{who(change.ref)} {change.what} it"
    return f"It has {change.now} instead of {change.was} partitions"


def _clients(topic: TopicState, did: tuple[str, ...], none: str) -> Iterator[str]:
    uses = [(verb, use) for (_, verb), use in topic.uses.items() if verb in did]
    if not uses:
        yield none
    most = sorted(uses, key=lambda each: -each[1].records)
    for verb, each in most[:_NAMED_MAX]:
        yield _client(topic.name, verb, each)
    more: dict[str, list[int]] = {}
    for verb, each in most[_NAMED_MAX:]:
        more.setdefault(verb, []).append(each.records)
    for verb, found in more.items():
        yield f"{count(len(found), 'more client')} {verb} {count(sum(found), 'record')}."


def _client(topic: str, verb: str, use: ClientUse) -> str:
    text = f"{who(use.first) if use.is_one else 'other clients'} {verb}"
    text += f" {count(use.records, 'record')}"
    if use.records:
        where = partitions(topic, [str(n) for n in sorted(use.partitions)])
        text += f" ({format_bytes(use.size_bytes)}) {'of' if verb == FETCHED else 'to'} {where}"
    if use.aborted:
        text += f", {use.aborted} of them in transactions that were aborted,"
    if use.groups:
        text += f" for group {listed(sorted(use.groups))}"
    text += f" with {'acks=0, in ' if verb == SENT else ''}{count(use.requests, 'request')}"
    text += f", {at(use.first)}"
    if use.last.time_ns > use.first.time_ns:
        text += f" to {at(use.last)}"
    if use.first_records is not None and use.last_records is not None:
        busy_ms = (use.last_records.time_ns - use.first_records.time_ns) / 1e6
        if busy_ms >= 1000:
            rate = use.records / busy_ms * 1000
            text += f", {rate:{'.0f' if rate >= 100 else '.3g'}} records/s over {age(busy_ms)}"
    return f"{text}."


def _commits(logs: Logs, topic: str) -> Iterator[str]:
    by_group: dict[str, list[CommittedOffset]] = {}
    for (group, where), each in sorted(logs.committed.items()):
        if where.topic == topic:
            by_group.setdefault(group, []).append(each)
    for group, offsets in list(by_group.items())[:_NAMED_MAX]:
        found = [
            f"{topic}[{each.where.partition}@{each.commit.offset}] ({_by(each)})"
            for each in offsets
        ]
        times = count(sum(each.times for each in offsets), "offset")
        yield f"Group {group} committed {times}, the last {listed(found, 6)}."
    if len(by_group) > _NAMED_MAX:
        yield f"{count(len(by_group) - _NAMED_MAX, 'more group')} committed offsets of it."


def _by(offset: CommittedOffset) -> str:
    by, commit = offset.commit.by, offset.commit
    text = (
        f"#{by.number}" if commit.certain else f"maybe, by {named(by)}, whose answer {NOT_RECORDED}"
    )
    return text if offset.deleted_by is None else f"{text}, deleted by #{offset.deleted_by.number}"


def _errors_of(exchange: Exchange, topic: str) -> list[str]:
    """Return the errors of a topic; where a response has several topics, those of Produce and Fetch
    only, which say of which topic they are."""
    made = exchange.injected or exchange.broker_errors is not None
    if exchange.api in ("Produce", "Fetch") and not made:
        results = exchange.facts.results
        failed = [each for each in results if each.error_code and each.where.topic == topic]
        return [error_name(each.error_code) for each in failed]
    return exchange.errors if exchange.topics == [topic] else []
