"""Findings about Produces of whose outcome the client did not learn: what was sent again, and what
was not.

::

    Produce without a delivered answer,
    or with an error after the append ─▶ _Unlearned, its records ──┐
    later Produce of the client to that partition ─▶ records ──────┴─▶ written twice, or maybe,
                                                                       or no retry

A Produce is read when it is answered: one that the broker answers when its client has given it up
comes behind its retry. So the last ones are kept for it.

Of a Produce that was never answered nobody knows whether the broker took it: what was sent again
may be there twice, and no more is said.

Clients put records into other batches when they send them again, so records are compared, each with
its timestamp, key, value and headers; of idempotent producers it is the sequence numbers.

Invariants: of at most `_RECORDS_MAX` records a hash is kept, and so many are compared; after that,
nothing is said not to have been sent again. Of retries that are read first, at most `_LAST_MAX` are
kept.
"""

from __future__ import annotations

import functools
from collections import Counter, deque
from collections.abc import Callable, Container, Hashable, Iterator

import attrs

from kproxy.exchange.delivered import may_have_reached
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import WITHHELD
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import count, listed
from kproxy.history.items import Gap, Item
from kproxy.why import again
from kproxy.why.finding import Finding, Harm
from kproxy.why.sentences import at, named, offsets, who
from kproxy.why.written import Write, writes

_RECORDS_MAX = 250_000
_LAST_MAX = 1000

_Key = tuple[TopicPartition, str, int]
"""A partition, a client, and the hash of a record or of sequence numbers."""


@attrs.frozen(eq=False)
class _Sent:
    """What a Produce has for a partition."""

    write: Write
    keys: list[_Key]
    """Those of its sequence numbers, then those of its records."""
    is_timed: bool
    """True if its records have timestamps. Without them, an app may have sent equal ones."""


@attrs.define(eq=False)
class _Unlearned:
    """A Produce whose client did not learn what came of what it had for a partition."""

    number: int
    time_ns: int
    text: str
    """The exchange: `Produce #9 of shop (127.0.0.1) at 12:00:00.000`."""
    sent: _Sent
    outcome: str
    """What became of the response; `_UNANSWERED` if none came."""
    is_withheld: bool
    """True if a fault rule dropped the response or cut it off. Where a connection ended, its retry
    may be read before it: then nothing is said of retries."""
    is_again: bool = False
    """True if a later Produce has all of it, or a part."""


@attrs.define(eq=False)
class Resent:
    """Finds records that were written twice, or maybe, and Produces without an answer nor a retry:
    of all Produces, or of those that `only` chooses."""

    only: Callable[[Exchange], bool] | None = None
    _kept: dict[_Key, list[tuple[_Unlearned, int]]] = attrs.field(
        factory=dict[_Key, list[tuple[_Unlearned, int]]], init=False
    )
    """Record → the Produces that had it, and its place in their batches."""
    _places: set[TopicPartition] = attrs.field(factory=set[TopicPartition], init=False)
    _unlearned: list[_Unlearned] = attrs.field(factory=list[_Unlearned], init=False)
    _last: deque[Exchange] = attrs.field(
        factory=functools.partial(deque[Exchange], maxlen=_LAST_MAX), init=False
    )
    """The last Produces, for those that are answered behind their retries."""
    _compared: int = attrs.field(default=0, init=False)
    _twice: dict[str, tuple[str, int, int]] = attrs.field(
        factory=dict[str, tuple[str, int, int]], init=False
    )
    """Topic → its first example."""
    _pairs: Counter[str] = attrs.field(factory=Counter[str], init=False)
    """Topic → the pairs of a first write and a later one."""
    _retries: dict[str, set[int]] = attrs.field(factory=dict[str, set[int]], init=False)
    """Topic → the numbers of the requests that wrote records again."""
    _records: Counter[str] = attrs.field(factory=Counter[str], init=False)
    _maybe: dict[str, tuple[str, int, int]] = attrs.field(
        factory=dict[str, tuple[str, int, int]], init=False
    )
    """Topic → the first example of a Produce that was never answered and came again …"""
    _maybe_numbers: dict[str, set[int]] = attrs.field(factory=dict[str, set[int]], init=False)
    """… and the numbers of all."""

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):  # a retry may lie in it
            for table in (self._kept, self._places, self._unlearned, self._last):
                table.clear()
        if not isinstance(item, Exchange) or item.api != "Produce" or item.injected:
            return
        if item.is_copy:  # kproxy's own, which no client waits for
            return
        outcome = _outcome(item) if self.only is None or self.only(item) else ""
        is_unlearned = bool(outcome)
        for sent in self._identified(item, None if is_unlearned else self._places):
            self._compare(item, sent)
            if is_unlearned:
                self._keep(item, sent, outcome)
        if is_unlearned:
            places = {each.where for each in writes(item)}
            # Copies: what is read of their bodies goes with them.
            for retry in [attrs.evolve(each) for each in self._last if each.time_ns > item.time_ns]:
                for sent in self._identified(retry, places):
                    self._compare(retry, sent, item.number)
        self._last.append(attrs.evolve(item))

    def _identified(
        self, item: Exchange, places: Container[TopicPartition] | None
    ) -> Iterator[_Sent]:
        """Yield what a Produce has for some places, or for all, as long as more may be compared."""
        if places is not None and not places:
            return
        found = {each.where: each for each in writes(item)}
        for each in item.facts.records:
            write = found.get(each.where)
            if write is None or not (places is None or each.where in places):
                continue
            if self._compared >= _RECORDS_MAX:
                return
            # A producer whose epoch was raised sends the same records with new sequence numbers.
            parts: list[Hashable] = [*write.sequences, *again.record_identities(each)]
            self._compared += len(parts)
            keys = [(each.where, who(item), hash(part)) for part in parts]
            yield _Sent(write, keys, is_timed=each.data[16:17] != b"\0")

    def _keep(self, item: Exchange, sent: _Sent, outcome: str) -> None:
        text = f"{named(item)} of {who(item)} at {at(item)}"
        withheld = bool(item.undelivered and item.row.response_flags & WITHHELD)
        kept = _Unlearned(item.number, item.time_ns, text, sent, outcome, withheld)
        self._unlearned.append(kept)
        self._places.add(sent.write.where)
        for nth, key in enumerate(sent.keys):
            self._kept.setdefault(key, []).append((kept, nth))

    def _compare(self, item: Exchange, sent: _Sent, first_number: int | None = None) -> None:
        """Find what a Produce writes again, of all before, or of the exchange of one number."""
        earlier: dict[int, tuple[_Unlearned, list[tuple[int, int]]]] = {}
        equal: Counter[_Key] = Counter()
        for nth, key in enumerate(sent.keys, -len(sent.write.sequences)):
            for first, places in self._firsts(key, item.time_ns):
                if first_number in (None, first.number):
                    first.is_again = True
                    if equal[key] < len(places):  # a record that is there twice, twice
                        pair = places[equal[key]], nth
                        earlier.setdefault(first.number, (first, []))[1].append(pair)
            equal[key] += 1
        for first, pairs in earlier.values():
            if sent.write.offset is None or first.sent.write.sequences:
                continue
            if first.outcome != _UNANSWERED:
                if first.sent.write.offset not in (None, sent.write.offset):
                    self._take(item, sent.write, first, pairs)
            elif first.sent.is_timed:
                self._take_maybe(item, sent.write, first, pairs)

    def _firsts(self, key: _Key, until_ns: int) -> Iterator[tuple[_Unlearned, list[int]]]:
        """Yield the Produces that had a record before a time, with its places in them: the first
        that was answered, and the first that was not; of the others, none."""
        found: dict[bool, tuple[_Unlearned, list[int]]] = {}
        for first, place in self._kept.get(key, ()):
            if first.time_ns <= until_ns:
                kept, places = found.setdefault(first.outcome == _UNANSWERED, (first, []))
                if kept is first:
                    places.append(place)
                else:
                    first.is_again = True
        yield from found.values()

    def _take(
        self, item: Exchange, write: Write, first: _Unlearned, pairs: list[tuple[int, int]]
    ) -> None:
        (topic, partition), number = write.where, len(pairs)
        old, new = first.sent.write.offset or 0, write.offset or 0
        before = offsets(old + pairs[0][0], old + pairs[-1][0])
        now = offsets(new + pairs[0][1], new + pairs[-1][1])
        others = len(pairs) < write.records
        text = (
            f"{named(item)} of {who(item)} wrote {count(number, 'record')} to"
            f" {topic}[{partition}]{now} that #{first.number} had written to {before}: the same"
            f" again{', among others' if others else ''}, of a producer that is not idempotent; the"
            f" response to #{first.number} was {first.outcome}"
        )
        self._twice.setdefault(topic, (text, first.number, item.number))
        self._pairs[topic] += 1
        self._retries.setdefault(topic, set()).add(item.number)
        self._records[topic] += number

    def _take_maybe(
        self, item: Exchange, write: Write, first: _Unlearned, pairs: list[tuple[int, int]]
    ) -> None:
        (topic, partition), number, new = write.where, len(pairs), write.offset or 0
        now = offsets(new + pairs[0][1], new + pairs[-1][1])
        them, they = ("it", "it is") if number == 1 else ("them", "they are")
        others = ", among others," if pairs[-1][1] - pairs[0][1] >= number else ""
        text = (
            f"{first.text} was never answered; {count(number, 'record')} of it for"
            f" {topic}[{partition}] came again with #{item.number}, and the broker wrote {them}"
            f"{others} to {now.lstrip()}. If it had taken #{first.number}, too, {they} there twice:"
            f" no answer says so, and #{first.number} has no sequence numbers."
        )
        self._maybe.setdefault(topic, (text, first.number, item.number))
        self._maybe_numbers.setdefault(topic, set()).add(first.number)

    def found(self) -> list[Finding]:
        """Return a finding for each topic."""
        lost: dict[str, list[_Unlearned]] = {}
        for each in self._unlearned if self._compared < _RECORDS_MAX else ():
            if each.is_withheld and not each.is_again:
                lost.setdefault(each.sent.write.where.topic, []).append(each)
        found = [self._written(topic) for topic in sorted(self._twice)]
        found += [self._maybe_written(topic) for topic in sorted(self._maybe)]
        return [*found, *(_never_told(topic, each) for topic, each in sorted(lost.items()))]

    def _written(self, topic: str) -> Finding:
        text, first, second = self._twice[topic]
        text += "."
        if self._pairs[topic] > 1:
            text += (
                f" So {count(self._records[topic], 'record')} of {topic} were written again, by"
                f" {count(len(self._retries[topic]), 'request')}."
            )
        shown_by = ("why", f"number:{first}")
        return Finding(Harm.DATA, "records written twice", text, (first, second), shown_by, topic)

    def _maybe_written(self, topic: str) -> Finding:
        text, first, second = self._maybe[topic]
        if (more := len(self._maybe_numbers[topic]) - 1) > 0:
            text += f" So it was with {count(more, 'more request')} for {topic}."
        shown_by, kind = ("why", f"number:{first}"), "records maybe written twice"
        return Finding(Harm.DATA, kind, text, (first, second), shown_by, topic)


_UNANSWERED = "never sent"
"""What became of the response to a Produce that may have reached the broker, and got none."""


def _outcome(item: Exchange) -> str:
    """Say what became of the response to a Produce whose client did not learn what came of it; ""
    of others."""
    if item.broker_errors is not None:
        by = f" by fault rule {listed(faults.acting(item))}" if item.faults else ""
        return f"made an error{by}"
    if item.unanswered is not None and not item.open_at_end and may_have_reached(item):
        return _UNANSWERED
    written = (each.error for each in writes(item) if each.error and each.offset is not None)
    return faults.unlearned(item) or next(written, "")


def _never_told(topic: str, lost: list[_Unlearned]) -> Finding:
    first, write = lost[0], lost[0].sent.write
    where = f"{topic}[{write.where.partition}]"
    said = write.error or "without an offset"
    if write.offset is not None:
        said = f"offset {write.offset}"
    text = (
        f"{first.text} had {count(write.records, 'record')} for {where}; the broker's answer,"
        f" {said}, was {first.outcome}: the client was never told, and the recording shows no"
        " retry."
    )
    if len(lost) > 1:
        text += f" So it was with {count(len(lost) - 1, 'more batch')} of {topic}."
    shown_by = ("why", f"number:{first.number}")
    return Finding(Harm.DATA, "Produce without an answer", text, (first.number,), shown_by, topic)
