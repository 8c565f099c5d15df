"""Produce, Fetch and their kin in words: records and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from kproxy.exchange.topic_records import AbortedTransactions
from kproxy.exchange.words.wording import (
    Context,
    Words,
    at,
    by_topic,
    count,
    joined,
    listed,
    no_text,
    partition_number,
    partitions,
    transaction,
)
from kproxy.units import format_bytes
from kproxy.wire.protocol import ProtocolError
from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.record_batch import (
    Batch,
    Head,
    damage_at_a_glance,
    read_header,
    read_heads,
)

_MARKER_BYTES_MAX = 1024
_BATCH_BYTES_MAX = 64 << 10
_UNPACKED_BYTES_MAX, _UNPACKED_RECORDS_MAX = 1 << 20, 10_000
"""A line looks for damage in batches up to this size, and unpacks no more than this."""
_HIGH_WATERMARK = -1
"""DeleteRecords up to this offset deletes all of a partition."""

# ---- records


@attrs.define
class _RecordTally:
    """Counts of the records in some `records` fields, from the heads of their batches alone."""

    fields: int = 0
    size_bytes: int = 0
    found: int = 0
    uncounted: bool = False
    """True if there are more records: compressed sets of the old formats have no count."""
    first: int = -1
    last: int = -1
    markers: dict[str, None] = attrs.field(factory=dict)
    """Ends of transactions, which take up offsets but are no records: COMMIT, ABORT."""
    aborted: int = 0
    """Records of transactions that are known to be aborted."""
    damaged_batches: int = 0
    damage: ProtocolError | None = None
    """The first reason why a batch, or what follows the batches of a field, cannot be read."""
    is_partial: bool = False
    """True if there are records before the damage in a batch."""
    allowance: Allowance = attrs.field(
        factory=lambda: Allowance(_UNPACKED_BYTES_MAX, _UNPACKED_RECORDS_MAX)
    )

    def add(self, data: bytes, aborted: Iterable[Any] = ()) -> int:
        """Count one field, as far as it can be read; `aborted` are its aborted transactions. Return
        the offset behind it; 0 where that is not known."""
        self.fields += 1
        self.size_bytes += len(data)
        heads = read_heads(data)
        if heads.damage is not None:
            self.damage = self.damage or heads.damage
        if not heads:
            return 0
        if self.first < 0:
            self.first = heads[0].offset
        self.last = heads[-1].last_offset
        transactions = AbortedTransactions(aborted) if aborted else None
        for head in heads:
            is_aborted = transactions is not None and transactions.is_dropped(_batch(data, head))
            if head.control:
                self._marker(_batch(data, head))
                continue
            count = head.record_count
            if head.end - head.start <= _BATCH_BYTES_MAX:
                damage = damage_at_a_glance(data, head, self.allowance)
                if damage is not None:
                    count = self._damaged(*damage)
            if count is None:
                self.uncounted = True
            elif count > 0:
                self.found += count
                self.aborted += count * is_aborted
        return self.last + 1

    def _damaged(self, record_count: int, damage: ProtocolError) -> int:
        self.damaged_batches += 1
        self.damage = self.damage or damage
        self.is_partial = self.is_partial or record_count > 0
        return record_count

    def _marker(self, batch: Batch) -> None:
        # A real marker is tiny; what is made to look like one is not worth decompressing.
        if batch.compression != "none" or len(batch.raw) > _MARKER_BYTES_MAX:
            self.markers["marker"] = None
            return
        self.markers.update((each.control_type or "marker", None) for each in batch.records)
        if batch.damage is not None:
            self.markers["marker"] = None

    def __str__(self) -> str:
        damage = ""
        if self.damage is not None:
            what = count(self.damaged_batches, "batch") if self.damaged_batches else "bytes"
            part = " to the end" if self.is_partial else ""
            damage = f"{what} that cannot be read{part} ({self.damage.what})"
        if self.uncounted:
            text = f"{self.found}+ records" if self.found else "records"
        else:
            text = count(self.found, "record") if self.found or not (self.markers or damage) else ""
        aborted = f"{self.aborted} aborted" if self.aborted else ""
        return joined(text, aborted, *sorted(self.markers), damage)


def _batch(data: bytes, head: Head) -> Batch:
    return read_header(data, head.start, head.end, head.magic)


def _tally(topics: Iterable[Any] | None, inner: str) -> _RecordTally:
    """Count the records of all partitions of topics."""
    tally = _RecordTally()
    # As `_all`, without a generator: each Produce and each Fetch comes here.
    for topic in topics or ():
        for partition in getattr(topic, inner) or ():
            if partition.records:
                tally.add(partition.records)
    return tally


def _fetched(tally: _RecordTally, where: str) -> str:
    """Describe fetched records with their offsets: `[1] 3 records @41..43, 812 B`."""
    offsets = ""
    if tally.fields == 1 and tally.last >= 0:
        only = tally.first == tally.last
        offsets = f" @{tally.first}" if only else f" @{tally.first}..{tally.last}"
    return f"{where} {tally}{offsets}, {format_bytes(tally.size_bytes)}".lstrip()


# ---- producing and consuming


def _index(partition: Any) -> str:
    return str(partition if isinstance(partition, int) else partition.partition_index)


def _all(topics: Iterable[Any] | None, inner: str) -> Iterator[Any]:
    """Return all partitions of all topics."""
    return (each for topic in topics or () for each in getattr(topic, inner) or ())


def _produce_request(request: Any, context: Context) -> str:
    where = by_topic(request.topic_data, context, "partition_data", lambda p: str(p.index))
    tally = _tally(request.topic_data, "partition_data")
    acks = "acks=all" if request.acks == -1 else f"acks={request.acks}"
    return joined(f"{where} {tally}", format_bytes(tally.size_bytes), acks, transaction(request))


def _produce_response(response: Any, context: Context) -> str:
    found = response.responses or ()
    every = list(_all(found, "partition_responses"))
    asked = getattr(context.request, "topic_data", None)
    if len(every) == 1 and len(list(_all(asked, "partition_data"))) <= 1:
        return f"offset {every[0].base_offset}" if every[0].base_offset >= 0 else ""
    inner = "partition_responses"
    return by_topic(found, context, inner, lambda p: at(p.index, p.base_offset), asked)


def _fetch_request(request: Any, context: Context) -> str:
    where = by_topic(
        request.topics, context, "partitions", lambda p: at(p.partition, p.fetch_offset)
    )
    if request.session_id:
        session = f"session {request.session_id}"
        if request.session_epoch == -1:
            return joined(where, f"{session} ends")
        # A later Fetch of a session names only what has changed.
        return joined(where or "as before", f"{session} #{request.session_epoch}")
    return where or "no topics"


def _fetch_response(response: Any, context: Context) -> str:
    late: list[_Reached] = []
    tally, partition_count = _RecordTally(), 0
    for topic in response.responses or ():
        for partition in topic.partitions or ():
            behind = -1
            if partition.records:
                behind = tally.add(partition.records, partition.aborted_transactions or ())
            if behind < partition.high_watermark:
                late.append((topic, partition, behind))
            partition_count += 1
    lag = _lag(late, context.request) if late else ""
    if not tally.fields:
        return f"empty, {lag}" if lag else "empty"
    # In an incremental session the request need not name what it asks for.
    asked = None if response.session_id else getattr(context.request, "topics", None)
    named = asked is None or len(response.responses) != 1 or len(asked) != 1
    alone = not named and partition_count == len(list(_all(asked, "partitions"))) == 1
    where = "" if alone else _with_records(response, context, named)
    return joined(_fetched(tally, where), lag)


_Reached = tuple[Any, Any, int]
"""A topic and a partition of a response, and the offset behind its records; −1: it has none."""


def _lag(late: list[_Reached], request: Any) -> str:
    """Return how far the consumer is behind once it has these records, which end before the high
    watermark: `lag 12 of 53`.

    A partition without records is not mentioned unless the request tells the offset that it was
    asked for.
    """
    asked = _asked_offsets(request)
    lag = end = lagging = 0
    for topic, partition, behind in late:
        key = topic.topic or topic.topic_id, partition.partition_index
        reached = max(asked.get(key, -1), behind)
        if 0 <= reached < partition.high_watermark:
            lag += partition.high_watermark - reached
            lagging += 1
            end = partition.high_watermark
    if not lagging:
        return ""
    return f"lag {lag} of {end}" if lagging == 1 else f"lag {lag} in {lagging} partitions"


def _asked_offsets(request: Any) -> dict[tuple[Any, int], int]:
    topics = getattr(request, "topics", None) or ()
    return {
        (topic.topic or topic.topic_id, partition.partition): partition.fetch_offset
        for topic in topics
        for partition in topic.partitions or ()
    }


def _with_records(response: Any, context: Context, named: bool) -> str:
    return listed(
        partitions(name if named else "", indexes)
        for name, topic in sorted(
            ((context.topic(each), each) for each in response.responses), key=lambda one: one[0]
        )
        if (indexes := [
            _index(each) for each in sorted(topic.partitions or (), key=partition_number)
            if each.records
        ])
    )  # fmt: skip


def _share_fetch_request(request: Any, context: Context) -> str:
    where = by_topic(request.topics, context, "partitions", _index)
    return joined(f"group {request.group_id}", where, f"session #{request.share_session_epoch}")


def _share_fetch_response(response: Any, context: Context) -> str:
    tally = _tally(response.responses, "partitions")
    acquired = sum(
        each.last_offset - each.first_offset + 1
        for partition in _all(response.responses, "partitions")
        for each in partition.acquired_records or ()
    )
    if not tally.fields:
        return "empty"
    return f"{_fetched(tally, _with_records(response, context, True))}, {acquired} acquired"


_SPECIAL_OFFSETS = {
    -1: "latest",
    -2: "earliest",
    -3: "max-timestamp",
    -4: "earliest-local",
    -5: "latest-tiered",
    -6: "earliest-pending-upload",
}


def _list_offsets_request(request: Any, context: Context) -> str:
    def entry(partition: Any) -> str:
        wanted = partition.timestamp
        return at(partition.partition_index, _SPECIAL_OFFSETS.get(wanted, f"time {wanted}"))

    return by_topic(request.topics, context, "partitions", entry)


def _list_offsets_response(response: Any, context: Context) -> str:
    def entry(partition: Any) -> str:
        # Version 0 answers with several.
        several = getattr(partition, "old_style_offsets", None)
        return at(partition.partition_index, several[0] if several else partition.offset)

    return by_topic(response.topics, context, "partitions", entry, _asked_topics(context))


def _asked_topics(context: Context) -> Any:
    return getattr(context.request, "topics", None)


def _leader_epoch_request(request: Any, context: Context) -> str:
    return by_topic(
        request.topics, context, "partitions", lambda p: f"{p.partition} epoch {p.leader_epoch}"
    )


def _leader_epoch_response(response: Any, context: Context) -> str:
    def entry(partition: Any) -> str:
        return at(partition.partition, partition.end_offset)

    return by_topic(response.topics, context, "partitions", entry, _asked_topics(context))


def _delete_records_request(request: Any, context: Context) -> str:
    def entry(partition: Any) -> str:
        offset = "latest" if partition.offset == _HIGH_WATERMARK else partition.offset
        return at(partition.partition_index, offset)

    return by_topic(request.topics, context, "partitions", entry)


WORDS: Words = {
    "Produce": (_produce_request, _produce_response),
    "Fetch": (_fetch_request, _fetch_response),
    "ShareFetch": (_share_fetch_request, _share_fetch_response),
    "ListOffsets": (_list_offsets_request, _list_offsets_response),
    "OffsetForLeaderEpoch": (_leader_epoch_request, _leader_epoch_response),
    "DeleteRecords": (_delete_records_request, no_text),
}
