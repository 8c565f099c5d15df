"""The frames of a recording that have not ended, batch by batch: where their last pieces lie.

    frames and notes of a batch ─▶ Pieces ─▶ those of which no more pieces come

Invariant: memory is bounded by the open connections: a side sends one frame at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange import endings
from kproxy.exchange.entries import CONNECTIONS, FRAGMENT, INJECTED, MORE, Position, Side
from kproxy.recording.stored import StoredBatch
from kproxy.recording.tables import FrameTable


@attrs.frozen
class Piece:
    """The last piece of a frame so far."""

    connection: int
    side: int
    number: int
    position: Position


@attrs.define(eq=False)
class Pieces:
    """The frames that have not ended."""

    _last: dict[tuple[int, int], Piece] = attrs.field(factory=dict[tuple[int, int], Piece])
    """By connection and side."""

    @classmethod
    def begun(cls, unfinished: Iterable[Piece]) -> Pieces:
        """Go on with frames that began earlier."""
        return cls({(piece.connection, piece.side): piece for piece in unfinished})

    @property
    def unfinished(self) -> tuple[Piece, ...]:
        """The last pieces of the frames that have not ended."""
        return tuple(self._last.values())

    def follow(
        self, found: FrameTable | None, batch: StoredBatch, begins: bool = True
    ) -> Iterator[Piece]:
        """Take the frames of a batch, and unless `begins`, none that was not there before; yield
        those that will not end: another follows on the connection, or it is closed."""
        if found is not None:
            yield from self._followed(found, batch.number, begins)
        for note in batch.notes if self._last else ():
            if note.channel == CONNECTIONS and note.body.get("event") == "closed":
                connection = endings.connection(note.body)
                pieces = [self._last.pop((connection, int(side)), None) for side in Side]
                yield from (piece for piece in pieces if piece is not None)

    def _followed(self, found: FrameTable, number: int, begins: bool) -> Iterator[Piece]:
        columns = [found.column(name) for name in ("connection", "side", "flags")]
        if not self._last and not any(flags & MORE for flags in set(columns[2])):
            return
        heads, starts = found.column("heads"), found.column("heads[]")
        for run, (connection, side, flags) in enumerate(zip(*columns, strict=True)):
            if flags & INJECTED and not flags & FRAGMENT:
                continue  # kproxy may have made it while another arrives
            before = self._last.pop((connection, side), None)
            frame = heads[starts[run]] if flags & FRAGMENT else 0
            if before is not None and before.number != frame:
                yield before
            if begins and flags & MORE:
                last = Piece(connection, side, frame, Position(number, run, 0))
                self._last[connection, side] = last
