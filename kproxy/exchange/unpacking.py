"""How much the compressed records of recordings may become, over all that a command reads.

    exchange ─of─▶ Allowance of its batches: what its size gives it, and a share of the spare
                       └─ what it took beyond its size ─▶ less to spare for the others

A kilobyte can stand for a million records, and a file for any number of such kilobytes. One
exchange is bounded by itself (`records.json_allowance`); this bounds all of them together.

Every exchange has what its own bytes give it, so that an honest recording of any size is read to
its end. The records of a batch are counted in it, which costs at least a bit of each after any
compression: empty or constant records of a real producer, with zstd, come to 1.1 for a byte, with
lz4 and snappy to 0.25. We give 4, and count headers as records: two constant ones in each such
record are within it. Constant values compress 70 : 1 (100 bytes each) to 410 : 1 (1,000 bytes) with
zstd, real ones 3 : 1 to 20 : 1; we give 256, and what is beyond draws on the spare: 128 MiB, so
that one batch of 100 MB of zeros is read, and a quarter of a million records. Such records are some
seconds of work (one takes 6 µs as JSON, up to 60 as a line), 200 MB of memory, and 22 MB of JSON;
such a batch is 250 MB of memory, 630 MB of JSON in 2 s, and 10 s of `scan`.

Invariants: whoever opens record batches for a command asks here, and nobody else decides. The spare
has one owner, the reader of the recordings; who reads a single exchange, or live traffic, has one
that does not end. What is left out is remembered, so that the reader says it (`notes.unread`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from kproxy.wire.protocol.compression import Allowance
from kproxy.wire.protocol.records import json_allowance

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange

BYTES_RATIO = 256
RECORDS_RATIO = 4
SPARE_BYTES = 128 << 20
SPARE_RECORDS = 250_000
_NO_END = 1 << 62


@attrs.define(eq=False)
class Unpacking:
    """What the exchanges of one reading may unpack to beyond what their sizes give them."""

    spare_bytes: int = attrs.field(factory=lambda: SPARE_BYTES)
    spare_records: int = attrs.field(factory=lambda: SPARE_RECORDS)
    left_out: dict[str, None] = attrs.field(factory=dict, init=False)
    """The names of exchanges with records that were not read for want of it."""

    @classmethod
    def endless(cls) -> Unpacking:
        """Return one for exchanges that are each bounded alone."""
        return cls(_NO_END, _NO_END)

    def stop(self) -> None:
        """Leave nothing to spare: the reading is no longer wanted."""
        self.spare_bytes = self.spare_records = 0

    def of(self, exchange: Exchange) -> contextlib.AbstractContextManager[Allowance]:
        """Give what an exchange may unpack to, all of its batches together; take what it takes."""
        row = exchange.row
        return self.of_bytes(row.request_bytes + row.response_bytes, exchange.name)

    @contextlib.contextmanager
    def of_bytes(self, size_bytes: int, name: str = "") -> Iterator[Allowance]:
        """Give what batches of this size may unpack to; take what they take. If that is too little
        for want of something to spare, remember that the exchange of this name was left out."""
        most = json_allowance(size_bytes)
        own_bytes, own_records = BYTES_RATIO * size_bytes, RECORDS_RATIO * size_bytes
        bytes_before = min(most.bytes_left, own_bytes + self.spare_bytes)
        records_before = min(most.records_left, own_records + self.spare_records)
        granted = Allowance(bytes_before, records_before)
        try:
            yield granted
        finally:
            used_bytes = bytes_before - granted.bytes_left
            used_records = records_before - granted.records_left
            self.spare_bytes -= min(self.spare_bytes, max(0, used_bytes - own_bytes))
            self.spare_records -= min(self.spare_records, max(0, used_records - own_records))
            is_short = bytes_before < most.bytes_left or records_before < most.records_left
            if name and granted.exceeded and is_short:
                self.left_out[name] = None
