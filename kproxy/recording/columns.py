"""The columns that filters look at, out of a table of exchanges.

    ExchangeTable, connections ─▶ RowColumns ─▶ Filter.rows: a verdict for every row

A column is made when a filter asks for it. Most of them are those of the table as they are; flags
of two columns become one as two large numbers, which takes a millisecond for a million rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import attrs

from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import FAULTED, INJECTED, NO_API, RAW_SASL
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import COLUMNS, UNKNOWN
from kproxy.recording.other_columns import Values
from kproxy.recording.tables import ExchangeTable

_AS_THEY_ARE = frozenset(
    {"number", "connection", "node_id", "correlation_id", "request_bytes", "response_bytes"}
)
_NONE = -1
"""A duration that is not known."""


class RowColumns(Mapping[str, Sequence[Any]]):
    """The columns of `filter.COLUMNS`; `about(connection)` says who a connection is: its
    client_address and client_id."""

    def __init__(
        self, table: ExchangeTable, about: Callable[[int], tuple[str | None, str | None]]
    ) -> None:
        self._table = table
        self._about = about
        self._made: dict[str, Sequence[Any]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(COLUMNS)

    def __len__(self) -> int:
        return len(COLUMNS)

    def __getitem__(self, name: str) -> Sequence[Any]:
        """Return a column.

        Raises: KeyError, when filters look at none of this name.
        """
        if name in _AS_THEY_ARE:
            return self._table.column(name)
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = _MAKERS[name](self)
        return found

    def column(self, name: str) -> Sequence[Any]:
        """Return a column of `filter.COLUMNS`, or another one of the table."""
        return self[name] if name in COLUMNS else self._column(name)

    @property
    def unknown(self) -> dict[int, Values]:
        """What rows say in columns of the table that are not ours, by their numbers."""
        found = self._table.unknown
        return dict(zip(self._column("number"), found, strict=True)) if found else {}

    def _column(self, name: str) -> memoryview:
        return self._table.column(name)

    def _flags(self) -> Sequence[int]:
        """Those of both frames; what has a fault id is FAULTED, and nothing else is."""
        requests, responses = self._column("request_flags"), self._column("response_flags")
        either = int.from_bytes(requests) | int.from_bytes(responses)
        faultless = int.from_bytes((~FAULTED & 0xFFFF).to_bytes(2, "little") * len(requests))
        flags = memoryview((either & faultless).to_bytes(requests.nbytes)).cast("h")
        if not len(self._column("fault_ids")):
            return flags
        ends = self._column("fault_ids[]").tolist()
        spans = zip(flags, ends, ends[1:], strict=False)
        return [flag | FAULTED * (start < end) for flag, start, end in spans]

    def _named(self, name: str) -> Sequence[int]:
        """A column of what raw SASL tokens have not."""
        column, api_keys = self._column(name), self._column("api_key")
        flags = self["flags"]
        if not any(map(RAW_SASL.__and__, set(flags))) and NO_API not in set(api_keys):
            return column
        return [
            NO_API if key == NO_API or flag & RAW_SASL else value
            for value, key, flag in zip(column, api_keys, flags, strict=True)
        ]

    def _time_ns(self) -> Sequence[int]:
        received, otherwise = (self._column(f"{side}_received_ns") for side in _SIDES)
        if all(received):
            return received
        return [one or other for one, other in zip(received, otherwise, strict=True)]

    def _broker_ns(self) -> Sequence[int]:
        found = zip(
            self._column("request_sent_ns"),
            self._column("response_received_ns"),
            self._column("response_bytes"),
            self["flags"],
            strict=True,
        )
        return [
            max(0, received - sent) if sent and size and not flag & INJECTED else _NONE
            for sent, received, size, flag in found
        ]

    def _proxy_ns(self) -> Sequence[int]:
        found = zip(
            *(
                self._column(f"{side}_{what}_ns")
                for side in _SIDES
                for what in ("received", "sent")
            ),
            self._column("response_bytes"),
            self["flags"],
            strict=True,
        )
        return [_kept_ns(*row) for row in found]

    def _by_connection(self, place: int) -> Sequence[Any]:
        connections = self._column("connection").tolist()
        texts = {number: self._about(number)[place] for number in set(connections)}
        if place == _CLIENT_ID:
            # A request's own header may say more.
            texts = {number: text or UNKNOWN for number, text in texts.items()}
        return [texts[number] for number in connections]


@attrs.frozen
class Rows:
    """The rows of one batch, for those who count them by columns."""

    columns: RowColumns
    verdicts: bytes
    """Of the filter, on each."""
    exchange: Callable[[int], Exchange]
    """Makes an exchange of a row, without what it waited for."""
    frame: Callable[[int], bytes | None]
    """Gives the bytes of a frame by its position, as an integer, as far as they are there; None
    where nothing is."""
    names: TopicNames
    recording: int
    """Which one it is, of several that are read: in each, numbers begin anew."""

    def __len__(self) -> int:
        return len(self.verdicts)


Made = TypeVar("Made")
Count = Callable[[Rows], tuple[bytes, Made | None]]
"""Counts rows by columns: returns the verdicts on those that are to be given as exchanges all the
same, and what it made of the others, if it made something."""


def _kept_ns(
    received: int, sent: int, answered: int, returned: int, response_bytes: int, flag: int
) -> int:
    """How long the proxy kept an exchange; see `Exchange.proxy_ms`."""
    if response_bytes and not returned:
        return _NONE
    if not sent:
        return max(0, returned - received) if flag & INJECTED and returned else _NONE
    return max(0, sent - received + (returned - answered if response_bytes else 0))


_SIDES = ("request", "response")
_CLIENT_ADDRESS, _CLIENT_ID = 0, 1

_MAKERS: dict[str, Callable[[RowColumns], Sequence[Any]]] = {
    "client_address": lambda columns: columns._by_connection(_CLIENT_ADDRESS),
    "client_id": lambda columns: columns._by_connection(_CLIENT_ID),
    "api_key": lambda columns: columns._named("api_key"),
    "api_version": lambda columns: columns._named("api_version"),
    "time_ns": lambda columns: columns._time_ns(),
    "broker_ns": lambda columns: columns._broker_ns(),
    "proxy_ns": lambda columns: columns._proxy_ns(),
    "flags": lambda columns: columns._flags(),
}
