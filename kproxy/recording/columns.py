"""The columns that filters and counts look at, out of a table of exchanges.

    ExchangeTable, connections ─▶ RowColumns ─▶ Filter.rows: a verdict for every row

A column is made when somebody asks for it: most are those of the table as they are, others are
computed (`exchange.derived`) or told by notes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from kproxy.exchange import derived
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import NO_API
from kproxy.exchange.row_verdicts import UNKNOWN_TEXT
from kproxy.protocol.codec import FETCH
from kproxy.recording.file import RecordingFile
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored import StoredBatch


class RowColumns:
    """Columns by name: those that filters look at (`row_verdicts.Columns`), and any recorded or
    derived one.

    `about(connection)` returns the client_address and the client_id of a connection.
    """

    def __init__(
        self, table: ExchangeTable, about: Callable[[int], tuple[str | None, str | None]]
    ) -> None:
        self._table = table
        self._about = about
        self._made: dict[str, Sequence[Any]] = {}

    def get(self, name: str, /) -> Sequence[Any]:
        """Return a column.

        Raises: KeyError, when there is none of this name.
        """
        found = self._made.get(name)
        if found is None:
            make = _MAKERS.get(name)
            found = self._made[name] = self._input(name) if make is None else make(self)
        return found

    def _input(self, name: str) -> Sequence[Any]:
        """Return a column as it was recorded, or as it is computed."""
        compute = derived.DERIVED.get(name)
        if compute is None:
            return self._table.column(name)
        if name in _OF_PLAIN_ROWS and self._is_plain:
            return [_OF_PLAIN_ROWS[name]] * len(self._table)
        inputs = [
            self._input(each) if each in _HEADERS else self.get(each)
            for each in derived.INPUTS[name]
        ]
        return list(map(compute, *inputs))

    @functools.cached_property
    def _is_plain(self) -> bool:
        """True if nothing out of the ordinary happened to any of the exchanges."""
        column = self._table.column
        if any(map(any, map(column, ("request_flags", "response_flags")))):
            return False
        known = all(map(all, map(column, ("response_bytes", "response_sent_ns"))))
        return known and NO_API not in column("api_key")

    def _times_ns(self) -> Sequence[int]:
        asked_ns = self._table.column("request_received_ns")
        if all(asked_ns):
            return asked_ns
        return list(map(derived.time_ns, asked_ns, self._table.column("response_received_ns")))

    def _faulted(self) -> Sequence[bool]:
        if not len(self._table.column("fault_ids")):
            return [False] * len(self._table)
        ends = self._table.column("fault_ids[]").tolist()
        return [start < end for start, end in itertools.pairwise(ends)]

    def _of_header(self, name: str) -> Sequence[int]:
        """Return a column that is NO_API where a request has no header."""
        column, named = self._table.column(name), self.get("named")
        if all(named):
            return column
        return [value if has else NO_API for value, has in zip(column, named, strict=True)]

    def _wait_max_ms(self) -> Sequence[int]:
        """Return the limits that rows have: those of other polls stand in their bodies."""
        waits = zip(self._table.column("api_key"), self._table.column("max_wait_ms"), strict=True)
        return [derived.wait_max_ms(wait if key == FETCH else 0, None) for key, wait in waits]

    def _by_connection(self, place: int) -> Sequence[Any]:
        connections = self._table.column("connection").tolist()
        texts = {number: self._about(number)[place] for number in set(connections)}
        if place == _CLIENT_ID:
            # A request's own header may say more.
            texts = {number: text or UNKNOWN_TEXT for number, text in texts.items()}
        return [texts[number] for number in connections]


@attrs.frozen
class Rows:
    """The rows of one batch, for counting them by columns."""

    columns: RowColumns
    verdicts: bytes
    """The filter's verdict on each row."""
    names: TopicNames
    """Those of the recording: others mean another one, in which numbers begin anew."""
    file: RecordingFile
    """The file that has the rows …"""
    batch: StoredBatch
    """… in this batch: `file.exchanges(batch)` reads them again."""

    def __len__(self) -> int:
        return len(self.verdicts)


Made = TypeVar("Made")
Count = Callable[[Rows], tuple[bytes, Made | None]]
"""Counts rows by columns: returns the verdicts on rows that are to be given as exchanges all the
same, and a summary of the others, if there is one."""


_OF_PLAIN_ROWS = {
    "flags": 0, "named": True, "undelivered": False, "got_no_response": False,
    "open_at_end": False, "silenced": False,
}  # fmt: skip
"""The derived columns of exchanges that were answered and delivered, have a header and no flag:
mostly these are all of a batch, and computing them one by one would be half of counting them."""
_CLIENT_ADDRESS, _CLIENT_ID = 0, 1
_HEADERS = ("api_key", "api_version")
"""Filters have these as the requests' headers have them, the rest as they were recorded."""

_MAKERS: dict[str, Callable[[RowColumns], Sequence[Any]]] = {
    "client_address": lambda columns: columns._by_connection(_CLIENT_ADDRESS),
    "client_id": lambda columns: columns._by_connection(_CLIENT_ID),
    "api_key": lambda columns: columns._of_header("api_key"),
    "api_version": lambda columns: columns._of_header("api_version"),
    "faulted": RowColumns._faulted,
    "time_ns": RowColumns._times_ns,
    "wait_max_ms": RowColumns._wait_max_ms,
}
