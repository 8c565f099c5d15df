"""Brokers that stand still for a while, and what only looks like it."""

from __future__ import annotations

import pytest

from kproxy.exchange import notes
from kproxy.exchange.entries import EVENTS, Note
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.look.why.finding import Finding
from tests.exchange.making import MS, START_NS, opened
from tests.look.why.test_findings import found, found_in
from tests.look.why.test_key import fetch, produce
from tests.look.why.traffic import Traffic, beat

KIND = "broker that stood still"


def ordinary() -> Traffic:
    """A broker with two connections, to each of which it answers at once."""
    traffic = Traffic()
    for at in range(0, 1000, 100):
        traffic.add(at, *produce(0, at, b"k"), connection=1 + at // 100 % 2)
    return traffic


def stalls(traffic: Traffic, tmp_path) -> list[Finding]:
    return found(traffic, tmp_path, KIND)


def test_it_may_stand_still_again(tmp_path):
    traffic = ordinary()
    for at, took_ms in ((1000, 1500), (5000, 2500)):
        for connection in (1, 2):
            traffic.add(at, *produce(0, at + connection, b"k"), took_ms, connection)
    (finding,) = stalls(traffic, tmp_path)
    assert "for 2.5 s" in finding.text and finding.whole.endswith("It stood still so 2 times.")


def slow_request(traffic: Traffic) -> None:
    """One request takes long, and nobody asks anything else."""
    traffic.add(1000, *produce(0, 1001, b"k"), took_ms=4000)


def answers_another(traffic: Traffic) -> None:
    """While two wait, a third is answered now and then."""
    traffic.entries.append(opened(3, node_id=1))
    for connection in (1, 2):
        traffic.add(1000, *produce(0, 1000 + connection, b"k"), 4000, connection)
    for at in range(1500, 5000, 500):
        traffic.add(at, *beat("m", 1), connection=3)


def polls(traffic: Traffic) -> None:
    """Two consumers wait for records."""
    for connection in (1, 2):
        traffic.add(1000, *fetch(0, 5), took_ms=4000, connection=connection)


def nothing_asked(traffic: Traffic) -> None:
    """Nobody asks anything for a while."""
    for connection in (1, 2):
        traffic.add(5000, *produce(0, 1000 + connection, b"k"), 1, connection)


def another_broker(traffic: Traffic) -> None:
    """Of two brokers each has one slow request."""
    traffic.entries.append(opened(3, node_id=2))
    for connection in (1, 3):
        traffic.add(1000, *produce(0, 1000 + connection, b"k"), 4000, connection)


def gap(traffic: Traffic) -> None:
    """A part of the recording is missing in between."""
    for connection in (1, 2):
        traffic.add(1000, *produce(0, 1000 + connection, b"k"), 2000, connection)
    body = {"event": "lost", "frames": 3, "frame_bytes": 100}
    traffic.entries.append(Note(EVENTS, START_NS + 2500 * MS, body))


@pytest.mark.parametrize(
    "add", [slow_request, answers_another, polls, nothing_asked, another_broker, gap]
)
def test_what_is_no_stall(tmp_path, add):
    traffic = ordinary()
    add(traffic)
    assert stalls(traffic, tmp_path) == []


def two_brokers() -> Traffic:
    """Two brokers, each with two connections, none of which gets an answer for 3 s."""
    traffic = ordinary()
    for connection in (3, 4):
        traffic.entries.append(opened(connection, node_id=2))
    for at in range(0, 1000, 100):
        traffic.add(at, *produce(1, at, b"k"), connection=3 + at // 100 % 2)
    for connection in (1, 2, 3, 4):
        late = produce(connection % 2, 2000 + connection, b"k")
        traffic.add(1000 + connection, *late, 3000 - connection, connection)
    return traffic


def test_brokers_that_stand_still_at_once_are_one_finding(tmp_path):
    (finding,) = stalls(two_brokers(), tmp_path)
    assert finding.whole == (
        "At once, brokers 1, 2 answered nobody for 3.0 s, from 22:13:21.001 to 22:13:24.000. 4"
        " requests that they then answered, on 4 connections, had waited, Produce #21 as the first"
        " of them. They ended together: what they share stood still, as the network or a machine;"
        " or one waited for another, as for its replica."
    )
    assert finding.command(["a.mcap"]) == "kproxy show a.mcap 'node_id:1,2 broker_ms:500..'"


def test_brokers_are_not_blamed_while_kproxy_stood_still(tmp_path):
    traffic = two_brokers()
    traffic.entries.append(notes.stood_still(START_NS + 1100 * MS, START_NS + 3990 * MS))
    path = traffic.recorded(tmp_path)
    assert not found_in(path, KIND)
    told = [each.text for each in findings(light_data([path]))]
    assert any(text.startswith("kproxy itself stood still 1 time, for 2.89 s") for text in told)
    assert "the broker took 1 ms" in told[-1], "and not the 3 s of others"
