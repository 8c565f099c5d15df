"""Lines pair parts of a request with parts of a response by their names, never by their place."""

from __future__ import annotations

import random
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.exchange.pairing import pair
from kproxy.exchange.words.failures import failures
from kproxy.wire import protocol
from kproxy.wire.protocol import messages, schema
from tests.exchange.bodies import exchange
from tests.exchange.making import request, response

M = messages
_ERRORS = (0, 0, 3, 6, 29)
_KINDS = sorted(schema.known_versions())


def drawn(cls: type, fields, version: int, rng: random.Random, names: list[str], turn: int = 0):
    """A value with a few elements in each list, all of other names; errors are here and there."""
    made = cls()
    for field in fields:
        if version not in field.versions:
            continue
        made_of = getattr(M, cls.__qualname__.split(".")[0])
        if field.is_array and field.fields:
            of = getattr(made_of, field.element)
            value = [drawn(of, field.fields, version, rng, names, n) for n in range(3)]
        elif field.fields:
            of = getattr(made_of, field.element)
            value = drawn(of, field.fields, version, rng, names, turn)
        elif field.name.endswith("error_code"):
            value = rng.choice(_ERRORS)
        elif field.name.endswith("error_message"):
            value = rng.choice(("", f"no {turn}"))
        elif field.type in ("string", "int32", "int64") and not field.is_array:
            value = names[turn] if field.type == "string" else turn
        elif field.is_array and field.element in ("string", "int32"):
            value = names[:3] if field.element == "string" else [0, 1, 2]
        elif field.type == "uuid":
            value = UUID(int=(turn + 1) << 120)
        elif field.type in ("bytes", "records"):
            value = b""
        else:
            continue
        setattr(made, field.name, value)
    return made


def shuffled(fields, body, rng: random.Random):
    """The same with the elements of all its lists in another order."""
    for field in fields:
        inner = getattr(body, field.name)
        if not field.fields or inner is None:
            continue
        for each in inner if field.is_array else [inner]:
            shuffled(field.fields, each, rng)
        if field.is_array:
            rng.shuffle(inner)
    return body


@settings(max_examples=400)
@given(kind=st.sampled_from(_KINDS), seed=st.integers(0, 2**32))
def test_the_order_of_a_response_means_nothing(kind, seed):
    """Whatever order a broker answers in, the line is the same, and what `why` knows of failures:
    Kafka's own answers Produce in that of a hash table, from five partitions on."""
    key, version = kind
    rng, names = random.Random(seed), ["a", "b", "c"]
    asked, answered = (schema.message(key, each) for each in (schema.REQUEST, schema.RESPONSE))
    frame = request(
        protocol.api_name(key),
        version,
        drawn(getattr(M, asked.name), asked.fields, version, rng, names),
    )
    body = drawn(getattr(M, answered.name), answered.fields, version, rng, names)
    (one,) = pair([frame, response(frame, body)])
    lines, failed = one.text, failures(one)
    (other,) = pair([frame, response(frame, shuffled(answered.fields, body, rng))])
    assert other.text == lines
    assert failures(other) == failed


def _produced(parts: dict[tuple[str, int], tuple[int, int]]):
    P, R = M.ProduceRequest, M.ProduceResponse
    topics = list(dict.fromkeys(topic for topic, _ in parts))
    asked = P(
        acks=-1,
        timeout_ms=1,
        topic_data=[
            P.TopicProduceData(
                name=each,
                partition_data=[
                    P.PartitionProduceData(index=index, records=b"")
                    for topic, index in parts
                    if topic == each
                ],
            )
            for each in topics
        ],
    )
    answered = R(
        responses=[
            R.TopicProduceResponse(
                name=each,
                partition_responses=[
                    R.PartitionProduceResponse(index=index, base_offset=offset, error_code=error)
                    for (topic, index), (offset, error) in reversed(parts.items())
                    if topic == each
                ],
            )
            for each in reversed(topics)
        ]
    )
    return exchange("Produce", 9, asked, answered).text.rpartition("→ ")[2]


def test_each_offset_and_each_error_of_a_produce_is_that_of_a_partition():
    assert _produced({("pay", 3): (7, 0)}) == "offset 7"
    assert _produced({("pay", 3): (7, 0), ("pay", 1): (5, 0)}) == "[1@5,3@7]"
    assert _produced({("pay", 3): (7, 0), ("audit", 1): (5, 0)}) == "audit[1@5], pay[3@7]"
    some = {("pay", 3): (-1, 6), ("pay", 1): (5, 0), ("audit", 0): (-1, 29)}
    assert _produced(some) == (
        "TOPIC_AUTHORIZATION_FAILED (audit[0]), NOT_LEADER_OR_FOLLOWER (pay[3]), pay[1@5]"
    )
    # An error of all that was asked needs no name.
    assert _produced({("pay", 3): (-1, 6)}) == "NOT_LEADER_OR_FOLLOWER"
    assert _produced({("pay", 3): (-1, 6), ("a", 1): (-1, 6)}) == "NOT_LEADER_OR_FOLLOWER"


def _line(api: str, version: int, asked: object, answered: object) -> str:
    return exchange(api, version, asked, answered).text.rpartition("→ ")[2]


def test_each_error_is_that_of_a_topic_a_group_a_member_or_a_resource():
    C, R = M.CreateTopicsRequest, M.CreateTopicsResponse
    asked = C(topics=[C.CreatableTopic(name="a"), C.CreatableTopic(name="b")])
    results = [
        R.CreatableTopicResult(name="b", error_code=36, error_message="there is one"),
        R.CreatableTopicResult(name="a"),
    ]
    assert _line("CreateTopics", 5, asked, R(topics=results)) == (
        "TOPIC_ALREADY_EXISTS (b) “there is one”"
    )
    G = M.DeleteGroupsResponse
    asked = M.DeleteGroupsRequest(groups_names=["g", "h"])
    results = [G.DeletableGroupResult(group_id=each) for each in "hg"]
    assert _line("DeleteGroups", 2, asked, G(results=results)).endswith(" g, h")
    results[0].error_code = 68
    assert _line("DeleteGroups", 2, asked, G(results=results)) == "NON_EMPTY_GROUP (h)"
    L, A = M.LeaveGroupRequest, M.LeaveGroupResponse
    asked = L(group_id="g", members=[L.MemberIdentity(member_id=each) for each in ("m1", "m2")])
    members = [A.MemberResponse(member_id=each, error_code=25) for each in ("m2", "m1")]
    assert _line("LeaveGroup", 5, asked, A(members=members)) == "UNKNOWN_MEMBER_ID"
    members[1].error_code = 0
    assert _line("LeaveGroup", 5, asked, A(members=members)) == "UNKNOWN_MEMBER_ID (m2)"
    Q, S = M.IncrementalAlterConfigsRequest, M.IncrementalAlterConfigsResponse
    named = {"resource_type": 2, "resource_name": "a"}, {"resource_type": 4, "resource_name": "1"}
    asked = Q(resources=[Q.AlterConfigsResource(**each) for each in named])
    results = [S.AlterConfigsResourceResponse(**each) for each in reversed(named)]
    results[0].error_code = 40
    assert _line("IncrementalAlterConfigs", 1, asked, S(responses=results)) == (
        "INVALID_CONFIG (broker 1)"
    )


def test_an_error_that_a_fetch_did_not_ask_for_is_named():
    """In a session a Fetch names only what has changed."""
    F = M.FetchResponse
    topic = F.FetchableTopicResponse(
        topic="orders", partitions=[F.PartitionData(partition_index=4, error_code=6)]
    )
    asked = M.FetchRequest(session_id=7, session_epoch=3)
    text = _line("Fetch", 11, asked, F(session_id=7, responses=[topic]))
    assert text == "NOT_LEADER_OR_FOLLOWER (orders[4]), empty"


def test_what_a_broker_leaves_out_is_not_taken_for_the_rest():
    """One topic of two in a response: its line says which."""
    L, R = M.ListOffsetsRequest, M.ListOffsetsResponse
    asked = L(
        topics=[
            L.ListOffsetsTopic(name=each, partitions=[L.ListOffsetsPartition(timestamp=-1)])
            for each in "ab"
        ]
    )
    one = R.ListOffsetsPartitionResponse(partition_index=0, offset=4)
    answered = R(topics=[R.ListOffsetsTopicResponse(name="b", partitions=[one])])
    assert _line("ListOffsets", 7, asked, answered) == "b[0@4]"
