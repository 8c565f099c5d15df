"""What pictures are drawn of: numbers and bars over time, collected beside a history.

::

    Exchange · ConnectionEnd · Gap ─▶ History ─▶ rows ─▶ Series ─┬─ members: a row of bars for each
                                                                 ├─ offsets and lag: Steps
                                                                 └─ waits: a row for each client

The history decides what is so: who is a member, what is committed, where a log ends. This keeps
when that changed. Transactions are not here: the history keeps them itself.

Invariant: memory is bounded by `GROUPS_MAX` groups with `ROWS_MAX` rows each, by `LINES_MAX` lines
of each kind (ends of logs: as many again, of partitions that groups commit), and by the bounds of
each (`bounded`). What comes first is kept; with a subject, what is not of it is not followed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import Note
from kproxy.exchange.words.wording import age, count, partitions
from kproxy.history.events import ExchangeRows
from kproxy.history.group import POLL_TIMEOUT, REMOVED_BY, Group
from kproxy.history.history import History
from kproxy.history.items import Gap, Item
from kproxy.history.kept import one_of
from kproxy.history.members import Member
from kproxy.history.ref import Client, Ref
from kproxy.history.rows import (
    Appended,
    Assigned,
    Beat,
    Bound,
    Commit,
    CommitRequested,
    Deleted,
    Joined,
    Left,
    OffsetsFetched,
    Read,
    Throttled,
)
from kproxy.history.standstills import ENDED, LEFT, REMOVED
from kproxy.look.pictures.bounded import NOT_KNOWN, Bar, BarRow, Steps
from kproxy.look.why.sentences import named, short_id
from kproxy.recording.info import Info

GROUPS_MAX, ROWS_MAX = 100, 24
LINES_MAX = 500
_GENERATIONS_MAX, _GAPS_MAX, _LEFT_OUT_MAX = 200, 100, 5000
JOINS, HAS, HAS_NOTHING, MEMBER = "joins", "has", "has-nothing", "member"
"""What a member does: it joins, it was given partitions, or none; what it has is not recorded."""
TOLD, WAITED, HELD, STILL = "told", "waited", "held", "still"
"""A client was told to wait; its request waited for that; kproxy held it; nothing moved."""

Key = tuple[str, TopicPartition]
"""A group and a partition."""


@attrs.define(eq=False)
class GroupRows:
    """The members of a group over time. One that comes when another of its client has ended takes
    the row of that."""

    rows: list[tuple[Client, str, BarRow]] = attrs.Factory(list)
    """Client, place of the member (`Member.place`), and its bars."""
    left_out: set[str] = attrs.Factory(set)
    """Members for whom there was no row."""
    generations: list[tuple[int, int]] = attrs.Factory(list)
    """When each began, and its number; of too many, each second one goes."""
    newest: int = -1
    open: dict[str, tuple[BarRow, Member]] = attrs.Factory(dict)
    """Member id → the row of one that lives."""

    def begin(self, member: Member, bar: Bar) -> None:
        """Take what a member does from now on."""
        if member.id not in self.open:
            row = self._row(member, bar.from_ns)
            if row is None:
                return
            self.open[member.id] = row, member
        self.open[member.id][0].add(bar)

    def _row(self, member: Member, from_ns: int) -> BarRow | None:
        for at, (client, place, row) in enumerate(self.rows):
            if (client == member.ref.client or place == member.place) and row.open is None:
                if (row.bars[-1].until_ns or 0) <= from_ns:
                    self.rows[at] = client, member.place, row
                    return row
        if len(self.rows) == ROWS_MAX:
            if len(self.left_out) < _LEFT_OUT_MAX:
                self.left_out.add(member.id)
            return None
        row = BarRow(member.ref.client_id or short_id(member.id))
        self.rows.append((member.ref.client, member.place, row))
        return row

    def end(self, member_id: str, time_ns: int, how: str) -> None:
        """Take the end of a member."""
        row, _ = self.open.pop(member_id)
        row.close(time_ns, how)

    def born(self, number: int, time_ns: int) -> None:
        """Take a generation, if it is new."""
        if number > self.newest:
            self.newest = number
            self.generations.append((time_ns, number))
            if len(self.generations) > _GENERATIONS_MAX:
                del self.generations[1:-1:2]


@attrs.define(eq=False)
class Series:
    """What changed when in a recording."""

    excerpt: str = ""
    """The filter of an excerpt; "" of a whole recording."""
    about: tuple[str, str] = ("", "")
    """The only subject that is drawn: group or topic, and its name."""
    history: History = attrs.Factory(History)
    from_ns: int = 0
    until_ns: int = 0
    """The times of the first and the last exchange."""
    groups: dict[str, GroupRows] = attrs.Factory(dict)
    written: dict[TopicPartition, Steps] = attrs.Factory(dict)
    """Where logs end …"""
    starts: dict[TopicPartition, Steps] = attrs.Factory(dict)
    """… and begin, and …"""
    stable: dict[TopicPartition, Steps] = attrs.Factory(dict)
    """… their last stable offsets."""
    held: set[TopicPartition] = attrs.Factory(set)
    """Where transactions held back what was written: the last stable offset was behind the end."""
    fetched: dict[Key, Steps] = attrs.Factory(dict)
    """Each Fetch that brought records: from which offset, and up to which."""
    committed: dict[Key, Steps] = attrs.Factory(dict)
    lag: dict[Key, Steps] = attrs.Factory(dict)
    waits: dict[tuple[Client, str], BarRow] = attrs.Factory(dict)
    """Client and kind of waiting → its bars."""
    gaps: list[tuple[int, int]] = attrs.Factory(list)
    """Times of which the recording does not tell."""
    _gap_from_ns: int | None = attrs.field(default=None, init=False)
    _readers: dict[TopicPartition, set[str]] = attrs.field(
        factory=dict[TopicPartition, set[str]], init=False
    )
    """Partition → the groups of `committed`."""
    _on: dict[int, set[str]] = attrs.field(factory=dict[int, set[str]], init=False)
    """Connection → the groups of its members."""
    _waited_ms: dict[tuple[Client, str], float] = attrs.field(
        factory=dict[tuple[Client, str], float], init=False
    )
    """What the history had counted of these waits."""

    @classmethod
    def of(cls, head: Info, about: tuple[str, str] = ("", "")) -> Series:
        """Return what will be collected of a recording with this head."""
        return cls(head.metadata.get("filter", ""), about)

    def _follows(self, group: str, topic: str) -> bool:
        kind, name = self.about
        return name == {"group": group, "topic": topic}.get(kind, name)

    def note(self, note: Note) -> None:
        """Take a note: kproxy itself stood still."""
        match note.body:
            case {"event": "stood_still", "from_ns": int(from_ns), "until_ns": int(until_ns)}:
                self._wait(("", "kproxy"), STILL, from_ns, until_ns, "kproxy itself stood still")
            case _:
                pass

    def add(self, history: History, item: Item, taken: ExchangeRows | None) -> None:
        """Take the next item, and what the history has taken of it."""
        self.history = history
        if isinstance(item, Gap):
            self._gap()
        elif isinstance(item, ConnectionEnd):
            self._connection_ended(item)
        elif taken is not None:
            self._see(taken.ref)
            for row in taken.rows:
                if (take := _TAKES.get(type(row))) is not None:
                    take(self, taken.ref, row)
            self._waits(taken.ref)

    def _see(self, ref: Ref) -> None:
        self.from_ns = min(self.from_ns or ref.time_ns, ref.time_ns)
        if self._gap_from_ns is not None:
            self.gaps.append((self._gap_from_ns, max(self._gap_from_ns, ref.time_ns)))
            self._gap_from_ns = None
            if len(self.gaps) > _GAPS_MAX:  # the two that are closest are one
                at = min(range(_GAPS_MAX), key=lambda n: self.gaps[n + 1][0] - self.gaps[n][1])
                self.gaps[at : at + 2] = [(self.gaps[at][0], self.gaps[at + 1][1])]
        self.until_ns = max(self.until_ns, ref.completed_ns, ref.answered_ns)

    def _gap(self) -> None:
        now = self.until_ns
        self._gap_from_ns = self._gap_from_ns or now
        for group in self.groups.values():
            for member_id in [*group.open]:
                group.end(member_id, now, NOT_KNOWN)
        kinds = (self.written, self.stable, self.fetched, self.committed, self.lag)
        for each in (line for lines in kinds for line in lines.values()):
            each.forget(now)

    # ---- members

    def _group(self, ref: Ref, name: str) -> tuple[GroupRows, Group] | None:
        """Return the rows of a group that the history follows."""
        group = self.history.groups.get(name)
        if group is None or not self._follows(name, self.about[1]):
            return None
        self._on.setdefault(ref.connection, set()).add(name)
        return one_of(self.groups, name, GROUPS_MAX, GroupRows), group

    def _joined(self, ref: Ref, row: Joined) -> None:
        found = self._group(ref, row.group)
        if found is None or row.generation is None or row.error or not ref.is_answered:
            return
        rows, group = found
        if row.kind == "classic":
            rows.born(row.generation, ref.answered_ns)
        if row.members and (generation := group.generations.get(row.generation)) is not None:
            for each in [each for each in rows.open if group.place(each) not in generation.members]:
                rows.end(each, ref.answered_ns, REMOVED)
        if (member := group.members.get(row.member)) is not None:
            title = f"{named(ref)} joins"
            rows.begin(
                member, Bar(ref.time_ns, JOINS, title, text=_texts(row.owned), partitions=row.owned)
            )

    def _assigned(self, ref: Ref, row: Assigned) -> None:
        found = self._group(ref, row.group)
        if found is None or row.error or not ref.is_answered:
            return
        rows, group = found
        if (member := group.members.get(row.member)) is not None and member.left is None:
            given = tuple(sorted(row.partitions))
            open_row = rows.open.get(member.id)
            last = None if open_row is None else open_row[0].open
            if last is None or last.kind not in (HAS, HAS_NOTHING) or last.partitions != given:
                rows.begin(member, _has(ref.completed_ns, ref, row.generation, given))

    def _heard(self, ref: Ref, row: Beat | CommitRequested) -> None:
        found = self._group(ref, row.group) if row.member and ref.is_answered else None
        member = None if found is None else found[1].members.get(row.member)
        if found is None or member is None:
            return
        rows = found[0]
        if REMOVED_BY.intersection(ref.errors) and not ref.fate.made:
            if member.id in rows.open:
                rows.end(member.id, ref.answered_ns, REMOVED)
        elif member.id not in rows.open and member.accepted is ref and member.left is None:
            if (given := member.given) is not None:
                bar = _has(ref.time_ns, given.ref, given.generation, given.partitions)
            else:
                bar = Bar(ref.time_ns, MEMBER, f"a member, as {named(ref)} shows")
            rows.begin(member, bar)

    def _left(self, ref: Ref, row: Left) -> None:
        if (found := self._group(ref, row.group)) is not None:
            how = REMOVED if POLL_TIMEOUT in row.reason else LEFT
            for each, (_, member) in [*found[0].open.items()]:
                if member.left is ref:
                    found[0].end(each, ref.time_ns, how)

    def _connection_ended(self, end: ConnectionEnd) -> None:
        for name in self._on.pop(end.connection, ()):
            rows = self.groups.get(name, GroupRows())
            for each, (_, member) in [*rows.open.items()]:
                if member.ended is not None and member.ended.connection == end.connection:
                    rows.end(each, end.first.time_ns if end.first else end.time_ns, ENDED)

    # ---- offsets

    def _log(self, ref: Ref, row: Appended | Read | Bound) -> None:
        where = row.where
        log = self.history.logs.logs.get(where)
        if log is None or ref.fate.injected:
            return
        if log.starts.latest is not None and not isinstance(row, Appended):
            one_of(self.starts, where, LINES_MAX, Steps).see(ref.answered_ns, log.start)
        if row.log_end is not None and log.is_shown:
            most = LINES_MAX * (1 + (where in self._readers))
            one_of(self.written, where, most, Steps).see(ref.answered_ns, log.end)
            for group in self._readers.get(where, ()):
                self._behind(ref, (group, where))

    def _read(self, ref: Ref, row: Read) -> None:
        self._log(ref, row)
        if row.last_stable_offset >= 0 and not (row.error or ref.fate.injected):
            stable = one_of(self.stable, row.where, LINES_MAX, Steps)
            stable.see(ref.answered_ns, row.last_stable_offset)
            if row.last_stable_offset < row.high_watermark and row.where in self.stable:
                self.held.add(row.where)
        asked = self.history.reads.position(ref.connection, row.where)
        owner = self.history.groups.reader(ref.client, row.where) if row.records else None
        if asked is None or owner is None or not self._follows(owner.group, row.where.topic):
            return
        reading = self.history.reads.readings.get((owner.group, row.where))
        latest = None if reading is None else reading.progress.latest
        if latest is not None and latest.number == ref.number:  # the history counts it
            fetched = one_of(self.fetched, (owner.group, row.where), LINES_MAX, Steps)
            fetched.see(ref.answered_ns, latest.offset, min(asked[0], latest.offset))
            committed = self.committed.get((owner.group, row.where))
            if committed is not None and committed.value is not None:  # nothing was since
                committed.see(ref.answered_ns, committed.value)

    def _commit(self, ref: Ref, row: Commit) -> None:
        line = self._committed(row.group, row.where)
        if row.certain:
            line.see(ref.answered_ns, row.offset)
            self._behind(ref, (row.group, row.where))
        else:
            line.forget(ref.answered_ns)

    def _told(self, ref: Ref, row: OffsetsFetched) -> None:
        """Take what is committed, if that is not known already: a commit may be under way."""
        if row.offset >= 0 and not (row.error or ref.fate.made):
            line = self._committed(row.group, row.where)
            if line.value in (None, row.offset):
                line.see(ref.answered_ns, row.offset)
                self._behind(ref, (row.group, row.where))

    def _committed(self, group: str, where: TopicPartition) -> Steps:
        most = LINES_MAX if self._follows(group, where.topic) else 0
        found = one_of(self.committed, (group, where), most, Steps)
        if (group, where) in self.committed:
            self._readers.setdefault(where, set()).add(group)
        return found

    def _behind(self, ref: Ref, key: Key) -> None:
        log, committed = self.history.logs.logs.get(key[1]), self.committed.get(key)
        if committed is not None and committed.value is not None and log is not None:
            if log.is_shown:
                lag = one_of(self.lag, key, LINES_MAX, Steps)
                lag.see(ref.answered_ns, max(0, log.records_end - committed.value))

    def _deleted(self, ref: Ref, row: Deleted) -> None:
        for lines in (self.committed, self.lag, self.fetched):
            for (group, where), each in lines.items():
                if row.covers(group, where):
                    each.forget(ref.answered_ns)
        for lines in (self.written, self.starts, self.stable):
            for where, each in lines.items():
                if where.topic == row.deleted_topic:
                    each.forget(ref.answered_ns)

    # ---- waits

    def _throttled(self, ref: Ref, row: Throttled) -> None:
        until_ns = ref.answered_ns + row.throttle_ms * 1_000_000
        title = f"{named(ref)}: told to wait {age(row.throttle_ms)}"
        self._wait(ref.client, TOLD, ref.answered_ns, until_ns, title)

    def _waits(self, ref: Ref) -> None:
        """Take that a request waited for a quota, or in kproxy, if the history counts that."""
        throttling = self.history.clients.throttling.get(ref.client)
        if throttling is not None and self._more(ref, WAITED, throttling.waited.total_ms):
            title = f"{named(ref)}: the broker left it lying, for the client was told to wait"
            self._wait(ref.client, WAITED, ref.sent_ns, ref.answered_ns, title)
        held = self.history.clients.held.get(ref.client)
        if held is not None and self._more(ref, HELD, held.total_ms):
            title = f"{named(ref)}: held in kproxy, too many before it have no answer"
            self._wait(ref.client, HELD, ref.time_ns, ref.sent_ns, title)

    def _more(self, ref: Ref, kind: str, total_ms: float) -> bool:
        before_ms = self._waited_ms.get((ref.client, kind), 0.0)
        self._waited_ms[ref.client, kind] = total_ms
        return total_ms > before_ms

    def _wait(self, client: Client, kind: str, from_ns: int, until_ns: int, title: str) -> None:
        row = one_of(self.waits, (client, kind), LINES_MAX, lambda: BarRow(client[1] or client[0]))
        row.add(Bar(from_ns, kind, title, max(from_ns, until_ns)))


def _has(from_ns: int, ref: Ref, generation: int, given: tuple[TopicPartition, ...]) -> Bar:
    texts = _texts(given)
    title = f"generation {generation}: {texts[0] if texts else 'no partition'} ({named(ref)})"
    kind = HAS if given else HAS_NOTHING
    return Bar(from_ns, kind, title, text=texts or ("–",), partitions=given)


def _texts(given: tuple[TopicPartition, ...]) -> tuple[str, ...]:
    """Return texts for partitions, the longest first; none if there are none."""
    by_topic: dict[str, list[str]] = {}
    for topic, partition in sorted(given):
        by_topic.setdefault(topic, []).append(str(partition))
    whole = ", ".join(partitions(*each) for each in by_topic.items())
    return (whole, count(len(given), "partition")) if given else ()


_TAKES: dict[type, Callable[[Series, Ref, Any], None]] = {
    Joined: Series._joined,
    Assigned: Series._assigned,
    Beat: Series._heard,
    CommitRequested: Series._heard,
    Left: Series._left,
    Appended: Series._log,
    Bound: Series._log,
    Read: Series._read,
    Commit: Series._commit,
    OffsetsFetched: Series._told,
    Deleted: Series._deleted,
    Throttled: Series._throttled,
}
