"""Brokers that could not be reached, as the ends of connections tell it."""

from __future__ import annotations

from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from tests.exchange.making import MS, START_NS
from tests.why.test_findings import found
from tests.why.traffic import Traffic, beat, ends

KIND = "broker that could not be reached"


def refused(traffic: Traffic, at: int, connection: int, node_id: int | None) -> None:
    """A client connects, and no broker answers, at a time in milliseconds."""
    at_ns = START_NS + at * MS
    about = {"node_id": node_id, "client_address": "127.0.0.1:5000"}
    reason = "no broker: b1:9092 refuses connections"
    side_ends = [SideEnd("broker", "down", at_ns)]
    note = notes.closed(connection, at_ns, about, "down", reason, "broker", side_ends)
    traffic.entries.append(note)


def test_brokers_that_could_not_be_reached(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    for nth, node_id in enumerate((None, 2, 1, 2)):
        refused(traffic, 100 + nth, 10 + nth, node_id)
    findings = found(traffic, tmp_path, KIND)
    why = "no broker: b1:9092 refuses connections."
    assert [each.text for each in findings] == [
        f"1 connection ended at 22:13:20.102 because broker 1 could not be reached: {why}",
        (
            "2 connections ended between 22:13:20.101 and 22:13:20.103 because broker 2 could not"
            f" be reached: {why}"
        ),
        (
            "1 connection ended at 22:13:20.100 because no bootstrap address could be reached:"
            f" {why}"
        ),
    ]
    assert findings[1].command(["a.mcap"]) == "kproxy why a.mcap connection:11"


def test_a_connection_that_a_broker_ends_is_none(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    ends(traffic, 10, "broker")
    assert not found(traffic, tmp_path, KIND)
