"""How far groups have committed, and where the logs end; parts are merged in any order.

    CommitRequested, Ended, Initialized, Deleted, ends of logs, markers
        ─▶ CommittedOffsets ─ merge ─▶ committed, lag

The offsets are those of the commits that certainly count in a `History`, which takes rows in their
order; here they come in any. A group, a topic or an offset that was deleted has none of before; a
topic that was deleted begins a new log. What a transaction held before a gap does not count: there
it may have ended, and the next one begun.

Invariant: the sum of parts does not depend on their order. So a transaction that a part does not
begin, or not end, is kept until all parts are there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.merging import by, by_key
from kproxy.history.ref import Ref
from kproxy.history.rows import (
    Appended,
    Bound,
    CommitRequested,
    Deleted,
    Ended,
    Initialized,
    Read,
    Row,
)

When = tuple[int, int]
"""When an exchange was complete, in microseconds, and its number."""
Gone = tuple[str | None, str | None, int | None]
"""Of a `Deleted`: of a group or of all, of a topic or of all, of a partition or of all."""
Where = tuple[str, str, int]
"""Group, topic, partition."""
Offsets = dict[Where, tuple[When, int]]
Partition = tuple[str, int]
"""Topic and partition."""
Markers = tuple[When, int, int]
"""Markers of transactions that were fetched: when, the first, and one past the last."""


@attrs.define(eq=False)
class Segment:
    """A part of what a transactional id did."""

    began: When
    first_end: tuple[When, bool] | None = None
    """The first end in it, and whether that was a commit: it ends what was open before, too."""
    open: Offsets = attrs.Factory(dict)
    """Offsets behind its last end."""


def _last_markers(one: Markers, other: Markers) -> Markers:
    """Return markers together if they join, else the last ones."""
    (_, begins, ends), (_, first, past) = sorted((one, other), key=lambda each: each[1:])
    if first <= ends:
        return max(one[0], other[0]), begins, max(ends, past)
    return max(one, other, key=lambda each: each[2])


def _falling(ends: Iterable[tuple[When, int]]) -> list[tuple[When, int]]:
    """Return ends of a log without those after which a larger one was seen: if nothing is deleted
    between, it grows."""
    found: list[tuple[When, int]] = []
    for when, offset in sorted(ends):
        while found and found[-1][1] <= offset:
            found.pop()
        found.append((when, offset))
    return found


@attrs.define(eq=False)
class CommittedOffsets:
    """The offsets of groups, and the ends of logs, of one recording or of one cluster."""

    offsets: Offsets = attrs.field(factory=dict, metadata=by(by_key(max)))
    """The last ones that count."""
    deletions: dict[Gone, When] = attrs.field(factory=dict, metadata=by(by_key(max)))
    """What was deleted → when, the last time."""
    log_ends: dict[Partition, list[tuple[When, int]]] = attrs.field(
        factory=dict, metadata=by(by_key(lambda one, other: _falling([*one, *other])))
    )
    """Ends of the log, each later and lower than the one before."""
    markers: dict[Partition, Markers] = attrs.field(
        factory=dict, metadata=by(by_key(_last_markers))
    )
    """The last markers, with no record between them."""
    segments: dict[str, list[Segment]] = attrs.field(
        factory=dict, metadata=by(by_key(lambda one, other: [*one, *other]))
    )
    """Transactional id → parts of what it did."""
    gaps: list[int] = attrs.field(
        factory=list, metadata=by(lambda one, other: sorted({*one, *other}))
    )
    """Where parts of the recording are not there, in microseconds, ascending."""

    def take(self, ref: Ref, rows: Iterable[Row]) -> None:
        """Take the rows of an exchange."""
        when = ref.completed_ns // 1000, ref.number
        for row in rows if ref.is_taken else ():
            match row:
                case CommitRequested() if not row.error and row.offset >= 0:
                    self._commit(row, when)
                case Ended() if not row.error:
                    self._end(row.transactional_id, when, row.committed)
                case Initialized() if not row.error and row.transactional_id:
                    self._end(row.transactional_id, when, committed=False)
                case Deleted():
                    self._delete((row.group, row.topic, row.partition), when)
                case Appended() | Read() | Bound() if (end := row.log_end) is not None:
                    where = row.where.topic, row.where.partition
                    ends = self.log_ends.get(where, [])
                    grew = len(ends) == 1 and ends[0][0] <= when and ends[0][1] <= end
                    self.log_ends[where] = [(when, end)] if grew else _falling([*ends, (when, end)])
                    for first, last in row.markers if isinstance(row, Read) else ():
                        marker = when, first, last + 1
                        self.markers[where] = _last_markers(self.markers.get(where, marker), marker)
                case _:
                    pass

    def gap(self, time_ns: int) -> None:
        """Take a gap, before the exchanges behind it."""
        self.gaps = sorted({*self.gaps, -(-time_ns // 1000)})

    def _commit(self, row: CommitRequested, when: When) -> None:
        offsets = self.offsets
        if row.transactional_id:
            offsets = self._segment(row.transactional_id, when).open
        _put(offsets, (row.group, row.where.topic, row.where.partition), when, row.offset)

    def _end(self, transactional_id: str, when: When, committed: bool) -> None:
        """Take the end of a transaction: beginning anew commits nothing for certain."""
        segment = self._segment(transactional_id, when)
        if segment.first_end is None:
            segment.first_end = when, committed
        if committed:
            self._count(self.offsets, segment.open, when)
        segment.open = {}

    def _count(self, offsets: Offsets, ended: Offsets, when: When) -> None:
        """Take the offsets of a transaction that has committed."""
        before = bisect_right(self.gaps, when[0])
        gap_us = self.gaps[before - 1] if before else 0
        for where, (since, offset) in ended.items():
            if since[0] >= gap_us:
                _put(offsets, where, when, offset)

    def _delete(self, gone: Gone, when: When) -> None:
        self.deletions[gone] = max(when, self.deletions.get(gone, when))

    def _segment(self, transactional_id: str, when: When) -> Segment:
        return self.segments.setdefault(transactional_id, [Segment(when)])[-1]

    def committed(self) -> dict[Where, int]:
        """Return the offsets that count."""
        found = dict(self.offsets)
        for segments in self.segments.values():
            left: Offsets = {}
            for segment in sorted(segments, key=lambda each: each.began):
                if segment.first_end is not None:
                    when, committed = segment.first_end
                    if committed:
                        self._count(found, left, when)
                    left = {}
                left |= segment.open
        return {
            where: offset
            for where, (when, offset) in found.items()
            if when > max(self.deletions.get(each, _NEVER) for each in _may_go(where))
        }

    def ends(self) -> dict[Partition, int]:
        """Return the ends of logs, by topic and partition, without markers of transactions after
        the last record."""
        found: dict[Partition, int] = {}
        for (topic, partition), ends in self.log_ends.items():
            deleted = self.deletions.get((None, topic, None), _NEVER)
            later = [offset for when, offset in ends if when > deleted]
            if later:
                end = max(later)
                when, first, past = self.markers.get((topic, partition), (_NEVER, end, end))
                found[topic, partition] = first if past == end and when > deleted else end
        return found


_NEVER: When = (-1, -1)


def _put(offsets: Offsets, where: Where, when: When, offset: int) -> None:
    """Keep the later one of two offsets."""
    offsets[where] = max((when, offset), offsets.get(where, (when, offset)))


def _may_go(where: Where) -> Iterator[Gone]:
    """Yield what may be deleted so that an offset goes, too."""
    group, topic, partition = where
    yield from ((group, None, None), (None, topic, None), (group, topic, partition))
