"""Messages to the rows of tables.

message ─▶ FrameTable ─▶ Frame …          message ─▶ ExchangeTable ─▶ ExchangeRow …
"""

from __future__ import annotations

import copy
import functools
import itertools
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    FRAGMENT,
    UNKNOWN_NS,
    ExchangeRow,
    Frame,
    Position,
    Side,
    Splice,
)
from kproxy.recording.layout import (
    FRAME_HEAD_VALUES,
    RESPONSE_HEAD_VALUES,
    RUN_INTEGERS,
    RUN_LISTS,
    Channel,
)
from kproxy.recording.other_columns import OWN, TableColumns, Values
from kproxy.recording.splices import unpack_splices

_RUNS_KEPT = 64
_SIDES = (Side.CLIENT, Side.BROKER)
_REQUEST_START = struct.Struct(">ihhi")
_RESPONSE_START = struct.Struct(">ii")


class FrameTable:
    """The frames of one batch.

    Raises: ValueError, when the message is not such a table; so do its methods.
    """

    channel = Channel.FRAMES

    def __init__(self, message: memoryview, columns: TableColumns = OWN[Channel.FRAMES]) -> None:
        self._columns = dict(columns.columns(message))
        self._integers = list(self._columns.values())[: len(RUN_INTEGERS)]
        self._unknown = functools.partial(columns.unknown, message)
        self.data = self._columns["data"]
        """The bytes of all frames."""
        self._runs: dict[int, list[Frame]] = {}
        self._starts: dict[int, list[int]] = {}

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._integers[0])

    def column(self, name: str) -> memoryview:
        """Return a column: integers, or bytes ("data", "splices.replacement"); "x[]" are the
        offsets that divide a list "x"."""
        return self._columns[name]

    @functools.cached_property
    def unknown(self) -> list[Values]:
        """The values of each row in columns that are not ours; empty if there are none."""
        return self._unknown()

    def run(self, row: int) -> list[Frame]:
        """Return the frames of a run; the last few runs are cached."""
        frames = self._runs.get(row)
        if frames is None:
            frames = self._runs[row] = self._run(row)
            if len(self._runs) > _RUNS_KEPT:
                self._runs.pop(next(iter(self._runs)))
        return frames

    def whole(self, row: int, nth: int) -> bytes | None:
        """Return the bytes of a frame, quickly; None for one in pieces, or where the table is
        wrong."""
        singles = self.singles
        if row >= len(singles):
            return None
        single = singles[row]
        if single is not None:
            return None if nth else self.data[single[0] : single[1]].tobytes()
        if self.column("flags")[row] & FRAGMENT:
            return None
        starts = self._starts.get(row)
        if starts is None:
            starts = self._run_starts(row)
        if nth >= len(starts) - 1:
            return None
        return self.data[starts[nth] : starts[nth + 1]].tobytes()

    def piece(self, row: int) -> memoryview:
        """Return the bytes of a piece; empty where the table is wrong."""
        start, end = self._ends["data"][row : row + 2] if row < len(self) else (0, 0)
        return self.data[start:end]

    @functools.cached_property
    def singles(self) -> list[tuple[int, int] | None]:
        """The start and the end in `data` of each run that is one whole frame, as most are; None
        for any other."""
        data, sizes = self._ends["data"], self._ends["sizes"]
        ends = zip(data, data[1:], sizes, sizes[1:], strict=False)
        return [
            None if flags & FRAGMENT or last > first else (start, end)
            for flags, (start, end, first, last) in zip(self.column("flags"), ends, strict=False)
        ]

    def _run_starts(self, row: int) -> list[int]:
        """Return the starts of a run's frames in the column of data, and the end of the last; empty
        where the table is wrong. The last few runs are cached."""
        start, end = self._ends["data"][row : row + 2]
        first, last = self._ends["sizes"][row : row + 2]
        sizes = self.column("sizes")[first:last].tolist()
        starts = list(itertools.accumulate(sizes, initial=start))
        if min(sizes) < 0 or starts[-1] != end:
            starts = []
        self._starts[row] = starts
        if len(self._starts) > _RUNS_KEPT:
            self._starts.pop(next(iter(self._starts)))
        return starts

    def whole_bytes(self, row: int) -> int | None:
        """Return the whole size of a frame in pieces that ends in a row; None if it is not in
        pieces."""
        if not 0 <= row < len(self) or not self.column("flags")[row] & FRAGMENT:
            return None
        heads = self._list("heads", row)
        return heads[4] if len(heads) == FRAME_HEAD_VALUES else -1

    @functools.cached_property
    def _ends(self) -> dict[str, list[int]]:
        """The starts and ends of the lists of all rows."""
        return {name: self.column(f"{name}[]").tolist() for name in RUN_LISTS}

    def _run(self, row: int) -> list[Frame]:
        if not 0 <= row < len(self):
            raise ValueError(f"it has no run {row}")
        ends = self._ends
        side = self.column("side")[row]
        if side not in (0, 1):
            raise ValueError("it has a frame of neither client nor broker")
        start, end = ends["data"][row : row + 2]
        first, last = ends["sizes"][row : row + 2]
        sizes = self.column("sizes")[first:last].tolist() if last > first else [end - start]
        if min(sizes) < 0 or sum(sizes) != end - start:
            raise ValueError("it has a run whose sizes are not those of its data")
        data = bytes(self.column("data")[start:end])
        first, last = ends["heads"][row : row + 2]
        heads = self.column("heads")[first:last].tolist()
        if len(heads) == FRAME_HEAD_VALUES and len(sizes) == 1:
            number, api_key, api_version, correlation_id, frame_bytes, _ = heads
            found: Iterable[_Head] = [(number, api_key, api_version, correlation_id, frame_bytes)]
        elif side == Side.CLIENT and not heads:
            found = self._request_heads(row, data, sizes)
        elif side == Side.BROKER and len(heads) == RESPONSE_HEAD_VALUES * len(sizes):
            found = _response_heads(data, sizes, heads)
        else:
            raise ValueError("it has a run that has not as many heads as frames")
        return self._frames(row, _SIDES[side], data, sizes, found)

    def _frames(
        self, row: int, side: Side, data: bytes, sizes: list[int], heads: Iterable[_Head]
    ) -> list[Frame]:
        received_ns, sent_ns, _, connection, flags, _, _ = [
            column[row] for column in self._integers
        ]
        start, end = self._ends["splices"][row : row + 2]
        splices: tuple[Splice, ...] = ()
        if end > start:
            splices = tuple(unpack_splices(bytes(self.column("splices")[start:end])))
        frames: list[Frame] = []
        at = 0
        for size, head in zip(sizes, heads, strict=True):
            number, api_key, api_version, correlation_id, frame_bytes = head
            frames.append(
                Frame(
                    side, connection, number, api_key, api_version, correlation_id, received_ns,
                    [data[at : at + size]] if size else [], frame_bytes, flags, sent_ns, 0, 0, 0,
                    ERROR_NOT_LOOKED, (), splices, fault_ns=UNKNOWN_NS,
                )
            )  # fmt: skip
            at += size
        return frames

    def _request_heads(self, row: int, data: bytes, sizes: list[int]) -> Iterator[_Head]:
        """Yield the values in the headers of plain requests."""
        number, at = self.column("number")[row], 0
        for size in sizes:
            if size < _REQUEST_START.size:
                raise ValueError("it has a request that is shorter than its header")
            _, api_key, api_version, correlation_id = _REQUEST_START.unpack_from(data, at)
            yield number, api_key, api_version, correlation_id, size
            number += 1
            at += size

    def _list(self, name: str, row: int) -> memoryview:
        start, end = self.column(f"{name}[]")[row : row + 2]
        return self.column(name)[start:end]

    def numbers(self) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the side of each run and the numbers of its frames."""
        sizes, heads = self.column("sizes[]").tolist(), self.column("heads[]").tolist()
        values = self.column("heads")
        for row, (side, first) in enumerate(
            zip(self.column("side"), self.column("number"), strict=True)
        ):
            count = sizes[row + 1] - sizes[row] or 1
            start, end = heads[row], heads[row + 1]
            if side == Side.BROKER and end - start == RESPONSE_HEAD_VALUES * count:
                yield side, values[start:end:RESPONSE_HEAD_VALUES].tolist()
            else:
                yield side, range(first, first + count)

    def previous_piece(self, row: int) -> Position | None:
        """Return the position of the piece before the one in a row."""
        if not 0 <= row < len(self):
            return None
        heads = self._list("heads", row)
        return Position.of(heads[5]) if len(heads) == FRAME_HEAD_VALUES else None


_Head = tuple[int, int, int, int, int]
"""Number, API key and version, correlation id, and size of a frame."""


def _response_heads(data: bytes, sizes: list[int], heads: list[int]) -> Iterator[_Head]:
    at = 0
    for size, number, api in zip(sizes, heads[::2], heads[1::2], strict=True):
        if size < _RESPONSE_START.size:
            raise ValueError("it has a response that is shorter than its header")
        _, correlation_id = _RESPONSE_START.unpack_from(data, at)
        api_version = (api & 0xFFFF ^ 0x8000) - 0x8000
        yield number, api >> 16, api_version, correlation_id, size
        at += size


class ExchangeTable:
    """The exchanges of one batch.

    Raises: ValueError, when the message is not such a table.
    """

    channel = Channel.EXCHANGES

    def __init__(self, message: memoryview, columns: TableColumns = OWN[Channel.EXCHANGES]) -> None:
        self._columns = columns.columns(message)
        self._row_count = len(self._columns["number"])
        self._unknown = functools.partial(columns.unknown, message)

    def __len__(self) -> int:
        return self._row_count

    def chosen(self, places: Sequence[int]) -> ExchangeTable:
        """Return a table of the rows at these places alone."""
        if len(places) == len(self):
            return self
        *integers, ends, fault_ids = self._columns.values()
        lists = [fault_ids[ends[at] : ends[at + 1]].tolist() for at in places]
        values = [
            *([column[at] for at in places] for column in integers),
            list(itertools.accumulate(map(len, lists), initial=0)),
            list(itertools.chain.from_iterable(lists)),
        ]
        table = copy.copy(self)
        table._row_count = len(places)
        table._columns = {
            name: memoryview(array(cast(Any, column.format), each))
            for (name, column), each in zip(self._columns.items(), values, strict=True)
        }
        table._unknown = lambda: [found[at] for at in places] if (found := self.unknown) else []
        return table

    def column(self, name: str) -> memoryview:
        """Return a column, named as in `ExchangeRow`; "fault_ids[]" are offsets into these."""
        return self._columns[name]

    @property
    def unknown(self) -> list[Values]:
        """The values of each row in columns that are not ours; empty if there are none."""
        return self._unknown()

    def rows(self) -> Iterator[ExchangeRow]:
        """Yield the rows."""
        *integers, ends, fault_ids = (column.tolist() for column in self._columns.values())
        lists: Iterable[Sequence[int]] = itertools.repeat(())
        if fault_ids:
            lists = (fault_ids[start:end] for start, end in itertools.pairwise(ends))
        return map(ExchangeRow._make, zip(*integers, lists, strict=False))

    def row(self, index: int) -> ExchangeRow:
        """Return one row."""
        *integers, ends, fault_ids = self._columns.values()
        faults = fault_ids[ends[index] : ends[index + 1]].tolist()
        return ExchangeRow._make([*(column[index] for column in integers), faults])
