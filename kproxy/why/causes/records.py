"""Causes that lie with records and offsets: sizes, checksums, timestamps, the ends of a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words.failures import WHOLE, failures, place_text
from kproxy.exchange.words.wording import age, count, listed, quoted
from kproxy.protocol import records
from kproxy.protocol.record_batch import Batch
from kproxy.units import format_bytes
from kproxy.why.case import Case, api
from kproxy.why.sentences import NOT_RECORDED

_EARLIEST, _LATEST = -2, -1
_PLACES_MAX = 2
_REFUSED_TOLD = 3


class _Bound(NamedTuple):
    """An end of a partition's log, and the exchange that shows it."""

    offset: int
    shown_by: Exchange


# ── offsets ──────────────────────────────────────────────────────────────────────────────────


def log_range(case: Case) -> Iterator[str]:
    """Yield where the log of a partition began and ended, as the recording shows."""
    for place in case.failure.places[:_PLACES_MAX]:
        yield from _log_range(case, place)


def _log_range(case: Case, place: TopicPartition) -> Iterator[str]:
    text = place_text((place,)) or "the partition"
    yield from _asked(case, place, text)
    starts: list[_Bound] = []
    ends: list[_Bound] = []
    apis = api("Fetch", "ListOffsets", "Produce", "DeleteRecords")
    wanted = matching("topic", place.topic)
    for each in case.others(wanted, apis) if place.topic else ():
        if each.response is None:
            continue
        start, end = _bounds(each, place)
        starts += [] if start is None else [_Bound(start, each)]
        ends += [] if end is None else [_Bound(end, each)]
    for bounds, words in ((starts, "begins at"), (ends, "ends at")):
        near = _nearest(case, bounds)
        if near is None:
            yield f"Where the log of {text} {words.split()[0]} {NOT_RECORDED}."
        else:
            yield f"The log {words} offset {near.offset}, as {case.when(near.shown_by)}, shows."


def _asked(case: Case, place: TopicPartition, text: str) -> Iterator[str]:
    asked = _asked_offset(case.exchange, place)
    if asked is not None:
        yield f"It asks for offset {asked} of {text}."
        return
    session = getattr(case.exchange.request, "session_id", 0)
    last: tuple[int, Exchange] | None = None
    on_connection = matching("connection", str(case.exchange.connection))
    for each in case.before(on_connection, api("Fetch")) if session else ():
        offset = _asked_offset(each, place)
        if offset is not None and session in (each.request.session_id, each.response.session_id):
            last = offset, each
    if last is not None:
        yield f"Its fetch session asks for offset {last[0]} of {text}, since {case.when(last[1])}."


def _nearest(case: Case, bounds: list[_Bound]) -> _Bound | None:
    """Return the last one before, else the first one after."""
    before = [each for each in bounds if each.shown_by.time_ns <= case.exchange.time_ns]
    return before[-1] if before else next(iter(bounds), None)


def _asked_offset(exchange: Exchange, place: TopicPartition) -> int | None:
    if exchange.api != "Fetch" or exchange.request is None:
        return None
    for topic in exchange.request.topics or ():
        name = topic.topic or exchange.topic_names.text(topic.topic_id)
        for each in topic.partitions:
            if (name, each.partition) == place:
                return each.fetch_offset
    return None


def _bounds(each: Exchange, place: TopicPartition) -> tuple[int | None, int | None]:
    """Return the offsets at which a partition's log begins and ends, as an exchange shows."""
    if each.api == "ListOffsets":
        return _listed_offsets(each, place)
    for topic in getattr(each.response, "responses", None) or ():
        name = getattr(topic, "name", "") or getattr(topic, "topic", "")
        if (name or each.topic_names.text(topic.topic_id)) != place.topic:
            continue
        if each.api == "Fetch":
            for one in topic.partitions:
                if one.partition_index == place.partition and not one.error_code:
                    start = one.log_start_offset if one.log_start_offset >= 0 else None
                    return start, one.high_watermark
    if each.api == "DeleteRecords":
        for topic in each.response.topics:
            for one in topic.partitions:
                if (topic.name, one.partition_index) == place and not one.error_code:
                    return one.low_watermark, None
    return None, None


def _listed_offsets(each: Exchange, place: TopicPartition) -> tuple[int | None, int | None]:
    asked = {
        (topic.name, one.partition_index): one.timestamp
        for topic in getattr(each.request, "topics", None) or ()
        for one in topic.partitions
    }
    for topic in each.response.topics:
        for one in topic.partitions:
            if (topic.name, one.partition_index) != place or one.error_code or one.offset < 0:
                continue
            if asked.get(place) == _EARLIEST:
                return one.offset, None
            # For readers of committed records the end is that of the last transaction that ended.
            if asked.get(place) == _LATEST and not each.request.isolation_level:
                return None, one.offset
    return None, None


# ── batches ──────────────────────────────────────────────────────────────────────────────────


def _carried(case: Case) -> Iterator[tuple[Records, list[Batch]]]:
    for each in case.exchange.facts.records:
        if each.produced and (WHOLE in case.failure.places or each.where in case.failure.places):
            yield each, records.batches(each.data)


def sizes(case: Case) -> Iterator[str]:
    """Yield how large the batches are, and the largest that the topic accepted."""
    for each, batches in list(_carried(case))[:_PLACES_MAX]:
        inside = sum(batch.record_count or 0 for batch in batches)
        text = place_text((each.where,))
        held = f" with {count(inside, 'record')}" if inside else ""
        yield f"The batch for {text} has {format_bytes(len(each.data))}{held}."
        largest: tuple[int, Exchange] | None = None
        for other in case.others(matching("topic", each.topic), api("Produce")):
            size = _accepted_bytes(other, each.topic)
            if size and (largest is None or size > largest[0]):
                largest = size, other
        if largest is None:
            yield f"What {each.topic} accepts {NOT_RECORDED}."
        else:
            yield (
                f"The largest batch that {each.topic} accepted in the recording has"
                f" {format_bytes(largest[0])}: {case.when(largest[1])}."
            )


def _accepted_bytes(exchange: Exchange, topic: str) -> int:
    if exchange.response is None:
        return 0
    refused = {place for each in failures(exchange) for place in each.places}
    carried = (each for each in exchange.facts.records if each.topic == topic and each.produced)
    return max((len(each.data) for each in carried if not refused & {WHOLE, each.where}), default=0)


def checksums(case: Case) -> Iterator[str]:
    """Yield whether the checksums of the batches are right, as the client sent them."""
    for each, batches in list(_carried(case))[:_PLACES_MAX]:
        text = place_text((each.where,))
        if not batches:
            yield f"What the client sent for {text} could not be read as batches."
        elif all(batch.crc_ok for batch in batches):
            yield f"The checksum of the batch for {text} is right, as the client sent it."
        else:
            yield f"The checksum of the batch for {text} is wrong already as the client sent it."


def refused_records(case: Case) -> Iterator[str]:
    """Yield which records of a batch the broker refuses, and which have no key."""
    yield from _record_errors(case.exchange)
    for each in case.exchange.facts.records:
        if each.where not in case.failure.places:
            continue
        found = [one for one in case.exchange.records if (one.topic, one.partition) == each.where]
        keyless = sum(one.key is None for one in found)
        if found and keyless:
            yield (
                f"{keyless} of {count(len(found), 'record')} for {place_text((each.where,))} have"
                " no key."
            )


def _record_errors(exchange: Exchange) -> Iterator[str]:
    refused = [
        each
        for topic in getattr(exchange.response, "responses", None) or ()
        for partition in getattr(topic, "partition_responses", ())
        for each in getattr(partition, "record_errors", None) or ()
    ]
    for each in refused[:_REFUSED_TOLD]:
        why = quoted(filter(None, [each.batch_index_error_message]))
        yield f"{': '.join([f'The broker refuses record {each.batch_index} of the batch', *why])}."
    if len(refused) > _REFUSED_TOLD:
        yield f"The broker refuses {count(len(refused) - _REFUSED_TOLD, 'more record')}."


def timestamps(case: Case) -> Iterator[str]:
    """Yield how far the timestamps of the records are from the time of the request."""
    for each, batches in list(_carried(case))[:_PLACES_MAX]:
        times = [batch.max_timestamp for batch in batches if batch.max_timestamp >= 0]
        if times:
            ahead_ms = max(times) - case.exchange.time_ns / 1e6
            side = "after" if ahead_ms > 0 else "before"
            yield (
                f"The latest timestamp for {place_text((each.where,))} is {age(abs(ahead_ms))}"
                f" {side} the arrival of the request."
            )


def compression(case: Case) -> Iterator[str]:
    """Yield the codecs and formats of the batches."""
    found = [batch for _, batches in _carried(case) for batch in batches]
    if found:
        codecs = listed(dict.fromkeys(batch.compression for batch in found))
        formats = listed(dict.fromkeys(f"magic {batch.magic}" for batch in found))
        yield f"Its batches are of {formats}, compression {codecs}."
