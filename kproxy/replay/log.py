"""The log of one partition, rebuilt: an index over batches that are served as they were recorded.

::

    Fetch responses ────┐                       ┌─▶ read(offset) ─▶ the same bytes
    Produce, re-based ──┼─▶ add ─▶ index ───────┼─▶ offset by time
    live Produce ───────┘          32 bytes     └─▶ last stable offset, aborted transactions
                                   per batch

Invariants: batches are in the order of their offsets and do not overlap; between them there may be
holes (compaction, what was not recorded), and a read inside a hole gives the next batch, as
brokers do. What readers see ends at `visible_end`: records that are still to be produced are held
back (`hide`, `show`), with all that comes behind them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import attrs

from kproxy.protocol import records
from kproxy.protocol.record_batch import (
    BATCH_HEADER,
    CONTROL,
    TRANSACTIONAL,
    Batch,
    entries,
    read_header,
)
from kproxy.replay.store import Store

_JOINED_BYTES_MAX = 64 << 10
"""A run of batches that is longer leaves as one view; shorter ones are joined, which copies."""


@attrs.define(eq=False)
class Transaction:
    """What one producer wrote in one transaction, in one partition."""

    producer_id: int
    first_offset: int
    last_offset: int | None = None
    """Where its marker is; None while it is open."""
    aborted: bool = False


class PartitionLog:
    """The batches of one partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._bases = array("q")
        self._deltas = array("i")
        self._times = array("q")
        self._positions = array("q")
        self._sizes = array("i")
        """Negative where the batch was seen being produced: 32 bytes have to do for a batch."""
        self._transactional = array("q")
        """Base offsets of batches that belong to transactions, in no order, until `finish`."""
        self._open: dict[int, Transaction] = {}
        self.transactions: list[Transaction] = []
        """In the order of their first offsets."""
        self._stable_at = (-1, 0, 0)
        self._stable = 0
        self.start_offset = 0
        self.end_offset = 0
        """One more than the last offset."""
        self._hidden = array("q")
        """Offsets of what is still to be produced, ascending."""
        self._dropped = array("q")
        """Offsets of records that were produced elsewhere, ascending: readers do not see them."""

    # ---- what it holds

    def __len__(self) -> int:
        return len(self._bases)

    @property
    def visible_end(self) -> int:
        """Kafka's high watermark: one more than the last offset that readers see."""
        if self._hidden:
            return self._hidden[0]
        end = self.end_offset
        while self._is_dropped(end - 1):
            end -= 1
        return end

    @property
    def last_stable_offset(self) -> int:
        """Where what readers of committed records see ends."""
        end = self.visible_end
        if self._stable_at != (end, len(self.transactions), len(self._open)):
            self._stable_at = (end, len(self.transactions), len(self._open))
            self._stable = end
            for transaction in self.transactions:
                last = transaction.last_offset
                if transaction.first_offset < end and (last is None or last >= end):
                    self._stable = transaction.first_offset
                    break
        return self._stable

    def holds(self, offset: int) -> bool:
        """Whether a batch takes up this offset."""
        index = self._index(offset)
        return index < len(self._bases) and self._bases[index] <= offset

    def is_open(self, producer_id: int) -> bool:
        """Whether a producer has written here in a transaction that has not ended."""
        return producer_id in self._open

    def transaction_at(self, offset: int) -> Transaction | None:
        """The transaction that the batch at this offset is part of."""
        for batch in self.batches(offset):
            for each in self.transactions:
                if each.producer_id == batch.producer_id and each.first_offset <= offset:
                    if each.last_offset is None or offset <= each.last_offset:
                        return each
            break
        return None

    def batches(self, offset: int = 0) -> Iterator[Batch]:
        """Yield the batches from the one that holds `offset`, or comes next, on."""
        for index in range(self._index(offset), len(self._bases)):
            yield self._batch(index)

    def produced(self) -> Iterator[Batch]:
        """Yield the batches that were seen being produced."""
        for index, size in enumerate(self._sizes):
            if size < 0:
                yield self._batch(index)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield first and last offset of each batch."""
        for base, delta in zip(self._bases, self._deltas, strict=True):
            yield base, base + delta

    # ---- filling it from a recording

    def add(self, data: bytes, *, produced: bool) -> None:
        """Take whole batches with the offsets that they bear; one that is cut off is left out.

        Batches come as they were `produced`, or fetched. What is fetched takes the place of what
        it overlaps; what is produced is left out where there is something already.

        Raises:
            ProtocolError: `data` is not record batches.
        """
        found = list(entries(data))
        if not found:
            return
        position = self._store.append(data)
        for start, end, magic in found:
            attributes, delta, time, base = _header(data, start, end, magic)
            there = self._index(base)
            known = there < len(self._bases) and self._bases[there] <= base + delta
            if known and produced:
                self._sizes[there] = -abs(self._sizes[there])
                continue
            was_produced = known and self._remove(base, base + delta)
            size = end - start
            size = -size if produced or was_produced else size
            self._insert(base, delta, time, position + start, size)
            if attributes & (TRANSACTIONAL | CONTROL):
                self._transactional.append(base)

    def widen(self, start_offset: int | None, end_offset: int) -> None:
        """Take part of the log's range from what was seen of it, beside the batches."""
        if start_offset is not None:
            self.start_offset = min(self.start_offset, start_offset)
        self.end_offset = max(self.end_offset, end_offset)

    def finish(self, start_offset: int | None) -> None:
        """The recording has ended: work out what depends on all batches.

        `start_offset` is the lowest offset at which the log was seen to be read, if any.
        """
        first = self._bases[0] if self._bases else None
        known = [offset for offset in (first, start_offset) if offset is not None]
        self.start_offset = min(known) if known else self.end_offset
        for offset in sorted(set(self._transactional)):
            if self.holds(offset):
                self._note(self._batch(self._index(offset)))
        self._transactional = array("q")

    # ---- what clients produce

    def append(self, data: bytes, leader_epoch: int) -> int:
        """Take batches that a client produces, at the end; return their base offset.

        Raises:
            ProtocolError: `data` is not whole batches of magic 2.
        """
        base_offset = self.end_offset
        data = records.rebase(data, base_offset, partition_leader_epoch=leader_epoch)
        position = self._store.append(data)
        for start, end, magic in entries(data):
            attributes, delta, time, base = _header(data, start, end, magic)
            self._insert(base, delta, time, position + start, end - start)
            if attributes & (TRANSACTIONAL | CONTROL):
                self._note(read_header(data, start, end, magic))
        return base_offset

    def hide(self, offsets: list[int]) -> None:
        """Hold back what is at these offsets, and all that is behind the first."""
        self._hidden = array("q", sorted({*self._hidden, *offsets}))

    def show(self, offset: int) -> None:
        """Hold back this offset no longer."""
        index = bisect_left(self._hidden, offset)
        if index < len(self._hidden) and self._hidden[index] == offset:
            del self._hidden[index]

    def drop(self, offset: int) -> None:
        """Never show the record at this offset: it was produced elsewhere this time."""
        self.show(offset)
        self._dropped.insert(bisect_left(self._dropped, offset), offset)

    # ---- reading

    def read(self, offset: int, end: int, bytes_max: int, at_least_one: bool) -> memoryview | bytes:
        """Return the batches from `offset` up to `end`, as many as `bytes_max` allows.

        With `at_least_one` the first comes however large it is (KIP-74).
        """
        index = self._index(offset)
        pieces: list[memoryview | bytes] = []
        total = 0
        while index < len(self._bases) and self._bases[index] < end:
            first = at_least_one and not total
            if self._is_whole(index, end):
                run, size = self._run(index, end, bytes_max - total, first)
                pieces.append(self._store.read(self._positions[index], size))
            else:
                run, size = index + 1, abs(self._sizes[index])
                if total + size > bytes_max and not first:
                    break
                pieces.append(self._what_is_left(index, end))
            if run == index:
                break
            total += size
            index = run
            if size > _JOINED_BYTES_MAX:
                break
        pieces = [piece for piece in pieces if len(piece)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def aborted(self, offset: int, end: int) -> list[Transaction]:
        """Return the aborted transactions that a reader from `offset` to `end` must know of."""
        return [
            each
            for each in self.transactions
            if each.aborted
            and each.first_offset < end
            and each.last_offset is not None
            and each.last_offset >= offset
        ]

    def offset_by_time(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record that is not older, below `end`."""
        for index, time in enumerate(self._times):
            if self._bases[index] >= end:
                break
            if time >= timestamp:
                for record in self._batch(index).records:
                    if record.timestamp >= timestamp and record.offset < end:
                        return record.offset, record.timestamp
        return None

    def newest(self, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the youngest record below `end` (KIP-734)."""
        if not len(self._bases) or self._bases[0] >= end:
            return None
        below = bisect_left(self._bases, end)
        return self.offset_by_time(max(self._times[:below]), end)

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the newest leader epoch up to `leader_epoch`, and where it ends."""
        low, high = 0, len(self._bases)
        while low < high:
            middle = (low + high) // 2
            if self._batch(middle).partition_leader_epoch > leader_epoch:
                high = middle
            else:
                low = middle + 1
        end = self._bases[low] if low < len(self._bases) else self.visible_end
        found = self._batch(low - 1).partition_leader_epoch if low else leader_epoch
        return max(found, 0) if low else leader_epoch, min(end, self.visible_end)

    # ---- the index

    def _index(self, offset: int) -> int:
        """The batch that holds `offset`, or else the next."""
        index = bisect_right(self._bases, offset) - 1
        if index >= 0 and self._bases[index] + self._deltas[index] >= offset:
            return index
        return index + 1

    def _batch(self, index: int) -> Batch:
        data = bytes(self._store.read(self._positions[index], abs(self._sizes[index])))
        return read_header(data, 0, len(data), data[16])

    def _run(self, index: int, end: int, bytes_max: int, first: bool) -> tuple[int, int]:
        """How far the batches from `index` on lie side by side: where that ends, their bytes."""
        position = self._positions[index]
        total = 0
        while index < len(self._bases) and self._is_whole(index, end):
            size = abs(self._sizes[index])
            if self._positions[index] != position + total:
                break
            if total + size > bytes_max and not (first and not total):
                break
            if not self._store.together(position, position + total + size):
                break
            total += size
            index += 1
        return index, total

    def _is_whole(self, index: int, end: int) -> bool:
        """Whether readers up to `end` see all of a batch."""
        base = self._bases[index]
        last = base + self._deltas[index]
        if last >= end:
            return False
        dropped = bisect_left(self._dropped, base)
        return dropped == len(self._dropped) or self._dropped[dropped] > last

    def _is_dropped(self, offset: int) -> bool:
        index = bisect_left(self._dropped, offset)
        return index < len(self._dropped) and self._dropped[index] == offset

    def _what_is_left(self, index: int, end: int) -> bytes:
        """A batch as a new one, with the records that readers up to `end` see."""
        batch = self._batch(index)
        kept = [
            record
            for record in batch.records
            if record.offset < end and not self._is_dropped(record.offset)
        ]
        if not kept:
            return b""
        return records.encode_batch(
            kept,
            base_offset=batch.offset,
            last_offset=min(batch.last_offset, end - 1),
            compression=batch.compression,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            partition_leader_epoch=batch.partition_leader_epoch,
            transactional=batch.transactional,
        )

    def _remove(self, first: int, last: int) -> bool:
        """Remove what overlaps these offsets; return whether some of it was produced."""
        index = self._index(first)
        produced = False
        while index < len(self._bases) and self._bases[index] <= last:
            produced = produced or self._sizes[index] < 0
            columns = (self._bases, self._deltas, self._times, self._positions, self._sizes)
            for column in columns:
                del column[index]
        return produced

    def _insert(self, base: int, delta: int, time: int, position: int, size: int) -> None:
        index = bisect_left(self._bases, base)
        self._bases.insert(index, base)
        self._deltas.insert(index, delta)
        self._times.insert(index, time)
        self._positions.insert(index, position)
        self._sizes.insert(index, size)
        self.end_offset = max(self.end_offset, base + delta + 1)

    def _note(self, batch: Batch) -> None:
        """Take a batch's part in a transaction (batches come in the order of their offsets)."""
        if not batch.control:
            if batch.producer_id not in self._open:
                transaction = Transaction(batch.producer_id, batch.offset)
                self._open[batch.producer_id] = transaction
                self.transactions.append(transaction)
            return
        transaction = self._open.pop(batch.producer_id, None)
        if transaction is not None:
            transaction.last_offset = batch.last_offset
            transaction.aborted = batch.records[0].control_type == "ABORT"


def _header(data: bytes, start: int, end: int, magic: int) -> tuple[int, int, int, int]:
    """Attributes, last offset delta, max timestamp and base offset of an entry."""
    if magic == 2:
        base, _, _, _, _, attributes, delta, _, time, *_ = BATCH_HEADER.unpack_from(data, start)
        return attributes, delta, time, base
    batch = read_header(data, start, end, magic)
    return 0, batch.offset - batch.base_offset, batch.max_timestamp, batch.base_offset
