"""Duplicates: what was written of which a client did not learn, and what wrote the same again.

::

    Produce without a delivered answer,
    or with an error after the append ─▶ Unlearned, its records ──┐
    later Produce of the client to that partition ─▶ records ─────┴─▶ WrittenAgain: the same, where
    Read of these offsets ─▶ who fetched which of them

A Produce is read when it is answered: one that the broker answers when its client has given it up
comes behind its retry. So the last ones are kept for it. What a fault rule had the broker take
twice is here as well: kproxy's copy writes it again.

    Produce that was refused for good ─▶ records ─┐
    later Produce of the client, written ─────────┴─▶ RefusedWrite: written by which, if by any

Records are compared one by one (`identities`). A producer whose epoch was raised sends the same
records with new sequence numbers.

Invariants: of at most `_RECORDS_MAX` records a hash is kept, and so many are compared; after that,
nothing is said not to have been sent again. Of retries that are read first, and of requests that
are copied, a limited number is kept.
"""

from __future__ import annotations

import functools
from collections import Counter, OrderedDict, deque
from collections.abc import Container, Iterator

import attrs

from kproxy.exchange.delivered import may_have_reached
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import WITHHELD
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import listed
from kproxy.history.events import events
from kproxy.history.identities import record_identities
from kproxy.history.items import Gap, Item
from kproxy.history.ref import Client, Ref, client_of
from kproxy.history.rows import WROTE, Appended, Read
from kproxy.wire.protocol import error_code, is_retriable

_RECORDS_MAX = 250_000
_LAST_MAX = 1000
_COPIES_MAX = 100
_REFUSED_MAX = 1000
"""Of a partition, as long as they are not written."""
_READ_MAX = 100
"""Duplicates of a partition of which it is followed who fetched them."""

_Key = tuple[TopicPartition, Client, int]
"""A partition, a client, and the hash of a record or of sequence numbers."""
NEVER_SENT = "never sent"


@attrs.frozen(eq=False)
class WrittenAgain:
    """A later request that has records of another."""

    ref: Ref
    write: Appended
    places: tuple[tuple[int, int], ...]
    """Of each of these records, where it is in the other's batches and in its own."""

    @property
    def offsets(self) -> tuple[int, int]:
        """The first and the last offset of these records."""
        first = self.write.offset or 0
        return first + self.places[0][1], first + self.places[-1][1]


@attrs.define(eq=False)
class Unlearned:
    """A Produce whose client did not learn what came of what it had for a partition."""

    ref: Ref
    write: Appended
    fate: str
    """What became of the response; `NEVER_SENT` if none came."""
    is_timed: bool = True
    """True if its records have timestamps. Without them, an app may have sent equal ones."""
    is_withheld: bool = False
    """True if a fault rule dropped the response or cut it off. Where a connection ended, its retry
    may be read before it: then nothing is said of retries."""
    copied_by: str = ""
    """The fault rule by which kproxy sent it twice: then what wrote it again is the copy."""
    is_again: bool = False
    """True if a later Produce has all of it, or a part."""
    again: list[WrittenAgain] = attrs.Factory(list)
    """The later writes of its records; none where the broker has recognised them."""
    readers: dict[str, dict[int, int]] = attrs.Factory(dict)
    """Client and group → which of the writes it fetched (0: this one), and with which Fetch."""

    @property
    def writes(self) -> list[tuple[Ref, tuple[int, int]]]:
        """Each write of the records that were written again, and its offsets."""
        first = self.write.offset or 0
        places = [place for each in self.again for place, _ in each.places]
        span = first + min(places), first + max(places)
        return [(self.ref, span), *((each.ref, each.offsets) for each in self.again)]


@attrs.define(eq=False)
class RefusedWrite:
    """A Produce whose client was told that what it had for a partition is not written."""

    ref: Ref
    write: Appended
    missing: set[_Key]
    """Its records that no later Produce wrote."""
    written_by: Ref | None = None
    """The Produce that wrote the last of them."""


@attrs.define(eq=False)
class Duplicates:
    """What the Produces of a recording wrote twice, or may have."""

    unlearned: list[Unlearned] = attrs.Factory(list)
    """Since the last gap, and those that were written again."""
    refused: list[RefusedWrite] = attrs.Factory(list)
    """Those with errors that last, of which a client need not send them again."""
    compared: int = 0
    _unwritten: dict[TopicPartition, list[RefusedWrite]] = attrs.field(factory=dict, init=False)
    """The refused of which records are missing, since the last gap."""
    _kept: dict[_Key, list[tuple[Unlearned, int]]] = attrs.field(factory=dict, init=False)
    """Record → the Produces that had it, and its place in their batches."""
    _places: set[TopicPartition] = attrs.field(factory=set, init=False)
    _last: deque[Exchange] = attrs.field(
        factory=functools.partial(deque[Exchange], maxlen=_LAST_MAX), init=False
    )
    """The last Produces, for those that are answered behind their retries."""
    _copied: OrderedDict[tuple[int, int | None], Exchange] = attrs.field(
        factory=OrderedDict, init=False
    )
    """Connection and correlation id → the first to be answered of a request and its copy."""
    _written: dict[TopicPartition, list[Unlearned]] = attrs.field(factory=dict, init=False)
    """The first that were written again, …"""
    _until: dict[TopicPartition, int] = attrs.field(factory=dict, init=False)
    """… and the last offset of these writes."""

    @property
    def is_complete(self) -> bool:
        """True if all records were compared: what was not sent again is known."""
        return self.compared < _RECORDS_MAX

    def add(self, item: Item) -> None:
        """Take the next item."""
        if isinstance(item, Gap):  # a retry may lie in it
            self.unlearned = [each for each in self.unlearned if each.again]
            for table in (
                self._kept, self._places, self._last, self._copied, self._unwritten,
            ):  # fmt: skip
                table.clear()
        if not isinstance(item, Exchange) or item.api != "Produce":
            return
        if item.row.fault_ids:
            self._pair(item)
        if not item.injected:  # no client waits for kproxy's own
            self._produce(item)

    def read(self, ref: Ref, row: Read, group: str) -> None:
        """Take what a client fetched of a partition, for a group or for none."""
        if row.first is None or row.end is None or row.first > self._until.get(row.where, -1):
            return
        host, name = ref.client
        reader = f"{name} ({host})" + (f" for group {group}" if group else "")
        for each in self._written[row.where]:
            for nth, (_, (first, last)) in enumerate(each.writes):
                if row.first <= last and first < row.end:
                    each.readers.setdefault(reader, {}).setdefault(nth, ref.number)

    def _produce(self, item: Exchange) -> None:
        fate = _fate(item)
        places = self._places | self._unwritten.keys() if self._unwritten else self._places
        is_refused = item.errors and any(map(_is_refused, _writes(item)))
        places = None if fate or is_refused else places
        for write, keys, is_timed in self._identified(item, places):
            self._compare(item, write, keys)
            self._refuse(item, write, keys)
            if fate:
                self._keep(item, write, keys, fate, is_timed)
        if fate:
            places = {each.where for each in _writes(item)}
            # Copies: what is read of their bodies goes with them.
            for retry in [attrs.evolve(each) for each in self._last if each.time_ns > item.time_ns]:
                for write, keys, _ in self._identified(retry, places):
                    self._compare(retry, write, keys, item.number)
        self._last.append(attrs.evolve(item))

    def _identified(
        self, item: Exchange, places: Container[TopicPartition] | None
    ) -> Iterator[tuple[Appended, list[_Key], bool]]:
        """Yield what a Produce has for some places, or for all, as long as more may be compared:
        keys of its sequence numbers, then those of its records, and whether these are timed."""
        if places is not None and not places:
            return
        found = {each.where: each for each in _writes(item)}
        for each in item.facts.records:
            write = found.get(each.where)
            if write is None or not (places is None or each.where in places):
                continue
            if not self.is_complete:
                return
            parts = [*write.sequences, *record_identities(each)]
            self.compared += len(parts)
            keys = [(each.where, client_of(item), hash(part)) for part in parts]
            yield write, keys, each.data[16:17] != b"\0"

    def _refuse(self, item: Exchange, write: Appended, keys: list[_Key]) -> None:
        """Find what a Produce writes that was refused before, or keep what it is refused. With the
        same epoch, its numbers tell; apps may send equal records."""
        unwritten = self._unwritten.get(write.where, [])
        records = set(keys[len(write.sequences) :])
        if _is_refused(write) and len(unwritten) < _REFUSED_MAX:
            self.refused.append(RefusedWrite(Ref.of(item), write, records))
            self._unwritten[write.where] = [*unwritten, self.refused[-1]]
        elif write.outcome == WROTE and unwritten:
            for each in unwritten:
                is_other = _producers(each.write).isdisjoint(_producers(write))
                if is_other or each.write.sequences == write.sequences:
                    each.missing -= records
                each.written_by = None if each.missing else Ref.of(item)
            self._unwritten[write.where] = [each for each in unwritten if each.missing]
            if not self._unwritten[write.where]:
                del self._unwritten[write.where]

    def _keep(
        self, item: Exchange, write: Appended, keys: list[_Key], fate: str, is_timed: bool
    ) -> None:
        withheld = bool(item.undelivered and item.row.response_flags & WITHHELD)
        kept = Unlearned(Ref.of(item), write, fate, is_timed, withheld)
        self.unlearned.append(kept)
        self._places.add(write.where)
        for nth, key in enumerate(keys):
            self._kept.setdefault(key, []).append((kept, nth))

    def _compare(
        self, item: Exchange, write: Appended, keys: list[_Key], first_number: int | None = None
    ) -> None:
        """Find what a Produce writes again, of all before, or of the exchange of one number."""
        earlier: dict[int, tuple[Unlearned, list[tuple[int, int]]]] = {}
        equal: Counter[_Key] = Counter()
        for nth, key in enumerate(keys, -len(write.sequences)):
            for first, places in self._firsts(key, item.time_ns):
                if first_number in (None, first.ref.number):
                    first.is_again = True
                    if equal[key] < len(places):  # a record that is there twice, twice
                        pair = places[equal[key]], nth
                        earlier.setdefault(first.ref.number, (first, []))[1].append(pair)
            equal[key] += 1
        for first, pairs in earlier.values():
            if write.offset is None or (first.write.sequences and not _is_anew(first, write)):
                continue
            if first.fate == NEVER_SENT:
                is_written = first.is_timed
            else:
                is_written = first.write.offset not in (None, write.offset)
            if is_written:
                self._take(first, WrittenAgain(Ref.of(item), write, tuple(pairs)))

    def _firsts(self, key: _Key, until_ns: int) -> Iterator[tuple[Unlearned, list[int]]]:
        """Yield the Produces that had a record before a time, with its places in them: the first
        that was answered, and the first that was not; of the others, none."""
        found: dict[bool, tuple[Unlearned, list[int]]] = {}
        for first, place in self._kept.get(key, ()):
            if first.ref.time_ns <= until_ns:
                kept, places = found.setdefault(first.fate == NEVER_SENT, (first, []))
                if kept is first:
                    places.append(place)
                else:
                    first.is_again = True
        yield from found.values()

    def _take(self, first: Unlearned, again: WrittenAgain) -> None:
        first.again.append(again)
        written = self._written.setdefault(again.write.where, [])
        if len(first.again) == 1 and first.fate != NEVER_SENT and len(written) < _READ_MAX:
            written.append(first)
        if first in written:
            until = max(to for _, (_, to) in first.writes)
            self._until[again.write.where] = max(until, self._until.get(again.write.where, until))

    def _pair(self, item: Exchange) -> None:
        """Find what kproxy's copy of a request wrote again."""
        key = item.connection, item.correlation_id
        other = self._copied.pop(key, None)
        if other is None or other.is_copy == item.is_copy:
            self._copied[key] = item
            if len(self._copied) > _COPIES_MAX:
                self._copied.popitem(last=False)
            return
        request, copy = (other, item) if item.is_copy else (item, other)
        given = {each.where: each for each in _writes(request)}
        for each in _writes(copy):
            first = given.get(each.where)
            if first is None or None in (first.offset, each.offset) or each.offset == first.offset:
                continue
            places = tuple((nth, nth) for nth in range(max(1, each.records)))
            by = listed(copy.faults)
            kept = Unlearned(Ref.of(request), first, "", copied_by=by, is_again=True)
            self.unlearned.append(kept)
            self._take(kept, WrittenAgain(Ref.of(copy), each, places))


def _writes(item: Exchange) -> list[Appended]:
    return [each for each in events(item) if isinstance(each, Appended)]


def _producers(write: Appended) -> set[tuple[int, int]]:
    return {(producer_id, epoch) for producer_id, epoch, *_ in write.sequences}


def _is_anew(first: Unlearned, write: Appended) -> bool:
    """Return whether an idempotent producer wrote with another epoch what it had written: then the
    broker does not know it again. What was in a transaction may be aborted."""
    is_written = first.fate != NEVER_SENT and not first.write.transactional_id
    return is_written and _producers(first.write).isdisjoint(_producers(write))


def _is_refused(write: Appended) -> bool:
    code = error_code(write.error) if write.error and write.offset is None else None
    return code is not None and not is_retriable(code)


def _fate(item: Exchange) -> str:
    """Say what became of the response to a Produce whose client did not learn what came of it; ""
    of others."""
    if item.broker_errors is not None:
        by = f" by fault rule {listed(faults.acting(item))}" if item.faults else ""
        return f"made an error{by}"
    if item.unanswered is not None and not item.open_at_end and may_have_reached(item):
        return NEVER_SENT
    writes = _writes(item) if item.errors else ()
    appended = (each.error for each in writes if each.error and each.offset is not None)
    return faults.unlearned(item) or next(appended, "")
