"""What `kproxy stats` counted, as lines that fit a screen of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from kproxy.exchange.filter import Filter
from kproxy.exchange.words.columns import cut_middle, padded
from kproxy.exchange.words.line import Segment
from kproxy.exchange.words.wording import age, count, joined, listed, milliseconds
from kproxy.printable import printable
from kproxy.units import format_bytes
from kproxy.view.lines import rendered, terminal_width, wants_colour
from kproxy.view.progress import reading
from kproxy.view.show import write
from kproxy.view.stats import ErrorTally, Stats, Tally
from kproxy.view.stats_rows import RowCounter
from kproxy.view.stream import Stream

ROWS_MAX = 12
"""APIs, clients, topics and errors that are listed; `all` lists all."""
_NAME_WIDTH = 24
_NAME_WIDTH_MIN = 14
_NUMBERS = (
    *(("count", 7), ("errors", 7)),
    *(("p50", 6), ("p95", 6), ("p99", 6), ("max", 6), ("kproxy", 7)),
    *(("bytes", 10), ("records", 8)),
)
"""What the columns of numbers are called, and how wide they are."""
_NUMBERS_WIDTH = sum(width for _, width in _NUMBERS)
_LEGEND = "broker time in ms, without queues and waits that were asked for; kproxy: p99"


def show_stats(
    paths: Sequence[Path | str],
    out: TextIO,
    wanted: Filter | None = None,
    reads_bodies: bool = True,
    rows_max: int | None = ROWS_MAX,
) -> None:
    """Write what there is in recordings; with a filter, in what it means.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    stats = Stats(reads_bodies)
    stream = Stream(paths, wanted, stats.hear, counted=RowCounter(stats))
    with reading("stats", paths) as progress:
        stream.passed = progress.passed
        for each in stream.shown():
            stats.add(each)
    found = lines(stats, wants_colour(out), terminal_width(out), rows_max)
    texts = (f"{line}\n" for line in found)
    write(texts, stream, out, "stats")


def lines(
    stats: Stats,
    colour: bool = False,
    width: int | None = None,
    rows_max: int | None = ROWS_MAX,
) -> Iterator[str]:
    """Yield what was counted."""
    left = _NAME_WIDTH if width is None else min(_NAME_WIDTH, width - _NUMBERS_WIDTH)
    name_width = max(_NAME_WIDTH_MIN, left)
    head = "".join(f"{name:>{width}}" for name, width in _NUMBERS)

    def line(*segments: Segment) -> str:
        return rendered(segments, colour)

    yield line(("bold", _summary(stats)))
    if stats.first is None:
        return
    for title, tallies in (
        ("by API", stats.by_api),
        ("by client", stats.by_client),
        ("by topic", stats.by_topic),
    ):
        if tallies:
            yield ""
            yield line(("bold", f"{title:<{name_width}}"), ("dim", head))
            yield from (line(*row) for row in _rows(tallies, name_width, rows_max))
    if stats.errors:
        yield ""
        yield from (line(*row) for row in _errors(stats.errors, rows_max))
    if events := [event for event in _events(stats) if event]:
        yield ""
        yield from (line(("", event)) for event in events)
    yield line(("dim", _LEGEND))


def _summary(stats: Stats) -> str:
    first, last = stats.first, stats.last
    if first is None or last is None:
        return "no exchanges"
    span_ms = (last - first).total_seconds() * 1000
    return (
        f"{count(stats.total.count, 'exchange')} in {age(span_ms)} from {first:%Y-%m-%d %H:%M:%S}"
        f" UTC, {count(stats.connection_count, 'connection')},"
        f" {count(len(stats.by_client), 'client')}, {format_bytes(stats.total.bytes)}"
    )


def _rows(
    tallies: Mapping[str, Tally], name_width: int, rows_max: int | None
) -> Iterator[list[Segment]]:
    ordered = sorted(tallies.items(), key=lambda item: (-item[1].count, item[0]))
    for name, tally in ordered[:rows_max]:
        yield [_name(name, name_width), *_row(tally)]
    if rows_max is not None and len(ordered) > rows_max:
        yield [("dim", f"… and {len(ordered) - rows_max} more")]


def _name(name: str, width: int) -> Segment:
    return "api", padded(cut_middle(printable(name), width - 1), width)


def _row(tally: Tally) -> list[Segment]:
    times = [tally.broker.percentile(part) for part in (0.5, 0.95, 0.99)]
    times.append(tally.broker.max_ms if tally.broker.count else None)
    errors = tally.errors + tally.unanswered
    return [
        ("", f"{tally.count:>7}"),
        ("error" if errors else "dim", f"{errors or '':>7}"),
        ("", "".join(f"{milliseconds(time):>6}" for time in times)),
        ("dim", f"{milliseconds(tally.proxy.percentile(0.99)):>7}"),
        ("", f"{format_bytes(tally.bytes):>10}{tally.records or '':>8}"),
    ]


def _errors(errors: Mapping[str, ErrorTally], rows_max: int | None) -> Iterator[list[Segment]]:
    ordered = sorted(errors.items(), key=lambda item: (-item[1].count, item[0]))
    for name, error in ordered[:rows_max]:
        apis = listed(f"{api} {number}" for api, number in error.apis.most_common())
        yield [
            ("error", f"{name} ×{error.count}"),
            ("dim", f"  {apis}; the first is #{error.first}"),
        ]
    if rows_max is not None and len(ordered) > rows_max:
        yield [("dim", f"… and {len(ordered) - rows_max} more errors")]


def _events(stats: Stats) -> Iterator[str]:
    """Sentences on what happened beside the requests."""
    for group, generations in sorted(stats.generations.items())[:ROWS_MAX]:
        low, high = min(generations), max(generations)
        if low == high:
            yield f"group {group}: generation {low}"
        else:
            changes = count(len(generations) - 1, "rebalance")
            yield f"group {group}: generation {low} → {high}, {changes}"
    ends = listed(f"{number} by the {side}" for side, number in stats.ended_by.most_common())
    yield joined(
        f"connections ended: {ends}" if ends else "",
        count(stats.reconnects, "reconnect") if stats.reconnects else "",
    )
    yield joined(
        f"{stats.total.unanswered} never answered" if stats.total.unanswered else "",
        f"{stats.throttled} throttled" if stats.throttled else "",
        f"{count(stats.retries, 'batch')} sent again" if stats.retries else "",
        count(stats.leader_changes, "leader change") if stats.leader_changes else "",
    )
