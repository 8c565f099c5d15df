"""Ways through the bodies of one message in one version: the fields to read, and where they lie.

    Layout, meanings ─▶ spots, in the order of their bytes ─▶ BodyWalk: paths and their kinds

Invariant: there is a walk only where each spot can be understood when it is met: the topic of a
partition stands before it in a struct around it, its number and its error code before what is said
of it. Else there is None, and bodies are decoded.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterator

import attrs

from kproxy.exchange import embedded, meanings
from kproxy.exchange.meanings import (
    ABORTED,
    ERROR,
    ERROR_MESSAGE,
    GROUP,
    NAMES,
    OFFSET,
    PARTITION,
    PREDICATES,
    RECORDS,
    THROTTLE,
    TOPIC,
    TRANSACTIONAL_ID,
    Meaning,
)
from kproxy.protocol import codec, schema
from kproxy.protocol.codec import Locate
from kproxy.protocol.schema import REQUEST, RESPONSE, Field, Layout, Slot
from kproxy.protocol.select import select


class Kind(enum.Enum):
    """The content of a spot."""

    ERROR = enum.auto()
    ERROR_MESSAGE = enum.auto()
    THROTTLE = enum.auto()
    TOPIC_NAME = enum.auto()
    TOPIC_ID = enum.auto()
    NAME_AFTER_ID = enum.auto()
    """A topic's name, after its id in the same struct."""
    ID_AFTER_NAME = enum.auto()
    """A topic's id, after its name in the same struct."""
    TOPICS = enum.auto()
    GROUP = enum.auto()
    GROUPS = enum.auto()
    TRANSACTIONAL_ID = enum.auto()
    TRANSACTIONAL_IDS = enum.auto()
    PARTITION = enum.auto()
    PARTITIONS = enum.auto()
    PARTITION_AHEAD = enum.auto()
    """The partition of the records or the offset that follow it."""
    RECORDS = enum.auto()
    OFFSET = enum.auto()
    ABORTED = enum.auto()

    __hash__ = object.__hash__  # as of Meaning


_SINGLE = {
    ERROR: Kind.ERROR,
    ERROR_MESSAGE: Kind.ERROR_MESSAGE,
    THROTTLE: Kind.THROTTLE,
    TOPIC: Kind.TOPIC_NAME,
    GROUP: Kind.GROUP,
    TRANSACTIONAL_ID: Kind.TRANSACTIONAL_ID,
    PARTITION: Kind.PARTITION,
    RECORDS: Kind.RECORDS,
    OFFSET: Kind.OFFSET,
}
_SEVERAL = {
    TOPIC: Kind.TOPICS,
    GROUP: Kind.GROUPS,
    TRANSACTIONAL_ID: Kind.TRANSACTIONAL_IDS,
    PARTITION: Kind.PARTITIONS,
    ABORTED: Kind.ABORTED,
}
_SECOND_NAMES = {Kind.TOPIC_NAME: Kind.NAME_AFTER_ID, Kind.TOPIC_ID: Kind.ID_AFTER_NAME}
NAMING = frozenset({*_SECOND_NAMES, *_SECOND_NAMES.values()})
"""Kinds that say which topic it is."""
_OF_PARTITION = frozenset({Kind.PARTITION, Kind.PARTITION_AHEAD})
OF_TOPIC = frozenset({*_OF_PARTITION, Kind.PARTITIONS, Kind.RECORDS, Kind.OFFSET})
"""Kinds that need to know the topic."""
_RESPONSE_ONLY = frozenset({ERROR, ERROR_MESSAGE, THROTTLE})
"""Meanings that only responses have."""


@attrs.define(eq=False)
class _Spot:
    """A field that a walk reads."""

    holder: tuple[str, ...]
    """The path of the struct that contains the field."""
    name: str
    kind: Kind
    tagged: bool

    @property
    def path(self) -> str:
        """The dotted path that `codec.locate` takes."""
        return ".".join((*self.holder, self.name))


@attrs.frozen(eq=False)
class NamesBesideIds:
    """Where a body has names of topics and their ids in the same structs, as those of Metadata do.

    Such a body is walked twice: names are learned of all of it before any of its ids is to be
    named, as an id may stand before its name.
    """

    locate: Locate
    """Finds nothing but these names and ids: of each pair the name, then the id."""
    pairs: int


@attrs.frozen(eq=False)
class BodyWalk:
    """A way through the bodies of one message in one version."""

    tagged_header: bool
    """True if tagged fields stand before the body."""
    layout: Layout
    fields: tuple[tuple[str, Kind], ...]
    """The dotted path and the kind of each field to read."""
    names_beside_ids: NamesBesideIds | None
    """None if there are none, or topics are not wanted."""


@functools.cache
def walk_of(
    api_key: int, version: int, direction: str, wanted: frozenset[Meaning]
) -> BodyWalk | None:
    """Make the walk that finds the wanted meanings; None where bodies must be decoded for that."""
    message = schema.message(api_key, direction)
    if message is None or version not in message.versions:
        return None
    by_kind = select(message, meanings.has_kind_field).paths(version)
    if (by_kind and wanted.intersection(NAMES)) or (
        TOPIC in wanted and message.name in embedded.MESSAGES
    ):
        return None
    layout = codec.layout(message, version)
    spots = _with_known_topics(
        list(_spots(layout, message.fields, _needed(wanted, direction), wanted))
    )
    if direction == REQUEST:
        header = codec.request_header_version(api_key, version)
    else:
        header = 1 + codec.response_header_version(api_key, version)
    if spots is None or header == 0:
        return None
    pairs = list(_name_id_pairs(spots))
    paths = tuple(spot.path for pair in pairs for spot in pair)
    beside = NamesBesideIds(codec.locate(message, version, paths), len(pairs)) if pairs else None
    fields = tuple((spot.path, spot.kind) for spot in spots)
    return BodyWalk(header == 2, layout, fields, beside)


def _needed(wanted: frozenset[Meaning], direction: str) -> frozenset[Meaning]:
    """Return the wanted meanings and those that they depend on."""
    needed = set(wanted)
    if wanted & {PARTITION, RECORDS, OFFSET}:
        needed |= {TOPIC, PARTITION}
    if OFFSET in wanted:
        needed.add(ERROR)
    return frozenset(needed if direction == RESPONSE else needed - _RESPONSE_ONLY)


def _spots(
    layout: Layout,
    fields: tuple[Field, ...],
    needed: frozenset[Meaning],
    wanted: frozenset[Meaning],
) -> Iterator[_Spot]:
    """Yield the fields to read, in the order of the bytes."""
    named = False
    for slot in (*layout.slots, *layout.tagged):
        kind = _kind(slot, fields, needed)
        if kind is Kind.PARTITION and PARTITION not in wanted:
            beside = (_kind(each, fields, needed) for each in layout.slots)
            kind = (
                Kind.PARTITION_AHEAD if {Kind.RECORDS, Kind.OFFSET}.intersection(beside) else None
            )
        elif kind is Kind.PARTITIONS and PARTITION not in wanted:
            kind = None
        elif kind in _SECOND_NAMES:
            kind, named = _SECOND_NAMES[kind] if named else kind, True
        if kind is not None:
            yield _Spot(layout.path, slot.name, kind, slot.tag is not None)
        if slot.struct is not None:
            yield from _spots(slot.struct, slot.field.fields, needed, wanted)


def _kind(slot: Slot, beside: tuple[Field, ...], needed: frozenset[Meaning]) -> Kind | None:
    for meaning, kind in (_SEVERAL if slot.is_array else _SINGLE).items():
        if meaning in needed and PREDICATES[meaning](slot.field, beside):
            is_id = kind is Kind.TOPIC_NAME and meanings.is_topic_id(slot.field)
            return Kind.TOPIC_ID if is_id else kind
    return None


def _with_known_topics(spots: list[_Spot]) -> list[_Spot] | None:
    """Leave out partitions that belong to no topic; return None if a spot cannot be understood
    where it stands."""
    kept: list[_Spot] = []
    for index, spot in enumerate(spots):
        if spot.kind in OF_TOPIC:
            within = [
                each for each in spots
                if each.kind in NAMING and each.holder == spot.holder[: len(each.holder)]
            ]  # fmt: skip
            if not within and spot.kind in (Kind.PARTITION, Kind.PARTITIONS):
                continue
            if not _is_topic_known(spots, index, within):
                return None
        kept.append(spot)
    return kept


def _is_topic_known(spots: list[_Spot], index: int, within: list[_Spot]) -> bool:
    """Return whether the names of a spot's topic stand before it, in one struct, and no other names
    do."""
    spot = spots[index]
    before = {id(each) for each in spots[:index]}
    holders = {each.holder for each in within}
    if len(holders) != 1 or any(each.tagged or id(each) not in before for each in within):
        return False
    (holder,) = holders
    around = (each for each in spots if each.holder[: len(holder)] == holder)
    if any(each.kind in NAMING and each.holder != holder for each in around):
        return False
    beside = [each.kind for each in spots[:index] if each.holder == spot.holder]
    if spot.kind is Kind.OFFSET:
        beside = beside[: beside.index(Kind.ERROR)] if Kind.ERROR in beside else []
    told = spot.kind not in (Kind.RECORDS, Kind.OFFSET)
    return told or not _OF_PARTITION.isdisjoint(beside)


def _name_id_pairs(spots: list[_Spot]) -> Iterator[tuple[_Spot, _Spot]]:
    places = {(spot.holder, spot.kind): spot for spot in spots}
    for (holder, kind), spot in places.items():
        if kind is Kind.NAME_AFTER_ID:
            yield spot, places[holder, Kind.TOPIC_ID]
        elif kind is Kind.ID_AFTER_NAME:
            yield places[holder, Kind.TOPIC_NAME], spot
