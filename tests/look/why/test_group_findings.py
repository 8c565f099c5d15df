"""Findings about groups: where they stand still, idle members, uneven assignments, coordinators."""

from __future__ import annotations

import pytest

from kproxy.look.why.finding import Harm
from kproxy.wire.protocol import messages
from tests.exchange.making import opened
from tests.look.why.test_findings import found, member, one
from tests.look.why.test_key import commit, fetch
from tests.look.why.traffic import Traffic, beat, body, ends, join, leave, sync

M = messages
ENDS_THERE, AGAIN = "record at which members end", "record that is fetched again"
RECORDS = (b"a", b"b", b"c", b"d")


def commits(traffic: Traffic, at: int, name: str, offset: int, **about) -> int:
    asked = commit(0, offset)
    asked[2].member_id, asked[2].generation_id_or_member_epoch = f"m-{name}", 3
    return traffic.add(at, *asked, client=name, **about)


def told(offset: int):
    partition = {"partition_index": 0, "committed_offset": offset}
    asked = body("OffsetFetchRequest", group_id="billing", topics=[{"name": "orders"}])
    topics = [{"name": "orders", "partitions": [partition]}]
    return "OffsetFetch", 5, asked, body("OffsetFetchResponse", topics=topics)


def lives(traffic: Traffic, ends_with, committed: bool = True) -> None:
    """Three members, each after the other: the first commits 102, if any does."""
    for life in (1, 2, 3):
        at, name, about = 10_000 * life, f"life{life}", {"connection": life + 2}
        traffic.entries.append(opened(life + 2, node_id=1))
        traffic.add(at, *join(f"m-{name}", life, [f"m-{name}"]), client=name, **about)
        traffic.add(at + 2, *sync(f"m-{name}", life, 0), client=name, **about)
        first = 100 if life == 1 or not committed else 102
        traffic.add(at + 5, *told(-1 if first == 100 else 102), client=name, **about)
        traffic.add(at + 10, *fetch(0, first, *RECORDS[first - 100 :]), client=name, **about)
        if life == 1 and committed:
            commits(traffic, at + 20, name, 101, **about)
            commits(traffic, at + 30, name, 102, **about)
        ends_with(traffic, at + 50, name, life + 2)


def dies(traffic: Traffic, at: int, name: str, connection: int) -> None:
    ends(traffic, at, connection=connection)


def leaves(traffic: Traffic, at: int, name: str, connection: int) -> None:
    traffic.add(at, *leave(f"m-{name}"), client=name, connection=connection)


def goes_on(traffic: Traffic, at: int, name: str, connection: int) -> None:
    commits(traffic, at, name, 100 + connection, connection=connection)
    ends(traffic, at + 10, connection=connection)


@pytest.mark.parametrize(("committed", "is_found"), [(True, True), (False, False)])
def test_members_that_leave_at_the_same_record(tmp_path, committed, is_found):
    """An app that fails closes its consumer; one that never commits reads all again at any rate."""
    traffic = Traffic()
    lives(traffic, leaves, committed=committed)
    assert bool(found(traffic, tmp_path, ENDS_THERE)) is is_found


def test_members_that_die_before_anything_is_committed(tmp_path):
    traffic = Traffic()
    lives(traffic, dies, committed=False)
    assert "at orders[0]@100: 3 members" in one(traffic, tmp_path, ENDS_THERE).text


def test_members_that_die_and_go_on(tmp_path):
    traffic = Traffic()
    lives(traffic, goes_on)
    assert not found(traffic, tmp_path, ENDS_THERE)


def seeks(traffic: Traffic) -> None:
    member(traffic, 0, "one", 3, 0)
    for nth in range(4):
        traffic.add(100 + 100 * nth, *fetch(0, 102 if nth else 100, *RECORDS), client="one")
        if nth == 0:
            commits(traffic, 150, "one", 102)


def test_a_record_that_is_fetched_again_and_again(tmp_path):
    traffic = Traffic()
    seeks(traffic)
    finding = one(traffic, tmp_path, AGAIN)
    assert finding.text == (
        "Group billing stands still at orders[0]@102: fetched 4 times, and nothing behind it"
        " committed."
    )
    assert "from Fetch #3 of 22:13:20.100 until Fetch #7, 300 ms later." in finding.evidence[0]
    done = commits(traffic, 900, "one", 104)
    stood = one(traffic, tmp_path, AGAIN)
    assert stood.text.startswith("Group billing stood still at orders[0]@102")
    assert f"until OffsetCommit #{done} " in stood.evidence[1]


def group_of(traffic: Traffic, *owned: tuple[int, ...]) -> None:
    """A group in which each member has these partitions, for five seconds."""
    names = [f"m-{nth}" for nth in range(len(owned))]
    traffic.entries.append(opened(3, node_id=1))
    for nth, name in enumerate(names):
        about = {"connection": nth + 1, "client": f"app{nth}"}
        traffic.add(0, *join(name, 3, names if nth == 0 else ()), **about)
        traffic.add(10, *sync(name, 3, *owned[nth]), **about)
        traffic.add(5000, *beat(name, 3), **about)


def test_a_member_that_has_nothing_to_read(tmp_path):
    traffic = Traffic()
    group_of(traffic, (0,), (1,), ())
    traffic.add(9000, *leave("m-2"), connection=3, client="app2")
    finding = one(traffic, tmp_path, "idle members")
    assert finding.text == "1 of 3 members of group billing has no partition: app2 (127.0.0.1)."
    assert finding.evidence == ("Since #8. The others read 2 partitions together.",)
    assert finding.harm is Harm.CURIOSITY


def test_a_member_that_has_much_more_to_read_than_another(tmp_path):
    traffic = Traffic()
    group_of(traffic, (0, 1, 2, 3), (4,))
    finding = one(traffic, tmp_path, "uneven assignment")
    assert finding.text == "Group billing is uneven: one member has 4 partitions, another 1."
    assert "app0 (127.0.0.1) has orders[0,1,2,3] (SyncGroup #2)" in finding.evidence[0]
    even = Traffic()
    group_of(even, (0, 1, 2), (3, 4))
    assert not found(even, tmp_path, "uneven assignment")


def test_a_coordinator_that_moves(tmp_path):
    traffic = Traffic()
    for at, node in ((0, 1), (10, 1), (500, 2)):
        asked = M.FindCoordinatorRequest(key="billing", key_type=0)
        traffic.add(at, "FindCoordinator", 2, asked, M.FindCoordinatorResponse(node_id=node))
    finding = one(traffic, tmp_path, "coordinator that moved")
    assert finding.text == "The coordinator of group billing moved from broker 1 to broker 2."
    assert finding.evidence == ("FindCoordinator #2 names broker 1, FindCoordinator #3 broker 2.",)
