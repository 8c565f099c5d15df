"""Find the places of the fields of many records at once.

::

    the bytes of batches, joined
      ─▶ starts of the records       a loop over their lengths only
      ─▶ times, offsets, spans …     numpy: one field of all records, then the next one

The layout of a record is defined by `protocol.record_fields`: this module finds the same fields, or
nothing.

Invariant: malformed records, and those that no real client writes (varints longer than needed, many
headers), give None, never an error and never a wrong field.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kproxy.protocol import ProtocolError
from kproxy.protocol.record_fields import RECORD_BYTES_MIN, varint

_JOINED_BYTES_MAX = 1 << 30
"""Arrow's offsets have 31 bits."""
_HEADERS_MAX = 64
"""Batches with a record of more headers are read one by one."""
_PADDING = bytes(64)
"""Appended to the last record, so that reading a malformed one stays inside the memory."""


class BatchSpan(NamedTuple):
    """The records of a batch of magic 2: the bytes of `data` from `start` to `stop`."""

    data: bytes
    start: int
    stop: int
    records: int
    """Number of records."""
    damage: str = ""
    """The reason why bytes are missing after `stop`; "" if none are."""


class Spans(NamedTuple):
    """The fields of records, as arrays; spans are pairs of offsets into `joined`."""

    joined: bytes
    starts: Any
    """Offsets of the records in `joined`."""
    offset_deltas: Any
    time_deltas: Any
    fields: Any
    """Row per record: start and end of its key, start and end of its value."""
    nulls: Any
    """Row per record: whether its key and its value are null."""
    headers_ends: Any
    """Number of headers up to the last header of each record."""
    headers: Any
    """Row per header: start and end of its key, start and end of its value."""
    header_nulls: Any
    """True for each header whose value is null."""


class UnusualError(Exception):
    """Data that must be read by the decoder, one record after the other."""


def find(runs: Sequence[BatchSpan]) -> Spans | None:
    """Return the fields of all records, in order; None if one is malformed or unusual."""
    if any(each.damage for each in runs):
        return None
    if sum(each.stop - each.start for each in runs) > _JOINED_BYTES_MAX:
        return None
    joined = b"".join([*(memoryview(each.data)[each.start : each.stop] for each in runs), _PADDING])
    try:
        return _found(joined, np.frombuffer(_starts(joined, runs), np.int64))
    except (UnusualError, ProtocolError, IndexError):
        return None


def _starts(joined: bytes, runs: Sequence[BatchSpan]) -> array[int]:
    starts = array("q")
    add = starts.append
    stop = 0
    for run in runs:
        p = stop
        stop += run.stop - run.start
        for _ in range(run.records):
            add(p)
            n = joined[p]
            if n < 128:
                p += 1 + (n >> 1)
            elif (high := joined[p + 1]) < 128:
                p += 2 + ((n + (high << 7) - 128) >> 1)
            else:
                n, p = varint(joined, p)
                p += n >> 1
        if p != stop:
            raise UnusualError
    return starts


def _found(joined: bytes, starts: Any) -> Spans:
    data = np.frombuffer(joined, np.uint8)
    n, p = varints(data, starts)
    ends = p + (n >> 1)
    _raise_if_any(
        (n & 1 != 0) | (n < 2 * RECORD_BYTES_MIN - 2) | (ends > len(data) - len(_PADDING))
    )
    times, p = varints(data, p + 1, 9)
    offsets, p = varints(data, p)
    fields = np.empty((len(starts), 4), np.int64)
    nulls = np.empty((len(starts), 2), bool)
    for nth in range(2):
        p, nulls[:, nth] = _bytes(data, p, ends, fields[:, 2 * nth : 2 * nth + 2])
    counts, p = varints(data, p)
    some = np.flatnonzero(counts)
    headers, header_nulls = np.empty((0, 4), np.int64), np.empty(0, bool)
    if some.size:
        of_some = counts[some]
        _raise_if_any((of_some & 1 != 0) | (of_some > ends[some] - p[some]))
        headers, header_nulls, p[some] = _headers(data, p[some], ends[some], of_some >> 1)
    _raise_if_any(p != ends)
    counts >>= 1
    return Spans(
        joined, starts, _signed(offsets), _signed(times), fields, nulls, np.cumsum(counts),
        headers, header_nulls,
    )  # fmt: skip


def _headers(data: Any, p: Any, ends: Any, counts: Any) -> tuple[Any, Any, Any]:
    """Find the headers of records: the first header of each record, then the second, and so on."""
    if counts.max() > _HEADERS_MAX:
        raise UnusualError
    firsts = np.cumsum(counts) - counts
    total = int(counts.sum())
    found, nulls = np.empty((total, 4), np.int64), np.empty(total, bool)
    p = p.copy()
    for nth in range(int(counts.max())):
        which = np.flatnonzero(counts > nth)
        rows = firsts[which] + nth
        at, limits = p[which], ends[which]
        spans = np.empty((len(which), 4), np.int64)
        at, nameless = _bytes(data, at, limits, spans[:, :2])
        _raise_if_any(nameless)
        at, nulls[rows] = _bytes(data, at, limits, spans[:, 2:])
        found[rows] = spans
        p[which] = at
    return found, nulls, p


def _bytes(data: Any, p: Any, ends: Any, spans: Any) -> tuple[Any, Any]:
    """Read the lengths at `p`, and write start and end of their bytes to `spans`; return the ends,
    and whether each is null."""
    n, p = varints(data, p)
    null = n & 1 != 0
    spans[:, 0] = p
    p = p + np.where(null, 0, n >> 1)
    spans[:, 1] = p
    _raise_if_any(p > ends)
    return p, null


def varints(data: Any, p: Any, bytes_max: int = 5) -> tuple[Any, Any]:
    """Read the varints at `p`; return them, still zig-zag encoded, and their ends."""
    n = data[p].astype(np.int64)
    p = p + 1
    longer = np.flatnonzero(n > 127)
    for shift in range(7, 7 * bytes_max, 7):
        if not longer.size:
            break
        at = p[longer]
        byte = data[at].astype(np.int64)
        n[longer] += (byte - 1) << shift  # - 1 removes the continuation bit of the byte before
        p[longer] = at + 1
        longer = longer[byte > 127]
    if longer.size or (bytes_max == 5 and n.size and n.max() >> 32):
        raise UnusualError
    return n, p


def _signed(n: Any) -> Any:
    return (n >> 1) ^ -(n & 1)


def _raise_if_any(wrong: Any) -> None:
    if wrong.any():
        raise UnusualError
