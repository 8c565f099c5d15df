"""What a writer notes of the chunks of a file, for its index (`batch_index`)."""

from __future__ import annotations

import base64
from array import array
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.recording.batch_index import BATCHES_MAX, COLUMNS, SETS, SETS_BYTES_MAX
from kproxy.recording.chunk_facts import ChunkFacts
from kproxy.recording.compression import compress

if TYPE_CHECKING:
    from kproxy.recording.file import RecordingFile


@attrs.define(eq=False)
class IndexNotes:
    """Collects what the chunks of a file hold while it is written."""

    _columns: dict[str, array[int]] = attrs.field(
        factory=lambda: {name: array("q") for name in COLUMNS}
    )
    _sets: dict[str, dict[bytes, int]] = attrs.field(
        factory=lambda: {name: dict[bytes, int]() for name in SETS}
    )
    _sets_bytes: int = 0

    def add(self, sequence: int, facts: ChunkFacts, chunk_bytes: int, end_ns: int) -> None:
        """Add a chunk that was written."""
        values = (
            sequence, chunk_bytes, end_ns, facts.rows, facts.has,
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
            rows = file.exchanges(batch).rows()
            facts = ChunkFacts.of(file.pieces(batch).seen(), batch.notes)
            begun_ns = min((row.request_received_ns for row in rows), default=facts.first_ns)
            facts = attrs.evolve(facts, first_ns=min(begun_ns, facts.first_ns))
            chunk = batch.chunk
            found.add(batch.number, facts, chunk.end - chunk.offset, chunk.end_ns)
        return found

    def _set(self, name: str, values: frozenset[int]) -> int:
        sets, key = self._sets[name], array("q", sorted(values)).tobytes()
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
