"""The records of two recordings that are read side by side: what only one of them has.

::

    record of the first  ─▶ −1 ─┐
                                ├─▶ what is not 0 at the end ─▶ added, missing, changed by field
    record of the second ─▶ +1 ─┘

Equal records cancel out as they come, so memory grows with the differences, and with how far one
recording is ahead of the other. Of what does not cancel out (yet), `SAMPLE_BYTES_MAX` are kept to
be shown; of the rest its digest, so that it is counted.

Invariant: the order of records matters for those of a key, from one client, and of no others; and
is told only where the records of that key are the same.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from kproxy.exchange.topic_records import TopicRecord, Unreadable
from kproxy.exchange.words.wording import count
from kproxy.look.lines import meaning_text
from kproxy.replay.compared import Difference
from kproxy.replay.differences import compared, differences, short, text_of
from kproxy.replay.facts import client_text
from kproxy.replay.ignored import Ignored
from kproxy.replay.places import Places, pairs, places_in, varying_words
from kproxy.replay.unreadable import comparable

SAMPLE_BYTES_MAX = 64 << 20
"""Memory for the records that may be shown."""
_RECORD_BYTES = 500
"""The memory of a record, apart from its content."""

BEFORE, AFTER = -1, 1
_Written = TopicRecord | Unreadable
Wrote = Callable[[_Written], bool]
"""Returns whether a side has produced a record itself."""


class Scope(NamedTuple):
    """Where a record must be to be the same."""

    topic: str
    client: str | None
    """Who produced it; None for what consumers got."""
    partition: int | None
    """None: any."""


@attrs.define(eq=False)
class _KeyOrder:
    """The records of a key so far: whether they are the same, and came in the same order."""

    count: int = 0
    total: int = 0
    """The sum of their digests: equal, in whatever order."""
    chains: dict[int, int] = attrs.Factory(dict)
    """Side → digest of their sequence."""

    def take(self, side: int, digest: int) -> bool:
        """Take a record; return whether both sides have the same by now."""
        self.count += side
        self.total += side * digest
        self.chains[side] = hash((self.chains.get(side), digest))
        return self.is_same_set and self.chains.get(BEFORE) == self.chains.get(AFTER)

    @property
    def is_same_set(self) -> bool:
        """True if both sides have the same records, in whatever order."""
        return not self.count and not self.total


@attrs.define(eq=False)
class UnmatchedRecords:
    """Collects the records of both sides; what both have is dropped."""

    ignored: Ignored
    _room_bytes: int = SAMPLE_BYTES_MAX
    taken: dict[int, int] = attrs.field(factory=lambda: {BEFORE: 0, AFTER: 0}, init=False)
    """Side → how many records it has brought."""
    _counts: dict[tuple[Scope, int], int] = attrs.field(factory=dict, init=False)
    """Scope and digest → how many more the second side has."""
    _samples: dict[tuple[Scope, int], _Written] = attrs.field(factory=dict, init=False)
    _orders: dict[tuple[Scope, bytes], _KeyOrder] = attrs.field(factory=dict, init=False)
    _unread: set[tuple[str, int]] = attrs.field(factory=set, init=False)
    """Topic and digest of what was produced, and cannot be read."""

    def add(self, side: int, client: str, record: _Written) -> None:
        """Take a record that a client produced, or that the first client got, or a batch that
        cannot be read."""
        self.taken[side] += 1
        if self.ignored.frees(record.topic):
            return
        digest = hash(self._content(record))
        partition = record.partition if self._is_placed(record) else None
        if not record.produced:
            self._count(side, (Scope(record.topic, None, None), digest), record)
            return
        if isinstance(record, Unreadable):
            self._unread.add((record.topic, digest))
        scope = Scope(record.topic, client_text(client), partition)
        self._count(side, (scope, digest), record)
        if isinstance(record, TopicRecord) and record.key is not None:
            order = self._orders.setdefault((scope, record.key), _KeyOrder())
            if order.take(side, digest):
                del self._orders[scope, record.key]

    def _content(self, record: _Written) -> Any:
        if isinstance(record, Unreadable):
            return comparable(record.data)
        if record.meaning("value") is None and record.meaning("key") is None:
            return self.ignored.content(record, record.topic)
        return meaning_text.record(record, self.ignored)

    def _count(self, side: int, key: tuple[Scope, int], record: _Written) -> None:
        if found := self._counts.get(key, 0) + side:
            self._counts[key] = found
            if key not in self._samples and self._room_bytes > 0:
                self._samples[key] = record
                self._room_bytes -= _size_bytes(record)
            return
        del self._counts[key]
        if (sample := self._samples.pop(key, None)) is not None:
            self._room_bytes += _size_bytes(sample)

    # ---- at the end

    def differences(self, wrote: dict[int, Wrote]) -> Iterator[Difference]:
        """Yield the differences; `wrote` says of each side whether it has produced a record that
        consumers got, or found it there."""
        sides: dict[tuple[str, str, str], dict[int, list[_Written | None]]] = {}
        for (scope, digest), number in self._unexplained():
            side = AFTER if number > 0 else BEFORE
            record = self._samples.get((scope, digest))
            aspect, by = "records", f"produced by {scope.client}"
            if scope.client is None:
                if (scope.topic, digest) in self._unread:
                    continue  # it is compared as it was produced; no consumer makes more of it
                is_own = record is None or wrote[side](record)
                aspect, by = ("consumed", "consumed") if is_own else ("records", "there before")
            found = sides.setdefault((aspect, scope.topic, by), {BEFORE: [], AFTER: []})
            found[side] += [record] * abs(number)
        for (aspect, topic, by), found in sides.items():
            for each in self._of_topic(found[BEFORE], found[AFTER]):
                yield attrs.evolve(each, aspect=aspect, subject=f"topic {topic}, {by}")
        for (scope, key), order in self._orders.items():
            if order.is_same_set:
                subject = f"topic {scope.topic}, produced by {scope.client}"
                which = f"key {short(text_of(key))}"
                yield Difference("order", subject, "one order", "another order", which)

    def _unexplained(self) -> Iterator[tuple[tuple[Scope, int], int]]:
        """Yield what does not cancel out; what consumers got, unless it was produced otherwise."""
        produced: Counter[tuple[str, int]] = Counter()
        for (scope, digest), number in self._counts.items():
            if scope.client is not None:
                produced[scope.topic, digest] += number
        for (scope, digest), number in self._counts.items():
            if scope.client is None:
                why = produced[scope.topic, digest]
                number -= min(max(why, 0), number) if number > 0 else max(min(why, 0), number)
            if number:
                yield (scope, digest), number

    def _of_topic(
        self, before: list[_Written | None], after: list[_Written | None]
    ) -> Iterator[Difference]:
        """Yield what is missing of the first side, added by the second, and changed."""
        old, new = (sorted(filter(None, each), key=_place) for each in (before, after))
        then, now = (list(map(self._places, each)) for each in (old, new))
        found = {there: here for here, there in pairs(now, then).items()}
        for there, here in sorted(found.items()):
            topic = new[here].topic
            words = tuple(filter(None, varying_words(now[here], then[there], topic)))
            for each in self._changed(old[there], new[here]):
                yield attrs.evolve(each, ignore=words)
        for at, one in enumerate(old):
            if at not in found:
                yield Difference("", "", self._text(one), None)
        paired = set(found.values())
        for at, one in enumerate(new):
            if at not in paired:
                yield Difference("", "", None, self._text(one))
        lost, more = (_unkept(each.count(None)) for each in (before, after))
        if lost or more:
            yield Difference("", "", lost, more)

    def _places(self, record: _Written) -> Places:
        if isinstance(record, Unreadable):
            return {("batch", ""): (record.partition, record.data)}
        found = places_in(record, record.topic, self.ignored, record.schemas)
        # Equal bytes belong together, also where only one side has their schema.
        return {("", ""): (record.key, record.value, record.headers), **found}

    def _changed(self, before: _Written, after: _Written) -> Iterator[Difference]:
        if isinstance(before, Unreadable) or isinstance(after, Unreadable):
            return  # they are of no pair
        (old, of_old), (new, of_new) = (
            compared(each, each.topic, self.ignored, each.schemas) for each in (before, after)
        )
        of = "" if before.key is None else f" of key {short(text_of(before.key))}"
        if before.partition != after.partition and self._is_placed(before):
            places = str(before.partition), str(after.partition)
            yield Difference("", "", *places, f"partition{of}")
        for part, now, then in differences(new, old, of_new, of_old):
            yield Difference("", "", then or None, now or None, f"{part}{of}")

    def _text(self, record: _Written) -> str:
        where = f"[{record.partition}] " if self._is_placed(record) else ""
        if isinstance(record, Unreadable):
            return f"{where}{record.damage}: {meaning_text.data_text(comparable(record.data))}"
        return f"{where}{meaning_text.record(record, self.ignored)}"

    def _is_placed(self, record: _Written) -> bool:
        is_unread = isinstance(record, Unreadable)
        return is_unread or self.ignored.compares_partition(record, record.topic)


def _size_bytes(record: _Written) -> int:
    data = (record.data,) if isinstance(record, Unreadable) else (record.key, record.value)
    return _RECORD_BYTES + sum(map(sys.getsizeof, data))


def _unkept(number: int) -> str | None:
    return f"{count(number, 'record')} more, which were not kept" if number else None


def _place(record: _Written) -> tuple[int, int]:
    return record.partition, -1 if record.offset is None else record.offset
