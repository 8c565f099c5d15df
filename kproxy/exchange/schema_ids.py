"""The schemas that the records of an exchange name, without making the records.

    Exchange ─▶ its batches ─▶ the first bytes of keys and values, headers ─▶ SchemaId, SchemaUse

A batch that was seen before is passed over: what one client produces, others fetch. So are Kafka's
own topics, whose records may begin as one that names a schema does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import attrs

from kproxy.exchange import topic_records
from kproxy.exchange.body_facts import Records
from kproxy.exchange.exchange import Exchange
from kproxy.wire.payloads.framing import HEADERS, ID_END, framed, may_be_number
from kproxy.wire.payloads.internal import TOPICS
from kproxy.wire.payloads.schemas import SchemaId
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record, read_records

_SEEN_MAX = 100_000


class SchemaUse(NamedTuple):
    """The part of a topic's records in which an id was found."""

    topic: str
    part: str
    """key or value."""
    certain: bool
    """False where the bytes may as well be a number of eight bytes."""


@attrs.define(eq=False)
class SchemaIds:
    """Finds the schemas that records name."""

    _seen: set[tuple[str, int, int]] = attrs.field(factory=set, init=False)
    """Batches that were read: topic, checksum and size."""

    def of(self, exchange: Exchange) -> Iterator[tuple[SchemaId, SchemaUse]]:
        """Yield the ids in the records of an exchange, each once or a few times."""
        found = exchange.facts.records
        allowance = topic_records.allowance_of(topic_records.carried_batches(exchange.facts))
        for each in found:
            if each.topic in TOPICS:
                continue
            for batch in records.batches(each.data):
                if not batch.control and self._is_new(each, batch.crc, len(batch.raw)):
                    yield from _named(each.topic, read_records(batch, allowance)[0])

    def _is_new(self, found: Records, crc: int, size: int) -> bool:
        if len(self._seen) >= _SEEN_MAX:
            self._seen.clear()
        before = len(self._seen)
        self._seen.add((found.topic, crc, size))
        return len(self._seen) > before


def _named(topic: str, given: Iterable[Record]) -> Iterator[tuple[SchemaId, SchemaUse]]:
    """Yield the ids that records name; most of them have the same first bytes."""
    parts: dict[str, set[_Named]] = {"key": set(), "value": set()}
    for each in given:
        headers = tuple([header for header in each.headers if header[0] in _HEADERS])
        parts["key"].add(_head(each.key, headers))
        parts["value"].add(_head(each.value, headers))
    for part, heads in parts.items():
        for head, headers, certain in heads:
            found = framed(part, head, headers)
            if found is not None:
                yield found.schema_id, SchemaUse(topic, part, certain or found.in_header)


_HEADERS = frozenset(HEADERS.values())
_Named = tuple[bytes, tuple[tuple[str, bytes | None], ...], bool]
"""The first bytes of a part, headers that may name its schema, and whether the bytes do if these
do not."""


def _head(data: bytes | None, headers: tuple[tuple[str, bytes | None], ...]) -> _Named:
    if data is None:
        return b"", (), True
    if data[:1] != b"\0":
        return b"", headers, True
    return data[:ID_END], headers, not may_be_number(len(data))
