"""`kproxy why topic:T`: who wrote it, who read it, and what was refused."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import NO_RESPONSE, WITHHELD
from kproxy.exchange.filter import parse
from kproxy.history import producers
from kproxy.look.lines.stream import Stream
from kproxy.look.report.light import light_data
from tests.look.why.test_key import produce
from tests.look.why.test_key import told as told_of_key
from tests.look.why.traffic import Traffic


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
