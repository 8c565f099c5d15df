"""`kproxy why topic:T`: who wrote it, who read it, and what was refused."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import NO_RESPONSE, WITHHELD
from kproxy.exchange.filter import parse
from kproxy.history import producers
from kproxy.look.lines.stream import Stream
from kproxy.look.report.light import light_data
from kproxy.wire.protocol import messages as M
from tests.look.why.test_findings import member
from tests.look.why.test_key import aborted_fetch, commit, fetch, metadata, produce
from tests.look.why.test_key import told as told_of_key
from tests.look.why.test_transactional_id import end, initialize
from tests.look.why.test_transactional_id import produce as produce_in_transaction
from tests.look.why.test_why import Traffic


def test_the_story_of_a_topic(tmp_path):
    C, R = M.CreateTopicsRequest, M.CreateTopicsResponse
    asked = C(topics=[C.CreatableTopic(name="orders", num_partitions=2, replication_factor=1)])
    answer = R(topics=[R.CreatableTopicResult(name="orders", num_partitions=2)])
    traffic = Traffic()
    traffic.add(0, "CreateTopics", 5, asked, answer, client="admin")
    traffic.add(10, *metadata(2), client="shop")
    for second in range(5):
        traffic.add(1000 * second + 20, *produce(1, second, b"k"), client="shop")
    traffic.add(5000, *produce(0, -1, b"k", error=10), client="web")
    member(traffic, 5100, "billing-1", 1, 0, 1)
    traffic.add(5200, *fetch(1, 0, b"k", b"k", b"k", b"k", b"k"), client="billing-1")
    traffic.add(5400, *commit(1, 5), client="billing-1")
    D, S = M.DeleteTopicsRequest, M.DeleteTopicsResponse
    gone = S(responses=[S.DeletableTopicResult(name="orders")])
    traffic.add(6000, "DeleteTopics", 5, D(topic_names=["orders"]), gone, client="admin")
    told = traffic.story(tmp_path, "topic", "orders")
    assert told[:3] == [
        "The number of partitions of topic orders is not in the recording.",
        "22:13:20.000 admin (127.0.0.1) created it (CreateTopics #1).",
        "22:13:26.000 admin (127.0.0.1) deleted it (DeleteTopics #13).",
    ]
    assert told[3].startswith("shop (127.0.0.1) wrote 5 records (")
    assert told[3].endswith(
        " B) to orders[1] with 5 requests, 22:13:20.020 to 22:13:24.020, 1.25 records/s over 4.0 s."
    )
    assert told[4].startswith("web (127.0.0.1) tried to write 1 record (")
    assert told[4].endswith(" B) to orders[0] with 1 request, 22:13:25.000.")
    assert told[5].startswith("billing-1 (127.0.0.1) fetched 5 records (")
    assert told[5].endswith(" B) of orders[1] for group billing with 1 request, 22:13:25.200.")
    assert told[6:] == [
        "Group billing committed 1 offset, the last orders[1@5] (#12, deleted by #13).",
        "MESSAGE_TOO_LARGE of Produce, #8 of 22:13:25.000 to web (127.0.0.1).",
    ]


def test_a_topic_that_is_only_asked_for(tmp_path):
    traffic = Traffic()
    traffic.add(0, *metadata(3))
    assert traffic.story(tmp_path, "topic", "orders") == [
        "Topic orders has 3 partitions (Metadata #1).",
        "Nobody wrote to it in the recording.",
        "Nobody fetched it in the recording.",
    ]
    assert traffic.story(tmp_path, "topic", "order") == []


def test_what_a_rule_kept_from_the_broker_wrote_nothing(tmp_path):
    traffic = Traffic()
    for nth, client in enumerate(("took", "fire", "eaten", "denied")):
        _, version, asked, answer = produce(0, nth, b"k", error=10 if client == "denied" else 0)
        asked.acks = 0 if client in ("fire", "eaten") else -1
        traffic.add(nth, "Produce", version, asked, answer if asked.acks else None, client=client)
        if not asked.acks:
            last = traffic.entries[-1]
            traffic.entries[-1] = attrs.evolve(last, flags=last.flags | NO_RESPONSE)
        if client == "eaten":
            traffic.by_rule(WITHHELD, sent_ns=0)
    lines = "\n".join(traffic.story(tmp_path, "topic", "orders"))
    assert "took (127.0.0.1) wrote 1 record (70 B) to orders[0] with 1 request" in lines
    assert "fire (127.0.0.1) sent 1 record (70 B) to orders[0] with acks=0, in 1 request" in lines
    assert "eaten (127.0.0.1) tried to write 1 record (70 B) to orders[0] with 1 request" in lines
    assert "denied (127.0.0.1) tried to write 1 record (70 B) to orders[0] with 1 req" in lines
    of_key = "\n".join(told_of_key(traffic, tmp_path, "k"))
    assert (
        "Produce #3 of eaten (127.0.0.1) to orders[0] was kept from the broker by fault" in of_key
    )
    assert "eaten (127.0.0.1) wrote" not in of_key
    path = traffic.recorded(tmp_path)
    assert sum(1 for _ in producers.produced(Stream([path]).exchanges())) == 2
    assert light_data([path]).totals["produced"] == 2
    (shown,) = (each.text for each in Stream([path], parse("number:3")).exchanges())
    assert shown.endswith("→ not to be answered: kept from the broker by fault eat")
    told = traffic.story(tmp_path, "number", "3")
    assert "The client wanted no response (acks=0), and it was kept from the broker by fault" in (
        "\n".join(told)
    )


def test_records_of_aborted_transactions_are_told(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="old")
    traffic.add(1, *produce_in_transaction(0, 0, 0), client="old")
    traffic.add(2, *end(0, committed=False), client="old")
    traffic.add(3, *produce_in_transaction(0, 3, 4, 2), client="old")
    traffic.add(4, *end(0), client="old")
    traffic.add(5, *produce_in_transaction(0, 5, 7, 1), client="old")
    traffic.add(6, *initialize(1), client="new")
    traffic.add(20, *aborted_fetch(0, b"a", b"b", b"c"), client="billing")
    wrote, fetched = traffic.story(tmp_path, "topic", "orders")[1:3]
    assert "old (127.0.0.1) wrote 6 records" in wrote
    assert "to orders[0], 4 of them in transactions that were aborted, with 3 requests" in wrote
    assert "fetched 3 records" in fetched
    assert "of orders[0], 3 of them in transactions that were aborted, with 1 request" in fetched


def test_a_transaction_whose_end_was_not_answered_is_not_said_to_be_aborted(tmp_path):
    traffic = Traffic()
    traffic.add(0, *initialize(0), client="old")
    traffic.add(1, *produce_in_transaction(0, 0, 0), client="old")
    traffic.add(2, *end(0)[:3], None, client="old")
    traffic.add(6, *initialize(1), client="new")
    assert not [each for each in traffic.story(tmp_path, "topic", "orders") if "aborted" in each]


def test_a_rate_is_that_from_the_first_to_the_last_records(tmp_path):
    traffic = Traffic()
    for second in range(3):
        traffic.add(1000 * second, *fetch(0, second, b"k"), client="one")
    traffic.add(9000, *fetch(0, 3), client="one")
    (fetched,) = (each for each in traffic.story(tmp_path, "topic", "orders") if "fetched" in each)
    assert fetched.endswith("22:13:20.000 to 22:13:29.000, 1.5 records/s over 2.0 s.")
