"""Findings about logs: what groups skipped, lost, read too slowly or not at all; hot keys."""

from __future__ import annotations

import pytest

from kproxy.history import logs
from kproxy.look.why.findings import Harm
from kproxy.wire.protocol import messages as M
from tests.exchange.bodies import fetch_request, fetch_response
from tests.look.why.test_findings import found, member, one
from tests.look.why.test_key import commit, fetch, metadata, produce
from tests.look.why.traffic import Traffic, body, listed

SKIPPED = "records skipped by an offset reset"
DELETED = "deleted before they were read"
SLOW = "slow consumer"
UNREAD = "partition that nobody reads"
LATEST, EARLIEST = -1, -2


def told_committed(offset: int, partition: int = 0):
    """An OffsetFetch of a group; −1 if nothing is committed."""
    topics = [{"name": "orders", "partition_indexes": [partition]}]
    found = {"partition_index": partition, "committed_offset": offset}
    answer = body("OffsetFetchResponse", topics=[{"name": "orders", "partitions": [found]}])
    return "OffsetFetch", 5, body("OffsetFetchRequest", group_id="billing", topics=topics), answer


def fetched(offset: int, log_start: int, end: int, partition: int = 0, error_code: int = 0):
    """A Fetch without records, which tells the ends of the log."""
    answer = fetch_response({partition: b""})
    told = answer.responses[0].partitions[0]
    told.error_code, told.log_start_offset, told.high_watermark = error_code, log_start, end
    return "Fetch", 11, fetch_request({partition: offset}), answer


def resets(traffic: Traffic, kind: int, to: int, partition: int = 0, at: int = 100) -> None:
    """A member goes on at 10, which is out of range, and is reset."""
    traffic.add(at, *told_committed(10, partition), client="reporter")
    traffic.add(at + 10, *fetched(10, -1, -1, partition, error_code=1), client="reporter")
    traffic.add(at + 20, *listed(kind, to, partition), client="reporter")
    traffic.add(at + 30, *fetched(to, 60, 100, partition), client="reporter")


def test_a_reset_to_the_beginning_skips_nothing_that_was_there(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0)
    resets(traffic, EARLIEST, 60)
    assert not found(traffic, tmp_path, SKIPPED)
    assert one(traffic, tmp_path, DELETED).text == (
        "50 records of orders[0] (10 to 59) were deleted before group billing had read them."
    )


def test_a_reset_of_an_offset_past_the_end(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0)
    traffic.add(100, *told_committed(500), client="reporter")
    traffic.add(110, *fetched(500, -1, -1, error_code=1), client="reporter")
    traffic.add(120, *listed(LATEST, 7), client="reporter")
    traffic.add(130, *fetched(7, 0, 7), client="reporter")
    assert "skipped 7 records of orders[0] (0 to 6)" in one(traffic, tmp_path, SKIPPED).text


def test_a_group_that_had_committed_nothing_and_begins_at_the_end(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0)
    traffic.add(100, *told_committed(-1), client="reporter")
    traffic.add(110, *listed(LATEST, 100), client="reporter")
    traffic.add(120, *fetched(100, 60, 100), client="reporter")
    finding = one(traffic, tmp_path, "began at the end")
    assert finding.harm is Harm.CURIOSITY
    assert finding.text == (
        "Group billing began behind 40 records of orders[0] (60 to 99): it had committed nothing"
        " there."
    )


def test_a_group_whose_offset_was_deleted_and_that_begins_at_the_end(tmp_path):
    traffic = Traffic()
    traffic.add(0, *commit(0, 60), client="reporter")
    gone = M.DeleteGroupsResponse.DeletableGroupResult(group_id="billing")
    asked = M.DeleteGroupsRequest(groups_names=["billing"])
    traffic.add(5, "DeleteGroups", 1, asked, M.DeleteGroupsResponse(results=[gone]))
    member(traffic, 10, "reporter", 1, 0)
    traffic.add(100, *told_committed(-1), client="reporter")
    traffic.add(110, *listed(LATEST, 100), client="reporter")
    traffic.add(120, *fetched(100, 60, 100), client="reporter")
    finding = one(traffic, tmp_path, SKIPPED)
    assert finding.text.endswith("(60 to 99): what it had committed was deleted.")
    assert finding.evidence[-1] == "DeleteGroups #2 had deleted it."


def test_a_client_that_seeks_a_time(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0)
    traffic.add(100, *told_committed(60), client="reporter")
    traffic.add(110, *listed(1_700_000_000_000, 90), client="reporter")
    traffic.add(120, *fetched(90, 0, 100), client="reporter")
    finding = one(traffic, tmp_path, "went past records")
    assert finding.harm is Harm.CURIOSITY
    assert finding.text == (
        "Group billing went past 30 records of orders[0] (60 to 89): its client sought 90."
    )
    assert "asked for a time" in finding.evidence[0]


def goes_on(traffic: Traffic) -> None:
    traffic.add(100, *told_committed(60), client="reporter")
    traffic.add(110, *fetched(60, 0, 100), client="reporter")


def looks_at_its_lag(traffic: Traffic) -> None:
    """A client asks for its offsets and for the end, while it reads."""
    goes_on(traffic)
    traffic.add(120, *fetch(0, 60, *[b"k"] * 40), client="reporter")
    traffic.add(130, *told_committed(60), client="reporter")
    traffic.add(140, *listed(LATEST, 100), client="reporter")
    traffic.add(150, *fetched(100, 0, 100), client="reporter")


def begins_at_the_beginning(traffic: Traffic) -> None:
    traffic.add(100, *told_committed(-1), client="reporter")
    traffic.add(110, *listed(EARLIEST, 0), client="reporter")
    traffic.add(120, *fetched(0, 0, 100), client="reporter")


@pytest.mark.parametrize("reads", [goes_on, looks_at_its_lag, begins_at_the_beginning])
def test_a_group_that_skips_nothing(tmp_path, reads):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0)
    reads(traffic)
    assert not [each for each in found(traffic, tmp_path) if each.kind != "lag at the end"]


def test_records_that_were_deleted_in_front_of_a_group_that_does_not_read(tmp_path):
    traffic = Traffic()
    traffic.add(0, *commit(0, 10), client="reporter")
    assert not found(traffic, tmp_path, DELETED)
    done, wanted = {"partition_index": 0, "low_watermark": 60}, {"partition_index": 0, "offset": 60}
    answer = body("DeleteRecordsResponse", topics=[{"name": "orders", "partitions": [done]}])
    asked = body("DeleteRecordsRequest", topics=[{"name": "orders", "partitions": [wanted]}])
    traffic.add(10, "DeleteRecords", 1, asked, answer)
    finding = one(traffic, tmp_path, DELETED)
    assert "50 records of orders[0] (10 to 59) were deleted" in finding.text
    assert finding.evidence == (
        "The log begins at 60 (DeleteRecords #2).",
        "It has committed 10 (OffsetCommit #1).",
    )


def flows(traffic: Traffic, partition: int, commits_each: float, seconds: int = 20) -> None:
    """Ten records a second are written; a group commits so many."""
    for second in range(seconds):
        traffic.add(1000 * second, *produce(partition, 10 * second, *[b""] * 10), client="shop")
        offset = int(commits_each * (second + 1))
        traffic.add(1000 * second + 500, *commit(partition, offset), client="reader")


def test_a_consumer_that_is_slower_than_what_is_written(tmp_path):
    traffic = Traffic()
    flows(traffic, 0, 4)
    flows(traffic, 1, 10)
    traffic.add(22_000, *commit(0, 90), client="reader")  # then nothing more is written
    finding = one(traffic, tmp_path, SLOW)
    assert finding.text == (
        "Group billing does not keep up with orders[0]: 10 records/s are written, 4 committed."
    )
    assert finding.evidence == (
        "From 22:13:20.500 (#2) to 22:13:38.500 (#38) its lag of orders[0] grew from 6 to 114.",
        "It keeps up with 1 other partition of orders.",
    )


def test_a_slow_member_is_named_with_all_partitions_that_it_is_behind_in(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reader", 1, 0, 1)
    flows(traffic, 1, 4)
    for second in range(20):
        traffic.add(1000 * second, *produce(0, 10 * second, *[b""] * 10), client="shop")
    traffic.add(1400, *fetch(0, 0, *[b"k"] * 10), client="reader")
    traffic.add(1500, *commit(0, 4), client="reader")  # and never again
    traffic.add(19_900, *fetch(1, 190, *[b"k"] * 10), client="reader")
    finding = one(traffic, tmp_path, SLOW)
    assert finding.text.startswith("Group billing does not keep up with orders[0,1]: ")
    assert "its lag of orders[0] grew from 16 to 196." in finding.evidence[0]
    assert finding.evidence[1] == (
        "reader (127.0.0.1) has orders[0,1]; it has fetched orders[1] up to 200, and committed up"
        " to 80."
    )


def burst(traffic: Traffic) -> None:
    flows(traffic, 0, 10, 12)
    traffic.add(12_000, *produce(0, 120, *[b""] * 200), client="shop")
    for second in range(12, 18):
        traffic.add(1000 * second + 500, *commit(0, 10 * second + 10), client="reader")


def stands_still(traffic: Traffic) -> None:
    flows(traffic, 0, 10, 5)
    for second in range(5, 20):
        traffic.add(1000 * second, *produce(0, 10 * second, *[b""] * 10), client="shop")
        traffic.add(1000 * second + 500, *commit(0, 50), client="reader")


def keeps_up(traffic: Traffic) -> None:
    flows(traffic, 0, 9.5)


@pytest.mark.parametrize("reads", [burst, stands_still, keeps_up])
def test_a_lag_that_proves_no_slow_consumer(tmp_path, reads):
    traffic = Traffic()
    reads(traffic)
    assert not found(traffic, tmp_path, SLOW)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_partition_that_a_group_leaves_out(tmp_path, is_read):
    traffic = Traffic()
    member(traffic, 0, "reader", 1, 0, 1)
    for partition in range(3):
        traffic.add(10 + partition, *produce(partition, 0, b"k"), client="shop")
    for second in range(1, 9):
        for partition in range(3 if is_read else 2):
            traffic.add(1000 * second + partition, *fetch(partition, 0, b"k"), client="reader")
    if is_read:
        assert not found(traffic, tmp_path, UNREAD)
    else:
        assert one(traffic, tmp_path, UNREAD).text == (
            "No Fetch of orders[2] by group billing is in the recording, though it has records."
        )


def test_a_key_that_has_most_records(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(8))
    for nth in range(20):
        keys = [b"big"] * 8 if nth % 2 else [b"%d" % nth, b"%d" % -nth]
        traffic.add(10 + nth, *produce(1 if nth % 2 else nth % 8, 10 * nth, *keys), client="shop")
    traffic.add(50, *produce(1, 500, *[b"big"] * 40), client="shop")
    finding = one(traffic, tmp_path, "hot key")
    assert finding.text == (
        "Key big has 120 of 140 records written to orders (86 %): they all go to orders[1]."
    )
    assert finding.words == ("why", "topic:orders", "key:big")


def test_what_is_beyond_the_limits_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_LOGS_MAX", 1)
    traffic = Traffic()
    for partition in range(3):
        traffic.add(partition, *produce(partition, 0, b"k"))
    text = one(traffic, tmp_path, "more than is followed").text
    assert text.endswith("findings leave some out (2 times).")


def test_the_worst_partition_of_several_is_first(tmp_path):
    traffic = Traffic()
    member(traffic, 0, "reporter", 1, 0, 1)
    resets(traffic, LATEST, 80)
    resets(traffic, LATEST, 100, partition=1, at=500)
    finding = one(traffic, tmp_path, SKIPPED)
    assert "skipped 40 records of orders[1] (60 to 99)" in finding.text
    assert "skipped 20 records of orders[0] (60 to 79)" in finding.evidence[-1]
