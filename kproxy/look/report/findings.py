"""The findings of a report: what stands out in its data, worst harm first, each with a command.

ReportData ─▶ one rule after the other ─┐
kproxy.look.why.findings, of each recording ─┴─▶ Finding, the worst harm first
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import attrs

from kproxy.exchange.filter import matching
from kproxy.exchange.histogram import PERCENTILES, percentile_ms
from kproxy.exchange.words.wording import duration, listed
from kproxy.history.attempts import FAULT_SECONDS
from kproxy.history.noted import are_most_of
from kproxy.look.lines.stats_lines import ENOUGH, representative
from kproxy.look.report.data import ReportData, Row
from kproxy.look.report.significance import SIGNIFICANT, BucketCounts, Limits, difference
from kproxy.look.why.client_findings import PENDING, QUOTA, SMALL
from kproxy.look.why.commit_findings import LAG
from kproxy.look.why.duplicate_findings import written_after
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.look.why.group_findings import REBALANCES
from kproxy.look.why.read_findings import FETCHED_TWICE
from kproxy.units import moment
from kproxy.wire.protocol import error_code, is_retriable

_SLOW_FACTOR = 20
_SLOW_MS = 50
_MIDDLE_MS_MIN = 0.1
"""Less is the time between two answers that came at once."""
_PROXY_MS = 5
_PAUSE_MS = 100
_PERCENTILE_COUNT_MIN = 100
"""Exchanges that a finding about one in a hundred requires."""
_QUEUE_FACTOR = 3
_NAMES_MAX = 5
_ERRORS_MAX = 10
"""Kinds of errors that are named besides the worst."""
_WORST_MAX = 3
"""Findings of one kind; the others are only counted."""
_PART_FACTOR = 3
_PART_MS = 5
_ORDINARY = frozenset({"errors", "slowest", "undelivered", FETCHED_TWICE, REBALANCES})
"""Kinds of findings that are there where nothing is wrong, too, as long as they harm nothing."""
_WRITES = frozenset({"Produce", "OffsetCommit", "TxnOffsetCommit", "EndTxn"})
"""APIs whose requests change data."""


def findings(data: ReportData) -> list[Finding]:
    """Return the findings, the worst harm first."""
    files = tuple(each.file for each in data.files)
    made = (each for rule in _RULES for each in rule(data))
    found = [*data.findings, *(attrs.evolve(each, files=each.files or files) for each in made)]
    found.sort(key=lambda each: each.harm)
    if found and all(each.harm is Harm.CURIOSITY and each.kind in _ORDINARY for each in found):
        text = f"Nothing wrong is found in {counted(data.totals['exchanges'], 'exchange')}."
        found.insert(0, _finding(Harm.CURIOSITY, "nothing wrong", text))
    return found


def _finding(
    harm: Harm,
    kind: str,
    text: str,
    *shown_by: str,
    row: Row | None = None,
    prefix: str = "",
    files: Sequence[str] = (),
    evidence: Sequence[str] = (),
    about: Subject | None = None,
) -> Finding:
    """Return a finding of a command; or of the exchange of a row, whose story shows it."""
    numbers: tuple[int, ...] = ()
    if row is not None:
        numbers = (row[f"{prefix}number"],)
        file, about = row.get(f"{prefix}file"), Subject("number", numbers[0])
        files = [] if file is None else [file]
    proof = tuple(evidence)
    return Finding(harm, kind, text, numbers, about, None, tuple(files), None, proof, shown_by)


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


def _told(data: ReportData, kind: str | None, file: str | None) -> frozenset[int]:
    """Return the numbers of the exchanges of which findings of a kind tell, in a file; None: of any
    kind, in any file."""
    found = (each for each in data.findings if kind in (None, each.kind))
    return frozenset(
        number
        for each in found
        if not each.files or file is None or file in each.files
        for number in each.numbers
    )


def _completeness(data: ReportData) -> Iterator[Finding]:
    if not data.totals["exchanges"]:
        yield _finding(Harm.LATENCY, "nothing", "There are no exchanges in these recordings.")


def _refused(data: ReportData) -> Iterator[Finding]:
    """Yield errors that may cost data. What came of one request is for `kproxy why` to tell."""
    for row in data.errors:
        if row["count"] == 1 and row["number"] in _told(data, None, row.get("file")):
            continue
        code = error_code(row["error"])
        lasting = code is not None and not is_retriable(code)
        consequence = _CONSEQUENCES.get((row["api"], row["error"]))
        lasting = lasting and row["error"] not in _HARMLESS
        if consequence is None and lasting and row["routine"] < row["count"]:
            consequence = _CONSEQUENCES.get((row["api"], None))
        if consequence is None:
            continue
        kind = written_after(row["error"])
        written = sum(len(each.numbers) for each in data.findings if each.kind == kind)
        if row["api"] == "Produce" and written:
            if written >= row["count"]:
                continue
            consequence += f"; {number(written)} of these requests a later one wrote again"
        injected = f", {number(row['injected'])} of them injected" if row["injected"] else ""
        on = f" on {', '.join(row['topics'][:3])}" if row["topics"] else ""
        yield _finding(
            Harm.DATA,
            "refused",
            f"{row['api']}{on} failed with {row['error']} {counted(row['count'], 'time')}{injected}"
            f"{_clients(row['client_ids'])} (first {row['name']}): {consequence}.",
            row=row,
        )


_HARMLESS = frozenset({"DUPLICATE_SEQUENCE_NUMBER"})
"""Lasting errors that cost nothing: the partition has the batch already."""
_CONSEQUENCES = {
    ("Produce", None): "producers were told that these records were not written",
    ("OffsetCommit", None): "these offsets were not committed",
    ("OffsetCommit", "ILLEGAL_GENERATION"): (
        "these offsets were not committed, and the partitions have other members, which read the"
        " records again"
    ),
    ("OffsetCommit", "REBALANCE_IN_PROGRESS"): "these offsets were not committed by that request",
    ("TxnOffsetCommit", None): "these offsets were not committed",
    ("EndTxn", None): "these transactions did not end by that request",
    ("Fetch", "OFFSET_OUT_OF_RANGE"): (
        "the log does not have what was asked for, so consumers go on elsewhere, or fail, as their"
        " auto.offset.reset says"
    ),
}
"""What an error of an API means for data; for each API also that of other lasting errors."""


def _errors(data: ReportData) -> Iterator[Finding]:
    totals = data.totals
    if not totals["errors"] + totals["routine"]:
        if totals["exchanges"]:
            yield _finding(Harm.CURIOSITY, "errors", "No response has an error.")
        return
    routine = [row for row in data.errors if row["routine"]]
    others = [row for row in data.errors if row["routine"] < row["count"]]
    failed, calm = totals["errors"], totals["routine"]
    if calm and not failed:
        part = share(calm, totals["exchanges"])
        named = listed((f"{row['error']} of {row['api']}" for row in routine), _ERRORS_MAX)
        text = f"{counted(calm, 'response')} ({part}) had errors that are part of normal operation."
        shown = "show", "is:routine"
        yield _finding(Harm.CURIOSITY, "errors", text, *shown, evidence=[f"{named}."])
    if not failed or not others:
        return
    part = share(failed, totals["exchanges"])
    worst, *rest = sorted(others, key=_harm_of_error)
    evidence = [_error(row) for row in rest[:_ERRORS_MAX]]
    if (more := len(rest) - _ERRORS_MAX) > 0:
        evidence.append(f"{counted(more, 'more kind')} of errors came besides.")
    text = f"{counted(failed, 'response')} ({part}) had errors"
    text += f", besides {number(calm)} with routine ones" if calm else ""
    text += f": {_error(worst)}"
    yield _finding(Harm.LATENCY, "errors", text, row=worst, evidence=evidence)


def _harm_of_error(row: Row) -> tuple[bool, bool, int]:
    """Return the place of a kind of error: those of brokers first, of these the lasting ones, of
    these the most frequent."""
    code = error_code(row["error"])
    retriable = code is not None and is_retriable(code)
    return row["injected"] >= row["count"], retriable, row["routine"] - row["count"]


def _error(row: Row) -> str:
    times = counted(row["count"] - row["routine"], "time")
    injected = "" if not row["injected"] else f", {number(row['injected'])} of them injected"
    on = f" on {listed(row['topics'], _NAMES_MAX)}" if row["topics"] else ""
    return (
        f"{row['error']} of {row['api']}{on}, {times}{injected}{_clients(row['client_ids'])} (first"
        f" {row['name']})."
    )


def _clients(names: list[str]) -> str:
    shown = ", ".join(sorted(names)[:_NAMES_MAX])
    more = f" and {len(names) - _NAMES_MAX} more" if len(names) > _NAMES_MAX else ""
    return f", to {shown}{more}" if names else ""


def _unanswered(data: ReportData) -> Iterator[Finding]:
    reported = 0
    for row in data.apis:
        lost = row["unanswered"] - row["open"] - row["touched"]
        if lost and row["api"] in _WRITES:
            reported += lost
            one = lost == 1
            yield _finding(
                Harm.DATA,
                "unanswered",
                f"{counted(lost, row['api'] + ' request')} {'was' if one else 'were'}"
                f" never answered ({'' if one else 'first '}{row['unanswered_name']}): no answer"
                f" says whether the broker carried {'it' if one else 'them'} out.",
                row=row,
                prefix="unanswered_",
            )
    left = data.totals["open"]
    if lost := data.totals["unanswered"] - left - reported:
        others = counted(lost, "other request" if reported else "request")
        text = f"{others} {'was' if lost == 1 else 'were'} never answered"
        if silenced := data.totals["touched"]:
            which = "" if lost == 1 else f"{number(silenced)} of them "
            text += f", {which}touched by fault rules"
        text += f"; {number(left)} more had no answer yet at the end." if left else "."
        shown = "show", "is:unanswered not is:undelivered"
        yield _finding(Harm.LATENCY, "unanswered", text, *shown)
    shown = "show", "is:undelivered"
    late = data.totals["too_late"]
    if kept := data.totals["undelivered"] - late:
        more = f"; {number(late)} more came when its connection had ended" if late else ""
        text = f"{counted(kept, 'response')} came and did not reach the client, or not whole{more}."
        yield _finding(Harm.LATENCY, "undelivered", text, *shown)
    elif late:
        text = f"{counted(late, 'response')} came when the connection of the client had ended."
        yield _finding(Harm.CURIOSITY, "undelivered", text, *shown)


def _slow(data: ReportData) -> Iterator[Finding]:
    for row in data.apis:
        histogram = data.histograms.get(row["api"] or "?", {})
        count, ends = sum(histogram.values()), _limits(row)
        middle, tail = (
            percentile_ms(histogram, PERCENTILES[name], *ends) for name in ("p50", "p99")
        )
        if (
            middle
            and tail
            and count >= _PERCENTILE_COUNT_MIN
            and representative(count, row["count"])
        ):
            throttled = 100 * len(_told(data, QUOTA, None)) >= count
            if tail > _SLOW_MS and tail > _SLOW_FACTOR * middle and not throttled:
                rest = "" if count == row["count"] else f" of the {number(count)} not held back"
                yield _finding(
                    Harm.LATENCY,
                    "slow",
                    f"One {row['api']} in a hundred{rest} takes {duration(tail)} or more, half of"
                    f" all less than {duration(max(middle, _MIDDLE_MS_MIN))}.",
                    *("show", *_terms(api=row["api"]), f"service_ms:{tail:.0f}.."),
                )
    own = (
        row
        for row in data.slowest
        if row["number"] not in _told(data, QUOTA, row.get("file"))
        and not (data.stalls and _was_kproxy(data, row))
    )
    if worst := next(own, None):
        topics = f" on {', '.join(worst['topics'][:3])}" if worst["topics"] else ""
        yield _finding(
            Harm.CURIOSITY,
            "slowest",
            f"The slowest exchange is {worst['name']}, {worst['api']}{topics} of"
            f" {worst['client_id'] or 'an unnamed client'}:"
            f" the broker took {duration(worst['service_ms'])}.",
            row=worst,
        )


def _was_kproxy(data: ReportData, row: Row) -> bool:
    """Return whether kproxy itself stood still for most of the time of the broker in a row."""
    from_ns = round(row["time"].timestamp() * 1e9)
    return are_most_of(data.stalls, from_ns, from_ns + round(1e6 * row["service_ms"]))


def _limits(row: Row) -> Limits:
    """Return the least and the largest time of the broker in a row."""
    return row["broker_min"], row["broker_max"]


def _terms(**values: str | None) -> list[str]:
    """Return the terms of a filter by key, without those that are None."""
    found: list[str] = []
    for key, value in values.items():
        if value is not None:
            with contextlib.suppress(ValueError):  # an API that filters do not know
                found.append(str(matching(key, value)))
    return found


def _slower(
    new: BucketCounts, old: BucketCounts, limits: Limits, old_limits: Limits
) -> tuple[str, str] | None:
    """Return p95 of a histogram and of another, as text, where the first is much slower."""
    found = difference(new, old, "p95", limits, old_limits)
    at, before, ratio = found["p95"], found["baseline_p95"], found["p95_ratio"]
    if at < _PART_MS or found["p95_sigma"] < SIGNIFICANT or ratio < _PART_FACTOR:
        return None
    return duration(at), duration(before)


def _parts(data: ReportData) -> Iterator[Finding]:
    """Yield topics and clients for which an API is slower than for all others."""
    limits = {row["api"]: _limits(row) for row in data.apis}
    for kind, on, key in (("topic", "on topic", "topic"), ("client", "of client", "client_id")):
        slow: list[tuple[Row, str, str]] = []
        for row in data.parts:
            others = Counter(data.histograms.get(row["api"] or "?", {}))
            others.subtract(row["histogram"])
            count = min(sum(row["histogram"].values()), sum(others.values()))
            if row["kind"] == kind and count >= ENOUGH:
                found = _slower(row["histogram"], +others, _limits(row), limits[row["api"]])
                slow += [(row, *found)] if found is not None else []
        for row, its, of_others in slow[:_WORST_MAX]:
            text = f"{row['api']} {on} {row['name'] or '–'} is slower than the rest: p95 is"
            text += f" {its}, of the others {of_others}."
            shown = "stats", *_terms(api=row["api"], **{key: row["name"]})
            about = Subject(key, row["name"]) if row["name"] is not None else None
            yield _finding(Harm.LATENCY, "slower than the rest", text, *shown, about=about)


def _phases(data: ReportData) -> Iterator[Finding]:
    """Yield the times at which a topic was slower than at others."""
    slow: list[tuple[Row, str, str]] = []
    for row in data.phases:
        slowest, quickest = (row[name]["histogram"] for name in ("slowest", "quickest"))
        found = _slower(slowest, quickest, _limits(row), _limits(row))
        slow += [(row, *found)] if found is not None else []
    for row, its, of_quickest in slow[:_WORST_MAX]:
        when, then = (moment(row[name]["us"] * 1000) for name in ("slowest", "quickest"))
        until = when + timedelta(milliseconds=data.phase_ms)
        yield _finding(
            Harm.LATENCY,
            "slow for a time",
            f"{row['api']} on topic {row['topic']} was slowest from {when:%H:%M:%S} on: p95 of"
            f" those {duration(data.phase_ms)} is {its}, of the quickest ({then:%H:%M:%S})"
            f" {of_quickest}.",
            *("stats", *_terms(api=row["api"], topic=row["topic"])),
            f"time:{when:%Y-%m-%dT%H:%M:%SZ}..{until:%Y-%m-%dT%H:%M:%SZ}",
        )


def _queues(data: ReportData) -> Iterator[Finding]:
    for row in data.apis:
        enough = row["count"] >= _PERCENTILE_COUNT_MIN and row["queued"] * 5 > row["count"]
        if enough and (row["queued_ms"] or 0) > 10 * row["queued"]:
            queued_ms = row["queued_ms"] / row["queued"]
            histogram = data.histograms.get(row["api"] or "?", {})
            tail = percentile_ms(histogram, PERCENTILES["p99"])
            # The broker, not the queue:
            slow = tail is not None and tail * _QUEUE_FACTOR > queued_ms
            small = row["api"] == "Produce" and any(each.kind == SMALL for each in data.findings)
            yield _finding(
                Harm.LATENCY,
                "queued",
                f"{share(row['queued'], row['count'])} of {row['api']} waited behind earlier"
                f" requests of their connection, {duration(queued_ms)} on average"
                f"{'.' if slow or small else ': more connections would help.'}",
                *("show", *_terms(api=row["api"]), f"queued_ms:{queued_ms:.0f}.."),
            )


def _proxy(data: ReportData) -> Iterator[Finding]:
    if stalls := data.totals["stalls"]:
        is_seen = not data.stalls or any(_was_kproxy(data, row) for row in data.slowest)
        slow = ": what came meanwhile seems slow without being so" if is_seen else ""
        yield _finding(
            Harm.LATENCY,
            "kproxy",
            f"kproxy itself stood still {counted(stalls, 'time')}, for"
            f" {duration(1000 * (data.totals['longest_stall_seconds'] or 0))} at most{slow}.",
        )
    own = [
        row
        for row in data.apis
        if row.get("proxy_max_number") not in _told(data, PENDING, row.get("proxy_max_file"))
    ]
    paused = [row for row in own if (row["proxy_max"] or 0) >= _PAUSE_MS]
    for row in sorted(paused, key=lambda row: -row["proxy_max"])[:_WORST_MAX]:
        yield _finding(
            Harm.LATENCY,
            "kproxy",
            f"kproxy itself held {row['proxy_max_name']} {row['api']} for"
            f" {duration(row['proxy_max'])}: not the broker, nor the network.",
            row=row,
            prefix="proxy_max_",
        )
    if (more := len(paused) - _WORST_MAX) > 0:
        apis = f"{more} other API{'' if more == 1 else 's'}"
        text = f"It held exchanges of {apis} for {duration(_PAUSE_MS)} or more."
        yield _finding(Harm.LATENCY, "kproxy", text, "show", f"proxy_ms:{_PAUSE_MS}..")
    slow = [
        row
        for row in own
        if row["proxy_count"] >= _PERCENTILE_COUNT_MIN and row["proxy_p99"] > _PROXY_MS
    ]
    if slow:
        worst = max(slow, key=lambda row: row["proxy_p99"])
        yield _finding(
            Harm.CURIOSITY,
            "kproxy",
            f"kproxy itself held one {worst['api']} in a hundred for"
            f" {duration(worst['proxy_p99'])} or more.",
            *("show", *_terms(api=worst["api"]), f"proxy_ms:{worst['proxy_p99']:.0f}.."),
        )


def _is_proved(data: ReportData, row: Row, kind: str) -> bool:
    """Return whether a recording itself proves something of a group, and says more of it."""
    group, files = row.get("name", row["group"]), set(row.get("files", ()))
    return any(
        each.kind == kind and each.group == group and not (files and files.isdisjoint(each.files))
        for each in data.findings
    )


def _groups(data: ReportData) -> Iterator[Finding]:
    totals = data.group_totals
    rebalanced = sorted(data.groups, key=lambda row: -row["rebalances"])[:_WORST_MAX]
    for row in rebalanced:
        if row["rebalances"] and not _is_proved(data, row, REBALANCES):
            harm = Harm.LATENCY if row["rebalances"] > row["members"] else Harm.CURIOSITY
            yield _finding(
                harm,
                "rebalances",
                f"Group {row['group']} rebalanced {counted(row['rebalances'], 'time')}"
                f" ({counted(row['members'], 'member id')}).",
                about=Subject("group", row.get("name", row["group"])),
                files=row.get("files", ()),
            )
    if (more := totals["rebalanced"] - _WORST_MAX) > 0:
        text = f"{counted(more, 'other group')} rebalanced, none more often."
        yield _finding(Harm.CURIOSITY, "rebalances", text)
    lagging = [row for row in data.groups if row["lag"]]
    behind = [row for row in lagging if not _is_proved(data, row, LAG)]
    for row in sorted(behind, key=lambda row: -row["lag"])[:_WORST_MAX]:
        worst = most_lag(row)
        yield _finding(
            Harm.CURIOSITY,
            "behind",
            f"Group {row['group']} ends {counted(row['lag'], 'offset')} behind its topics"
            f"{f', {worst}' if worst else ''} (markers of transactions count, too).",
            *("show", *_terms(api="OffsetCommit", group=row.get("name", row["group"]))),
            about=Subject("group", row.get("name", row["group"])),
            files=row.get("files", ()),
        )
    said = len(lagging) - len(behind) + _WORST_MAX
    if (more := totals["behind"] - said) > 0:
        verb = "ends" if more == 1 else "end"
        text = f"{counted(more, 'other group')} {verb} behind, none further."
        yield _finding(Harm.CURIOSITY, "behind", text)


_ANSWERED = "the exchange itself was answered without an error"


def _faults(data: ReportData) -> Iterator[Finding]:
    totals = data.fault_totals
    if not totals["hits"]:
        return
    left = totals["hits"] - totals["recovered"]
    verb = "was" if totals["hits"] == 1 else "were"
    text = f"{counted(totals['hits'], 'fault')} {verb} injected"
    own = totals["succeeded"]
    if own == totals["hits"]:
        text += f"; {_ANSWERED}{' each time' * (own > 1)}"
    elif own:
        text += f"; with {number(own)} of them {_ANSWERED}"
    if others := totals["recovered"] - own:
        behind = f"after {counted(others, 'other')} " if own else ""
        text += f"; {behind}the next request of the same API, whatever it asked, succeeded after"
        text += f" {duration(totals['recovered_ms_max'])} at most"
    if left:
        which = counted(left, "other") if own else f"{number(left)} of them"
        text += f"; after {which} no request of the same API is known to have succeeded within"
        text += f" {FAULT_SECONDS} s, or before the recording ends"
    harm = Harm.LATENCY if left else Harm.CURIOSITY
    yield _finding(harm, "faults", f"{text}.", "show", "fault:*")


def _differences(data: ReportData) -> Iterator[Finding]:
    for row in data.differences:
        shown = "stats", *_terms(api=row["api"])
        if row["topic"] is None and row["p99_ratio"] and abs(row["p99_sigma"]) >= SIGNIFICANT:
            if not 0.8 < row["p99_ratio"] < 1.25:
                yield _finding(
                    Harm.LATENCY if row["p99_ratio"] > 1 else Harm.CURIOSITY,
                    "baseline",
                    f"p99 of {row['api']} is {row['p99_ratio']:.2f} times that of the baseline.",
                    *shown,
                )
        if row["topic"] is None and abs(row["errors_sigma"]) >= SIGNIFICANT:
            yield _finding(
                Harm.LATENCY if row["errors_sigma"] > 0 else Harm.CURIOSITY,
                "baseline",
                f"{row['api']} fails {'more' if row['errors_sigma'] > 0 else 'less'} often than in"
                f" the baseline: {share(row['errors'], 1)} of responses have errors, there"
                f" {share(row['baseline_errors'], 1)}.",
                *shown,
            )


def _one_sided(data: ReportData) -> Iterator[Finding]:
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
                text = f"{noun} {where}: {shown}{more}."
                yield _finding(Harm.CURIOSITY, "baseline", text)


_RULES: tuple[Callable[[ReportData], Iterator[Finding]], ...] = (
    _completeness, _differences, _one_sided, _refused, _errors, _unanswered, _slow, _parts,
    _phases, _queues, _groups, _faults, _proxy,
)  # fmt: skip
