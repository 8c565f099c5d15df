"""Transactions: what each wrote and holds, how it ended, and the commits that count with it.

::

    Initialized ─▶ Grant: who has which epoch ──────────────┐
    Appended, AddedToTxn, CommitRequested (TxnOffsetCommit) ─▶ held ───┼─▶ Transaction ─▶ Commit …
    Ended, Initialized ─▶ committed, aborted, unknown ──────┘
    CommitRequested (OffsetCommit) ───────────────────────────────────────────────▶ Commit

A producer that initializes a transactional id gets the next epoch; requests with an earlier one are
refused from then on. With transactions of version 2 (KIP-890) each EndTxn raises the epoch as well,
and partitions are added by the Produce itself.

How a transaction ended is decided here, for all: an EndTxn that was to commit and has no answer may
have worked, so that nobody knows the end of a transaction behind which a producer begins anew.
Otherwise a producer that begins anew has what was open aborted, also if an EndTxn without an answer
was to abort it. An EndTxn without an answer is read when its connection has ended, which may be
behind the InitProducerId.

Invariants: a gap leaves what is open with an unknown end. Memory is bounded by the partitions of
open transactions, and by the limits below: of many transactional ids, those that were idle for the
longest go; `dropped` counts those that went with an open transaction.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.kept import Kept
from kproxy.history.producers import ProducerStates
from kproxy.history.ref import Ref
from kproxy.history.rows import (
    TRIED,
    WROTE,
    Aborted,
    AddedToTxn,
    Appended,
    Commit,
    CommitRequested,
    Ended,
    Initialized,
    Producer,
    Read,
    Row,
)
from kproxy.wire.protocol import error_code, is_retriable

FENCED = frozenset({"PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"})
"""Errors of a producer whose epoch is no longer the current one."""
CONCURRENT = "CONCURRENT_TRANSACTIONS"
OPEN, COMMITTED, ABORTED, UNKNOWN = "open", "committed", "aborted", "unknown"
"""The ends of transactions; OPEN is that of one that has none yet."""

_IDS_MAX = 500
"""Transactional ids that are kept; of those whose transaction is open, `_OPEN_MAX`."""
_OPEN_MAX = 2000
_IDS_KEPT_WHOLE = 50
"""Of more transactional ids, fewer transactions each are kept."""
_COMMITTED_KEPT, _EVENTS_KEPT, _FEW_KEPT = 10, 20, 2
_GRANTS_MAX = 100
_TAKEN_MAX = 100
_RECENT_MAX = 2
_REQUESTS_MAX = 4
_STARTS_MAX = 2000


@attrs.define(eq=False)
class Span:
    """What a transaction wrote to a partition; nothing if it was only added."""

    records: int = 0
    first: int | None = None
    last: int | None = None


@attrs.define(eq=False)
class Transaction:
    """A transaction that has begun."""

    transactional_id: str
    number: int
    """Counts the transactions of the transactional id."""
    began: Ref
    is_whole: bool
    """False if it may have begun earlier: before the recording, or in a gap."""
    grant: Grant | None
    """The epoch with which it began, if it is known who got it."""
    latest: Ref
    """What belongs to it, last."""
    written: dict[TopicPartition, Span] = attrs.Factory(dict)
    offsets: dict[str, dict[TopicPartition, CommitRequested]] = attrs.Factory(dict)
    """Offsets that were sent with it, by group …"""
    held_by: dict[str, Ref] = attrs.Factory(dict)
    """… and the last TxnOffsetCommit of each."""
    unanswered: list[Ref] = attrs.Factory(list)
    """Writes whose outcome is unknown."""
    end: str = OPEN
    ended: Ref | None = None
    """What ended it: an EndTxn, or the InitProducerId of who took it."""
    taken: Ref | None = None
    """The InitProducerId behind which it was no longer open."""
    ending: tuple[Ref, bool] | None = None
    """The EndTxn that has no answer, and whether it was to commit."""
    aborting: Ref | None = None
    """The InitProducerId that found it open, and was told to come again: the coordinator aborts it
    since then."""
    shown: tuple[str, Ref] | None = None
    """The end that its partitions show: COMMITTED or ABORTED, and the first Fetch that had it."""

    @property
    def took_ms(self) -> float:
        """How long it took until its end was answered."""
        ended_ns = self.began.time_ns if self.ended is None else self.ended.answered_ns
        return max(0.0, (ended_ns - self.began.time_ns) / 1e6)

    @property
    def may_be_committed(self) -> bool:
        """True if an EndTxn without an answer was to commit it."""
        return self.ending is not None and self.ending[1]

    def aborted(self, sign: int = 1) -> list[Row]:
        """Return the records that its abort concerns."""
        return [
            Aborted(self.began.client, where, sign * span.records)
            for where, span in self.written.items()
            if span.records
        ]

    def commits(self, by: Ref, certain: bool) -> list[Row]:
        """Return the commits that its end makes count."""
        return [
            Commit(each.group, each.member, each.where, each.offset, certain, by)
            for held in self.offsets.values()
            for each in held.values()
        ]


@attrs.frozen(eq=False)
class Grant:
    """An epoch that the coordinator gave to a producer."""

    producer: Producer
    ref: Ref
    """An InitProducerId, or the EndTxn that raised the epoch."""
    owner: int
    """Counts producers: one that raises its own epoch stays the same."""
    is_fresh: bool
    """True if the producer initialized the id without an epoch of its own: it takes the id."""
    timeout_ms: int
    before: tuple[int, Ref] | None = None
    """The epoch before it, and what gave that."""
    found_aborting: bool = False
    """True if the coordinator was about to abort the transaction of the one before."""


@attrs.frozen(eq=False)
class RefusedRequest:
    """A request that was refused for another error than one after which clients try again."""

    ref: Ref
    error: str
    producer: Producer | None
    is_fenced: bool
    """True if the broker said that its epoch is no longer the current one."""
    own: Grant | None
    """What gave it its epoch …"""
    taker: Grant | None
    """… and what gave a later one to another producer."""
    open_since: Ref | None
    """The begin of the transaction that was open then."""


@attrs.frozen(eq=False)
class UnansweredRequest:
    """An InitProducerId or EndTxn without an answer."""

    ref: Ref
    wish: str
    """What an EndTxn was to do: "commit" or "abort"."""


Event = Grant | Transaction | RefusedRequest | UnansweredRequest


@attrs.define(eq=False)
class TransactionalId:
    """A transactional id: its producers and its transactions."""

    name: str
    kept_each_end: tuple[int, int] = (_COMMITTED_KEPT, _EVENTS_KEPT)
    grants: deque[Grant] = attrs.Factory(lambda: deque(maxlen=_GRANTS_MAX))
    producers: int = 0
    open: Transaction | None = None
    ends: Counter[str] = attrs.Factory(Counter)
    committed: Kept[Transaction] = attrs.field(init=False)
    events: Kept[Event] = attrs.field(init=False)
    """What else happened, with the other transactions."""
    fenced: RefusedRequest | None = None
    """The first request that was refused for its epoch."""
    fenced_count: int = 0
    retriable: dict[tuple[str, str], tuple[Ref, int]] = attrs.Factory(dict)
    """API and error → the first exchange, and how many there are."""
    recent: deque[Transaction] = attrs.Factory(lambda: deque(maxlen=_RECENT_MAX))
    """The transactions that have ended last."""
    asking: Ref | None = None
    """The first InitProducerId behind the latest grant that was told to come again."""
    requests: deque[tuple[Ref, Row]] = attrs.Factory(lambda: deque(maxlen=_REQUESTS_MAX))
    """The latest that were answered."""
    _taken: deque[Transaction] = attrs.field(factory=deque, init=False)
    """The latest that an InitProducerId ended: an EndTxn of them may be read later."""
    _longest: Transaction | None = attrs.field(default=None, init=False)
    _sees_begins: bool = attrs.field(default=False, init=False)
    """True if nothing is open that began before the recording, or in a gap."""
    _begun: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        committed, events = self.kept_each_end
        self.committed, self.events = Kept(committed), Kept(events)

    @property
    def longest(self) -> Transaction | None:
        """The transaction that took the longest, of those whose begin and end are known."""
        found = [*self._taken] if self._longest is None else [self._longest, *self._taken]
        known = [each for each in found if each.end != UNKNOWN and each.is_whole]
        return max(known, key=lambda each: each.took_ms, default=None)

    def grant(self, producer: Producer | None) -> Grant | None:
        """Return what gave an epoch to a producer."""
        return next((each for each in self.grants if each.producer == producer), None)

    # ---- what belongs to transactions

    def at(self, ref: Ref, producer: Producer | None) -> Transaction:
        """Return the transaction of a request: the open one, begun if there is none; or the one
        before, if the request was sent before that ended."""
        last = self.recent[-1] if self.recent else None
        if last is not None and last.ended is not None and ref.time_ns < last.ended.time_ns:
            return last
        if self.open is None:
            self._begun += 1
            own = self.grant(producer)
            self.open = Transaction(self.name, self._begun, ref, self._sees_begins, own, ref)
        self.open.latest = ref
        return self.open

    def initialized(self, ref: Ref, row: Initialized) -> list[Row]:
        """Take an InitProducerId; return the rows of what it ends."""
        if not ref.is_answered:
            self.events.add(UnansweredRequest(ref, ""))
        if not ref.is_taken:
            return []
        if row.error:
            if row.error == CONCURRENT:
                self.asking = self.asking or ref
            if row.error == CONCURRENT and self.open is not None:
                self.open.aborting = self.open.aborting or ref
            return []
        own, is_fresh = self.grant(row.asked), row.asked[0] < 0
        self.producers += is_fresh or own is None
        last = self.grants[-1] if self.grants else None
        found_aborting = self.open is not None and self.open.aborting is not None
        given = Grant(
            row.given, ref, self.producers if own is None else own.owner, is_fresh, row.timeout_ms,
            None if last is None else (last.producer[1], last.ref), found_aborting,
        )  # fmt: skip
        self.grants.append(given)
        self.asking = None
        self.events.add(given)
        taken = self.open
        if taken is None:
            self._sees_begins = True
            return []
        taken.taken = ref
        if taken.may_be_committed and taken.ending is not None:  # over, unless that was lost
            self._leave(UNKNOWN)
            self._sees_begins = True
            return taken.commits(taken.ending[0], certain=False)
        self._end(ref, ABORTED)
        return taken.aborted()

    def to_end(self, ref: Ref, row: Ended) -> list[Row]:
        """Take an EndTxn; return the rows of what it ends."""
        if not ref.is_answered:
            self.events.add(UnansweredRequest(ref, "commit" if row.committed else "abort"))
            return self._unanswered(ref, row.committed) if ref.may_have_worked else []
        if not ref.is_taken or row.error:
            return []
        own = self.grant(row.producer)
        if own is not None and row.raised[0] >= 0 and row.raised > row.producer:
            self.grants.append(Grant(row.raised, ref, own.owner, False, own.timeout_ms))
        ended = self.open
        self._end(ref, COMMITTED if row.committed else ABORTED)
        if ended is None:
            return []
        return ended.commits(ref, certain=True) if row.committed else ended.aborted()

    def _unanswered(self, ref: Ref, committed: bool) -> list[Row]:
        if self.open is not None and self.open.began.time_ns <= ref.time_ns:
            self.open.ending = ref, committed
            return []
        for each in self._taken:
            taken_ns = 0 if each.taken is None else each.taken.time_ns
            if each.began.time_ns <= ref.time_ns < taken_ns:
                each.ending = ref, committed
                if committed and each.end == ABORTED:
                    each.end, each.ended = UNKNOWN, None
                    self.ends[ABORTED] -= 1
                    self.ends[UNKNOWN] += 1
                    return each.aborted(-1)
        return []

    def _end(self, ref: Ref, how: str) -> None:
        """Take the end of the transaction that is open; nothing if there is none."""
        ended, self.open, self._sees_begins = self.open, None, True
        if ended is None:
            return
        ended.end, ended.ended = how, ref
        self._keep(ended)
        if ended.taken is None:
            self._settle(ended)
            return
        self._taken.append(ended)
        if len(self._taken) > _TAKEN_MAX:
            self._settle(self._taken.popleft())

    def _settle(self, ended: Transaction) -> None:
        """Compare a transaction whose end will not change any more with the longest one."""
        longest = self._longest
        if ended.end != UNKNOWN and ended.is_whole:
            if longest is None or ended.took_ms > longest.took_ms:
                self._longest = ended

    def _keep(self, ended: Transaction) -> None:
        self.ends[ended.end] += 1
        self.recent.append(ended)
        kept = self.committed if ended.end == COMMITTED else self.events
        kept.add(ended)

    def _leave(self, end: str) -> None:
        left, self.open = self.open, None
        if left is not None:
            left.end = end
            self._keep(left)

    def gap(self) -> None:
        """Take a gap: what was open may have ended in it, and something else begun."""
        self._leave(UNKNOWN)
        self._sees_begins = False

    # ---- what was refused

    def asked(self, ref: Ref, row: Row) -> None:
        """Take a request, with its first row, before what it did: its errors."""
        if ref.is_answered:
            self.requests.append((ref, row))
        producer = producer_of(row)
        for error in ref.errors:
            code = error_code(error)
            if error not in FENCED and code is not None and is_retriable(code):
                first, times = self.retriable.get((ref.api or "", error), (ref, 0))
                self.retriable[ref.api or "", error] = first, times + 1
                continue
            refused = self._refused(ref, error, producer)
            self.events.add(refused)
            if refused.is_fenced:
                self.fenced = self.fenced or refused
                self.fenced_count += 1

    def _refused(self, ref: Ref, error: str, producer: Producer | None) -> RefusedRequest:
        own, taker = self.grant(producer), None
        if error in FENCED and producer is not None:
            # Producer ids of one transactional id grow, and each begins with epoch 0.
            later = [each for each in self.grants if each.is_fresh and each.producer > producer]
            taker = next((each for each in later if own is None or each.owner != own.owner), None)
        since = None if self.open is None else self.open.began
        is_fenced = error in FENCED and not ref.fate.made
        return RefusedRequest(ref, error, producer, is_fenced, own, taker, since)


@attrs.define(eq=False)
class Transactions:
    """The transactions of all transactional ids, and the batches of idempotent producers."""

    ids_max: int = _IDS_MAX
    about: str = ""
    """The only transactional id that is followed; "" for all."""
    ids: OrderedDict[str, TransactionalId] = attrs.Factory(OrderedDict)
    """Transactional ids, those that were used last at the end."""
    dropped: int = 0
    batches: ProducerStates = attrs.Factory(ProducerStates)
    _starts: OrderedDict[tuple[TopicPartition, int], Transaction] = attrs.field(
        factory=OrderedDict, init=False
    )
    """A partition and the first offset that a transaction wrote there → the transaction."""

    def take(self, ref: Ref, rows: Sequence[Row]) -> list[Row]:
        """Take the rows of an exchange; return them, with those of the transactions that it ends,
        and of the commits that count from now on."""
        taken: list[Row] = []
        first = rows[0] if rows else None
        if isinstance(first, _OF_AN_ID) and first.transactional_id:
            if self.about not in ("", first.transactional_id):
                return [*rows]
            self._of(first.transactional_id).asked(ref, first)
        for row in rows:
            take = _TAKES.get(type(row))
            if take is None:
                taken.append(row)
                continue
            if isinstance(row, Appended) and row.sequences and not self.batches.take(ref, row):
                row = row._replace(is_again=row.outcome != TRIED)
            taken.append(row)
            taken += take(self, ref, row)
        return taken

    def gap(self) -> None:
        """Take a gap: how what is open ends is not known behind it."""
        for each in self.ids.values():
            each.gap()

    def begun_at(self, where: TopicPartition, offset: int) -> Transaction | None:
        """Return the transaction whose first record in a partition has an offset."""
        return self._starts.get((where, offset))

    def latest(self) -> Iterator[Transaction]:
        """Yield the transactions that are open, or have ended last."""
        for each in self.ids.values():
            yield from each.recent
            if each.open is not None:
                yield each.open

    def _of(self, name: str) -> TransactionalId:
        found = self.ids.get(name)
        if found is None:
            few = len(self.ids) >= _IDS_KEPT_WHOLE
            ends = (_FEW_KEPT, _FEW_KEPT) if few else (_COMMITTED_KEPT, _EVENTS_KEPT)
            found = self.ids[name] = TransactionalId(name, ends)
            if len(self.ids) > self.ids_max:
                self._drop(name)
        self.ids.move_to_end(name)
        return found

    def _drop(self, new: str) -> None:
        """Drop the id that was idle for the longest; of too many with an open transaction, one."""
        idle = (key for key, each in self.ids.items() if each.open is None and key != new)
        dropped = next(idle, "")
        if not dropped and len(self.ids) > self.ids_max + _OPEN_MAX:
            dropped = next(iter(self.ids))
            self.dropped += 1
        self.ids.pop(dropped, None)

    # ---- rows

    def _appended(self, ref: Ref, row: Appended) -> Sequence[Row]:
        if not row.transactional_id:
            return ()
        name = self._of(row.transactional_id)
        producer = producer_of(row)
        if not ref.is_answered:
            if ref.may_have_worked:
                found = name.at(ref, producer)
                found.written.setdefault(row.where, Span())
                if not found.unanswered or found.unanswered[-1] is not ref:
                    found.unanswered.append(ref)
        elif row.outcome == WROTE and not row.is_again:
            found = name.at(ref, producer)
            span = found.written.setdefault(row.where, Span())
            span.records += row.records
            if span.first is None and row.offset is not None:
                span.first = row.offset
                self._starts[row.where, row.offset] = found
                if len(self._starts) > _STARTS_MAX:
                    self._starts.popitem(last=False)
            span.last = span.last if row.last_offset is None else row.last_offset
            if found.end == ABORTED:
                return (Aborted(ref.client, row.where, row.records),)
        return ()

    def _added(self, ref: Ref, row: AddedToTxn) -> Sequence[Row]:
        if ref.is_taken and not row.error:
            found = self._of(row.transactional_id).at(ref, row.producer)
            for where in row.partitions:
                found.written.setdefault(where, Span())
            if row.group:
                found.offsets.setdefault(row.group, {})
        return ()

    def _committed(self, ref: Ref, row: CommitRequested) -> Sequence[Row]:
        if not ref.is_taken or row.error or row.offset < 0:
            return ()
        if not row.transactional_id:
            return (Commit(row.group, row.member, row.where, row.offset, True, ref),)
        found = self._of(row.transactional_id).at(ref, row.producer)
        found.offsets.setdefault(row.group, {})[row.where] = row
        found.held_by[row.group] = ref
        return ()

    def _initialized(self, ref: Ref, row: Initialized) -> Sequence[Row]:
        name = row.transactional_id
        return self._of(name).initialized(ref, row) if name else ()

    def _ended(self, ref: Ref, row: Ended) -> Sequence[Row]:
        return self._of(row.transactional_id).to_end(ref, row)

    def _read(self, ref: Ref, row: Read) -> Sequence[Row]:
        """Take what a Fetch shows of the ends of transactions: readers of committed records get a
        list of the aborted ones, and nothing behind one that is open."""
        for _, first in row.aborts:
            self._show(row.where, first, ABORTED, ref)
        if row.is_committed_only and row.first is not None and row.end is not None:
            aborted = {first for _, first in row.aborts}
            if row.first not in aborted:
                self._show(row.where, row.first, COMMITTED, ref)
        return ()

    def _show(self, where: TopicPartition, first: int, end: str, ref: Ref) -> None:
        found = self._starts.get((where, first))
        if found is not None and found.shown is None:
            found.shown = end, ref


def producer_of(row: Row) -> Producer | None:
    """Return the producer id and epoch that a request names; None if it has none."""
    match row:
        case Appended():
            return row.sequences[0][:2] if row.sequences else None
        case Initialized():
            return row.asked if row.asked[0] >= 0 else None
        case AddedToTxn() | CommitRequested() | Ended():
            return row.producer if row.producer[0] >= 0 else None
        case _:
            return None


_OF_AN_ID = Appended, AddedToTxn, CommitRequested, Initialized, Ended
"""Rows that name a transactional id: those of an exchange name one."""
_TAKES: dict[type, Callable[[Transactions, Ref, Any], Sequence[Row]]] = {
    Appended: Transactions._appended,
    AddedToTxn: Transactions._added,
    CommitRequested: Transactions._committed,
    Initialized: Transactions._initialized,
    Ended: Transactions._ended,
    Read: Transactions._read,
}
