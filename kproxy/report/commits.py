"""How far groups have committed, and where the logs end; parts are merged in any order.

    offsets, ends of transactions, deletions, ends of logs, markers
        ─▶ CommittedOffsets ─ merge ─▶ committed, lag

An offset counts when the broker has taken it, and that of a transaction when that has committed. A
group, a topic or an offset that was deleted has none of before; a topic that was deleted begins a
new log. What nobody answered is not known, and does not count.

Invariant: the sum of parts does not depend on their order. So a transaction that a part does not
begin, or not end, is kept until all parts are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.deletions import Gone

When = tuple[int, int]
"""The time of an exchange in microseconds, and its number."""
Where = tuple[str, str, int]
"""Group, topic, partition."""
Offsets = dict[Where, tuple[When, int]]


@attrs.define(eq=False)
class Segment:
    """A part of what a transactional id did."""

    began: When
    first_end: tuple[When, bool] | None = None
    """The first end in it, and whether that was a commit: it ends what was open before, too."""
    open: Offsets = attrs.field(factory=dict)
    """Offsets behind its last end."""


@attrs.define(eq=False)
class CommittedOffsets:
    """The offsets of groups, and the ends of logs, of one recording or of one cluster."""

    offsets: Offsets = attrs.field(factory=dict)
    """The last ones that count."""
    deletions: dict[Gone, When] = attrs.field(factory=dict)
    """What was deleted → when, the last time."""
    log_ends: dict[tuple[str, int], list[tuple[When, int]]] = attrs.field(factory=dict)
    """Topic and partition → ends of the log, each later and lower than the one before."""
    markers: dict[tuple[str, int], tuple[When, int, int]] = attrs.field(factory=dict)
    """Topic and partition → the last markers of transactions, with no record between them: when
    they were fetched, the first, and one past the last."""
    segments: dict[str, list[Segment]] = attrs.field(factory=dict)
    """Transactional id → parts of what it did."""

    # ---- what exchanges say

    def commit(self, where: Where, when: When, offset: int, transactional_id: str | None) -> None:
        """Take an offset that the broker has taken."""
        offsets = self.offsets
        if transactional_id is not None:
            offsets = self._segment(transactional_id, when).open
        _put(offsets, where, when, offset)

    def end(self, transactional_id: str, when: When, committed: bool) -> None:
        """Take the end of a transaction."""
        segment = self._segment(transactional_id, when)
        if segment.first_end is None:
            segment.first_end = when, committed
        if committed:
            _end(self.offsets, segment.open, when)
        segment.open = {}

    def delete(self, gone: Gone, when: When) -> None:
        """Take a deletion."""
        self.deletions[gone] = max(when, self.deletions.get(gone, when))

    def log_end(self, topic: str, partition: int, when: When, offset: int) -> None:
        """Take an offset that ended a log at that time."""
        before = self.log_ends.get((topic, partition), [])
        self.log_ends[topic, partition] = _falling([*before, (when, offset)])

    def mark(self, topic: str, partition: int, when: When, first: int, past: int) -> None:
        """Take markers of transactions that were fetched."""
        found = self.markers.get((topic, partition), (when, first, past))
        before, begins, ends = min(found, (when, first, past), key=lambda each: each[1:])
        if first <= ends and found[1] <= past:  # they join
            joined = max(before, when, found[0]), begins, max(ends, found[2], past)
        else:
            joined = max(found, (when, first, past), key=lambda each: each[2])
        self.markers[topic, partition] = joined

    def _segment(self, transactional_id: str, when: When) -> Segment:
        return self.segments.setdefault(transactional_id, [Segment(when)])[-1]

    # ---- sums

    def merge(self, other: CommittedOffsets) -> None:
        """Add what other exchanges say."""
        for where, (when, offset) in other.offsets.items():
            _put(self.offsets, where, when, offset)
        for gone, when in other.deletions.items():
            self.delete(gone, when)
        for where, ends in other.log_ends.items():
            self.log_ends[where] = _falling([*self.log_ends.get(where, ()), *ends])
        for where, (when, first, past) in other.markers.items():
            self.mark(*where, when, first, past)
        for transactional_id, segments in other.segments.items():
            self.segments.setdefault(transactional_id, []).extend(segments)

    def committed(self) -> dict[Where, int]:
        """Return the offsets that count."""
        found = dict(self.offsets)
        for segments in self.segments.values():
            left: Offsets = {}
            for segment in sorted(segments, key=lambda each: each.began):
                if segment.first_end is not None:
                    when, committed = segment.first_end
                    if committed:
                        _end(found, left, when)
                    left = {}
                left |= segment.open
        return {
            where: offset
            for where, (when, offset) in found.items()
            if when > max(self.deletions.get(each, _NEVER) for each in _may_go(where))
        }

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the ends of logs, by topic and partition, without markers of transactions after
        the last record."""
        found: dict[tuple[str, int], int] = {}
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


def _end(offsets: Offsets, ended: Offsets, when: When) -> None:
    """Take the offsets of a transaction that has committed."""
    for where, (_, offset) in ended.items():
        _put(offsets, where, when, offset)


def _may_go(where: Where) -> Iterator[Gone]:
    """Yield what may be deleted so that an offset goes, too."""
    group, topic, partition = where
    yield from ((group, None, None), (None, topic, None), (group, topic, partition))


def _falling(ends: Iterable[tuple[When, int]]) -> list[tuple[When, int]]:
    """Return ends of a log without those after which a larger one was seen: if nothing is deleted
    between, it grows."""
    found: list[tuple[When, int]] = []
    for when, offset in sorted(ends):
        while found and found[-1][1] <= offset:
            found.pop()
        found.append((when, offset))
    return found
