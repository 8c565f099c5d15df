"""Readers of committed records that stand still behind an open transaction."""

from __future__ import annotations

from kproxy.look.report.light import light_data
from kproxy.wire.protocol import messages as M
from tests.exchange.bodies import fetch_request
from tests.look.why.test_transactional_id import batch, end, initialize, produce
from tests.look.why.traffic import Traffic, join, sync

KIND = "readers behind an open transaction"
NOTHING = b""


def fetch(stable: int, high: int, records: bytes = NOTHING, session: int = 0, aborted=()):
    """A Fetch of orders[0] by a reader of committed records."""
    R = M.FetchResponse
    found = R.PartitionData(
        partition_index=0,
        high_watermark=high,
        last_stable_offset=stable,
        records=records,
        aborted_transactions=[
            R.AbortedTransaction(producer_id=producer, first_offset=first)
            for producer, first in aborted
        ],
    )
    topic = R.FetchableTopicResponse(topic="orders", partitions=[found])
    asked = fetch_request({0: stable}, isolation_level=1, max_wait_ms=500)
    return "Fetch", 11, asked, R(session_id=session, responses=[topic])


def nothing_new(session: int):
    """A Fetch of a session in which nothing has changed."""
    asked = fetch_request({}, isolation_level=1, session_id=session, session_epoch=2)
    return "Fetch", 11, asked, M.FetchResponse(session_id=session)


def begun(at: int = 0) -> Traffic:
    """A producer writes records 5 to 7 of a transaction."""
    traffic = Traffic()
    traffic.add(at, *initialize(0), client="shop")
    traffic.add(at + 10, *produce(0, 0, 5), client="shop")
    return traffic


def found(traffic: Traffic, tmp_path) -> list[list[str]]:
    findings = light_data([traffic.recorded(tmp_path)]).findings
    return [[each.text, *each.evidence] for each in findings if each.kind == KIND]


def test_readers_that_stand_behind_a_transaction_that_stays_open(tmp_path):
    traffic = begun()
    traffic.add(100, *join("m-a", 1, ["m-a"]), connection=2, client="reader")
    traffic.add(200, *sync("m-a", 1, 0), connection=2, client="reader")
    traffic.add(1000, *fetch(5, 20, session=9), took_ms=500, connection=2, client="reader")
    for at in range(1500, 9000, 500):
        traffic.add(at, *nothing_new(9), took_ms=500, connection=2, client="reader")
    assert found(traffic, tmp_path) == [
        [
            (
                "Readers of committed records stand still at orders[0]@5 behind the open"
                " transaction of pay."
            ),
            (
                "reader (127.0.0.1) of group billing asked 16 times in vain, 22:13:21.000"
                " (Fetch #5) to 22:13:28.500 (#20)."
            ),
            "15 offsets wait there when the recording ends.",
            (
                "22:13:20.010 shop (127.0.0.1) began it with Produce #2 as producer id 7, epoch 0:"
                " orders[0] 3 records @5..7."
            ),
            "No request that ends it is in the recording; it was open for 9.0 s at least.",
            (
                "Its timeout is 60.0 s (InitProducerId #1): the coordinator aborts it when it is"
                " open for longer."
            ),
        ]
    ]
    for subject, name in (("transactional_id", "pay"), ("topic", "orders"), ("group", "billing")):
        story = traffic.story(tmp_path, subject, name)
        assert [each for each in story if "stand still at orders[0]@5 behind" in each], subject


def test_a_transaction_that_ended_late_has_the_length_of_the_stand(tmp_path):
    traffic = begun()
    for at in range(0, 6000, 500):
        traffic.add(1000 + at, *fetch(5, 20), took_ms=500, connection=2, client="reader")
    traffic.add(7000, *end(0), client="shop")
    traffic.add(7100, *fetch(20, 20, batch(3, 0, 0)), connection=2, client="reader")
    ((text, *evidence),) = found(traffic, tmp_path)
    assert text == (
        "Readers of committed records stood still at orders[0]@5 for 6.0 s behind a transaction"
        " of pay."
    )
    assert "Fetch #16 of 22:13:27.100 came past it; 15 offsets had waited." in evidence
    assert evidence[-1] == "It was committed with EndTxn #15 after 7.0 s."


def test_a_transaction_of_which_only_the_abort_is_seen(tmp_path):
    traffic = Traffic()
    for at in range(0, 6000, 500):
        traffic.add(at, *fetch(5, 20), took_ms=500, connection=2, client="reader")
    aborted = fetch(20, 20, batch(3, 0, 0), aborted=[(7, 5)])
    traffic.add(7100, *aborted, connection=2, client="reader")
    ((text, *evidence),) = found(traffic, tmp_path)
    assert text.endswith("for 6.0 s behind a transaction whose producer is not recorded.")
    assert evidence[-1] == "It was aborted, as Fetch #13 shows: it is that of producer id 7."


def test_a_short_wait_is_no_stand_nor_is_a_reader_that_asks_seldom(tmp_path):
    traffic = begun()
    for at in range(0, 2000, 500):
        traffic.add(20 + at, *fetch(5, 20), took_ms=500, connection=2, client="reader")
    traffic.add(2100, *end(0), client="shop")
    traffic.add(60_000, *fetch(20, 20, batch(3, 0, 0)), connection=2, client="reader")
    assert not found(traffic, tmp_path)
