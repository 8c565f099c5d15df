"""Parquet files, written as record batches come.

Invariant: a file is for its owner only, and never one that was there before.
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
    """How many rows it has so far."""
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
        """Let go of it after something went wrong, and remove it."""
        with contextlib.suppress(OSError, pa.ArrowException):  # that was told already
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


_WIDE = ("api_key", "api_version")
"""Exports have had 32 bits for them from the first."""


def write_exchanges(
    exchanges: Iterable[Exchange],
    names: Iterable[str],
    path: Path,
    recording: Callable[[Exchange], str | None] | None = None,
) -> int:
    """Write columns of exchanges to a new file; return how many exchanges these are. `recording`
    says of which recording one is, for a column of that.

    Raises: OSError, and what `exchanges` raises: then there is no file.
    """
    columns = [
        attrs.evolve(each, type=INT32) if each.name in _WIDE else each
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
