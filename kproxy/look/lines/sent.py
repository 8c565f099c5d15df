"""What was sent to a cluster, and what it answered otherwise, as lines.

::

    Sent ─▶ what was sent, and what not ─▶ a table of latencies ─▶ a table of differences
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kproxy.exchange.histogram import PERCENTILES, Histogram
from kproxy.exchange.words.wording import count
from kproxy.printable import printable
from kproxy.units import format_bytes

if TYPE_CHECKING:
    from kproxy.send.sent import Sent

_APIS_MAX = 12
_DIFFERENCES_MAX = 50


def figures(sent: Sent) -> str:
    """Return the figures up to now, in a few words."""
    seconds = max(sent.seconds, 1e-9)
    rate = f"{sent.answered / seconds:,.0f}/s, {format_bytes(int(sent.request_bytes / seconds))}/s"
    if not sent.latencies:
        return rate
    api, histogram = max(sent.latencies.items(), key=lambda item: item[1].count)
    p50, p99 = (histogram.percentile(each) or 0 for each in (500, 990))
    return f"{rate}; {api} p50 {p50:.3g} ms, p99 {p99:.3g} ms"


def lines(sent: Sent) -> Iterator[str]:
    """Yield the lines."""
    seconds = max(sent.seconds, 1e-9)
    open_ = sent.requests - sent.answered - sent.one_way
    answered = "all answered" if not open_ else f"{open_} not answered"
    data = f"{format_bytes(sent.request_bytes)} out, {format_bytes(sent.response_bytes)} in"
    yield (
        f"sent {count(sent.requests, 'request')} on {count(sent.connections, 'connection')} in"
        f" {sent.seconds:.3g} s, {answered}; {data}; {sent.requests / seconds:,.0f} requests/s"
    )
    if sent.all_records:
        yield _written(sent)
    for reason, number in sent.left_out.most_common():
        yield f"not sent: {count(number, 'request')}: {reason}"
    for address, reason in sent.lost.items():
        yield "broker {}:{} was given up: {}".format(*address, reason)
    if sent.latencies:
        yield ""
        yield from _table(
            ("API", "answered", "per s", *(f"{name} ms" for name in PERCENTILES), "max ms"),
            [_latencies(api, each, seconds) for api, each in _most(sent)[:_APIS_MAX]],
            left=1,
        )
        if len(sent.latencies) > _APIS_MAX:
            yield f"… and {count(len(sent.latencies) - _APIS_MAX, 'more API')}"
    yield ""
    if not sent.differences:
        yield (
            "no errors that the recording lacks: of copies only errors are compared"
            if sent.is_load
            else "no differences"
        )
        return
    total = sum(times for times, _ in sent.differences.values())
    yield f"{count(len(sent.differences), 'difference')} from the recording, {total} times"
    found = [
        (each.api, each.what, each.recorded, each.now, f"{times}", f"#{number}")
        for each, (times, number) in sent.differences.items()
    ]
    head = ("API", "what", "recorded", "now", "times", "first")
    yield from _table(head, found[:_DIFFERENCES_MAX], left=4)
    if len(found) > _DIFFERENCES_MAX:
        yield f"… and {len(found) - _DIFFERENCES_MAX} more"


def ended(sent: Sent, requests: int) -> str:
    """Return in a line why it ended early, and what was sent."""
    last = "nothing was sent"
    if sent.last is not None:
        name = sent.last.name
        last = f"{sent.requests} of {requests} requests were sent, up to {name} ({sent.last.api})"
        if open_ := sent.requests - sent.answered - sent.one_way:
            last += f"; {open_} of them were not answered"
        if sent.all_records:
            last += f"; {_written(sent)}"
    return f"{sent.ended}: {last}"


def _written(sent: Sent) -> str:
    return f"{sent.records} of {count(sent.all_records, 'record')} were written"


def _most(sent: Sent) -> list[tuple[str, Histogram]]:
    return sorted(sent.latencies.items(), key=lambda item: (-item[1].count, item[0]))


def _latencies(api: str, histogram: Histogram, seconds: float) -> tuple[str, ...]:
    found = (histogram.percentile(each) or 0 for each in PERCENTILES.values())
    times = (f"{each:.3g}" for each in (*found, histogram.max_ms))
    return api, f"{histogram.count:,}", f"{histogram.count / seconds:,.1f}", *times


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], left: int) -> Iterator[str]:
    """Yield a table, whose first columns are aligned to the left."""
    shown = [head, *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    for row in shown:
        cells = [
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
