"""`kproxy show`: a recording as lines for people, or as JSON for programs.

One line per exchange, the fixed part first, so that a narrow terminal cuts words and not numbers::

    12:03:04.123 c3→n1   0.84 +0.05ms Produce v9       orders[0] 3 records, 812 B → offset 41
    │            │  │    │    │       │                └ request ───────────────┘   └ response
    │            │  │    │    │       └ API and version
    │            │  │    │    └ what the proxy added, in milliseconds
    │            │  │    └ what the broker took, in milliseconds
    │            │  └ node id of the broker; nothing on a bootstrap address
    │            └ connection
    └ arrival of the request, UTC

After the arrow come the errors, then the rest of the response; nothing if it reports success only.
A request that was never answered says what it waited for, and how long. The end of a connection is
a line of its own: who ended it first, how, and why::

    12:03:34.210 c3→n1  ended by the broker (reset), by the client (eof) 2.10 ms later
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

from kproxy.exchange.endings import ConnectionEnd, SideEnd, connection_end
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.units import format_bytes
from kproxy.view.printable import printable
from kproxy.view.text import ExchangeText, text_of
from kproxy.view.wording import Names, milliseconds

CONNECTION_WIDTH = 7
_NARROW = 100
"""Terminals with fewer columns get shorter times."""
_API_WIDTH = 18
_API_WIDTH_NARROW = 12
_WORDS_WIDTH_MIN = 20

# Select Graphic Rendition of ECMA-48: the eight colours that every terminal has.
_STYLES = {"dim": "2", "bold": "1", "error": "31;1", "mark": "35", "quiet": "33", "api": "36"}

_MARKS = ("opaque", "redacted", "injected", "truncated")
"""Attributes of an exchange that a line names where they are true."""

Segment = tuple[str, str]
"""A style, or "", and text."""


def line(
    exchange: Exchange, names: Names | None = None, colour: bool = False, width: int | None = None
) -> str:
    """Return an exchange as one line without its end.

    `names` holds the topic names seen so far and learns those in this exchange; `width`, in
    columns, is where the line is cut (None: nowhere).
    """
    return line_of(exchange, text_of(exchange, names or Names()), colour, width)


def line_of(exchange: Exchange, text: ExchangeText, colour: bool, width: int | None) -> str:
    """Return the line of an exchange whose text is known already."""
    head = list(_head(exchange, width is not None and width < _NARROW))
    request, response = printable(text.request), list(_response(exchange, text))
    if width is not None:
        space = max(width - _length(head), _WORDS_WIDTH_MIN)
        request, response = _cut(request, response, space)
    tail = [("", request)] if request else []
    if response:
        tail += [("dim", " → " if request else "→ "), *response]
    return rendered([*head, *tail], colour)


def end_line(end: ConnectionEnd, colour: bool = False, width: int | None = None) -> str:
    """Return the end of a connection as one line without its line end."""
    clock = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=end.time_ns // 1000)
    head = [
        ("dim", _clock(clock, width is not None and width < _NARROW)),
        ("", f"{_connection(end.connection, end.node_id)} "),
    ]
    tail = [("quiet", f"ended {_ended(end.ends)}")]
    if end.reason:
        tail.append(("", f": {printable(end.reason)}"))
    if width is not None:
        tail = _cut_to(tail, max(width - _length(head), _WORDS_WIDTH_MIN))
    return rendered([*head, *tail], colour)


def _ended(ends: Sequence[SideEnd]) -> str:
    """Word who ended a connection, the first side first."""
    if not ends:
        return "by nobody knows whom"
    given: list[str] = []
    for end in ends:
        later = "" if end is ends[0] else f" {_age((end.time_ns - ends[0].time_ns) / 1e6)} later"
        name = "kproxy" if end.side == "proxy" else f"the {end.side}"
        given.append(f"by {name} ({end.how}){later}")
    return ", ".join(given)


def _age(duration_ms: float) -> str:
    return f"{milliseconds(duration_ms)} ms" if duration_ms < 1000 else f"{duration_ms / 1e3:.1f} s"


def wants_colour(out: TextIO) -> bool:
    """Whether to colour what is written here: a terminal, whose user did not set NO_COLOR."""
    return out.isatty() and not os.environ.get("NO_COLOR")


def terminal_width(out: TextIO) -> int | None:
    """The columns of a terminal; None if this is none."""
    return shutil.get_terminal_size().columns if out.isatty() else None


def show_lines(
    paths: Sequence[Path | str],
    out: TextIO,
    colour: bool | None = None,
    width: int | None = None,
    wanted: Filter | None = None,
) -> None:
    """Write a line per exchange of these recordings; with a filter, of those that it means.

    By default colours are used on a terminal, unless NO_COLOR is set, and lines are cut to its
    width; files get whole lines. A torn file is read as far as it goes, and stderr says so.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    colour = wants_colour(out) if colour is None else colour
    width = terminal_width(out) if width is None else width
    names = Names()

    def as_line(shown: Exchange | ConnectionEnd) -> Iterable[str]:
        if isinstance(shown, ConnectionEnd):
            return (end_line(shown, colour, width),)
        return (line(shown, names, colour, width),)

    _write(paths, as_line, out, wanted)


def show_json(paths: Sequence[Path | str], out: TextIO, wanted: Filter | None = None) -> None:
    """Write a JSON object per exchange, and per end of a connection, one per line; or per exchange
    wanted.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    from kproxy.view.jsonl import pieces

    _write(paths, pieces, out, wanted)


def _write(
    paths: Sequence[Path | str],
    as_line: Callable[[Exchange | ConnectionEnd], Iterable[str]],
    out: TextIO,
    wanted: Filter | None,
) -> None:
    """Write a line per exchange and per end of a connection; `as_line` gives it in pieces."""
    if reconfigure := getattr(out, "reconfigure", None):
        # Not every terminal has arrows; none is a reason to stop.
        reconfigure(errors="backslashreplace")
    notices: list[str] = []
    try:
        for shown in _shown(paths, wanted, notices):
            out.writelines(as_line(shown))
            out.write("\n")
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough. What is still in the buffer must go
        # somewhere, or the interpreter complains about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return
    finally:
        # Also when an error is raised, which then comes last.
        _flush(out)
        for notice in notices:
            print(printable(notice), file=sys.stderr)


def _shown(
    paths: Sequence[Path | str], wanted: Filter | None, notices: list[str]
) -> Iterator[Exchange | ConnectionEnd]:
    """Yield what becomes a line, in order; of what is wanted, exchanges only. Collect what the
    notes report of the recordings."""
    from kproxy.recording import RecordingError, read

    ends: list[ConnectionEnd] = []

    def told(note: Note) -> None:
        event = str(note.body.get("event"))
        if wanted is None and (note.channel, event) == _CLOSED:
            ends.append(connection_end(note))
        elif note.channel == EVENTS and event in _NOTICES:
            notices.append(f"kproxy show: {_NOTICES[event].format_map(_Given(note.body))}")

    try:
        for exchange in read(paths, wanted, told):
            yield from ends
            ends.clear()
            yield exchange
    except OSError as error:
        where = error.filename or ", ".join(map(str, paths))
        raise RecordingError(where, None, f"cannot be read: {error.strerror}") from None
    yield from ends


def _flush(out: TextIO) -> None:
    try:
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


_CLOSED = (CONNECTIONS, "closed")

_NOTICES = {
    "torn": "{path}: read up to byte {offset}: {what}",
    "damaged": "{path}: left out what is damaged at byte {offset}: {what}",
    "lost": "{frames} frames ({bytes} bytes) are not in the recording: {reason}",
}
"""What a reader of a recording must know of its own state, by event."""


class _Given(dict[str, Any]):
    """The body of a note; what a foreign file leaves out is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"


def _head(exchange: Exchange, narrow: bool) -> Iterator[Segment]:
    yield "dim", _clock(exchange.time, narrow)
    yield "", _connection(exchange.connection, exchange.node_id)
    yield "", f" {milliseconds(exchange.broker_ms):>5}"
    unit = "" if narrow else "ms"
    proxy = "–" if exchange.proxy_ms is None else f"+{milliseconds(exchange.proxy_ms)}{unit}"
    yield "dim", f" {proxy:>{5 + len(unit)}} "
    version = "" if exchange.api_version is None else f" v{exchange.api_version}"
    api = f"{exchange.api or 'half a header'}{version}"
    yield "api", f"{api:<{_API_WIDTH_NARROW if narrow else _API_WIDTH}} "


def _clock(time: datetime, narrow: bool) -> str:
    fraction = "" if narrow else f".{time.microsecond // 1000:03}"
    return f"{time:%H:%M:%S}{fraction} "


def _connection(number: int, node_id: int | None) -> str:
    node = "" if node_id is None else f"→n{node_id}"
    return f"c{number}{node}".ljust(CONNECTION_WIDTH)


_WAITED_FOR = {"broker": "for the broker", "earlier": "behind request {}", "proxy": "in kproxy"}


def _never_answered(exchange: Exchange) -> str:
    """Say what a request waited for: `never answered: waited 30.0 s for the broker`."""
    waited = exchange.unanswered
    if waited is None or exchange.truncated:
        return "never answered"
    what = _WAITED_FOR[waited.waited_for].format(waited.behind)
    age = f" {_age(waited.waited_ms)}" if waited.waited_ms else ""
    return f"never answered: waited{age} {what}"


def _response(exchange: Exchange, text: ExchangeText) -> Iterator[Segment]:
    """What stands behind the arrow, separated by commas."""
    given: list[Segment] = [("error", error) for error in exchange.errors]
    if text.response:
        given.append(("", printable(text.response)))
    throttled_ms = getattr(exchange.response, "throttle_time_ms", 0)
    if throttled_ms:
        given.append(("quiet", f"throttled {throttled_ms} ms"))
    if exchange.response_bytes is None:
        never = "not to be answered" if exchange.one_way else _never_answered(exchange)
        given.append(("quiet", never))
    if exchange.left_out:
        largest = max(exchange.request_bytes or 0, exchange.response_bytes or 0)
        given.append(("", f"{format_bytes(largest)}, not looked into"))
    given += [("mark", mark) for mark in _MARKS if getattr(exchange, mark)]
    given += [("mark", f"fault {fault}") for fault in exchange.faults]
    for position, segment in enumerate(given):
        if position:
            yield "dim", ", "
        yield segment


def _cut(request: str, response: list[Segment], space: int) -> tuple[str, list[Segment]]:
    """Cut words to the space that there is: first the request, then the end of the response."""
    length = _length(response)
    kept = max(space - (length + 3 if length else 0), min(len(request), space // 2))
    request = _cut_text(request, kept)
    return request, _cut_to(response, space - (len(request) + 3 if request else 2))


def _cut_to(segments: Iterable[Segment], left: int) -> list[Segment]:
    """Cut segments that are longer than what is left."""
    cut: list[Segment] = []
    for style, text in segments:
        if left <= 0:
            break
        cut.append((style, _cut_text(text, left)))
        left -= len(text)
    return cut


def _cut_text(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _length(segments: Iterable[Segment]) -> int:
    return sum(len(text) for _, text in segments)


def rendered(segments: Iterable[Segment], colour: bool) -> str:
    """Return styled text for a terminal, or plain text."""
    # The one gate to the terminal: whatever a peer or a file has put into a text ends here.
    safe = [(style, printable(text)) for style, text in segments]
    if not colour:
        return "".join(text for _, text in safe).rstrip()
    return "".join(
        f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style else text for style, text in safe
    )
