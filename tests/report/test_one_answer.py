"""The report, the findings and the text of `git diff` say the same of committed offsets and lag."""

from __future__ import annotations

import pytest

from kproxy import recording
from kproxy.exchange.behaviour import Behaviour
from kproxy.protocol import messages as m
from kproxy.report.light import light_data
from tests.why.test_key import commit, metadata, produce
from tests.why.test_transactional_id import end, initialize
from tests.why.traffic import Traffic

TEN = [b"k"] * 10


def begun(first: int = 0) -> Traffic:
    """Ten records of a partition, the first at an offset."""
    traffic = Traffic()
    traffic.add(0, *metadata(1))
    traffic.add(1, *produce(0, first, *TEN))
    return traffic


def in_transaction(offset: int):
    asked, told = m.TxnOffsetCommitRequest, m.TxnOffsetCommitResponse
    partition = asked.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = asked.TxnOffsetCommitRequestTopic(name="orders", partitions=[partition])
    body = asked(transactional_id="pay", group_id="billing", producer_id=7, topics=[topic])
    return "TxnOffsetCommit", 3, body, told()


def ended(*, committed: bool) -> Traffic:
    traffic = begun()
    traffic.add(2, *initialize(0))
    traffic.add(3, *commit(0, 2))
    traffic.add(5, *in_transaction(10))
    traffic.add(6, *end(0, committed=committed))
    return traffic


def left_open() -> Traffic:
    traffic = ended(committed=True)
    traffic.add(7, *in_transaction(5))
    traffic.add(8, *initialize(1))
    return traffic


def kept() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    api, version, asked, _ = commit(0, 10)
    traffic.add(4, api, version, asked, None)
    traffic.kept()
    return traffic


def created_again() -> Traffic:
    traffic = begun(100)
    gone = m.DeleteTopicsResponse.DeletableTopicResult(name="orders")
    asked = m.DeleteTopicsRequest(topic_names=["orders"])
    traffic.add(2, "DeleteTopics", 4, asked, m.DeleteTopicsResponse(responses=[gone]))
    traffic.add(3, *produce(0, 0, b"k", b"k"))
    traffic.add(4, *commit(0, 2))
    return traffic


def without_group() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    gone = m.DeleteGroupsResponse.DeletableGroupResult(group_id="billing")
    asked = m.DeleteGroupsRequest(groups_names=["billing"])
    traffic.add(4, "DeleteGroups", 1, asked, m.DeleteGroupsResponse(results=[gone]))
    return traffic


def without_offset() -> Traffic:
    traffic = begun()
    traffic.add(3, *commit(0, 2))
    asked, told = m.OffsetDeleteRequest, m.OffsetDeleteResponse
    topic = asked.OffsetDeleteRequestTopic(
        name="orders", partitions=[asked.OffsetDeleteRequestPartition(partition_index=0)]
    )
    gone = told.OffsetDeleteResponseTopic(
        name="orders", partitions=[told.OffsetDeleteResponsePartition(partition_index=0)]
    )
    asked, told = asked(group_id="billing", topics=[topic]), told(topics=[gone])
    traffic.add(4, "OffsetDelete", 0, asked, told)
    return traffic


@pytest.mark.parametrize(
    ("traffic", "committed", "lag"),
    [
        pytest.param(ended(committed=False), 2, 8, id="aborted"),
        pytest.param(ended(committed=True), 10, 0, id="committed"),
        pytest.param(left_open(), 10, 0, id="left open"),
        pytest.param(kept(), 2, 8, id="kept by a rule"),
        pytest.param(created_again(), 2, 0, id="topic created again"),
        pytest.param(without_group(), None, None, id="group deleted"),
        pytest.param(without_offset(), None, None, id="offset deleted"),
    ],
)
def test_what_is_said_of_a_group(tmp_path, traffic: Traffic, committed, lag):
    path = traffic.recorded(tmp_path)
    data, behaviour = light_data([path]), Behaviour()
    for each in recording.read([path]):
        behaviour.add(each)
    (group,) = data.groups
    assert group["lag"] == lag
    assert [each["committed"] for each in group["partitions"]] == [committed] * (lag is not None)
    told = [each.text for each in data.findings if "behind the end" in each.text]
    assert len(told) == bool(lag) and all(f"{lag} offsets behind" in each for each in told)
    assert behaviour.groups["billing"].committed.get(("orders", 0)) == committed


def test_each_of_several_members_leaves_with_its_own_error(tmp_path):
    asked, told = m.LeaveGroupRequest, m.LeaveGroupResponse
    names = ("one", "two")
    leaving = asked(
        group_id="billing", members=[asked.MemberIdentity(member_id=each) for each in names]
    )
    answers = [
        told.MemberResponse(member_id="one"),
        told.MemberResponse(member_id="two", error_code=25),
    ]
    traffic = begun()
    traffic.add(2, "LeaveGroup", 3, leaving, told(members=answers))
    (group,) = light_data([traffic.recorded(tmp_path)]).groups
    assert (group["members"], group["errors"]) == (2, 1)
