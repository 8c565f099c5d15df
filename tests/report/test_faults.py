"""What clients did after a fault, as the report tells it without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kproxy.exchange import notes
from kproxy.report.faults import FaultNotes, Tried, recoveries
from kproxy.report.light import light_data
from tests.why.test_fault import left_open, sent_twice

SECOND_US = 1_000_000


def tried(number: int, at_us: int, good: bool = True, **others: Any) -> Tried:
    """A Produce of a client."""
    about = {"connection": 1, "client_id": "shop", "api": "Produce", "touched": False} | others
    return Tried("a", at_us, number, topics=("orders",), good=good, **about)


def told(*found: Tried, action: str = "error", opened: tuple[int, ...] = ()) -> dict[str, Any]:
    """The row of a fault that hit #1 at one second."""
    heard = FaultNotes()
    heard.add(notes.fault(SECOND_US * 1000, "away", 1, 1, 1, action=action), "a")
    for at_us in opened:
        heard.add(notes.opened(1, at_us * 1000, {}), "a")
    (row,) = recoveries(heard, list(found))
    return row


def test_a_client_is_back_with_its_next_success_of_the_same_api() -> None:
    hit = tried(1, SECOND_US - 5, good=False, touched=True)
    row = told(
        hit,
        tried(2, SECOND_US + 10, good=False),
        tried(3, SECOND_US + 20, api="Metadata"),
        tried(4, SECOND_US + 30, client_id="billing", connection=2),
        tried(5, SECOND_US + 40, touched=True),
        tried(6, SECOND_US + 50),
        tried(7, SECOND_US + 60),
        opened=(SECOND_US - 9, SECOND_US + 9, 40 * SECOND_US),
    )
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (6, 0.05, 3)
    assert (row["api"], row["client_id"], row["reconnects"]) == ("Produce", "shop", 1)


def test_a_client_that_is_not_back_in_time_is_never_back() -> None:
    hit = tried(1, SECOND_US - 5, good=False, touched=True)
    row = told(hit, tried(2, SECOND_US + 9, good=False), tried(3, 32 * SECOND_US))
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (None, None, 1)
    assert told()["recovered_ms"] is None, "an exchange that is not recorded"


def test_what_was_only_late_is_its_own_success() -> None:
    late = tried(1, SECOND_US - 5, touched=True)
    row = told(late, tried(2, SECOND_US + 9), action="latency")
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (1, 0.0, 0)


def test_what_is_sent_twice_is_its_own_success() -> None:
    row = told(tried(1, SECOND_US - 5, touched=True), action="duplicate")
    assert (row["recovered_number"], row["recovered_ms"], row["retries"]) == (1, 0.0, 0)


def test_a_client_of_the_same_name_on_another_host_is_another_client() -> None:
    hit = tried(1, SECOND_US - 5, good=False, touched=True, host="10.0.0.1")
    row = told(hit, tried(2, SECOND_US + 9, host="10.0.0.2", connection=2))
    assert (row["recovered_number"], row["retries"]) == (None, 0)


def test_what_the_recording_leaves_open_has_not_succeeded(tmp_path: Path) -> None:
    (fault,) = light_data([left_open(tmp_path)]).faults
    assert (fault["number"], fault["recovered_number"]) == (1, None)


def test_a_copy_of_a_request_is_no_retry(tmp_path: Path) -> None:
    (fault,) = light_data([sent_twice(6).recorded(tmp_path)]).faults
    assert (fault["number"], fault["recovered_number"], fault["retries"]) == (1, 1, 0)
