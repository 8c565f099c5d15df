"""Findings about work that does not get on: no poll, no commit, commits moved, aborts, refusals."""

from __future__ import annotations

import pytest

from kproxy.look.why.finding import Harm
from tests.look.why.test_findings import found, member, one
from tests.look.why.test_key import commit, fetch, metadata, produce
from tests.look.why.test_transactional_id import end, initialize
from tests.look.why.test_transactional_id import produce as produce_in_transaction
from tests.look.why.traffic import Traffic, ends, leave


def left_without_a_word(*, left_ms: int, hangs_up_ms: int | None = None) -> Traffic:
    """A member that leaves so long after its last records."""
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0, rebalance_timeout_ms=5000)
    traffic.add(100, *fetch(0, 100, b"a"), client="one", connection=2)
    traffic.add(left_ms, *leave("m-one"), client="one")
    if hangs_up_ms is not None:
        ends(traffic, left_ms + hangs_up_ms)
    return traffic


def test_a_member_that_leaves_as_clients_do_that_did_not_poll(tmp_path):
    traffic = left_without_a_word(left_ms=5600, hangs_up_ms=3000)
    finding = one(traffic, tmp_path, "member that does not poll")
    assert finding.harm is Harm.DATA
    assert finding.whole.startswith(
        "one (127.0.0.1) left group billing as clients do that do not poll within"
        " max.poll.interval.ms (5.0 s). It left with LeaveGroup #4 (22:13:25.600), 5.5 s after"
        " Fetch #3, and its connection stayed."
    )


@pytest.mark.parametrize(
    "traffic",
    [
        left_without_a_word(left_ms=5600, hangs_up_ms=10),  # it closes
        left_without_a_word(left_ms=3000),  # the limit is not reached
        left_without_a_word(left_ms=50_000),  # long after it: the app subscribes anew
    ],
)
def test_a_member_that_leaves_for_another_reason(tmp_path, traffic: Traffic):
    assert not found(traffic, tmp_path, "member that does not poll")


def as_member(asked, name: str):
    asked[2].member_id = name
    return asked


@pytest.mark.parametrize(
    ("then", "is_harm"),
    [
        ([commit(0, 16)], False),
        ([fetch(0, 16, b"a"), commit(0, 12), commit(0, 17)], False),
        ([fetch(0, 10, b"a"), commit(0, 16)], True),  # the records come again
        ([commit(0, 14)], True),
        ([], True),
    ],
)
def test_old_commits_that_a_client_sends_again(tmp_path, then, is_harm):
    """As librdkafka does when it connects anew: they were queued."""
    traffic = Traffic()
    member(traffic, 0, "one", 3, 0)
    for time_ms, asked in enumerate([fetch(0, 15, b"a"), commit(0, 15), commit(0, 5), *then], 10):
        own = asked if asked[0] == "Fetch" else as_member(asked, "m-one")
        traffic.add(time_ms, *own, client="one")
    assert bool(found(traffic, tmp_path, "commits set back")) is is_harm


@pytest.mark.parametrize("aborted", [4, 5])
def test_transactions_that_are_aborted_again_and_again(tmp_path, aborted):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="shop")
    for nth in range(aborted):
        traffic.add(10 * nth + 1, *produce_in_transaction(0, 3 * nth, 4 * nth), client="shop")
        traffic.add(10 * nth + 5, *end(0, committed=False), client="shop")
    told = [each.text for each in found(traffic, tmp_path, "aborted transactions")]
    assert told == (["5 of 5 transactions of pay were aborted."] if aborted == 5 else [])


def test_a_producer_that_is_refused_to_the_end(tmp_path):
    traffic = Traffic()
    traffic.add(0, *produce(0, 10, b"k"), client="shop")
    for nth, error in enumerate((6, 19, 19)):
        traffic.add(10 + nth, *produce(0, -1, b"k", error=error), client="shop")
    assert not found(traffic, tmp_path, "writes refused to the end")  # a retry may be on its way
    traffic.add(6000, *metadata(1), client="other", connection=2)
    told = one(traffic, tmp_path, "writes refused to the end")
    assert told.text == (
        "The last 3 Produces of shop (127.0.0.1) to orders[0] were refused: NOT_ENOUGH_REPLICAS 2"
        " times, NOT_LEADER_OR_FOLLOWER 1 time."
    )
    assert "gave up" not in told.whole  # an excerpt ends here, too
    traffic.add(6001, *produce(0, 11, b"k"), client="shop")
    traffic.add(20_000, *metadata(1), client="other", connection=2)
    assert not found(traffic, tmp_path, "writes refused to the end")


def test_records_that_are_refused_and_written_by_a_later_request(tmp_path):
    """As idempotent producers do, in order again or with a new epoch."""
    traffic = Traffic()
    for nth, (epoch, sequence, error, count) in enumerate(
        [(0, 5, 45, 3), (0, 5, 45, 3), (0, 0, 0, 3), (0, 5, 0, 3), (0, 8, 45, 4), (0, 12, 45, 5)]
    ):
        values = produce_in_transaction(epoch, sequence, 3 * nth, count, error)
        traffic.add(nth, *values, client="shop")
    kind = "written after OUT_OF_ORDER_SEQUENCE_NUMBER"
    (told,) = found(traffic, tmp_path, kind)
    assert (told.harm, told.numbers) == (Harm.LATENCY, (1, 2))
    assert "#4 wrote what it had for orders[0]." in told.whole  # not #3, with equal records
    traffic.add(20, *produce_in_transaction(1, 0, 20, 4), client="shop")
    assert len(one(traffic, tmp_path, kind).numbers) == 4
    assert one(traffic, tmp_path, kind).text.startswith("4 Produces were refused with OUT_OF_ORDER")
