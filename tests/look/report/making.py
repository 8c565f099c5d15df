"""Data of reports, as tests make it, and what a report says of it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import attrs

from kproxy.look.report import findings
from kproxy.look.report.data import ReportData
from kproxy.look.report.page import page as whole_page
from kproxy.look.report.slots import Slots
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"

TOTALS = Counter[str]()


def api(name: str, count: int, **others: Any) -> dict[str, Any]:
    """What is known of an API."""
    return {
        "api": name, "count": count, "errors": 0, "unanswered": 0, "open": 0, "touched": 0,
        "waited": 0, "queued": 0,
        "queued_ms": None, "broker_min": None, "broker_max": None, "proxy_p99": 0.1,
        "proxy_count": count, "proxy_max": 0.2, "proxy_max_number": 1, "bytes": 1,
        "proxy_max_file": "a.mcap", "unanswered_number": None, "unanswered_file": None,
    } | others  # fmt: skip


def slots(counts: dict[int, dict[tuple[str, Any], int]], width_ms: int = 10) -> Slots:
    """Counts over time: slot → what → how often."""
    return Slots(180, width_ms, {slot: Counter(each) for slot, each in counts.items()})


def gathered(
    apis: list[dict[str, Any]], histograms: dict[str, dict[int, int]], **others: Any
) -> ReportData:
    """What a report shows of APIs."""
    lists = (
        "errors", "slowest", "rebalances", "groups", "faults", "ended_by", "differences",
        "notices",
    )  # fmt: skip
    empty: dict[str, Any] = {name: [] for name in lists}
    empty |= {"fault_totals": Counter(), "group_totals": Counter(), "slots": slots({})}
    empty["hits"] = others.get("faults", [])
    counted = {name: Counter(each) for name, each in histograms.items()}
    data = ReportData(
        start_us=0, span_ms=1000, totals=Counter(TOTALS), apis=apis,
        histograms=counted, **(empty | others),
    )  # fmt: skip
    data.name_exchanges()
    return data


def said(found: ReportData) -> str:
    """The sentences of a report."""
    return "\n".join(each.text for each in findings.findings(found))


def page_of(found: ReportData, recordings: list[str], baseline: tuple[str, ...] = ()) -> str:
    """The page of a report; its cells without attributes."""
    return plain(whole_page(found, recordings, baseline))


def plain(page: str) -> str:
    """A page whose cells have no attributes, and whole names where they are cut."""
    page = re.sub(r'<td title="([^"]*)">[^<]*</td>', r"<td>\1</td>", page)
    return re.sub(r"<(td|th)[^>]*>", r"<\1>", page)


def row_of(page: str, name: str) -> list[str]:
    """The cells of a row of a table."""
    (found,) = re.findall(rf"<tr><td>{name}</td>(.*?)</tr>", page)
    return re.findall(r"<td>(.*?)</td>", found)


_OF_FAULTS = (
    "recording", "file", "us", "fault", "number", "client_id", "api", "retries", "reconnects",
    "recovered_number", "recovered_ms",
)  # fmt: skip


def told(data: ReportData) -> dict[str, Any]:
    """All that a report says of exchanges and notes; nothing of what tables alone have."""
    found = attrs.asdict(data, recurse=False)
    for name, rows in (("faults", data.faults), ("hits", data.hits)):
        found[name] = [{key: row[key] for key in _OF_FAULTS} for row in rows]
    found["slots"] = data.slots.width_ms, data.slots.counts
    for other in ("paths", "notices", "findings", "differences"):
        del found[other]
    return found
