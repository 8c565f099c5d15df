"""What pictures are drawn of: numbers and bars over time, collected beside a history.

::

    Exchange · ConnectionEnd · Gap ─▶ History ─▶ rows ─▶ Series ─┬─ members: a row of bars for each
                                                                 ├─ offsets and lag: Steps
                                                                 └─ waits: a row for each client

The history decides what is so: who is a member, what is committed, where a log ends. This keeps
when that changed. Transactions are not here: the history keeps them itself.

Invariant: memory is bounded by `GROUPS_MAX` groups with `ROWS_MAX` rows each, by `LINES_MAX` lines
of each kind, and by the bounds of each (`bounded`). What comes first is kept; with a subject, what
is not of it is not followed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import Note
from kproxy.exchange.words.wording import age, count, partitions
from kproxy.history import rows as r
from kproxy.history import standstills
from kproxy.history.events import ExchangeRows
from kproxy.history.group import POLL_TIMEOUT, REMOVED_BY, Group
from kproxy.history.history import History
from kproxy.history.items import Gap, Item
from kproxy.history.kept import one_of
from kproxy.history.members import Member
from kproxy.history.ref import Client, Ref
from kproxy.look.pictures.bounded import NOT_KNOWN, Bar, BarRow, EndMark, Steps
from kproxy.look.why.sentences import named, short_id
from kproxy.recording.info import Info

GROUPS_MAX, ROWS_MAX, LINES_MAX = 100, 24, 500
_GENERATIONS_MAX, _GAPS_MAX, _LEFT_OUT_MAX = 200, 100, 5000
JOINS, HAS, HAS_NOTHING, MEMBER = "joins", "has", "has-nothing", "member"
"""What a member does: it joins, it was given partitions, or none; what it has is not recorded."""
_CIRCLE = "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z"
LEFT = EndMark("left", standstills.LEFT, _CIRCLE)
ENDED = EndMark("ended", standstills.ENDED, "m-4 -4l8 8m0 -8l-8 8")
REMOVED = EndMark("removed", f"removed: {standstills.REMOVED}", f"{_CIRCLE}m1 -3l6 6")
TOLD, WAITED, STILL = "told", "waited", "still"
"""A client was told to wait; its request waited for that; nothing moved."""

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
            is_own = client == member.ref.client or place == member.place
            if is_own and row.open is None and (row.bars[-1].until_ns or 0) <= from_ns:
                self.rows[at] = client, member.place, row
                return row
        if len(self.rows) == ROWS_MAX:
            if len(self.left_out) < _LEFT_OUT_MAX:
                self.left_out.add(member.id)
            return None
        row = BarRow(member.ref.client_id or short_id(member.id))
        self.rows.append((member.ref.client, member.place, row))
        return row

    def end(self, member_id: str, time_ns: int, how: EndMark) -> None:
        """Take the end of a member."""
        self.open.pop(member_id)[0].close(time_ns, how)

    def born(self, number: int, time_ns: int) -> None:
        """Take a generation, if it is new."""
        if not self.generations or number > self.generations[-1][1]:
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
    """Times of which the recording does not tell; beyond `_GAPS_MAX` the last reaches on."""
    _is_gap: bool = attrs.field(default=False, init=False)
    _readers: dict[TopicPartition, set[str]] = attrs.field(factory=dict, init=False)
    """Partition → the groups of `committed`."""
    _on: dict[int, set[str]] = attrs.field(factory=dict, init=False)
    """Connection → the groups of its members."""
    _waited_ms: dict[Client, float] = attrs.field(factory=dict, init=False)
    """How long a client has waited, as the history had counted."""

    @classmethod
    def of(cls, head: Info, about: tuple[str, str] = ("", "")) -> Series:
        """Return what will be collected of a recording with this head."""
        return cls(head.metadata.get("filter", ""), about)

    def note(self, note: Note) -> None:
        """Take a note: kproxy itself stood still."""
        match note.body:
            case {"event": "stood_still", "from_ns": int(from_ns), "until_ns": int(until_ns)}:
                self._add_bar(("", "kproxy"), STILL, from_ns, until_ns, "kproxy itself stood still")
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
            ref = taken.ref
            self.from_ns = min(self.from_ns or ref.time_ns, ref.time_ns)
            if self._is_gap:
                self._behind_gap(ref)
            self.until_ns = max(self.until_ns, ref.completed_ns, ref.answered_ns)
            for row in taken.rows:
                if (take := _TAKES.get(type(row))) is not None:
                    take(self, ref, row)
            self._take_waited(ref)

    def _follows(self, group: str, topic: str | None = None) -> bool:
        """Return whether what is of a group, and a topic, may be drawn."""
        kind, name = self.about
        own = {"group": group, "topic": topic}.get(kind)
        return own is None or own == name

    def _gap(self) -> None:
        self._is_gap = True
        for group in self.groups.values():
            for member_id in [*group.open]:
                group.end(member_id, self.until_ns, NOT_KNOWN)
        for lines in (self.written, self.stable, self.fetched, self.committed, self.lag):
            for each in lines.values():
                each.forget(self.until_ns)

    def _behind_gap(self, ref: Ref) -> None:
        self._is_gap = False
        from_ns = self.gaps.pop()[0] if len(self.gaps) == _GAPS_MAX else self.until_ns
        self.gaps.append((from_ns, max(self.until_ns, ref.time_ns)))

    # ---- members

    def _group(self, ref: Ref, name: str) -> tuple[GroupRows, Group] | None:
        """Return the rows of a group that the history follows."""
        group = self.history.groups.get(name)
        if group is None or not self._follows(name):
            return None
        self._on.setdefault(ref.connection, set()).add(name)
        return one_of(self.groups, name, GROUPS_MAX, GroupRows), group

    def _joined(self, ref: Ref, row: r.Joined) -> None:
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
            title, texts = f"{named(ref)} joins", _texts(row.owned)
            rows.begin(member, Bar(ref.time_ns, JOINS, title, None, None, texts, row.owned))

    def _assigned(self, ref: Ref, row: r.Assigned) -> None:
        found = self._group(ref, row.group)
        member = None if found is None else found[1].members.get(row.member)
        if found is None or member is None or member.left or row.error or not ref.is_answered:
            return
        bar = _has(ref.completed_ns, ref, row.generation, row.partitions)
        open_row = found[0].open.get(member.id)
        last = None if open_row is None else open_row[0].open
        if last is None or (last.kind, last.partitions) != (bar.kind, bar.partitions):
            found[0].begin(member, bar)

    def _heard(self, ref: Ref, row: r.Beat | r.CommitRequested) -> None:
        found = self._group(ref, row.group) if row.member and ref.is_answered else None
        member = None if found is None else found[1].members.get(row.member)
        if found is None or member is None:
            return
        if REMOVED_BY.intersection(ref.errors) and not ref.fate.made:
            if member.id in found[0].open:
                found[0].end(member.id, ref.answered_ns, REMOVED)
        elif member.id not in found[0].open and member.accepted is ref and member.left is None:
            bar = Bar(ref.time_ns, MEMBER, f"a member, as {named(ref)} shows")
            if (given := member.given) is not None:
                bar = _has(ref.time_ns, given.ref, given.generation, given.partitions)
            found[0].begin(member, bar)

    def _left(self, ref: Ref, row: r.Left) -> None:
        if (found := self._group(ref, row.group)) is not None:
            for each, (_, member) in [*found[0].open.items()]:
                if member.left is ref:
                    how = REMOVED if POLL_TIMEOUT in row.reason else LEFT
                    found[0].end(each, ref.time_ns, how)

    def _connection_ended(self, end: ConnectionEnd) -> None:
        for name in self._on.pop(end.connection, ()):
            rows = self.groups.get(name, GroupRows())
            for each, (_, member) in [*rows.open.items()]:
                if member.ended is not None and member.ended.connection == end.connection:
                    rows.end(each, end.first.time_ns if end.first else end.time_ns, ENDED)

    # ---- offsets

    def _log(self, ref: Ref, row: r.Appended | r.Read | r.Bound) -> None:
        log = self.history.logs.logs.get(row.where)
        if log is None or ref.fate.injected:
            return
        if log.starts.latest is not None and not isinstance(row, r.Appended):
            one_of(self.starts, row.where, LINES_MAX, Steps).see(ref.answered_ns, log.start)
        if row.log_end is not None and log.is_shown:
            one_of(self.written, row.where, LINES_MAX, Steps).see(ref.answered_ns, log.end)
            for group in self._readers.get(row.where, ()):
                self._behind(ref, (group, row.where))

    def _read(self, ref: Ref, row: r.Read) -> None:
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
        key = owner.group, row.where
        reading = self.history.reads.readings.get(key)
        latest = None if reading is None else reading.progress.latest
        if latest is not None and latest.number == ref.number:  # the history counts it
            fetched = one_of(self.fetched, key, LINES_MAX, Steps)
            fetched.see(ref.answered_ns, latest.offset, min(asked[0], latest.offset))
            committed = self.committed.get(key)
            if committed is not None and committed.value is not None:  # nothing was since
                committed.see(ref.answered_ns, committed.value)

    def _commit(self, ref: Ref, row: r.Commit | r.OffsetsFetched) -> None:
        """Take what counts as committed; what a group was told, if nothing else is known: a commit
        may be under way."""
        key = row.group, row.where
        if not self._follows(row.group, row.where.topic):
            return
        if isinstance(row, r.OffsetsFetched):
            known = self.committed.get(key, Steps()).value
            if row.error or row.offset < 0 or ref.fate.made or known not in (None, row.offset):
                return
        elif not row.certain:
            self.committed.get(key, Steps()).forget(ref.answered_ns)
            return
        one_of(self.committed, key, LINES_MAX, Steps).see(ref.answered_ns, row.offset)
        if key in self.committed:
            self._readers.setdefault(row.where, set()).add(row.group)
        self._behind(ref, key)

    def _behind(self, ref: Ref, key: Key) -> None:
        log, committed = self.history.logs.logs.get(key[1]), self.committed.get(key, Steps()).value
        if committed is not None and log is not None and log.is_shown:
            behind = max(0, log.records_end - committed)
            one_of(self.lag, key, LINES_MAX, Steps).see(ref.answered_ns, behind)

    def _deleted(self, ref: Ref, row: r.Deleted) -> None:
        for lines in (self.committed, self.lag, self.fetched):
            for (group, where), each in lines.items():
                if row.covers(group, where):
                    each.forget(ref.answered_ns)
        for lines in (self.written, self.starts, self.stable):
            for where, each in lines.items():
                if where.topic == row.deleted_topic:
                    each.forget(ref.answered_ns)

    # ---- waiting

    def _throttled(self, ref: Ref, row: r.Throttled) -> None:
        until_ns = ref.answered_ns + row.throttle_ms * 1_000_000
        title = f"{named(ref)}: told to wait {age(row.throttle_ms)}"
        self._add_bar(ref.client, TOLD, ref.answered_ns, until_ns, title)

    def _take_waited(self, ref: Ref) -> None:
        """Take that a request waited for a quota, if the history counts that."""
        found = self.history.clients.throttling.get(ref.client)
        if found is not None and found.waited.total_ms > self._waited_ms.get(ref.client, 0.0):
            self._waited_ms[ref.client] = found.waited.total_ms
            title = f"{named(ref)}: the broker left it lying, for the client was told to wait"
            self._add_bar(ref.client, WAITED, ref.sent_ns, ref.answered_ns, title)

    def _add_bar(self, client: Client, kind: str, from_ns: int, until_ns: int, title: str) -> None:
        row = one_of(self.waits, (client, kind), LINES_MAX, lambda: BarRow(client[1] or client[0]))
        row.add(Bar(from_ns, kind, title, max(from_ns, until_ns)))


def _has(from_ns: int, ref: Ref, generation: int, given: tuple[TopicPartition, ...]) -> Bar:
    given, texts = tuple(sorted(given)), _texts(given)
    title = f"generation {generation}: {texts[0] if texts else 'no partition'} ({named(ref)})"
    return Bar(
        from_ns, HAS if given else HAS_NOTHING, title, text=texts or ("–",), partitions=given
    )


def _texts(given: tuple[TopicPartition, ...]) -> tuple[str, ...]:
    """Return texts for partitions, the longest first; none if there are none."""
    by_topic = itertools.groupby(sorted(given), key=lambda where: where.topic)
    whole = [partitions(topic, [str(each.partition) for each in own]) for topic, own in by_topic]
    short = [each.removeprefix(given[0].topic) for each in whole if len(whole) == 1]
    return (", ".join(whole), *short, count(len(given), "partition")) if given else ()


_TAKES: dict[type, Callable[[Series, Ref, Any], None]] = {
    r.Joined: Series._joined,
    r.Assigned: Series._assigned,
    r.Beat: Series._heard,
    r.CommitRequested: Series._heard,
    r.Left: Series._left,
    r.Appended: Series._log,
    r.Bound: Series._log,
    r.Read: Series._read,
    r.Commit: Series._commit,
    r.OffsetsFetched: Series._commit,
    r.Deleted: Series._deleted,
    r.Throttled: Series._throttled,
}
