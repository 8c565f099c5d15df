"""Batches to messages.

    RecordingBatch ─▶ frames_message, exchanges_message ─▶ Writer

Writing shares the interpreter with the proxy: it goes on in slices of less than a tenth of a
millisecond, between which the proxy gets its turn.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from kproxy.recording.arrow import CODES, Buffer, Code, Schema
from kproxy.recording.batch import OWN_FIELDS, SHARED_FIELDS, RecordingBatch
from kproxy.recording.layout import (
    EXCHANGE_INTEGERS,
    EXCHANGES,
    FRAMES,
    RUN_INTEGERS,
    RUN_LISTS,
)
from kproxy.recording.other_columns import recast

_SLICE_VALUES = 16 << 10
_PACKED_VALUES = 2 << 10
"""After this many values that are sliced, or packed, the proxy gets its turn …"""
_PAUSE_SECONDS = 50e-6
"""… and this is how long it takes until it has it."""
_ZERO = bytes(4)

_RUN_CODES: list[Code] = [*(CODES[kind] for _, kind in RUN_INTEGERS), *("i" for _ in RUN_LISTS)]
_OWN_CODES: list[Code] = [CODES[dict(EXCHANGE_INTEGERS)[name]] for name in OWN_FIELDS]
_SHARED_CODES: list[Code] = [CODES[dict(EXCHANGE_INTEGERS)[name]] for name in SHARED_FIELDS]


def frames_message(batch: RecordingBatch, schema: Schema = FRAMES) -> tuple[list[Buffer], int]:
    """Return the message on /kafka/frames, as buffers, and its size.

    Raises: ValueError, when a value is too large for a column of a schema that is not ours.
    """
    *integers, sizes_end, heads_end, splices_end, data_end = _columns(batch.runs, _RUN_CODES)
    runs, sizes, heads = batch.run_count, len(batch.sizes), len(batch.heads)
    lengths = [*[runs] * len(integers), runs, sizes, runs, heads, runs, runs]
    values = [
        *integers, _ZERO + sizes_end, _packed(batch.sizes, "i"), _ZERO + heads_end,
        _packed(batch.heads, "q"), _ZERO + splices_end, batch.splices, _ZERO + data_end,
    ]  # fmt: skip
    parts, size = FRAMES.encode(lengths, values, batch.pieces)
    if schema is FRAMES:
        return parts, size
    return recast(FRAMES, schema, parts, batch.unknown_of_runs)


def exchanges_message(
    batch: RecordingBatch, schema: Schema = EXCHANGES
) -> tuple[list[Buffer], int]:
    """Return the message on /kafka/exchanges, as buffers, and its size.

    Raises: ValueError, as above.
    """
    *shared, faults_end = _columns(batch.shared, [*_SHARED_CODES, "i"])
    own = map(_packed, batch.own, _OWN_CODES)
    columns = dict(zip((*SHARED_FIELDS, *OWN_FIELDS), (*shared, *own), strict=True))
    for nth, name in enumerate(("request_position", "response_position")):
        columns[name] = _positions(columns[name], batch.places, nth)
    count, faults = batch.exchange_count, len(batch.exchange_fault_ids)
    lengths = [*[count] * len(columns), count, faults]
    values = [*(columns[name] for name, _ in EXCHANGE_INTEGERS), _ZERO + faults_end]
    parts, size = EXCHANGES.encode(lengths, values, [batch.exchange_fault_ids.tobytes()])
    if schema is EXCHANGES:
        return parts, size
    return recast(EXCHANGES, schema, parts, batch.unknown_of_exchanges)


def _columns(rows: bytearray, codes: Sequence[Code]) -> list[bytes]:
    """Return the columns of rows that have a 64-bit integer for each of these codes."""
    width, columns, done = len(codes), [], 0
    for place, code in enumerate(codes):
        # A small integer is the low end of a large one.
        values = memoryview(rows).cast(code)
        per_value = 8 // values.itemsize
        columns.append(values[place * per_value :: width * per_value].tobytes())
        done += len(rows) // (8 * width)
        if done > _SLICE_VALUES:
            done = 0
            time.sleep(_PAUSE_SECONDS)
    return columns


def _packed(values: Sequence[int], code: Code) -> bytes:
    """Return a column of these integers."""
    parts: list[bytes] = []
    for start in range(0, len(values), _PACKED_VALUES):
        if start:
            time.sleep(_PAUSE_SECONDS)
        some = values[start : start + _PACKED_VALUES]
        parts.append(struct.pack(f"<{len(some)}{code}", *some))
    return b"".join(parts)


def _positions(runs: bytes, places: bytearray, side: int) -> bytes:
    """Return the positions of frames in runs."""
    positions = bytearray(runs)
    memoryview(positions).cast("H")[::4] = memoryview(places).cast("H")[side::2]
    return bytes(positions)
