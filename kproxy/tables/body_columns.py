"""Columns of exchanges that their bodies tell, out of the recording's own table.

    ExchangeTable ─▶ frames ─▶ body_facts ─▶ a column of lists

Invariant: a column has the values that `Exchange` gives. Of bodies nothing is looked at but what
these columns are about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa

from kproxy.exchange import body_facts
from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.entries import NO_API, RAW_SASL
from kproxy.exchange.meanings import (
    ERROR,
    ERROR_MESSAGE,
    GROUP,
    PARTITION,
    TOPIC,
    TRANSACTIONAL_ID,
    Meaning,
)
from kproxy.recording.exchanges import StoredFrames
from kproxy.recording.tables import ExchangeTable
from kproxy.tables.exchange_columns import clean

_TEXTS = pa.list_(pa.string())
PARTITIONS_TYPE = pa.list_(pa.struct([("topic", pa.string()), ("partition", pa.int32())]))
_FRAMES = (
    "api_key", "api_version", "request_flags", "response_flags",
    "request_position", "response_position",
)  # fmt: skip


@attrs.frozen
class _Column:
    """One of these columns."""

    meaning: Meaning
    get: Callable[[Any], Sequence[Any]]
    type: pa.DataType = _TEXTS
    plain: Callable[[Any], Any] = clean
    """Makes an element what Arrow takes."""


def _partition(where: TopicPartition) -> dict[str, Any]:
    return {"topic": clean(where.topic), "partition": where.partition}


COLUMNS = {
    "topics": _Column(TOPIC, lambda facts: facts.topics),
    "partitions": _Column(PARTITION, lambda facts: facts.partitions, PARTITIONS_TYPE, _partition),
    "groups": _Column(GROUP, lambda facts: facts.groups),
    "transactional_ids": _Column(TRANSACTIONAL_ID, lambda facts: facts.transactional_ids),
    "errors": _Column(ERROR, lambda facts: facts.errors),
    "error_messages": _Column(ERROR_MESSAGE, lambda facts: facts.error_messages),
}


def of_table(
    exchanges: ExchangeTable, frames: StoredFrames, topic_names: TopicNames, names: Collection[str]
) -> dict[str, Any]:
    """Return the columns of these names of a table of exchanges."""
    if not names:
        return {}
    columns = {name: COLUMNS[name] for name in names}
    wanted = frozenset(column.meaning for column in columns.values())
    found: dict[str, list[Sequence[Any]]] = {name: [] for name in columns}
    adders = [(found[name].append, column.get) for name, column in columns.items()]
    for facts in _facts(exchanges, frames, topic_names, wanted):
        for add, get in adders:
            add(get(facts))
    return {name: _array(found[name], column) for name, column in columns.items()}


def _facts(
    exchanges: ExchangeTable,
    frames: StoredFrames,
    topic_names: TopicNames,
    wanted: frozenset[Meaning],
) -> Iterator[BodyFacts | DecodedFacts]:
    columns = (exchanges.column(name).tolist() for name in _FRAMES)
    at, of_frames = frames.bytes_at, body_facts.of_frames
    for key, version, asked, answered, request, response in zip(*columns, strict=True):
        kind = None if key == NO_API or (asked | answered) & RAW_SASL else (key, version)
        both = at(request), at(response)
        yield of_frames(kind, both, (asked, answered), topic_names, wanted)


def _array(values: list[Sequence[Any]], column: _Column) -> Any:
    ends, elements = [0], list[Any]()
    for each in values:
        elements += each
        ends.append(len(elements))
    plain = pa.array(list(map(column.plain, elements)), column.type.value_type)
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), plain).cast(column.type)
