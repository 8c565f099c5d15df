"""`kproxy why group:G`: who joined and left, and why."""

from __future__ import annotations

import struct

import pytest

from kproxy.exchange import notes
from kproxy.wire.protocol import messages
from tests.exchange.bodies import ORDERS
from tests.exchange.making import MS, START_NS, opened
from tests.look.why.test_key import commit as committed
from tests.look.why.test_key import fetch
from tests.look.why.traffic import Traffic, beat, ends, join, leave, sync, two_members

M = messages


def test_a_member_that_beats_and_does_not_join_again_is_not_called_silent(tmp_path):
    traffic = two_members()
    traffic.add(2000, *join("m-a", 4, ["m-a"]), took_ms=9000, client="fast")
    told = traffic.add(3000, *beat("m-b", 3, error_code=27), connection=2, client="slow")
    traffic.add(6000, *beat("m-b", 3, error_code=27), connection=2, client="slow")
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "3 → 4" in each)
    assert f"slow did not join again, as Heartbeat #{told} had told it to." in line
    assert "silence" not in line


def test_a_member_that_leaves_says_why(tmp_path):
    traffic = two_members()
    why = "consumer poll timeout has expired"
    number = traffic.add(5000, *leave("m-b", 5, reason=why), connection=2, client="slow")
    traffic.add(5100, *join("m-a", 4, ["m-a"]), client="fast")
    found = traffic.story(tmp_path, "group", "billing")
    assert f"slow leaves with #{number}: “{why}”." in found[-2]
    assert f"generation 3 → 4: slow left with #{number} (“{why}”)" in found[-1]


def test_what_is_wrong_stands_before_what_happened_and_lives_alike_are_folded(tmp_path):
    traffic = Traffic()
    for life in range(20):
        one = f"m-{life}"
        traffic.add(1000 * life, *join(one, life + 1, [one], leader=one), client="pay")
        traffic.add(1000 * life + 10, *sync(one, life + 1, 0), client="pay")
        traffic.add(1000 * life + 20, *fetch(0, 5, b"k"), client="pay")
        traffic.add(1000 * life + 30, *leave(one), client="pay")
    told = traffic.story(tmp_path, "group", "billing")
    assert told[0] == "Group billing committed nothing, and fetched the same records again."
    assert told[1].startswith("  orders[0]@5 came with Fetch #3")
    assert any("more like these before …" in line for line in told) and len(told) < 20
    assert "generation 19 → 20" in told[-2] and "leaves with #80" in told[-1]


def test_a_member_that_comes_and_one_that_holds_up_the_rest(tmp_path):
    traffic = two_members()
    traffic.add(3000, *join("m-c", 4, leader="m-a"), took_ms=2501, connection=3, client="new")
    traffic.add(3100, *join("m-a", 4, ["m-a", "m-b", "m-c"]), took_ms=2400, client="fast")
    late = traffic.add(5500, *join("m-b", 4), connection=2, client="slow")
    last = traffic.add(5510, *sync("m-b", 4, 3), connection=2, client="slow")
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "3 → 4" in each)
    assert "generation 3 → 4: new joined (#5); 2.5 s from the first JoinGroup (#5)" in line
    assert f"to the last assignment (#{last}), of which 2.5 s until slow joined (#{late})" in line


def test_a_member_that_was_never_told_that_it_joined(tmp_path):
    traffic = two_members()
    asked = traffic.add(1000, *join("m-c", 4)[:3], None, connection=3, client="new")
    traffic.entries.append(notes.closed(3, START_NS + 4000 * MS, {}, "eof", "", "client", []))
    traffic.add(6000, *join("m-a", 4, ["m-a", "m-b", "m-c"]), client="fast")
    told = traffic.story(tmp_path, "group", "billing")
    no_answer = "it has no answer: it waited 3.0 s for the broker"
    assert told[1] == f"22:13:21.000 new asks to join (#{asked}); {no_answer}."
    assert f"generation 3 → 4: m-c joined (#{asked}; {no_answer})" in told[2]
    assert "its JoinGroup is not in the recording" not in told[2]


def test_what_is_not_recorded_is_said_to_be_so(tmp_path):
    traffic = two_members()
    traffic.add(3000, *join("m-a", 4, ["m-a", "m-b"]), client="fast")
    traffic.add(3000, *join("m-b", 4), connection=2, client="slow")
    found = traffic.story(tmp_path, "group", "billing")
    assert "fast joined again first (#5); why is not in the recording" in found[1]
    traffic = two_members()
    traffic.add(3000, *join("m-a", 4, ["m-a", "m-z"]), client="fast")
    told = traffic.story(tmp_path, "group", "billing")[1]
    assert "m-z joined; its JoinGroup is not in the recording" in told


def test_nobody_is_said_to_be_gone_where_the_list_of_members_is_not_recorded(tmp_path):
    traffic = two_members()  # of which m-z leads the next generation, not through kproxy
    traffic.add(3000, *join("m-b", 4, leader="m-z"), connection=2, client="slow")
    traffic.add(3100, *sync("m-b", 4, 3), connection=2, client="slow")
    traffic.add(9000, *beat("m-a", 4), client="fast")
    traffic.add(9000, *join("m-b", 5, leader="m-z"), connection=2, client="slow")
    told = traffic.story(tmp_path, "group", "billing")
    assert [line.partition(": ")[2] for line in told[1:]] == [
        (
            "slow joined again first (#5); why is not in the recording; whether fast is still a"
            " member is not in the recording; 101 ms from the first JoinGroup (#5) to the last"
            " assignment (#6). slow has orders[3] (#6)."
        ),
        "slow joined again first (#8); why is not in the recording.",
    ]


def test_how_many_members_there_are_is_told_where_their_list_is_recorded(tmp_path):
    traffic = Traffic()
    traffic.add(0, *join("m-b", 3, leader="m-z"), connection=2, client="slow")
    traffic.add(1000, *join("m-b", 4, leader="m-z"), connection=2, client="slow")
    traffic.add(2000, *join("m-a", 5, ["m-a", "m-b", "m-z"]), client="fast")
    first, _, last = traffic.story(tmp_path, "group", "billing")
    assert "generation 3: slow (#1); who else is in it is not in the recording;" in first
    assert "fast joined (#3); m-z is a member; since when is not in the recording" in last


def test_a_static_member_that_comes_again(tmp_path):
    def static(member: str, generation: int, instance: str):
        return join(member, generation, ["m-a", member], group_instance_id=instance)

    traffic = Traffic()
    traffic.add(0, *static("m-a", 1, "one"), client="first")
    traffic.add(1, *static("m-b", 1, "two"), connection=2, client="second")
    traffic.add(10, *sync("m-a", 1, 0), client="first")
    traffic.add(10, *sync("m-b", 1, 1), connection=2, client="second")
    traffic.add(1000, *beat("m-b", 1), connection=2, client="second")  # 5
    ends(traffic, 2500, connection=2)
    traffic.entries.append(opened(3, node_id=1))
    traffic.add(3001, *static("m-b2", 1, "two"), connection=3, client="second")  # 6
    traffic.add(3002, *sync("m-b2", 1, 1), connection=3, client="second")
    traffic.add(4000, *beat("m-b2", 1), connection=3, client="second")
    traffic.add(5000, *leave(version=3, group_instance_id="two"), client="admin")  # 9
    traffic.add(5100, *join("m-a", 2, ["m-a"], group_instance_id="one"), client="first")
    assert traffic.story(tmp_path, "group", "billing") == [
        (
            "22:13:20.010 generation 1: 2 members, first (#1), second (connection 2) (#2). first"
            " has orders[0] (#3), second (connection 2) has orders[1] (#4)."
        ),
        (
            "22:13:23.001 second (connection 3) comes again as static member two (JoinGroup #6),"
            " 2.0 s after Heartbeat #5; the group does not rebalance."
        ),
        "22:13:25.000 second (connection 3) leaves with #9; why is not in the recording.",
        "22:13:25.100 generation 1 → 2: second (connection 3) left with #9.",
    ]


def taken(traffic: Traffic, client: str) -> list[int]:
    """Two processes with one group.instance.id: the second takes it; the numbers of its JoinGroup,
    of the refused Heartbeat of the first, and of one of its own."""
    traffic.entries.append(opened(3, node_id=1))
    given = {"group_instance_id": "pod-0"}
    traffic.add(0, *join("m-a", 1, ["m-a"], **given), client="first")
    traffic.add(10, *sync("m-a", 1, 0), client="first")
    took = traffic.add(1000, *join("m-c", 1, leader="m-a", **given), connection=3, client=client)
    api, version, asked, answered = beat("m-a", 1, error_code=82)
    asked.group_instance_id = "pod-0"
    refused = traffic.add(1500, api, version, asked, answered, client="first")
    told = traffic.add(2000, *beat("m-c", 1, error_code=27), connection=3, client=client)
    return [took, refused, told]


def cooperative(*owned: int, topic: str = "orders"):
    """A subscription to a topic of a member that has partitions of it."""
    name = struct.pack(">h", len(topic)) + topic.encode()
    numbers = struct.pack(f">ii{len(owned)}i", 1, len(owned), *owned) if owned else b""
    head = struct.pack(">hi", 1, 1) + name + struct.pack(">i", -1)
    metadata = head + (numbers[:4] + name + numbers[4:] if owned else struct.pack(">i", 0))
    protocol = M.JoinGroupRequest.JoinGroupRequestProtocol
    return {"protocols": [protocol(name="cooperative-sticky", metadata=metadata)]}


@pytest.mark.parametrize("topic", ["orders", "payments"])
def test_why_the_same_members_join_again(tmp_path, topic):
    traffic = Traffic()
    both = ["m-a", "m-b"]
    gives_up = topic == "orders"
    traffic.add(0, *join("m-a", 3, both, **cooperative(0, 1)), client="fast")
    traffic.add(1, *join("m-b", 3, **cooperative()), connection=2, client="slow")
    traffic.add(10, *sync("m-a", 3, *([0] if gives_up else [0, 1])), client="fast")
    traffic.add(10, *sync("m-b", 3), connection=2, client="slow")
    again = cooperative(0, topic=topic)
    traffic.add(20, *join("m-a", 4, both, **again), client="fast")
    traffic.add(21, *join("m-b", 4, **cooperative()), connection=2, client="slow")
    told = traffic.story(tmp_path, "group", "billing")
    (line,) = [each for each in told if "generation 3 → 4" in each]
    because = ": it subscribes to payments now"
    if gives_up:
        because = ": it gave up orders[1], and cooperative members join again then"
    assert f"fast joined again first (#5){because}" in line


def test_two_processes_of_one_client_id_and_one_instance_id(tmp_path):
    traffic = Traffic()
    _, refused, _ = taken(traffic, "first")
    first, took, fenced, learns = traffic.story(tmp_path, "group", "billing")[3:]
    assert "first (connection 1) has orders[0]" in first
    assert "first (127.0.0.1:5003) on connection 3 takes" in took
    assert f"first (connection 1) is refused: Heartbeat #{refused}" in fenced
    assert "first (connection 3) learns" in learns


def commit(member: str, generation: int, error: int = 0):
    made = committed(0, 1, error)
    made[2].member_id, made[2].generation_id_or_member_epoch = member, generation
    return made


@pytest.mark.parametrize("at_ms", [500, 3000])
def test_a_member_that_did_not_poll_in_time(tmp_path, at_ms):
    traffic = Traffic()
    traffic.add(0, *join("m-b", 3, ["m-b"], rebalance_timeout_ms=5000))
    traffic.add(10, *sync("m-b", 3, 0))
    last = traffic.add(at_ms, *commit("m-b", 3))
    left = traffic.add(6000, *leave("m-b"))
    refused = traffic.add(8000, *commit("", 3, error=25))
    traffic.add(8010, *join("m-c", 5, ["m-c"]))
    leaves, late = traffic.story(tmp_path, "group", "billing")[1:3]
    text = f"; its last OffsetCommit #{last} was 5.5 s before, longer than this timeout."
    assert leaves.endswith(text) is (at_ms == 500)
    assert f"22:13:28.000 a (m-b) is refused: OffsetCommit #{refused} → UNKNOWN_MEMBER_ID" in late
    assert late.endswith(f"; it had left with #{left}.")


def test_a_member_of_kip_848_that_is_silent_and_what_is_said_twice(tmp_path):
    H, R = M.ConsumerGroupHeartbeatRequest, M.ConsumerGroupHeartbeatResponse

    def given(*numbers: int):
        topics = [R.TopicPartitions(topic_id=ORDERS, partitions=list(numbers))]
        return R.Assignment(topic_partitions=topics if numbers else [])

    def owned(*numbers: int):
        return [H.TopicPartitions(topic_id=ORDERS, partitions=list(numbers))] if numbers else []

    def heartbeat(member: str, epoch: int, told: int, owns=None, **body):
        asked = H(group_id="billing", member_id=member, member_epoch=epoch, topic_partitions=owns)
        answered = R(member_id=member, member_epoch=told, heartbeat_interval_ms=500, **body)
        return "ConsumerGroupHeartbeat", 1, asked, answered

    traffic = Traffic()
    traffic.add(0, *heartbeat("a", 0, 1, owned(), assignment=given(0)), client="lives")
    traffic.add(1, *heartbeat("b", 0, 1, owned(), assignment=given(1)), client="dies")
    traffic.add(500, *heartbeat("a", 1, 1, owned(0), assignment=given(0)), client="lives")
    traffic.add(501, *heartbeat("b", 1, 1, owned(1)), client="dies")  # 4
    traffic.add(1000, *heartbeat("a", 1, 1, owned(0)), client="lives")
    traffic.add(9000, *heartbeat("a", 1, 2, assignment=given(0, 1)), client="lives")  # 6
    traffic.add(9500, *heartbeat("a", 2, 3, assignment=given(0, 1)), client="lives")  # 7
    traffic.add(9600, *heartbeat("b", 1, 1), client="dies")  # 8
    traffic.add(12000, *heartbeat("a", 3, 4, assignment=given(0, 1)), client="lives")  # 9
    found = traffic.story(tmp_path, "group", "billing")
    told = [line for line in found if not line.startswith("22:13:20.00")]
    where = "EjRWeBI0VngSNFZ4EjRWeA"
    assert told == [
        f"22:13:20.500 lives says that it owns {where}[0] (#3).",
        f"22:13:20.501 dies says that it owns {where}[1] (#4).",
        (
            f"22:13:29.000 epoch 2: lives is to have {where}[0,1] (#6); dies, which owned"
            f" {where}[1], has been silent for 8.5 s, since #4 at 22:13:20.501."
        ),
        f"22:13:29.500 epoch 3: lives is to have {where}[0,1] (#7).",
        (
            f"22:13:32.000 epoch 4: lives is to have {where}[0,1] (#9); dies, which owned"
            f" {where}[1], has been silent for 2.4 s, since #8 at 22:13:29.600."
        ),
    ]
