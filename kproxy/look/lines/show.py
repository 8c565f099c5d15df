"""`kproxy show`: a recording as lines for people, or as JSON for programs.

    Stream ─▶ Folding ─▶ lines, in order of completion      (`by_request`: sorted, at the end)
          └─▶ jsonl ──▶ JSON, in pieces
    FileFollower ─▶ exchanges ─▶ Folding ─▶ lines, at once      `kproxy tail`: as a file grows

The first line comes at once, and a reader that stops early (`| head`) ends the command. The content
of a line is described in `exchange.words.line`, its form on a terminal in `lines`.

The recorder writes within 100 ms of the traffic, so `tail` has a line 200 ms after its response.
It ends when the recording is complete and no other file continues it, or its writer has died.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import attrs

from kproxy.exchange.endings import ConnectionEnd, connection_start
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.words.line import clock
from kproxy.exchange.words.wording import count
from kproxy.look.lines.lines import Folding, LineStyle, style_for, terminal_width, wants_colour
from kproxy.look.lines.progress import Progress, is_file, reading
from kproxy.look.lines.stream import Stream
from kproxy.printable import printable
from kproxy.recording.following import POLL_SECONDS
from kproxy.recording.paths import by_recording, named, names, short_names
from kproxy.recording.reader import starting

if TYPE_CHECKING:
    from kproxy.exchange.filter import Filter


_NAMES_ONE = frozenset({"api", "api_key", "number", "correlation_id"})
"""Filter keys that name certain exchanges; with one of them nothing is folded as noise."""


def show_lines(
    paths: Sequence[Path | str],
    out: TextIO,
    colour: bool | None = None,
    width: int | None = None,
    wanted: Filter | None = None,
    folds: bool = True,
    by_request: bool = False,
    local: bool = False,
) -> None:
    """Write a line per exchange of these recordings; with a filter, of those that match.

    By default colours are used on a terminal, unless NO_COLOR is set, and lines are cut to its
    width; files get whole lines. Noise is folded, unless the filter names certain exchanges or
    `folds` is false. `by_request` sorts by the arrival of the request. A torn file is read up to
    the damage, and stderr says so. `local` shows times of day in the zone of this machine.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    stream, progress = _stream(paths, wanted, out)
    style = style_for(out, local, names(stream.recordings).values())
    given: dict[str, Any] = {"colour": colour, "width": width}
    style = attrs.evolve(style, **{key: value for key, value in given.items() if value is not None})
    folding = Folding(style, folds and not by_request and not names_one(wanted))
    lines = _sorted(stream, folding) if by_request else _lines(stream, folding)
    write(_with_empty_notice(lines, stream), stream.notices, out, "show", progress)


def names_one(wanted: Filter | None) -> bool:
    """Return whether a filter names certain exchanges, so that none of them is noise."""
    return wanted is not None and not _NAMES_ONE.isdisjoint(wanted.names)


def show_json(paths: Sequence[Path | str], out: TextIO, wanted: Filter | None = None) -> None:
    """Write a JSON object per exchange, and per end of a connection, one per line; with
    a filter, only for the exchanges that match.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    from kproxy.look.lines.jsonl import pieces

    stream, progress = _stream(paths, wanted, out)
    texts = (text for each in stream.shown() for text in pieces(each, stream.recording))
    write(texts, stream.notices, out, "show", progress)


def show_frame(paths: Sequence[Path | str], number: str, out: TextIO, local: bool = False) -> bool:
    """Write an exchange in full, `12` of each recording or `shop#12` of one; return whether it was
    found.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    from kproxy.exchange.filter import matching
    from kproxy.look.lines import frame

    stream, progress = _stream(paths, matching("number", number), out)
    found: list[int] = []

    def texts() -> Iterator[str]:
        for exchange in stream.exchanges():
            found.append(exchange.number)
            for line in frame.lines(exchange, style_for(out, local)):
                yield f"{line}\n"

    write(texts(), stream.notices, out, "show", progress)
    return bool(found)


def show_connection(
    paths: Sequence[Path | str],
    name: str,
    out: TextIO,
    wanted: Filter | None = None,
    local: bool = False,
) -> bool:
    """Write a connection from beginning to end, uncut lines in the order of its requests: `3` of
    each recording, or `shop#3` of one; return whether it was found.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    recording, _, number = name.rpartition("#")
    style = attrs.evolve(style_for(out, local), width=None)
    texts: list[str] = []
    notices: list[str] = []
    found = by_recording(paths)
    found = named(found, recording) if recording else found
    for each, of in zip(found, short_names(found), strict=True):
        given, told = _connection_texts(each.paths, int(number), wanted, style)
        texts += [f"{printable(of)}:\n", *given] if given and len(found) > 1 else given
        notices += told
    write(texts, notices, out, "show")
    return bool(texts)


def _connection_texts(
    paths: Sequence[Path], number: int, wanted: Filter | None, style: LineStyle
) -> tuple[list[str], list[str]]:
    """Return the lines of a connection of one recording, and the notices on the recording."""
    from kproxy.exchange.filter import parse

    opened: list[Note] = []

    def on_note(note: Note) -> None:
        start = connection_start(note)
        if start is not None and start.connection == number:
            opened.append(note)

    on_connection = parse(f"connection:{number}" + (f" ({wanted})" if wanted is not None else ""))
    stream = Stream(paths, on_connection, on_note, ends=True)
    folding = Folding(style, folds=False)
    found: list[tuple[int, int, str]] = []
    users: dict[str, None] = {}
    for each in stream.shown():
        if each.connection == number:
            found += _timed(each, folding)
            if isinstance(each, Exchange) and each.user:
                users[each.user] = None
    texts = [_opened_line(each, style) for each in opened]
    texts += [printable(f"user {each}") + "\n" for each in users]
    return [*texts, *(text for *_, text in sorted(found))], stream.notices


def _opened_line(note: Note, style: LineStyle) -> str:
    given = {name: str(value) for name, value in note.body.items() if value is not None}
    client, broker = given.get("client_address", "?"), given.get("broker_address", "?")
    node = f" (node {given['node_id']})" if "node_id" in given else " (bootstrap)"
    what = f"connection {given.get('connection', '?')} from {client} to {broker}{node}"
    return printable(f"{clock(note.time_ns, style.layout)}{what}") + "\n"


def show_records(
    paths: Sequence[Path | str],
    topic: str,
    partition: int | None,
    out: TextIO,
    wanted: Filter | None = None,
    as_json: bool = False,
) -> None:
    """Write a line per record of a topic, or of one of its partitions, each time that it passes;
    with a filter on keys or values, per record that matches.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    from kproxy.look.lines import record_lines

    stream, progress = _stream(paths, record_lines.carrying(wanted), out)
    if wanted is not None:
        wanted = starting(wanted, stream.recordings)
    selection = record_lines.RecordSelection(topic, partition, wanted)
    colour, width = wants_colour(out), terminal_width(out)

    def texts() -> Iterator[str]:
        for exchange in stream.exchanges():
            if as_json:
                yield from record_lines.json_pieces(exchange, selection, stream.recording)
            else:
                for line in record_lines.lines(exchange, selection, colour, width):
                    yield line
                    yield "\n"

    found = texts() if as_json else _with_empty_notice(texts(), stream)
    write(found, stream.notices, out, "show", progress)


def _with_empty_notice(texts: Iterable[str], stream: Stream) -> Iterator[str]:
    """Pass texts on; if there is none, add a notice that nothing matches."""
    empty = True
    for text in texts:
        empty = False
        yield text
    if empty:
        searched = count(stream.exchange_count, "exchange")
        stream.notices.append(f"nothing of {searched} matches")


def _stream(
    paths: Sequence[Path | str], wanted: Filter | None, out: TextIO
) -> tuple[Stream, Progress]:
    """Return the stream that `show` reads and its progress, shown if the output goes to a file."""
    progress = reading("show", paths) if is_file(out) else Progress("show", 0)
    return Stream(paths, wanted, on_progress=progress.update), progress


def write(
    texts: Iterable[str],
    notices: list[str],
    out: TextIO,
    command: str,
    progress: Progress | None = None,
) -> None:
    """Write texts until the end, or until nobody reads them; then erase the progress bar and write
    the notices to stderr. Iterating over the texts may add to `notices`."""
    if reconfigure := getattr(out, "reconfigure", None):
        # Some terminals cannot encode arrows: escape them instead of failing.
        reconfigure(errors="backslashreplace")
    try:
        out.writelines(texts)
    except BrokenPipeError:
        # Whoever read our output (`| head`) has seen enough. What is still in the buffer must go
        # somewhere, or the interpreter complains about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
        return
    finally:
        # Also after an error, whose message then comes last.
        if progress is not None:
            progress.finish()
        _flush(out)
        for notice in notices:
            print(printable(f"kproxy {command}: {notice}"), file=sys.stderr)


def _lines(stream: Stream, folding: Folding) -> Iterator[str]:
    for each in stream.shown():
        for line in folding.take(each):
            yield f"{line}\n"
    for line in folding.flush():
        yield f"{line}\n"


def _sorted(stream: Stream, folding: Folding) -> Iterator[str]:
    """Yield the lines by the arrival of the requests. Only text is held until the end."""
    found: list[tuple[int, int, str]] = []
    for each in stream.shown():
        found += _timed(each, folding)
    yield from (text for *_, text in sorted(found))


def _timed(each: Exchange | ConnectionEnd, folding: Folding) -> Iterator[tuple[int, int, str]]:
    """Yield the lines of an exchange or end, with the keys to sort by: time, number."""
    text = "".join(f"{line}\n" for line in [*folding.take(each), *folding.pause()])
    yield each.time_ns // 1000, each.number if isinstance(each, Exchange) else 0, text


def _flush(out: TextIO) -> None:
    try:
        out.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


LINES_BEFORE = 10
"""Lines of exchanges recorded before the start that are shown first."""
_FOLDED_FOR = timedelta(seconds=10)


def show_tail(
    path: Path,
    out: TextIO,
    wanted: Filter | None = None,
    lines_before: int | None = LINES_BEFORE,
    local: bool = False,
) -> None:
    """Write lines of a recording as it grows, until it is complete.

    It begins with the last `lines_before` lines that are there already; None: with all.

    Raises:
        RecordingError: the path is not there, not a recording, or damaged.
    """
    stream = Stream([path], wanted)
    folds = not names_one(wanted)
    folding = Folding(style_for(out, local), folds, folded_for=_FOLDED_FOR)
    lines = _growing_lines(stream, folding, lines_before, out)
    write((f"{line}\n" for line in lines), stream.notices, out, "tail")


def _growing_lines(
    stream: Stream, folding: Folding, lines_before: int | None, out: TextIO
) -> Iterator[str]:
    before: deque[str] | None = deque(maxlen=lines_before)
    waiting = False
    for each in stream.growing():
        if each is None:  # everything recorded so far has been read
            if not waiting:
                yield from before or ()
                yield from folding.pause()
                before, waiting = None, True
                out.flush()
            time.sleep(POLL_SECONDS)
        else:
            waiting = False
            lines = folding.take(each)
            if before is None:
                yield from lines
            else:
                before.extend(lines)
    yield from folding.flush()
