"""The data of a report, from the sum of its parts: tables are sorted, and cut to what is shown.

ReportPart, rows of faults ─▶ report_data ─▶ ReportData
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.counts import Counts, ErrorTally, Tally, summed
from kproxy.exchange.histogram import PERCENTILES, Histogram, rank
from kproxy.exchange.merging import merge
from kproxy.look.lines.stats_lines import representative
from kproxy.look.report.commits import CommittedOffsets
from kproxy.look.report.data import GROUPS_MAX, MARKS_MAX, ROWS_MAX, ReportData, Row, in_order
from kproxy.look.report.groups import GroupTally
from kproxy.look.report.part import ReportPart
from kproxy.look.why.finding import Finding
from kproxy.recording.notices import notice

_PHASE_COUNT_MIN = 100
"""Exchanges with a time of the broker that a phase needs to be compared with others."""


def report_data(
    part: ReportPart,
    faults: FaultSummary,
    paths: Sequence[str],
    differences: Sequence[Row] = (),
    left_out: Sequence[str] = (),
    proved: Sequence[Finding] = (),
) -> ReportData:
    """Return the data of a report. `left_out` are sentences on files that were not read, `proved`
    the findings in the exchanges of each recording."""
    files = in_order(part.files.values())
    start_us = min((each.start_us for each in files), default=0)
    end_us = max((each.end_us for each in files), default=0)
    rebalances, groups, group_totals = _groups(part)
    counts, by_api = part.counts, part.counts.by_api
    data = ReportData(
        start_us=start_us,
        span_ms=(end_us - start_us) / 1000,
        slots=part.slots,
        totals=_totals(part, len(rebalances)),
        group_totals=group_totals,
        fault_totals=faults.totals,
        apis=_apis(by_api),
        histograms={api or "?": Counter(each.broker.counts) for api, each in by_api.items()},
        errors=_errors(counts),
        slowest=[row for *_, row in part.slowest],
        rebalances=rebalances[:MARKS_MAX],
        groups=groups,
        faults=faults.shown,
        hits=faults.hits,
        ended_by=[{"ended_by": side, "n": n} for side, n in _most(part.ended_by)],
        differences=list(differences),
        notices=[*left_out, *notices_of(part)],
        parts=[*_parts("client", counts.clients), *_parts("topic", counts.topics)],
        phases=_phases(part),
        phase_ms=part.phases.width_ms,
        rules=faults.rules,
        findings=list(proved),
        files=files,
        paths=list(paths),
    )
    for row in (*data.faults, *data.hits):
        row["file"] = data.file_of(row["recording"], row["number"])
    data.name_exchanges()
    return data


def _most(counts: Counter[str]) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _totals(part: ReportPart, generations: int) -> Row:
    total = part.counts.total
    return {
        "exchanges": total.count,
        "clients": len({client_id for _, client_id in part.counts.clients} - {None}),
        "connections": len(part.connections),
        "errors": total.errors,
        "routine": total.routine,
        "unanswered": total.unanswered,
        "open": total.open,
        "touched": total.touched,
        "undelivered": total.undelivered,
        "too_late": total.too_late,
        "bytes": total.bytes,
        "produced": part.produced,
        "consumed": part.records["consumed"],
        "generations": generations,
        "stalls": part.stalls,
        "longest_stall_seconds": part.longest_stall_seconds if part.stalls else None,
    }


def notices_of(part: ReportPart) -> list[str]:
    """Return the first sentences on what is missing; losses are summed by reason."""
    lost = (
        notice(notes.lost(found["frames"], found["bytes"], reason, 0, 0))
        for reason, found in sorted(part.lost.items())
    )
    found = [*filter(None, lost), *(sentence for _, sentence in sorted(part.sentences))]
    return found[:ROWS_MAX]


# ---------------------------------------------------------------- by API, topic and client


def _apis(tallies: dict[str | None, Tally]) -> list[Row]:
    rows: list[Row] = []
    for api, tally in sorted(tallies.items(), key=lambda item: (-item[1].count, item[0] or "")):
        broker, proxy = tally.broker, tally.proxy
        held, lost = tally.longest_held, tally.first_unanswered
        rows.append(
            {
                "api": api, "count": tally.count, "errors": tally.errors,
                "unanswered": tally.unanswered,
                "open": tally.open,
                "touched": tally.touched,
                "unanswered_file": None if lost is None else lost[1][0],
                "unanswered_number": None if lost is None else lost[1][1],
                "waited": tally.waited, "queued": tally.queued,
                "queued_ms": round(tally.queued_us / 1000, 1), "bytes": tally.bytes,
                "proxy_p99": proxy.percentile(PERCENTILES["p99"]),
                "proxy_count": proxy.count,
                "proxy_max": None if held is None else -held[0] / 1000,
                "proxy_max_file": None if held is None else held[1][0],
                "proxy_max_number": None if held is None else held[1][1],
            }
            | _limits(broker)
        )  # fmt: skip
    return rows


def _limits(broker: Histogram) -> Row:
    """Return the least and the largest time of the broker, which no percentile is beyond."""
    return {
        "broker_min": broker.least_us / 1000 if broker.count else None,
        "broker_max": broker.max_ms if broker.count else None,
    }


def _parts(kind: str, tallies: Mapping[Any, Tally]) -> list[Row]:
    """Return the APIs by topic or client with the largest p99; those with too few values for
    percentiles come last."""
    found = [(api, name, tally) for (api, name), tally in tallies.items() if tally.broker.count]

    def place(item: tuple[str | None, str | None, Tally]) -> tuple[bool, int, str, str]:
        api, name, tally = item
        enough = representative(tally.broker.count, tally.count)
        return not enough, -rank(tally.broker.counts, PERCENTILES["p99"]), api or "", name or ""

    return [
        {
            "kind": kind, "api": api, "name": name, "count": tally.count, "errors": tally.errors,
            "histogram": dict(tally.broker.counts), "part_count": len(found),
        }
        | _limits(tally.broker)
        for api, name, tally in sorted(found, key=place)[:ROWS_MAX]
    ]  # fmt: skip


def _phases(part: ReportPart) -> list[Row]:
    histograms: defaultdict[tuple[str, str], dict[int, Counter[int]]] = defaultdict(dict)
    counts: Counter[tuple[str, str, int]] = Counter()
    for slot, found in part.phases.counts.items():
        for (api, topic, at), n in found.items():
            if at is None:
                counts[api, topic, slot] = n
            else:
                histograms[api, topic].setdefault(slot, Counter())[at] = n
    rows: list[Row] = []
    for (api, topic), by_slot in histograms.items():
        timed = [
            (rank(each, PERCENTILES["p95"]), slot, each)
            for slot, each in by_slot.items()
            if each.total() >= _PHASE_COUNT_MIN
            and representative(each.total(), counts[api, topic, slot])
        ]
        if len(timed) < 2:
            continue
        slowest = max(timed, key=lambda each: (each[0], -each[1]))
        quickest = min(timed, key=lambda each: each[:2])
        row: Row = {"api": api, "topic": topic, "p95": slowest[0]}
        row |= _limits(part.counts.topics[api, topic].broker)
        for name, (_, slot, each) in (("slowest", slowest), ("quickest", quickest)):
            row[name] = {"us": slot * part.phases.width_ms * 1000, "histogram": dict(each)}
        rows.append(row)
    rows.sort(key=lambda row: (-row["p95"], row["api"], row["topic"]))
    return rows[:ROWS_MAX]


def _errors(counts: Counts) -> list[Row]:
    tallies = summed(
        (((error, api, routine), tally)
         for (error, api, _, routine), tally in counts.failures.items()), ErrorTally,
    )  # fmt: skip
    client_ids: defaultdict[tuple[str, str | None], set[str]] = defaultdict(set)
    for error, api, client_id, _ in counts.failures:
        client_ids[error, api] |= set() if client_id is None else {client_id}
    rows: list[Row] = []
    for (error, api), clients in client_ids.items():
        failed, routine = (tallies.get((error, api, each)) for each in (False, True))
        routine_count = 0 if routine is None else routine.count
        first = failed.first if failed else routine.first if routine else None
        _, (file, number) = first or (0, ("", 0))
        whole = merge(merge(ErrorTally(), failed), routine)
        rows.append(
            {
                "error": error, "api": api, "count": whole.count, "injected": whole.injected,
                "routine": routine_count, "number": number, "file": file,
                "client_ids": sorted(clients), "topics": sorted(whole.topics),
            }
        )  # fmt: skip
    rows.sort(key=lambda row: (-row["count"], row["error"], row["api"] or ""))
    return rows[:ROWS_MAX]


# ---------------------------------------------------------------- groups


def groups_of(part: ReportPart) -> dict[tuple[str, str], tuple[GroupTally, list[Row]]]:
    """Return the counts of each group of a cluster, and how far it has committed, by partition.

    Groups and ends of logs belong to a cluster: all recordings that show the same cluster id. A
    recording that shows none, or several, is a cluster by itself.
    """
    clusters = clusters_of(part)
    tallies: dict[tuple[str, str], GroupTally] = {}
    for (recording, name), tally in part.groups.items():
        key = name, clusters.get(recording, recording)
        merge(tallies.setdefault(key, GroupTally()), tally)
    commits: dict[str, CommittedOffsets] = {}
    for recording, found in part.commits.items():
        merge(commits.setdefault(clusters.get(recording, recording), CommittedOffsets()), found)
    partitions = {
        (group, cluster): rows
        for cluster, each in commits.items()
        for group, rows in _partitions(each).items()
    }
    return {key: (tally, partitions.get(key, [])) for key, tally in sorted(tallies.items())}


def clusters_of(part: ReportPart) -> dict[str, str]:
    """Return the cluster of each recording: itself, unless it shows exactly one."""
    return {
        recording: next(iter(ids)) if len(ids) == 1 else recording
        for recording, ids in part.cluster_ids.items()
    }


def _groups(part: ReportPart) -> tuple[list[Row], list[Row], Row]:
    """Return the generations, the groups that are shown, and the totals of all groups."""
    clusters = clusters_of(part)
    groups = groups_of(part)
    several = len({cluster for _, cluster in groups}) > 1
    rows: list[Row] = []
    born: list[Row] = []
    for (name, cluster), (tally, partitions) in groups.items():
        shown = f"{name} of cluster {cluster}" if several else name
        recordings = {each for each, group in part.groups if group == name}
        files = in_order([
            span for span in part.files.values() if span.recording in recordings
            and clusters.get(span.recording, span.recording) == cluster
        ])  # fmt: skip
        about = {"group": shown, "name": name, "files": [span.file for span in files]}
        rows.append(about | _group(tally, partitions))
        born += [
            {"group": shown, "us": tally.born_us[each], "generation": each, "members": len(members)}
            for each, members in tally.born.items()
        ]
    born.sort(key=lambda row: (row["us"], row["group"], row["generation"]))
    totals = {
        "known": len(rows),
        "rebalanced": sum(row["rebalances"] > 0 for row in rows),
        "behind": sum((row["lag"] or 0) > 0 for row in rows),
    }
    return born, worst_groups(rows), totals


def _partitions(commits: CommittedOffsets) -> dict[str, list[Row]]:
    """Return how far each group has committed, and how far the logs go."""
    found: dict[str, list[Row]] = {}
    ends = commits.ends()
    for (group, topic, partition), offset in sorted(commits.committed().items()):
        end = ends.get((topic, partition))
        found.setdefault(group, []).append(
            {
                "topic": topic, "partition": partition, "committed": offset, "log_end": end,
                "lag": None if end is None else max(0, end - offset),
            }
        )  # fmt: skip
    return found


def _group(tally: GroupTally, partitions: list[Row]) -> Row:
    return {
        "members": len(tally.members), "client_ids": sorted(tally.client_ids),
        "first_generation": min(tally.generations, default=None),
        "last_generation": max(tally.generations, default=None),
        "rebalances": tally.rebalances, "commits": tally.commits,
        "errors": tally.errors, "lag": lag_of(partitions), "partitions": partitions,
    }  # fmt: skip


def lag_of(partitions: Iterable[Row]) -> int | None:
    """Return the lag of partitions together; None if that of none is known."""
    lags = [each["lag"] for each in partitions if each["lag"] is not None]
    return sum(lags) if lags else None


def worst_groups(rows: Sequence[Row]) -> list[Row]:
    """Return the groups to show: in turn the one that rebalanced most often and the one that is
    furthest behind, as many as fit."""
    orders = (
        sorted(rows, key=lambda row: (-row["rebalances"], row["group"])),
        sorted(rows, key=lambda row: -1 if row["lag"] is None else row["lag"], reverse=True),
    )
    found: dict[str, Row] = {}
    for pair in zip(*orders, strict=True):
        for row in pair:
            found.setdefault(row["group"], row)
    return list(found.values())[:GROUPS_MAX]


# ---------------------------------------------------------------- faults


@attrs.define(eq=False)
class FaultSummary:
    """The hits of fault rules, summed."""

    totals: Row
    rules: list[Row]
    shown: list[Row]
    """Of many hits, a sample spread over their time."""
    hits: list[Row]
    """The first hits that were more than a delay or a copy."""


def summarized(rows: Iterable[Row], count: int) -> FaultSummary:
    """Sum up hits of fault rules, so many in all, in the order of their times."""
    by_rule: dict[str, list[Row]] = {}
    recovered: list[float] = []
    shown: list[Row] = []
    hits: list[Row] = []
    succeeded = passed = 0
    times: defaultdict[str, list[float]] = defaultdict(list)
    for turn, row in enumerate(rows, 1):
        name = row["fault"] or "?"
        by_rule.setdefault(name, []).append({each: row[each] for each in _OF_RULES})
        if row["recovered_ms"] is not None:
            recovered.append(row["recovered_ms"])
            if not _has_succeeded(row):
                times[name].append(row["recovered_ms"])
        if turn * MARKS_MAX // count > (turn - 1) * MARKS_MAX // count:
            shown.append(row)
        succeeded += _has_succeeded(row)
        if _is_passed(row):
            passed += 1
        elif len(hits) < MARKS_MAX:
            hits.append(row)
    rules = [
        {
            "fault": name, "hits": len(its_hits),
            "apis": sorted({hit["api"] for hit in its_hits} - {None}),
            "client_ids": sorted({hit["client_id"] for hit in its_hits} - {None}),
            "retries": sum(hit["retries"] for hit in its_hits),
            "recovered_ms": median(times[name]) if times[name] else None,
            "recovered_ms_max": max(times[name], default=None),
            "lasting": sum(hit["recovered_ms"] is None for hit in its_hits),
        }
        for name, its_hits in by_rule.items()
    ]  # fmt: skip
    rules.sort(key=lambda rule: (-rule["hits"], rule["fault"]))
    totals = {
        "hits": count, "recovered": len(recovered), "succeeded": succeeded, "passed": passed,
        "recovered_ms_max": max(recovered, default=None),
    }  # fmt: skip
    return FaultSummary(totals, rules[:ROWS_MAX], shown, hits)


def _has_succeeded(row: Row) -> bool:
    """Return whether the exchange of a hit succeeded itself."""
    return row["recovered_number"] == row["number"]


def _is_passed(row: Row) -> bool:
    """Return whether the exchange of a hit succeeded itself, and its client did nothing."""
    return _has_succeeded(row) and not row["retries"] and not row["reconnects"]


_OF_RULES = ("api", "client_id", "retries", "recovered_ms")
