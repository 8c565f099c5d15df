"""Causes that lie with producers: epochs, sequence numbers, transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.topic_records import batch_heads
from kproxy.exchange.words.failures import WHOLE, failures, place_text
from kproxy.exchange.words.wording import age, listed
from kproxy.why.case import Case, api
from kproxy.why.sentences import NOT_RECORDED, client, named

_SEQUENCES = 1 << 31
"""Sequence numbers begin at 0 again from here on."""
_STATES_MAX = 4
_IN_TRANSACTION = ("Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit")


class Producer(NamedTuple):
    """The producer that a request names."""

    transactional_id: str | None
    producer_id: int
    epoch: int


class _Batch(NamedTuple):
    """The numbers of a batch of an idempotent producer."""

    producer_id: int
    epoch: int
    first: int
    records: int

    @property
    def following(self) -> int:
        """The sequence number that is due after it."""
        return (self.first + self.records) % _SEQUENCES


def producer_of(exchange: Exchange, place: TopicPartition = WHOLE) -> Producer | None:
    """Return the producer that a request names, in the batch for a partition if it has one."""
    request = exchange.request
    if request is None:
        return None
    older = "v3_and_below_" if exchange.api == "AddPartitionsToTxn" else ""
    name = getattr(request, f"{older}transactional_id", None) or None
    if exchange.api == "Produce":
        batches = [each for _, each in _batches(exchange, place)]
        return Producer(name, *batches[0][:2]) if batches else None
    number = getattr(request, f"{older}producer_id", None)
    epoch = getattr(request, f"{older}producer_epoch", None)
    return None if number is None or epoch is None else Producer(name, number, epoch)


def _batches(exchange: Exchange, place: TopicPartition) -> Iterator[tuple[TopicPartition, _Batch]]:
    for each in exchange.facts.records:
        if place not in (WHOLE, each.where):
            continue
        heads = batch_heads(each)
        for number, epoch, first in heads.sequences:
            yield each.where, _Batch(number, epoch, first, heads.records or 0)


# ── epochs ───────────────────────────────────────────────────────────────────────────────────


def taken_over(case: Case) -> Iterator[str]:
    """Yield who has begun to use a transactional id after this producer had."""
    producer = producer_of(case.exchange, case.failure.places[0])
    if producer is None:
        yield f"Which producer sent it {NOT_RECORDED}."
        return
    name = producer.transactional_id
    if name is None:
        yield (
            f"The request has epoch {producer.epoch} of producer id {producer.producer_id}; who"
            f" raised it {NOT_RECORDED}."
        )
        return
    own, later = _initializations(case, producer)
    if later:
        yield from _taker(case, producer, later)
        return
    timed_out = list(_timed_out(case, producer, own))
    yield from timed_out
    if not timed_out:
        yield (
            f"Who raised the epoch of transactional id {name} {NOT_RECORDED}: another producer"
            " that began with it, or the coordinator, which does so when a transaction is open"
            " for longer than its timeout."
        )


def _initializations(
    case: Case, producer: Producer
) -> tuple[Exchange | None, list[tuple[Exchange, int | None]]]:
    """Return the InitProducerId of this producer, and the later ones of its transactional id, each
    with the epoch that it got; None where the coordinator was not ready to give one."""
    own: Exchange | None = None
    later: list[tuple[Exchange, int | None]] = []
    wanted = matching("transactional_id", producer.transactional_id or "")
    for each in case.others(wanted, api("InitProducerId")):
        if each.response is None or each.time_ns > case.exchange.completed_ns:
            continue
        number, epoch = each.response.producer_id, each.response.producer_epoch
        if each.errors:
            if own is not None and each.errors == ["CONCURRENT_TRANSACTIONS"]:
                later.append((each, None))
        elif number == producer.producer_id and epoch <= producer.epoch:
            own, later = each, []
        elif own is not None or number == producer.producer_id:
            later.append((each, epoch))
    return own, sorted(later, key=lambda one: one[1] is None)


def _taker(
    case: Case, producer: Producer, later: list[tuple[Exchange, int | None]]
) -> Iterator[str]:
    taker, epoch = later[0]
    name = producer.transactional_id
    if epoch is None:
        yield (
            f"{case.when(taker)}, asked for transactional id {name}: {client(taker)}; the"
            " coordinator may have fenced this producer for it."
        )
        return
    same = taker.connection == case.exchange.connection
    whose = " It is on the connection of this request." if same else ""
    yield (
        f"{case.when(taker)}, took transactional id {name}: {client(taker)} got epoch {epoch} of"
        f" producer id {taker.response.producer_id}; this request has epoch {producer.epoch} of"
        f" producer id {producer.producer_id}.{whose}"
    )
    if more := [f"#{each.number}" for each, got in later[1:] if got is not None]:
        yield f"It was taken again with InitProducerId {listed(more)}."


def _timed_out(case: Case, producer: Producer, own: Exchange | None) -> Iterator[str]:
    """Yield that a transaction was open for longer than its timeout, if it was."""
    if own is None or own.request is None or producer.transactional_id is None:
        return
    begun: Exchange | None = None
    wanted = matching("transactional_id", producer.transactional_id)
    for each in case.others(wanted, api(*_IN_TRANSACTION, "EndTxn")):
        if each.time_ns > case.exchange.time_ns or each.time_ns < own.time_ns:
            continue
        if producer_of(each) != producer or each.errors:
            continue
        begun = None if each.api == "EndTxn" else begun or each
    timeout_ms = own.request.transaction_timeout_ms
    if begun is None:
        return
    open_ms = (case.exchange.time_ns - begun.time_ns) / 1e6
    if open_ms > timeout_ms > 0:
        yield (
            f"The transaction began with {case.when(begun)}; its timeout is {age(timeout_ms)}"
            f" ({named(own)}). The coordinator aborts such transactions, and raises the epoch."
        )


# ── sequence numbers ─────────────────────────────────────────────────────────────────────────


def last_sequence(case: Case) -> Iterator[str]:
    """Yield which batch of the producer a partition accepted last, and which came to nothing."""
    for place in case.failure.places[:2]:
        for where, batch in _batches(case.exchange, place):
            yield from _last_sequence(case, where, batch)


def _last_sequence(case: Case, where: TopicPartition, batch: _Batch) -> Iterator[str]:
    accepted: tuple[Exchange, _Batch] | None = None
    lost: list[tuple[Exchange, _Batch, str]] = []
    for each in case.others(matching("topic", where.topic), api("Produce")):
        if each.time_ns > case.exchange.time_ns:
            continue
        for _, other in _batches(each, where):
            if other.producer_id != batch.producer_id or other.epoch > batch.epoch:
                continue
            outcome = _refusal(each, where)
            if outcome:
                lost.append((each, other, outcome))
            elif accepted is None or (other.epoch, other.first) >= accepted[1][1:3]:
                accepted = each, other
    place = place_text((where,))
    producer = f"producer id {batch.producer_id}"
    if accepted is None:
        yield (
            f"The recording has no earlier batch of {producer} that {place} accepted; this one"
            f" begins with sequence {batch.first} of epoch {batch.epoch}."
        )
    else:
        exchange, last = accepted
        until = (last.following - 1) % _SEQUENCES
        yield (
            f"The last batch of {producer} that {place} accepted before is that of"
            f" {case.when(exchange)}: sequences {last.first} to {until} of epoch {last.epoch}."
        )
        if case.failure.error == "OUT_OF_ORDER_SEQUENCE_NUMBER":
            yield _due(last, batch)
    later = [
        each
        for each in lost
        if accepted is None or (each[1].epoch, each[1].first) > accepted[1][1:3]
    ]
    for exchange, other, outcome in later[:3]:
        if (other.epoch, other.first) != batch[1:3]:
            yield f"{named(exchange)}, sequence {other.first}, {outcome}."


def _due(last: _Batch, batch: _Batch) -> str:
    """Return which sequence number was due after the last batch."""
    due = last.following if last.epoch == batch.epoch else 0
    if due == batch.first:
        return "This batch follows that one, as far as the recording shows."
    return f"Sequence {due} was due; this batch begins with {batch.first}."


def _refusal(exchange: Exchange, where: TopicPartition) -> str:
    """Return why it is not known that a partition accepted a batch; "" if it did."""
    if exchange.response is None:
        return "has no response"
    found = [
        each.error
        for each in failures(exchange)
        if any(one in (where, WHOLE) for one in each.places)
    ]
    return f"failed with {listed(found)}" if found else ""


def first_sent(case: Case) -> Iterator[str]:
    """Yield where the same batch was sent before."""
    for place in case.failure.places[:2]:
        for where, batch in _batches(case.exchange, place):
            for each in case.others(matching("topic", where.topic), api("Produce")):
                if each.number < case.exchange.number and (where, batch) in _batches(each, where):
                    yield f"{case.when(each)}, has the same batch for {place_text((where,))}."
                    break
            else:
                yield f"Where the batch was sent before {NOT_RECORDED}."


# ── transactions ─────────────────────────────────────────────────────────────────────────────


def transaction_before(case: Case) -> Iterator[str]:
    """Yield the last requests of the transactional id before this one."""
    names = case.exchange.transactional_ids
    if not names:
        return
    found = [
        each
        for each in case.before(matching("transactional_id", names[0]))
        if each.api != "FindCoordinator"
    ]
    if not found:
        yield f"What was asked of transactional id {names[0]} before {NOT_RECORDED}."
        return
    said = [_state(each) for each in found[-_STATES_MAX:]]
    yield f"Before it, of transactional id {names[0]}: {listed(said, _STATES_MAX)}."


def _state(each: Exchange) -> str:
    ended = getattr(each.request, "committed", None) if each.api == "EndTxn" else None
    how = "" if ended is None else " (commit)" if ended else " (abort)"
    return f"{named(each)}{how}{f' → {listed(each.errors)}' if each.errors else ''}"


def transaction_timeout(case: Case) -> Iterator[str]:
    """Yield the timeout that a producer asks for."""
    timeout_ms = getattr(case.exchange.request, "transaction_timeout_ms", None)
    if timeout_ms is not None:
        yield f"It asks for a transaction timeout of {age(timeout_ms)}."


def acks(case: Case) -> Iterator[str]:
    """Yield the acknowledgements and the time that a producer asks for."""
    request = case.exchange.request
    if case.exchange.api != "Produce" or request is None:
        return
    wanted = "all in-sync replicas" if request.acks == -1 else f"acks={request.acks}"
    yield f"It waits for {wanted}, for {age(request.timeout_ms)} at most (timeout_ms)."
