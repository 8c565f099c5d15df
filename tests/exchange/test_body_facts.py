"""What bodies tell, held against a slow walk over all of their fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange import meanings, topic_records
from kproxy.exchange.body_facts import Records, body_facts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.meanings import Meaning
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import api_key, codec, error_name, messages, records, schema
from kproxy.wire.protocol.plain import uuid_text
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.schema import Field
from tests.exchange.batches import batch
from tests.exchange.bodies import (
    ORDERS,
    by_id,
    exchange,
    fetch_request,
    fetch_response,
    produce_request,
    produce_response,
)
from tests.exchange.making import request, response
from tests.wire.protocol import strategies
from tests.wire.protocol.making import few

ORDERS_TEXT = "EjRWeBI0VngSNFZ4EjRWeA"

# ---------------------------------------------------------------- generated


def values(
    struct: Any, fields: tuple[Field, ...], meaning: Meaning, topic: str = ""
) -> Iterator[tuple[str, Any]]:
    """Each value that has a meaning, with the topic around it."""
    ids = [getattr(struct, each.name) for each in fields if meanings.is_topic_id(each)]
    own = [getattr(struct, each.name) for each in fields if meanings.is_own_topic_name(each)]
    topic = next(filter(None, [*own, *(uuid_text(each) for each in ids if each.int), topic]), "")
    for field in fields:
        found = getattr(struct, field.name)
        for each in found if isinstance(found, list) else [found]:
            if each is not None and meanings.PREDICATES[meaning](field, fields):
                yield topic, uuid_text(each) if isinstance(each, UUID) and each.int else each
            if field.fields and each is not None:
                yield from values(each, field.fields, meaning, topic)


@pytest.mark.parametrize("api", sorted(schema.api_names().values()))
@few(16)
@given(st.data())
def test_each_field_with_a_meaning_is_told(api, data):
    bodies: list[Any] = []
    found: dict[Meaning, list[tuple[str, Any]]] = {each: [] for each in Meaning}
    for direction in (schema.REQUEST, schema.RESPONSE):
        message = schema.message(api_key(api), direction)
        assert message is not None
        version = data.draw(st.sampled_from(list(message.versions)))
        bodies.append(data.draw(strategies.bodies(message, version)))
        for meaning in Meaning:
            found[meaning] += values(bodies[-1], message.fields, meaning)
    names = TopicNames()
    told = body_facts(*bodies, names)
    of_response = [code for _, code in values(bodies[1], message.fields, meanings.ERROR) if code]
    assert told.errors == list(map(error_name, dict.fromkeys(of_response)))
    assert told.throttled == any(each for _, each in found[meanings.THROTTLE])
    batches = [(topic, data) for topic, data in found[meanings.RECORDS] if data]
    assert [(each.topic, each.data) for each in told.records] == batches
    assert [each.offset for each in told.results] == [
        each for _, each in values(bodies[1], message.fields, meanings.OFFSET)
    ]
    if len(names):
        return  # bodies told names of ids: `test_names_that_stand_beside_ids_are_learned`
    assert told.partitions == list(
        dict.fromkeys(TopicPartition(*each) for each in found[meanings.PARTITION] if each[0])
    )
    for meaning, texts in {
        meanings.TOPIC: told.topics,
        meanings.GROUP: told.groups,
        meanings.TRANSACTIONAL_ID: told.transactional_ids,
    }.items():
        named = dict.fromkeys(v for _, v in found[meaning] if v and not isinstance(v, UUID))
        # Others are told by a kind that stands beside them, and by what consumers embed.
        assert list(named) == [each for each in texts if each in named]


# ---------------------------------------------------------------- by hand


def test_a_topic_has_its_name_as_soon_as_it_is_told():
    names, asked = TopicNames(), codec.decode_request_body(request("Fetch", 13, by_id({0: 1})).data)

    def topics() -> list[str]:
        return body_facts(asked, None, names).topics

    assert topics() == [ORDERS_TEXT]
    names.note({"topic_id": ORDERS_TEXT, "topic": "orders"})
    assert topics() == topics() == ["orders"]
    names.note({"topic_id": ORDERS_TEXT, "topic": "payments"})
    assert topics() == ["payments"]


def test_an_id_alone_is_no_name():
    """Where no name stands beside an id, what was offered later tells it."""
    names, asked = TopicNames(), codec.decode_request_body(request("Fetch", 13, by_id({0: 1})).data)
    assert body_facts(asked, None, names).topics == [ORDERS_TEXT]
    assert names.name(ORDERS) is None


def test_names_that_stand_beside_ids_are_learned():
    topic = messages.MetadataResponse.MetadataResponseTopic
    partition = messages.MetadataResponse.MetadataResponsePartition
    told = topic(name="orders", topic_id=ORDERS, partitions=[partition(partition_index=2)])
    asked = request("Metadata", 12, messages.MetadataRequest(topics=None))
    (made,) = pair([asked, response(asked, messages.MetadataResponse(topics=[told]))])
    assert made.topics == ["orders"] and made.partitions == [TopicPartition("orders", 2)]
    assert made.topic_names.name(ORDERS) == "orders"
    assert made.topic_names.name(UUID(int=7)) is None


def test_sequences_and_results_say_where():
    data = records.encode_batch(
        [Record(0, 0, None, b"v")], producer_id=7, producer_epoch=1, base_sequence=5
    )
    asked = produce_request({2: data, 3: data + data})
    made = exchange("Produce", 9, asked, produce_response({2: 40, 3: -1}, 7))
    two, three = TopicPartition("orders", 2), TopicPartition("orders", 3)
    assert [each.where for each in made.facts.records] == [two, three]
    heads = list(map(topic_records.batch_heads, made.facts.records))
    assert heads == [(1, [(7, 1, 5, 1)]), (2, [(7, 1, 5, 1), (7, 1, 5, 1)])]
    assert made.facts.results == [(two, 7, 40), (three, 7, -1)]


def test_aborted_transactions_are_those_of_the_partition():
    gone = messages.FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)
    body = fetch_response({0: batch(3), 1: batch(3)})
    body.responses[0].partitions[0].aborted_transactions = [gone]
    told = body_facts(fetch_request({0: 1, 1: 1}), body, TopicNames()).records
    assert told == [
        Records(TopicPartition("orders", 0), batch(3), False, [gone]),
        Records(TopicPartition("orders", 1), batch(3), False),
    ]  # fmt: skip
