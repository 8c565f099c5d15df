"""What is counted of bodies is the same, decoded or not."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.pairing import pair
from kproxy.protocol import api_key, records, schema
from kproxy.protocol.record_batch import Record
from kproxy.view.stats_bodies import OFTEN, Looker, told_by
from tests.exchange.batches import batch
from tests.exchange.bodies import exchange, fetch_request, fetch_response, produce_request
from tests.exchange.making import answer, request, response
from tests.protocol import strategies

ORDERS = UUID("12345678-1234-5678-1234-567812345678")


def versions(api: str) -> list[int]:
    found = schema.message(api_key(api), schema.REQUEST)
    assert found is not None
    return list(found.versions)


BATCHES = st.lists(
    st.builds(
        lambda count, producer, sequence, control: records.encode_batch(
            [Record(n, 0, None, b"v") for n in range(count)],
            producer_id=producer,
            producer_epoch=3,
            base_sequence=sequence,
            control=control,
        ),
        st.integers(1, 3),
        st.sampled_from([-1, 0, 7]),
        st.sampled_from([-1, 0, 5, 2**31 - 1]),
        st.booleans(),
    ),
    max_size=3,
).map(b"".join)
RECORDS = st.one_of(BATCHES, st.tuples(BATCHES, st.binary(max_size=90)).map(b"".join))


@pytest.mark.parametrize("api", sorted(OFTEN))
@given(st.data())
def test_what_is_walked_over_tells_what_is_decoded(api, data):
    version = data.draw(st.sampled_from(versions(api)))
    key = api_key(api)
    bodies = [
        data.draw(strategies.bodies(schema.message(key, direction), version))
        for direction in (schema.REQUEST, schema.RESPONSE)
    ]
    for body in bodies:
        _fill(body, data)
    asked = request(api, version, bodies[0])
    answered = response(asked, bodies[1])
    (made,) = pair([asked, answered])
    looker = Looker(TopicNames())
    told = looker.told(key, version, made.request_frame, made.response_frame)
    assert told is not None
    expected = told_by(made)
    assert told._replace(errors=(), topics=()) == expected._replace(errors=(), topics=())
    assert set(told.errors) == set(expected.errors)
    assert set(told.topics) == set(expected.topics)


def _fill(value, data) -> None:
    """Put batches where records are."""
    for name in getattr(type(value), "__slots__", ()):
        inner = getattr(value, name, None)
        if name == "records" and inner is not None:
            setattr(value, name, data.draw(RECORDS))
        for each in inner if isinstance(inner, list) else [inner]:
            _fill(each, data)


@given(st.binary(max_size=60))
def test_garbage_is_told_as_it_is_decoded_or_not_at_all(garbage):
    asked = request("Fetch", 12, fetch_request({0: 1}))
    (made,) = pair([asked, answer(asked, (5 + len(garbage)).to_bytes(4) + bytes(5) + garbage)])
    told = Looker(TopicNames()).told(1, 12, made.request_frame, made.response_frame)
    assert (told is None) == made.opaque
    assert told in (None, told_by(made))


def test_what_is_not_known_is_not_told():
    made = exchange("Fetch", 12, fetch_request({0: 1}), fetch_response({0: batch(3)}))
    asked, answered = made.request_frame, made.response_frame
    looker = Looker(TopicNames())
    assert looker.told(1, 12, asked, answered) == told_by(made)
    assert looker.told(1, 99, asked, answered) is None
    assert looker.told(1, 12, asked[:-1], None) is None
    assert looker.told(1, 11, asked, None) is None


def test_a_topic_has_its_name_as_soon_as_it_is_told():
    fetch = fetch_request({0: 1})
    fetch.topics[0].topic_id = ORDERS
    (made,) = pair([request("Fetch", 13, fetch)])
    names = TopicNames()
    looker = Looker(names)

    def topics() -> tuple[str, ...]:
        return looker.told(1, 13, made.request_frame, None).topics

    assert topics() == ("EjRWeBI0VngSNFZ4EjRWeA",)
    names.note({"topic_id": "EjRWeBI0VngSNFZ4EjRWeA", "topic": "orders"})
    assert topics() == topics() == ("orders",)


def test_sequences_say_where():
    data = records.encode_batch(
        [Record(0, 0, None, b"v")], producer_id=7, producer_epoch=1, base_sequence=5
    )
    (made,) = pair([request("Produce", 9, produce_request({2: data, 3: data + data}))])
    told = Looker(TopicNames()).told(0, 9, made.request_frame, None)
    places = [where for _, where, _ in told.sequences]
    two, three = TopicPartition("orders", 2), TopicPartition("orders", 3)
    assert places == [two, three, three] and told == told_by(made)
    assert told.records == (("orders", 1, len(data)), ("orders", 2, 2 * len(data)))
