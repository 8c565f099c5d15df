"""The report and its sentences: what too few exchanges tell is not said, and blame is fair."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from kproxy.exchange import histogram
from tests.look.report.making import TOTALS, api, gathered, page_of, said, slots


def bucket(milliseconds: float) -> int:
    """The bucket of a time."""
    return histogram.bucket(round(milliseconds * 1000))


def test_sentences_need_enough_exchanges() -> None:
    times = {bucket(1): 290, bucket(900): 10}
    ends = {"broker_min": 1.0, "broker_max": 901.0}
    assert "One Produce in a hundred takes 896 ms" in said(
        gathered([api("Produce", 300, **ends)], {"Produce": times})
    )
    assert "of the 300 not held back" in said(
        gathered([api("Fetch", 400, **ends)], {"Fetch": times})
    )
    assert "in a hundred" not in said(gathered([api("Fetch", 64_811, **ends)], {"Fetch": times}))


def test_kproxy_names_its_own_pause_and_blames_few_exchanges_for_nothing() -> None:
    few = api("ApiVersions", 16, proxy_p99=47.9, proxy_max=47.9)
    assert "kproxy itself" not in said(gathered([few], {}))
    paused = api("Fetch", 64_811, proxy_p99=0.2, proxy_max=1027.7, proxy_max_number=119698)
    assert "kproxy itself held #119698 Fetch for 1.03 s" in said(gathered([paused], {}))
    still = gathered([], {})
    still.totals |= {"stalls": 2, "longest_stall_seconds": 1.25}
    assert "kproxy itself stood still 2 times, for 1.25 s at most: what came" in said(still)
    still.stalls = [(0, 10**9)]  # and nothing came
    assert "kproxy itself stood still 2 times, for 1.25 s at most." in said(still)
    slow = api("Fetch", 100, proxy_p99=6.0, proxy_max=99.0)
    assert "kproxy itself held one Fetch in a hundred for 6 ms" in said(gathered([slow], {}))


def test_more_connections_are_advised_when_the_broker_is_quick() -> None:
    queued = api("Produce", 1000, queued=500, queued_ms=500 * 80.0)
    quick = said(gathered([queued], {"Produce": {bucket(1): 1000}}))
    assert "waited behind" in quick and "more connections would help" in quick
    stalled = said(gathered([queued], {"Produce": {bucket(1): 980, bucket(1200): 20}}))
    assert "50 % of Produce waited behind" in stalled and "connections would" not in stalled


def part(kind: str, name: str | None, times: dict[int, int], **others: Any) -> dict[str, Any]:
    """What is known of an API by topic or client."""
    about = {"kind": kind, "api": "Produce", "name": name, "count": sum(times.values())}
    about |= {"errors": 0, "histogram": times, "part_count": 2, "broker_min": 2.0}
    return about | {"broker_max": 119.0} | others


def test_a_topic_that_is_slower_than_others_is_named() -> None:
    slow, quick = {bucket(2): 100, bucket(120): 20}, {bucket(2): 880}
    every = {"Produce": {bucket(2): 980, bucket(120): 20}}
    of = api("Produce", 1000, broker_min=2.0, broker_max=121.0)
    parts = [part("topic", "orders", slow, errors=3), part("topic", "mail", quick)]
    found = gathered([of], every, parts=[*parts, part("client", "shop", every["Produce"])])
    (text,) = (each for each in said(found).splitlines() if "slower than the rest" in each)
    assert text == (
        "Produce on topic orders is slower than the rest: p95 is 119 ms, of the others 2 ms."
    )
    page = page_of(found, [])
    section = page.partition("Latency by topic")[2].partition("</section>")[0]
    first, second = re.findall(r"<tr><td>(.*?)</td></tr>", section)
    assert first.split("</td><td>")[1:4] == ["orders", "120", "3"]
    assert first.split("</td><td>")[4:] == ["2 ms", "119 ms", "119 ms"], "as in the sentence"
    assert "mail" in second and "more" not in section
    found.parts = [each | {"part_count": 30} for each in parts]
    page = page_of(found, [])
    assert "And 28 more" in page and "Latency by client" not in page
    few = gathered([of], every, parts=[part("topic", "orders", {bucket(120): 19}, count=19)])
    assert "slower than the rest" not in said(few)


def test_the_time_is_named_in_which_a_topic_was_slow() -> None:
    def phase(number: int, times: dict[int, int]) -> dict[str, Any]:
        return {"us": (3 * 60 + number) * 60_000_000, "histogram": times}

    slow = phase(7, {bucket(2): 80, bucket(120): 20})
    row = {"api": "Produce", "topic": "orders", "slowest": slow}
    row |= {"broker_min": 2.0, "broker_max": 119.0}
    quick, alike = phase(5, {bucket(2): 100}), phase(6, {bucket(2): 90, bucket(110): 10})
    found = gathered([], {}, phases=[row | {"quickest": quick}], phase_ms=60_000)
    assert (
        "Produce on topic orders was slowest from 03:07:00 on: p95 of those 1 min is 119 ms,"
        " of the quickest (03:05:00) 2 ms." in said(found)
    )
    alike_row = row | {"quickest": alike}
    assert "slowest from" not in said(gathered([], {}, phases=[alike_row], phase_ms=60_000))


def test_times_are_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        began = datetime.fromtimestamp(3_723, UTC).astimezone().replace(tzinfo=None)  # as of Spark
        row = {
            "number": 1, "time": began, "api": "Produce", "client_id": "shop", "node_id": 1,
            "topics": [], "service_ms": 1.0, "waiting_ms": 0.0, "queued_ms": 0.0,
        }  # fmt: skip
        assert "<td>#1</td><td>01:02:03.000</td>" in page_of(gathered([], {}, slowest=[row]), [])
    finally:
        monkeypatch.undo()
        time.tzset()


ODD = "<b>\x1b[2J\a\x9b\u202e\u2066\u200f\0\x7f\udcff</b>"
ESCAPED = r"&lt;b&gt;\x1b[2J\x07\x9b\u202e\u2066\u200f\x00\x7f\xff&lt;/b&gt;"
"""Text that would have a terminal, or who reads a page, see something else; and what stands for
it."""


def test_names_that_clients_made_up_show_no_control_characters() -> None:
    fault = {
        "fault": ODD, "time": datetime(2026, 1, 1, tzinfo=UTC), "us": 0, "number": 1, "api": ODD,
        "client_id": ODD, "retries": 1, "reconnects": 0, "recovered_ms": 5.0,
        "recovered_number": 2,
    }  # fmt: skip
    rule = {
        "fault": ODD, "hits": 1, "apis": [ODD], "client_ids": [ODD], "retries": 1,
        "recovered_ms": 5.0, "recovered_ms_max": 5.0, "lasting": 0,
    }  # fmt: skip
    group = {
        "group": ODD, "us": 0, "generation": 1, "members": 1, "first_generation": 1,
        "last_generation": 1, "rebalances": 0, "commits": 0, "errors": 0, "lag": 3,
        "partitions": [{"topic": ODD, "partition": 0, "lag": 3}],
    }  # fmt: skip
    slowest = {
        "number": 1, "time": fault["time"], "api": ODD, "client_id": ODD, "node_id": 1,
        "topics": [ODD], "service_ms": 1.0, "waiting_ms": None, "queued_ms": None,
    }  # fmt: skip
    over_time: dict[tuple[str, Any], int] = {("api", ODD): 1, ("api", "Fetch"): 1}
    over_time |= {("error", ODD): 1, ("error", "NONE"): 1}
    over_time |= {(what, f"{n}{ODD}"): 5 for what in ("produced", "consumed") for n in range(2)}
    error = {
        "error": ODD, "api": ODD, "count": 1, "injected": 0, "routine": 0,
        "number": 1, "client_ids": [ODD], "topics": [ODD],
    }  # fmt: skip
    found = gathered(
        [api(ODD, 5)], {}, faults=[fault], rules=[rule], rebalances=[group], groups=[group],
        slowest=[slowest], slots=slots({0: over_time}), errors=[error], notices=[ODD],
        ended_by=[{"ended_by": ODD, "n": 1}],
    )  # fmt: skip
    found.totals = Counter(errors=1, exchanges=10)
    page = page_of(found, [ODD], (ODD,))
    assert [each for each in page if not each.isprintable() and each != "\n"] == []
    assert "<b>\\x1b" not in page and page.count(ESCAPED) > 20
    assert page.encode()


def test_the_line_of_p99_is_not_drawn_over_that_of_p95() -> None:
    found = gathered([], {})
    found.slots = slots({slot: {("bucket", bucket(5)): 3} for slot in range(4)})
    page = page_of(found, [])
    lines = re.findall(r'class="(line.*?)"[^>]*><title>(\w+)<', page)
    assert [name for _, name in lines] == ["p99", "p95", "p50"], "the last one lies on top"
    assert [kind for kind, _ in lines] == ["line", "line dashed", "line"]
    assert ".line.dashed polyline { stroke-dasharray" in page


def test_what_only_one_side_has_is_said() -> None:
    def row(of: str, topic: str | None, count: int, before: int) -> dict[str, Any]:
        about = {"api": of, "topic": topic, "count": count, "baseline_count": before}
        none = {f"{each}_ratio": None for each in ("p50", "p95", "p99")}
        sure = {f"{each}_sigma": 0.0 for each in ("p50", "p95", "p99", "errors")}
        return about | none | sure | {"errors": 0.0, "baseline_errors": 0.0}

    rows = [row("Fetch", None, 0, 9), row("Fetch", "old", 0, 9), row("Produce", None, 5, 5)]
    rows += [row("Produce", "new", 5, 0), row("Produce", "both", 0, 5), row("Fetch", "both", 1, 0)]
    found = gathered([], {}, differences=rows)
    texts = said(found)
    assert "Topics not in the baseline: new." in texts
    assert "Topics only in the baseline: old." in texts
    assert "APIs only in the baseline: Fetch." in texts and "both" not in texts
    assert "<td>old</td>" in page_of(found, [])


def test_an_error_that_was_not_injected_leads_and_names_its_clients() -> None:
    injected = {
        "error": "COORDINATOR_LOAD_IN_PROGRESS", "api": "JoinGroup", "count": 30, "injected": 30,
        "routine": 0, "number": 1, "client_ids": ["billing"], "topics": [],
    }  # fmt: skip
    real = injected | {
        "error": "NOT_LEADER_OR_FOLLOWER", "api": "Produce", "count": 10, "injected": 0,
        "routine": 0, "number": 7, "client_ids": ["shop", "checkout"],
    }  # fmt: skip
    found = gathered([], {}, errors=[injected, real])
    found.totals = Counter(TOTALS) | Counter(errors=40, exchanges=100)
    assert (
        "had errors: NOT_LEADER_OR_FOLLOWER of Produce, 10 times, to checkout, shop (first #7)."
        in said(found)
    )
    found.errors = [injected]
    assert "30 times, 30 of them injected, to billing (first #1)." in said(found)
