"""The order in which clients produce the records of a log again: as recorded, or another.

::

    as recorded:  ── seen ──┤ next, …        `show`: each as it was recorded, at its offset
    as produced:  ── seen ── x ── c ── e …   `PartitionLog.append`: as it is produced

It goes as recorded while clients produce what comes next. With the first record that is another, or
in another transaction, the log leaves the recording for good, as a broker has it: all that is
produced from then on has the next offset, and what is still to come moves back. Recorded batches of
others follow once all before them has been produced.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import attrs

from kproxy.replay.batch_index import PartitionBatches


@attrs.define(eq=False)
class PartitionTransaction:
    """The writes of one recorded transaction in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int | None = None
    """Offset of its marker; None while it is open."""
    aborted: bool = False
    unknown: bool = False
    """True if the EndTxn that was to commit it has no answer: it is served as committed."""
    unseen: bool = False
    """True if its beginning and its end are not in the recording: it is served as committed."""
    groups: list[str] = attrs.Factory(list)
    """Groups whose offsets were committed with it."""

    @property
    def committed(self) -> bool:
        """Whether readers of committed records see it."""
        return self.last_offset is not None and not self.aborted


@attrs.define(eq=False)
class LiveOrder:
    """The recorded offsets of one log that clients are still to produce."""

    holds_back: bool = attrs.field(default=False, init=False)
    _held: array[int] = attrs.field(factory=lambda: array("q"), init=False)
    """Recorded offsets of what clients produced, and of its markers, ascending."""
    _next: int = attrs.field(default=0, init=False)
    """The place of the first of them that is still to come."""
    _optional: frozenset[int] = attrs.field(default=frozenset(), init=False)
    """Those for which nothing waits: markers, and records that were not committed."""
    _produced_again: set[int] = attrs.field(factory=set, init=False)
    """Those that were produced, but not as recorded."""
    _writers: dict[PartitionTransaction, object] = attrs.field(factory=dict, init=False)
    """Recorded transactions that are served again, and the producers that write them now."""
    _ahead: PartitionBatches | None = attrs.field(default=None, init=False)
    """The recorded batches that were still to come when the log left the recording."""
    _followed: int = attrs.field(default=0, init=False)
    """The first of those that are still to come."""

    @property
    def next_offset(self) -> int | None:
        """The first recorded offset that is still to come; None if there is none, or if the log has
        left the recording."""
        waits = self._ahead is None and self._next < len(self._held)
        return self._held[self._next] if waits else None

    def hold_back(self, offsets: Iterable[int], optional: Iterable[int]) -> None:
        """Hold back what is to be produced again at these offsets; nothing waits for what is
        `optional` once the log has left the recording."""
        self.holds_back, self._optional = True, frozenset(optional)
        self._held = array("q", sorted({*offsets, *self._optional}))

    def show(self, offset: int, transaction: PartitionTransaction | None, writer: object) -> bool:
        """Serve a record that is produced again as it was recorded. Return False if it is not the
        next, or if `writer`, the producer of its transaction or None, does not write the recorded
        one: then it is to be appended."""
        if not self.holds_back:
            return True
        if self.next_offset == offset and self._is_written_by(transaction, writer):
            self._next += 1
            return True
        if self._next < len(self._held):
            self._produced_again.add(offset)
        return False

    def _is_written_by(self, transaction: PartitionTransaction | None, writer: object) -> bool:
        """Return whether a producer is the one that writes a recorded transaction now."""
        if transaction is None or writer is None:
            return transaction is writer
        return self._writers.setdefault(transaction, writer) is writer

    def end(self, writer: object, committed: bool) -> list[int]:
        """End the recorded transactions that a producer writes again. Return the ids of recorded
        producers to whose transactions a marker is to be appended: it was not the next."""
        lacking: list[int] = []
        for each in [one for one, its in self._writers.items() if its is writer]:
            del self._writers[each]
            is_next = each.last_offset is not None and each.last_offset == self.next_offset
            if is_next and each.committed == committed:
                self._next += 1
            else:
                lacking.append(each.producer_id)
        return lacking

    def leave_recording(self, ahead: PartitionBatches) -> None:
        """Take the recorded batches that are still to come: from now on the order is another."""
        self._ahead = ahead

    def pass_by(self, offset: int) -> None:
        """Wait no more for a record, once the log has left the recording."""
        if self._ahead is not None:
            self._produced_again.add(offset)

    def following(self) -> Iterator[tuple[int, PartitionBatches]]:
        """Yield the recorded batches of others before which nothing is to come any more, each once:
        its place, and the batches that it is of."""
        ahead, held = self._ahead, self._held
        if ahead is None:
            return
        passed = self._optional, self._produced_again
        while self._next < len(held) and any(held[self._next] in each for each in passed):
            self._produced_again.discard(held[self._next])
            self._next += 1
        until = held[self._next] if self._next < len(held) else ahead.end
        while self._followed < len(ahead) and ahead.bases[self._followed] < until:
            index, self._followed = self._followed, self._followed + 1
            first = bisect_left(held, ahead.bases[index])
            if first == len(held) or held[first] > ahead.last_offset(index):
                yield index, ahead
