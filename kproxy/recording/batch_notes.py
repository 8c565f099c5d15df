"""What a writer notes of the batches of a file, for its index (`batch_index`)."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.recording.batch import OWN_FIELDS, SHARED_FIELDS, RecordingBatch
from kproxy.recording.batch_index import (
    BATCHES_MAX,
    COLUMNS,
    HAS_NOTES,
    SETS,
    SETS_BYTES_MAX,
    RowFacts,
    is_schema,
)
from kproxy.recording.compression import compress

if TYPE_CHECKING:
    from kproxy.recording.file import RecordingFile

_SHARED = {name: place for place, name in enumerate(SHARED_FIELDS)}
_SHARED_WIDTH = len(SHARED_FIELDS) + 1
_NUMBER = OWN_FIELDS.index("number")


@attrs.define(eq=False)
class BatchNotes:
    """Collects what the batches of a file hold while it is written."""

    _columns: dict[str, array[int]] = attrs.field(
        factory=lambda: {name: array("q") for name in COLUMNS}
    )
    _sets: dict[str, dict[bytes, int]] = attrs.field(
        factory=lambda: {name: dict[bytes, int]() for name in SETS}
    )
    _sets_bytes: int = 0
    _schemas: array[int] = attrs.field(factory=lambda: array("q"))
    """The places of batches that have notes on schemas."""

    def add(self, batch: RecordingBatch, chunks: Sequence[int], end_ns: int) -> None:
        """Add a batch that was written, by the sizes of its chunks and its last time."""
        self._add(_rows_of(batch), batch.number, batch.exchange_count, chunks, end_ns,
                  batch.notes)  # fmt: skip

    @classmethod
    def of(cls, file: RecordingFile) -> BatchNotes | None:
        """Collect them from a file without an index, reading its exchanges; None where a batch is
        not whole.

        Raises: RecordingError.
        """
        found = cls()
        for batch in file.batches():
            table = file.exchanges(batch)
            if table is None or batch.frames is None or batch.exchanges is None:
                return None
            places = dict.fromkeys(
                (each.chunk.offset, each.chunk.end) for each in (batch.frames, batch.exchanges)
            )
            sizes = [end - start for start, end in places]
            end_ns = batch.exchanges.chunk.end_ns
            found._add(
                RowFacts.of_table(table), batch.number, len(table), sizes, end_ns, batch.notes
            )
        return found

    def _add(
        self,
        rows: RowFacts,
        number: int,
        count: int,
        chunks: Sequence[int],
        end_ns: int,
        batch_notes: Sequence[Note],
    ) -> None:
        if any(is_schema(note) for note in batch_notes):
            self._schemas.append(len(self._columns["number"]))
        frames_bytes = chunks[0] if len(chunks) > 1 else 0
        noted = bool(batch_notes)
        values = (
            number, frames_bytes, chunks[-1], end_ns, count, rows.has | HAS_NOTES * noted,
            self._set("connections", rows.connections), self._set("kinds", rows.kinds),
            rows.first_ns, rows.last_ns, rows.first, rows.last,
        )  # fmt: skip
        for column, value in zip(self._columns.values(), values, strict=True):
            column.append(value)

    def _set(self, name: str, values: frozenset[int]) -> int:
        sets, key = self._sets[name], array("q", sorted(values)).tobytes()
        found = sets.get(key, -1)
        if found < 0 and self._sets_bytes + len(key) <= SETS_BYTES_MAX:
            self._sets_bytes += len(key)
            found = sets[key] = len(sets)
        return found

    def note(self, time_ns: int, offset: int, crc: int) -> Note | None:
        """Return the note of a file that has `offset` bytes with this CRC so far; None if it has
        more batches than an index may have."""
        if len(self._columns["number"]) > BATCHES_MAX:
            return None
        columns = {name: _packed(column) for name, column in self._columns.items()}
        sets: dict[str, list[Any]] = {}
        for name, found in self._sets.items():
            lengths = array("q", [len(key) // 8 for key in found])
            sets[name] = [_packed(lengths), _packed(array("q", b"".join(found)))]
        return notes.batches(time_ns, offset, crc, columns, sets, _packed(self._schemas))


def _rows_of(batch: RecordingBatch) -> RowFacts:
    """Return what the rows of a batch that is written hold."""
    shared = memoryview(batch.shared).cast("q")

    def column(name: str) -> list[int]:
        if name == "number":
            return batch.own[_NUMBER]
        return shared[_SHARED[name] :: _SHARED_WIDTH].tolist()

    return RowFacts.of(column, bool(len(batch.exchange_fault_ids)))


def _packed(values: array[int]) -> list[Any]:
    """Return integers as JSON has them: how many, and their compressed bytes in base64."""
    return [len(values), base64.b64encode(compress(values.tobytes())).decode()]
