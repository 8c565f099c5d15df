"""Columns of many frames at once, out of the recording's own tables.

    FrameTable ─▶ runs, and the sizes of the frames of each ─▶ a row for each frame ─┬▶ columns
               ├▶ data ─▶ API and correlation id, at the starts of all frames ───────┤
               └▶ pieces, and frames with more to say than their headers ─▶ Frame ───┘

Invariant: a column has the values that the frames themselves give.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    NO_API,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    SASL_TOKEN,
    UNANSWERED,
    Frame,
    Side,
)
from kproxy.exchange.pairing import Peer
from kproxy.protocol import api_name
from kproxy.recording.tables import RESPONSE_VALUES, FrameTable
from kproxy.tables import exchange_columns

pc: Any = importlib.import_module("pyarrow.compute")
Integers = np.ndarray[Any, np.dtype[Any]]

_PIECES = FRAGMENT | MORE | UNANSWERED
_OF_RUNS = ("received_ns", "sent_ns", "connection", "flags", "side")
_OF_HEADS = ("number", "api_key", "api_version", "correlation_id")
_REQUEST_BYTES_MIN, _RESPONSE_BYTES_MIN = 12, 8
"""Size, ApiKey, version, and correlation id; of a response, size and correlation id."""
_SIDES = pa.array([side.name.lower() for side in Side])


@attrs.frozen(eq=False)
class FrameRows:
    """Some frames, one behind the other."""

    columns: Mapping[str, Integers]
    """As in `Frame`."""
    starts: Integers
    """Where each begins in the data, and where the last one ends."""
    data: bytes | memoryview
    peers: Mapping[int, Peer]
    """Who their connections are."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def data_bytes(self) -> int:
        """The size of the data."""
        return len(self.data)


def of_frames(frames: Sequence[Frame], peers: Mapping[int, Peer]) -> FrameRows:
    """Return the rows of frames that are put together."""
    columns = {
        name: np.array([getattr(frame, name) for frame in frames], "i8")
        for name in (*_OF_RUNS, *_OF_HEADS, "frame_bytes")
    }
    data = [frame.data for frame in frames]
    starts = np.cumsum([0, *map(len, data)])
    return FrameRows(columns, starts, b"".join(data), peers)


def of_table(found: FrameTable, peers: Mapping[int, Peer]) -> Iterator[FrameRows | range]:
    """Yield the rows of whole frames whose headers say all, and between them the runs of others."""
    heads, counts = np.diff(_array(found, "heads[]")), np.diff(_array(found, "sizes[]"))
    expected = np.where(
        _array(found, "side") == Side.BROKER, RESPONSE_VALUES * np.maximum(counts, 1), 0
    )
    plain = (_array(found, "flags") & (_PIECES | RAW_SASL) == 0) & (heads == expected)
    ends = [0, *(np.flatnonzero(np.diff(plain)) + 1).tolist(), len(plain)]
    for first, last in itertools.pairwise(ends):
        runs = range(first, last)
        rows = _plain(found, runs, peers) if first < last and plain[first] else None
        yield runs if rows is None else rows


def _plain(found: FrameTable, runs: range, peers: Mapping[int, Peer]) -> FrameRows | None:
    """The rows of runs; None if something is wrong in them."""
    some, bounds = slice(runs.start, runs.stop), slice(runs.start, runs.stop + 1)
    sizes_end, ends = _array(found, "sizes[]")[bounds], _array(found, "data[]")[bounds]
    several = np.diff(sizes_end)
    counts = np.maximum(several, 1)
    run = np.repeat(np.arange(len(runs)), counts)
    nth = np.arange(len(run)) - (np.cumsum(counts) - counts)[run]
    sizes = np.diff(ends)[run]
    sizes[(several > 0)[run]] = _array(found, "sizes")[sizes_end[0] : sizes_end[-1]]
    starts = ends[0] + np.cumsum(sizes, dtype="i8") - sizes
    columns = {name: _array(found, name)[some][run] for name in _OF_RUNS}
    responds = columns["side"] == Side.BROKER
    sizes_min = np.where(responds, _RESPONSE_BYTES_MIN, _REQUEST_BYTES_MIN)
    if np.any(starts[nth == 0] != ends[:-1]) or np.any(sizes < sizes_min):
        return None
    heads_end = _array(found, "heads[]")[bounds]
    heads = _array(found, "heads")[heads_end[0] : heads_end[-1]].reshape(-1, RESPONSE_VALUES)
    columns |= _heads(_array(found, "data"), starts, responds, heads)
    asks = ~responds
    columns["number"][asks] = (_array(found, "number")[some][run] + nth)[asks]
    columns["frame_bytes"] = sizes
    data = found.column("data")[ends[0] : ends[-1]]
    return FrameRows(columns, np.append(starts, ends[-1]) - ends[0], data, peers)


def _heads(
    data: Integers, starts: Integers, responds: Integers, heads: Integers
) -> dict[str, Integers]:
    """What the headers of requests say, and what is recorded of responses."""
    columns = {name: np.empty(len(starts), "i8") for name in _OF_HEADS}
    asks = ~responds
    requests = data[starts[asks, np.newaxis] + np.arange(4, 8)]
    columns["api_key"][asks] = requests[:, :2].copy().view(">i2").ravel()
    columns["api_version"][asks] = requests[:, 2:].copy().view(">i2").ravel()
    columns["number"][responds] = heads[:, 0]
    columns["api_key"][responds] = heads[:, 1] >> 16
    columns["api_version"][responds] = heads[:, 1].astype("i2")
    ids = data[(starts + np.where(responds, 4, 8))[:, np.newaxis] + np.arange(4)]
    columns["correlation_id"][:] = ids.view(">i4").ravel()
    return columns


def _array(found: FrameTable, name: str) -> Integers:
    return np.asarray(found.column(name))


# ---------------------------------------------------------------- columns


def column(some: Sequence[FrameRows], name: str) -> Any:
    """Return a column of the view `frames` by its name."""
    make = _COLUMNS.get(name)
    return _recorded(some, name) if make is None else make(some)


def _recorded(some: Sequence[FrameRows], name: str) -> Any:
    return pa.array(_joined(some, name))


def _joined(some: Sequence[FrameRows], name: str) -> Integers:
    return np.concatenate([rows.columns[name] for rows in some])


def _named(some: Sequence[FrameRows], name: str) -> Any:
    unknown = pc.or_(pc.equal(_recorded(some, "api_key"), NO_API), _has(some, RAW_SASL))
    return exchange_columns.null_where(unknown, _recorded(some, name))


def _api(some: Sequence[FrameRows]) -> Any:
    keys = _named(some, "api_key").dictionary_encode()
    names = pa.array([api_name(key) for key in keys.dictionary.to_pylist()], "string")
    return pc.if_else(_has(some, RAW_SASL), pa.scalar(SASL_TOKEN), names.take(keys.indices))


def _time(some: Sequence[FrameRows]) -> Any:
    time_ns = _recorded(some, "received_ns")
    known = exchange_columns.null_where(pc.less_equal(time_ns, 0), time_ns)
    return pc.divide(known, 1000).cast(pa.timestamp("us", tz="UTC"))


def _of_connections(some: Sequence[FrameRows], name: str) -> tuple[list[Any], Any]:
    peers: dict[int, Peer] = {}
    for rows in some:
        peers |= rows.peers
    encoded = _recorded(some, "connection").dictionary_encode()
    values = [getattr(peers[number], name) for number in encoded.dictionary.to_pylist()]
    return values, encoded.indices


def _client_id(some: Sequence[FrameRows]) -> Any:
    values, indices = _of_connections(some, "client_id")
    return pa.array(map(exchange_columns.text, values), "string").take(indices)


def _node_id(some: Sequence[FrameRows]) -> Any:
    values, indices = _of_connections(some, "node_id")
    return pa.array(values, "int32").take(indices)


def _has(some: Sequence[FrameRows], flag: int) -> Any:
    return pa.array(_joined(some, "flags") & flag != 0)


def _data(some: Sequence[FrameRows]) -> Any:
    arrays: list[Any] = []
    for rows in some:
        buffers = [None, pa.py_buffer(rows.starts.astype("i4")), pa.py_buffer(rows.data)]
        arrays.append(pa.Array.from_buffers(pa.binary(), len(rows), buffers))
    return pa.concat_arrays(arrays)


_COLUMNS: dict[str, Callable[[Sequence[FrameRows]], Any]] = {
    "side": lambda some: _SIDES.take(_recorded(some, "side")),
    "time": _time,
    "client_id": _client_id,
    "node_id": _node_id,
    "api": _api,
    "api_key": lambda some: _named(some, "api_key"),
    "api_version": lambda some: _named(some, "api_version"),
    "correlation_id": lambda some: _named(some, "correlation_id"),
    "opaque": lambda some: _has(some, OPAQUE),
    "redacted": lambda some: _has(some, REDACTED),
    "data": _data,
}
"""The columns that are not as they are in a frame."""
