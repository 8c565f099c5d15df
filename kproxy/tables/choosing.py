"""The rows of tables of exchanges that match a filter.

::

    ExchangeTable ─▶ a verdict on every row, by its columns ─┬ YES ───────────────┬▶ chosen rows
                                                             └ MAYBE ─▶ Exchange ─┘

Invariant: the rows are those that `recording.read` gives with the same filter.
"""

from __future__ import annotations

import functools

import attrs

from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import YES, Filter
from kproxy.exchange.recording_context import RecordingContext
from kproxy.recording.batch_index import Skipper
from kproxy.recording.columns import RowColumns
from kproxy.recording.info import Info
from kproxy.recording.names import goes_by
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored import StoredBatch
from kproxy.recording.stored_frames import StoredFrames


@attrs.frozen(eq=False)
class Chooser:
    """Chooses rows of the tables of one recording by a filter; all of them without one."""

    wanted: Filter | None
    context: RecordingContext
    frames: StoredFrames
    _skipper: Skipper | None = None

    @classmethod
    def of(
        cls, wanted: Filter | None, head: Info, context: RecordingContext, frames: StoredFrames
    ) -> Chooser:
        """Return the chooser for a recording, by the head of one of its files."""
        if wanted is not None:
            wanted = wanted.within(functools.partial(goes_by, head))
        skipper = None if wanted is None else Skipper(wanted, context)
        return cls(wanted, context, frames, skipper)

    def places(self, table: ExchangeTable) -> list[int]:
        """Return the places of the rows that match."""
        if self.wanted is None:
            return list(range(len(table)))
        verdicts = self.wanted.rows(RowColumns(table, self._about))
        return [
            at
            for at, verdict in enumerate(verdicts)
            if verdict == YES or (verdict and self._matches(self.wanted, table, at))
        ]

    def skips(self, batch: StoredBatch) -> bool:
        """Return whether a batch has no row that matches, or matters to rows of others."""
        if self._skipper is None or batch.facts is None:
            return False
        return self._skipper.skips(batch.facts)

    def _about(self, connection: int) -> tuple[str | None, str | None]:
        peer = self.context.peer(connection)
        return peer.client_address, peer.client_id

    def _matches(self, wanted: Filter, table: ExchangeTable, at: int) -> bool:
        row = table.row(at)
        about = self._about(row.connection)
        return wanted.matches(Exchange(row, *about, self.frames, self.context.names))
