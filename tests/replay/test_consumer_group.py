"""Groups of KIP-848 at the replaying broker."""

from __future__ import annotations

import attrs
from hypothesis import example, given
from hypothesis import strategies as st

from kproxy.replay.settings import ReplaySettings, Visible
from kproxy.wire.protocol import error_name, messages
from tests.replay.making import ORDERS_ID, Client, Playing, Recorded

PARTITIONS = 4


@attrs.define(eq=False)
class Member:
    """A consumer that does what it is told."""

    client: Client
    member_id: str
    epoch: int = 0
    owned: set[int] = attrs.Factory(set)
    regex: str | None = None
    instance_id: str | None = None

    def beat(self):
        """One heartbeat: take and give up what the answer says."""
        answer = self.client.ask(1, self.heartbeat())
        if answer.error_code:
            return error_name(answer.error_code)
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            found = answer.assignment.topic_partitions
            assert all(each.topic_id == ORDERS_ID for each in found)
            self.owned = {index for each in found for index in each.partitions}
        return answer

    def heartbeat(self):
        """The request."""
        request = messages.ConsumerGroupHeartbeatRequest
        owned = [request.TopicPartitions(topic_id=ORDERS_ID, partitions=sorted(self.owned))]
        joining = self.epoch == 0
        return request(
            group_id="g",
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            rebalance_timeout_ms=60_000 if joining else -1,
            subscribed_topic_names=["orders"] if joining and not self.regex else None,
            subscribed_topic_regex=self.regex if joining else None,
            topic_partitions=owned if self.owned or joining else [],
        )

    def leave(self, epoch: int = -1) -> None:
        """Leave the group."""
        self.epoch = epoch
        assert self.client.ask(1, self.heartbeat()).member_epoch == epoch
        self.epoch, self.owned = 0, set()


def playing() -> Playing:
    return Playing(Recorded().metadata(partitions=PARTITIONS).loaded)


def settle(*members: Member) -> None:
    for _ in range(6):
        for member in members:
            member.beat()


def test_one_member_gets_everything_at_once() -> None:
    member = Member(playing().connect(), "a")
    member.beat()
    assert member.owned == set(range(PARTITIONS))
    answer = member.beat()
    assert answer.assignment is None, "nothing has changed"


def test_a_second_member_gets_its_share_when_the_first_has_let_go() -> None:
    broker = playing()
    first, second = Member(broker.connect(), "a"), Member(broker.connect(), "b")
    first.beat()
    second.beat()
    assert second.owned == set()
    first.beat()
    second.beat()
    assert second.owned == set(), "the first has not said yet that it has let go"
    settle(first, second)
    assert len(first.owned) == len(second.owned) == PARTITIONS // 2
    assert first.epoch == second.epoch


def test_who_leaves_and_who_falls_silent_leave_their_partitions() -> None:
    broker = playing()
    first, second = Member(broker.connect(), "a"), Member(broker.connect(), "b")
    settle(first, second)
    second.leave()
    settle(first)
    assert first.owned == set(range(PARTITIONS))
    settle(first, second)
    for _ in range(5):
        broker.pass_ms(20_000)
        first.beat()
    assert first.owned == set(range(PARTITIONS))
    assert second.beat() == "UNKNOWN_MEMBER_ID"


def test_topics_by_regular_expression() -> None:
    member = Member(playing().connect(), "a", regex="or.*")
    member.beat()
    assert member.owned == set(range(PARTITIONS))
    broken = Member(playing().connect(), "b", regex="(")
    assert broken.beat() == "INVALID_REGULAR_EXPRESSION"


def test_a_member_with_another_epoch_is_fenced() -> None:
    member = Member(playing().connect(), "a")
    member.beat()
    member.epoch += 5
    assert member.beat() == "FENCED_MEMBER_EPOCH"


def test_a_static_member_comes_back_to_its_partitions() -> None:
    broker = playing()
    first = Member(broker.connect(), "a", instance_id="one")
    second = Member(broker.connect(), "b", instance_id="two")
    settle(first, second)
    had = first.owned
    first.leave(epoch=-2)
    settle(second)
    assert second.owned.isdisjoint(had)
    again = Member(broker.connect(), "c", instance_id="one")
    settle(again, second)
    assert again.owned == had
    third = Member(broker.connect(), "d", instance_id="two")
    assert third.beat() == "UNRELEASED_INSTANCE_ID"


def test_the_group_is_described() -> None:
    broker = playing()
    member = Member(broker.connect(), "a")
    member.beat()
    request = messages.ConsumerGroupDescribeRequest
    (found,) = broker.connect().ask(1, request(group_ids=["g"])).groups
    assert found.group_state == "Stable"
    (one,) = found.members
    assert one.assignment.topic_partitions[0].partitions == list(range(PARTITIONS))
    (none,) = broker.connect().ask(1, request(group_ids=["x"])).groups
    assert error_name(none.error_code) == "GROUP_ID_NOT_FOUND"


@example([(0, "beat"), (1, "beat"), (2, "beat")])
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["beat", "leave"])), max_size=40))
def test_no_partition_ever_has_two_owners_and_all_get_one_in_the_end(steps) -> None:
    broker = playing()
    members = [Member(broker.connect(), f"m{index}") for index in range(4)]
    joined: set[int] = set()
    for index, step in steps:
        if step == "beat":
            assert not isinstance(members[index].beat(), str)
            joined.add(index)
        elif index in joined:
            members[index].leave()
            joined.discard(index)
        owned = [part for each in joined for part in members[each].owned]
        assert len(owned) == len(set(owned))
    left = [members[index] for index in joined]
    settle(*left, *left)
    if left:
        shares = [len(member.owned) for member in left]
        assert sum(shares) == PARTITIONS
        assert max(shares) - min(shares) <= 1


def test_members_follow_topics_that_are_created_and_deleted() -> None:
    request, response = messages.CreateTopicsRequest, messages.CreateTopicsResponse
    topic = request.CreatableTopic(name="orders", num_partitions=PARTITIONS)
    made = response.CreatableTopicResult(
        name="orders", topic_id=ORDERS_ID, num_partitions=PARTITIONS
    )
    created = request(topics=[topic])
    recorded = Recorded().metadata("other").add(7, created, response(topics=[made]))
    broker = Playing(recorded.loaded, ReplaySettings(visible=Visible.CAUSAL))
    member, admin = Member(broker.connect(), "a"), broker.connect()
    deleted = messages.DeleteTopicsRequest(topic_names=["orders"])
    settle(member)
    assert member.owned == set()
    for _ in range(2):
        admin.ask(7, created)
        settle(member)
        assert member.owned == set(range(PARTITIONS))
        assert admin.ask(5, deleted).responses[0].error_code == 0
        settle(member)
        assert member.owned == set()
