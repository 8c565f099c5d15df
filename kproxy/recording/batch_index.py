"""What each chunk of a file holds, in short: so that a reader finds the few that it needs.

::

    Encoder ─ ChunkFacts ─▶ IndexNotes ─ at the end of the file ─▶ a note "index"
                                                                      │
    Skipper.skips(ChunkFacts) ◀── BatchIndex ◀── RecordingFile.use_index

The facts about a chunk cover each exchange that has any piece in it, not only those that end there:
so a chunk without anything that a filter looks for can be passed over.

The note is the only thing in its chunk, the last one of the file. It is written into files of
`FILE_BYTES_MIN` or more: a small one is read as fast as its index would be. `columns` has a 64-bit
integer per chunk, each column compressed and in base64; `connections` and `kinds` there are indexes
into lists of sets of numbers, −1 where a chunk has too many to list. `offset` says where the chunks
end, and `crc32` is that of the file up to there.

Invariants: an index that does not belong to its file, byte by byte, is not used: its CRC and that
of its own bytes make up the one in DataEnd. What is read of a chunk is compared with what the index
says of it.
"""

from __future__ import annotations

import base64
import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs
from zlib_ng.zlib_ng import crc32, crc32_combine

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    EVENTS,
    MORE,
    NO_RESPONSE,
    RAW_SASL,
    UNANSWERED,
    ExchangeRow,
    Note,
)
from kproxy.exchange.follower import BROKER_SIDE, LATE
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
    compress,
    decompress,
)

if TYPE_CHECKING:
    from kproxy.recording.file import RecordingFile
    from kproxy.recording.source import RecordingSource

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
HAS_NOTES, HAS_UNANSWERED, HAS_FLAGS, HAS_FAULTS, HAS_HEADLESS, HAS_SCHEMAS = 1, 2, 4, 8, 16, 32
_NONE = 1 << 62
_NUMBER_MAX = (1 << 63) - 1

Seen = tuple[int, int, int, int, int, int, int, int]
"""A piece: its first number, how many frames it has, when the requests arrived, connection, API key
and version, flags, how many rules touched it."""


@attrs.frozen
class ChunkFacts:
    """The facts about one chunk."""

    rows: int = 0
    """The number of exchanges that end in it, as far as its writer knows."""
    has: int = 0
    connections: frozenset[int] | None = frozenset()
    """The connections of its pieces; None if they are not known."""
    kinds: frozenset[int] | None = frozenset()
    """Their APIs and versions: key << 16 | version."""
    first_ns: int = _NONE
    """The first and the last time at which a request of its exchanges arrived."""
    last_ns: int = -1
    first: int = _NONE
    """The least and the greatest number of an exchange."""
    last: int = -1

    @classmethod
    def of(cls, seen: Sequence[Seen], notes: Iterable[Note]) -> ChunkFacts:
        """Return the facts about a chunk with these pieces and notes."""
        has = 0
        for note in notes:
            has |= HAS_NOTES | HAS_SCHEMAS * (note.body.get("event") == "schema")
        if not seen:
            return cls(has=has)
        numbers, counts, times_ns, connections, keys, versions, flags, faults = zip(
            *seen, strict=True
        )
        apis = {*zip(keys, versions, strict=True)}
        for each in set(flags):
            own = each & ~(BROKER_SIDE | LATE)
            has |= HAS_FLAGS * bool(own) | HAS_UNANSWERED * bool(own & UNANSWERED)
            has |= HAS_HEADLESS * bool(own & RAW_SASL)
        return cls(
            sum(count for count, each in zip(counts, flags, strict=True) if _ends(each)),
            has | HAS_FAULTS * any(faults),
            frozenset(connections),
            frozenset(key << 16 | version & 0xFFFF for key, version in apis),
            min(times_ns),
            max(times_ns),
            min(numbers),
            min(max(map(int.__add__, numbers, counts)) - 1, _NUMBER_MAX),
        )

    def holds(self, row: ExchangeRow) -> bool:
        """Return whether an exchange that ends in the chunk is as the index says."""
        return (
            self.first <= row.number <= self.last
            and (self.connections is None or row.connection in self.connections)
            and (self.kinds is None or (row.api_key << 16 | row.api_version & 0xFFFF) in self.kinds)
        )


def _ends(flags: int) -> bool:
    """Return whether exchanges end with a piece with these flags."""
    if flags & (MORE | LATE):
        return False
    return bool(flags & (BROKER_SIDE | NO_RESPONSE))


# ---------------------------------------------------------------- written


@attrs.define(eq=False)
class IndexNotes:
    """Collects what the chunks of a file hold while it is written."""

    _columns: dict[str, array[int]] = attrs.field(
        factory=lambda: {name: array("q") for name in COLUMNS}
    )
    _sets: dict[str, dict[bytes, int]] = attrs.field(
        factory=lambda: {name: dict[bytes, int]() for name in SETS}
    )
    _sets_bytes: int = attrs.field(default=0, init=False)

    def add(self, sequence: int, facts: ChunkFacts, chunk: Chunk) -> None:
        """Add a chunk that was written."""
        values = (
            sequence, chunk.end - chunk.offset, chunk.end_ns, facts.rows, facts.has,
            self._set("connections", facts.connections), self._set("kinds", facts.kinds),
            facts.first_ns, facts.last_ns, facts.first, facts.last,
        )  # fmt: skip
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    @classmethod
    def of(cls, file: RecordingFile) -> IndexNotes:
        """Collect them from a file that has none, reading all of it.

        Raises: RecordingError.
        """
        found = cls()
        for batch in file.batches():
            if batch.chunk is None:
                continue
            rows = file.exchanges(batch)
            facts = ChunkFacts.of(file.pieces(batch).seen(), batch.notes)
            begun_ns = min((row.request_received_ns for row in rows), default=facts.first_ns)
            facts = attrs.evolve(facts, first_ns=min(begun_ns, facts.first_ns))
            found.add(batch.number, facts, batch.chunk)
        return found

    def _set(self, name: str, values: frozenset[int] | None) -> int:
        sets, key = self._sets[name], array("q", sorted(values or ())).tobytes()
        found = sets.get(key, -1)
        if found < 0 and self._sets_bytes + len(key) <= SETS_BYTES_MAX:
            self._sets_bytes += len(key)
            found = sets[key] = len(sets)
        return found

    def note(self, time_ns: int, offset: int, crc: int) -> Note | None:
        """Return the note of a file that has `offset` bytes with this CRC so far; None if it has
        more chunks than an index may have."""
        if len(self._columns["number"]) > BATCHES_MAX:
            return None
        columns = {name: _packed(column) for name, column in self._columns.items()}
        sets: dict[str, list[Any]] = {}
        for name, found in self._sets.items():
            lengths = array("q", [len(key) // 8 for key in found])
            sets[name] = [_packed(lengths), _packed(array("q", b"".join(found)))]
        return notes.index(time_ns, offset, crc, columns, sets)


def _packed(values: array[int]) -> list[Any]:
    """Return integers as JSON has them: how many, and their compressed bytes in base64."""
    return [len(values), base64.b64encode(compress(values.tobytes())).decode()]


# ---------------------------------------------------------------- read


def _unpacked(packed: Any, count_max: int) -> array[int]:
    count, text = packed
    if type(count) is not int or not 0 <= count <= count_max:
        raise ValueError("it has another number of values")
    return array("q", decompress("zstd", base64.b64decode(text, validate=True), 8 * count))


def _unpacked_sets(packed: Any) -> list[frozenset[int]]:
    lengths, values = (_unpacked(each, SETS_BYTES_MAX) for each in packed)
    every = iter(values)
    if (lengths and min(lengths) < 0) or sum(lengths) != len(values):
        raise ValueError("it has sets of other sizes")
    return [frozenset(itertools.islice(every, length)) for length in lengths]


@attrs.frozen(eq=False)
class BatchIndex:
    """What the batches of a file hold."""

    columns: dict[str, array[int]]
    sets: dict[str, list[frozenset[int]]]
    offsets: array[int]
    """Where each chunk begins, and where the last one ends."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def facts(self, offset: int = 0) -> Iterator[tuple[int, Chunk, ChunkFacts]]:
        """Yield the numbers of the batches that begin at an offset or behind it, where they lie,
        and what they hold."""
        first = bisect_left(self.offsets, offset)
        values = zip(*(column[first:] for column in self.columns.values()), strict=True)
        places = itertools.pairwise(self.offsets[first:])
        for (start, end), (number, _, end_ns, rows, has, connections, kinds, *spans) in zip(
            places, values, strict=True
        ):
            found = ChunkFacts(
                rows, has,
                self.sets["connections"][connections] if connections >= 0 else None,
                self.sets["kinds"][kinds] if kinds >= 0 else None,
                *spans,
            )  # fmt: skip
            yield number, Chunk(start, end, end_ns=end_ns), found

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
