"""Parquet files, written record batch by record batch.

Invariant: the file of an export is always new, and readable only by its owner.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from kproxy.exchange.exchange import Exchange
from kproxy.tables.arrow_types import INT32
from kproxy.tables.batches import batches
from kproxy.tables.views import RECORDING, chosen, schema_of

_GROUP_BYTES = 8 << 20
"""The least size of a row group in memory, but for the last one of a file."""


@attrs.define(eq=False)
class ParquetFile:
    """One Parquet file that is being written into an open one, which stays open."""

    file: BinaryIO
    schema: pa.Schema
    count: int = attrs.field(default=0, init=False)
    """Number of rows so far."""
    _writer: pq.ParquetWriter = attrs.field(init=False)
    _waiting: list[pa.RecordBatch] = attrs.field(factory=list, init=False)
    """Rows that make no row group yet …"""
    _waiting_bytes: int = attrs.field(default=0, init=False)
    """… and their size in memory."""

    def __attrs_post_init__(self) -> None:
        self._writer = pq.ParquetWriter(self.file, self.schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises: OSError.
        """
        self._waiting.append(batch)
        self._waiting_bytes += batch.nbytes
        self.count += len(batch)
        if self._waiting_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        batches, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if batches:
            self._writer.write_table(pa.Table.from_batches(batches))

    def close(self) -> None:
        """Complete it.

        Raises: OSError.
        """
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Give it up after an error."""
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            self._writer.close()  # the first error was raised already


_INT32_COLUMNS = ("api_key", "api_version")
"""Columns that have 32 bits in exports, for compatibility."""


def write_exchanges(
    exchanges: Iterable[Exchange],
    names: Iterable[str],
    path: Path,
    recording: Callable[[Exchange], str | None] | None = None,
) -> int:
    """Write columns of exchanges to a new file; return the number of exchanges. `recording`
    returns the recording's id of an exchange, for a column of that.

    Raises: OSError, and any exception of `exchanges`; the file is removed then.
    """
    columns = [
        attrs.evolve(each, type=INT32) if each.name in _INT32_COLUMNS else each
        for each in chosen("exchanges", names)
    ]
    if recording is not None:
        columns += [
            attrs.evolve(each, value_of=recording) for each in chosen("exchanges", [RECORDING])
        ]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as new:
        file = ParquetFile(new, schema_of(columns))
        try:
            for batch in batches(exchanges, columns, {}):
                file.write(batch)
            file.close()
        except BaseException:
            file.abandon()
            path.unlink(missing_ok=True)
            raise
    return file.count
