"""Readers of committed records that stand still behind a transaction that is open.

    Read: last stable offset < high watermark, and no records ─▶ Stand ─▶ passed, or still there

Readers of committed records get nothing from the first offset of an open transaction on: that is
the last stable offset. A response of a fetch session leaves out partitions in which nothing is new.
A reader that hangs up, seeks, or gives the partition up stands there no more.

Invariants: a stand that took less than `STAND_MS_MIN` is that of an ordinary transaction, and is
not kept. Of the others, the first and the last are kept. A gap ends the time that is known of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.entities import TopicPartition
from kproxy.history.groups import Groups
from kproxy.history.kept import Kept
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import Deleted, FetchPosition, Forgotten, InSession, Read, Row
from kproxy.history.transactions import ABORTED, COMMITTED, Transaction, Transactions

STAND_MS_MIN = 3000
_KEPT_EACH_END = 200
_STANDS_MAX = 500
_READERS_MAX = 100


@attrs.define(eq=False)
class WaitingReader:
    """A client that asks in vain."""

    client: Client
    group: str
    """That for which it reads, if that is certain."""
    first: Ref
    last: Ref
    session: int
    """Its fetch session; 0 if it has none."""
    times: int = 1
    asks: bool = True
    """False if it stopped asking."""


@attrs.define(eq=False)
class Stand:
    """An offset of a partition at which readers of committed records stand still."""

    where: TopicPartition
    offset: int
    high_watermark: int
    opener: Transaction | None
    """The transaction whose first record in the partition has the offset, if it is recorded."""
    readers: dict[Client, WaitingReader] = attrs.Factory(dict)
    last: Ref | None = None
    """The last Fetch in vain."""
    passed: Ref | None = None
    """The first Fetch that came past it."""
    outcome: tuple[str, int] | None = None
    """What it shows of the end of the transaction: COMMITTED or ABORTED, and the producer id of an
    aborted one, else −1."""
    is_cut: bool = False
    """True if the recording has a gap behind `last`."""
    is_left: bool = False
    """True if all readers stopped asking for it: they hung up, seek elsewhere, or do not read the
    partition any more."""

    @property
    def first(self) -> Ref:
        """The first Fetch in vain."""
        return min((each.first for each in self.readers.values()), key=lambda ref: ref.time_ns)

    @property
    def times(self) -> int:
        """How many Fetches were in vain."""
        return sum(each.times for each in self.readers.values())

    @property
    def stood_ms(self) -> float:
        """How long it is known to have lasted: until the last Fetch in vain."""
        return 0.0 if self.last is None else (self.last.answered_ns - self.first.time_ns) / 1e6

    @property
    def is_over(self) -> bool:
        """True if it has ended, or what came then is not in the recording."""
        return self.is_cut or self.passed is not None

    @property
    def is_past(self) -> bool:
        """True if nobody stands there any more; the transaction may be open all the same."""
        return self.is_over or self.is_left

    @property
    def is_long(self) -> bool:
        """True if it is more than the wait for an ordinary transaction."""
        return self.stood_ms >= STAND_MS_MIN

    def see(self, ref: Ref, group: str, session: int) -> None:
        """Take a Fetch in vain."""
        self.last = ref
        found = self.readers.get(ref.client)
        if found is None:
            if len(self.readers) < _READERS_MAX:
                self.readers[ref.client] = WaitingReader(ref.client, group, ref, ref, session)
            return
        found.last, found.session, found.times = ref, session, found.times + 1
        found.asks = True
        found.group = found.group or group


@attrs.define(eq=False)
class Standing:
    """Where readers of committed records stand still, or stood."""

    ended: Kept[Stand] = attrs.Factory(lambda: Kept[Stand](_KEPT_EACH_END))
    _now: dict[TopicPartition, Stand] = attrs.field(factory=dict, init=False)
    _on: dict[int, dict[TopicPartition, None]] = attrs.field(factory=dict, init=False)
    """Connection → where its readers stood."""

    def __iter__(self) -> Iterator[Stand]:
        """Yield the long ones."""
        yield from self.ended
        yield from (each for each in self._now.values() if each.is_long)

    def fetched(
        self, ref: Ref, rows: Sequence[Row], groups: Groups, transactions: Transactions
    ) -> None:
        """Take a Fetch."""
        asked, left, reads, session = dict[TopicPartition, int](), set[TopicPartition](), {}, 0
        is_told = ref.is_taken and not ref.errors
        for row in rows:
            match row:
                case FetchPosition():
                    asked[row.where] = row.offset
                case Forgotten():
                    left.add(row.where)
                case InSession():
                    session = row.session
                case Read() if is_told:
                    reads[row.where] = row
                case _:
                    pass
        for where, row in reads.items():
            self._read(ref, row, asked.get(where), groups, transactions)
        for where in [*self._on.get(ref.connection, ())]:
            stand = self._now.get(where)
            reader = None if stand is None else stand.readers.get(ref.client)
            if stand is None or reader is None or reader.last.connection != ref.connection:
                continue
            elsewhere = asked.get(where, stand.offset) != stand.offset or where in left
            over = where not in asked and session != reader.session and ref.is_answered
            if elsewhere or over:
                self._stop(stand, ref.client)
        for where in [*self._on.get(ref.connection, ())] if session and is_told else ():
            stand = self._now.get(where)
            reader = None if stand is None else stand.readers.get(ref.client)
            # In a session, nothing has changed in what the response does not tell of.
            if stand is not None and reader is not None and reader.asks and where not in reads:
                stand.see(ref, reader.group, session)

    def _read(
        self, ref: Ref, row: Read, asked: int | None, groups: Groups, transactions: Transactions
    ) -> None:
        now, stable = self._now.get(row.where), row.last_stable_offset
        if row.error or stable < 0:
            return
        if now is not None and stable != now.offset:
            if stable > now.offset:
                now.passed, now.outcome = ref, _outcome(row, now.offset)
            now.is_left = stable < now.offset  # the log is another
            self._leave(now)
            now = None
        if not row.is_committed_only or row.past is not None or stable >= row.high_watermark:
            return
        if asked is not None and asked != stable:
            return
        if now is None and len(self._now) < _STANDS_MAX:
            opener = transactions.begun_at(row.where, stable)
            now = self._now[row.where] = Stand(row.where, stable, row.high_watermark, opener)
        if now is not None:
            now.high_watermark = max(now.high_watermark, row.high_watermark)
            now.opener = now.opener or transactions.begun_at(row.where, stable)
            owner = groups.reader(ref.client, row.where)
            now.see(ref, "" if owner is None else owner.group, row.session)
            self._on.setdefault(ref.connection, {})[row.where] = None

    def end(self, connection: int) -> None:
        """Take the end of a connection: its readers ask no more."""
        for where in self._on.pop(connection, ()):
            stand = self._now.get(where)
            readers = [] if stand is None else [*stand.readers.values()]
            for reader in readers:
                if stand is not None and reader.last.connection == connection:
                    self._stop(stand, reader.client)

    def _stop(self, stand: Stand, client: Client) -> None:
        stand.readers[client].asks = False
        if not any(each.asks for each in stand.readers.values()) and stand.where in self._now:
            stand.is_left = True
            self._leave(stand)

    def deleted(self, ref: Ref, row: Deleted) -> None:
        """Take a deletion."""
        for where in [each for each in self._now if each.topic == row.deleted_topic]:
            del self._now[where]

    def gap(self) -> None:
        """Take a gap."""
        for each in [*self._now.values()]:
            each.is_cut = True
            self._leave(each)

    def _leave(self, stand: Stand) -> None:
        del self._now[stand.where]
        if stand.is_long:
            self.ended.add(stand)


def _outcome(row: Read, offset: int) -> tuple[str, int] | None:
    """Return what a Fetch shows of the transaction whose first record has an offset."""
    for producer_id, first in row.aborts:
        if first == offset:
            return ABORTED, producer_id
    return (COMMITTED, -1) if row.first == offset else None
