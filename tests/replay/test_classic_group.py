"""Groups of the classic protocol at the replaying broker."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from kproxy.wire.protocol import error_name, messages
from tests.replay.making import Client, Playing, Recorded

SESSION_MS = 10_000
REBALANCE_MS = 30_000


@attrs.define(eq=False)
class Member:
    """A consumer that speaks the protocol by hand."""

    client: Client
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1

    def join(self, version: int = 9, protocols: tuple[str, ...] = ("range",)) -> None:
        """Send JoinGroup, twice if the broker wants to give an id first (KIP-394)."""
        self.client.send(version, self._join(protocols))
        answers = self.client.answers
        if answers and error_name(answers[0].error_code) == "MEMBER_ID_REQUIRED":
            self.member_id = answers[0].member_id
            self.client.send(version, self._join(protocols))
            answers = self.client.answers
        self.early = answers

    early: list[Any] = attrs.Factory(list)

    def _join(self, protocols: tuple[str, ...]):
        request = messages.JoinGroupRequest
        return request(
            group_id="g",
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                request.JoinGroupRequestProtocol(name=name, metadata=name.encode())
                for name in protocols
            ],
        )

    def joined(self):
        """The answer to JoinGroup; it must have come."""
        (answer,) = self.early or self.client.answers
        self.early = []
        assert answer.error_code == 0, error_name(answer.error_code)
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    def sync(self, **assignments: bytes) -> None:
        """Send SyncGroup, as the leader with assignments by member id."""
        request = messages.SyncGroupRequest
        given = [
            request.SyncGroupRequestAssignment(member_id=name, assignment=data)
            for name, data in assignments.items()
        ]
        self.client.send(
            5,
            request(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=given,
            ),
        )

    def beat(self) -> str:
        """Send Heartbeat; the name of its error."""
        request = messages.HeartbeatRequest
        answer = self.client.ask(
            4,
            request(
                group_id="g",
                generation_id=self.generation,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            ),
        )
        return error_name(answer.error_code)

    def leave(self) -> str:
        """Send LeaveGroup; the name of its error."""
        request = messages.LeaveGroupRequest
        me = request.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance_id)
        answer = self.client.ask(5, request(group_id="g", members=[me]))
        return error_name(answer.members[0].error_code)


def playing() -> Playing:
    return Playing(Recorded().metadata(partitions=2).loaded)


def alone(broker: Playing, instance_id: str | None = None) -> Member:
    member = Member(broker.connect(), instance_id)
    member.join()
    answer = member.joined()
    assert answer.leader == member.member_id
    member.sync(**{member.member_id: b"all"})
    (synced,) = member.client.answers
    assert synced.assignment == b"all"
    return member


def two(broker: Playing) -> tuple[Member, Member]:
    """A group of two; the first leads."""
    first = alone(broker)
    second = Member(broker.connect())
    second.join()
    assert second.early == [], "it waits until the first has joined again"
    assert first.beat() == "REBALANCE_IN_PROGRESS"
    first.join()
    answer = first.joined()
    assert {each.member_id for each in answer.members} == {
        first.member_id,
        second.joined().member_id,
    }
    second.sync()
    assert second.client.answers == [], "it waits for the leader"
    first.sync(**{first.member_id: b"one", second.member_id: b"two"})
    assert [each.assignment for each in first.client.answers] == [b"one"]
    assert [each.assignment for each in second.client.answers] == [b"two"]
    return first, second


def test_a_member_that_does_not_join_again_is_waited_for_as_long_as_it_wants() -> None:
    broker = playing()
    first, second = alone(broker), Member(broker.connect())
    second.join()
    for _ in range(3):
        assert first.beat() == "REBALANCE_IN_PROGRESS"
        broker.pass_ms(REBALANCE_MS // 3 - 1)
        assert second.client.frames == []
    broker.pass_ms(4)
    assert second.joined().leader == second.member_id
    assert first.beat() == "UNKNOWN_MEMBER_ID"


def test_old_clients_join_at_once() -> None:
    member = Member(playing().connect())
    member.join(version=0)
    assert member.joined().generation_id == 1


def test_who_leaves_makes_the_others_join_again() -> None:
    first, second = two(playing())
    assert second.leave() == "NONE"
    assert first.beat() == "REBALANCE_IN_PROGRESS"
    first.join()
    assert [each.member_id for each in first.joined().members] == [first.member_id]
    assert second.beat() == "UNKNOWN_MEMBER_ID"


def test_who_subscribes_to_something_else_makes_the_others_join_again() -> None:
    first, second = two(playing())
    generation = second.generation
    second.join()
    assert second.joined().generation_id == generation, "nothing has changed"
    assert first.beat() == "NONE"
    second.join(protocols=("range", "sticky"))
    assert second.early == [] and first.beat() == "REBALANCE_IN_PROGRESS"
    first.join()
    assert second.joined().generation_id == first.joined().generation_id == generation + 1


def test_the_assignor_is_that_which_most_members_like_best() -> None:
    broker = playing()
    likes = [("range", "sticky"), ("sticky", "range"), ("sticky", "range")]
    members = [Member(broker.connect()) for _ in likes]
    members[0].join(protocols=likes[0])
    assert members[0].joined().protocol_name == "range"
    for member, protocols in zip(members[1:], likes[1:], strict=True):
        member.join(protocols=protocols)
    members[0].join(protocols=likes[0])
    assert {each.joined().protocol_name for each in members} == {"sticky"}


def test_who_falls_silent_is_out_after_its_session() -> None:
    broker = playing()
    first, second = two(broker)
    for _ in range(3):
        broker.pass_ms(SESSION_MS * 0.4)
        last = first.beat()
    assert last == "REBALANCE_IN_PROGRESS"
    first.join()
    assert len(first.joined().members) == 1
    assert second.beat() == "UNKNOWN_MEMBER_ID"


def test_who_does_not_join_again_in_time_is_out() -> None:
    broker = playing()
    first = alone(broker)
    second = Member(broker.connect())
    second.join()
    for _ in range(6):
        broker.pass_ms(REBALANCE_MS / 6)
        first.beat()
    assert [each.member_id for each in second.joined().members] == [second.member_id]
    assert first.beat() == "UNKNOWN_MEMBER_ID"


def test_a_member_that_follows_an_old_generation_is_told() -> None:
    first, _ = two(playing())
    first.generation = 1
    assert first.beat() == "ILLEGAL_GENERATION"


def test_members_without_a_common_assignor_are_refused() -> None:
    broker = playing()
    alone(broker)
    other = Member(broker.connect())
    other.join(protocols=("sticky",))
    (answer,) = other.early
    assert error_name(answer.error_code) == "INCONSISTENT_GROUP_PROTOCOL"


@pytest.mark.parametrize("version", [3, 9])
def test_a_member_without_an_assignor_is_refused(version: int) -> None:
    lone = Member(playing().connect())
    lone.join(version, protocols=())
    assert [error_name(each.error_code) for each in lone.early] == ["INCONSISTENT_GROUP_PROTOCOL"]


def test_a_static_member_that_comes_back_keeps_its_place() -> None:
    broker = playing()
    member = alone(broker, "me")
    again = Member(broker.connect(), "me")
    again.join()
    answer = again.joined()
    assert answer.generation_id == member.generation
    assert answer.skip_assignment
    again.sync()
    (synced,) = again.client.answers
    assert synced.assignment == b"all"
    assert member.beat() == "FENCED_INSTANCE_ID"
    assert again.beat() == "NONE"


def test_the_group_is_described_and_listed() -> None:
    broker = playing()
    first, second = two(broker)
    client = broker.connect()
    (listed,) = client.ask(5, messages.ListGroupsRequest()).groups
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "classic")
    request = messages.DescribeGroupsRequest
    (found,) = client.ask(5, request(groups=["g"])).groups
    assert {each.member_assignment for each in found.members} == {b"one", b"two"}
    (dead,) = client.ask(6, request(groups=["none"])).groups
    assert (dead.group_state, error_name(dead.error_code)) == ("Dead", "GROUP_ID_NOT_FOUND")
    assert second.leave() == first.leave() == "NONE"
    (found,) = client.ask(5, request(groups=["g"])).groups
    assert found.group_state == "Empty"
