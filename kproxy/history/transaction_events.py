"""What producers ask of transaction coordinators, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.history.group_events import error_of
from kproxy.history.rows import AddedToTxn, Ended, Initialized, Row


def _initialize(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    asked = getattr(request, "producer_id", -1), getattr(request, "producer_epoch", -1)
    given = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
    yield Initialized(
        request.transactional_id or "", asked, given, request.transaction_timeout_ms,
        error_of(response),
    )  # fmt: skip


def _add_partitions(exchange: Exchange) -> Iterator[Row]:
    """Yield what clients add; the batches of version 4 and newer are brokers' own."""
    request = exchange.request
    errors = exchange.broker_errors
    errors = exchange.errors if errors is None else errors
    places = [
        TopicPartition(topic.name, partition)
        for topic in request.v3_and_below_topics or ()
        for partition in topic.partitions
    ]
    if request.v3_and_below_transactional_id:
        yield AddedToTxn(
            request.v3_and_below_transactional_id,
            (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            tuple(places), "", errors[0] if errors else "",
        )  # fmt: skip


def _add_offsets(exchange: Exchange) -> Iterator[Row]:
    request = exchange.request
    yield AddedToTxn(
        request.transactional_id, (request.producer_id, request.producer_epoch), (),
        request.group_id, error_of(exchange.response),
    )  # fmt: skip


def _end(exchange: Exchange) -> Iterator[Row]:
    request, response = exchange.request, exchange.response
    raised = getattr(response, "producer_id", -1), getattr(response, "producer_epoch", -1)
    yield Ended(
        request.transactional_id, (request.producer_id, request.producer_epoch),
        bool(request.committed), raised, error_of(response),
    )  # fmt: skip


EVENTS: dict[str | None, Callable[[Exchange], Iterator[Row]]] = {
    "InitProducerId": _initialize,
    "AddPartitionsToTxn": _add_partitions,
    "AddOffsetsToTxn": _add_offsets,
    "EndTxn": _end,
}
