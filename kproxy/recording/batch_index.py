"""What each chunk of a file holds, in short: so that a reader finds the few that it needs.

::

    Encoder ─ ChunkFacts ─▶ Writer ─▶ `index_notes` ─ at the end of the file ─▶ a note "index"
                                                                                   │
    Filter, context ─▶ Skipper.skips(BatchFacts) ◀── BatchIndex ◀── RecordingFile.use_index

The note is the only thing in its chunk, the last one of the file. It is written into files of
`FILE_BYTES_MIN` or more: a small one is read as fast as its index would be. `columns` has a 64-bit
integer per chunk, each column compressed and in base64; `connections` and `kinds` there are indexes
into lists of sets of numbers, −1 where a chunk has too many to list. `offset` says where the chunks
end, and `crc32` is that of the file up to there.

Invariants: an index that does not belong to its file, byte by byte, is not used: its CRC and that
of its own bytes make up the one in DataEnd. A chunk is passed over only if none of its exchanges
can match, and none of them changes what is read of others. What is read of a chunk is compared with
what the index says of it.
"""

from __future__ import annotations

import base64
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from zlib_ng.zlib_ng import crc32, crc32_combine

from kproxy.exchange.beginnings import FOLLOWED
from kproxy.exchange.entries import EVENTS, NO_API, ExchangeRow, Note
from kproxy.exchange.recording_context import RecordingContext
from kproxy.exchange.row_verdicts import NO, UNKNOWN_TEXT
from kproxy.payloads.schemas import NOTE as SCHEMA
from kproxy.recording.chunk_facts import (
    HAS_FAULTS,
    HAS_FLAGS,
    HAS_HEADLESS,
    HAS_NOTES,
    HAS_UNANSWERED,
)
from kproxy.recording.compression import decompress
from kproxy.recording.info import Chunk
from kproxy.recording.mcap import (
    CHUNK_INDEX,
    DATA_END,
    DATA_END_BYTES,
    FOOTER_BYTES,
    FOOTER_FIELDS,
    MAGIC,
    RECORD,
    SUMMARY_OFFSET,
)
from kproxy.recording.source import RecordingSource

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter

FILE_BYTES_MIN = 16 << 20
"""Smaller files have no index."""
EVENT = "index"
SETS_BYTES_MAX = 1 << 20
"""Limit of the sets of a file, in memory."""
BATCHES_MAX = 1 << 20
_TAIL_BYTES = 4096
_CHUNK_INDEX_BYTES_MAX = 96
COLUMNS = (
    "number", "bytes", "end_ns", "rows", "has", "connections", "kinds", "first_ns", "last_ns",
    "first", "last",
)  # fmt: skip
SETS = ("connections", "kinds")
_SPANS = {"times_ns": ("first_ns", "last_ns"), "numbers": ("first", "last")}
"""Columns of filters that are spans here, and the columns of their ends."""
_OF_CONNECTIONS = frozenset({"connection", "client_address", "client_id"})


@attrs.frozen
class BatchFacts:
    """What an index says of a chunk."""

    number: int
    """The sequence of the chunk."""
    offset: int
    end: int
    end_ns: int
    rows: int
    """The number of exchanges that end in it, as far as its writer knew."""
    has: int
    connections: Sequence[int] | None
    """The connections of its pieces; None if they are not known."""
    kinds: Sequence[int] | None
    """Their APIs and versions: key << 16 | version."""
    times_ns: tuple[int, int]
    """The first and last time at which a request of its exchanges arrived."""
    numbers: tuple[int, int]
    """The least and greatest number of an exchange with a piece in it."""
    index: BatchIndex
    """The index that says so …"""
    place: int
    """… and its place among the chunks there."""

    @property
    def has_notes(self) -> bool:
        """True if it has notes."""
        return bool(self.has & HAS_NOTES)

    def holds(self, row: ExchangeRow) -> bool:
        """Return whether an exchange that ends in the chunk is as the index says."""
        return (
            self.numbers[0] <= row.number <= self.numbers[1]
            and (self.connections is None or row.connection in self.connections)
            and (self.kinds is None or (row.api_key << 16 | row.api_version & 0xFFFF) in self.kinds)
        )


def _unpacked(packed: Any, count_max: int) -> array[int]:
    count, text = packed
    if type(count) is not int or not 0 <= count <= count_max:
        raise ValueError("it has another number of values")
    return array("q", decompress("zstd", base64.b64decode(text, validate=True), 8 * count))


def _unpacked_sets(packed: Any) -> list[list[int]]:
    lengths, values = (_unpacked(each, SETS_BYTES_MAX) for each in packed)
    every = iter(values)
    found = [list(itertools.islice(every, length)) for length in lengths if length >= 0]
    if sum(map(len, found)) != len(values) or len(found) != len(lengths):
        raise ValueError("it has sets of other sizes")
    return found


@attrs.frozen(eq=False)
class BatchIndex:
    """What the batches of a file hold."""

    columns: dict[str, array[int]]
    sets: dict[str, list[list[int]]]
    offsets: array[int]
    """Where each chunk begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def facts(self, offset: int = 0) -> Iterator[BatchFacts]:
        """Yield what the batches hold that begin at an offset or behind it."""
        first = bisect_left(self.offsets, offset)
        values = zip(*(column[first:] for column in self.columns.values()), strict=True)
        ends = itertools.pairwise(self.offsets[first:])
        for place, ((start, end), (
            number, _, end_ns, rows, has, connections, kinds, *bounds
        )) in enumerate(zip(ends, values, strict=True), first):  # fmt: skip
            first_ns, last_ns, least, most = bounds
            yield BatchFacts(
                number, start, end, end_ns, rows, has,
                self.sets["connections"][connections] if connections >= 0 else None,
                self.sets["kinds"][kinds] if kinds >= 0 else None,
                (first_ns, last_ns), (least, most), self, place,
            )  # fmt: skip

    def verdicts(self, wanted: Filter) -> bytes:
        """Return a verdict on each batch, by its times and numbers alone."""
        return wanted.node.rows(_SpanColumns(self.columns), len(self))

    @classmethod
    def of(cls, body: dict[str, Any], begin: int, end: int) -> BatchIndex:
        """Return the index that a note holds, of batches between two offsets.

        Raises: ValueError, KeyError, TypeError, when it holds none.
        """
        packed = body["columns"]
        columns = {name: _unpacked(packed[name], BATCHES_MAX) for name in COLUMNS}
        (count,) = set(map(len, columns.values()))
        sets = {name: _unpacked_sets(body["sets"][name]) for name in SETS}
        sizes = columns["bytes"]
        offsets = array("q", itertools.accumulate(sizes, initial=begin))
        if count and (min(sizes) <= 0 or min(columns["rows"]) < 0):
            raise ValueError("it has a size that is negative")
        if offsets[-1] != end:
            raise ValueError("it has chunks of other sizes")
        for name in SETS:
            if count and not -1 <= min(columns[name]) <= max(columns[name]) < len(sets[name]):
                raise ValueError("it has a set that is not there")
        return cls(columns, sets, offsets)


def last_chunk(source: RecordingSource) -> tuple[Chunk, int] | None:
    """Return where the last chunk of a complete file lies, unread, and the CRC in its DataEnd; None
    where its end does not say."""
    size = source.size()
    source.file.seek(max(0, size - _TAIL_BYTES))
    tail = source.file.read(_TAIL_BYTES)
    start = size - len(tail)
    at = len(tail) - len(MAGIC) - FOOTER_BYTES
    if at < 0 or tail[at] != 0x02:
        return None
    summary, offsets, _ = FOOTER_FIELDS.unpack_from(tail, at + RECORD.size)
    here, group_end = offsets - start, 0
    while 0 <= here < at:
        opcode, length = RECORD.unpack_from(tail, here)
        content = tail[here + RECORD.size : here + RECORD.size + length]
        if opcode == SUMMARY_OFFSET and content[:1] == bytes([CHUNK_INDEX]):
            group_end = int.from_bytes(content[1:9], "little")
            group_end += int.from_bytes(content[9:17], "little")
        here += RECORD.size + length
    end = summary - DATA_END_BYTES
    if not 0 < group_end <= size or end < 0:
        return None
    source.file.seek(end)
    data_end = source.file.read(DATA_END_BYTES)
    source.file.seek(max(0, group_end - _CHUNK_INDEX_BYTES_MAX))
    entries = source.file.read(min(group_end, _CHUNK_INDEX_BYTES_MAX))
    crc = int.from_bytes(data_end[RECORD.size :], "little")
    for length in (64, 68):  # of an entry of a chunk that is stored, or "zstd"
        entry = entries[-length - RECORD.size :]
        if entry.startswith(RECORD.pack(CHUNK_INDEX, length)):
            offset, chunk_bytes = (int.from_bytes(entry[k : k + 8], "little") for k in (25, 33))
            if data_end[:1] == bytes([DATA_END]) and offset + chunk_bytes == end:
                return Chunk(offset, end), crc
    return None


def belongs(source: RecordingSource, body: dict[str, Any], end: int, data_crc: int) -> bool:
    """Return whether a note of batches was written behind the very bytes that it stands behind: up
    to `end`, with the CRC in DataEnd."""
    offset, crc = body.get("offset"), body.get("crc32")
    if type(offset) is not int or type(crc) is not int or not 0 <= offset <= end:
        return False
    source.file.seek(offset)
    own = source.file.read(end - offset)
    return crc32_combine(crc & 0xFFFFFFFF, crc32(own), len(own)) == data_crc


def is_index(note: Note) -> bool:
    """Return whether a note is the index of its file, which is nobody else's business."""
    return note.channel == EVENTS and note.body.get("event") == EVENT


def is_schema(note: Note) -> bool:
    """Return whether a note is on a schema."""
    return note.channel == EVENTS and note.body.get("event") == SCHEMA


# ---------------------------------------------------------------- what is not needed


@attrs.define(eq=False)
class Skipper:
    """Says which batches a filter needs not, while a recording is read in order."""

    wanted: Filter
    context: RecordingContext
    _about: dict[int, bool] = attrs.field(factory=dict[int, bool])
    """Whether exchanges of a connection may match, until a batch is read that may change that."""
    _apart: dict[tuple[int, ...], bool] = attrs.field(factory=dict[tuple[int, ...], bool])
    """Whether batches with these APIs change nothing that is read of others, until then."""
    _any_stuck: bool | None = None
    """None: a batch was read that may have changed that."""
    _index: BatchIndex | None = None
    _verdicts: bytes = b""
    """On all batches of that index, by times and numbers: most filters that find few batches do so
    by these, and it takes less for all of them than for each."""

    def skips(self, facts: BatchFacts) -> bool:
        """Return whether no row of a batch matches, or matters to rows of others."""
        if self._any_stuck is None:
            self._any_stuck = self.context.any_stuck
        found = not self._any_stuck and self._is_alone(facts) and self._has_no_match(facts)
        if not found:  # it is read, and may tell more
            self._about.clear()
            self._apart.clear()
            self._any_stuck = None
        return found

    def _is_alone(self, facts: BatchFacts) -> bool:
        """Return whether a batch changes nothing that is read of others."""
        if facts.kinds is None or facts.has & (HAS_NOTES | HAS_UNANSWERED):
            return False
        kinds = tuple(facts.kinds)
        found = self._apart.get(kinds)
        if found is None:
            wants = self.context.names.wants
            found = self._apart[kinds] = not any(
                key in FOLLOWED or wants(key, version) for key, version in map(_api, kinds)
            )
        return found

    def _has_no_match(self, facts: BatchFacts) -> bool:
        if facts.index is not self._index:
            self._index, self._verdicts = facts.index, facts.index.verdicts(self.wanted)
        if self._verdicts[facts.place] == NO or not self._any_row(facts, [None]):
            return True
        if facts.connections is None:
            return False
        some = [number for number in facts.connections if self._may_match(number)]
        return not some or not self._any_row(facts, some)

    def _may_match(self, connection: int) -> bool:
        found = self._about.get(connection)
        if found is None:
            found = self._about[connection] = any(
                self.wanted.node.rows(_FactColumns(None, [connection], self.context), 1)
            )
        return found

    def _any_row(self, facts: BatchFacts, connections: Sequence[int | None]) -> bool:
        columns = _FactColumns(facts, connections, self.context)
        return any(self.wanted.node.rows(columns, columns.count))


def _api(kind: int) -> tuple[int, int]:
    key = kind >> 16
    return key, NO_API if key == NO_API else (kind & 0xFFFF ^ 0x8000) - 0x8000


class _SpanColumns:
    """The times and numbers of all batches of a file (`row_verdicts.Columns`): a row for each."""

    def __init__(self, columns: dict[str, array[int]]) -> None:
        self._columns = columns

    def get(self, name: str, /) -> Sequence[Any] | None:
        if name not in _SPANS:
            return None
        least, greatest = (self._columns[end] for end in _SPANS[name])
        return list(zip(least, greatest, strict=True))


class _FactColumns:
    """The columns of a batch as far as an index knows them (`row_verdicts.Columns`): a row for each
    of some connections with each API, so that each row of the batch is like one of them. A filter
    asks for one or two of them: each is made when it does."""

    def __init__(
        self,
        facts: BatchFacts | None,
        connections: Sequence[int | None],
        context: RecordingContext,
    ) -> None:
        """None stands for any batch, or connection."""
        self._facts = facts
        self._connections = connections
        self._context = context
        self._kinds = (facts and facts.kinds) or [0]
        self.count = len(connections) * len(self._kinds)

    def get(self, name: str, /) -> Sequence[Any] | None:
        found = None if self._facts is None else self._of_batch(self._facts, name)
        return self._of_connections(name) if found is None else found

    def _of_batch(self, facts: BatchFacts, name: str) -> Sequence[Any] | None:
        match name:
            case "times_ns":
                return [facts.times_ns] * self.count
            case "numbers":
                return [facts.numbers] * self.count
            case "faulted" if not facts.has & HAS_FAULTS:
                return [False] * self.count
            case "flags" if not facts.has & HAS_FLAGS:
                return [0] * self.count
            case "api_key" if not facts.has & HAS_HEADLESS:
                return [_api(kind)[0] for kind in self._kinds] * len(self._connections)
            case "api_version" if not facts.has & HAS_HEADLESS:
                return [_api(kind)[1] for kind in self._kinds] * len(self._connections)
            case _:
                return None

    def _of_connections(self, name: str) -> Sequence[Any] | None:
        if name not in _OF_CONNECTIONS:
            return None
        rows = [each for each in self._connections if each is not None for _ in self._kinds]
        if not rows:
            return None
        if name == "connection":
            return rows
        peers = map(self._context.peer, rows)
        if name == "client_address":
            return [peer.client_address for peer in peers]
        return [peer.client_id or UNKNOWN_TEXT for peer in peers]
