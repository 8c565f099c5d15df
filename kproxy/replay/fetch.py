"""Reading: Fetch with its long poll, ListOffsets, OffsetForLeaderEpoch.

A Fetch that finds less than `min_bytes` waits until enough is visible, or until its time is up.
There are no fetch sessions: every Fetch is answered in full, with session id 0, as KIP-227 allows;
so a response never depends on earlier ones.

Old versions take message sets of an old magic: a batch becomes the messages of its records, or one
wrapper message with the same codec (Kafka's RecordsUtil). Headers are lost, and in magic 0
timestamps; markers of transactions are left out. What is old enough already stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.recording import RecordingError
from kproxy.replay.call import LATER, Call
from kproxy.replay.log import PartitionLog
from kproxy.replay.steps import Steps, by_partition, finished
from kproxy.replay.timers import Timer
from kproxy.replay.topics import Partition
from kproxy.replay.unreadable import damage_of
from kproxy.wire.protocol import ProtocolError, codes, messages
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Batch, RecordReader, entries, read_header
from kproxy.wire.protocol.schema import NO_UUID

if TYPE_CHECKING:
    from kproxy.replay.state import State

_MAGIC = (0, 0, 1, 1)
"""The newest magic that a version of Fetch takes; later ones take any."""
_MS = 1_000_000
_ZSTD = 4
_ZSTD_FETCH_VERSION = 10
_WHOLE_BATCH_VERSION = 3
"""From this version of Fetch on, the first batch comes whole, however large it is (KIP-74). Before
it, what is larger than the limit is cut off: clients then ask for more bytes."""
_CONVERTED_BYTES = 64 << 10
"""So many bytes of batches are read at once to be converted."""
_READ_COMMITTED = 1
_NO_SESSION_EPOCH = -1
_BYTES_MAX = 55 << 20
"""The largest size of records in a response, whatever the client allows; Kafka's
fetch.max.bytes."""
_AHEAD_BYTES_MIN = 64 << 10
"""Behind less than this, of a partition, nothing is read ahead."""
_WATCHED_MAX = 1000
"""A Fetch of more partitions waits for its time to be up, and not for more records in them."""

_DAMAGED = "it has changed since it was opened: start again"

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


@attrs.define(eq=False)
class _WaitingFetch:
    call: Call
    partitions: set[Partition]
    timer: Timer


@attrs.define(eq=False)
class WaitingFetches:
    """The Fetch requests that wait for more records."""

    waiting: dict[int, list[_WaitingFetch]] = attrs.Factory(dict)
    """Waiting requests by connection number."""

    def wait(self, state: State, call: Call, partitions: set[Partition]) -> None:
        """Let a Fetch wait for more records, at most until its time is up."""

        def expire(now: int) -> None:
            self._remove(waiting)
            state.respond(call, _response(state, call))

        timer = state.timers.at(call.now + call.body.max_wait_ms * _MS, expire)
        waiting = _WaitingFetch(call, partitions, timer)
        self.waiting.setdefault(call.connection.number, []).append(waiting)

    def more_visible(self, state: State, partition: Partition) -> None:
        """Answer the requests that have enough now that more of a partition is visible."""
        for waiting in [each for some in self.waiting.values() for each in some]:
            if partition not in waiting.partitions:
                continue
            body, size, _ = finished(_collect(state, waiting.call))
            if size >= waiting.call.body.min_bytes:
                waiting.timer.cancel()
                self._remove(waiting)
                state.respond(waiting.call, body)

    def answer(self, state: State, connection: int) -> None:
        """Answer the waiting requests of a connection at once."""
        for waiting in self.waiting.pop(connection, ()):
            waiting.timer.cancel()
            state.respond(waiting.call, _response(state, waiting.call))

    def answer_all(self, state: State) -> None:
        """Answer all waiting requests at once: see `State.gives_up`."""
        for connection in list(self.waiting):
            self.answer(state, connection)

    def forget(self, connection: int) -> None:
        """Drop the waiting requests of a connection that has ended."""
        for waiting in self.waiting.pop(connection, ()):
            waiting.timer.cancel()

    def _remove(self, waiting: _WaitingFetch) -> None:
        number = waiting.call.connection.number
        self.waiting[number].remove(waiting)
        if not self.waiting[number]:
            del self.waiting[number]


def fetch(state: State, call: Call) -> Steps:
    """Fetch."""
    body = call.body
    if body.session_id != 0 and body.session_epoch != _NO_SESSION_EPOCH:
        return messages.FetchResponse(error_code=codes.FETCH_SESSION_ID_NOT_FOUND)
    response, size, failed = yield from _collect(state, call)
    if size >= _AHEAD_BYTES_MIN:
        call.connection.read_ahead_with(_reader_ahead(state, response))
    if failed or size >= body.min_bytes or body.max_wait_ms <= 0 or not body.topics:
        return response
    if call.connection.ended:
        return response
    asked = ((each, one) for each in body.topics for one in each.partitions)
    found = {
        state.cluster.partition(each.topic, each.topic_id, one.partition)
        for each, one in islice(asked, _WATCHED_MAX)
    }
    watched = set() if any(asked) else {each for each in found if each}
    state.fetches.wait(state, call, watched)
    return LATER


def _reader_ahead(state: State, response: Any) -> Callable[[], None]:
    """Return the function that reads what a consumer will ask for after this response."""
    partitions = [
        state.cluster.partition(each.topic, each.topic_id, one.partition_index)
        for each in response.responses
        for one in each.partitions
        if len(one.records) >= _AHEAD_BYTES_MIN
    ]

    def read() -> None:
        with contextlib.suppress(RecordingError):  # the next Fetch reports it
            for partition in filter(None, partitions):
                partition.log.read_ahead()

    return read


def _response(state: State, call: Call) -> Steps:
    """Return the response as of now."""
    return (yield from _collect(state, call))[0]


def _collect(state: State, call: Call) -> Steps:
    """Return the response as of now, its bytes of records, and whether a partition has failed."""
    body, kind = call.body, messages.FetchResponse
    left = min(body.max_bytes, _BYTES_MAX)
    size, failed = 0, False
    responses = []
    for each in body.topics:
        yield
        partitions = []
        for one in each.partitions:
            yield
            partition = state.cluster.partition(each.topic, each.topic_id, one.partition)
            if state.gives_up:
                data = _refusal(one, codes.TOPIC_AUTHORIZATION_FAILED)
            elif partition is None:
                known = each.topic or state.cluster.topic(None, each.topic_id)
                data = _refusal(
                    one, codes.UNKNOWN_TOPIC_OR_PARTITION if known else codes.UNKNOWN_TOPIC_ID
                )
            else:
                try:
                    data = yield from _read(call, partition, one, left, at_least_one=not size)
                except RecordingError as error:
                    state.report.add("not served", str(error), _DAMAGED)
                    data = _refusal(one, codes.KAFKA_STORAGE_ERROR)
                except ProtocolError as error:
                    what = f"{each.topic}[{one.partition}] to Fetch v{call.version}"
                    state.report.add("not served", f"{what}, which takes old formats: {error}")
                    data = _refusal(one, codes.CORRUPT_MESSAGE)
            failed = failed or data.error_code != 0
            size += len(data.records)
            left -= len(data.records)
            partitions.append(data)
        responses.append(
            kind.FetchableTopicResponse(
                topic=each.topic, topic_id=each.topic_id, partitions=partitions
            )
        )
    return kind(responses=responses), size, failed


def _read(call: Call, partition: Partition, wanted: Any, left: int, at_least_one: bool) -> Steps:
    log, offset = partition.log, wanted.fetch_offset
    high_watermark = log.visible_end
    if not log.start_offset <= offset <= high_watermark:
        return _refusal(wanted, codes.OFFSET_OUT_OF_RANGE)
    committed = call.body.isolation_level == _READ_COMMITTED
    stable = log.last_stable_offset
    end = stable if committed else high_watermark
    bytes_max = min(max(left, 0), wanted.partition_max_bytes)
    # A memoryview is sent without a copy: the codec takes any buffer, whatever its types say.
    data: Any = b""
    if call.version >= len(_MAGIC):
        data = log.read(offset, end, bytes_max, at_least_one) if offset < end else b""
    else:
        magic = _MAGIC[call.version]
        cut = call.version < _WHOLE_BATCH_VERSION
        data = yield from _read_old(log, magic, (offset, end), bytes_max, at_least_one, cut)
    if data is None or (call.version < _ZSTD_FETCH_VERSION and _has_zstd(data)):
        return _refusal(wanted, codes.UNSUPPORTED_COMPRESSION_TYPE)
    kind = messages.FetchResponse
    aborted = None
    if committed:
        aborted = [
            kind.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in (log.aborted(offset, end) if len(data) else ())
        ]
    return kind.PartitionData(
        partition_index=wanted.partition,
        high_watermark=high_watermark,
        last_stable_offset=stable,
        log_start_offset=log.start_offset,
        aborted_transactions=aborted,
        records=data,
    )


def _read_old(
    log: PartitionLog, magic: int, span: tuple[int, int], bytes_max: int, whole: bool, cut: bool
) -> Steps:
    """Return the records in a span of offsets in an old format; None if they are compressed with
    zstd. The first entry is `whole` however large it is, or what is too large is `cut` off.

    Raises:
        ProtocolError: the first batch cannot be read.
    """
    offset, end = span
    found, size = bytearray(), 0
    while offset < end and size < bytes_max:
        batches = bytes(log.read(offset, end, _CONVERTED_BYTES, at_least_one=True))
        if not batches or _has_zstd(batches):
            return bytes(found) if found or not batches else None
        try:
            for entry, next_offset in _converted(batches, magic, offset, log.reader):
                yield
                offset = next_offset
                size = len(found) + len(entry)
                if size > bytes_max and not cut and (found or not whole):
                    return bytes(found)
                found += entry
                if size >= bytes_max:
                    break
        except ProtocolError:
            if not found:
                raise
            break
    return bytes(found[:bytes_max]) if cut else bytes(found)


def _converted(
    data: bytes, magic: int, first_offset: int, reader: RecordReader
) -> Iterator[tuple[bytes, int]]:
    """Yield each entry of `data` in a format up to `magic`, without records below `first_offset`;
    and the offset behind it.

    Raises:
        ProtocolError: the records of an entry cannot be read.
    """
    for start, end, found in entries(data):
        batch = read_header(data, start, end, found, reader)
        old = batch.raw if found <= magic else _message_set(batch, magic, first_offset)
        yield old, batch.last_offset + 1


def _message_set(batch: Batch, magic: int, first_offset: int) -> bytes:
    if batch.control:
        return b""
    if damage := damage_of(batch):  # with a new checksum nobody would see it
        raise ProtocolError(damage, offset=batch.position, field="records")
    kept = [each for each in batch.records if each.offset >= first_offset]
    appended = batch.max_timestamp if batch.timestamp_type == "LogAppendTime" else None
    return encode_message_set(
        kept, magic=magic, compression=batch.compression, log_append_time=appended
    )


def _refusal(wanted: Any, error: int) -> Any:
    return messages.FetchResponse.PartitionData(
        partition_index=wanted.partition,
        error_code=error,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )


def _has_zstd(data: memoryview | bytes) -> bool:
    raw = bytes(data)
    return any(magic == 2 and raw[start + 22] & 7 == _ZSTD for start, _, magic in entries(raw))


def list_offsets(state: State, call: Call) -> Steps:
    """ListOffsets: by timestamp, the start and end of a log, its newest record."""
    kind = messages.ListOffsetsResponse

    def look_up(topic: Any, wanted: Any) -> Any:
        partition = state.cluster.partition(topic.name, NO_UUID, wanted.partition_index)
        found = kind.ListOffsetsPartitionResponse(partition_index=wanted.partition_index)
        if partition is None:
            found.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
            return found
        log, timestamp = partition.log, wanted.timestamp
        committed = call.body.isolation_level == _READ_COMMITTED
        end = log.last_stable_offset if committed else log.visible_end
        if timestamp == LATEST:
            found.offset = end
        elif timestamp in (EARLIEST, EARLIEST_LOCAL):
            found.offset = log.start_offset
        elif timestamp == MAX_TIMESTAMP:
            found.offset, found.timestamp = log.newest(end) or (-1, -1)
        elif timestamp >= 0:
            found.offset, found.timestamp = log.offset_by_time(timestamp, end) or (-1, -1)
        elif timestamp != LATEST_TIERED:
            found.error_code = codes.UNSUPPORTED_FOR_MESSAGE_FORMAT
        if found.offset >= 0:
            found.leader_epoch = partition.leader_epoch
        if call.version == 0:
            ends = [end, log.start_offset] if timestamp == LATEST else [found.offset]
            found.old_style_offsets = [one for one in ends if one >= 0][: wanted.max_num_offsets]
        return found

    topics = yield from by_partition(call.body.topics, look_up, kind.ListOffsetsTopicResponse)
    return kind(topics=topics)


def offset_for_leader_epoch(state: State, call: Call) -> Steps:
    """OffsetForLeaderEpoch."""
    kind = messages.OffsetForLeaderEpochResponse

    def end(topic: Any, wanted: Any) -> Any:
        partition = state.cluster.partition(topic.topic, NO_UUID, wanted.partition)
        found = kind.EpochEndOffset(partition=wanted.partition)
        if partition is None:
            found.error_code = codes.UNKNOWN_TOPIC_OR_PARTITION
        elif wanted.leader_epoch >= partition.leader_epoch:
            found.leader_epoch = partition.leader_epoch
            found.end_offset = partition.log.visible_end
        else:
            found.leader_epoch, found.end_offset = partition.log.end_of_epoch(wanted.leader_epoch)
        return found

    topics = yield from by_partition(call.body.topics, end, kind.OffsetForLeaderTopicResult)
    return kind(topics=topics)


HANDLERS = {
    "Fetch": fetch,
    "ListOffsets": list_offsets,
    "OffsetForLeaderEpoch": offset_for_leader_epoch,
}
