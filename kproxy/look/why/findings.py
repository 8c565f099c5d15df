"""Findings: what a recording proves about topics, groups and producers, as values.

::

    Exchange · ConnectionEnd · Gap ─┬─▶ History ─▶ PROVED ──────────────┬─▶ Finding
                                    └─▶ FOLLOWERS ──────────────────────┘

Invariants: each finding names the exchanges that prove it; what an app did with records is never
claimed; memory is bounded by the numbers of partitions, open connections and clients, and by limits
that are stated where something is followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import Unreadable, hashed_batches
from kproxy.exchange.words.wording import count
from kproxy.history.events import ExchangeRows
from kproxy.history.history import History
from kproxy.history.items import Item
from kproxy.look.why import (
    client_findings,
    commit_findings,
    group_findings,
    member_findings,
    read_findings,
)
from kproxy.look.why.duplicate_findings import duplicate_findings, rewritten, unwritten
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.loss_findings import never_read
from kproxy.look.why.sentences import who
from kproxy.look.why.standing import standing
from kproxy.look.why.transactional_id import aborting, fenced
from kproxy.look.why.write_findings import KeysOnPartitions, hot_partitions

__all__ = ["Finding", "Findings", "Harm"]

PROVED: tuple[Callable[[History], Iterator[Finding]], ...] = (
    group_findings.standstills, member_findings.late_members,
    lambda history: duplicate_findings(history.duplicates), unwritten, rewritten,
    commit_findings.uncommitted, commit_findings.moved_commits, never_read,
    read_findings.slow_readers, read_findings.unread, hot_partitions, commit_findings.lag,
    read_findings.beyond_limits,
    client_findings.throttled_clients, client_findings.pending_requests,
    client_findings.small_requests, client_findings.brief_producers,
    client_findings.failed_tls, client_findings.failed_logins,
    client_findings.failed_connections, client_findings.denied_users,
    client_findings.stalled_brokers,
    client_findings.unreached_brokers, client_findings.slow_peers, client_findings.cut_off,
    client_findings.lost_frames, client_findings.missing_topics, fenced, aborting, standing,
    member_findings.unprocessed, member_findings.shared_instances, member_findings.quiet_members,
    read_findings.fetched_twice,
    group_findings.idle_members, group_findings.uneven_assignments,
    group_findings.coordinator_moves, group_findings.rebalances,
)  # fmt: skip
"""The findings that a history proves. How to add one: a function of the history, here."""


def proved(history: History) -> list[Finding]:
    """Return the findings that a history proves, the worst harm first."""
    return sorted((each for find in PROVED for each in find(history)), key=lambda each: each.harm)


_RECORDS_MAX = 250_000
"""Records of as many exchanges are read; what comes after them is not looked into."""
_RECORD_APIS = frozenset({"Produce", "Fetch", "ShareFetch"})


@attrs.define(eq=False)
class _UnreadableRecords:
    """Finds the topics that have records which cannot be read."""

    _first: dict[str, tuple[Unreadable, str, int]] = attrs.field(factory=dict, init=False)
    """Topic → the first of them, who sent or got it, and in which exchange."""
    _counts: dict[str, int] = attrs.field(factory=dict, init=False)
    _read: int = attrs.field(default=0, init=False)
    _readable: set[int] = attrs.field(factory=set, init=False)
    """Hashes of the batches that can be read: consumers of several groups fetch what a producer
    wrote, byte by byte."""

    def add(self, item: Item, taken: ExchangeRows | None) -> None:
        """Take the next item."""
        if not isinstance(item, Exchange) or item.api not in _RECORD_APIS:
            return
        if self._read >= _RECORDS_MAX:
            return
        batches = [each for records in item.facts.records for each in hashed_batches(records)]
        if None not in batches and all(each[0] in self._readable for each in batches if each):
            self._read += sum(each[1] for each in batches if each)
            return
        self._read += len(item.records)
        if not item.records.unreadable:
            self._readable.update(each[0] for each in batches if each)
        for each in item.records.unreadable:
            self._first.setdefault(each.topic, (each, who(item), item.number))
            self._counts[each.topic] = self._counts.get(each.topic, 0) + 1

    def found(self) -> list[Finding]:
        """Return a finding for each topic."""
        return [self._finding(topic) for topic in sorted(self._first)]

    def _finding(self, topic: str) -> Finding:
        first, client, number = self._first[topic]
        more = self._counts[topic] - 1
        did = "wrote" if first.produced else "fetched"
        text = f"{client} {did} {first.text} (#{number})."
        if more:
            text += f" {count(more, 'more time')} the records of {topic} cannot be read."
        return Finding(
            Harm.DATA, "unreadable records", text, (number,), Subject("number", number),
            topic, shown_by=("show", "--frame", str(number)),
        )  # fmt: skip


class FindsByContents(Protocol):
    """Finds what needs the contents of records, which no history keeps."""

    def add(self, item: Item, taken: ExchangeRows | None) -> None:
        """Take the next item, and what the history has taken of it; of Produces, those to one topic
        alone, if only its findings are asked for."""
        ...

    def found(self) -> list[Finding]:
        """Return the findings, at the end."""
        ...


FOLLOWERS: tuple[Callable[[History], FindsByContents], ...] = (
    KeysOnPartitions, lambda history: _UnreadableRecords(),
)  # fmt: skip
"""The makers of those that look into records, of a history that has each item already. How to add
one: a class with `add` and `found`, here."""


@attrs.define(eq=False)
class Findings:
    """All findings of one recording, collected in one reading."""

    topic: str | None = None
    """The only topic whose findings are returned; None for all. Of Produces, whoever gives one adds
    only those to the topic."""
    history: History = attrs.Factory(History)
    _followers: list[FindsByContents] = attrs.field(
        default=attrs.Factory(lambda self: [make(self.history) for make in FOLLOWERS], True),
        init=False,
    )

    def add(self, item: Item) -> ExchangeRows | None:
        """Take the next exchange, end of a connection or gap, in order of completion; return what
        the history has taken."""
        taken = self.history.add(item)
        for each in self._followers:
            each.add(item, taken)
        return taken

    def found(self) -> list[Finding]:
        """Return the findings, the worst harm first."""
        found = proved(self.history)
        for each in self._followers:
            found += each.found()
        wanted = [each for each in found if self.topic in (None, each.topic)]
        return sorted(wanted, key=lambda each: each.harm)
