"""The findings of an analysis: short sentences at the top of the report.

ReportData ─▶ one rule after the other ─▶ sentences, the most severe first
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from kproxy.analyze.compare import ENOUGH, SIGNIFICANT, difference, representative
from kproxy.analyze.gather import ReportData, Row
from kproxy.exchange.histogram import PERCENTILES, percentile_ms
from kproxy.exchange.words.wording import duration
from kproxy.units import moment

_SLOW_FACTOR = 20
_SLOW_MS = 50
_PROXY_MS = 5
_PAUSE_MS = 100
_PERCENTILE_COUNT_MIN = 100
"""Exchanges that a finding about one in a hundred requires."""
_QUEUE_FACTOR = 3
_NAMES_MAX = 5
_WORST_MAX = 3
"""Findings of one kind; the others are only counted."""
_PART_FACTOR = 3
_PART_MS = 5
_ROUTINE = {("UNSUPPORTED_VERSION", "ApiVersions"), ("MEMBER_ID_REQUIRED", "JoinGroup")}
"""Errors of the normal protocol: clients learn from them what to send next."""


@attrs.frozen
class ReportFinding:
    """A sentence and its severity."""

    level: str
    """"bad", "warn", or "info"."""
    text: str


def findings(data: ReportData) -> list[ReportFinding]:
    """Return the findings, the most severe first."""
    found = [each for rule in _RULES for each in rule(data)]
    order = {"bad": 0, "warn": 1, "info": 2}
    return sorted(found, key=lambda each: order[each.level])


def number(value: float) -> str:
    """Return a number with spaces between thousands."""
    return f"{value:,.0f}".replace(",", " ")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural if it is not 1."""
    return f"{number(count)} {noun}" if count == 1 else f"{number(count)} {noun}s"


def share(part: float, whole: float) -> str:
    """Return a share of a whole as a percentage."""
    percent = 100 * part / whole if whole else 0.0
    if 0 < percent < 0.01:
        return "less than 0.01 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


def most_lag(group: dict[str, Any]) -> str:
    """Return a text about the partition with most of a group's lag; "" without lag."""
    partitions = group["partitions"] or ()
    worst = max(partitions, key=lambda each: each["lag"] or 0, default=None)
    if worst is None or not worst["lag"]:
        return ""
    part = "all" if worst["lag"] == group["lag"] else number(worst["lag"])
    return f"{part} of it on {worst['topic']}[{worst['partition']}]"


def _completeness(data: ReportData) -> Iterator[ReportFinding]:
    totals = data.totals
    for notice in data.notices:
        yield ReportFinding("warn", f"{notice}.")
    if not totals["exchanges"]:
        yield ReportFinding("warn", "There are no exchanges in these recordings.")


def _errors(data: ReportData) -> Iterator[ReportFinding]:
    totals = data.totals
    if not totals["errors"]:
        if totals["exchanges"]:
            yield ReportFinding("info", "No response has an error.")
        return
    routine = [row for row in data.errors if (row["error"], row["api"]) in _ROUTINE]
    others = [row for row in data.errors if row not in routine]
    grave = totals["errors"] - sum(row["count"] for row in routine)
    part = share(totals["errors"], totals["exchanges"])
    if not others:
        named = " and ".join(f"{row['error']} of {row['api']}" for row in routine)
        yield ReportFinding(
            "info",
            f"{counted(totals['errors'], 'response')} ({part}) had errors, all of them"
            f" {named}: so clients and brokers come to terms.",
        )
        return
    worst = next((row for row in others if row["injected"] < row["count"]), others[0])
    which = "the most frequent" if worst is others[0] else "the most frequent of those not injected"
    injected = "" if not worst["injected"] else f", {number(worst['injected'])} of them injected"
    level = "bad" if grave * 100 > totals["exchanges"] else "warn"
    yield ReportFinding(
        level,
        f"{counted(totals['errors'], 'response')} ({part}) had errors;"
        f" {'besides what is routine, ' if routine else ''}{which}"
        f" was {worst['error']} of {worst['api']}, {counted(worst['count'], 'time')}{injected}"
        f"{_clients(worst['client_ids'])} (first #{worst['number']}).",
    )


def _clients(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f", to {shown}{more}" if names else ""


def _unanswered(data: ReportData) -> Iterator[ReportFinding]:
    if lost := data.totals["unanswered"]:
        verb = "was" if lost == 1 else "were"
        yield ReportFinding("warn", f"{counted(lost, 'request')} {verb} never answered.")


def _slow(data: ReportData) -> Iterator[ReportFinding]:
    for row in data.apis:
        histogram = data.histograms.get(row["api"] or "?", {})
        count, ends = sum(histogram.values()), (row["broker_min"], row["broker_max"])
        middle, tail = (
            percentile_ms(histogram, PERCENTILES[name], *ends) for name in ("p50", "p99")
        )
        if (
            middle
            and tail
            and count >= _PERCENTILE_COUNT_MIN
            and representative(count, row["count"])
        ):
            if tail > _SLOW_MS and tail > _SLOW_FACTOR * middle:
                rest = "" if count == row["count"] else f" of the {number(count)} not held back"
                yield ReportFinding(
                    "warn",
                    f"One {row['api']} in a hundred{rest} takes {duration(tail)} or more, half of"
                    f" them less than {duration(middle)}.",
                )
    if data.slowest:
        worst = data.slowest[0]
        topics = f" on {', '.join(worst['topics'][:3])}" if worst["topics"] else ""
        yield ReportFinding(
            "info",
            f"The slowest exchange is #{worst['number']}, {worst['api']}{topics} of"
            f" {worst['client_id'] or 'an unnamed client'}:"
            f" the broker took {duration(worst['service_ms'])}.",
        )


def _parts(data: ReportData) -> Iterator[ReportFinding]:
    """Yield topics and clients for which an API is slower than for all others."""
    for kind, on in (("topic", "on topic"), ("client", "of client")):
        slow: list[tuple[Row, Row]] = []
        for row in data.parts:
            others = Counter(data.histograms.get(row["api"] or "?", {}))
            others.subtract(row["histogram"])
            count = min(sum(row["histogram"].values()), sum(others.values()))
            if row["kind"] != kind or count < ENOUGH:
                continue
            found = difference(row["histogram"], +others, "p95")
            if found["p95"] >= _PART_MS and found["p95_sigma"] >= SIGNIFICANT:
                if found["p95_ratio"] >= _PART_FACTOR:
                    slow.append((row, found))
        for row, found in slow[:_WORST_MAX]:
            yield ReportFinding(
                "warn",
                f"{row['api']} {on} {row['name'] or '–'} is slower than the rest: p95 is"
                f" {duration(found['p95'])}, of the others {duration(found['baseline_p95'])}.",
            )


def _minutes(data: ReportData) -> Iterator[ReportFinding]:
    """Yield the times at which a topic was slower than at others."""
    slow: list[tuple[Row, Row]] = []
    for row in data.minutes:
        found = difference(row["slowest"]["histogram"], row["quickest"]["histogram"], "p95")
        if found["p95"] >= _PART_MS and found["p95_sigma"] >= SIGNIFICANT:
            if found["p95_ratio"] >= _PART_FACTOR:
                slow.append((row, found))
    for row, found in slow[:_WORST_MAX]:
        when, then = (moment(row[name]["us"] * 1000) for name in ("slowest", "quickest"))
        yield ReportFinding(
            "info",
            f"{row['api']} on topic {row['topic']} was slowest from {when:%H:%M} on: p95 of that"
            f" minute is {duration(found['p95'])}, of the quickest ({then:%H:%M})"
            f" {duration(found['baseline_p95'])}.",
        )


def _queues(data: ReportData) -> Iterator[ReportFinding]:
    for row in data.apis:
        enough = row["count"] >= _PERCENTILE_COUNT_MIN and row["queued"] * 5 > row["count"]
        if enough and (row["queued_ms"] or 0) > 10 * row["queued"]:
            queued_ms = row["queued_ms"] / row["queued"]
            histogram = data.histograms.get(row["api"] or "?", {})
            tail = percentile_ms(histogram, PERCENTILES["p99"])
            slow = (
                tail is not None and tail * _QUEUE_FACTOR > queued_ms
            )  # the broker, not the queue
            yield ReportFinding(
                "warn",
                f"{share(row['queued'], row['count'])} of {row['api']} waited behind earlier"
                f" requests of their connection, {duration(queued_ms)} on average"
                f"{'.' if slow else ': more connections would help.'}",
            )


def _proxy(data: ReportData) -> Iterator[ReportFinding]:
    if stalls := data.totals["stalls"]:
        yield ReportFinding(
            "warn",
            f"kproxy itself stood still {counted(stalls, 'time')}, for"
            f" {duration(1000 * (data.totals['stall_seconds'] or 0))} at most: what came"
            " meanwhile seems slow without being so.",
        )
    paused = [row for row in data.apis if (row["proxy_max"] or 0) >= _PAUSE_MS]
    for row in sorted(paused, key=lambda row: -row["proxy_max"])[:_WORST_MAX]:
        yield ReportFinding(
            "warn",
            f"kproxy itself held #{row['proxy_max_number']} {row['api']} for"
            f" {duration(row['proxy_max'])}: not the broker, nor the network.",
        )
    if (more := len(paused) - _WORST_MAX) > 0:
        apis = f"{more} other API{'' if more == 1 else 's'}"
        yield ReportFinding(
            "warn", f"It held exchanges of {apis} for {duration(_PAUSE_MS)} or more."
        )
    slow = [
        row
        for row in data.apis
        if row["proxy_count"] >= _PERCENTILE_COUNT_MIN and row["proxy_p99"] > _PROXY_MS
    ]
    if slow:
        worst = max(slow, key=lambda row: row["proxy_p99"])
        yield ReportFinding(
            "info",
            f"kproxy itself held one {worst['api']} in a hundred for"
            f" {duration(worst['proxy_p99'])} or more.",
        )


def _groups(data: ReportData) -> Iterator[ReportFinding]:
    totals = data.group_totals
    rebalanced = sorted(data.groups, key=lambda row: -row["rebalances"])[:_WORST_MAX]
    for row in rebalanced:
        if row["rebalances"]:
            level = "warn" if row["rebalances"] > row["members"] else "info"
            yield ReportFinding(
                level,
                f"Group {row['group']} rebalanced {counted(row['rebalances'], 'time')}"
                f" ({counted(row['members'], 'member id')}).",
            )
    if (more := totals["rebalanced"] - _WORST_MAX) > 0:
        yield ReportFinding("info", f"{counted(more, 'other group')} rebalanced, none more often.")
    behind = sorted(data.groups, key=lambda row: -(row["lag"] or 0))[:_WORST_MAX]
    for row in behind:
        if row["lag"]:
            worst = most_lag(row)
            yield ReportFinding(
                "info",
                f"Group {row['group']} ends {counted(row['lag'], 'record')} behind its topics"
                f"{f', {worst}' if worst else ''}.",
            )
    if (more := totals["behind"] - _WORST_MAX) > 0:
        verb = "ends" if more == 1 else "end"
        yield ReportFinding("info", f"{counted(more, 'other group')} {verb} behind, none further.")


def _faults(data: ReportData) -> Iterator[ReportFinding]:
    totals = data.fault_totals
    if not totals["hits"]:
        return
    left = totals["hits"] - totals["recovered"]
    verb = "was" if totals["hits"] == 1 else "were"
    text = f"{counted(totals['hits'], 'fault')} {verb} injected"
    if totals["recovered"]:
        text += f"; clients were back after {duration(totals['recovered_ms_max'])} at most"
    if left:
        text += f"; after {number(left)} of them the same request did not succeed again"
    yield ReportFinding("warn" if left else "info", f"{text}.")


def _differences(data: ReportData) -> Iterator[ReportFinding]:
    for row in data.differences:
        if row["topic"] is None and row["p99_ratio"] and abs(row["p99_sigma"]) >= SIGNIFICANT:
            if not 0.8 < row["p99_ratio"] < 1.25:
                slower = row["p99_ratio"] > 1
                yield ReportFinding(
                    "bad" if slower else "info",
                    f"p99 of {row['api']} is {row['p99_ratio']:.2f} times that of the baseline.",
                )
        if row["topic"] is None and abs(row["errors_sigma"]) >= SIGNIFICANT:
            yield ReportFinding(
                "bad" if row["errors_sigma"] > 0 else "info",
                f"{row['api']} fails {'more' if row['errors_sigma'] > 0 else 'less'} often than in"
                f" the baseline: {share(row['errors'], 1)} of responses have errors, there"
                f" {share(row['baseline_errors'], 1)}.",
            )


def _one_sided(data: ReportData) -> Iterator[ReportFinding]:
    """Yield topics and APIs that only one of the analyses has."""
    for kind, whole in (("topic", False), ("api", True)):
        rows = [row for row in data.differences if (row["topic"] is None) is whole]
        here, there = (
            {row[kind] or "?" for row in rows if row[count]}
            for count in ("count", "baseline_count")
        )
        noun = "APIs" if whole else "Topics"
        for names, where in (
            (here - there, "not in the baseline"),
            (there - here, "only in the baseline"),
        ):
            if names:
                shown = ", ".join(sorted(names)[:_NAMES_MAX])
                more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
                yield ReportFinding("info", f"{noun} {where}: {shown}{more}.")


_RULES: tuple[Callable[[ReportData], Iterator[Any]], ...] = (
    _completeness, _differences, _one_sided, _errors, _unanswered, _slow, _parts, _minutes,
    _queues, _groups, _faults, _proxy,
)  # fmt: skip
