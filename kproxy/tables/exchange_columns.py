"""Columns of many exchanges at once, out of the recording's own table.

    ExchangeTable, … ─▶ Rows ─▶ a recorded column: its values untouched
                             └▶ api, client_id, broker_ms, …: computed for all rows together

Invariant: a column has the values that `Exchange` gives, each to the last bit. Frames are opened in
two cases only, and only for the rows concerned: the client id of a request whose connection told
none, and how long a ShareFetch may wait, or a Fetch of which the row does not tell.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy import protocol
from kproxy.exchange import endings, facts
from kproxy.exchange.entries import (
    INJECTED,
    NO_API,
    NO_NODE,
    NO_RESPONSE,
    RAW_SASL,
    REDACTED,
    SASL_TOKEN,
    TRUNCATED,
    UNANSWERED,
    Frame,
    Position,
)
from kproxy.exchange.known import Known
from kproxy.exchange.timing import JOINS, POLLS
from kproxy.recording.exchanges import StoredFrames
from kproxy.recording.file import frame_in
from kproxy.recording.layout import EXCHANGE_INTEGERS
from kproxy.recording.tables import ExchangeTable

pc: Any = importlib.import_module("pyarrow.compute")
"""Its functions are made when it is imported, so that no type checker knows them."""

_ARROW = {"int64": pa.int64(), "int32": pa.int32(), "int16": pa.int16()}
_TYPES = {name: _ARROW[kind] for name, kind in EXCHANGE_INTEGERS}
_NO_BYTES = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte; JSON can have them."""
WAITED_TYPE = pa.struct(
    [("waited_for", pa.string()), ("behind", pa.int64()), ("waited_ms", pa.float64())]
)
"""What `Unanswered` says, of the column `unanswered`."""

Waited = dict[int, dict[str, Any]]
"""Such values, by row."""
_OF_WAITING = (
    "number", "connection", "request_received_ns", "request_sent_ns",
    "response_received_ns", "response_bytes", "response_flags",
)  # fmt: skip


class Rows:
    """The rows of some batches, column by column."""

    def __init__(
        self,
        tables: Sequence[ExchangeTable],
        known: Known,
        frames: StoredFrames,
        waited: Sequence[Waited] = (),
    ) -> None:
        """`waited` is what `Waiting` says of each table, if that is asked for."""
        self._tables = tables
        self._waited = waited
        self._known = known
        self._frames = frames
        self._columns: dict[str, Any] = {}
        self._row_count = sum(map(len, tables))

    def __len__(self) -> int:
        return self._row_count

    def column(self, name: str) -> Any:
        """Return a column of `exchanges` by its name."""
        found = self._columns.get(name)
        if found is None:
            make = COLUMNS.get(name)
            found = self._columns[name] = self._recorded(name) if make is None else make(self)
        return found

    def recorded(self, name: str) -> Any:
        """Return a column as it was recorded, named as in `ExchangeRow`."""
        key = f"recorded {name}"
        if key not in self._columns:
            self._columns[key] = self._recorded(name)
        return self._columns[key]

    def _recorded(self, name: str) -> Any:
        kind = _TYPES[name]
        arrays = [
            pa.Array.from_buffers(kind, len(table), [None, pa.py_buffer(table.column(name))])
            for table in self._tables
        ]
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)

    # ---- flags and names

    def has(self, flag: int) -> Any:
        """Tell of each row whether its request or its response has a flag."""
        key = f"flag {flag}"
        if key not in self._columns:
            both = pc.bit_wise_or(self.recorded("request_flags"), self.recorded("response_flags"))
            bits = pc.bit_wise_and(both, pa.scalar(flag, pa.int16()))
            self._columns[key] = pc.not_equal(bits, pa.scalar(0, pa.int16()))
        return self._columns[key]

    def named(self, name: str) -> Any:
        """Return a column of headers: null where there is none."""
        nameless = pc.or_(pc.equal(self.recorded("api_key"), NO_API), self.has(RAW_SASL))
        return null_where(nameless, self.recorded(name))

    def api(self) -> Any:
        """Return the names of the APIs."""
        keys = self.column("api_key").dictionary_encode()
        names = pa.array([protocol.api_name(key) for key in keys.dictionary.to_pylist()], "string")
        found = names.take(keys.indices)
        return pc.if_else(self.has(RAW_SASL), pa.scalar(SASL_TOKEN), found)

    def of_connection(self, name: str) -> Any:
        """Return what is known of the connections."""
        encoded = self.recorded("connection").dictionary_encode()
        numbers = encoded.dictionary.to_pylist()
        values = [text(getattr(self._known.peer(number), name)) for number in numbers]
        return pa.array(values, "string").take(encoded.indices)

    def client_id(self) -> Any:
        """Return the client ids: of the connection, or the request's own."""
        found = self.of_connection("client_id")
        unknown = pc.and_(pc.is_null(found), pc.invert(self.has(RAW_SASL)))
        if not found.null_count or not pc.any(unknown).as_py():
            return found
        positions = self.recorded("request_position").filter(unknown).to_pylist()
        own = [
            None if frame is None else facts.client_id(frame)[1] for frame in self._at(positions)
        ]
        return pc.replace_with_mask(
            found, unknown, pa.array([text(each) for each in own], "string")
        )

    def _at(self, positions: list[int]) -> list[Frame | None]:
        at = [Position.of(position) for position in positions]
        return [None if each is None else frame_in(self._frames.files, each) for each in at]

    def bytes_at(self, position: int) -> bytes | None:
        """Return the bytes of the frame at a position; None if it is not recorded."""
        return self._frames.bytes_at(position)

    def faults(self) -> Any:
        """Return the names of the fault rules that touched them."""
        if not any(len(table.column("fault_ids")) for table in self._tables):
            offsets = pa.array([0], pa.int32()).take(
                pa.repeat(pa.scalar(0, pa.int8()), len(self) + 1)
            )
            return pa.ListArray.from_arrays(offsets, pa.array([], "string"))
        lists: list[list[str | None]] = []
        for table in self._tables:
            ids, ends = table.column("fault_ids").tolist(), table.column("fault_ids[]").tolist()
            names = [text(self._known.names.rule(each)) for each in ids]
            lists += [names[a:b] for a, b in itertools.pairwise(ends)]
        return pa.array(lists, pa.list_(pa.string()))

    # ---- times

    def time(self) -> Any:
        """Return when the requests arrived."""
        request, response = (
            self.recorded(f"{each}_received_ns") for each in ("request", "response")
        )
        return _timestamp(pc.if_else(pc.equal(request, 0), response, request))

    def broker_us(self) -> Any:
        """Return what the brokers took, in microseconds."""
        sent, size = self.recorded("request_sent_ns"), self.recorded("response_bytes")
        unknown = pc.or_(pc.or_(pc.equal(sent, 0), pc.equal(size, 0)), self.has(INJECTED))
        took = pc.subtract(self.recorded("response_received_ns"), sent)
        return microseconds(null_where(unknown, took))

    def queued_us(self) -> Any:
        """Return how much of that was queueing."""
        queued = microseconds(self.recorded("queued_ns"))
        return pc.min_element_wise(queued, self.column("broker us"), skip_nulls=False)

    def waiting_us(self) -> Any:
        """Return how much of that the request may have asked for."""
        left = pc.subtract(self.column("broker us"), self.column("queued us"))
        api = self.column("api")
        wait = self.recorded("max_wait_ms")
        fetches = pc.and_(pc.equal(api, "Fetch"), pc.equal(wait, 0))
        untold = pc.and_(pc.or_(pc.equal(api, "ShareFetch"), fetches), pc.greater(left, 0))
        untold = pc.fill_null(untold, False)
        if pc.any(untold).as_py():
            wait = pc.replace_with_mask(wait, untold, self._waits_of(untold))
        allowed = pc.multiply(pc.max_element_wise(wait, 0).cast(pa.int64()), 1000)
        polls = pc.min_element_wise(left, allowed, skip_nulls=False)
        none = pc.subtract(left, left)
        waits = pc.if_else(pc.is_in(api, pa.array(sorted(POLLS))), polls, none)
        return pc.if_else(pc.is_in(api, pa.array(sorted(JOINS))), left, waits)

    def _waits_of(self, untold: Any) -> Any:
        waits: list[int] = []
        for frame in self._at(self.recorded("request_position").filter(untold).to_pylist()):
            request = facts.decoded_request(frame, None if frame is None else frame.data)
            waits.append(0 if request is None else getattr(request.body, "max_wait_ms", 0))
        return pa.array(waits, pa.int32())

    def service_us(self) -> Any:
        """Return what the brokers took for certain."""
        left = pc.subtract(self.column("broker us"), self.column("queued us"))
        return pc.subtract(left, self.column("waiting us"))

    def proxy_us(self) -> Any:
        """Return how long the proxy kept requests and responses."""
        received, sent = self.recorded("request_received_ns"), self.recorded("request_sent_ns")
        back, left = self.recorded("response_received_ns"), self.recorded("response_sent_ns")
        answered = pc.not_equal(self.recorded("response_bytes"), 0)
        here = pc.equal(left, 0)
        nowhere = pc.equal(sent, 0)
        both = pc.if_else(answered, pc.subtract(left, back), 0)
        kept = pc.if_else(
            nowhere, pc.subtract(left, received), pc.add(pc.subtract(sent, received), both)
        )
        unknown = pc.or_(
            pc.and_(answered, here),
            pc.and_(nowhere, pc.or_(pc.invert(self.has(INJECTED)), here)),
        )
        return microseconds(null_where(unknown, kept))

    def milliseconds(self, name: str) -> Any:
        """Return a column of microseconds in milliseconds."""
        return pc.divide(self.column(f"{name} us").cast(pa.float64()), 1000.0)

    # ---- what was not answered

    def unanswered(self) -> Any:
        """Return what requests waited for that were never answered."""
        if not any(self._waited):
            return pa.nulls(len(self), WAITED_TYPE)
        values = [
            waited.get(index)
            for table, waited in zip(self._tables, self._waited, strict=True)
            for index in range(len(table))
        ]
        return pa.array(values, WAITED_TYPE)


@attrs.define(eq=False)
class Waiting:
    """The requests that wait for a response, as far as the tables tell that were taken so far."""

    _first: dict[int, int] = attrs.field(factory=dict[int, int])
    """By connection: the first of them that was not answered since its last response."""

    def take(self, exchanges: ExchangeTable) -> Waited:
        """Return what requests of the next table waited for that were never answered, by row."""
        lost = any(map(UNANSWERED.__and__, set(exchanges.column("response_flags"))))
        if not lost and not self._first:
            return {}
        found: Waited = {}
        columns = map(exchanges.column, _OF_WAITING)
        for index, row in enumerate(zip(*columns, strict=True)):
            number, connection, received, sent, ended, size, flags = row
            if size:
                self._first.pop(connection, None)
            elif flags & UNANSWERED:
                first = self._first.setdefault(connection, number)
                behind = None if first == number else first
                waited = endings.unanswered(received, sent, ended or None, behind)
                found[index] = attrs.asdict(waited)
        return found

    def forget(self, connections: Iterable[int]) -> None:
        """Forget connections that were closed."""
        for connection in connections:
            self._first.pop(connection, None)


def timestamps(time_ns: Any) -> Any:
    """Return times of a recording as timestamps; null where there is none."""
    return _timestamp(null_where(pc.less_equal(time_ns, 0), time_ns))


def _timestamp(time_ns: Any) -> Any:
    return pc.divide(time_ns, 1000).cast(pa.timestamp("us", tz="UTC"))


def null_where(mask: Any, array: Any) -> Any:
    """Return an array with null where a mask is true."""
    return pc.if_else(mask, pa.scalar(None, array.type), array)


def microseconds(duration_ns: Any) -> Any:
    """Round durations to microseconds as `facts.microseconds` does."""
    shifted = pc.add(duration_ns, 500)
    quotient = pc.divide(shifted, 1000)
    # Arrow divides towards zero, Python downwards.
    too_large = pc.less(shifted, pc.multiply(quotient, 1000))
    return pc.subtract(quotient, too_large.cast(pa.int64()))


def text(value: str | None) -> str | None:
    """Return valid Unicode, if anything."""
    return None if value is None else clean(value)


def clean(text: str) -> str:
    """Return text that is valid Unicode: what was no UTF-8 becomes U+FFFD."""
    if text.isascii():
        return text
    text = _NO_BYTES.sub("\ufffd", text)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


COLUMNS: dict[str, Callable[[Rows], Any]] = {
    "time": Rows.time,
    "client_address": lambda rows: rows.of_connection("client_address"),
    "client_id": Rows.client_id,
    "node_id": lambda rows: null_where(
        pc.equal(rows.recorded("node_id"), NO_NODE), rows.recorded("node_id")
    ),
    "api": Rows.api,
    **{
        name: lambda rows, name=name: rows.named(name)
        for name in ("api_key", "api_version", "correlation_id")
    },
    **{
        name: lambda rows, name=name: null_where(
            pc.equal(rows.recorded(name), 0), rows.recorded(name)
        )
        for name in ("request_bytes", "response_bytes")
    },
    **{
        f"{name}_ms": lambda rows, name=name: rows.milliseconds(name)
        for name in ("broker", "queued", "waiting", "service", "proxy")
    },
    **{
        f"{name} us": make
        for name, make in (
            ("broker", Rows.broker_us),
            ("queued", Rows.queued_us),
            ("waiting", Rows.waiting_us),
            ("service", Rows.service_us),
            ("proxy", Rows.proxy_us),
        )
    },
    **{
        name: lambda rows, flag=flag: rows.has(flag)
        for name, flag in (
            ("redacted", REDACTED),
            ("injected", INJECTED),
            ("truncated", TRUNCATED),
            ("one_way", NO_RESPONSE),
        )
    },
    "faults": Rows.faults,
    "unanswered": Rows.unanswered,
    "max_wait_ms": lambda rows: rows.recorded("max_wait_ms"),
}
"""The columns that are not recorded as they are. Names with a blank are steps on the way."""
