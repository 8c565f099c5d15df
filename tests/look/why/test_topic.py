"""`kproxy why topic:T`: who wrote it, who read it, and what was refused."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import NO_RESPONSE, WITHHELD
from kproxy.exchange.filter import parse
from kproxy.history import producers
from kproxy.look.lines.stream import Stream
from kproxy.look.report.light import light_data
from tests.look.why.test_causes import created, deleted
from tests.look.why.test_findings import member
from tests.look.why.test_key import commit, fetch, metadata, produce
from tests.look.why.test_key import told as told_of_key
from tests.look.why.traffic import Traffic


def test_the_story_of_a_topic(tmp_path):
    traffic = Traffic()
    traffic.add(0, *created("orders"), client="admin")
    traffic.add(10, *metadata(2), client="shop")
    for second in range(5):
        traffic.add(1000 * second + 20, *produce(1, second, b"k"), client="shop")
    traffic.add(5000, *produce(0, -1, b"k", error=10), client="web")
    member(traffic, 5100, "billing-1", 1, 0, 1)
    traffic.add(5200, *fetch(1, 0, b"k", b"k", b"k", b"k", b"k"), client="billing-1")
    traffic.add(5400, *commit(1, 5), client="billing-1")
    traffic.add(6000, *deleted("orders"), client="admin")
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
