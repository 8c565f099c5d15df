"""The records of an exchange, with where they stand."""

from __future__ import annotations

import attrs
import pytest

from kproxy.exchange.pairing import pair
from kproxy.exchange.topic_records import TopicRecord
from kproxy.wire.protocol import messages, records
from kproxy.wire.protocol.message_sets import encode_message_set
from kproxy.wire.protocol.record_batch import Record
from tests.exchange.bodies import fetch_response, produce_request, produce_response
from tests.exchange.making import request, response

PLAIN = [Record(0, 1000, b"k0", b"v0", (("h", b"1"),)), Record(1, 1001, None, None)]


def produce(data: bytes, base_offset: int | None = 40, error_code: int = 0):
    asked = request("Produce", 9, produce_request({2: data}))
    answered = response(asked, produce_response({2: base_offset or 0}, error_code))
    return next(iter(pair([asked] if base_offset is None else [asked, answered])))


def fetch(data: bytes, aborted=None):
    asked, body = request("Fetch", 11, messages.FetchRequest()), fetch_response({1: data})
    body.responses[0].partitions[0].aborted_transactions = aborted
    return next(iter(pair([asked, response(asked, body)])))


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_produced_has_the_offsets_that_the_broker_gave(compression):
    exchange = produce(records.encode_batch(PLAIN, compression=compression))
    assert exchange.records == [
        TopicRecord("orders", 2, 40, 1000, b"k0", b"v0", (("h", b"1"),), True),
        TopicRecord("orders", 2, 41, 1001, None, None, (), True),
    ]


@pytest.mark.parametrize("exchange", [(None, 0), (-1, 6)])
def test_without_an_offset_in_the_response_there_is_none(exchange):
    base_offset, error_code = exchange
    found = produce(records.encode_batch(PLAIN), base_offset, error_code).records
    assert [record.offset for record in found] == [None, None]


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_of_old_clients(magic):
    data = encode_message_set([attrs.evolve(record, headers=()) for record in PLAIN], magic=magic)
    assert [record.offset for record in produce(data).records] == [40, 41]
    assert [record.value for record in fetch(data).records] == [b"v0", None]


def transaction(offset: int, producer_id: int, *, commit: bool | None = None) -> bytes:
    """One record of a producer, or the marker that ends its transaction."""
    if commit is None:
        return records.encode_batch(
            [Record(offset, 1, None, b"p%d" % producer_id)],
            producer_id=producer_id,
            transactional=True,
        )
    marker = records.end_transaction_marker(offset, 1, commit=commit, coordinator_epoch=0)
    return records.encode_batch([marker], producer_id=producer_id, transactional=True, control=True)


def test_records_of_aborted_transactions_are_told_apart():
    data = b"".join(
        [
            transaction(0, 1),
            transaction(1, 2),
            transaction(2, 1, commit=False),
            transaction(3, 1),
            transaction(4, 1, commit=True),
            transaction(5, 2, commit=True),
        ]
    )
    aborted = [messages.FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)]
    assert [(r.offset, r.aborted) for r in fetch(data, aborted).records] == [
        (0, True),
        (1, False),
        (3, False),
    ]
    assert not any(record.aborted for record in fetch(data).records)


@pytest.mark.parametrize("damage", [b"\xff" * 40, b"\0" * 40])
def test_batches_that_cannot_be_read_are_left_out(damage):
    good = records.encode_batch(PLAIN)
    bad = bytearray(records.encode_batch(PLAIN))
    bad[61:] = b"\x01" * (len(bad) - 61)
    assert len(fetch(bytes(bad) + good).records) == 2
    assert fetch(damage).records == []
