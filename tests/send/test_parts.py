"""What is sent of a recording, in which parts, and which answers are as good as those recorded."""

from __future__ import annotations

import pytest

from kproxy.exchange.entities import TopicPartition
from kproxy.exchange.exchange import Exchange
from kproxy.send import compared
from kproxy.send.apis import why_left_out
from kproxy.send.fetching import RecordedFetchSession
from kproxy.send.target import TargetCluster, merged
from kproxy.wire.protocol import codes, messages
from tests.exchange.batches import batch
from tests.exchange.bodies import exchange, fetch_request, produce_request, produce_response


def produced(error_code: int) -> Exchange:
    """A Produce and its answer."""
    asked = produce_request({0: batch(1)})
    return exchange("Produce", 8, asked, produce_response({0: 5}, error_code))


@pytest.mark.parametrize(
    ("error_code", "is_sent"),
    [
        (codes.NONE, True),
        (codes.NOT_LEADER_OR_FOLLOWER, False),
        (codes.REQUEST_TIMED_OUT, True),  # it is written: nobody sends it again
        (codes.MESSAGE_TOO_LARGE, True),
    ],
)
def test_records_that_were_refused_and_came_again_are_not_sent_twice(
    error_code: int, is_sent: bool
) -> None:
    assert (why_left_out(produced(error_code), False) == "") is is_sent


def test_a_fetch_of_a_session_names_all_that_the_session_has() -> None:
    session = RecordedFetchSession()
    whole = fetch_request({0: 5, 1: 6, 2: 7}, session_id=0, session_epoch=0)
    session.complete(whole)
    forgotten = messages.FetchRequest.ForgottenTopic(topic="orders", partitions=[2])
    later = fetch_request({1: 9}, session_id=3, session_epoch=1)
    later.forgotten_topics_data = [forgotten]
    session.complete(later)
    (topic,) = later.topics
    assert {each.partition: each.fetch_offset for each in topic.partitions} == {0: 5, 1: 9}
    assert not later.forgotten_topics_data
    assert (later.session_id, later.session_epoch) == (0, -1)


def test_the_answers_of_all_leaders_are_one() -> None:
    cluster = TargetCluster()
    cluster.leaders = {("orders", 0): 1, ("orders", 1): 2, ("orders", 2): 3}
    parts = cluster.divided("Produce", produce_request(dict.fromkeys(range(3), batch(1))))
    assert [node for node, _ in parts] == [1, 2, 3]
    answers = []
    for node, body in parts:
        (topic,) = body.topic_data
        answers.append(produce_response({each.index: node for each in topic.partition_data}))
    found = compared.offsets(merged(answers), cluster.names)
    assert found == {TopicPartition("orders", each): each + 1 for each in range(3)}


@pytest.mark.parametrize(("then", "told"), [(codes.REBALANCE_IN_PROGRESS, 0), (codes.NONE, 1)])
def test_an_error_that_passes_need_not_come_again(then: int, told: int) -> None:
    kind = messages.SyncGroupResponse
    recorded, new = kind(error_code=then), kind(error_code=codes.UNKNOWN_MEMBER_ID)
    asked = exchange("SyncGroup", 3, messages.SyncGroupRequest(group_id="g"), recorded)
    assert len([*compared.differences(asked, recorded, new, 3, lambda where: False)]) == told
