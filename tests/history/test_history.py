"""What a history must not take for something else: rows of several groups, silences, gaps."""

from __future__ import annotations

import pytest

from kproxy.exchange import notes
from kproxy.history.events import events
from kproxy.history.rows import OffsetsFetched
from kproxy.wire.protocol import messages as M
from tests.exchange.bodies import ORDERS, exchange
from tests.exchange.making import MS, START_NS
from tests.look.why.test_findings import commits, fetch, found, member
from tests.look.why.traffic import Traffic, ends


def test_offsets_of_several_groups_are_those_of_each():
    A, R = M.OffsetFetchRequest, M.OffsetFetchResponse
    asked = A(groups=[A.OffsetFetchRequestGroup(group_id=each, topics=None) for each in "gh"])
    partition = R.OffsetFetchResponsePartitions(partition_index=0, committed_offset=9)
    topics = [R.OffsetFetchResponseTopics(name="orders", partitions=[partition])]
    groups = [R.OffsetFetchResponseGroup(group_id=each, topics=topics) for each in "gh"]
    rows = events(exchange("OffsetFetch", 8, asked, R(groups=groups)))
    assert rows == [OffsetsFetched(each, ("orders", 0), 9, "") for each in "gh"]


def test_a_member_of_kip_848_that_was_heard_of_just_before_is_not_silent(tmp_path):
    H, R = M.ConsumerGroupHeartbeatRequest, M.ConsumerGroupHeartbeatResponse
    traffic = Traffic()
    for at_ms, name, epoch in ((0, "a", 0), (1000, "b", 0), (2400, "a", 1)):
        given = [R.TopicPartitions(topic_id=ORDERS, partitions=[at_ms])]
        asked = H(group_id="billing", member_id=name, member_epoch=epoch)
        answered = R(member_id=name, member_epoch=epoch + 1, heartbeat_interval_ms=500)
        answered.assignment = R.Assignment(topic_partitions=given)
        traffic.add(at_ms, "ConsumerGroupHeartbeat", 1, asked, answered, client=name)
    assert "silent" not in "".join(traffic.story(tmp_path, "group", "billing"))


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_was_fetched_before_a_gap_is_not_what_a_commit_behind_it_covers(tmp_path, is_lost):
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0)
    traffic.add(10, *fetch(0, 100, b"a", b"b", b"c"), client="one")
    if is_lost:
        traffic.entries.append(notes.lost(3, 100, "full", START_NS, START_NS + 12 * MS))
    commits(traffic, 14, 103)
    ends(traffic, 500)
    assert bool(found(traffic, tmp_path, "committed, then ended")) != is_lost
