"""Columns of exchanges whose values come from bodies, for all rows of a table at once.

    ExchangeTable ─▶ frames ─▶ body_facts ─▶ a column of lists

Invariant: a column has the values that `Exchange` gives. Only the parts of bodies that these
columns need are read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pyarrow as pa

from kproxy.exchange import body_facts
from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.entries import NO_API, RAW_SASL
from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.facts import is_changed_by_rule
from kproxy.exchange.fields import BodyFact, Type
from kproxy.exchange.meanings import Meaning
from kproxy.recording.row_table import ExchangeTable
from kproxy.recording.stored_frames import StoredFrames
from kproxy.tables.arrow_types import INT32, OF_FIELDS
from kproxy.tables.exchange_columns import clean
from kproxy.tables.item_columns import array_of

_FRAMES = (
    "api_key", "api_version", "request_flags", "response_flags",
    "request_position", "response_position",
)  # fmt: skip

MEANINGS = {
    name: field.source.meaning
    for name, field in FIELDS.items()
    if isinstance(field.source, BodyFact)
}
"""The meaning of each of these columns, by name."""


def of_table(
    exchanges: ExchangeTable, frames: StoredFrames, topic_names: TopicNames, names: Collection[str]
) -> dict[str, Any]:
    """Return the columns of these names for a table of exchanges."""
    if not names:
        return {}
    wanted = frozenset(MEANINGS[name] for name in names)
    found: dict[str, list[Any]] = {name: [] for name in names}
    adders = [(values.append, operator.attrgetter(name)) for name, values in found.items()]
    for facts in facts_of(exchanges, frames, topic_names, wanted):
        for add, get in adders:
            add(get(facts))
    return {name: _array(values, FIELDS[name].type) for name, values in found.items()}


def facts_of(
    exchanges: ExchangeTable,
    frames: StoredFrames,
    topic_names: TopicNames,
    wanted: frozenset[Meaning] = frozenset(Meaning),
) -> Iterator[BodyFacts | DecodedFacts]:
    """Yield the wanted facts in the bodies of each exchange of a table."""
    columns = [exchanges.column(name).tolist() for name in _FRAMES]
    opened = zip(*(map(frames.bytes_at, each) for each in columns[-2:]), strict=True)
    of_frames, changed = body_facts.facts_of_frames, is_changed_by_rule
    for key, version, asked, answered, _, position, both in zip(*columns, opened, strict=True):
        kind = None if key == NO_API or (asked | answered) & RAW_SASL else (key, version)
        told = frames.sent_at(position) if changed(answered) else None
        yield of_frames(kind, both, (asked, answered), topic_names, wanted, told)


def _array(values: list[Any], kind: Type) -> Any:
    plain, arrow = _PLAIN.get(kind), OF_FIELDS[kind]
    if plain is None:
        return array_of(values, arrow)
    ends, elements = [0], list[Any]()
    for each in values:
        elements += each
        ends.append(len(elements))
    array = pa.array(list(map(plain, elements)), arrow.value_type)
    return pa.ListArray.from_arrays(pa.array(ends, INT32), array).cast(arrow)


def _partition(where: TopicPartition) -> dict[str, Any]:
    return {"topic": clean(where.topic), "partition": where.partition}


_PLAIN: dict[Type, Callable[[Any], Any]] = {Type.TEXTS: clean, Type.PARTITIONS: _partition}
"""Functions that convert an element of a list for Arrow, by type."""
