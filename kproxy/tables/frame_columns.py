"""Columns of frames, from the columns of their exchanges.

    ExchangeRows ─▶ the requests and responses: two places per row ─▶ FrameRows ─▶ columns

Invariant: a column has the values that the view `frames` takes out of exchanges. A frame is opened
only for the column of its bytes.
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
    """Frames of exchanges, as columns."""

    _rows: ExchangeRows
    _places: np.ndarray[Any, np.dtype[Any]]
    """Row × 2 of a request, row × 2 + 1 of a response."""

    def __len__(self) -> int:
        return len(self._places)

    def column(self, name: str) -> Any:
        """Return a column of `frames` by its name."""
        make = _COLUMNS.get(name)
        if make is not None:
            return make(self)
        return self._rows.column(name).take(pa.array(self._places // 2))

    def of_sides(self, name: str) -> Any:
        """Return a value of each frame, such as `bytes` from request_bytes and response_bytes."""
        return _both(self._rows, name)[self._places]

    def time(self) -> Any:
        """Return the times of arrival; null if unknown."""
        received_ns = self.of_sides("received_ns")
        return timestamps(received_ns, received_ns <= 0)

    def has(self, flag: int) -> Any:
        """Return for each frame whether it has a flag."""
        return pa.array(self.of_sides("flags") & flag != 0)

    def data(self) -> Any:
        """Return the bytes of the frames."""
        return pa.array(self._rows.bytes_of(self.of_sides("position").tolist()), BYTES)


def of_rows(rows: ExchangeRows, data_bytes_max: int | None) -> Iterator[FrameRows]:
    """Yield the frames of exchanges; in parts of at most `data_bytes_max`, unless that is None."""
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
"""Functions that compute the columns of one side of an exchange, by name."""
