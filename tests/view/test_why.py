"""`kproxy why`: stories that a reader can check against the recording."""

from __future__ import annotations

import io

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.protocol import messages
from kproxy.recording import Recording
from kproxy.view.why import show_why
from tests.exchange.bodies import ORDERS, fetch_request, fetch_response
from tests.exchange.making import MS, START_NS, opened, request, response
from tests.exchange.test_words_groups import assignment

M = messages
SECOND = 1000 * MS


class Traffic:
    """Makes exchanges at given times, in milliseconds from the start."""

    def __init__(self) -> None:
        self.entries: list = [opened(1, node_id=1), opened(2, node_id=1)]
        self.number = 0

    def add(self, time_ms, api, version, asked, answered, took_ms=1, connection=1, client="a"):
        """An exchange; without an answer, a request. Returns its number."""
        self.number += 1
        frame = request(api, version, asked, self.number, connection)
        old = frame.data
        name = client.encode()
        size = len(old) - 4 - 3 + len(name)
        data = size.to_bytes(4) + old[4:12] + len(name).to_bytes(2) + name + old[17:]
        at = START_NS + time_ms * MS
        frame = attrs.evolve(
            frame, received_ns=at, sent_ns=at, pieces=[data], frame_bytes=len(data)
        )
        self.entries.append(frame)
        if answered is not None:
            back = response(frame, answered)
            done = at + round(took_ms * MS)
            self.entries.append(attrs.evolve(back, received_ns=done, sent_ns=done))
        return self.number

    def recorded(self, tmp_path):
        """The recording of it, in order of time."""
        path = tmp_path / "story.mcap"
        path.unlink(missing_ok=True)
        recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
        recording.write(sorted(self.entries, key=lambda entry: entry.time_ns))
        recording.close()
        return path

    def story(self, tmp_path, key, value) -> list[str]:
        """What `kproxy why` says."""
        out = io.StringIO()
        show_why([self.recorded(tmp_path)], key, value, out)
        return out.getvalue().splitlines()


def join(member: str, generation: int, members=(), leader: str = "m-a", **given):
    J = M.JoinGroupResponse
    found = [J.JoinGroupResponseMember(member_id=each) for each in members]
    asked = M.JoinGroupRequest(
        group_id="billing", member_id=member, session_timeout_ms=6000, protocol_type="consumer"
    )
    for name, value in given.items():
        setattr(asked, name, value)
    body = J(generation_id=generation, member_id=member, leader=leader, members=found)
    return "JoinGroup", 8, asked, body


def sync(member: str, generation: int, *owned: int):
    asked = M.SyncGroupRequest(group_id="billing", generation_id=generation, member_id=member)
    return "SyncGroup", 3, asked, M.SyncGroupResponse(assignment=assignment("orders", *owned))


def beat(member: str, generation: int, error_code: int = 0):
    asked = M.HeartbeatRequest(group_id="billing", generation_id=generation, member_id=member)
    return "Heartbeat", 3, asked, M.HeartbeatResponse(error_code=error_code)


def two_members() -> Traffic:
    traffic = Traffic()
    traffic.add(0, *join("m-a", 3, ["m-a", "m-b"]), client="fast")
    traffic.add(0, *join("m-b", 3), connection=2, client="slow")
    traffic.add(10, *sync("m-a", 3, 0, 1), client="fast")
    traffic.add(10, *sync("m-b", 3, 2, 3), connection=2, client="slow")
    return traffic


def test_a_member_that_is_silent_for_too_long(tmp_path):
    traffic = two_members()
    traffic.add(500, *beat("m-b", 3), connection=2, client="slow")  # 5
    traffic.add(7000, *beat("m-a", 3, error_code=27), client="fast")  # 6
    traffic.add(7010, *join("m-a", 4, ["m-a"]), took_ms=990, client="fast")  # 7
    traffic.add(8010, *sync("m-a", 4, 0, 1, 2, 3), client="fast")  # 8
    traffic.add(9000, *beat("m-b", 3, error_code=25), connection=2, client="slow")  # 9
    assert traffic.story(tmp_path, "group", "billing") == [
        (
            "22:13:20.001 generation 3: 2 members, fast (#1), slow (#2); what was before is not in"
            " the recording. fast has orders[0,1] (#3), slow has orders[2,3] (#4)."
        ),
        "22:13:27.001 fast learns that the group rebalances: Heartbeat #6 → REBALANCE_IN_PROGRESS.",
        (
            "22:13:28.000 generation 3 → 4: slow left after 7.5 s of silence (since Heartbeat #5,"
            " its session timeout is 6.0 s); 1.0 s from the first JoinGroup (#7) to the last"
            " assignment (#8). fast has orders[0,1,2,3] (#8)."
        ),
        "22:13:29.001 slow is refused: Heartbeat #9 → UNKNOWN_MEMBER_ID.",
    ]


def test_a_member_that_leaves_says_why(tmp_path):
    traffic = two_members()
    L = M.LeaveGroupRequest
    why = "consumer poll timeout has expired"
    leaving = L(group_id="billing", members=[L.MemberIdentity(member_id="m-b", reason=why)])
    left = M.LeaveGroupResponse()
    number = traffic.add(5000, "LeaveGroup", 5, leaving, left, connection=2, client="slow")
    traffic.add(5100, *join("m-a", 4, ["m-a"]), client="fast")
    found = traffic.story(tmp_path, "group", "billing")
    assert f"slow leaves with #{number}: “{why}”." in found[1]
    assert f"generation 3 → 4: slow left with #{number} (“{why}”)" in found[2]


def test_a_member_that_comes_and_one_that_holds_up_the_rest(tmp_path):
    traffic = two_members()
    traffic.add(3000, *join("m-c", 4, leader="m-a"), took_ms=2501, connection=3, client="new")
    traffic.add(3100, *join("m-a", 4, ["m-a", "m-b", "m-c"]), took_ms=2400, client="fast")
    late = traffic.add(5500, *join("m-b", 4), connection=2, client="slow")
    last = traffic.add(5510, *sync("m-b", 4, 3), connection=2, client="slow")
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "3 → 4" in each)
    assert "generation 3 → 4: new joined (#5); 2.4 s from the first JoinGroup (#6)" in line
    assert f"to the last assignment (#{last}), of which 2.4 s until slow joined (#{late})" in line


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


def test_a_member_that_was_refused_to_leave_has_not_left(tmp_path):
    traffic = two_members()
    L, R = M.LeaveGroupRequest, M.LeaveGroupResponse
    leaving = L(group_id="billing", members=[L.MemberIdentity(member_id="m-b")])
    refused = R(members=[R.MemberResponse(member_id="m-b", error_code=25)])
    traffic.add(2000, "LeaveGroup", 5, leaving, refused, connection=2, client="slow")
    traffic.add(2500, *join("m-a", 4, ["m-a"]), client="fast")
    told = traffic.story(tmp_path, "group", "billing")[1:]
    assert "slow is refused: LeaveGroup #5 → UNKNOWN_MEMBER_ID." in told[0]
    assert "generation 3 → 4: slow is no member any more, 2.5 s after SyncGroup #4; why" in told[1]


def test_the_silence_of_a_member_is_that_before_it_was_gone(tmp_path):
    def static(member: str, generation: int, members=()):
        return join(member, generation, members, group_instance_id=f"{member[:3]}-instance")

    traffic = Traffic()
    traffic.add(0, *static("m-a", 1, ["m-a", "m-b"]), client="fast")
    traffic.add(0, *static("m-b", 1), connection=2, client="slow")
    traffic.add(500, *beat("m-b", 1), connection=2, client="slow")  # 3
    traffic.add(8500, *static("m-a", 2, ["m-a"]), client="fast")
    traffic.add(20_000, *static("m-b2", 3, ["m-a", "m-b2"]), connection=2, client="slow")
    told = traffic.story(tmp_path, "group", "billing")
    (gone,) = (line for line in told if "1 → 2" in line)
    assert "slow left after 8.0 s of silence (since Heartbeat #3," in gone


# ---- several recordings


def recorded_apart(tmp_path, name: str, traffic: Traffic):
    (tmp_path / name).mkdir()
    return traffic.recorded(tmp_path / name)


def test_each_recording_tells_its_own_story_of_a_group(tmp_path, capsys):
    other = Traffic()
    other.add(60_000, *join("x-1", 7, ["x-1"], leader="x-1"), client="elsewhere")
    other.add(60_010, *sync("x-1", 7, 0), client="elsewhere")
    none = Traffic()
    paths = [
        recorded_apart(tmp_path, name, traffic)
        for name, traffic in (("here", two_members()), ("there", other), ("none", none))
    ]
    assert main(["why", *map(str, paths), "group:billing"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.partition(" ")[2][:13] or line for line in told] == [
        f"{paths[0]}:", "generation 3:", "", f"{paths[1]}:", "generation 7:",
    ]  # fmt: skip
    assert told[4].endswith("elsewhere has orders[0] (#2).")
    assert main(["why", str(paths[0]), "group:billing"]) == 0
    assert capsys.readouterr().out.splitlines() == told[1:2]


@pytest.mark.parametrize("what", ["number:1", "connection:1"])
def test_numbers_of_several_recordings_are_refused_before_a_story_is_told(tmp_path, what, capsys):
    paths = [recorded_apart(tmp_path, name, two_members()) for name in ("here", "there")]
    assert main(["why", *map(str, paths), what]) == 1
    out, err = capsys.readouterr()
    assert out == "" and "begins another recording, with the same numbers" in err


def test_what_the_recording_ends_before_is_not_said_to_have_never_been(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    traffic.add(4000, *beat("m", 1)[:3], None)
    told = traffic.story(tmp_path, "number", "2")
    assert told[0].endswith("→ the recording ends before an answer: waited for the broker")
    assert not [line for line in told if "never" in line]
    told = traffic.story(tmp_path, "connection", "1")
    assert "The recording ends before an answer to Heartbeat #2 of 22:13:24.000." in told
    assert not [line for line in told if "never" in line]


def test_a_group_of_which_only_the_name_is_recorded(tmp_path):
    traffic = Traffic()
    for at in range(8):
        asked = M.TxnOffsetCommitRequest(transactional_id="tx", group_id="eos")
        traffic.add(at, "TxnOffsetCommit", 3, asked, M.TxnOffsetCommitResponse())
    assert traffic.story(tmp_path, "group", "eos") == [
        (
            "Who joins or leaves eos is not in the recording; it is named by TxnOffsetCommit #1,"
            " TxnOffsetCommit #2, TxnOffsetCommit #3, TxnOffsetCommit #4, TxnOffsetCommit #5"
            " and 3 more."
        )
    ]


def test_a_static_member_that_comes_again(tmp_path):
    def static(member: str, generation: int, instance: str):
        return join(member, generation, ["m-a", member], group_instance_id=instance)

    traffic = Traffic()
    traffic.add(0, *static("m-a", 1, "one"), client="first")
    traffic.add(1, *static("m-b", 1, "two"), connection=2, client="second")
    traffic.add(10, *sync("m-a", 1, 0), client="first")
    traffic.add(10, *sync("m-b", 1, 1), connection=2, client="second")
    traffic.add(1000, *beat("m-b", 1), connection=2, client="second")  # 5
    traffic.add(3001, *static("m-b2", 1, "two"), connection=3, client="second")  # 6
    traffic.add(3002, *sync("m-b2", 1, 1), connection=3, client="second")
    traffic.add(4000, *beat("m-b2", 1), connection=3, client="second")
    L = M.LeaveGroupRequest
    leaving = L(group_id="billing", members=[L.MemberIdentity(group_instance_id="two")])
    traffic.add(5000, "LeaveGroup", 3, leaving, M.LeaveGroupResponse(), client="admin")  # 9
    traffic.add(5100, *join("m-a", 2, ["m-a"], group_instance_id="one"), client="first")
    assert traffic.story(tmp_path, "group", "billing") == [
        (
            "22:13:20.001 generation 1: 2 members, first (#1), second (#2). first has orders[0]"
            " (#3), second has orders[1] (#4)."
        ),
        (
            "22:13:23.001 second comes again as static member two (#6), 2.0 s after Heartbeat #5;"
            " the group does not rebalance."
        ),
        "22:13:25.000 second (m-b) leaves with #9; why is not in the recording.",
        "22:13:25.101 generation 1 → 2: second left with #9.",
    ]


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
    where = "id:EjRWeBI0"
    assert told == [
        f"22:13:20.500 lives says that it owns {where}[0] (#3).",
        f"22:13:20.501 dies says that it owns {where}[1] (#4).",
        (
            f"22:13:29.001 epoch 2: lives is to have {where}[0,1] (#6); dies, which owned"
            f" {where}[1], has been silent for 8.5 s, since #4 at 22:13:20.501."
        ),
        f"22:13:29.501 epoch 3: lives is to have {where}[0,1] (#7).",
        (
            f"22:13:32.001 epoch 4: lives is to have {where}[0,1] (#9); dies, which owned"
            f" {where}[1], has been silent for 2.4 s, since #8 at 22:13:29.600."
        ),
    ]


def test_a_group_of_kip_848(tmp_path):
    H, R = M.ConsumerGroupHeartbeatRequest, M.ConsumerGroupHeartbeatResponse
    given = R.Assignment(topic_partitions=[R.TopicPartitions(topic_id=ORDERS, partitions=[0, 1])])

    def heartbeat(epoch: int, **body):
        asked = H(group_id="billing", member_id="m", member_epoch=epoch)
        return "ConsumerGroupHeartbeat", 1, asked, R(member_id="m", **body)

    traffic = Traffic()
    traffic.add(0, *heartbeat(0, member_epoch=5, assignment=given), client="app")
    traffic.add(1000, *heartbeat(5, member_epoch=5), client="app")
    traffic.add(60_000, *heartbeat(5, error_code=110), client="app")
    traffic.add(61_000, *heartbeat(-1, member_epoch=-1), client="app")
    assert traffic.story(tmp_path, "group", "billing") == [
        "22:13:20.000 app joins (#1).",
        "22:13:20.001 epoch 5: app is to have id:EjRWeBI0[0,1] (#1).",
        "22:14:20.001 app is refused: #3 → FENCED_MEMBER_EPOCH, 59.0 s after its last heartbeat.",
        "22:14:21.000 app leaves (#4).",
    ]


# ---- exchanges and connections


def test_where_the_time_of_a_request_went(tmp_path):
    traffic = Traffic()
    polls = fetch_request({0: 5}, max_wait_ms=500)
    traffic.add(0, "Fetch", 11, polls, fetch_response({0: b""}), took_ms=501)
    for number in range(30):
        traffic.add(600 + number, *beat("m", 1), connection=2)
    traffic.add(100, *beat("m", 1), took_ms=431)
    first, *found = traffic.story(tmp_path, "number", "32")
    assert "#32" in first and "queued 401 ms" in first
    assert found == [
        "It came from a on connection 1, which leads to broker 1.",
        (
            "It waited 401 ms behind Fetch #1: brokers answer the requests of a connection one"
            " after the other."
        ),
        (
            "The broker itself took 30.0 ms; the median of the 30 others is 1.00 ms, p99 1.00 ms."
            " Why it took so much longer is not in the recording."
        ),
        "kproxy added 0.00 ms.",
    ]
    found = traffic.story(tmp_path, "number", "1")
    assert (
        "It let the broker wait up to 500 ms for records (max_wait_ms); 500 ms of its time may be"
        " that wait."
    ) in found


@pytest.mark.parametrize(
    ("others", "said"),
    [
        (0, "; there is no other to compare it with."),
        (1, "; the only other took 1.00 ms."),
        (3, "; the median of the 3 others is 1.00 ms."),
    ],
)
def test_nothing_is_long_beside_a_few(tmp_path, others, said):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1), took_ms=30)
    for number in range(others):
        traffic.add(600 + number, *beat("m", 1), connection=2)
    assert f"The broker itself took 30.0 ms{said}" in traffic.story(tmp_path, "number", "1")


def test_what_is_all_wait_is_no_other_to_compare_with(tmp_path):
    traffic = Traffic()
    polls, empty = fetch_request({0: 5}, max_wait_ms=500), fetch_response({0: b""})
    traffic.add(0, "Fetch", 11, polls, empty, took_ms=1200)
    for number in range(40):
        traffic.add(2000 + number, "Fetch", 11, polls, empty, took_ms=400, connection=2)
    told = traffic.story(tmp_path, "number", "1")
    assert "The broker itself took 700 ms; there is no other to compare it with." in told


def test_an_error_and_what_came_of_it(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1, error_code=14))
    traffic.add(100, *beat("m", 1))
    found = traffic.story(tmp_path, "number", "1")
    assert "It failed with COORDINATOR_LOAD_IN_PROGRESS; clients may try again." in found
    assert "100 ms later the client sent a like one, Heartbeat #2, which succeeded." in found


ENDS = [
    SideEnd("broker", "reset", START_NS + 9 * SECOND),
    SideEnd("client", "eof", START_NS + 9 * SECOND + MS),
]


def test_who_ended_a_connection_after_what(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    traffic.add(4000, *beat("m", 1)[:3], None)
    traffic.entries.append(notes.closed(1, START_NS + 9 * SECOND, {}, "eof", "", "broker", ENDS))
    assert traffic.story(tmp_path, "connection", "1") == [
        (
            "Connection 1 was opened at 22:13:20.000, from 127.0.0.1:5001 to broker.example:9092"
            " (broker 1)."
        ),
        "Its client is a.",
        "It had 2 requests: Heartbeat 2.",
        "Heartbeat #2 of 22:13:24.000 was never answered.",
        "It ended at 22:13:29.000, first by the broker (reset).",
        "1.00 ms later by the client (eof).",
        "Before that it was silent for 5.0 s, since Heartbeat #2.",
        "Why is not in the recording.",
    ]
    found = traffic.story(tmp_path, "number", "2")
    assert "It was never answered, though the broker had for 5.0 s." not in found
    assert "It was never answered: it waited for the broker for 5.0 s." in found
    assert "Its connection ended at 22:13:29.000, first by the broker (reset)." in found


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (
            "group:nobody",
            1,
            "kproxy why: there is no group nobody in the recording; there is billing",
        ),
        ("group:*", 1, "kproxy why: there is no group * in the recording; there is billing"),
        (
            "group:biling",
            1,
            "kproxy why: there is no group biling in the recording (did you mean billing?)",
        ),
        ("number:99", 1, "kproxy why: there is no number 99 in the recording"),
        ("connection:9", 1, "kproxy why: there is no connection 9 in the recording"),
        ("number:x", 2, "kproxy why: 'x' is not the number of a request (see kproxy why --help)"),
        (
            "topic:x",
            2,
            (
                "kproxy why: 'topic:x' is not group:NAME, connection:N or number:N"
                " (see kproxy why --help)"
            ),
        ),
    ],
)
def test_what_there_is_no_story_of(typed, code, said, tmp_path, capsys):
    assert main(["why", str(two_members().recorded(tmp_path)), typed]) == code
    assert capsys.readouterr().err == f"{said}\n"


def test_members_of_one_client_id_are_told_apart_in_every_sentence(tmp_path):
    traffic = Traffic()
    for at_ms, member, generation in ((0, "js-111111", 1), (1000, "js-222222", 3)):
        traffic.add(at_ms, *join(member, generation, [member]), client="js")
        traffic.add(at_ms + 100, *sync(member, generation, 0), client="js")
        left = M.LeaveGroupRequest(group_id="billing", member_id=member)
        traffic.add(at_ms + 500, "LeaveGroup", 1, left, M.LeaveGroupResponse(), client="js")
    told = traffic.story(tmp_path, "group", "billing")
    leaving = [line.partition(" ")[2] for line in told if "leaves" in line]
    assert leaving == [
        (
            "js (js-111111) leaves with #3; its connection stays, and it joins again 500 ms later"
            " (#4)."
        ),
        "js (js-222222) leaves with #6; why is not in the recording.",
    ]


def leaves_at(traffic: Traffic, time_ms: int, member: str) -> int:
    asked = M.LeaveGroupRequest(group_id="billing", member_id=member)
    return traffic.add(time_ms, "LeaveGroup", 1, asked, M.LeaveGroupResponse(), client="app")


def test_a_member_that_leaves_and_joins_again_on_its_connection(tmp_path):
    member = "app-0123456789abcdef0123456789abcdef"
    traffic = Traffic()
    traffic.add(0, *join(member, 3, [member], rebalance_timeout_ms=6000), client="app")
    left = leaves_at(traffic, 7000, member)
    again = traffic.add(14_700, *join("app-new", 4, ["app-new"]), client="app")
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "leaves" in each)
    assert line == (
        f"22:13:27.000 app (…abcdef) leaves with #{left}; its connection stays, and it joins again"
        f" 7.7 s later (#{again}), as a client does whose app subscribes anew, or did not poll"
        " within max.poll.interval.ms (its rebalance timeout is 6.0 s)."
    )


def test_a_member_that_leaves_when_it_stops(tmp_path):
    traffic = Traffic()
    traffic.add(0, *join("app-1", 3, ["app-1"]), client="app")
    left = leaves_at(traffic, 7000, "app-1")
    ends = [SideEnd("client", "eof", START_NS + 7003 * MS)]
    about = {"client_address": traffic.entries[0].body["client_address"]}
    over_ns = START_NS + 7004 * MS
    traffic.entries.append(notes.closed(1, over_ns, about, "eof", "", "client", ends))
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "leaves" in each)
    said = f"app (app-1) leaves with #{left}; its connection ends 3.00 ms later."
    assert line == f"22:13:27.000 {said}"
