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
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import attrs

from kproxy.exchange.topic_records import TopicRecord
from kproxy.exchange.words.wording import count
from kproxy.look.lines import meaning_text
from kproxy.replay.compared import Difference
from kproxy.replay.differences import common_prefix_length, compared, differences, short, text_of
from kproxy.replay.facts import client_text
from kproxy.replay.ignored import Ignored

SAMPLE_BYTES_MAX = 64 << 20
"""Memory for the records that may be shown."""
_NEAR = 20
"""Among so many of the next records of the other side, the closest one is looked for."""
_RECORD_BYTES = 500
"""The memory of a record, apart from its content."""

BEFORE, AFTER = -1, 1
Wrote = Callable[[TopicRecord], bool]
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
    _counts: dict[tuple[Scope, int], int] = attrs.field(factory=dict, init=False)
    """Scope and digest → how many more the second side has."""
    _samples: dict[tuple[Scope, int], TopicRecord] = attrs.field(factory=dict, init=False)
    _orders: dict[tuple[Scope, bytes], _KeyOrder] = attrs.field(factory=dict, init=False)

    def add(self, side: int, client: str, record: TopicRecord) -> None:
        """Take a record that a client produced, or that the first client got."""
        digest = hash(meaning_text.record(record, self.ignored))
        partition = (
            record.partition if self.ignored.compares_partition(record, record.topic) else None
        )
        if not record.produced:
            self._count(side, (Scope(record.topic, None, None), digest), record)
            return
        scope = Scope(record.topic, client_text(client), partition)
        self._count(side, (scope, digest), record)
        if record.key is not None:
            order = self._orders.setdefault((scope, record.key), _KeyOrder())
            if order.take(side, digest):
                del self._orders[scope, record.key]

    def _count(self, side: int, key: tuple[Scope, int], record: TopicRecord) -> None:
        found = self._counts.get(key, 0) + side
        size = _RECORD_BYTES + sys.getsizeof(record.value) + sys.getsizeof(record.key)
        if found:
            self._counts[key] = found
            if key not in self._samples and self._room_bytes > 0:
                self._samples[key] = record
                self._room_bytes -= size
        else:
            del self._counts[key]
            if self._samples.pop(key, None) is not None:
                self._room_bytes += size

    # ---- at the end

    def differences(self, wrote: dict[int, Wrote]) -> Iterator[Difference]:
        """Yield the differences; `wrote` says of each side whether it has produced a record that
        consumers got, or found it there."""
        sides: dict[tuple[str, str, str], dict[int, list[TopicRecord | None]]] = {}
        for (scope, digest), number in self._unexplained():
            side = AFTER if number > 0 else BEFORE
            record = self._samples.get((scope, digest))
            aspect, by = "records", f"produced by {scope.client}"
            if scope.client is None:
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
        self, before: list[TopicRecord | None], after: list[TopicRecord | None]
    ) -> Iterator[Difference]:
        """Yield what is missing of the first side, added by the second, and changed."""
        old, new = (sorted(filter(None, each), key=_place) for each in (before, after))
        lacking: list[TopicRecord] = []
        for at, one in enumerate(old):
            other = _closest(one, new)
            if other is not None and _closest(other, old[at : at + _NEAR]) is one:
                new.remove(other)
                yield from self._changed(one, other)
            else:
                lacking.append(one)
        yield from (Difference("", "", self._text(each), None) for each in lacking)
        yield from (Difference("", "", None, self._text(each)) for each in new)
        lost, more = (_unkept(each.count(None)) for each in (before, after))
        if lost or more:
            yield Difference("", "", lost, more)

    def _changed(self, before: TopicRecord, after: TopicRecord) -> Iterator[Difference]:
        (old, of_old), (new, of_new) = (
            compared(each, each.topic, self.ignored, each.schemas) for each in (before, after)
        )
        of = "" if before.key is None else f" of key {short(text_of(before.key))}"
        if before.partition != after.partition and self.ignored.compares_partition(
            before, before.topic
        ):
            places = str(before.partition), str(after.partition)
            yield Difference("", "", *places, f"partition{of}")
        for part, now, then in differences(new, old, of_new, of_old):
            yield Difference("", "", then, now, f"{part}{of}")

    def _text(self, record: TopicRecord) -> str:
        where = (
            f"[{record.partition}] "
            if self.ignored.compares_partition(record, record.topic)
            else ""
        )
        return f"{where}{meaning_text.record(record, self.ignored)}"


def _unkept(number: int) -> str | None:
    return f"{count(number, 'record')} more, which were not kept" if number else None


def _place(record: TopicRecord) -> tuple[int, int]:
    return record.partition, -1 if record.offset is None else record.offset


def _closest(one: TopicRecord, among: Sequence[TopicRecord]) -> TopicRecord | None:
    """Return the record with the same key or value that is most alike; None without any."""
    near = (each for each in among[:_NEAR] if each.key == one.key or each.value == one.value)
    return max(near, key=lambda each: _likeness(one, each), default=None)


def _likeness(one: TopicRecord, other: TopicRecord) -> tuple[int, int, int]:
    return (
        2 * (other.key == one.key) + 2 * (other.value == one.value),
        (other.headers == one.headers) + (other.partition == one.partition),
        common_prefix_length(other.value or b"", one.value or b""),
    )
