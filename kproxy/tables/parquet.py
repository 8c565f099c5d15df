"""Parquet files, written record batch by record batch.

Invariant: a file is always new, and readable only by its owner.
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
from kproxy.tables import item_columns
from kproxy.tables.arrow_types import INT32
from kproxy.tables.views import RECORDING, chosen, schema_of


@attrs.define(eq=False)
class ParquetFile:
    """One Parquet file that is being written.

    Resource handling: holds it open until `close`, or `abandon`.
    """

    path: Path
    schema: pa.Schema
    count: int = attrs.field(default=0, init=False)
    """Number of rows so far."""
    _file: BinaryIO = attrs.field(init=False)
    _writer: pq.ParquetWriter = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = open(os.open(self.path, flags, 0o600), "wb")
        self._writer = pq.ParquetWriter(self._file, self.schema, compression="zstd")

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows.

        Raises: OSError.
        """
        self._writer.write_batch(batch)
        self.count += len(batch)

    def close(self) -> None:
        """Complete it.

        Raises: OSError.
        """
        self._writer.close()
        self._file.close()

    def abandon(self) -> None:
        """Close and remove the file after an error."""
        with contextlib.suppress(OSError, pa.ArrowException):  # the first error was raised already
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


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
        columns += [attrs.evolve(each, get=recording) for each in chosen("exchanges", [RECORDING])]
    file = ParquetFile(path, schema_of(columns))
    try:
        for batch in item_columns.batches(exchanges, columns, {}):
            file.write(batch)
        file.close()
    except BaseException:
        file.abandon()
        raise
    return file.count
