"""The story of a topic: its partitions, who wrote and read it, how far, and what was found.

Source ─ exchanges of the topic and of groups ─┬─▶ TopicUse ─▶ sentences on writers, readers, errors
                                               └─▶ Findings ─▶ sentences on what went wrong

Invariant: memory is bounded by clients and partitions; lists name at most `_NAMED_MAX`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import attrs

from kproxy.exchange import delivered
from kproxy.exchange.body_facts import Records
from kproxy.exchange.deletions import deleted_topics
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter, matching
from kproxy.exchange.filter.terms import grouped
from kproxy.exchange.topic_records import aborted_count, batch_heads
from kproxy.exchange.words.failures import made_by_rule
from kproxy.exchange.words.wording import age, count, listed, partitions
from kproxy.history.items import Gap
from kproxy.protocol import error_name
from kproxy.units import format_bytes
from kproxy.why.committed import COMMIT_APIS, Commit, Commits, partition_counts
from kproxy.why.findings import Findings
from kproxy.why.sentences import NOT_RECORDED, at, clock, named, who
from kproxy.why.source import Source
from kproxy.why.written import SENT, TRIED, writes

GROUP_APIS = (
    *COMMIT_APIS, "JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "ConsumerGroupHeartbeat",
    "InitProducerId",
)  # fmt: skip
"""Requests that findings about a topic need, though they may not name it."""
_NAMED_MAX = 10
_CLIENTS_MAX = 1000
_FINDINGS_MAX = 20


@attrs.define(eq=False)
class ClientUse:
    """What one client did with a topic, by writing or by reading."""

    requests: int = 0
    records: int = 0
    aborted: int = 0
    """Records of transactions that are known to be aborted."""
    size_bytes: int = 0
    partitions: set[int] = attrs.field(factory=set[int])
    first_ns: int = 0
    last_ns: int = 0
    first_records_ns: int = 0
    last_records_ns: int = 0
    """Of the requests that carried records."""
    groups: set[str] = attrs.field(factory=set[str])

    def take(self, found: Records, time_ns: int) -> int:
        """Count records of a partition in a request of this time; return how many there are."""
        records = batch_heads(found).records or 0
        self.records += records
        if records:
            self.first_records_ns = self.first_records_ns or time_ns
            self.last_records_ns = max(self.last_records_ns, time_ns)
        self.size_bytes += len(found.data)
        self.partitions.add(found.partition)
        return records

    def add(self, exchange: Exchange) -> None:
        """Count a request."""
        self.requests += 1
        self.first_ns = self.first_ns or exchange.time_ns
        self.last_ns = max(self.last_ns, exchange.time_ns)


@attrs.define(eq=False)
class TopicUse:
    """Collects what exchanges show of one topic."""

    topic: str
    partition_count: int = 0
    counted_by: str = ""
    changes: list[str] = attrs.field(factory=list[str], init=False)
    writers: dict[tuple[str, str], ClientUse] = attrs.field(
        factory=dict[tuple[str, str], ClientUse], init=False
    )
    """Client and what became of its writes → the writes."""
    readers: dict[tuple[str, str], ClientUse] = attrs.field(
        factory=dict[tuple[str, str], ClientUse], init=False
    )
    _batches: delivered.Numbers = attrs.field(factory=set, init=False)
    """What idempotent producers have written."""
    routine: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Errors by which clients and brokers come to terms."""
    errors: Counter[tuple[str, str]] = attrs.field(factory=Counter[tuple[str, str]], init=False)
    first_errors: dict[tuple[str, str], Exchange] = attrs.field(
        factory=dict[tuple[str, str], Exchange], init=False
    )
    commits: Commits = attrs.field(factory=Commits, init=False)
    committed: dict[str, dict[int, Commit]] = attrs.field(
        factory=dict[str, dict[int, Commit]], init=False
    )
    commit_counts: Counter[str] = attrs.field(factory=Counter[str], init=False)
    open: dict[str, list[tuple[ClientUse, int]]] = attrs.field(
        factory=dict[str, list[tuple[ClientUse, int]]], init=False
    )
    """Transactional id → writers and their records in the transaction that is open."""
    taken: dict[str, tuple[int, list[tuple[ClientUse, int]]]] = attrs.field(
        factory=dict[str, tuple[int, list[tuple[ClientUse, int]]]], init=False
    )
    """Transactional id → the same of the transaction that its latest InitProducerId found open, and
    the time of that."""
    is_named: bool = False

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange, in order of completion."""
        for each in self.commits.add(exchange):
            if each.where.topic == self.topic:
                self.committed.setdefault(each.group, {})[each.where.partition] = each
                self.commit_counts[each.group] += 1
        if exchange.api in ("EndTxn", "InitProducerId"):
            self._ended(exchange)
        if self.topic not in exchange.topics:
            return
        self.is_named = True
        for name, partition_count in partition_counts(exchange):
            if name == self.topic:
                self._counted(exchange, partition_count)
        match exchange.api:
            case "CreateTopics":
                self._created(exchange)
            case "DeleteTopics":
                self._deleted(exchange)
            case "Produce" | "Fetch":
                self._records(exchange)
            case _:
                pass
        self._errors(exchange)

    def _counted(self, exchange: Exchange, partition_count: int) -> None:
        if self.partition_count and partition_count != self.partition_count:
            self.changes.append(
                f"{at(exchange)} It has {partition_count} instead of {self.partition_count}"
                f" partitions ({named(exchange)})."
            )
        if partition_count != self.partition_count:
            self.partition_count, self.counted_by = partition_count, named(exchange)

    def _created(self, exchange: Exchange) -> None:
        request = exchange.request
        if exchange.response is None or request is None or request.validate_only:
            return
        for each in exchange.response.topics:
            if each.name == self.topic and not each.error_code:
                text = f"{at(exchange)} {who(exchange)} created it ({named(exchange)})."
                self.changes.append(text)

    def _deleted(self, exchange: Exchange) -> None:
        if self.topic in deleted_topics(exchange):
            text = f"{at(exchange)} {who(exchange)} deleted it ({named(exchange)})."
            self.changes.append(text)
            self.partition_count = 0

    def _ended(self, exchange: Exchange) -> None:
        """Take the end of a transaction: a producer that begins anew aborts what is open. An
        EndTxn without an answer, which may come here later, may have committed it before."""
        request, response = exchange.request, exchange.response
        name = "" if request is None else request.transactional_id or ""
        if response is None:
            self.open.pop(name, None)
            taken_ns, found = self.taken.get(name, (0, list[tuple[ClientUse, int]]()))
            if exchange.api == "EndTxn" and exchange.time_ns < taken_ns:
                self._abort(found, -1)
                del self.taken[name]
        elif request is not None and name in self.open and not response.error_code:
            found = self.open.pop(name)
            if exchange.api == "InitProducerId":
                self.taken[name] = exchange.time_ns, found
            if exchange.api == "InitProducerId" or not request.committed:
                self._abort(found)

    def _abort(self, found: list[tuple[ClientUse, int]], sign: int = 1) -> None:
        for use, records in found:
            use.aborted += sign * records

    def _records(self, exchange: Exchange) -> None:
        if exchange.api == "Produce":
            self._written(exchange)
            return
        use = _use(self.readers, exchange, "fetched")
        use.add(exchange)
        if exchange.may_be_lost or exchange.response_told is not None:
            return  # the client got something else
        refused = {each.where for each in exchange.facts.results if each.error_code}
        for each in exchange.facts.records:
            if each.topic == self.topic and each.where not in refused:
                use.take(each, exchange.time_ns)
                use.aborted += aborted_count(each)
                if group := self.commits.group(exchange, each.where):
                    use.groups.add(group)

    def _written(self, exchange: Exchange) -> None:
        within = getattr(exchange.request, "transactional_id", None)
        outcomes = {each.where: each.outcome for each in writes(exchange)}
        for done in dict.fromkeys(outcomes[each] for each in outcomes if each.topic == self.topic):
            _use(self.writers, exchange, done).add(exchange)
        for each in exchange.facts.records:
            if each.topic != self.topic or each.where not in outcomes:
                continue
            done = outcomes[each.where]
            where = each.topic, each.partition
            numbers = {(*where, *one) for one in batch_heads(each).sequences}
            if done == TRIED or not numbers or not numbers <= self._batches:
                use = _use(self.writers, exchange, done)
                records = use.take(each, exchange.time_ns)
                if (
                    done != TRIED
                    and within
                    and (within in self.open or len(self.open) < _CLIENTS_MAX)
                ):
                    self.open.setdefault(within, []).append((use, records))
            if done != TRIED:
                self._batches |= numbers

    def _errors(self, exchange: Exchange) -> None:
        """Count the errors of this topic; where a response has several topics, those of Produce and
        Fetch only, which say of which topic they are."""
        made = exchange.injected or exchange.broker_errors is not None
        if exchange.api in ("Produce", "Fetch") and not made:
            found = [
                error_name(each.error_code)
                for each in exchange.facts.results
                if each.error_code and each.where.topic == self.topic
            ]
        else:
            found = exchange.errors if exchange.topics == [self.topic] else []
        if exchange.routine:
            self.routine.update(f"{error} of {exchange.api}" for error in dict.fromkeys(found))
            return
        for error in dict.fromkeys(found):
            by = " (made by kproxy)" if made_by_rule(exchange, error) else ""
            key = f"{exchange.api}{by}", error
            self.errors[key] += 1
            self.first_errors.setdefault(key, exchange)


def _use(uses: dict[tuple[str, str], ClientUse], exchange: Exchange, did: str) -> ClientUse:
    key = who(exchange), did
    if key not in uses and len(uses) >= _CLIENTS_MAX:
        key = "other clients", did
    return uses.setdefault(key, ClientUse())


def topic_story(source: Source, value: str) -> Iterator[str]:
    """Yield the story of a topic."""
    use, findings = TopicUse(value), Findings(value)
    apis = matching("api", *GROUP_APIS).node
    for item in source.read(Filter(grouped([matching("topic", value).node, apis], one=True))):
        findings.add(item)
        if isinstance(item, Exchange):
            use.add(item)
        elif isinstance(item, Gap):
            use.commits = Commits()
    if not use.is_named:
        return
    yield from _partitions(use)
    yield from _clients(use.writers, use, "Nobody wrote to it in the recording.")
    yield from _clients(use.readers, use, "Nobody fetched it in the recording.")
    yield from _commits(use)
    yield from _error_lines(use)
    found = findings.found()
    for each in found[:_FINDINGS_MAX]:
        yield f"{each.kind[0].upper()}{each.kind[1:]}: {each.whole}"
    if len(found) > _FINDINGS_MAX:
        yield f"There are {count(len(found) - _FINDINGS_MAX, 'more finding')}."


def _partitions(use: TopicUse) -> Iterator[str]:
    if use.partition_count:
        has = count(use.partition_count, "partition")
        yield f"Topic {use.topic} has {has} ({use.counted_by})."
    else:
        yield f"The number of partitions of topic {use.topic} {NOT_RECORDED}."
    yield from use.changes[:_NAMED_MAX]
    if len(use.changes) > _NAMED_MAX:
        yield f"It was changed {len(use.changes) - _NAMED_MAX} more times."


def _clients(uses: dict[tuple[str, str], ClientUse], use: TopicUse, none: str) -> Iterator[str]:
    if not uses:
        yield none
    most = sorted(uses.items(), key=lambda each: -each[1].records)
    for (name, verb), each in most[:_NAMED_MAX]:
        where = partitions(use.topic, [str(n) for n in sorted(each.partitions)])
        groups = f" for group {listed(sorted(each.groups))}" if each.groups else ""
        text = f"{name} {verb} {count(each.records, 'record')}"
        if each.records:
            text += f" ({format_bytes(each.size_bytes)}) of {where}" if verb == "fetched" else (
                f" ({format_bytes(each.size_bytes)}) to {where}"
            )  # fmt: skip
        if each.aborted:
            text += f", {each.aborted} of them in transactions that were aborted,"
        text += f"{groups} with {'acks=0, in ' if verb == SENT else ''}"
        text += f"{count(each.requests, 'request')}, {clock(each.first_ns)}"
        lasted_ms = (each.last_ns - each.first_ns) / 1e6
        if lasted_ms:
            text += f" to {clock(each.last_ns)}"
        busy_ms = (each.last_records_ns - each.first_records_ns) / 1e6
        if busy_ms >= 1000:
            rate = each.records / busy_ms * 1000
            text += f", {rate:{'.0f' if rate >= 100 else '.3g'}} records/s over {age(busy_ms)}"
        yield f"{text}."
    if len(most) > _NAMED_MAX:
        more: dict[str, list[int]] = {}
        for (_, verb), each in most[_NAMED_MAX:]:
            more.setdefault(verb, []).append(each.records)
        for verb, found in more.items():
            records = count(sum(found), "record")
            yield f"{count(len(found), 'more client')} {verb} {records}."


def _commits(use: TopicUse) -> Iterator[str]:
    for group, by_partition in sorted(use.committed.items())[:_NAMED_MAX]:
        found = [
            f"{use.topic}[{partition}@{commit.offset}] ({_by(commit)})"
            for partition, commit in sorted(by_partition.items())
        ]
        times = count(use.commit_counts[group], "offset")
        yield f"Group {group} committed {times}, the last {listed(found, 6)}."
    if len(use.committed) > _NAMED_MAX:
        yield f"{count(len(use.committed) - _NAMED_MAX, 'more group')} committed offsets of it."


def _by(commit: Commit) -> str:
    return f"#{commit.number}" if commit.certain else f"maybe, by {commit.by}"


def _error_lines(use: TopicUse) -> Iterator[str]:
    if use.routine:
        found = [f"{error} ×{times}" for error, times in use.routine.most_common()]
        yield f"Routine answers, which are no failures: {listed(found, _NAMED_MAX)}."
    for (api, error), times in use.errors.most_common(_NAMED_MAX):
        first = use.first_errors[api, error]
        again = f" ×{times}, first" if times > 1 else ","
        yield f"{error} of {api}{again} #{first.number} of {at(first)} to {who(first)}."
    if len(use.errors) > _NAMED_MAX:
        yield f"There are {count(len(use.errors) - _NAMED_MAX, 'more kind')} of errors."
