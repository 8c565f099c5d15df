"""The report: a single HTML file, for a browser, a ticket or an attachment.

    ReportData ─▶ findings · plots over time · tables ─▶ page

All text from recordings is escaped; the page has no scripts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kproxy.analyze import charts
from kproxy.analyze.charts import Axis, Mark, escape
from kproxy.analyze.compare import ENOUGH, SIGNIFICANT, representative
from kproxy.analyze.findings import findings, most_lag, number
from kproxy.analyze.gather import ReportData, Row
from kproxy.analyze.style import STYLE
from kproxy.exchange.histogram import BUCKETS, PERCENTILES, growth, percentile_ms, start_ms
from kproxy.exchange.words.wording import duration
from kproxy.units import format_bytes, moment

_SERIES_MAX = 5
_NAMES_MAX = 20
_ROWS_MAX = 50
_GAP_SLOTS = 5
"""Slots without a value over which a line is drawn; a longer gap interrupts it."""
_HEAT_BUCKETS = BUCKETS // 4
"""Buckets of a histogram that are one row of the heat map."""


def page(data: ReportData, recordings: Sequence[str], baseline: Sequence[str] = ()) -> str:
    """Return the report of recordings, with their names as the user gave them."""
    began = moment(data.start_us * 1000)
    sections = "".join(
        f"<section><h2>{escape(title)}</h2>{body}</section>"
        for title, body in _sections(data)
        if body
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>kproxy: {began:%Y-%m-%d %H:%M}</title><style>{STYLE}</style></head><body><main>"
        f"<header><h1>What the recordings say</h1><p>{began:%Y-%m-%d %H:%M:%S} UTC,"
        f" {duration(data.span_ms)}</p>{_names('Of', recordings)}"
        f"{_names('Compared with', baseline)}</header>"
        f"{_tiles(data.totals)}{_findings(data)}{sections}"
        "<footer>Made by <code>kproxy analyze</code>. The broker's time is without what requests"
        " waited for behind others, in a long poll, or for a group. <code>kproxy show FILE"
        " number:N</code> shows exchange #N.</footer></main></body></html>\n"
    )


def _names(what: str, names: Sequence[str]) -> str:
    shown = ", ".join(f"<code>{escape(name)}</code>" for name in names[:_NAMES_MAX])
    more = f" and {number(len(names) - _NAMES_MAX)} more" if len(names) > _NAMES_MAX else ""
    return f"<p>{what} {shown}{more}</p>" if names else ""


def _sections(data: ReportData) -> Iterable[tuple[str, str]]:
    x = charts.times(data.span_ms, lambda at: f"+{duration(at)}")
    faults = [
        Mark((row["us"] - data.start_us) / 1000, f"fault {row['fault']}") for row in data.faults
    ]
    rebalances = [
        Mark(
            (row["us"] - data.start_us) / 1000,
            f"{row['group']}: generation {row['generation']}",
            "rebalance",
        )
        for row in data.rebalances
    ]
    yield "What the broker took", _latency(data, x, [*faults, *rebalances])
    yield "Where the exchanges are", _heat(data, x, faults)
    yield "Exchanges by API", _stacked(data, data.rates, "api", x, faults)
    yield "Bytes produced and consumed", _traffic(data, x, faults)
    yield (
        "Errors",
        (_stacked(data, data.errors_over_time, "error", x, faults) + _errors(data)),
    )
    yield "Compared with the baseline", _differences(data.differences)
    yield "APIs", _apis(data)
    for kind in ("topic", "client"):
        yield f"Latency by {kind}", _parts(data, kind)
    yield "Slowest exchanges", _slowest(data.slowest)
    yield "Groups", _groups(data.groups, data.group_totals["known"])
    born = data.totals["generations"]
    yield "Generations of groups", _rebalances(data.rebalances[:_ROWS_MAX], born)
    hits = data.fault_totals["hits"]
    yield "Fault rules", _rules(data.rules)
    yield "Faults, and what the clients did", _faults(data.faults[:_ROWS_MAX], hits)
    yield "Who ended connections", _ended(data.ended_by)


def _tiles(totals: Row) -> str:
    tiles = (
        ("exchanges", number(totals["exchanges"])), ("clients", number(totals["clients"])),
        ("connections", number(totals["connections"])),
        ("traffic", format_bytes(int(totals["bytes"]))),
        ("records produced", number(totals["produced"])),
        ("records consumed", number(totals["consumed"])),
        ("with errors", number(totals["errors"])), ("unanswered", number(totals["unanswered"])),
    )  # fmt: skip
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in tiles)
    return f'<div class="tiles">{cells}</div>'


def _findings(data: ReportData) -> str:
    items = "".join(f'<li class="{each.level}">{escape(each.text)}</li>' for each in findings(data))
    return f'<ul class="findings">{items}</ul>' if items else ""


# ---------------------------------------------------------------- plots


def _latency(data: ReportData, x: Axis, marks: Sequence[Mark]) -> str:
    # p95 is dashed and lies on p99: the two are often the same.
    series: dict[str, list[tuple[float, float]]] = {"p99": [], "p95": [], "p50": []}
    for slot in sorted(data.heat):
        for name, points in series.items():
            value = percentile_ms(data.heat[slot], PERCENTILES[name])
            if value is not None:
                points.append(((slot + 0.5) * data.slot_ms, value))
    values = [value for points in series.values() for _, value in points]
    if not values:
        return ""
    y = charts.logarithmic(max(min(values), 0.01), max(values), duration)
    note = f"One point for {duration(data.slot_ms)}; p95 is dashed."
    if marks:
        note += " Vertical lines are faults (red) and new generations of groups (grey)."
    gap = _GAP_SLOTS * data.slot_ms
    return charts.lines(series, x, y, marks, "latency over time", gap, "p95") + _note(note)


def _heat(data: ReportData, x: Axis, marks: Sequence[Mark]) -> str:
    cells: Counter[tuple[float, float]] = Counter()
    for slot, histogram in data.heat.items():
        for bucket, count in histogram.items():
            low = start_ms(bucket // _HEAT_BUCKETS * _HEAT_BUCKETS)
            cells[slot * data.slot_ms, low] += count
    if not cells:
        return ""
    factor = growth(_HEAT_BUCKETS)
    lows = [low for _, low in cells]
    y = charts.logarithmic(max(min(lows), 0.01), max(lows) * factor, duration)
    plot = charts.heat(cells, data.slot_ms, factor, x, y, marks, "heat map of latency")
    return plot + _note("The stronger the colour, the more exchanges took so long at that time.")


def _traffic(data: ReportData, x: Axis, marks: Sequence[Mark]) -> str:
    total: Counter[str] = Counter()
    for row in data.traffic:
        total[row["topic"]] += row["produced"] + row["consumed"]
    top = [topic for topic, _ in total.most_common(_SERIES_MAX)]
    series: dict[str, Counter[float]] = defaultdict(Counter)
    for row in data.traffic:
        topic = row["topic"] if row["topic"] in top else "other topics"
        for what in ("produced", "consumed"):
            if row[what]:
                at = row["slot"] * data.slot_ms
                series[f"{topic}, {what}"][at] += row[what]
    width = max(data.slot_ms, 1000)
    note = (
        "Record batches as they travelled: replicas and retries of clients count, what a broker"
        " refused does not."
    )
    label = "bytes produced and consumed over time, by topic"
    return _bars(series, width, x, marks, label, note, lambda value: format_bytes(int(value)))


def _stacked(
    data: ReportData, rows: Sequence[Row], key: str, x: Axis, marks: Sequence[Mark]
) -> str:
    """Draw how many rows there are by slot, one colour for each value of a column."""
    total: Counter[str] = Counter()
    for row in rows:
        total[row[key] or "–"] += row["n"]
    top = [name for name, _ in total.most_common(_SERIES_MAX)]
    series: dict[str, Counter[float]] = defaultdict(Counter)
    for row in rows:
        name = row[key] or "–"
        series[name if name in top else "others"][row["slot"] * data.slot_ms] += row["n"]
    note = f"One bar for {duration(data.slot_ms)}." if rows else ""
    return _bars(series, data.slot_ms, x, marks, f"counts over time, by {key}", note)


def _bars(
    series: Mapping[str, Mapping[float, float]],
    width: float,
    x: Axis,
    marks: Sequence[Mark],
    label: str,
    note: str,
    text: Callable[[float], str] | None = None,
) -> str:
    """Draw stacked bars, the largest series at the bottom; with `text`, values are sizes."""
    if not series:
        return ""
    tops: Counter[float] = Counter()
    for values in series.values():
        tops.update(values)
    ordered = dict(sorted(series.items(), key=lambda item: -sum(item[1].values())))
    top = max(tops.values())
    y = charts.linear(top, number, whole=True) if text is None else charts.sizes(top, text)
    return charts.bars(ordered, width, x, y, marks, label) + (_note(note) if note else "")


# ---------------------------------------------------------------- tables


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    if not body:
        return ""
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in heads)
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _more(shown: Sequence[Row], total: int) -> str:
    """Return a note on how many rows a table leaves out."""
    return _note(f"and {number(total - len(shown))} more") if total > len(shown) else ""


def _cell(value: Any) -> str:
    return f"<td>{escape(_text(value))}</td>"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        shown = ", ".join(str(each) for each in value[:4])
        return f"{shown}, …" if len(value) > 4 else shown
    return number(value) if isinstance(value, int) else str(value)


def _clock(time: datetime | None) -> str:
    """Return a time of day in UTC: Spark's times have no zone, and are in that of the machine."""
    return "–" if time is None else f"{time.astimezone(UTC):%H:%M:%S.%f}"[:-3]


def _apis(data: ReportData) -> str:
    rows = []
    for row in data.apis:
        histogram = data.histograms.get(row["api"] or "?", {})
        shown = histogram if representative(sum(histogram.values()), row["count"]) else {}
        ends = row["broker_min"], row["broker_max"]
        proxy_shown = representative(row["proxy_count"], row["count"])
        rows.append(
            (
                row["api"],
                row["count"],
                row["errors"],
                row["unanswered"],
                row["waited"],
                *(duration(percentile_ms(shown, part, *ends)) for part in PERCENTILES.values()),
                duration(row["broker_max"]),
                duration(row["proxy_p99"] if proxy_shown else None),
                duration(row["proxy_max"]),
                format_bytes(int(row["bytes"])),
            )
        )
    heads = (
        "API", "exchanges", "errors", "unanswered", "long polls", "p50", "p95", "p99", "p99.9",
        "max", "kproxy p99", "kproxy max", "bytes",
    )  # fmt: skip
    note = (
        "Percentiles and max are of the broker's own time. There is a – where too few exchanges"
        f" have one (fewer than {ENOUGH}, or 1 %): the others were waits for records or members."
        " Times of kproxy are without what fault rules touched."
    )
    return _table(heads, rows) + _note(note) if rows else ""


def _parts(data: ReportData, kind: str) -> str:
    found = [row for row in data.parts if row["kind"] == kind]
    rows = []
    for row in found:
        enough = representative(sum(row["histogram"].values()), row["count"])
        shown = row["histogram"] if enough else {}
        parts = (PERCENTILES[name] for name in ("p50", "p95", "p99"))
        times = (duration(percentile_ms(shown, part)) for part in parts)
        rows.append((row["api"], row["name"], row["count"], row["errors"], *times))
    if not rows:
        return ""
    note = "Of the broker's own time, the largest p99 first."
    if left := found[0]["part_count"] - len(found):
        note += f" And {number(left)} more, in the table latency."
    return _table(("API", kind, "exchanges", "errors", "p50", "p95", "p99"), rows) + _note(note)


def _errors(data: ReportData) -> str:
    heads = ("error", "API", "times", "injected", "first", "clients", "topics")
    return _table(
        heads,
        [
            (
                row["error"], row["api"], row["count"], row["injected"], f"#{row['number']}",
                sorted(row["client_ids"]), sorted(set(row["topics"])),
            )
            for row in data.errors
        ],
    )  # fmt: skip


def _slowest(rows: Sequence[Row]) -> str:
    heads = ("exchange", "at", "API", "client", "broker", "topics", "took", "waited", "queued")
    return _table(
        heads,
        [
            (
                f"#{row['number']}", _clock(row["time"]), row["api"], row["client_id"],
                row["node_id"], row["topics"], duration(row["service_ms"]),
                duration(row["waiting_ms"]), duration(row["queued_ms"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def _groups(rows: Sequence[Row], total: int) -> str:
    heads = ("group", "member ids", "rebalances", "generations", "commits", "errors", "lag")
    return _table(
        heads,
        [
            (
                row["group"], row["members"], row["rebalances"],
                f"{_text(row['first_generation'])} to {_text(row['last_generation'])}",
                row["commits"], row["errors"], _lag(row),
            )
            for row in rows
        ],
    ) + _more(rows, total)  # fmt: skip


def _lag(row: Row) -> str | None:
    worst = most_lag(row)
    return None if row["lag"] is None else number(row["lag"]) + (f", {worst}" if worst else "")


def _rebalances(rows: Sequence[Row], total: int) -> str:
    heads = ("group", "at", "generation", "joined")
    return _table(
        heads,
        [
            (
                row["group"], _clock(moment(row["us"] * 1000)),
                row["generation"], row["members"],
            )
            for row in rows
        ],
    ) + _more(rows, total)  # fmt: skip


def _rules(rows: Sequence[Row]) -> str:
    heads = ("rule", "times", "APIs", "clients", "retries", "back after", "at most", "never back")
    return _table(
        heads,
        [
            (
                row["fault"], number(row["hits"]), ", ".join(row["apis"]),
                ", ".join(row["client_ids"]), number(row["retries"]),
                duration(row["recovered_ms"]), duration(row["recovered_ms_max"]),
                number(row["lasting"]),
            )
            for row in rows
        ],
    )  # fmt: skip


def _faults(rows: Sequence[Row], total: int) -> str:
    heads = ("rule", "at", "exchange", "API", "client", "retries", "reconnects", "back after", "as")
    return _table(
        heads,
        [
            (
                row["fault"], _clock(row["time"]), f"#{row['number']}", row["api"],
                row["client_id"], row["retries"], row["reconnects"], duration(row["recovered_ms"]),
                None if row["recovered_number"] is None else f"#{row['recovered_number']}",
            )
            for row in rows
        ],
    ) + _more(rows, total)  # fmt: skip


def _ended(rows: Sequence[Row]) -> str:
    return _table(("first", "connections"), [(row["ended_by"], row["n"]) for row in rows])


def _differences(rows: Sequence[Row]) -> str:
    def ratio(row: Row, name: str) -> str:
        if row[f"{name}_ratio"] is None:
            return "–"
        sure = "" if abs(row[f"{name}_sigma"]) >= SIGNIFICANT else " (chance)"
        return f"×{row[f'{name}_ratio']:.2f}{sure}"

    def errors(row: Row) -> str:
        both = row["count"] and row["baseline_count"]
        same = row["errors"] == row["baseline_errors"]
        sure = not both or same or abs(row["errors_sigma"]) >= SIGNIFICANT
        return f"{row['errors']:.2%}{'' if sure else ' (chance)'}"

    heads = ("API", "topic", "exchanges", "baseline", "p50", "p95", "p99", "errors", "baseline")
    body = _table(
        heads,
        [
            (
                row["api"], "all" if row["topic"] is None else row["topic"], row["count"],
                row["baseline_count"], *(ratio(row, name) for name in ("p50", "p95", "p99")),
                errors(row), f"{row['baseline_errors']:.2%}",
            )
            for row in rows
        ],
    )  # fmt: skip
    if not body:
        return ""
    note = "“chance”: too few exchanges, or too small a difference, to mean anything."
    return body + _note(note)


def _note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'
