"""Causes that lie with producers: epochs, sequence numbers, transactions."""

from __future__ import annotations

from collections.abc import Iterator

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.words.failures import WHOLE, place_text
from kproxy.exchange.words.wording import age, listed
from kproxy.history.events import events
from kproxy.history.producers import ProducerState, SequencedBatch
from kproxy.history.ref import Ref
from kproxy.history.rows import Appended, Ended, Row
from kproxy.history.transactions import OPEN, Grant, TransactionalId, producer_of
from kproxy.look.why.case import Case
from kproxy.look.why.sentences import NOT_RECORDED, client, named

_PLACES_MAX = 2
_LOST_TOLD = 3
_HOLDERS_TOLD = 2


def _rows(case: Case) -> Iterator[Row]:
    """Yield the rows of a failed request, for what failed first if it is a partition."""
    place = case.failure.places[0]
    for row in events(case.exchange):
        if place in (WHOLE, getattr(row, "where", place)):
            yield row


# ── epochs ───────────────────────────────────────────────────────────────────────────────────


def taken_over(case: Case) -> Iterator[str]:
    """Yield who has begun to use a transactional id after this producer had."""
    row = next(_rows(case), None)
    producer = None if row is None else producer_of(row)
    if row is None or producer is None:
        yield f"Which producer sent it {NOT_RECORDED}."
        return
    name = getattr(row, "transactional_id", "")
    if not name:
        yield (
            f"The request has epoch {producer[1]} of producer id {producer[0]}; who raised it"
            f" {NOT_RECORDED}."
        )
        return
    found = case.history.transactions.ids.get(name) or TransactionalId(name)
    begun = [each for each in found.grants if each.ref.api == "InitProducerId"]
    own = next((each for each in reversed(begun) if _is_of(each, producer)), None)
    later = begun if own is None else begun[begun.index(own) + 1 :]
    if own is None:
        later = [each for each in later if each.producer[0] == producer[0]]
    if later:
        yield _taker(case, name, producer, later[0])
        if more := [f"#{each.ref.number}" for each in later[1:]]:
            yield f"It was taken again with InitProducerId {listed(more)}."
    elif own is not None and found.asking is not None:
        yield (
            f"{case.when(found.asking)}, asked for transactional id {name}: {client(found.asking)};"
            " the coordinator may have fenced this producer for it."
        )
    else:
        yield from _timed_out(case, found, own)


def _is_of(grant: Grant, producer: tuple[int, int]) -> bool:
    """Return whether a producer has its epoch by a grant, or raised that of a grant itself."""
    return grant.producer[0] == producer[0] and grant.producer[1] <= producer[1]


def _taker(case: Case, name: str, producer: tuple[int, int], taker: Grant) -> str:
    same = taker.ref.connection == case.exchange.connection
    whose = " It is on the connection of this request." if same else ""
    return (
        f"{case.when(taker.ref)}, took transactional id {name}: {client(taker.ref)} got epoch"
        f" {taker.producer[1]} of producer id {taker.producer[0]}; this request has epoch"
        f" {producer[1]} of producer id {producer[0]}.{whose}"
    )


def _timed_out(case: Case, found: TransactionalId, own: Grant | None) -> Iterator[str]:
    """Yield that a transaction was open for longer than its timeout, if it was."""
    begun = None if found.open is None else found.open.began
    if own is not None and begun is not None and begun.time_ns >= own.ref.time_ns:
        if (case.exchange.time_ns - begun.time_ns) / 1e6 > own.timeout_ms > 0:
            yield (
                f"The transaction began with {case.when(begun)}; its timeout is"
                f" {age(own.timeout_ms)} ({named(own.ref)}). The coordinator aborts such"
                " transactions, and raises the epoch."
            )
            return
    yield (
        f"Who raised the epoch of transactional id {found.name} {NOT_RECORDED}: another producer"
        " that began with it, or the coordinator, which does so when a transaction is open"
        " for longer than its timeout."
    )


# ── sequence numbers ─────────────────────────────────────────────────────────────────────────


def _batches(case: Case) -> Iterator[tuple[TopicPartition, SequencedBatch, int, ProducerState]]:
    """Yield each failed batch of an idempotent producer: where, the batch, the producer's id, and
    what the history has of that producer there."""
    batches, ref = case.history.transactions.batches, Ref.of(case.exchange)
    for row in events(case.exchange):
        places = case.failure.places[:_PLACES_MAX]
        if isinstance(row, Appended) and (row.where in places or WHOLE in places):
            for producer_id, epoch, first, records in row.sequences:
                batch = SequencedBatch(epoch, first, records, ref, row.error)
                yield row.where, batch, producer_id, batches.of(row.where, producer_id)


def last_sequence(case: Case) -> Iterator[str]:
    """Yield which batch of the producer a partition accepted last."""
    for where, batch, producer_id, of_producer in _batches(case):
        place, last = place_text((where,)), of_producer.last
        producer = f"producer id {producer_id}"
        if last is None or last.epoch > batch.epoch:
            yield (
                f"The recording has no earlier batch of {producer} that {place} accepted; this one"
                f" begins with sequence {batch.first} of epoch {batch.epoch}."
            )
            continue
        yield (
            f"The last batch of {producer} that {place} accepted before is that of"
            f" {case.when(last.ref)}: sequences {last.first} to {last.last} of epoch {last.epoch}."
        )
        if case.failure.error == "OUT_OF_ORDER_SEQUENCE_NUMBER":
            yield _due(last, batch)


def _due(last: SequencedBatch, batch: SequencedBatch) -> str:
    """Return which sequence number was due after the last batch."""
    due = last.following if last.epoch == batch.epoch else 0
    if due == batch.first:
        return "This batch follows that one, as far as the recording shows."
    return f"Sequence {due} was due; this batch begins with {batch.first}."


def lost_before(case: Case) -> Iterator[str]:
    """Yield the batches before a failed one that came to nothing; some are read behind it."""
    for _, batch, _, of_producer in _batches(case):
        until_ns = case.exchange.time_ns
        before = [each[:2] for each in of_producer.accepted if each.ref.time_ns < until_ns]
        if not before and of_producer.is_full:
            continue
        last = max(before, default=(-1, -1))
        lost = [
            each
            for each in of_producer.lost
            if each.ref.time_ns <= until_ns and last < each[:2] != batch[:2]
        ]
        for each in lost[:_LOST_TOLD]:
            how = f"failed with {each.error}" if each.error else "has no response"
            yield f"{named(each.ref)}, sequence {each.first}, {how}."


def first_sent(case: Case) -> Iterator[str]:
    """Yield where the same batch was sent before."""
    for where, batch, _, of_producer in _batches(case):
        same = [
            each.ref
            for each in (*of_producer.accepted, *of_producer.lost)
            if each[:2] == batch[:2] and each.ref.number < case.exchange.number
        ]
        if same:
            first = min(same, key=lambda ref: ref.number)
            yield f"{case.when(first)}, has the same batch for {place_text((where,))}."
        else:
            yield f"Where the batch was sent before {NOT_RECORDED}."


# ── transactions ─────────────────────────────────────────────────────────────────────────────


def transaction_before(case: Case) -> Iterator[str]:
    """Yield the last requests of the transactional id before this one."""
    for name in case.exchange.transactional_ids[:1]:
        found = case.history.transactions.ids.get(name)
        if found is None or not found.requests:
            yield f"What was asked of transactional id {name} before {NOT_RECORDED}."
            return
        said = [_state(*each) for each in found.requests]
        yield f"Before it, of transactional id {name}: {listed(said, len(said))}."


def _state(ref: Ref, row: Row) -> str:
    how = f" ({'commit' if row.committed else 'abort'})" if isinstance(row, Ended) else ""
    return f"{named(ref)}{how}{f' → {listed(ref.errors)}' if ref.errors else ''}"


def open_transactions(case: Case) -> Iterator[str]:
    """Yield the transactions that hold offsets of a group and have not ended."""
    group = case.exchange.groups[0] if case.exchange.groups else ""
    held = [
        (each.transactional_id, each.held_by[group])
        for each in case.history.transactions.latest()
        if each.end == OPEN and group in each.held_by
    ]
    if not held:
        yield f"Which transaction holds the offsets {NOT_RECORDED}."
    for name, by in held[:_HOLDERS_TOLD]:
        yield f"{case.when(by)}, holds offsets for transaction {name}, which has not ended."


def acks(case: Case) -> Iterator[str]:
    """Yield the acknowledgements and the time that a producer asks for."""
    request = case.exchange.request
    if case.exchange.api != "Produce" or request is None:
        return
    wanted = "all in-sync replicas" if request.acks == -1 else f"acks={request.acks}"
    yield f"It waits for {wanted}, for {age(request.timeout_ms)} at most (timeout_ms)."
    for row in _rows(case):
        if isinstance(row, Appended) and row.error and row.offset is not None:
            where = f"{row.where.topic}[{row.where.partition}]@{row.offset}"
            yield f"The records were written all the same, from {where} on: the response says so."
