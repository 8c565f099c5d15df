"""Offsets that groups committed, when they count: those of a transaction when it is committed.

::

    OffsetCommit ───────────────────────┐
    TxnOffsetCommit ─ pending ─ EndTxn ─┴─▶ Commit …
    OffsetCommit, JoinGroup, SyncGroup, ConsumerGroupHeartbeat ─▶ the groups of clients
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange import embedded
from kproxy.exchange.delivered import may_have_reached
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.why.sentences import NOT_RECORDED, host_of, named

MEMBER_APIS = ("JoinGroup", "SyncGroup", "ConsumerGroupHeartbeat")
"""The requests with which consumers become members of a group, and get partitions."""

Client = tuple[str, str]
"""Host and client id: what is known of a client on all of its connections."""


@attrs.frozen
class Commit:
    """An offset that a group committed."""

    group: str
    where: TopicPartition
    offset: int
    by: str
    """The exchange that made it count: `OffsetCommit #12`."""
    number: int
    time_ns: int
    """The arrival of the request."""
    client: Client
    certain: bool = True
    """False for those of a transaction whose EndTxn has no answer: they may have been aborted."""


@attrs.frozen
class Assignment:
    """The partitions that a group gives to a member."""

    generation: int
    """Generation, or the member's epoch."""
    partitions: frozenset[TopicPartition]


@attrs.define(eq=False)
class Commits:
    """Collects commits, and the groups of clients."""

    _pending: dict[str, list[Commit]] = attrs.field(factory=dict[str, list[Commit]], init=False)
    """Transactional id → commits of its open transaction."""
    _ending: dict[str, Exchange] = attrs.field(factory=dict[str, Exchange], init=False)
    """Transactional id → the EndTxn that was to commit it, and has no answer."""
    _groups: dict[Client, set[str]] = attrs.field(factory=dict[Client, set[str]], init=False)
    _owners: dict[tuple[str, TopicPartition], Client] = attrs.field(
        factory=dict[tuple[str, TopicPartition], Client], init=False
    )
    """Group and partition → the client to which the group assigned it last."""

    def group(self, exchange: Exchange, where: TopicPartition) -> str | None:
        """Return the group for which the client of a Fetch reads a partition: its client id and
        host are in this group only, and the group has assigned the partition to them. Else None."""
        client = client_of(exchange)
        groups = self._groups.get(client, ())
        for group in groups if len(groups) == 1 else ():
            if self._owners.get((group, where)) == client:
                return group
        return None

    def add(self, exchange: Exchange) -> list[Commit]:
        """Take the next exchange; return the commits that count from now on."""
        request, response, api = exchange.request, exchange.response, exchange.api
        if api == "EndTxn" and request is not None and response is None:
            if request.committed and may_have_reached(exchange):
                self._ending[request.transactional_id] = exchange
        if request is None or response is None:
            return []
        if api in MEMBER_APIS or api == "OffsetCommit":
            self._groups.setdefault(client_of(exchange), set()).add(request.group_id)
        given = assignment(exchange)
        for where in given.partitions if given is not None else ():
            self._owners[request.group_id, where] = client_of(exchange)
        if api == "OffsetCommit":
            return list(_commits(exchange))
        if api == "TxnOffsetCommit":
            self._pending.setdefault(request.transactional_id, []).extend(_commits(exchange))
        elif api == "InitProducerId" and not response.error_code:
            name = request.transactional_id or ""
            found, end = self._pending.pop(name, []), self._ending.pop(name, None)
            return [] if end is None else [*_ended(found, end, certain=False)]
        elif api == "EndTxn" and not response.error_code:
            found = self._pending.pop(request.transactional_id, [])
            self._ending.pop(request.transactional_id, None)
            return [*_ended(found, exchange)] if request.committed else []
        return []


def _ended(found: list[Commit], end: Exchange, certain: bool = True) -> Iterator[Commit]:
    """Yield the commits of a transaction as its EndTxn makes them count."""
    by = named(end) + ("" if certain else f", whose answer {NOT_RECORDED}")
    for each in found:
        yield attrs.evolve(each, by=by, number=end.number, time_ns=end.time_ns, certain=certain)


def assignment(exchange: Exchange) -> Assignment | None:
    """Return what a group assigns to the client of an exchange; None if it says nothing of that."""
    request, response = exchange.request, exchange.response
    if request is None or response is None or getattr(response, "error_code", 0):
        return None
    if exchange.api == "SyncGroup":
        found = embedded.assignment(response.assignment)
        given = [
            TopicPartition(each.topic, partition)
            for each in (found.assigned_partitions if found is not None else ())
            for partition in each.partitions
        ]
        return Assignment(request.generation_id, frozenset(given))
    if exchange.api == "ConsumerGroupHeartbeat" and response.assignment is not None:
        given = [
            TopicPartition(exchange.topic_names.text(each.topic_id), partition)
            for each in response.assignment.topic_partitions
            for partition in each.partitions
        ]
        return Assignment(response.member_epoch, frozenset(given))
    return None


def client_of(exchange: Exchange) -> Client:
    """Return the host and the client id of an exchange."""
    return host_of(exchange), exchange.client_id or ""


def _commits(exchange: Exchange) -> Iterator[Commit]:
    refused = {
        TopicPartition(_name(topic, exchange), each.partition_index)
        for topic in exchange.response.topics
        for each in topic.partitions
        if each.error_code
    }
    for topic in exchange.request.topics:
        for each in topic.partitions:
            where = TopicPartition(_name(topic, exchange), each.partition_index)
            if where not in refused and each.committed_offset >= 0:
                yield Commit(
                    exchange.request.group_id, where, each.committed_offset, named(exchange),
                    exchange.number, exchange.time_ns, client_of(exchange),
                )  # fmt: skip


def _name(topic: Any, exchange: Exchange) -> str:
    return topic.name or exchange.topic_names.text(topic.topic_id)
