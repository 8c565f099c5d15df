"""An exchange as one line: the fixed part first, so that a narrow terminal cuts words, not numbers.

    12:03:04.123 #812   c3→n1   app-1      0.84 +0.05ms Produce v9   orders[0] … → offset 41
    │            │      │  │    │          │    │       │            request       response
    │            │      │  │    │          │    │       └ API and version
    │            │      │  │    │          │    └ what the proxy added, in milliseconds
    │            │      │  │    │          └ what the broker took, in milliseconds, without the time
    │            │      │  │    │            in a queue; ~501 contains a wait that was asked for
    │            │      │  │    └ client id
    │            │      │  └ node id of the broker; nothing on a bootstrap address
    │            │      └ connection
    │            └ number of the exchange
    └ arrival of the request, UTC

After the arrow come the errors, with what the broker says of them, then the rest of the response;
nothing if it reports success only. A request that was never answered says what it waited for, and
how long. The end of a connection is a line of its own: who ended it first, how, and why::

    12:03:34.210        c3→n1   app-1       ended by the broker (reset), by the client 2.10 ms later

Lines are segments here, text with the name of a style; colour and cutting are the business of who
shows them. `–` is a time that is not known: nobody answered, or kproxy did.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from kproxy.exchange.derived import UNKNOWN, Durations
from kproxy.exchange.entries import LEFT_OUT, NO_NODE, SASL_TOKEN
from kproxy.exchange.words import faults
from kproxy.exchange.words.bodies import ExchangeText
from kproxy.exchange.words.failures import Failure, failures, failures_in
from kproxy.exchange.words.terminal_width import cut_middle, padded
from kproxy.exchange.words.wording import age, listed, milliseconds, quoted
from kproxy.printable import printable
from kproxy.units import format_bytes

if TYPE_CHECKING:
    from kproxy.exchange.endings import ConnectionEnd, SideEnd
    from kproxy.exchange.exchange import Exchange

Segment = tuple[str, str]
"""The name of a style, or "", and text."""


@attrs.frozen(eq=False)
class LineLayout:
    """The form of the fixed part of a line; a width of 0 leaves the column out."""

    fraction: bool = True
    """True if times have milliseconds."""
    number_width: int = 7
    connection_width: int = 7
    client_width: int = 20
    client_cut: bool = False
    """True if longer client ids are cut."""
    unit: str = "ms"
    api_width: int = 18
    local: bool = False
    """True if times of day are local, not UTC."""


_TEXTS_KEPT = 1024
"""The size of the caches of texts that stand in many lines."""

WHOLE = LineLayout()
"""The layout for one line by itself: nothing is cut."""
_PIPED = LineLayout(client_cut=True)
"""The layout for the lines of a file or a pipe: all columns are aligned."""
_BY_WIDTH = (
    (140, LineLayout(number_width=6, client_width=12, client_cut=True)),
    (110, LineLayout(number_width=6, client_width=10, client_cut=True)),
    (90, LineLayout(False, 5, 6, 8, True, "", 12)),
    (80, LineLayout(False, 5, 6, 6, True, "", 12)),
    (0, LineLayout(False, 5, 6, 0, True, "", 12)),
)
"""The least columns of a terminal for each layout."""


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def layout(width: int | None, local: bool = False, name_width: int = 0) -> LineLayout:
    """Return the layout for a terminal with this many columns; None is a file. `name_width` is that
    of the longest name of a recording before a number."""
    wide_enough = (each for least, each in _BY_WIDTH if width is not None and width >= least)
    found = next(wide_enough, _PIPED)
    return attrs.evolve(found, local=local, number_width=found.number_width + name_width)


def text(exchange: Exchange) -> str:
    """Return an exchange as one whole line of plain text."""
    return plain_text(all_segments(exchange, WHOLE))


def plain_text(segments: Iterable[Segment]) -> str:
    """Return segments as plain text that a terminal may see."""
    return printable("".join([text for _, text in segments])).rstrip()


def all_segments(exchange: Exchange, layout: LineLayout) -> list[Segment]:
    """Return all segments of a line, without cutting any."""
    segments, text = head_segments(exchange, layout), exchange.words
    behind = response_segments(exchange, text)
    if text.request:
        segments.append(("", text.request))
    if behind:
        segments.append(separator(exchange, text, text.request))
        segments += behind
    return segments


# ---- the fixed part


def head_segments(exchange: Exchange, layout: LineLayout) -> list[Segment]:
    """Return the fixed part of an exchange's line."""
    row, unit, durations = exchange.row, layout.unit, exchange.durations
    style, broker = _broker(durations)
    # Of the row, not of the fields of these names: each line asks for them.
    return [
        ("dim", clock(row.request_received_ns or row.response_received_ns, layout)),
        ("dim", exchange.name.ljust(layout.number_width) + " "),
        ("", connection_text(row.connection, row.node_id, exchange.client_id, layout)),
        (style, broker.rjust(5)),
        ("dim", f" {_proxy(durations, unit).rjust(5 + len(unit))} "),
        ("api", _api(exchange.api, row.api_version, layout.api_width)),
    ]


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def _api(api: str | None, version: int, width: int) -> str:
    text = api or "half a header"
    if api not in (None, SASL_TOKEN):  # these have no header that tells a version
        text = f"{text} v{version}"
    return f"{text:<{width}} "


def clock(time_ns: int, layout: LineLayout) -> str:
    """Return the time of day, in UTC or local."""
    seconds, fraction = divmod(time_ns // 1_000_000, 1000)
    text = _clock(seconds, layout.local)
    return text + _FRACTIONS[fraction] if layout.fraction else f"{text} "


_FRACTIONS = tuple(f".{fraction:03} " for fraction in range(1000))
"""The milliseconds of a second, as text."""


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def _clock(seconds: int, local: bool) -> str:
    if local:
        return f"{datetime.fromtimestamp(seconds).astimezone():%H:%M:%S}"
    return f"{seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


@functools.lru_cache(maxsize=_TEXTS_KEPT)
def connection_text(
    connection: int, node_id: int | None, client_id: str | None, layout: LineLayout
) -> str:
    """Return a connection, the broker that it leads to, and its client; None and NO_NODE stand for
    a bootstrap address."""
    ends = f"c{connection}" if node_id in (None, NO_NODE) else f"c{connection}→n{node_id}"
    if not layout.client_width:
        return f"{ends:<{layout.connection_width}} "
    name = printable(client_id or "")
    if layout.client_cut:
        name = cut_middle(name, layout.client_width)
    return f"{ends:<{layout.connection_width}} {padded(name, layout.client_width)} "


def broker_segment(exchange: Exchange) -> Segment:
    """Return what the broker took, in milliseconds."""
    return _broker(exchange.durations)


def _broker(durations: Durations) -> Segment:
    broker_us, queued_us, waiting_us, _, _ = durations
    if broker_us == UNKNOWN:
        return "dim", "–"
    own = milliseconds(broker_us / 1000 - queued_us / 1000)
    # What the request lets the broker wait for says nothing of how fast the broker is.
    return ("dim", f"~{own}") if waiting_us else ("", own)


def proxy_text(exchange: Exchange, unit: str = "") -> str:
    """Return what the proxy added, in milliseconds."""
    return _proxy(exchange.durations, unit)


def _proxy(durations: Durations, unit: str) -> str:
    proxy_us = durations.proxy_us
    return "–" if proxy_us == UNKNOWN else f"+{milliseconds(proxy_us / 1000)}{unit}"


# ---- the rest of the line

_MARKS = ("redacted", "injected", "truncated")
"""Attributes of an exchange that a line mentions where they are true."""
_WAITED_FOR = {"broker": "for the broker", "earlier": "behind request {}", "proxy": "in kproxy"}
_QUEUED_US_MIN = 500
_LATE_US_MIN = 100_000
"""Microseconds that a long poll must take beyond its limit to be mentioned."""


def separator(exchange: Exchange, text: ExchangeText, request: str) -> Segment:
    """Return the separator between a request and the rest of its line: a comma instead of an arrow
    where only the reason for a late success follows."""
    if text.response or not exchange.uneventful:
        return "dim", " → " if request else "→ "
    return "dim", ", " if request else ""


def response_segments(exchange: Exchange, text: ExchangeText) -> list[Segment]:
    """Return the segments behind the arrow, separated by commas."""
    words = printable(text.response)
    given: list[Segment] = [("", words)] if words else []
    uneventful = exchange.uneventful
    if not uneventful:
        if exchange.broker_errors is not None:
            own = failures_in(exchange.response, exchange.request, exchange.topic_names)
            said = [*map(_failed, own), *filter(None, [words])] or ["no error"]
            given = [("", f"the broker said: {', '.join(said)}")]
        given = [*_errors(exchange), *given]
    given += _delays(exchange)
    if not uneventful and not exchange.ordinary:
        given += _marks(exchange)
    return list(separate(given)) if len(given) > 1 else given


def _marks(exchange: Exchange) -> Iterator[Segment]:
    """Yield the marks that distinguish an exchange from an ordinary one."""
    if exchange.response_bytes is None:
        kept = faults.silence(exchange) if exchange.one_way else ""
        not_due = f"not to be answered{f': {kept}' if kept else ''}"
        never = not_due if exchange.one_way else _never_answered(exchange)
        yield "quiet", never
    if exchange.has(LEFT_OUT):
        largest = max(exchange.request_bytes or 0, exchange.response_bytes or 0)
        yield "", f"{format_bytes(largest)}, not looked into"
    if exchange.opaque:
        # What is cut off or blanked out has a mark of its own.
        why = "" if exchange.truncated or exchange.redacted else exchange.why_opaque
        yield "mark", f"opaque ({printable(why)})" if why else "opaque"
    yield from (("mark", mark) for mark in _MARKS if getattr(exchange, mark))
    yield from (("mark", mark) for mark in faults.marks(exchange))


def separate(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Put commas between segments."""
    for position, segment in enumerate(segments):
        if position:
            yield "dim", ", "
        yield segment


def _errors(exchange: Exchange) -> Iterator[Segment]:
    """Yield the errors, each with the broker's own words if it is clear whose they are."""
    told = failures(exchange)
    said: dict[str, None] = {}
    for failure in told:
        text = _failed(failure)
        if len(failure.messages) == 1:
            text += f" {printable(quoted(failure.messages)[0])}"
        else:
            said |= dict.fromkeys(failure.messages)
        yield "error", text
    others = {*exchange.error_messages}.difference(*(each.messages for each in told))
    yield from (("quiet", printable(each)) for each in quoted([*said, *sorted(others)]))


def _failed(failure: Failure) -> str:
    """Return an error, with what failed where that is not all that was asked."""
    return failure.error if failure.of_all else f"{failure.error} ({printable(failure.subject)})"


def _delays(exchange: Exchange) -> list[Segment]:
    """Return the reasons for a late response, apart from the broker's work."""
    given: list[Segment] = []
    if throttled_ms := getattr(exchange.response, "throttle_time_ms", 0):
        given.append(("quiet", f"throttled {throttled_ms} ms"))
    _, queued_us, waiting_us, service_us, _ = exchange.durations
    if queued_us >= _QUEUED_US_MIN:
        given.append(("quiet", f"queued {age(queued_us / 1000)}"))
    if waiting_us > 0 and service_us >= _LATE_US_MIN:
        given.append(("quiet", f"{age(service_us / 1000)} longer than it may wait"))
    return given


def _never_answered(exchange: Exchange) -> str:
    """Say what a request waited for: `never answered: waited 30.0 s for the broker`; it may have
    been answered behind the end of the recording."""
    waited = exchange.unanswered
    never = "the recording ends before an answer" if exchange.open_at_end else "never answered"
    if by_rule := faults.silence(exchange):
        return f"{never}: {by_rule}"
    if waited is None or exchange.truncated:
        return never
    what = _WAITED_FOR[waited.waited_for].format(waited.behind)
    waited_age = f" {age(waited.waited_ms)}" if waited.waited_ms else ""
    return f"{never}: waited{waited_age} {what}"


# ---- the end of a connection


def end_head_segments(
    end: ConnectionEnd, client_id: str | None, layout: LineLayout
) -> Iterator[Segment]:
    """Yield the fixed part of the line of a connection's end."""
    yield "dim", clock(end.time_ns, layout) + " " * (layout.number_width + 1)
    yield "", connection_text(end.connection, end.node_id, client_id, layout)


def together_segments(
    ends: Sequence[ConnectionEnd], client_ids: Iterable[str | None], layout: LineLayout
) -> Iterator[Segment]:
    """Yield the line of several connections that ended together, in the same way."""
    first = ends[0]
    yield "dim", clock(first.time_ns, layout) + " " * (layout.number_width + 1)
    sides = ", ".join(f"by {side_name(end.side)} ({printable(end.how)})" for end in first.ends)
    yield "quiet", f"{len(ends)} connections ended {sides or f'by {side_name(None)}'}"
    clients = Counter(each or "no client id" for each in client_ids)
    yield "", ": " + listed(f"{printable(name)} ×{n}" for name, n in clients.most_common())
    if first.reason:
        yield "", f": {printable(first.reason)}"


def end_segments(end: ConnectionEnd) -> Iterator[Segment]:
    """Yield who ended a connection, the first side first, and why."""
    if end.handshake_failed:
        yield "error", f"TLS handshake of {printable(end.client_address or 'the client')} failed"
    else:
        yield "quiet", f"ended {_sides(end.ends)}"
    if end.reason:
        yield "", f": {printable(end.reason)}"


def more_segments(end: ConnectionEnd, more: int) -> Iterator[Segment]:
    """Yield that so many connections ended equally, this one the last."""
    yield "error", f"… and {more:,} more such from {printable(end.client_host)}"
    yield "", f": {printable(end.reason)}"


def _sides(ends: Sequence[SideEnd]) -> str:
    if not ends:
        return f"by {side_name(None)}"
    given: list[str] = []
    for position, end in enumerate(ends):
        later = f" {age((end.time_ns - ends[0].time_ns) / 1e6)} later" if position else ""
        given.append(f"by {side_name(end.side)} ({printable(end.how)}){later}")
    return ", ".join(given)


def side_name(side: str | None) -> str:
    """Return the name of a side (`SideEnd.side`) behind "by"; None is unknown."""
    if side is None:
        return "nobody knows whom"
    return "kproxy" if side == "proxy" else f"the {side}"
