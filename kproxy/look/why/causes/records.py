"""Causes that lie with records and offsets: sizes, checksums, timestamps, the ends of a log."""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.body_facts import Records
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.failures import WHOLE, place_text
from kproxy.exchange.words.wording import age, count, listed, quoted
from kproxy.history.events import events
from kproxy.history.logs import LogState
from kproxy.history.rows import FetchPosition
from kproxy.look.why.case import Case
from kproxy.look.why.sentences import NOT_RECORDED
from kproxy.units import format_bytes
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Batch

_PLACES_MAX = 2
_REFUSED_TOLD = 3


# ── offsets ──────────────────────────────────────────────────────────────────────────────────


def log_range(case: Case) -> Iterator[str]:
    """Yield what was asked for, and where the log began and ended, as far as that was shown."""
    for place in case.failure.places[:_PLACES_MAX]:
        yield from _asked(case, place)
        yield from _bounds(case, place, is_before=True)


def _asked(case: Case, place: TopicPartition) -> Iterator[str]:
    text = place_text((place,)) or "the partition"
    for row in events(case.exchange):
        if isinstance(row, FetchPosition) and row.where == place:
            yield f"It asks for offset {row.offset} of {text}."
            return
    found = case.history.reads.position(case.exchange.connection, place)
    if found is not None and getattr(case.exchange.request, "session_id", 0):
        offset, ref = found
        yield f"Its fetch session asks for offset {offset} of {text}, since {case.when(ref)}."


def log_range_later(case: Case) -> Iterator[str]:
    """Yield what only later exchanges show of it."""
    for place in case.failure.places[:_PLACES_MAX]:
        yield from _bounds(case, place, is_before=False)


def _bounds(case: Case, place: TopicPartition, *, is_before: bool) -> Iterator[str]:
    log = case.history.logs.logs.get(place, LogState(place))
    for bounds, words in ((log.starts, "begins"), (log.ends, "ends")):
        if (bounds.until(case.exchange.completed_ns) is not None) != is_before:
            continue
        near = case.told_nearest(bounds)
        if near is None:
            text = place_text((place,)) or "the partition"
            yield f"Where the log of {text} {words} {NOT_RECORDED}."
        else:
            ref, offset = near
            yield f"The log {words} at offset {offset}, as {case.when(ref)}, shows."


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
        topic = case.history.logs.topics.get(each.topic)
        if topic is None or topic.largest is None:
            yield f"What {each.topic} accepts {NOT_RECORDED}."
        else:
            size_bytes, ref = topic.largest
            yield (
                f"The largest batch that {each.topic} accepted in the recording has"
                f" {format_bytes(size_bytes)}: {case.when(ref)}."
            )


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
