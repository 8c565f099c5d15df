"""The rebuilt log of one partition: an index over batches, which are served as recorded.

::

    Fetch responses ────┐                            ┌─▶ read(offset) ─▶ the same bytes
    Produce, re-based ──┼─▶ add ─▶ PartitionBatches ─┼─▶ offset by time
    live Produce ───────┘          their places      └─▶ last stable offset, aborted transactions

Invariants: batches are in the order of their offsets and do not overlap; between them there may be
holes (compaction, unrecorded batches), and a read inside a hole gives the next batch, as brokers
do. Readers see the log up to `visible_end`, and what they have seen stays as it is.

Records that are still to be produced are held back (`hide`), with everything after them
(`live_order`).

What compaction removed before any consumer read it is not served: batches that a recorded Fetch
passes over, and records that its batches lack. They were produced all the same, so they are kept
apart (`removed`).
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any

import attrs

from kproxy.exchange.entries import Buffer
from kproxy.replay.batch_index import PRODUCED, READ, STAMPED, TIMED, PartitionBatches
from kproxy.replay.live_order import LiveOrder, PartitionTransaction
from kproxy.replay.store import Store
from kproxy.replay.stored_batch import (
    NO_BATCH,
    first_offset,
    head,
    pieces,
    placed,
    spans,
    stamp,
    to_magic_2,
)
from kproxy.replay.unreadable import contents, damage_of
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import (
    BATCH_HEADER,
    CONTROL,
    TRANSACTIONAL,
    Batch,
    entries,
    read_header,
)

_OFFSET, _EPOCH, _EPOCH_AT = Struct(">q"), Struct(">i"), 12
_EPOCH_MAX = 1 << 31
_JOINED_BYTES_MAX = 64 << 10
"""Longer runs of batches are sent as one view; shorter ones are joined, which copies."""


_FINISHED = (
    "start_offset",
    "last_start_offset",
    "end_offset",
    "epochs",
    "index",
    "removed",
    "transactions",
)


@attrs.define(eq=False)
class _Writes:
    """Transactional batches in any order, until the recording has ended."""

    bases: array[int] = attrs.Factory(lambda: array("q"))
    producer_ids: array[int] = attrs.Factory(lambda: array("q"))
    kinds: array[int] = attrs.Factory(lambda: array("b"))
    """_WRITE, or the kind of a marker."""


_WRITE, _ABORT, _COMMIT = 0, 1, 2


class PartitionLog:
    """The batches of one partition."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.reader = store.reader.of_log(self)
        """Reads the records of its batches."""
        self.index = PartitionBatches()
        self.removed = PartitionBatches()
        """Produced batches as they were before compaction, which overlap those of `index`."""
        self._passed_over: set[tuple[int, int]] = set()
        """Ranges of offsets in which a Fetch found no batch."""
        self._writes = _Writes()
        self._unknown_ends, self._unseen_ends = set[int](), set[int]()
        """Offsets of the markers that end a transaction that is `unknown`, or `unseen`."""
        self._open: dict[int, PartitionTransaction] = {}
        self.transactions: list[PartitionTransaction] = []
        """In the order of their first offsets."""
        self._stable_at = (-1, 0)
        self._stable = 0
        self.start_offset = 0
        """The first offset, at the beginning of the recording."""
        self.last_start_offset = 0
        """The first offset at its end, if no consumer read before it."""
        self.end_offset = 0
        """The last offset + 1."""
        self.epochs: list[tuple[int, int]] = []
        """(first offset, leader epoch) of the batches in which the epoch must be set."""
        self._behind = 0
        """The batch behind those that were read last."""
        self.live_order = LiveOrder()
        """The recorded offsets that clients are still to produce."""

    # ---- offsets and batches

    def __len__(self) -> int:
        return len(self.index)

    @property
    def visible_end(self) -> int:
        """The high watermark: the last visible offset + 1."""
        next_offset = self.live_order.next_offset
        return self.end_offset if next_offset is None else next_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of the log for readers of committed records."""
        end = self.visible_end
        if self._stable_at != (end, len(self.transactions)):
            self._stable_at = (end, len(self.transactions))
            self._stable = end
            for transaction in self.transactions:
                last = transaction.last_offset
                if transaction.first_offset < end and (last is None or last >= end):
                    self._stable = transaction.first_offset
                    break
        return self._stable

    def holds(self, offset: int) -> bool:
        """Return whether a batch has this offset."""
        return self.index.holds(offset)

    def is_open(self, producer_id: int) -> bool:
        """Return whether a producer has an open transaction in this partition."""
        return producer_id in self._open

    def batches(self, offset: int = 0) -> Iterator[Batch]:
        """Yield the batches from the one that holds `offset` or, if there is none, the next."""
        for index in range(self.index.find(offset), len(self.index)):
            yield self._batch(index)

    def produced(self) -> Iterator[tuple[Batch, PartitionTransaction | None]]:
        """Yield the batches that clients produced in the recording, with their transactions."""
        of_producer: dict[int, list[PartitionTransaction]] = {}
        for each in self.transactions:
            of_producer.setdefault(each.producer_id, []).append(each)
        parts = (self._produced(batches) for batches in (self.index, self.removed))
        for batch in heapq.merge(*parts, key=first_offset):
            found = of_producer.get(batch.producer_id, []) if batch.transactional else []
            begun = bisect_right(found, batch.offset, key=lambda each: each.first_offset)
            yield batch, found[begun - 1] if begun else None

    def note_groups(self, producer_id: int, last_offset: int, groups: list[str]) -> None:
        """Note the groups whose offsets the transaction committed that wrote up to this offset."""
        for each in reversed(self.transactions):
            if each.producer_id == producer_id and each.first_offset <= last_offset:
                each.groups = groups
                break

    def _produced(self, batches: PartitionBatches) -> Iterator[Batch]:
        for index in range(len(batches)):
            if batches.has(index, PRODUCED):
                yield self._batch(index, batches)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield the first and last offset of each batch."""
        for base, delta in zip(self.index.bases, self.index.deltas, strict=True):
            yield base, base + delta

    # ---- filling it from a recording

    def add(
        self,
        data: bytes,
        *,
        produced: bool,
        place: int | None = None,
        start: int = 0,
        timed: bool = False,
        read_at: int | None = None,
    ) -> None:
        """Add whole batches at the offsets in their headers; skip one that is cut off. They were
        fetched from the offset `read_at`. Of fetched ones, those before what is no batch are added.

        Fetched batches replace those that they overlap; `produced` batches are skipped if they
        overlap others. `place` and `start` say where the bytes lie in the recording. The bytes of
        a produced batch there are the client's: its offset and leader epoch are not set, and, if
        it is `timed`, nor is the broker's timestamp.

        Raises:
            ProtocolError: what follows the batches is not the beginning of another.
        """
        found = list(spans(data))
        behind = found.pop()[0] if found and found[-1][2] == NO_BATCH else len(data)
        if found:
            self._add(data, found, produced, place, start, timed, read_at)
        list(entries(data, behind))  # raises

    def add_marker(self, data: bytes, at: int, *, unknown: bool, unseen: bool) -> None:
        """Add the marker at this offset, which ends a transaction that is `unknown` or `unseen`,
        or none of them."""
        self.add(data, produced=False)
        if unknown:
            self._unknown_ends.add(at)
        if unseen:
            self._unseen_ends.add(at)

    def _add(
        self,
        data: bytes,
        found: list[tuple[int, int, int]],
        produced: bool,
        place: int | None,
        start: int,
        timed: bool,
        read_at: int | None,
    ) -> None:
        flags = PRODUCED if produced else READ
        if place is None:
            place, start = self._store.append(data), 0
        elif produced:
            flags |= STAMPED | (TIMED if timed else 0)
            epoch = int.from_bytes(data[12:16], "big", signed=True)
            if not self.epochs or self.epochs[-1][1] != epoch:
                self.epochs.append((int.from_bytes(data[:8], "big", signed=True), epoch))
        index = self.index
        for first, end, magic in found:
            attributes, delta, time, base = self._header(data, first, end, magic)
            at_index = index.find(base)
            known = at_index < len(index) and index.bases[at_index] <= base + delta
            if produced and (known or self.removed.holds(base)):
                if known and not self.removed.holds(base):
                    differs = index.size(at_index) != end - first
                    if differs and damage_of(self._head(data, first, end, magic)):
                        place_in = base, delta, time, place, start + first, end - first
                        self.removed.insert(*place_in, flags)
                    else:
                        index.mark(at_index, PRODUCED)
                continue
            if read_at is not None:
                if read_at < base:
                    self._passed_over.add((read_at, base))
                read_at = base + delta + 1
            replaced = self._replace(base, base + delta, data[first:end]) if known else 0
            if replaced is None:
                continue
            self._insert(base, delta, time, place, start + first, end - first, flags | replaced)
            if attributes & (TRANSACTIONAL | CONTROL):
                self._collect_write(self._head(data, first, end, magic))

    def holes(self, start: int) -> int:
        """Count the offsets from `start` on that no batch holds, and no Fetch passed over."""
        passed_over = sorted((low, high - 1) for low, high in self._passed_over)
        holes = 0
        for first, last in heapq.merge(self.spans(), passed_over):
            holes += max(0, first - start)
            start = max(start, last + 1)
        return holes + max(0, self.end_offset - start)

    def widen(self, start_offset: int | None, end_offset: int) -> None:
        """Widen the range of the log to offsets that were seen outside of batches."""
        if start_offset is not None:
            self.start_offset = min(self.start_offset, start_offset)
        self.end_offset = max(self.end_offset, end_offset)

    def finish(
        self,
        lowest_read: int | None,
        first_start: int | None = None,
        last_start: int | None = None,
    ) -> None:
        """Compute the start offsets and the transactions at the end of the recording.

        `lowest_read` is the lowest offset that was read from the log, if any; `first_start` and
        `last_start` are those at which it was seen to start at first and at last.
        """
        for low, high in self._passed_over:
            self._remove_unread(low, high - 1)
        self.index.finish()
        self.removed.finish()
        first = self.index.bases[0] if len(self.index) else None
        if first_start is not None:  # a batch may begin before it
            first = min(first_start, self._first_produced(first_start))
        known = [offset for offset in (first, lowest_read) if offset is not None]
        self.start_offset = min(known) if known else self.end_offset
        self.last_start_offset = self.start_offset
        if last_start is not None and (lowest_read is None or lowest_read >= last_start):
            self.last_start_offset = max(self.start_offset, last_start)
        writes, self._writes = self._writes, _Writes()
        kinds = zip(writes.producer_ids, writes.kinds, strict=True)
        for base, (producer_id, kind) in sorted(
            dict(zip(writes.bases, kinds, strict=True)).items()
        ):
            if self.holds(base):
                self._note_write(base, producer_id, kind)

    def _first_produced(self, otherwise: int) -> int:
        """Return the offset of the first produced batch."""
        for batches in (self.removed, self.index):
            for index in range(len(batches)):
                if batches.has(index, PRODUCED):
                    otherwise = min(otherwise, batches.bases[index])
                    break
        return otherwise

    def __getstate__(self) -> tuple[Any, ...]:
        """Return what `finish` has made of it."""
        return self._store, {name: getattr(self, name) for name in _FINISHED}

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(state[0])
        for name, value in state[1].items():
            setattr(self, name, value)
        self._open = _opened(self.transactions)

    # ---- live Produce

    def append(self, data: bytes, leader_epoch: int) -> int:
        """Append a batch that a client produces behind what readers see; return its base offset.
        What is no batch is not stored, as brokers do."""
        found = [each for each in pieces(data) if each.magic != NO_BATCH]
        if found and self.live_order.next_offset is not None:
            self._leave_recording()
        base_offset = self.end_offset
        for piece in found:
            stored = placed(piece, self.end_offset, leader_epoch)
            attributes, delta, time, base = self._header(stored, 0, len(stored), piece.magic)
            self._insert(base, delta, time, self._store.append(stored), 0, len(stored), 0)
            if attributes & (TRANSACTIONAL | CONTROL):
                batch = self._head(stored, 0, len(stored), piece.magic)
                self._note_write(base, batch.producer_id, _kind(batch))
        self._follow()
        return base_offset

    def begin_at_end(self) -> None:
        """Start where the log started at the end of the recording."""
        self.start_offset = self.last_start_offset

    def delete_before(self, offset: int) -> None:
        """Move the start forward to an offset; nothing happens if it is there already."""
        self.start_offset = max(self.start_offset, offset)

    def hide(self, offsets: Iterable[int], optional: Iterable[int]) -> None:
        """Hold back what is to be produced again at these offsets, and everything after the first;
        nothing waits for what is `optional` once the log has left the recording."""
        self.live_order.hold_back(offsets, optional)
        self.transactions = [attrs.evolve(each) for each in self.transactions]
        self._open = _opened(self.transactions)

    def pass_by(self, offset: int) -> None:
        """Wait no more for a record: it was produced otherwise, or to another partition."""
        next_offset = self.live_order.next_offset
        if next_offset is not None and offset >= next_offset:
            self._leave_recording()
        self.live_order.pass_by(offset)
        self._follow()

    def _leave_recording(self) -> None:
        """Serve what comes from now on behind what readers see, in the order of its production."""
        end = self.visible_end
        front = self.index.find(end)
        is_cut = front < len(self.index) and self.index.bases[front] < end
        seen = self._visible_part(front, end) if is_cut else b""
        ahead = self.index.split(front)
        self.live_order.leave_recording(ahead)
        if seen:
            _, delta, time, base = self._header(seen, 0, len(seen), 2)
            self._insert(base, delta, time, self._store.append(seen), 0, len(seen), 0)
        self.end_offset = end
        self.epochs = [each for each in self.epochs if each[0] < end] or self.epochs[:1]
        self.transactions = [each for each in self.transactions if each.first_offset < end]
        for each in self.transactions:
            if each.last_offset is not None and each.last_offset >= end:
                each.last_offset, each.aborted = None, False
        self._open = _opened(self.transactions)
        self._stable_at = (-1, 0)

    def _follow(self) -> None:
        """Serve the recorded batches of others before which nothing is to come any more."""
        for index, ahead in self.live_order.following():
            self._move(index, ahead)

    def _move(self, index: int, ahead: PartitionBatches) -> None:
        """Serve a recorded batch behind what readers see."""
        batch, base = self._batch(index, ahead), self.end_offset
        place, start, size = ahead.places[index], ahead.starts[index], ahead.size(index)
        flags = READ | STAMPED
        if batch.magic != 2:
            is_damaged = damage_of(batch)
            data = placed(batch, base, 0) if is_damaged else to_magic_2(batch, base)
            place, start, size, flags = self._store.append(data), 0, len(data), READ
        elif not self.epochs or self.epochs[-1][1] != batch.partition_leader_epoch:
            self.epochs.append((base, batch.partition_leader_epoch))
        self._insert(base, ahead.deltas[index], batch.max_timestamp, place, start, size, flags)
        if batch.transactional or batch.control:
            self._note_write(base, batch.producer_id, _kind(batch))

    # ---- reading

    def read(self, offset: int, end: int, bytes_max: int, at_least_one: bool) -> Buffer:
        """Return the batches from `offset` up to `end`, as many as `bytes_max` allows.

        With `at_least_one` the first is returned however large it is (KIP-74).
        """
        batches = self.index
        index = batches.find(offset)
        pieces: list[Buffer] = []
        total = 0
        while index < len(batches) and batches.bases[index] < end:
            left = bytes_max - total
            if at_least_one and not total:
                left = max(left, batches.size(index))
            stop = self._whole_until(index, end)
            if stop > index:
                run, size = batches.run(index, stop, left)
                pieces.append(self._bytes(index, size) if size else b"")
            else:
                run, size = index + 1, batches.size(index)
                if size > left:
                    break
                pieces.append(self._visible_part(index, end))
            if run == index:
                break
            total += size
            index = run
            if size > _JOINED_BYTES_MAX:
                break
        self._behind = index
        pieces = [piece for piece in pieces if len(piece)]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_ahead(self) -> None:
        """Read the frame behind the batches that were read last: they will be asked for next."""
        if self._behind < len(self.index):
            self._store.frame(self.index.places[self._behind])

    def aborted(self, offset: int, end: int) -> list[PartitionTransaction]:
        """Return the aborted transactions that overlap `offset` to `end`."""
        return [
            each
            for each in self.transactions
            if each.aborted
            and each.first_offset < end
            and each.last_offset is not None
            and each.last_offset >= offset
        ]

    def offset_by_time(self, timestamp: int, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after `timestamp`, below `end`."""
        for index, newest in enumerate(self.index.times):
            if self.index.bases[index] >= end:
                break
            for record in contents(self._batch(index)) if newest >= timestamp else ():
                if record.timestamp >= timestamp and record.offset < end:
                    return record.offset, record.timestamp
        return None

    def newest(self, end: int) -> tuple[int, int] | None:
        """Return offset and timestamp of the record with the highest timestamp below `end`
        (KIP-734)."""
        times = self.index.times[: bisect_left(self.index.bases, end)]
        return self.offset_by_time(max(times), end) if times else None

    def end_of_epoch(self, leader_epoch: int) -> tuple[int, int]:
        """Return the newest leader epoch up to `leader_epoch`, and its end offset."""

        def epoch(index: int) -> int:
            return self._batch(index).partition_leader_epoch

        behind = bisect_right(range(len(self.index)), leader_epoch, key=epoch)
        end = self.index.bases[behind] if behind < len(self.index) else self.visible_end
        found = max(epoch(behind - 1), 0) if behind else leader_epoch
        return found, min(end, self.visible_end)

    # ---- the index

    def _bytes(self, index: int, size: int, batches: PartitionBatches | None = None) -> Buffer:
        """Return `size` bytes from a batch on, with offset, epoch and timestamp set."""
        batches = self.index if batches is None else batches
        start = batches.starts[index]
        found = memoryview(self._store.frame(batches.places[index]))[start : start + size]
        if not batches.has(index, STAMPED):
            return found
        base, stamped = batches.bases[index], bytearray(found)
        epoch = self.epochs[max(0, bisect_right(self.epochs, (base, _EPOCH_MAX)) - 1)][1]
        _OFFSET.pack_into(stamped, 0, base)
        _EPOCH.pack_into(stamped, _EPOCH_AT, epoch)
        if batches.has(index, TIMED):
            stamp(stamped, batches.times[index])
        return memoryview(stamped)

    def _batch(self, index: int, batches: PartitionBatches | None = None) -> Batch:
        batches = self.index if batches is None else batches
        data = bytes(self._bytes(index, batches.size(index), batches))
        return self._head(data, 0, len(data), data[16])

    def _head(self, data: bytes, start: int, end: int, magic: int) -> Batch:
        return head(data, start, end, magic, self.reader)

    def _header(self, data: bytes, start: int, end: int, magic: int) -> tuple[int, int, int, int]:
        """Return attributes, last offset delta, max timestamp and base offset of an entry."""
        if magic == 2:
            base, _, _, _, _, attributes, delta, _, time, *_ = BATCH_HEADER.unpack_from(data, start)
            return attributes, max(0, delta), time, base
        batch = self._head(data, start, end, magic)
        base = first_offset(batch)
        return 0, batch.offset - base, batch.max_timestamp, base

    def _whole_until(self, index: int, end: int) -> int:
        """Return the first batch from `index` on that readers up to `end` do not see all of."""
        batches = self.index
        until = bisect_left(batches.bases, end, index)
        if until > index and batches.last_offset(until - 1) >= end:
            until -= 1
        return until

    def _visible_part(self, index: int, end: int) -> bytes:
        """Return a new batch with the records of a batch that readers up to `end` see; nothing of
        one that cannot be read."""
        batch = self._batch(index)
        if damage_of(batch):
            return b""
        kept = [record for record in batch.records if record.offset < end]
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

    def _replace(self, first: int, last: int, data: bytes) -> int | None:
        """Remove the batches that overlap one that a consumer got in their place; return the flag
        that it has of them. None: leave it out, for compaction has taken records out of it that a
        consumer had read."""
        batches = self.index
        found = range(batches.find(first), bisect_right(batches.bases, last))
        produced = any(batches.has(index, PRODUCED) for index in found)
        whole = sum(batches.size(index) for index in found) == len(data)  # most are
        # What a broker has compressed in another way is compared as the client sent it.
        apart = produced and not whole and any(map(self._is_unread, found))
        if produced and not whole and not apart and data[16] == 2:
            counts = [self._batch(index).record_count or 0 for index in found]
            whole = sum(counts) <= (read_header(data, 0, len(data), 2).record_count or 0)
        if produced and not (whole or apart) and any(batches.has(each, READ) for each in found):
            return None
        for index in reversed(found):
            if produced and not whole:
                self.removed.take(batches, index)
            batches.remove(index)
        return PRODUCED if produced and whole else 0

    def _is_unread(self, index: int) -> bool:
        """Return whether a batch was produced, and cannot be read."""
        return self.index.has(index, PRODUCED) and damage_of(self._batch(index)) != ""

    def _remove_unread(self, first: int, last: int) -> None:
        """Remove the batches that overlap these offsets, but those that a consumer read."""
        batches = self.index
        for index in reversed(range(batches.find(first), bisect_right(batches.bases, last))):
            if not batches.has(index, READ):
                self.removed.take(batches, index)
                batches.remove(index)

    def _insert(
        self, base: int, delta: int, time: int, place: int, start: int, size: int, flags: int
    ) -> None:
        self.index.insert(base, delta, time, place, start, size, flags)
        self.end_offset = max(self.end_offset, base + delta + 1)

    def _collect_write(self, batch: Batch) -> None:
        writes = self._writes
        writes.bases.append(batch.offset)
        writes.producer_ids.append(batch.producer_id)
        writes.kinds.append(_kind(batch))

    def _note_write(self, base: int, producer_id: int, kind: int) -> None:
        """Update the transactions by a batch (called in the order of offsets)."""
        if kind == _WRITE:
            if producer_id not in self._open:
                transaction = PartitionTransaction(producer_id, base)
                self._open[producer_id] = transaction
                self.transactions.append(transaction)
            return
        transaction = self._open.pop(producer_id, None)
        if transaction is not None:
            transaction.last_offset = self.index.last_offset(self.index.find(base))
            transaction.aborted = kind == _ABORT
            transaction.unknown = transaction.last_offset in self._unknown_ends
            transaction.unseen = transaction.last_offset in self._unseen_ends


def _opened(transactions: list[PartitionTransaction]) -> dict[int, PartitionTransaction]:
    return {each.producer_id: each for each in transactions if each.last_offset is None}


def _kind(batch: Batch) -> int:
    if not batch.control:
        return _WRITE
    found = [] if damage_of(batch) else batch.records
    return _ABORT if found and found[0].control_type == "ABORT" else _COMMIT
