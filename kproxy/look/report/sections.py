"""The sections of a report: each chart and each table is one entry of `SECTIONS`.

::

    Section(title, Chart(draw, note), Table(rows, columns), …)

How to add a table: an entry with its rows and columns. A column is its head, what a cell says of a
row, and whether it is a number or a name. How to add a chart: an entry with the function that draws
it of the data, and the one that returns its note.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from typing import Any

import attrs

from kproxy.exchange.histogram import BUCKETS, PERCENTILES, growth, percentile_ms, start_ms
from kproxy.exchange.words.terminal_width import cut_middle
from kproxy.exchange.words.wording import duration
from kproxy.look.lines.stats_lines import ENOUGH, representative
from kproxy.look.report import charts
from kproxy.look.report.charts import Axis, Mark, escape
from kproxy.look.report.data import ReportData, Row
from kproxy.look.report.findings import counted, most_lag, number
from kproxy.look.report.significance import SIGNIFICANT
from kproxy.look.report.timeline import Timeline
from kproxy.printable import printable
from kproxy.units import format_bytes, moment

_SERIES_MAX = 5
_ROWS_MAX = 50
_NAME_WIDTH = 28
"""Characters of a name in a table: the rest is cut out of its middle, and is its title."""
_LISTED_MAX = 4
_GAP_SLOTS = 5
"""Slots without a value over which a line is drawn; a longer gap interrupts it."""
_HEAT_BUCKETS = BUCKETS // 4
"""Buckets of a histogram that are one row of the heat map."""


def note(text: str) -> str:
    """Return a note below a chart or a table; "" without a text."""
    return f'<p class="note">{escape(text)}</p>' if text else ""


# ---------------------------------------------------------------- tables


@attrs.frozen
class Column:
    """A column of a table."""

    head: str
    value: Callable[[Row], Any]
    is_number: bool = False
    """True: right-aligned, as times and sizes are, too."""

    def cell(self, row: Row) -> str:
        """Return the cell of a row."""
        value = self.value(row)
        whole = printable(_text(value, whole=True))
        if self.is_number:
            return f'<td class="n">{escape(_text(value))}</td>'
        shown = cut_middle(printable(_text(value)), _NAME_WIDTH)
        title = "" if shown == whole else f' title="{escape(whole)}"'
        return f"<td{title}>{escape(shown)}</td>"


@attrs.frozen
class Table:
    """A table of a section; without rows it is left out."""

    rows: Callable[[ReportData], Sequence[Row]]
    columns: tuple[Column, ...]
    note: Callable[[ReportData], str] = lambda data: ""
    total: Callable[[ReportData], int] = lambda data: 0
    """The number of rows that there are, where not all are shown."""

    def html(self, data: ReportData, x: Timeline) -> str:
        """Return the table of the data."""
        rows = self.rows(data)[:_ROWS_MAX]
        if not rows:
            return ""
        head = "".join(
            f'<th scope="col"{" class=" + chr(34) + "n" + chr(34) if each.is_number else ""}>'
            f"{escape(each.head)}</th>"
            for each in self.columns
        )
        body = "".join(
            "<tr>" + "".join(each.cell(row) for each in self.columns) + "</tr>" for row in rows
        )
        left = self.total(data) - len(rows)
        more = note(f"and {number(left)} more") if left > 0 else ""
        table = f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
        return table + more + note(self.note(data))


def _text(value: Any, whole: bool = False) -> str:
    if value is None:
        return "–"
    if isinstance(value, list):
        shown = ", ".join(str(each) for each in (value if whole else value[:_LISTED_MAX]))
        return shown if whole or len(value) <= _LISTED_MAX else f"{shown}, …"
    return number(value) if isinstance(value, int) else str(value)


def _clock(time: datetime | None) -> str:
    """Return a time of day in UTC."""
    return "–" if time is None else f"{time.astimezone(UTC):%H:%M:%S.%f}"[:-3]


def _name(head: str, key: str | None = None) -> Column:
    return Column(head, itemgetter(key or head))


def _number(head: str, key: str | None = None) -> Column:
    return Column(head, itemgetter(key or head), is_number=True)


def _time(head: str, key: str) -> Column:
    return Column(head, lambda row: duration(row[key]), is_number=True)


def _at(head: str, key: str) -> Column:
    return Column(head, lambda row: _clock(row[key]), is_number=True)


def _exchange(head: str, key: str = "name") -> Column:
    return Column(head, itemgetter(key), is_number=True)


def _percentiles(*names: str) -> tuple[Column, ...]:
    """Return columns of percentiles of the histogram of a row; – where too few have a time."""

    def of_row(part: int, row: Row) -> str:
        histogram, ends = row["histogram"], (row["broker_min"], row["broker_max"])
        enough = representative(sum(histogram.values()), row["count"])
        return duration(percentile_ms(histogram if enough else {}, part, *ends))

    heads = {"p999": "p99.9"}
    return tuple(
        Column(heads.get(name, name), partial(of_row, PERCENTILES[name]), True) for name in names
    )


_ROUTINE = "Errors that are routine of the protocol do not count."


def _apis(data: ReportData) -> list[Row]:
    return [
        {**row, "histogram": data.histograms.get(row["api"] or "?", {})}
        | {"kproxy_p99": row["proxy_p99"] if _shows_proxy(row) else None}
        for row in data.apis
    ]


def _shows_proxy(row: Row) -> bool:
    return representative(row["proxy_count"], row["count"])


def _lag(row: Row) -> str | None:
    worst = most_lag(row)
    return None if row["lag"] is None else number(row["lag"]) + (f", {worst}" if worst else "")


def _ratio(row: Row, name: str) -> str:
    if row[f"{name}_ratio"] is None:
        return "–"
    sure = "" if abs(row[f"{name}_sigma"]) >= SIGNIFICANT else " (chance)"
    return f"×{row[f'{name}_ratio']:.2f}{sure}"


def _passed(count: int) -> str:
    """Return a note on hits that are not listed one by one; "" if there are none."""
    if not count:
        return ""
    return (
        f"{counted(count, 'hit')} only made an exchange late, or sent it twice: it was answered"
        " without an error, so the table of faults leaves it out."
    )


def _failing(row: Row) -> str:
    both = row["count"] and row["baseline_count"]
    same = row["errors"] == row["baseline_errors"]
    sure = not both or same or abs(row["errors_sigma"]) >= SIGNIFICANT
    return f"{row['errors']:.2%}{'' if sure else ' (chance)'}"


def _parts(kind: str) -> Table:
    """Return the table of APIs by topic or by client."""

    def rows(data: ReportData) -> list[Row]:
        return [row for row in data.parts if row["kind"] == kind]

    def about(data: ReportData) -> str:
        left = rows(data)[0]["part_count"] - len(rows(data))
        more = f" And {number(left)} more." if left else ""
        return f"Of the broker's own time, the largest p99 first. {_ROUTINE}{more}"

    columns = (
        _name("API", "api"), _name(kind, "name"), _number("exchanges", "count"), _number("errors"),
        *_percentiles("p50", "p95", "p99"),
    )  # fmt: skip
    return Table(rows, columns, about)


_APIS = Table(
    _apis,
    (
        _name("API", "api"), _number("exchanges", "count"), _number("errors"),
        _number("without a response", "unanswered"), _number("long polls", "waited"),
        *_percentiles("p50", "p95", "p99", "p999"), _time("max", "broker_max"),
        _time("kproxy p99", "kproxy_p99"), _time("kproxy max", "proxy_max"),
        Column("bytes", lambda row: format_bytes(int(row["bytes"])), True),
    ),
    lambda data: (
        f"{_ROUTINE} Percentiles and max are of the broker's own time. There is a – where most"
        f" exchanges have no such time, and fewer than {ENOUGH} or 1 % do: the others waited for"
        " records or members, got no answer, or a fault rule answered them."
        " Times of kproxy are without what fault rules touched."
    ),
)  # fmt: skip
_ERRORS = Table(
    lambda data: data.errors,
    (
        _name("error"), _name("API", "api"), _number("times", "count"), _number("injected"),
        _number("routine"),
        _exchange("first"), _name("clients", "client_ids"), _name("topics"),
    ),
)  # fmt: skip
_SLOWEST = Table(
    lambda data: data.slowest,
    (
        _exchange("exchange"), _at("at", "time"), _name("API", "api"), _name("client", "client_id"),
        _number("broker", "node_id"), _name("topics"), _time("took", "service_ms"),
        _time("waited", "waiting_ms"), _time("queued", "queued_ms"),
    ),
)  # fmt: skip
_GROUPS = Table(
    lambda data: data.groups,
    (
        _name("group"), _number("member ids", "members"), _number("rebalances"),
        Column(
            "generations",
            lambda row: f"{_text(row['first_generation'])} to {_text(row['last_generation'])}",
            True,
        ),
        _number("commits"), _number("errors"), Column("lag", _lag, True),
    ),
    total=lambda data: data.group_totals["known"],
)  # fmt: skip
_GENERATIONS = Table(
    lambda data: data.rebalances,
    (
        _name("group"), Column("at", lambda row: _clock(moment(row["us"] * 1000)), True),
        _number("generation"), _number("joined", "members"),
    ),
    total=lambda data: data.totals["generations"],
)  # fmt: skip
_RULES = Table(
    lambda data: data.rules,
    (
        _name("rule", "fault"), _number("times", "hits"), _name("APIs", "apis"),
        _name("clients", "client_ids"), _number("same API tried", "retries"),
        _time("same API works after", "recovered_ms"), _time("at most", "recovered_ms_max"),
        _number("does not", "lasting"),
    ),
    lambda data: _passed(data.fault_totals["passed"]),
)  # fmt: skip
_FAULTS = Table(
    lambda data: data.hits,
    (
        _name("rule", "fault"), _at("at", "time"), _exchange("exchange"), _name("API", "api"),
        _name("client", "client_id"), _number("same API tried", "retries"),
        _number("reconnects"), _time("same API works after", "recovered_ms"),
        _exchange("as", "recovered_name"),
    ),
    total=lambda data: data.fault_totals["hits"] - data.fault_totals["passed"],
)  # fmt: skip
_ENDED = Table(
    lambda data: data.ended_by, (_name("first", "ended_by"), _number("connections", "n"))
)
_DIFFERENCES = Table(
    lambda data: data.differences,
    (
        _name("API", "api"),
        Column("topic", lambda row: "all" if row["topic"] is None else row["topic"]),
        _number("exchanges", "count"), _number("baseline", "baseline_count"),
        *(
            Column(name, lambda row, name=name: _ratio(row, name), True)
            for name in ("p50", "p95", "p99")
        ),
        Column("errors", _failing, True),
        Column("baseline", lambda row: f"{row['baseline_errors']:.2%}", True),
    ),
    lambda data: (
        f"“chance”: too few exchanges, or too small a difference, to mean anything. {_ROUTINE}"
    ),
)  # fmt: skip


# ---------------------------------------------------------------- charts


@attrs.frozen
class Chart:
    """A chart over time; without values it is left out."""

    draw: Callable[[ReportData, Timeline, Sequence[Mark]], str]
    """Returns the chart of the data, between times, with marks; "" without values."""
    note: Callable[[ReportData], str]
    rebalances: bool = False
    """True: new generations of groups are marked too, not only faults."""

    def html(self, data: ReportData, x: Timeline) -> str:
        """Return the chart of the data."""
        faults = [Mark(row["us"], f"fault {row['fault']}") for row in data.faults]
        born = [
            Mark(row["us"], f"{row['group']}: generation {row['generation']}", "rebalance")
            for row in (data.rebalances if self.rebalances else ())
        ]
        found = self.draw(data, x, [*faults, *born])
        return found and found + note(self.note(data))


def _slot_us(data: ReportData) -> float:
    return data.slots.width_ms * 1000


def _counts(data: ReportData, *kinds: str) -> Iterator[tuple[float, str, Any, int]]:
    """Yield what was counted of some kinds: the time of its slot, its kind, its name, how often."""
    for slot, counts in sorted(data.slots.counts.items()):
        found = [(str(key[1]), kinds.index(key[0]), *key) for key in counts if key[0] in kinds]
        for _, _, kind, name in sorted(found, key=itemgetter(0, 1)):
            yield slot * _slot_us(data), kind, name, counts[kind, name]


def _latency(data: ReportData, x: Timeline, marks: Sequence[Mark]) -> str:
    histograms: dict[float, Counter[int]] = defaultdict(Counter)
    for at, _, bucket, count in _counts(data, "bucket"):
        histograms[at][bucket] += count
    # p95 is dashed and lies on p99: the two are often the same.
    series: dict[str, list[tuple[float, float]]] = {"p99": [], "p95": [], "p50": []}
    for at, histogram in histograms.items():
        for name, points in series.items():
            value = percentile_ms(histogram, PERCENTILES[name])
            if value is not None:
                points.append((at + 0.5 * _slot_us(data), value))
    values = [value for points in series.values() for _, value in points]
    if not values:
        return ""
    y = charts.logarithmic(max(min(values), 0.01), max(values), duration)
    gap = _GAP_SLOTS * _slot_us(data)
    return charts.lines(series, x, y, marks, "latency over time", gap, "p95")


def _latency_note(data: ReportData) -> str:
    marked = " Vertical lines are faults (red) and new generations of groups (grey)."
    text = f"One point for {duration(data.slots.width_ms)}; p95 is dashed."
    return text + (marked if data.faults or data.rebalances else "")


def _heat(data: ReportData, x: Timeline, marks: Sequence[Mark]) -> str:
    cells: Counter[tuple[float, float]] = Counter()
    for at, _, bucket, count in _counts(data, "bucket"):
        cells[at, start_ms(bucket // _HEAT_BUCKETS * _HEAT_BUCKETS)] += count
    if not cells:
        return ""
    factor = growth(_HEAT_BUCKETS)
    lows = [low for _, low in cells]
    y = charts.logarithmic(max(min(lows), 0.01), max(lows) * factor, duration)
    return charts.heat(cells, _slot_us(data), factor, x, y, marks, "heat map of latency")


@attrs.frozen
class _StackedBars:
    """The chart of counts by name: a colour for each of the most frequent names, and one for the
    others; the largest series at the bottom."""

    kinds: tuple[str, ...]
    """The kinds of counts in the slots. Of several, each has series of its own, named for it."""
    label: str
    axis: Callable[[float], Axis]
    others: str = "others"

    def __call__(self, data: ReportData, x: Timeline, marks: Sequence[Mark]) -> str:
        """Return the chart of the data."""
        total: Counter[str] = Counter()
        for _, _, name, count in _counts(data, *self.kinds):
            total[name or "–"] += count
        top = [name for name, _ in total.most_common(_SERIES_MAX)]
        series: dict[str, Counter[float]] = defaultdict(Counter)
        tops: Counter[float] = Counter()
        for at, kind, name, count in _counts(data, *self.kinds):
            shown = (name or "–") if (name or "–") in top else self.others
            series[f"{shown}, {kind}" if len(self.kinds) > 1 else shown][at] += count
            tops[at] += count
        if not series:
            return ""
        ordered = dict(sorted(series.items(), key=lambda item: -item[1].total()))
        y = self.axis(max(tops.values()))
        return charts.bars(ordered, _slot_us(data), x, y, marks, self.label)


def _numbers_axis(top: float) -> Axis:
    return charts.linear(top, number, whole=True)


def _sizes_axis(top: float) -> Axis:
    return charts.sizes(top, lambda value: format_bytes(int(value)))


def _bar_note(data: ReportData) -> str:
    return f"One bar for {duration(data.slots.width_ms)}."


# ---------------------------------------------------------------- sections


@attrs.frozen
class Section:
    """A title, and what is below it; a section without any content is left out."""

    title: str
    content: tuple[Chart | Table, ...]

    def html(self, data: ReportData, x: Timeline) -> str:
        """Return the section of the data."""
        body = "".join(each.html(data, x) for each in self.content)
        return body and f"<section><h2>{escape(self.title)}</h2>{body}</section>"


def _always(text: str) -> Callable[[ReportData], str]:
    """Return the note of a chart that says the same of all data."""
    return lambda data: text


_HEAT_NOTE = _always("The stronger the colour, the more exchanges took so long at that time.")
_TRAFFIC_NOTE = _always(
    "Record batches as they travelled: replicas and retries of clients count, what a broker refused"
    " does not."
)
_RATES = _StackedBars(("api",), "counts over time, by api", _numbers_axis)
_OVER_TIME = "bytes produced and consumed over time, by topic"
_TRAFFIC = _StackedBars(("produced", "consumed"), _OVER_TIME, _sizes_axis, "other topics")
_FAILING = _StackedBars(("error",), "counts over time, by error", _numbers_axis)

SECTIONS = (
    Section("What the broker took", (Chart(_latency, _latency_note, rebalances=True),)),
    Section("Where the exchanges are", (Chart(_heat, _HEAT_NOTE),)),
    Section("Exchanges by API", (Chart(_RATES, _bar_note),)),
    Section("Bytes produced and consumed", (Chart(_TRAFFIC, _TRAFFIC_NOTE),)),
    Section("Errors", (Chart(_FAILING, _bar_note), _ERRORS)),
    Section("Compared with the baseline", (_DIFFERENCES,)),
    Section("APIs", (_APIS,)),
    Section("Latency by topic", (_parts("topic"),)),
    Section("Latency by client", (_parts("client"),)),
    Section("Slowest exchanges", (_SLOWEST,)),
    Section("Groups", (_GROUPS,)),
    Section("Generations of groups", (_GENERATIONS,)),
    Section("Fault rules", (_RULES,)),
    Section("Faults, and what the clients did", (_FAULTS,)),
    Section("Who ended connections", (_ENDED,)),
)
"""All of the report below its findings, in this order."""


def sections(data: ReportData, x: Timeline) -> Iterator[str]:
    """Yield the sections that the data has."""
    return (each.html(data, x) for each in SECTIONS)
