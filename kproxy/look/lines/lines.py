"""Exchanges as lines on a terminal: coloured, cut to its width, with noise folded.

::

    Exchange ─▶ words.line: segments ─▶ cut ─▶ printable ─▶ colour ─▶ a line
        └ nothing happened (an empty Fetch, a heartbeat): counted ─▶ `Fetch ×37 empty, 18.4 s`

Noise is folded per connection: the first such exchange is shown, the following ones are counted,
and the count is shown before the next exchange of that connection that is not noise. Failures of
TLS are folded per client and reason, in the same way: clients come again and again. Connections
that end one after the other within a second, in the same way, have one line.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple, TextIO

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words import line
from kproxy.exchange.words.line import LineLayout, Segment
from kproxy.exchange.words.terminal_width import columns, cut
from kproxy.exchange.words.wording import age, joined
from kproxy.printable import printable

_WORDS_WIDTH_MIN = 20
_ARROW_WIDTH = 2

# Select Graphic Rendition of ECMA-48. Of the eight colours that every terminal has only red and
# magenta can be read on a dark and on a light ground alike; the rest is weight.
_STYLES = {
    "dim": "2",
    "bold": "1",
    "error": "31;1",
    "mark": "35;1",
    "quiet": "35",
    "api": "1",
}


def wants_colour(out: TextIO) -> bool:
    """Return whether to write colours: on a terminal, unless NO_COLOR is set."""
    return out.isatty() and not os.environ.get("NO_COLOR")


def terminal_width(out: TextIO) -> int | None:
    """Return the columns of a terminal; None if `out` is not one."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def _layout(style: LineStyle) -> LineLayout:
    return line.layout(style.width, style.local, style.name_width)


@attrs.frozen
class LineStyle:
    """How lines look where they go."""

    colour: bool = False
    width: int | None = None
    """Columns of the terminal; None: a file or a pipe, lines are not cut."""
    local: bool = False
    """True if times of day are local, not UTC."""
    name_width: int = 0
    """Columns of the longest name of a recording, where several are shown."""

    layout: LineLayout = attrs.field(
        default=attrs.Factory(_layout, takes_self=True), init=False, eq=False, repr=False
    )
    """The layout of the fixed part of a line."""


PLAIN = LineStyle()
"""The style of a file."""


def style_for(out: TextIO, local: bool = False, names: Iterable[str] = ()) -> LineStyle:
    """Return the style for a stream, and recordings of these names."""
    name_width = max(map(columns, names), default=0)
    return LineStyle(wants_colour(out), terminal_width(out), local, name_width)


def rendered(segments: Iterable[Segment], colour: bool) -> str:
    """Return styled text for a terminal, or plain text."""
    # The one gate to the terminal: whatever a peer or a file has put into a text ends here.
    if not colour:
        return line.plain_text(segments)
    safe = ((style, printable(text)) for style, text in segments)
    return "".join(
        f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text for style, text in safe
    )


def exchange_line(exchange: Exchange, style: LineStyle) -> str:
    """Return an exchange as one line without its end, cut to the width of the terminal."""
    width = style.width
    if width is None:
        return rendered(line.all_segments(exchange, style.layout), style.colour)
    text = exchange.words
    head, behind = (
        line.head_segments(exchange, style.layout),
        line.response_segments(exchange, text),
    )
    nameless = line.connection_text(exchange.connection, exchange.node_id, None, line.layout(0))
    _make_room(head, _error_columns(behind), width, ("", nameless))
    space = max(width - _columns(head), _WORDS_WIDTH_MIN)
    request, response = _cut(printable(text.request), behind, space)
    tail: list[Segment] = [("", request)] if request else []
    if response:
        tail += [line.separator(exchange, text, request), *response]
    return rendered(_within([*head, *tail], width), style.colour)


def end_line(
    end: ConnectionEnd, style: LineStyle, client_id: str | None = None, more: int = 0
) -> str:
    """Return the end of a connection as one line without its line end; with `more`, so many ends
    that are equal, of which this is the last."""
    head = list(line.end_head_segments(end, client_id, style.layout))
    tail = line.more_segments(end, more) if more else line.end_segments(end)
    return _headed(head, tail, style)


def _headed(head: list[Segment], tail: Iterable[Segment], style: LineStyle) -> str:
    """Return a line whose tail is cut to the width of the terminal."""
    if style.width is not None:
        tail = _cut_to(tail, max(style.width - _columns(head), _WORDS_WIDTH_MIN))
    return rendered(_within([*head, *tail], style.width), style.colour)


def _error_columns(response: list[Segment]) -> int:
    """Return the columns that the name of the first error takes; 0 without an error."""
    error = next((text for style, text in response if style == "error"), "")
    return columns(error.partition(" ")[0])


def _make_room(head: list[Segment], name: int, width: int, nameless: Segment) -> None:
    """Shorten the fixed part of a line until the name of the error fits: drop kproxy's own time,
    then the client, the connection, the clock time, the number."""
    for position, instead in ((-2, [("", " ")]), (2, [nameless]), (2, []), (0, []), (0, [])):
        if name and _columns(head) + _ARROW_WIDTH + name > width:
            head[position : position + 1] = instead


def _cut(request: str, response: list[Segment], space: int) -> tuple[str, list[Segment]]:
    """Cut the text to the available columns: first the request, then the end of the response."""
    length, name = _columns(response), _error_columns(response)
    kept = max(space - (length + 3 if length else 0), min(columns(request), space // 2))
    if name:
        kept = max(0, min(kept, space - 3 - name))
    request = cut(request, kept) if kept else ""
    left = space - (columns(request) + 3 if request else _ARROW_WIDTH)
    return request, list(_cut_to(response, left))


def _cut_to(segments: Iterable[Segment], left: int) -> Iterator[Segment]:
    """Cut segments to the columns that are left; the name of the first error is kept longest."""
    named = False
    for style, text in segments:
        if left <= 0:
            return
        if style == "error":
            text = _cut_error(text, left, first=not named)
            named = True
        yield style, cut(text, left)
        left -= columns(text)


def _cut_error(text: str, left: int, first: bool) -> str:
    """Cut the message of an error before its name."""
    name = text.partition(" ")[0]
    if columns(text) <= left or columns(name) < left:
        return text
    return name if first or columns(name) == left else "…"


def _within(segments: list[Segment], width: int | None) -> list[Segment]:
    """Cut a whole line: on a narrow terminal the fixed part and the minimum for the text may be
    wider than the line."""
    if width is None or _columns(segments) <= width:
        return segments
    return list(_cut_to(segments, width))


def _columns(segments: Iterable[Segment]) -> int:
    return sum(columns(text) for _, text in segments)


# ---- folding


class Noise(NamedTuple):
    """An exchange in which nothing happened, with the values that folding needs."""

    format: str
    """Format of the line for several of its kind: `Fetch ×%d empty`."""
    node_id: int
    time_ns: int
    took_ms: float


@attrs.define(eq=False)
class _FoldedNoise:
    """The folded noise of one connection."""

    text: str
    """The line of the first exchange that is folded; shown if it is the only one."""
    first: Noise
    last: Noise
    counts: dict[str, int] = attrs.field(factory=dict)


@attrs.define(eq=False)
class _TlsFailures:
    """Equal failures of TLS, of one client."""

    shown_ns: int
    """The time of the last line about them."""
    last: ConnectionEnd
    count: int = 0
    """Those that no line has told."""


_TOGETHER_NS = 1_000_000_000
"""The longest time between the ends of connections that end together."""
_TLS_FAILURES_MAX = 1000
"""Clients and reasons whose failures of TLS are folded at a time."""


@attrs.define(eq=False)
class Folding:
    """Turns exchanges and ends of connections into lines, and folds noise.

    Memory grows with the number of open connections that have folded noise, not with traffic.
    """

    style: LineStyle = PLAIN
    folds: bool = True
    """False: every exchange has its own line."""
    folded_for: timedelta | None = None
    """Longest time that folded lines are held back, by the times of the exchanges."""
    _recording: str = attrs.field(default="", init=False)
    """The name of the recording whose connections the following are of."""
    _shown: dict[int, int] = attrs.field(factory=dict, init=False)
    """Connection whose last exchange was noise → time of its last line about noise."""
    _quiet: dict[int, _FoldedNoise] = attrs.field(factory=dict, init=False)
    _clients: dict[int, str | None] = attrs.field(factory=dict, init=False)
    _tls_failures: dict[tuple[str, str], _TlsFailures] = attrs.field(factory=dict, init=False)
    """By host of the client and reason."""
    _ended: list[tuple[ConnectionEnd, str | None]] = attrs.field(factory=list, init=False)
    """Ends that came one after the other, together and in the same way, with their client ids."""

    def resize(self, width: int | None) -> None:
        """Cut the lines from here on to another width."""
        self.style = attrs.evolve(self.style, width=width)

    def take(self, shown: Exchange | ConnectionEnd) -> list[str]:
        """Take the next exchange or end; return the lines that are due.

        Raises: RecordingError.
        """
        if isinstance(shown, ConnectionEnd):
            return self.end(shown)
        recording, number = shown.topic_names.recording, shown.row.connection
        before = [] if recording == self._recording else self._begin(recording)
        self._clients[number] = shown.client_id
        noise = self._noise(shown)
        if noise is not None:
            lines = self._fold_noise(noise, shown)
        else:
            self._shown.pop(number, None)
            lines = [*self._unfold(number), exchange_line(shown, self.style)]
        return [*before, *self.pause(), *lines] if self._ended or before else lines

    def _noise(self, exchange: Exchange) -> Noise | None:
        kind = exchange.words.noise
        if kind is None or not self.folds:
            return None
        took_ms = max(0, exchange.durations.broker_us) / 1000
        words = f"{exchange.api} ×%d {kind}".rstrip()
        return Noise(words, exchange.row.node_id, exchange.time_ns, took_ms)

    def _begin(self, recording: str) -> list[str]:
        """Begin another recording, whose connections are others; return the lines that are due."""
        lines, self._recording = self.flush(), recording
        self._shown.clear()
        self._clients.clear()
        return lines

    def _fold_noise(self, noise: Noise, exchange: Exchange) -> list[str]:
        number = exchange.row.connection
        if number not in self._shown:
            self._shown[number] = noise.time_ns
            return [exchange_line(exchange, self.style)]
        quiet = self._quiet.get(number)
        if quiet is None:
            text = exchange_line(exchange, self.style)
            quiet = self._quiet[number] = _FoldedNoise(text, noise, noise)
        quiet.counts[noise.format] = quiet.counts.get(noise.format, 0) + 1
        quiet.last = noise
        held = timedelta(microseconds=(noise.time_ns - self._shown[number]) // 1000)
        if self.folded_for is None or abs(held) < self.folded_for:
            return []
        self._shown[number] = noise.time_ns
        return self._unfold(number)

    def end(self, end: ConnectionEnd) -> list[str]:
        """Take the end of a connection and return the lines that are due."""
        lines = self._unfold(end.connection)
        self._shown.pop(end.connection, None)
        was_used = end.connection in self._clients
        client_id = self._clients.pop(end.connection, None)
        if end.tls_failed and self.folds and not was_used:
            return [*self.pause(), *self._fold_tls_failure(end)]
        if not (self.folds and self._ended and _together(self._ended[0][0], end)):
            lines = [*self.pause(), *lines]
        self._ended.append((end, client_id))
        return lines

    def pause(self) -> list[str]:
        """Return the line of connections that ended: what comes next did not end with them."""
        ended, self._ended = self._ended, []
        if len(ended) < 2:
            return [end_line(end, self.style, client_id) for end, client_id in ended]
        ends, clients = zip(*ended, strict=True)
        return [_headed([], line.together_segments(ends, clients, self.style.layout), self.style)]

    def _fold_tls_failure(self, end: ConnectionEnd) -> list[str]:
        which = end.client_host, end.reason
        found = self._tls_failures.get(which)
        if found is None:
            lines: list[str] = []
            if len(self._tls_failures) >= _TLS_FAILURES_MAX:
                oldest = next(iter(self._tls_failures))
                lines = self._unfold_tls_failures(self._tls_failures.pop(oldest))
            self._tls_failures[which] = _TlsFailures(end.time_ns, end)
            return [*lines, end_line(end, self.style)]
        found.last = end
        found.count += 1
        held = timedelta(microseconds=(end.time_ns - found.shown_ns) // 1000)
        if self.folded_for is None or abs(held) < self.folded_for:
            return []
        return self._unfold_tls_failures(found)

    def _unfold_tls_failures(self, found: _TlsFailures) -> list[str]:
        end, times, found.count, found.shown_ns = found.last, found.count, 0, found.last.time_ns
        if times <= 1:
            return [end_line(end, self.style)] * times
        return [end_line(end, self.style, more=times)]

    def flush(self) -> list[str]:
        """Return the lines for everything that is folded now."""
        quiet = [text for number in list(self._quiet) for text in self._unfold(number)]
        failures = self._tls_failures.values()
        more = (text for each in failures for text in self._unfold_tls_failures(each))
        return [*self.pause(), *quiet, *more]

    def _unfold(self, number: int) -> list[str]:
        quiet = self._quiet.pop(number, None)
        if quiet is None:
            return []
        if sum(quiet.counts.values()) == 1:
            return [quiet.text]
        last, layout = quiet.last, self.style.layout
        took_ms = (last.time_ns // 1000 - quiet.first.time_ns // 1000) / 1000
        counted = joined(*(text % times for text, times in quiet.counts.items()))
        head = [
            ("dim", line.clock(quiet.first.time_ns, layout) + " " * (layout.number_width + 1)),
            ("", line.connection_text(number, last.node_id, self._clients.get(number), layout)),
        ]
        indent = " " * (13 + len(layout.unit))
        words: list[Segment] = [("dim", f"{indent}{counted}, {age(took_ms + last.took_ms)}")]
        return [_headed(head, words, self.style)]


def _together(end: ConnectionEnd, later: ConnectionEnd) -> bool:
    """Return whether a connection ended together with another one, and in the same way."""
    how = ([(each.side, each.how) for each in one.ends] for one in (end, later))
    same = next(how) == next(how) and end.reason == later.reason
    return same and abs(later.time_ns - end.time_ns) <= _TOGETHER_NS
