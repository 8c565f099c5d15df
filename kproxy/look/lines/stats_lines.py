"""The output of `kproxy stats`: lines that fit a screen of 80 columns."""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from kproxy.exchange.counts import ErrorTally, Tally, summed
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import PERCENTILES
from kproxy.exchange.words.line import Segment, side_name
from kproxy.exchange.words.terminal_width import columns, cut_middle, padded
from kproxy.exchange.words.wording import age, count, joined, listed, milliseconds
from kproxy.look.lines.lines import rendered, terminal_width, wants_colour
from kproxy.look.lines.progress import reading
from kproxy.look.lines.show import write
from kproxy.look.lines.stats import Stats
from kproxy.look.lines.stream import Stream
from kproxy.printable import printable
from kproxy.recording.notices import on_times
from kproxy.recording.paths import names
from kproxy.units import format_bytes

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter

ROWS_MAX = 12
"""Rows per table of APIs, clients, topics and errors; None lists all. A terminal with too few lines
gets fewer rows, but at least `_ROWS_MIN`."""
_ROWS_MIN = 4
_NAME_WIDTH = 24
_NAME_WIDTH_MIN = 14
_NAME_WIDTH_MAX = 250
"""Longer names are cut; Kafka's topic names have at most 249 characters."""
_NUMBERS = (
    *(("count", 7), ("errors", 7)),
    *(("p50", 6), ("p95", 6), ("p99", 6), ("max", 6), ("kproxy", 7)),
    *(("bytes", 10), ("records", 8)),
)
"""Names and widths of the columns of numbers."""
_NUMBERS_WIDTH = sum(width for _, width in _NUMBERS)
_LEGEND = "broker time in ms, without queues and waits asked for; kproxy: p99; ± 0.6 %"
"""As exact as `exchange.histogram` is."""
_TITLES = {"api": "by API", "client_id": "by client", "topic": "by topic"}
_REASONS_MAX = 3
"""Reasons for failures of TLS that are shown."""
ENOUGH = 20
"""Times that suffice for percentiles, if they are at least `_ENOUGH_PART` of the exchanges."""
_ENOUGH_PART = 0.01
_LEGEND_FEW = f"–: most have no such time (a wait, or no answer), and fewer than {ENOUGH} or 1 % do"


def show_stats(
    paths: Sequence[Path | str],
    out: TextIO,
    wanted: Filter | None = None,
    reads_bodies: bool = True,
    rows_max: int | None = ROWS_MAX,
) -> None:
    """Write the statistics of recordings; with a filter, of the exchanges that match.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    with reading("stats", paths) as progress:
        stream = Stream(paths, wanted, on_progress=progress.update)
        stats = stats_of(stream, reads_bodies)
    found = _fitting_lines(stats, wants_colour(out), terminal_width(out), rows_max, _height(out))
    told = on_times(each.head for each in stream.recordings)
    found += (rendered([("dim", text)], wants_colour(out)) for text in told)
    texts = (f"{line}\n" for line in found)
    write(texts, stream.notices, out, "stats")


def stats_of(stream: Stream, reads_bodies: bool = True) -> Stats:
    """Count the exchanges of a stream.

    Raises: RecordingError, as `Stream.shown`.
    """
    stats = stats_for(stream, reads_bodies)
    for _ in counted(stream, stats):
        pass
    return stats


def stats_for(stream: Stream, reads_bodies: bool = True) -> Stats:
    """Return statistics that have counted nothing of a stream yet."""
    start_ns = stream.recordings[0].head.start_ns or None
    return Stats(reads_bodies, start_ns, list(dict.fromkeys(names(stream.recordings).values())))


def counted(stream: Stream, stats: Stats) -> Iterator[Exchange]:
    """Yield the exchanges of a stream, and count them.

    Raises: RecordingError, as `Stream.shown`.
    """
    for each in stream.shown():
        if isinstance(each, ConnectionEnd):
            stats.end(each)
        else:
            stats.take(each, stream.recording)
            yield each


def _height(out: TextIO) -> int | None:
    """Return the lines of a terminal; None if `out` is not one."""
    return shutil.get_terminal_size().lines if out.isatty() else None


def _fitting_lines(
    stats: Stats, colour: bool, width: int | None, rows_max: int | None, height: int | None
) -> list[str]:
    """Return the lines, with fewer rows if they and a prompt would not fit the screen."""
    found = list(lines(stats, colour, width, rows_max))
    if rows_max is not None and height is not None:
        for fewer in range(rows_max - 1, _ROWS_MIN - 1, -1):
            if len(found) < height:
                break
            found = list(lines(stats, colour, width, fewer))
    return found


def lines(
    stats: Stats,
    colour: bool = False,
    width: int | None = None,
    rows_max: int | None = ROWS_MAX,
) -> Iterator[str]:
    """Yield the lines of the statistics; without a width, names are whole."""
    sums = stats.tables
    every = {_TITLES[key]: tallies for key, tallies in sums.items()}
    tables = {title: _most_frequent(tallies, rows_max) for title, tallies in every.items()}
    name_width = _name_width([name for rows in tables.values() for name, _ in rows], width)
    head = "".join(f"{name:>{width}}" for name, width in _NUMBERS)

    def line(*segments: Segment) -> str:
        return rendered(segments, colour)

    yield from (
        line(("bold", text)) for text in _wrapped(_summary(stats, len(sums["client_id"])), width)
    )
    if stats.first is None:
        if failures := _tls_failures(stats):
            yield from (line(("", text)) for text in _wrapped(failures, width))
        return
    for title, rows in tables.items():
        if rows:
            yield ""
            yield line(("bold", f"{title:<{name_width}}"), ("dim", head))
            yield from (line(_name(name, name_width), *_row(tally)) for name, tally in rows)
            if more := len(every[title]) - len(rows):
                yield line(("dim", f"… and {more} more"))
    if stats.counts.failures:
        yield ""
        for routine in (False, True):
            yield from (line(*row) for row in _errors(stats, routine, rows_max, width))
    if events := [event for event in _events(stats, sums["api"]) if event]:
        yield ""
        yield from (line(("", text)) for event in events for text in _wrapped(event, width))
    yield line(("dim", _LEGEND))
    if any(_too_few(tally) for rows in tables.values() for _, tally in rows):
        yield line(("dim", _LEGEND_FEW))


def _wrapped(text: str, width: int | None) -> list[str]:
    return [text] if width is None else textwrap.wrap(text, width, subsequent_indent="  ")


def _name_width(names: Sequence[str], width: int | None) -> int:
    """Return the width of the column of names: as wide as they are, if there is room."""
    longest = max((columns(printable(name)) + 1 for name in names), default=0)
    wide = min(max(_NAME_WIDTH, longest), _NAME_WIDTH_MAX)
    return wide if width is None else max(_NAME_WIDTH_MIN, min(wide, width - _NUMBERS_WIDTH))


def _summary(stats: Stats, client_count: int) -> str:
    first, last, total = stats.first, stats.last, stats.counts.total
    if first is None or last is None:
        return "no exchanges"
    span_ms = (last - first).total_seconds() * 1000
    return (
        f"{count(total.count, 'exchange')} in {age(span_ms)} from {first:%Y-%m-%d %H:%M:%S}"
        f" UTC{_since_start(stats, first)}, {count(stats.connection_count, 'connection')},"
        f" {count(client_count, 'client')}, {format_bytes(total.bytes)}"
    )


def _since_start(stats: Stats, first: datetime) -> str:
    """Return the time since the start of the recording, from which filters count (`time:+48s`)."""
    if stats.start_ns is None:
        return ""
    since_ms = first.timestamp() * 1000 - stats.start_ns / 1e6
    return f" ({age(since_ms)} after the recording began)" if since_ms >= 1 else ""


def _most_frequent(tallies: Mapping[str, Tally], rows_max: int | None) -> list[tuple[str, Tally]]:
    """Return the names and tallies with the most exchanges."""
    return sorted(tallies.items(), key=lambda item: (-item[1].count, item[0]))[:rows_max]


def _name(name: str, width: int) -> Segment:
    return "api", padded(cut_middle(printable(name), width - 1), width)


def representative(timed: int, count: int) -> bool:
    """Return whether so many exchanges have a time that its percentiles may stand for all of them.

    Half of them have, or `ENOUGH` and 1 %: percentiles of fewer would only describe the requests
    that took longer than their own limit. The report goes by the same rule.
    """
    return timed > 0 and (2 * timed >= count or timed >= max(ENOUGH, count * _ENOUGH_PART))


def _too_few(tally: Tally) -> bool:
    return not representative(tally.broker.count, tally.count)


def _row(tally: Tally) -> list[Segment]:
    few = _too_few(tally)
    p50, p95, p99 = (PERCENTILES[name] for name in ("p50", "p95", "p99"))
    times = [None if few else tally.broker.percentile(each) for each in (p50, p95, p99)]
    times.append(tally.broker.max_ms if tally.broker.count else None)
    return [
        ("", f"{tally.count:>7}"),
        ("error" if tally.errors else "dim", f"{tally.errors or '':>7}"),
        ("", "".join(f"{milliseconds(time):>6}" for time in times)),
        ("dim", f"{milliseconds(tally.proxy_all.percentile(p99)):>7}"),
        ("", f"{format_bytes(tally.bytes):>10}{tally.records or '':>8}"),
    ]


def _errors(
    stats: Stats, routine: bool, rows_max: int | None, width: int | None
) -> Iterator[list[Segment]]:
    """Yield a line for each error of exchanges that have routine ones only, or also others."""
    prefix = "routine: " if routine else ""
    found = [each for each in stats.counts.failures.items() if each[0][-1] == routine]
    errors = summed(((name, tally) for (name, *_), tally in found), ErrorTally)
    apis_by_error = {name: Counter[str]() for name in errors}
    for (name, api, *_), tally in found:
        apis_by_error[name][api or "?"] += tally.count
    ordered = sorted(errors.items(), key=lambda item: (-item[1].count, item[0]))
    for name, error in ordered[:rows_max]:
        apis = listed(f"{api} {number}" for api, number in apis_by_error[name].most_common())
        head = f"{prefix}{name} ×{error.count}"
        which = "?" if error.first is None else "{}#{}".format(*error.first[1])
        first, *more = _wrapped(f"{head}  {apis}; the first is {which}", width)
        yield [("dim" if prefix else "error", first[: len(head)]), ("dim", first[len(head) :])]
        yield from ([("dim", each)] for each in more)
    if rows_max is not None and len(ordered) > rows_max:
        yield [("dim", f"{prefix}… and {count(len(ordered) - rows_max, 'more error')}")]


def _events(stats: Stats, by_api: Mapping[str, Tally]) -> Iterator[str]:
    """Yield sentences on groups, connections, retries and leaders."""
    for (group, recording), generations in sorted(stats.generations.items())[:ROWS_MAX]:
        low, high = min(generations), max(generations)
        name = stats.name_of(recording)
        where = f"group {group}{f' of {name}' if name else ''}"
        if low == high:
            yield f"{where}: generation {low}"
        else:
            changes = count(len(generations) - 1, "rebalance")
            yield f"{where}: generation {low} → {high}, {changes}"
    ends = listed(f"{number} by {side_name(side)}" for side, number in stats.ended_by.most_common())
    yield joined(
        f"connections ended: {ends}" if ends else "",
        count(stats.reconnects, "reconnect") if stats.reconnects else "",
    )
    yield _tls_failures(stats)
    yield _unanswered(stats, by_api)
    yield joined(
        f"{stats.throttled} throttled" if stats.throttled else "",
        f"{count(stats.retries, 'idempotent batch')} sent again" if stats.retries else "",
        count(stats.leader_changes, "leader change") if stats.leader_changes else "",
    )


def _tls_failures(stats: Stats) -> str:
    """Return on how many connections TLS failed, and the most frequent reasons."""
    reasons = stats.tls_failures.most_common()
    if not reasons:
        return ""
    shown = "; ".join(f"{reason} ×{times}" for reason, times in reasons[:_REASONS_MAX])
    more = f"; … ×{left}" if (left := sum(times for _, times in reasons[_REASONS_MAX:])) else ""
    return f"TLS failed on {count(stats.tls_failures.total(), 'connection')}: {shown}{more}"


_NEVER, _KEPT, _YET = "never answered", "not delivered", "no answer yet at the end"
"""What became of requests whose clients got no response."""


def _unanswered(stats: Stats, by_api: Mapping[str, Tally]) -> str:
    """Return how many requests were never answered, how many responses did not reach the client,
    and how many requests wait at the end, by API; "" if there are none."""
    kinds = {each: Counter[str]() for each in (_NEVER, _KEPT, _YET)}
    for name, tally in by_api.items():
        kinds[_NEVER][name] = tally.unanswered - tally.open
        kinds[_KEPT][name] = tally.undelivered
        kinds[_YET][name] = tally.open
    found = [
        f"{apis.total()} {kind}: {listed(f'{api} {n}' for api, n in apis.most_common() if n)}"
        for kind, apis in kinds.items()
        if apis.total()
    ]
    silenced = stats.counts.total.silenced
    rules = [f"fault rules made {silenced} of them"] if silenced else []
    return "; ".join([*found, *rules])
