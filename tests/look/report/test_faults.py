"""What clients did after a fault, as the report tells it without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.entries import NO_RESPONSE
from kproxy.look.report.light import light_data
from tests.exchange.making import MS, START_NS, opened
from tests.look.why.test_fault import dropped, fires, produce, sent_twice
from tests.look.why.traffic import Traffic, beat

SECOND = 1000


def first_hit(traffic: Traffic, tmp_path: Path) -> dict[str, Any]:
    """What the report says of the first fault: retries, success, time, and new connections."""
    row = light_data([traffic.recorded(tmp_path)]).faults[0]
    names = ("number", "retries", "recovered_number", "recovered_ms", "reconnects")
    return {name: row[name] for name in names}


def hit() -> Traffic:
    """A Produce of shop whose response a rule dropped."""
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    dropped(traffic)
    return traffic


def test_a_client_is_back_with_its_next_success_of_the_same_api(tmp_path: Path) -> None:
    traffic = hit()
    traffic.add(10, *produce(0, error=10), client="shop")
    traffic.add(20, *beat("m", 1), client="shop")
    traffic.add(30, *produce(0), client="billing", connection=2)
    traffic.add(40, *produce(1), client="shop")
    fires(traffic, "slow", action="latency", fault_ns=MS)
    for number, at, event in (
        (3, -9, "opened"), (4, 9, "opened"), (1, 10, "open"), (5, 40 * SECOND, "opened")
    ):  # fmt: skip
        note = opened(number, node_id=1, event=event)
        traffic.entries.append(attrs.evolve(note, time_ns=START_NS + at * MS))
    traffic.add(50, *produce(2), client="shop", connection=4)
    traffic.add(60, *produce(3), client="shop", connection=3)
    traffic.add(41 * SECOND, *beat("m", 1), client="shop", connection=5)
    back = {"recovered_number": 6, "recovered_ms": 49.0}
    assert first_hit(traffic, tmp_path) == {"number": 1, "retries": 3, "reconnects": 1, **back}


def test_a_client_that_is_not_back_in_time_is_never_back(tmp_path: Path) -> None:
    traffic = hit()
    traffic.add(9, *produce(0, error=10), client="shop")
    traffic.add(10, *produce(0, acks=0)[:3], None, client="shop")
    traffic.entries[-1].flags |= NO_RESPONSE
    traffic.add(32 * SECOND, *produce(0), client="shop")
    row = first_hit(traffic, tmp_path)
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (None, None, 2)


def test_what_was_only_late_is_its_own_success(tmp_path: Path) -> None:
    traffic = Traffic()
    traffic.add(0, *produce(0), client="shop")
    fires(traffic, action="latency", fault_ns=400 * MS)
    traffic.add(500, *produce(1), client="shop")
    row = first_hit(traffic, tmp_path)
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (1, 0.0, 0)


def test_a_copy_of_a_request_is_its_own_success_and_no_retry(tmp_path: Path) -> None:
    row = first_hit(sent_twice(6), tmp_path)
    assert (row["number"], row["recovered_number"], row["retries"]) == (1, 1, 0)
