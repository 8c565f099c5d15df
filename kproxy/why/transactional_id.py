"""The story of a transactional id: its producers, and what each transaction wrote and came to.

::

    InitProducerId ─▶ Grant: who has which epoch ──┐
    Produce, AddPartitionsToTxn, TxnOffsetCommit ──┴▶ Transaction ─ EndTxn ─▶ committed, aborted
    PRODUCER_FENCED, INVALID_PRODUCER_EPOCH ─▶ the Grant that took the id

A producer that initializes a transactional id gets the next epoch; requests with an earlier one are
refused from then on. With transactions of version 2 (KIP-890) each EndTxn raises the epoch as well,
and partitions are added by the Produce itself.

Invariants: memory is bounded by the partitions of one transaction, and by `_GRANTS_MAX`. A producer
is said to be fenced by another only if the grant of the higher epoch is recorded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import attrs

from kproxy.exchange.delivered import may_have_reached
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.items import Gap
from kproxy.history.log_events import writes
from kproxy.protocol import error_code, is_retriable
from kproxy.why.sentences import (
    NOT_RECORDED,
    Abridged,
    clock,
    in_order,
    named,
    offsets,
    who,
)
from kproxy.why.source import Source

FENCED = frozenset({"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
"""Errors of a producer whose epoch is no longer the current one."""
_CONCURRENT = error_code("CONCURRENT_TRANSACTIONS")
_GRANTS_MAX = 1000
_UNKNOWN_END = f"whose end {NOT_RECORDED}"
"""The end of a transaction whose EndTxn has no answer, or that is open at a gap."""
_TAKEN_MAX = 1000
_PARTITIONS_NAMED = 6


@attrs.frozen
class Grant:
    """An epoch that the coordinator gave to a producer."""

    producer_id: int
    epoch: int
    who: str
    """The client and its host."""
    by: str
    """The exchange: `InitProducerId #5`."""
    time_ns: int
    producer: int
    """Counts producers: one that raises its own epoch stays the same."""
    is_fresh: bool
    """True if the producer initialized the id without an epoch of its own: it takes the id."""
    timeout_ms: int


@attrs.define(eq=False)
class Transaction:
    """A transaction that has begun."""

    began_ns: int
    began: str
    """How its begin is told: `begun with Produce #5`; `first seen with …` if it may be earlier."""
    records: dict[TopicPartition, tuple[int, int | None, int | None]] = attrs.field(
        factory=dict[TopicPartition, tuple[int, int | None, int | None]]
    )
    """Records, first offset and last offset by partition; partitions that were only added have 0
    records."""
    offsets: dict[str, dict[TopicPartition, int]] = attrs.field(
        factory=dict[str, dict[TopicPartition, int]]
    )
    """Offsets that were sent with it, by group."""
    unanswered: list[str] = attrs.field(factory=list[str])
    """Writes whose outcome is unknown."""
    ending: str = ""
    """What its EndTxn was to do that was not answered: `EndTxn #12 was to commit`."""
    aborting: str = ""
    """The InitProducerId that found it open, and was told to come again: the coordinator aborts it
    since then."""
    _sequences: set[tuple[TopicPartition, int, int, int]] = attrs.field(
        factory=set[tuple[TopicPartition, int, int, int]]
    )

    def write(
        self,
        where: TopicPartition,
        records: int,
        first: int | None,
        last: int | None,
        sequences: Sequence[tuple[int, int, int]],
    ) -> None:
        """Add records that the broker took; a batch that was sent again counts once."""
        ids = {(where, *each) for each in sequences}
        if ids and ids <= self._sequences:
            return
        self._sequences |= ids
        before, start, end = self.records.get(where, (0, None, None))
        start = first if start is None else start
        self.records[where] = before + records, start, last if last is not None else end

    def __str__(self) -> str:
        parts = [_written(*each) for each in self.records.items()]
        text = listed(parts, _PARTITIONS_NAMED) or "no records"
        for group, taken in self.offsets.items():
            found = [f"{topic}[{partition}@{n}]" for (topic, partition), n in taken.items()]
            text += f"; offsets of group {group}: {listed(found, _PARTITIONS_NAMED) or 'none'}"
        if self.unanswered:
            text += f"; without an answer: {listed(self.unanswered)}"
        return text


def _written(where: TopicPartition, found: tuple[int, int | None, int | None]) -> str:
    topic, partition = where
    records, first, last = found
    if not records:
        return f"{topic}[{partition}] added"
    known = f" {offsets(first, last)}" if first is not None and last is not None else ""
    return f"{topic}[{partition}] {count(records, 'record')}{known}"


@attrs.frozen
class Taken:
    """A transaction that an InitProducerId ended."""

    number: int
    transaction: Transaction
    by: str
    """The exchange: `InitProducerId #5`."""
    time_ns: int
    """Its arrival."""
    after: str
    """How long the transaction took, in words."""
    longest: tuple[float, str]
    """The longest transaction so far, this one included."""

    def __str__(self) -> str:
        found, by = self.transaction, self.by
        begun = f"transaction {self.number}, {found.began}: {found}"
        if found.ending:
            return f"{begun}; {_unknown_end(found)}."
        if found.aborting:
            how = (
                f"aborted since {found.aborting} (answered CONCURRENT_TRANSACTIONS), taken over"
                f" with {by}"
            )
        else:
            how = f"aborted with {by}"
        return f"{begun}; {how} {self.after}."


@attrs.define(eq=False)
class TransactionalId:
    """Collects the story of one transactional id."""

    id: str
    grants: deque[Grant] = attrs.field(factory=lambda: deque(maxlen=_GRANTS_MAX), init=False)
    producers: int = attrs.field(default=0, init=False)
    open: Transaction | None = attrs.field(default=None, init=False)
    sees_begins: bool = attrs.field(default=False, init=False)
    """True if nothing is open that began before the recording, or in a gap."""
    ends: Counter[str] = attrs.field(factory=Counter[str], init=False)
    longest: tuple[float, str] = attrs.field(default=(0.0, ""), init=False)
    retriable: dict[tuple[str, str], list[str]] = attrs.field(
        factory=dict[tuple[str, str], list[str]], init=False
    )
    """API and error → the first exchange; further ones are counted."""
    retriable_counts: Counter[tuple[str, str]] = attrs.field(
        factory=Counter[tuple[str, str]], init=False
    )
    commits: Abridged = attrs.field(factory=lambda: Abridged("committed transaction"), init=False)
    events: Abridged = attrs.field(factory=lambda: Abridged("event", 20), init=False)

    _taken: list[Taken] = attrs.field(factory=list[Taken], init=False)
    """The latest transactions that producers ended by beginning anew: an EndTxn of them that was
    not answered may come later."""
    _ended: int = attrs.field(default=0, init=False)

    fenced: str = attrs.field(default="", init=False)
    """The first request that was refused for its epoch, with the cause."""
    fenced_count: int = attrs.field(default=0, init=False)
    fenced_number: int = attrs.field(default=0, init=False)
    """The exchange of the first one."""

    @staticmethod
    def wants(exchange: Exchange) -> bool:
        """Return whether an exchange may belong to the story of a transactional id."""
        return exchange.api in _TAKES

    def add(self, exchange: Exchange) -> None:
        """Take the next exchange that names the id, in order of completion."""
        take = _TAKES.get(exchange.api or "")
        if take is not None and exchange.request is not None:
            take(self, exchange)

    def begun(self, exchange: Exchange) -> Transaction:
        """Return the transaction that is open; an exchange begins one if there is none."""
        if self.open is None:
            how = "begun" if self.sees_begins else "first seen"
            self.open = Transaction(exchange.time_ns, f"{how} with {named(exchange)}")
        return self.open

    def errors(self, exchange: Exchange, epoch: tuple[int, int] | None) -> None:
        """Take the errors of an exchange that had this producer id and epoch."""
        for error in exchange.errors:
            code = error_code(error)
            if error not in FENCED and code is not None and is_retriable(code):
                key = exchange.api or "", error
                self.retriable.setdefault(key, [named(exchange)])
                self.retriable_counts[key] += 1
                continue
            made = exchange.injected or exchange.broker_errors is not None
            by = f" by kproxy (fault rule {listed(faults.acting(exchange))})" if made else ""
            text = f"{named(exchange)} of {who(exchange)} is refused{by}: {error}"
            if error in FENCED and not made:
                text += self._fencing(exchange, epoch)
                self.fenced_count += 1
                if not self.fenced:
                    self.fenced, self.fenced_number = text, exchange.number
            self.events.say(exchange.time_ns, f"{text}.")

    def _fencing(self, exchange: Exchange, epoch: tuple[int, int] | None) -> str:
        """Return who took the id from the producer of this producer id and epoch."""
        if epoch is None:
            return f"; its epoch {NOT_RECORDED}"
        own = next((each for each in self.grants if (each.producer_id, each.epoch) == epoch), None)
        later = [each for each in self.grants if each.is_fresh and _follows(each, epoch)]
        taker = next((each for each in later if own is None or each.producer != own.producer), None)
        text = f". It has epoch {epoch[1]}"
        if own is not None:
            text += f" (given by {own.by})"
        if taker is not None:
            same = f" with producer id {taker.producer_id}" if taker.producer_id != epoch[0] else ""
            return (
                f"{text}; {taker.who} took the transactional id at {clock(taker.time_ns)} with"
                f" {taker.by} and got epoch {taker.epoch}{same}"
            )
        if own is not None and self.open is not None and own.timeout_ms:
            open_ms = (exchange.time_ns - self.open.began_ns) / 1e6
            if open_ms > own.timeout_ms:
                return (
                    f"{text}; its transaction had been open for {age(open_ms)}, and brokers abort"
                    f" one that is open for longer than transaction.timeout.ms"
                    f" ({age(own.timeout_ms)})"
                )
        return f"{text}; who took the transactional id {NOT_RECORDED}"

    def end(self, exchange: Exchange, how: str) -> None:
        """Take the end of the transaction that is open; nothing if there is none."""
        ended, self.open = self.open, None
        is_whole, self.sees_begins = self.sees_begins, True
        if ended is None:
            return
        self._ended += 1
        took_ms = max(0.0, (_answered_ns(exchange) - ended.began_ns) / 1e6)
        longest = max(self.longest, (took_ms, named(exchange))) if is_whole else self.longest
        after = f"after{'' if is_whole else ' at least'} {age(took_ms)}{_lost(exchange)}"
        if exchange.api == "InitProducerId":
            found = Taken(self._ended, ended, named(exchange), exchange.time_ns, after, longest)
            self._taken.append(found)
            if len(self._taken) > _TAKEN_MAX:
                self._tell(self._taken.pop(0))
            return
        self.longest = longest
        self.ends[how] += 1
        text = (
            f"transaction {self._ended}, {ended.began}: {ended}; {how} with {named(exchange)}"
            f" {after}."
        )
        kind = self.commits if how == "committed" else self.events
        kind.say(ended.began_ns, text)

    def gap(self) -> None:
        """Take a gap: what was open may have ended in it, and something else begun."""
        self.leave()
        self.sees_begins = False

    def leave(self) -> None:
        """Take that the end of the transaction that is open will not be known; nothing if there is
        none."""
        left, self.open = self.open, None
        if left is None:
            return
        self._ended += 1
        self.ends[_UNKNOWN_END] += 1
        text = f"transaction {self._ended}, {left.began}: {left}; {_unknown_end(left)}."
        self.events.say(left.began_ns, text)

    def end_unanswered(self, exchange: Exchange, wish: str) -> None:
        """Take an EndTxn without an answer: what it was to end may have been ended by it."""
        if not may_have_reached(exchange):
            return
        ending = f"{named(exchange)} was to {wish}"
        if self.open is not None and self.open.began_ns <= exchange.time_ns:
            self.open.ending = ending
            return
        for each in self._taken:
            if each.transaction.began_ns <= exchange.time_ns < each.time_ns:
                each.transaction.ending = ending

    def _tell(self, taken: Taken) -> None:
        is_known = not taken.transaction.ending
        self.ends["aborted" if is_known else _UNKNOWN_END] += 1
        self.longest = max(self.longest, taken.longest) if is_known else self.longest
        self.events.say(taken.transaction.began_ns, str(taken))

    def lines(self) -> Iterator[str]:
        """Yield the sentences."""
        for each in self._taken:
            self._tell(each)
        self._taken.clear()
        total = sum(self.ends.values()) + (self.open is not None)
        ends = [f"{times} {how}" for how, times in self.ends.items()]
        if self.open is not None:
            ends.append("1 without an end in the recording")
        text = f"Transactional id {self.id}: {count(self.producers, 'producer')}"
        text += f" in the recording; {count(total, 'transaction')}"
        text += f" ({listed(ends, 4)})" if ends else ""
        took_ms, by = self.longest
        yield text + (f"; the longest took {age(took_ms)} (until {by})." if by else ".")
        yield from in_order(self.commits, self.events)
        if self.open is not None:
            yield self._left_open(self.open)
        for (api, error), first in self.retriable.items():
            times = self.retriable_counts[api, error]
            again = f"{times} times, first" if times > 1 else "once,"
            yield f"{api} was answered {error} {again} {first[0]}; clients try again after it."

    def _left_open(self, left: Transaction) -> str:
        text = f"{clock(left.began_ns)} transaction {left.began}: {left}; "
        return f"{text}{_unknown_end(left)}."


def _unknown_end(left: Transaction) -> str:
    if left.ending:
        return f"{left.ending}; its answer {NOT_RECORDED}"
    return f"whether it was committed or aborted {NOT_RECORDED}"


def _lost(exchange: Exchange) -> str:
    return ", which its client was not told" if exchange.undelivered else ""


def _follows(grant: Grant, epoch: tuple[int, int]) -> bool:
    """Return whether a grant is later than that of a producer id and epoch. Producer ids of one
    transactional id grow, and each begins with epoch 0."""
    return (grant.producer_id, grant.epoch) > epoch


def _answered_ns(exchange: Exchange) -> int:
    return exchange.row.response_received_ns or exchange.time_ns


def transactional_id_story(source: Source, value: str) -> Iterator[str]:
    """Yield the story of a transactional id."""
    story, is_named = TransactionalId(value), False
    for exchange in source.read(matching("transactional_id", value)):
        if isinstance(exchange, Gap):
            story.gap()
        if not isinstance(exchange, Exchange) or value not in exchange.transactional_ids:
            continue
        is_named = True
        story.add(exchange)
    if is_named:
        yield from story.lines()


def _initialize(story: TransactionalId, exchange: Exchange) -> None:
    request, response = exchange.request, exchange.response
    own_id = getattr(request, "producer_id", -1)
    sent = (own_id, getattr(request, "producer_epoch", -1))
    if response is None:
        text = f"{named(exchange)} of {who(exchange)}{_silence(exchange)}."
        story.events.say(exchange.time_ns, text)
        return
    story.errors(exchange, sent if own_id >= 0 else None)
    if response.error_code:
        concurrent = response.error_code == _CONCURRENT and not exchange.injected
        if concurrent and exchange.broker_errors is None and story.open is not None:
            story.open.aborting = story.open.aborting or named(exchange)
        return
    before = story.grants[-1] if story.grants else None
    own = next((each for each in story.grants if (each.producer_id, each.epoch) == sent), None)
    is_fresh = own_id < 0
    story.producers += is_fresh or own is None
    given = Grant(
        response.producer_id, response.producer_epoch, who(exchange), named(exchange),
        exchange.time_ns, story.producers if own is None else own.producer, is_fresh,
        request.transaction_timeout_ms,
    )  # fmt: skip
    story.grants.append(given)
    verb = "initializes it" if is_fresh else "raises its own epoch"
    text = (
        f"{given.who} {verb}: producer id {given.producer_id}, epoch {given.epoch}, transaction"
        f" timeout {age(given.timeout_ms)} ({given.by})"
    )
    if before is not None and is_fresh:
        text += (
            f"; requests with an earlier epoch, such as epoch {before.epoch} of {before.who}"
            f" ({before.by}), are refused from now on"
        )
        if story.open is not None and story.open.aborting:
            text += " at the latest"
    story.events.say(given.time_ns, f"{text}.")
    if story.open is not None and story.open.ending:
        story.leave()  # it was over before, unless its EndTxn was lost
    story.end(exchange, "aborted")


def _produce(story: TransactionalId, exchange: Exchange) -> None:
    if exchange.response is None:
        found = list(writes(exchange))
        story.begun(exchange).unanswered.append(named(exchange))
        for each in found:
            story.begun(exchange).records.setdefault(each.where, (0, None, None))
        return
    epoch: tuple[int, int] | None = None
    for each in writes(exchange):
        if each.sequences:
            epoch = each.sequences[0][0], each.sequences[0][1]
        if not each.error:
            story.begun(exchange).write(
                each.where, each.records, each.offset, each.last_offset, each.sequences
            )
    story.errors(exchange, epoch)


def _add_partitions(story: TransactionalId, exchange: Exchange) -> None:
    request = exchange.request
    if request.v3_and_below_transactional_id != story.id or exchange.response is None:
        return
    story.errors(exchange, (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch))
    if not exchange.errors:
        for topic in request.v3_and_below_topics:
            for partition in topic.partitions:
                where = TopicPartition(topic.name, partition)
                story.begun(exchange).records.setdefault(where, (0, None, None))


def _add_offsets(story: TransactionalId, exchange: Exchange) -> None:
    request = exchange.request
    story.errors(exchange, (request.producer_id, request.producer_epoch))
    if exchange.response is not None and not exchange.errors:
        story.begun(exchange).offsets.setdefault(request.group_id, {})


def _commit_offsets(story: TransactionalId, exchange: Exchange) -> None:
    request = exchange.request
    story.errors(exchange, (request.producer_id, request.producer_epoch))
    if exchange.response is None or exchange.errors:
        return
    taken = story.begun(exchange).offsets.setdefault(request.group_id, {})
    for topic in request.topics:
        name = topic.name or exchange.topic_names.text(topic.topic_id)
        for each in topic.partitions:
            taken[TopicPartition(name, each.partition_index)] = each.committed_offset


def _end(story: TransactionalId, exchange: Exchange) -> None:
    request, response = exchange.request, exchange.response
    how = "committed" if request.committed else "aborted"
    if response is None:
        wish = "commit" if request.committed else "abort"
        story.end_unanswered(exchange, wish)
        text = f"{named(exchange)} of {who(exchange)}, to {wish}{_silence(exchange)}."
        story.events.say(exchange.time_ns, text)
        return
    sent = request.producer_id, request.producer_epoch
    story.errors(exchange, sent)
    if response.error_code:
        return
    raised = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
    own = next((each for each in story.grants if (each.producer_id, each.epoch) == sent), None)
    if own is not None and raised[0] >= 0 and raised > sent:
        given = attrs.evolve(
            own, is_fresh=False, producer_id=raised[0], epoch=raised[1], by=named(exchange),
            time_ns=exchange.time_ns,
        )  # fmt: skip
        story.grants.append(given)
    story.end(exchange, how)


def _silence(exchange: Exchange) -> str:
    by = f" (fault rule {listed(exchange.faults)} touched it)" if exchange.faults else ""
    if exchange.open_at_end:
        return f", has no answer before the recording ends{by}"
    return f", was never answered{by}: whether it worked {NOT_RECORDED}"


_TAKES: dict[str, Callable[[TransactionalId, Exchange], None]] = {
    "InitProducerId": _initialize,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _add_offsets,
    "Produce": _produce,
    "TxnOffsetCommit": _commit_offsets,
    "EndTxn": _end,
}
"""API → how it changes the story."""
