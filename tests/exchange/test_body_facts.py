"""What bodies tell is the same, decoded or not, in the same order."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy import recording
from kproxy.exchange import facts, topic_records
from kproxy.exchange.body_facts import ALL_MEANINGS, BodyFacts, DecodedFacts, Records, walk_facts
from kproxy.exchange.entities import TopicNames, TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.meanings import ABORTED
from kproxy.exchange.pairing import pair
from kproxy.exchange.walks import walk_of
from kproxy.protocol import ProtocolError, api_key, codec, messages, records, schema
from kproxy.protocol.record_batch import Record
from tests.bed import needs
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
from tests.exchange.making import answer, request, response
from tests.protocol import strategies

ORDERS_TEXT = "EjRWeBI0VngSNFZ4EjRWeA"
DECODED = {
    *("FindCoordinator", "JoinGroup", "SyncGroup", "DescribeGroups"),
    *("DescribeAcls", "CreateAcls", "DeleteAcls", "ListConfigResources"),
    *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"),
}
"""APIs of which a walk does not tell all: names whose kind stands beside, what consumers embed."""
RECORDINGS = [
    *sorted(
        path
        for path in (needs.REPOSITORY / "recordings").rglob("*.mcap")
        if not path.stem.endswith(".failed")  # of a replay in this checkout
    ),
    needs.REPOSITORY / "tests" / "exchange" / "mock_cluster.mcap",
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
]


def plain(told: BodyFacts | DecodedFacts) -> dict[str, Any]:
    """All that is told."""
    found = {name: getattr(told, name) for name in BodyFacts._fields}
    carried: list[Records] = found.pop("records")
    batches = [(each.where, each.data, each.produced) for each in carried]
    return found | {"batches": batches, "heads": list(map(topic_records.batch_heads, carried))}


# ---------------------------------------------------------------- recorded


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_a_walk_over_what_was_recorded_tells_what_is_decoded(path):
    by_walk = 0
    # Twice, so that both have names of their own, which learn from the same bodies.
    for each, again in zip(recording.read([path]), recording.read([path]), strict=True):
        told = again.facts
        assert plain(told) == plain(each.decoded_facts)
        by_walk += isinstance(told, BodyFacts)
        assert isinstance(told, BodyFacts) or each.api in DECODED or not each.ordinary
    assert by_walk


# ---------------------------------------------------------------- generated

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


def versions(api: str, direction: str) -> list[int]:
    found = schema.message(api_key(api), direction)
    assert found is not None
    return list(found.versions)


@pytest.mark.parametrize("api", sorted(schema.api_names().values()))
@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_walk_tells_what_is_decoded(api, data):
    version = data.draw(st.sampled_from(versions(api, schema.REQUEST)))
    bodies = [
        data.draw(strategies.bodies(schema.message(api_key(api), direction), version))
        for direction in (schema.REQUEST, schema.RESPONSE)
    ]
    for body in bodies:
        _fill(body, data)
    asked = request(api, version, bodies[0])
    made = made_of(asked, response(asked, bodies[1]))
    told = walk_facts(made.api_key, version, made.request_frame, made.response_frame, TopicNames())
    if told is None:
        assert api in DECODED or api == "ControlledShutdown"
        return
    assert plain(told) == plain(made.decoded_facts)


def test_nearly_all_apis_can_be_walked_over():
    assert {
        (api, version)
        for api in sorted(schema.api_names().values())
        for direction in (schema.REQUEST, schema.RESPONSE)
        for version in versions(api, direction)
        if api not in DECODED and walk_of(api_key(api), version, direction, ALL_MEANINGS) is None
    } == {("ControlledShutdown", 0)}


def _fill(value: Any, data: st.DataObject) -> None:
    """Put batches where records are."""
    for name in getattr(type(value), "__slots__", ()):
        inner = getattr(value, name, None)
        if name == "records" and inner is not None:
            setattr(value, name, data.draw(RECORDS))
        for each in inner if isinstance(inner, list) else [inner]:
            _fill(each, data)


def made_of(*frames: Any) -> Exchange:
    (made,) = pair(list(frames))
    return made


@given(st.binary(max_size=60))
def test_garbage_is_told_as_it_is_decoded_or_not_at_all(garbage):
    asked = request("Fetch", 12, fetch_request({0: 1}))
    made = made_of(asked, answer(asked, (5 + len(garbage)).to_bytes(4) + bytes(5) + garbage))
    told = walk_facts(1, 12, made.request_frame, made.response_frame, TopicNames())
    try:
        codec.decode_response_body(made.response_frame, 1, 12)
    except ProtocolError:
        assert told is None and made.opaque
        return
    assert told is not None and not made.opaque
    assert plain(told) == plain(made.decoded_facts)


# ---------------------------------------------------------------- by hand


def test_what_is_not_known_is_not_told():
    made = exchange("Fetch", 12, fetch_request({0: 1}), fetch_response({0: batch(3)}))
    asked, answered = made.request_frame, made.response_frame
    names = TopicNames()
    told = walk_facts(1, 12, asked, answered, names)
    assert told is not None and plain(told) == plain(made.decoded_facts)
    assert walk_facts(1, 99, asked, answered, names) is None
    assert walk_facts(1, 12, asked[:-1], None, names) is None
    assert walk_facts(1, 11, asked, None, names) is None


def test_a_topic_has_its_name_as_soon_as_it_is_told():
    asked = request("Fetch", 13, by_id({0: 1}))
    names = TopicNames()

    def topics() -> list[str]:
        told = walk_facts(1, 13, asked.data, None, names)
        return [] if told is None else told.topics

    assert topics() == [ORDERS_TEXT]
    names.note({"topic_id": ORDERS_TEXT, "topic": "orders"})
    assert topics() == topics() == ["orders"]
    names.note({"topic_id": ORDERS_TEXT, "topic": "payments"})
    assert topics() == ["payments"]


def test_names_that_stand_beside_ids_are_learned():
    topic = messages.MetadataResponse.MetadataResponseTopic
    partition = messages.MetadataResponse.MetadataResponsePartition
    told = topic(name="orders", topic_id=ORDERS, partitions=[partition(partition_index=2)])
    asked = request("Metadata", 12, messages.MetadataRequest(topics=None))
    made = made_of(asked, response(asked, messages.MetadataResponse(topics=[told])))
    assert isinstance(made.facts, BodyFacts)
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
    assert heads == [(1, ((7, 1, 5),)), (2, [(7, 1, 5), (7, 1, 5)])]
    assert made.facts.results == [(two, 7, 40), (three, 7, -1)]


def test_aborted_transactions_must_be_decoded():
    body = fetch_response({0: batch(3)})
    made = exchange("Fetch", 12, fetch_request({0: 1}), body)
    frames = made.request_frame, made.response_frame
    wanted = ALL_MEANINGS | {ABORTED}
    assert walk_facts(1, 12, *frames, TopicNames(), wanted) is not None
    gone = messages.FetchResponse.AbortedTransaction(producer_id=1, first_offset=0)
    body.responses[0].partitions[0].aborted_transactions = [gone]
    made = exchange("Fetch", 12, fetch_request({0: 1}), body)
    assert walk_facts(1, 12, made.request_frame, made.response_frame, TopicNames(), wanted) is None
    assert [each.aborted for each in made.decoded_facts.records] == [[gone]]


def test_filters_decode_nothing(monkeypatch):
    made = exchange("Fetch", 12, fetch_request({0: 1}), fetch_response({0: batch(3)}))
    for name in ("request_body", "response_body"):
        monkeypatch.setattr(facts, name, lambda *about: pytest.fail("a body was decoded"))
    assert made.topics == ["orders"] and made.errors == [] and not made.opaque
