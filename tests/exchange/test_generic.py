"""APIs without words of their own."""

from __future__ import annotations

from kproxy.wire.protocol import messages
from tests.exchange.bodies import words

M = messages


def test_apis_without_words_of_their_own_are_described_by_their_definition():
    ListedGroup = M.ListGroupsResponse.ListedGroup
    groups = [ListedGroup(group_id="checkout"), ListedGroup(group_id="billing")]
    asked, answered = M.ListGroupsRequest(states_filter=["Stable"]), M.ListGroupsResponse()
    answered.groups = groups
    assert words("ListGroups", 4, asked, answered) == "Stable → billing, checkout"
    assert words("DeleteGroups", 2, M.DeleteGroupsRequest(groups_names=["a", "b"])) == "a, b → "
    asked = M.DescribeProducersRequest(
        topics=[M.DescribeProducersRequest.TopicRequest(name="orders", partition_indexes=[0])]
    )
    assert words("DescribeProducers", 0, asked) == "orders → "
    asked = M.UnregisterBrokerRequest(broker_id=7)
    assert words("UnregisterBroker", 0, asked) == "broker_id 7 → "
    asked = M.BrokerHeartbeatRequest(broker_id=1, broker_epoch=2, want_fence=True)
    assert words("BrokerHeartbeat", 0, asked).startswith("broker_id 1, broker_epoch 2, ")
