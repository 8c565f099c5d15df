"""The record batches that exchanges carry: small bodies side by side, others one by one.

    table of exchanges ─▶ rows of APIs with records ─┬▶ small ─▶ record_bodies ─┬▶ CarriedBatches …
                                                     └▶ body_facts: others ◀─ not simple ┘

Invariant: the results are those of `topic_records.carried_batches` for the decoded bodies. Unneeded
bodies are not opened: the response of a Produce has only offsets, the request of a Fetch nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import attrs

from kproxy.exchange import body_facts, facts, topic_records
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.entries import RAW_SASL
from kproxy.exchange.meanings import ABORTED, OFFSET, RECORDS, Meaning, apis_with
from kproxy.exchange.topic_records import CarriedBatches
from kproxy.protocol import schema as kafka
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored_frames import StoredFrames
from kproxy.tables import record_bodies

_BODIES_MAX = 1024
"""At most this many small bodies are held at once."""
BODIES_MIN = 8
"""Fewer bodies are decoded: that is faster."""
_BODY_BYTES_MAX = 16 << 10
"""Larger bodies are decoded: that takes no longer than reading their records."""


class _BodyRow(NamedTuple):
    """The columns of an exchange that are needed to find its bodies."""

    api_key: int
    api_version: int
    request_flags: int
    response_flags: int
    request_bytes: int
    response_bytes: int
    request_position: int
    response_position: int


_NEEDED = _BodyRow._fields
_WANTED = frozenset({RECORDS, OFFSET, ABORTED})
_Carrying = tuple[int, list[CarriedBatches]]
"""An exchange, by its carrier number, and the batches that it carries."""
_Simple = tuple[bytes, record_bodies.RecordsPlace]
"""A frame, and the place of its records or offset."""


@attrs.frozen(eq=False)
class Bodies:
    """The bodies of one recording."""

    _names: TopicNames
    _frames: StoredFrames
    _offsets: bool
    """True if the offsets of produced records are needed."""
    _bodies_min: int = BODIES_MIN

    def carried(self, exchanges: ExchangeTable, first: int) -> Iterator[_Carrying]:
        """Yield the exchanges of a table that carry records, and their batches. `first` is the
        carrier number of the first row."""
        apis = apis_with(RECORDS)
        columns = [exchanges.column(name).tolist() for name in _NEEDED]
        carriers: list[tuple[int, _BodyRow]] = []
        for carrier, row in enumerate(map(_BodyRow._make, zip(*columns, strict=True)), first):
            if row.api_key in apis and not (row.request_flags | row.response_flags) & RAW_SASL:
                carriers.append((carrier, row))
                if len(carriers) >= _BODIES_MAX:
                    yield from self._of_bodies(carriers)
                    carriers = []
        yield from self._of_bodies(carriers)

    def _of_bodies(self, carriers: Sequence[tuple[int, _BodyRow]]) -> Iterator[_Carrying]:
        rows = [row for _, row in carriers]
        sent = self._simple(rows, kafka.REQUEST, RECORDS)
        fetched = self._simple(rows, kafka.RESPONSE, RECORDS)
        offsets: dict[int, _Simple] = {}
        if self._offsets:
            offsets = self._simple(rows, kafka.RESPONSE, OFFSET)
        for index, (carrier, row) in enumerate(carriers):
            carried = self._quickly(row, sent.get(index), fetched.get(index), offsets.get(index))
            if carried is None:
                carried = self._decoded(row)
            if carried:
                yield carrier, carried

    def _simple(
        self, rows: Sequence[_BodyRow], direction: str, wanted: Meaning
    ) -> dict[int, _Simple]:
        """Return the bodies that can be read without decoding, by their index in `rows`."""
        groups: dict[tuple[int, int], list[tuple[int, bytes]]] = {}
        asks = direction == kafka.REQUEST
        apis = apis_with(RECORDS, kafka.REQUEST if wanted is OFFSET else direction)
        for index, row in enumerate(rows):
            size = row.request_bytes if asks else row.response_bytes
            flags = row.request_flags if asks else row.response_flags
            if row.api_key in apis and 0 < size <= _BODY_BYTES_MAX and facts.is_whole(flags):
                position = row.request_position if asks else row.response_position
                data = self._frames.bytes_at(position)
                if data:
                    groups.setdefault((row.api_key, row.api_version), []).append((index, data))
        found: dict[int, _Simple] = {}
        for (api_key, version), bodies in groups.items():
            shape = record_bodies.shape(api_key, version, direction, wanted)
            if shape is not None and len(bodies) >= self._bodies_min:
                simple = record_bodies.find([data for _, data in bodies], shape)
                for (index, data), each in zip(bodies, simple, strict=True):
                    if each is not None:
                        found[index] = data, each
        return found

    def _quickly(
        self, row: _BodyRow, sent: _Simple | None, fetched: _Simple | None, answer: _Simple | None
    ) -> list[CarriedBatches] | None:
        """Return the batches of simple bodies; None if a body of the exchange is not simple."""
        asks, answers = _carries(row)
        if (asks and sent is None) or (answers and fetched is None):
            return None
        if asks and answer is None and self._offsets and row.response_position:
            return None
        found: list[CarriedBatches] = []
        if sent is not None and (data := _field(sent)):
            where = self._where(sent[1])
            base_offset = None
            if answer is not None and answer[1][:2] == sent[1][:2]:  # of the same partition
                offset = int.from_bytes(_field(answer), "big", signed=True)
                base_offset = offset if offset >= 0 else None
            found.append(CarriedBatches(where, data, True, base_offset, ()))
        if fetched is not None and (data := _field(fetched)):
            found.append(CarriedBatches(self._where(fetched[1]), data, False, None, ()))
        return found

    def _where(self, found: record_bodies.RecordsPlace) -> TopicPartition:
        topic = found.topic
        if isinstance(topic, UUID):
            topic = self._names.text(topic) if topic.int else ""
        return TopicPartition(topic, found.partition)

    def _decoded(self, row: _BodyRow) -> list[CarriedBatches]:
        """Return the batches of any bodies, by decoding them."""
        asks, answers = _carries(row)
        at = self._frames.bytes_at
        request = at(row.request_position) if asks else None
        response = at(row.response_position) if answers or self._offsets else None
        kind, flags = (row.api_key, row.api_version), (row.request_flags, row.response_flags)
        found = body_facts.facts_of_frames(kind, (request, response), flags, self._names, _WANTED)
        return topic_records.carried_batches(found)


def _field(found: _Simple) -> bytes:
    data, where = found
    return data[where.start : where.stop]


def _carries(row: _BodyRow) -> tuple[bool, bool]:
    """Return whether the request may carry records, and whether the response may."""
    asks, answers = apis_with(RECORDS, kafka.REQUEST), apis_with(RECORDS, kafka.RESPONSE)
    return row.api_key in asks, row.api_key in answers
