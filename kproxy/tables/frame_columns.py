"""Columns of many frames at once, out of those of their exchanges.

    ExchangeRows ─▶ where a request or a response is: two places each ─▶ FrameRows ─▶ columns

Invariant: a column has the values that the columns of `frames` take out of exchanges. A frame is
opened when somebody asks for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from kproxy.exchange.entries import OPAQUE, REDACTED, Side
from kproxy.tables.arrow_types import BYTES
from kproxy.tables.exchange_columns import ExchangeRows, timestamps

_SIDES = pa.array([side.name.lower() for side in Side])


@attrs.frozen(eq=False)
class FrameRows:
    """Some of the frames of some exchanges."""

    _rows: ExchangeRows
    _places: np.ndarray[Any, np.dtype[Any]]
    """Where they are: twice the row, and one more of a response."""

    def __len__(self) -> int:
        return len(self._places)

    def column(self, name: str) -> Any:
        """Return a column of `frames` by its name."""
        make = _COLUMNS.get(name)
        if make is not None:
            return make(self)
        return self._rows.column(name).take(pa.array(self._places // 2))

    def of_sides(self, name: str) -> Any:
        """Return what is recorded of each, such as `bytes` of request_bytes and response_bytes."""
        return _both(self._rows, name)[self._places]

    def time(self) -> Any:
        """Return when they arrived; null where that is not known."""
        received_ns = self.of_sides("received_ns")
        return timestamps(received_ns, received_ns <= 0)

    def has(self, flag: int) -> Any:
        """Tell of each whether it has a flag."""
        return pa.array(self.of_sides("flags") & flag != 0)

    def data(self) -> Any:
        """Return their bytes."""
        return pa.array(map(self._rows.bytes_at, self.of_sides("position").tolist()), BYTES)


def of_rows(rows: ExchangeRows, data_bytes_max: int | None) -> Iterator[FrameRows]:
    """Yield the frames of exchanges; some at a time if their bytes matter."""
    sizes = _both(rows, "bytes")
    places = np.flatnonzero(sizes)
    if data_bytes_max is None:
        cuts = []
    else:
        total = np.cumsum(sizes[places], dtype="i8")
        cuts = np.flatnonzero(np.diff(total // data_bytes_max)) + 1
    for some in np.split(places, cuts):
        if len(some):
            yield FrameRows(rows, some)


def _both(rows: ExchangeRows, name: str) -> Any:
    sides = (rows.values(f"{side}_{name}") for side in ("request", "response"))
    return np.stack(list(sides), axis=1).ravel()


_COLUMNS: dict[str, Callable[[FrameRows], Any]] = {
    "side": lambda frames: _SIDES.take(pa.array(frames._places % 2)),
    "time": FrameRows.time,
    "opaque": lambda frames: frames.has(OPAQUE),
    "redacted": lambda frames: frames.has(REDACTED),
    "flags": lambda frames: pa.array(frames.of_sides("flags")),
    "frame_bytes": lambda frames: pa.array(frames.of_sides("bytes")),
    "received_ns": lambda frames: pa.array(frames.of_sides("received_ns")),
    "sent_ns": lambda frames: pa.array(frames.of_sides("sent_ns")),
    "data": FrameRows.data,
}
"""The columns that are of one side of an exchange."""
