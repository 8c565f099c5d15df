"""What came of records: written and not refused, consumed and not dropped.

`Exchange.records` has what travelled; here it is what that came to. Over several exchanges a record
is consumed once, however often it was fetched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kproxy.exchange import facts, topic_records
from kproxy.exchange.body_facts import body_facts
from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.entries import SILENCED, WITHHELD
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.protocol import error_code


def consumed(exchanges: Iterable[Exchange], topic: str | None = None) -> Iterator[TopicRecord]:
    """Yield the records that consumers got, of one topic or of all."""
    seen: set[tuple[str, int, int | None]] = set()
    for exchange in exchanges:
        for record in consumed_by(exchange):
            place = record.topic, record.partition, record.offset
            if topic in (None, record.topic) and place not in seen:
                seen.add(place)
                yield record


def records_in(exchange: Exchange, taken: set[TopicPartition]) -> Iterator[TopicRecord]:
    """Yield the records of a Produce to these partitions."""
    for record in exchange.records if taken else ():
        if record.produced and (record.topic, record.partition) in taken:
            yield record


def may_have_written(exchange: Exchange) -> bool:
    """Return whether a Produce was answered, or wants no answer; not if a rule kept it from the
    broker. What was refused of it, `refused` says."""
    if exchange.api != "Produce" or kept(exchange):
        return False
    return exchange.row.response_bytes > 0 or exchange.one_way


def kept(exchange: Exchange) -> bool:
    """Return whether a fault rule kept a request from the broker, or the end of it."""
    return bool(exchange.row.request_flags & (WITHHELD | SILENCED))


def may_have_reached(exchange: Exchange) -> bool:
    """Return whether the broker may have got a request that has no answer: not if it waited in
    kproxy, or a rule kept it."""
    waited = exchange.unanswered
    return not kept(exchange) and (waited is None or waited.waited_for != "proxy")


APPENDED = frozenset(map(error_code, ("REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")))
"""Errors with which a leader says that other replicas do not have yet what it has written: with an
offset, that is in its log."""


def refused(exchange: Exchange) -> set[TopicPartition]:
    """Return the partitions of a Produce that the broker refused."""
    results = exchange.facts.results
    return {each.where for each in results if is_refusal(each.error_code, each.offset)}


def is_refusal(error_code: int, offset: int) -> bool:
    """Return whether the answer for a partition says that nothing was written to it."""
    return error_code != 0 and not (error_code in APPENDED and offset >= 0)


def carried_by(exchange: Exchange) -> set[TopicPartition]:
    """Return the partitions whose records an exchange wrote, or brought to its client."""
    carried = {each.where for each in exchange.facts.records}
    if not carried:
        return carried
    if exchange.api == "Produce":
        return carried - refused(exchange) if may_have_written(exchange) else set()
    lost = exchange.may_be_lost or exchange.response_told is not None
    return set() if lost else carried - {e.where for e in exchange.facts.results if e.error_code}


def consumed_by(exchange: Exchange) -> Iterator[TopicRecord]:
    """Yield the records of a Fetch from the requested offset on, without aborted ones."""
    return (record for record in fetched_by(exchange) if not record.aborted)


def fetched_by(exchange: Exchange) -> Iterator[TopicRecord]:
    """Yield the records of a Fetch from the requested offset on, with those of aborted
    transactions, which consumers drop."""
    if exchange.api != "Fetch" or exchange.response is None:
        return
    first = _fetch_offsets(exchange)
    for record in _received(exchange):
        if record.produced or record.offset is None:
            continue
        # A batch comes whole, also where the consumer has the beginning of it.
        if record.offset >= first.get((record.topic, record.partition), 0):
            yield record


def _received(exchange: Exchange) -> list[TopicRecord]:
    """Return the records in a response as the client got it: a fault rule may have held it back,
    cut it off, or put something else in its place."""
    if exchange.may_be_lost:
        return []
    row = exchange.row
    if not row.fault_ids:
        return exchange.records
    sent = exchange.response_sent
    if row.response_sent_ns and sent in (None, exchange.response_frame):
        return exchange.records
    if not row.response_sent_ns or sent is None:
        return []
    response, _ = facts.response_body(sent, 0, exchange.api_key, exchange.api_version)
    told = body_facts(exchange.request, response, exchange.topic_names)
    with exchange.topic_names.unpacking.of(exchange) as allowance:
        return topic_records.read(told, exchange.topic_names.schemas, allowance)


def _fetch_offsets(exchange: Exchange) -> dict[tuple[str, int], int]:
    """Return the offsets that a Fetch asks for; a request in a session names only changed
    partitions."""
    names = exchange.topic_names
    return {
        (each.topic or names.text(each.topic_id), one.partition): one.fetch_offset
        for each in (exchange.request.topics if exchange.request is not None else ())
        for one in each.partitions
    }
