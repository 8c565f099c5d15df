"""Columns of exchanges, for all rows of a table at once.

    ExchangeTable ─▶ ExchangeRows ─▶ a recorded column: its values untouched
                          └▶ api, client_id, broker_ms, …: computed for all rows together

Invariant: a column has exactly the values that `Exchange` gives. Frames are opened in two cases
only, and only for the rows concerned: for the client id of a request on a connection without one,
and for the maximum wait of a ShareFetch, or of a Fetch whose row does not have it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kproxy import protocol
from kproxy.exchange import derived, facts
from kproxy.exchange.entries import (
    RAW_SASL,
    SASL_TOKEN,
    ExchangeRow,
    Frame,
    Position,
)
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.fields import Duration, ExchangeField, Flag, HeaderColumn, RowColumn, Truth
from kproxy.exchange.meanings import ERROR, apis_with
from kproxy.exchange.recording_context import RecordingContext
from kproxy.protocol.codec import FETCH
from kproxy.recording.exchanges import has_unanswered
from kproxy.recording.file import frame_in
from kproxy.recording.layout import EXCHANGE_INTEGERS
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored_frames import StoredFrames
from kproxy.tables.arrow_types import INT32, TEXT, TIME, WAITED

pc: Any = importlib.import_module("pyarrow.compute")
"""Imported as Any: its functions are made at import, so type checkers do not see them."""

_DTYPES = {name: np.dtype(kind) for name, kind in EXCHANGE_INTEGERS}
_SHARE_FETCH = protocol.api_key("ShareFetch")
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte; JSON can have them."""
Waited = dict[int, dict[str, Any]]
"""Values of the column `unanswered`, by row."""


class ExchangeRows:
    """The exchanges of a table, as columns."""

    def __init__(
        self,
        table: ExchangeTable,
        context: RecordingContext,
        frames: StoredFrames,
        waited: Waited | None = None,
        bodies: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """`waited` has what `waited_of` returns of the rows, and `bodies` the columns of
        `body_columns` of one part of them after the other, if these are needed."""
        self._table = table
        self._waited = waited or {}
        self._bodies = bodies
        self._context = context
        self._frames = frames
        self._columns: dict[str, Any] = {}
        self._values: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._table)

    def column(self, name: str) -> Any:
        """Return a column of `exchanges` by its name."""
        found = self._columns.get(name)
        if found is None:
            found = self._columns[name] = self._column(name)
        return found

    def _column(self, name: str) -> Any:
        make = COLUMNS.get(name)
        if make is not None:
            return make(self)
        if self._bodies and name in self._bodies[0]:
            return pa.concat_arrays([each[name] for each in self._bodies])
        return self._recorded(name)

    def values(self, name: str) -> Any:
        """Return integers or truth values as a numpy array: a recorded column, a computed one
        (`exchange.derived`), or `wait_max_ms`."""
        found = self._values.get(name)
        if found is None:
            if name in derived.DERIVED:
                inputs = map(self.values, derived.INPUTS[name])
                found = derived.DERIVED[name](*inputs)
            elif name == "wait_max_ms":
                found = self._wait_max_ms()
            else:
                found = np.frombuffer(self._table.column(name), _DTYPES[name])
            self._values[name] = found
        return found

    def _wait_max_ms(self) -> Any:
        """Return the maximum wait of polls; from their bodies if the rows do not have it."""
        waits = self.values("max_wait_ms").astype(np.int64)
        keys, left_us = self.values("api_key"), self.values("broker_us") - self.values("queued_us")
        not_in_row = (keys == _SHARE_FETCH) | ((keys == FETCH) & (waits <= 0))
        places = np.flatnonzero(not_in_row & (left_us > 0))
        if len(places):
            frames = self._at(self.values("request_position")[places])
            waits[places] = [derived.wait_max_ms(0, _request(each)) for each in frames]
        return waits

    def _recorded(self, name: str) -> Any:
        return pa.array(self.values(name))

    # ---- flags and names

    def has(self, flag: int) -> Any:
        """Return for each row whether its request or its response has a flag."""
        return pa.array(self.values("flags") & flag != 0)

    def named(self, name: str) -> Any:
        """Return a column of header fields: null in rows without a header."""
        return pa.array(self.values(name), mask=~self.values("named"))

    def nullable(self, name: str, none: int) -> Any:
        """Return a recorded column: null in rows with the value that stands for none."""
        values = self.values(name)
        return pa.array(values, mask=values == none)

    def api(self) -> Any:
        """Return the names of the APIs."""
        keys = self.column("api_key").dictionary_encode()
        names = pa.array([protocol.api_name(key) for key in keys.dictionary.to_pylist()], TEXT)
        found = names.take(keys.indices)
        return pc.if_else(self.has(RAW_SASL), pa.scalar(SASL_TOKEN), found)

    def of_connection(self, name: str) -> Any:
        """Return an attribute of each row's connection."""
        encoded = self._recorded("connection").dictionary_encode()
        numbers = encoded.dictionary.to_pylist()
        values = [text(getattr(self._context.peer(number), name)) for number in numbers]
        return pa.array(values, TEXT).take(encoded.indices)

    def client_id(self) -> Any:
        """Return the client ids: those of the connections, or else of the requests."""
        found = self.of_connection("client_id")
        unknown = pc.and_(pc.is_null(found), pc.invert(self.has(RAW_SASL)))
        if not found.null_count or not pc.any(unknown).as_py():
            return found
        frames = self._at(self.values("request_position")[unknown.to_numpy(zero_copy_only=False)])
        own = [None if frame is None else facts.client_id(frame)[1] for frame in frames]
        return pc.replace_with_mask(found, unknown, pa.array([text(each) for each in own], TEXT))

    def _at(self, positions: Any) -> list[Frame | None]:
        at = [Position.of(position) for position in positions.tolist()]
        return [None if each is None else frame_in(self._frames.files, each) for each in at]

    def bytes_of(self, positions: Iterable[int]) -> Iterator[bytes | None]:
        """Yield the bytes of the frames at positions; None for one that is not recorded."""
        return map(self._frames.bytes_at, positions)

    def faults(self) -> Any:
        """Return the names of the fault rules that affected each exchange."""
        ids, ends = self._table.column("fault_ids").tolist(), self._table.column("fault_ids[]")
        names = pa.array([text(self._context.names.rule(each)) for each in ids], TEXT)
        return pa.ListArray.from_arrays(pa.array(ends, INT32), names)

    def routine(self) -> Any:
        """Return whether each exchange has errors, all of them routine."""
        keys = apis_with(ERROR)
        found = [
            bool(row.response_bytes and row.api_key in keys and self._exchange(row).routine)
            for row in self._table.rows()
        ]
        return pa.array(found, pa.bool_())

    def _exchange(self, row: ExchangeRow) -> Exchange:
        peer = self._context.peer(row.connection)
        about = peer.client_address, peer.client_id
        return Exchange(row, *about, self._frames, self._context.names)

    # ---- times

    def time(self) -> Any:
        """Return when the requests arrived."""
        return timestamps(self.values("time_ns"))

    def milliseconds(self, name: str) -> Any:
        """Return a column of microseconds in milliseconds; null if unknown."""
        values = self.values(name)
        return pa.array(values / 1000.0, mask=values == derived.UNKNOWN)

    # ---- unanswered requests

    def unanswered(self) -> Any:
        """Return why requests were never answered; null for answered ones."""
        if not self._waited:
            return pa.nulls(len(self), WAITED)
        return pa.array(map(self._waited.get, range(len(self))), WAITED)


def waited_of(exchanges: ExchangeTable, context: RecordingContext) -> Waited:
    """Return why requests of the next table were never answered, by row."""
    if not context.any_stuck and not has_unanswered(exchanges):
        return {}
    found: Waited = {}
    for index, row in enumerate(exchanges.rows()):
        waited = context.peer(row.connection).follow(row)
        if waited is not None:
            found[index] = attrs.asdict(waited)
    for connection in context.closed:  # they are removed later
        context.peer(connection).stuck = None
    return found


def timestamps(time_ns: Any, mask: Any = None) -> Any:
    """Return times in nanoseconds as timestamps; null where a mask is true."""
    return pa.array(time_ns // 1000, mask=mask).cast(TIME)


def _request(frame: Frame | None) -> Any:
    """Return the body of a request; None if it is unknown."""
    found = facts.decoded_request(frame, None if frame is None else frame.data)
    return None if found is None else found.body


def text(value: str | None) -> str | None:
    """Return text that is valid Unicode, or None."""
    return None if value is None else clean(value)


def clean(text: str) -> str:
    """Return text that is valid Unicode: bytes that were no UTF-8 become U+FFFD."""
    if text.isascii():
        return text
    text = _NO_BYTES.sub("\ufffd", text)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _maker(field: ExchangeField) -> Callable[[ExchangeRows], Any] | None:
    """Return the function that computes the column of a field, by the field's source; or None."""
    name = field.name
    match field.source:
        case RowColumn(none=int(none)):
            return lambda rows: rows.nullable(name, none)
        case HeaderColumn():
            return lambda rows: rows.named(name)
        case Flag(flag=flag):
            return lambda rows: rows.has(flag)
        case Truth():
            return lambda rows: pa.array(rows.values(name))
        case Duration(column=column):
            return lambda rows: rows.milliseconds(column)
        case _:
            return None


COLUMNS: dict[str, Callable[[ExchangeRows], Any]] = {
    **{name: make for name, field in FIELDS.items() if (make := _maker(field)) is not None},
    "time": ExchangeRows.time,
    "client_address": lambda rows: rows.of_connection("client_address"),
    "client_id": ExchangeRows.client_id,
    "api": ExchangeRows.api,
    "faults": ExchangeRows.faults,
    "routine": ExchangeRows.routine,
    "unanswered": ExchangeRows.unanswered,
}
"""Functions that compute the columns that are not recorded as such, by name."""
