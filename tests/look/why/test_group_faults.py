"""`kproxy why group:G`: what fault rules did to members is told as their doing."""

from __future__ import annotations

from kproxy.exchange.entries import INJECTED
from kproxy.wire.protocol import error_code
from tests.look.why.traffic import Traffic, beat, join, two_members


def test_an_error_that_a_rule_made_is_why_a_member_joins_again(tmp_path):
    traffic = two_members()
    told = traffic.add(
        100, *beat("m-b", 3, error_code("REBALANCE_IN_PROGRESS")), connection=2, client="slow"
    )
    traffic.by_rule(INJECTED, "fakereb")
    again = traffic.add(110, *join("m-b", 4), connection=2, client="slow")
    traffic.add(120, *join("m-a", 4, ["m-a", "m-b"]), client="fast")
    story = "\n".join(traffic.story(tmp_path, "group", "billing"))
    by_rule = "REBALANCE_IN_PROGRESS, made by kproxy, fault fakereb"
    assert f"slow is told {by_rule}: Heartbeat #{told}." in story
    assert f"3 → 4: slow joined again first (#{again}): Heartbeat #{told} → {by_rule}" in story
    assert "why is not in the recording" not in story
    assert "learns" not in story


def test_a_member_that_a_rule_threw_out(tmp_path):
    traffic = two_members()
    traffic.add(50, *beat("m-b", 3), connection=2, client="slow")
    told = traffic.add(100, *beat("m-b", 3), connection=2, client="slow")
    traffic.told("UNKNOWN_MEMBER_ID", 12, "fakeunk")
    traffic.add(7000, *join("m-a", 4, ["m-a"]), client="fast")
    story = "\n".join(traffic.story(tmp_path, "group", "billing"))
    assert f"silence (since Heartbeat #{told}, its session timeout is 6.0 s)" in story
    assert f": Heartbeat #{told} had told it UNKNOWN_MEMBER_ID, made by kproxy, fault fak" in story


def test_heartbeats_that_a_rule_kept_from_the_broker(tmp_path):
    traffic = two_members()
    first = traffic.add(3000, *beat("m-b", 3)[:3], None, connection=2, client="slow")
    traffic.kept("mute")
    traffic.add(4000, *beat("m-b", 3)[:3], None, connection=2, client="slow")
    traffic.kept("mute")
    traffic.add(7000, *join("m-a", 4, ["m-a"]), client="fast")
    (line,) = (each for each in traffic.story(tmp_path, "group", "billing") if "3 → 4" in each)
    assert "slow left after 7.0 s of silence (since SyncGroup #4, its session timeout is" in line
    assert (
        f": it had sent Heartbeat #{first} and 1 more, kept from the broker by fault mute" in line
    )


def test_a_member_that_the_broker_let_in_and_a_rule_did_not(tmp_path):
    traffic = Traffic()
    traffic.add(0, *join("m-a", 1, ["m-a"]), client="eos")
    traffic.told("UNKNOWN_MEMBER_ID", 13, "jn")
    story = "\n".join(traffic.story(tmp_path, "group", "billing"))
    assert "eos is let in by the broker (#1), and told UNKNOWN_MEMBER_ID, made by kproxy," in story
    assert "generation 1: 1 member, eos (#1)" in story
    assert "could not join" not in story
