"""Recorded responses and new ones, compared by what the client would have seen.

::

    recorded response ─ Substitution.translate ─▶ as this cluster would say it ─┐
                                                                             ├─▶ Deviation …
    new response ────────────────────────────────────────────────────────────┘

What varies (`exchange.varying`) is left out, and so is what this cluster has besides: other topics,
more versions. Of errors that pass by themselves, which a client answers by asking again, those of
the recording need not come again. What the recording has blanked out is no difference. Records are
compared one by one, at the offsets that they have now (`Fetched`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs

from kproxy.exchange import embedded, meanings, varying
from kproxy.exchange.entities import TopicNames, own_topic_name, partition_of, topic_of
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.meanings import ERROR, PREDICATES, RECORDS
from kproxy.exchange.routine import depends_on_timing
from kproxy.replay.differences import cut_to_difference
from kproxy.send.substitution import Offsets, Where
from kproxy.wire.protocol import error_name, is_retriable, records, schema
from kproxy.wire.protocol.codes import NONE, REBALANCE_IN_PROGRESS
from kproxy.wire.protocol.record_batch import BATCH_HEADER, Batch, Record
from kproxy.wire.protocol.schema import Field
from kproxy.wire.protocol.select import select_of

_COUNTED = frozenset(("MetadataResponse", "DescribeTopicPartitionsResponse"))
_BROKER_CONFIGS = (4, 8)


class Deviation(NamedTuple):
    """A difference between a recorded response and the new one; equal ones are counted."""

    api: str
    what: str
    """What differs: the topic, the field."""
    recorded: str
    now: str


def passes(api: str, code: int) -> bool:
    """Return whether an error passes by itself, or is part of coming to terms."""
    return is_retriable(code) or depends_on_timing(api, error_name(code))


def errors(body: Any) -> set[int]:
    """Return the codes of the errors in a response."""
    return {code for code in meanings.fields_in_body(type(body), ERROR).values(body) if code}


def failed(body: Any, names: TopicNames, is_kind: Callable[[int], bool]) -> set[Where]:
    """Return the partitions of which a response tells an error of a kind."""
    return {
        (topic_of(within, names), partition_of(within[-1]))
        for _, code, within in select_of(type(body), PREDICATES[ERROR]).found(body)
        if is_kind(code)
    }


def is_to_be_sent_again(then: set[int], new: Any, lacks: Lacks, names: TopicNames) -> bool:
    """Return whether a client would ask again: an error that passes, and the recording, with
    errors of its own, had got beyond it. That of a partition which the cluster does not have does
    not pass."""
    again = failed(new, names, lambda code: code not in then and is_retriable(code))
    return not all(map(lacks, again))


Lacks = Callable[[Where], bool]
"""Tells whether the cluster has not this partition of a topic; −1: not the topic."""


def differences(
    exchange: Exchange, then: Any, now: Any, version: int, lacks: Lacks
) -> Iterator[Deviation]:
    """Yield the differences of a response from the recorded one, which has this cluster's names and
    ids already. What this version does not have is not compared."""
    if any(passes(exchange.api or "", code) for code in errors(then)):
        return  # what would have come without it is not known
    api, fields = exchange.api or "", schema.named(type(then).__name__).fields
    asks_all = api == "Metadata" and not getattr(exchange.request, "topics", None)
    left_out = varying.left_out(type(then).__name__) | {"records"}  # which are compared one by one
    walk = _ResponseWalk(version, left_out, asks_all or api in varying.OF_CLUSTER, lacks)
    for what, *pair in walk.struct(fields, then, now, "", ""):
        yield Deviation(api, what, *cut_to_difference(*map(str, pair)))


_Found = Iterator[tuple[str, Any, Any]]


class _ResponseWalk(NamedTuple):
    """Goes through both responses."""

    version: int
    left_out: frozenset[str]
    errors_only: bool
    lacks: Lacks

    def struct(
        self, fields: tuple[Field, ...], then: Any, now: Any, topic: str, path: str
    ) -> _Found:
        """Yield where two structs, of this topic or of none, differ."""
        is_error = PREDICATES[ERROR]
        if getattr(then, "resource_type", None) in _BROKER_CONFIGS:
            return
        for field in fields:
            if is_error(field, fields) and not field.is_array:
                pair = getattr(then, field.name), getattr(now, field.name)
                if pair[0] != pair[1]:
                    if pair[1] != REBALANCE_IN_PROGRESS or "Heartbeat" not in type(then).__name__:
                        yield path or "error", error_name(pair[0]), error_name(pair[1])
                    return
                if pair[0] != NONE:
                    return
        for field in fields:
            if field.name in self.left_out or self.version not in field.versions:
                continue
            pair = getattr(then, field.name), getattr(now, field.name)
            if field.fields and field.is_array:
                is_counted = type(then).__qualname__.partition(".")[0] in _COUNTED
                yield from self._array(field, *pair, topic, path, is_counted)
            elif field.fields and None not in pair:
                yield from self.struct(field.fields, *pair, topic, path)
            elif not (field.fields or self.errors_only or is_error(field, fields)):
                pair = _plain(field, pair[0]), _plain(field, pair[1])
                if pair[0] != pair[1] and not varying.is_blanked(pair[0]):
                    yield f"{path} {field.name}".strip(), *pair

    def _array(
        self, field: Field, then: Any, now: Any, topic: str, path: str, is_counted: bool
    ) -> _Found:
        then, now = then or (), now or ()
        here = {_key(each): each for each in now}
        for index, each in enumerate(then):
            key, of_topic = _key(each), own_topic_name(each) or topic
            if of_topic and not is_counted and self.lacks((of_topic, partition_of(each))):
                continue
            name = path if key is None else f"{path}[{key}]"
            if not isinstance(key, int) or not path:
                name = f"{path} {'' if key is None else key}".strip()
            found = here.get(key) if key is not None else now[index] if index < len(now) else None
            if found is not None:
                yield from self.struct(field.fields, each, found, of_topic, name)
            elif not self.errors_only:
                yield name, "is there", "is not there"
        if is_counted and field.name == "partitions" and len(then) != len(now):
            yield f"{path} partitions", len(then), len(now)


def _plain(field: Field, value: Any) -> Any:
    """Return a value as it is compared; of an assignment the partitions."""
    if field.name in _EMBEDDED and isinstance(value, bytes):
        if (found := embedded.assignment(value)) is not None:
            return sorted(
                (each.topic, sorted(each.partitions)) for each in found.assigned_partitions
            )
    return sorted(value or ()) if field.is_array else value


def _key(element: Any) -> Any:
    """Return what tells an element of an array from the others."""
    for name in varying.KEYS:
        value = getattr(element, name, None)
        if value not in (None, "", schema.NO_UUID):
            return value
    number = partition_of(element)
    return None if number < 0 else number


_EMBEDDED = ("assignment", "member_assignment")


# ---- records


@attrs.define(eq=False)
class Fetched:
    """The records of a partition that a recorded Fetch has, and those that came of it now: it is
    sent again until they are there."""

    recorded: list[Batch]
    new: dict[int, Batch] = attrs.field(factory=dict, init=False)
    """By the first offset."""
    begin: int = 1 << 63
    end: int = 0
    """The new offsets between which all has come that is there."""
    moves: bool = False
    """The last response had more."""

    def take(self, batches: list[Batch]) -> None:
        """Take the batches of a new response."""
        self.moves = bool(batches) and _last_offset(batches[-1]) >= self.end
        for batch in batches:
            self.new[batch.base_offset] = batch
            self.begin = min(self.begin, batch.base_offset)
            self.end = max(self.end, _last_offset(batch) + 1)

    def is_certain(self, offsets: Offsets) -> bool:
        """Return whether it is known where all of it is now, and nothing is there twice."""
        known = all(offsets.is_known(each.base_offset) for each in self.recorded)
        return known and not any(self._doubled(self._others(offsets), offsets))

    def is_complete(self, offsets: Offsets) -> bool:
        """Return whether all that the recording has could have come."""
        last = max(offsets(edge) for edge in self._edges())
        return self._first(offsets) >= self.begin and self.end > last

    def go_back(self, offsets: Offsets) -> None:
        """Begin at what the recording has, if something of it is before what has come."""
        if (first := self._first(offsets)) < self.begin:
            self.begin = self.end = first

    def _first(self, offsets: Offsets) -> int:
        known = (offsets(edge) for edge in self._edges() if offsets.is_known(edge))
        return min(known, default=self.begin)

    def _edges(self) -> Iterator[int]:
        for each in self.recorded:
            yield from (each.base_offset, _last_offset(each))

    def _others(self, offsets: Offsets) -> list[Batch]:
        return [each for first, each in self.new.items() if not offsets.is_taken(first)]

    def _doubled(self, others: list[Batch], offsets: Offsets) -> Iterator[Batch]:
        """Yield what was produced once, and is there again."""
        there = [(_content(each), each.base_timestamp) for each in others]
        for each in self.recorded if there else ():
            if (_content(each), each.base_timestamp) in there and offsets.is_known(
                each.base_offset
            ):
                yield each

    def differences(self, where: Where, offsets: Offsets) -> Iterator[Deviation]:
        """Yield what the client would have seen otherwise."""
        others = self._others(offsets)
        by_offset: dict[int, Record] | None = None
        lacking: list[int] = []
        name = f"{where[0]}[{where[1]}]"
        for batch in self.recorded:
            same = self.new.get(offsets(batch.base_offset))
            if same is None or _content(same) != _content(batch):
                is_known = offsets.is_known(batch.base_offset)
                alike = (each for each in others if _content(each) == _content(batch))
                same = None if is_known else next(alike, None)
            if same is not None:
                others = [each for each in others if each is not same]
                continue
            if by_offset is None:
                new = self.new.values()
                by_offset = {each.offset: each for one in new for each in one.records}
            for record in batch.records:
                if (now := by_offset.get(offsets(record.offset))) is None:
                    lacking.append(record.offset)
                elif _seen(now) != _seen(record):
                    what = f"{name} record at {record.offset}"
                    pair = cut_to_difference(str(_seen(record)), str(_seen(now)))
                    yield Deviation("Fetch", what, *pair)
        if lacking:
            yield Deviation("Fetch", f"{name} records", f"{len(lacking)} came", "did not come")
        for batch in self._doubled(others, offsets):
            yield Deviation("Fetch", f"{name} records at {batch.base_offset}", "once", "twice")


def _last_offset(batch: Batch) -> int:
    return batch.offset + (batch.last_offset_delta if batch.magic == 2 else 0)


def _content(batch: Batch) -> tuple[int, Any]:
    size = BATCH_HEADER.size
    return batch.attributes, batch.raw[size:] if batch.magic == 2 else batch.raw


def _seen(record: Record) -> tuple[Any, ...]:
    return record.key, record.value, record.headers


def fetched(body: Any, names: Any) -> dict[Where, list[Batch]]:
    """Return the batches of a Fetch response that clients see, by partition: those of transactions
    too, but no markers."""
    found: dict[Where, list[Batch]] = {}
    for _, data, within in select_of(type(body), PREDICATES[RECORDS]).found(body):
        batches = [each for each in records.batches(data) if not each.control]
        if batches:
            found[topic_of(within, names), partition_of(within[-1])] = batches
    return found


# ---- offsets

AS_RECORDED = Offsets()
"""The offsets of a partition of which no pair is known."""


def offsets(body: Any, names: Any) -> dict[Where, int]:
    """Return the first offsets in a Produce response, or the offsets in one of ListOffsets."""
    found = select_of(type(body), _is_told_offset).found(body)
    return {
        (topic_of(within, names), partition_of(within[-1])): value for _, value, within in found
    }


def _is_told_offset(field: Field, beside: tuple[Field, ...]) -> bool:
    return field.name in ("base_offset", "offset") and field.type == "int64"


def produced(body: Any, names: Any) -> dict[Where, int]:
    """Return how many offsets the batches in a Produce request take, by partition."""
    counts: dict[Where, int] = {}
    for _, data, within in select_of(type(body), PREDICATES[RECORDS]).found(body):
        last = (_last_offset(each) - each.offset + 1 for each in records.batches(data))
        counts[topic_of(within, names), partition_of(within[-1])] = sum(last)
    return counts
