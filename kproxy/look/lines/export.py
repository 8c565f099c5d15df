"""`kproxy export`: exchanges that match a filter, as a file for other tools or a recording.

::

    Stream ─┬─▶ .jsonl     the lines of `show --json`
            ├─▶ .parquet   a row per exchange; lists and structs as such, bodies as JSON (`tables`)
            ├─▶ .mcap      `recording.cut`: a recording that replays
            ├─▶ .pcapng    packets for Wireshark, in two passes: first what matches, then the frames
            │              and notes in their order; memory grows by two bytes per exchange
            └─▶ .html      a page for a browser: `look.page.one_file`

The file is written under a temporary name in the same folder, and renamed when it is complete; an
existing file is never replaced. Like a recording, only its owner can read it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
from array import array
from collections.abc import Callable
from pathlib import Path

import attrs

import kproxy
from kproxy.capture.exporter import KAFKA_PORT, Exporter
from kproxy.exchange.endings import connection
from kproxy.exchange.entries import EVENTS, Frame, Note
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.jsonl import KEYS, pieces
from kproxy.look.lines.stream import Stream
from kproxy.recording.paths import ids, size_of
from kproxy.recording.reader import entries

Writer = Callable[[Stream, Path], int]
"""Writes the exchanges of a stream to a new file; returns their number."""


class ExportError(Exception):
    """Nothing was exported; the text is one line that says why."""

    exit_code = 1


def export(stream: Stream, to: Path, write: Writer | None = None) -> int:
    """Write the exchanges of a stream to a file; return their number. `write` writes it; by default
    the function for the suffix.

    Raises:
        ExportError: the file is there already, or a library is missing.
        RecordingError: a path is not there, not a recording, or damaged.
        OSError: the file cannot be written.
    """
    write = write or WRITERS[to.suffix]
    if to.exists():
        raise _exists_error(to)
    # No suffix: whoever reads the recordings of the folder must not take it for one of them.
    unfinished = to.with_name(f".export-{secrets.token_hex(4)}")
    try:
        count = write(stream, unfinished)
        _publish(unfinished, to)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    return count


def _publish(unfinished: Path, to: Path) -> None:
    """Give a file its final name, unless another file has taken that meanwhile."""
    try:
        os.link(unfinished, to)
    except FileExistsError:
        raise _exists_error(to) from None
    except OSError:  # there are file systems without links
        _rename(unfinished, to)


def _exists_error(to: Path) -> ExportError:
    return ExportError(f"{to} is there already; it is not replaced")


def _rename(unfinished: Path, to: Path) -> None:
    """Rename a file without replacing another one, on file systems without links.

    A rename replaces a file that has the name. So a placeholder is created first, exclusively, and
    the rename replaces the placeholder only. If kproxy is killed in between, the placeholder says
    where the export is (or is empty, if it was killed before writing that).
    """
    try:
        file = create(to)
    except FileExistsError:
        raise _exists_error(to) from None
    try:
        with open(file, "wb") as placeholder:
            placeholder.write(f"kproxy export was killed: all of it is in {unfinished}\n".encode())
        unfinished.rename(to)
    except BaseException:
        if unfinished.exists():  # otherwise it was renamed
            to.unlink()
        raise


def create(path: Path) -> int:
    """Create a file that only its owner can read; return its descriptor."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


# ---- JSON


def _jsonl(stream: Stream, path: Path) -> int:
    count = 0

    with open(create(path), "w", encoding="utf-8") as file:
        for each in stream.shown():
            count += isinstance(each, Exchange)
            file.writelines(pieces(each, stream.recording))
    return count


# ---- a recording


def _mcap(stream: Stream, path: Path) -> int:
    from kproxy.recording.cut import cut

    version = kproxy.__version__
    return cut(stream.paths, path, stream.wanted, version, stream.add_note, stream.on_progress)


# ---- packets


def _pcapng(stream: Stream, path: Path) -> int:
    with open(create(path), "wb") as file:
        return write_packets(stream, file.write)


# ---- Parquet


def _parquet(stream: Stream, path: Path) -> int:
    try:
        from kproxy.tables.parquet import write_exchanges
    except ImportError as error:
        raise ExportError(str(error)) from None

    def recording(exchange: Exchange) -> str | None:
        return stream.recording

    several = len(stream.recordings) > 1
    return write_exchanges(stream.exchanges(), KEYS, path, recording if several else None)


WRITERS: dict[str, Writer] = {
    ".jsonl": _jsonl,
    ".mcap": _mcap,
    ".parquet": _parquet,
    ".pcapng": _pcapng,
}
"""Suffix of the file name → the function that writes this format."""


_PORTS_MAX = 8
_PAGE = 4096
_NONE = array("H", bytes(2 * _PAGE))


def write_packets(stream: Stream, write: Callable[[bytes], object]) -> int:
    """Write the exchanges of a stream as pcapng; return their number.

    Raises:
        RecordingError: a path is not there, not a recording, or damaged.
    """
    told, chosen, copies = stream.on_progress, _Chosen(), set[str]()

    def on_note(note: Note) -> None:
        if note.body.get("event") == "copied":
            copies.add(note.body["path"])

    def on_progress(done: int, before: int = 0) -> None:
        told(before + done // 2)

    stream.on_note, stream.on_progress = on_note, on_progress
    for exchange in stream.exchanges():
        chosen.add(stream.recording, exchange)
    exporter = Exporter(write, f"kproxy {kproxy.__version__}")
    found = stream.recordings
    id_by_path = ids(found) if len(found) > 1 else {}
    done = size_of(path for parts in found for path in parts.paths) // 2
    for parts in found:
        recording = id_by_path.get(str(parts.paths[0]))
        paths = [path for path in parts.paths if str(path) not in copies]
        exporter.begin()
        for entry in entries(paths, passed=functools.partial(on_progress, before=done)):
            if isinstance(entry, Frame):
                text = chosen.text(recording, entry.number)
                if text is not None:
                    exporter.frame(entry, text)
            elif entry.channel == EVENTS or chosen.has(recording, entry):
                exporter.note(entry)
        done += size_of(paths) // 2
    ports = [f"-d tcp.port=={port},kafka" for port in sorted(exporter.ports - {KAFKA_PORT})]
    if ports:
        more = f" and {len(ports) - _PORTS_MAX} more" if len(ports) > _PORTS_MAX else ""
        which = " ".join(ports[:_PORTS_MAX])
        stream.notices.append(f"tell Wireshark which ports are Kafka's: {which}{more}")
    return chosen.count


@attrs.define(eq=False)
class _Chosen:
    """The exchanges to write, by recording and number."""

    count: int = 0
    _connections: set[tuple[str | None, int]] = attrs.Factory(set)
    _texts: list[str | None] = attrs.Factory(lambda: [None, ""])
    """What is said of exchanges; the first stands for those that are not chosen."""
    _indexes: dict[str, int] = attrs.Factory(lambda: {"": 1})
    _pages: dict[tuple[str | None, int], array[int]] = attrs.Factory(dict)
    """An index for each number, in pages."""

    def add(self, recording: str | None, exchange: Exchange) -> None:
        """Choose an exchange."""
        self.count += 1
        self._connections.add((recording, exchange.connection))
        text = f", fault rule {', '.join(exchange.faults)}" if exchange.faults else ""
        if text not in self._indexes and len(self._texts) <= 0xFFFF:
            self._indexes[text] = len(self._texts)
            self._texts.append(text)
        page, nth = divmod(exchange.number, _PAGE)
        if (recording, page) not in self._pages:
            self._pages[recording, page] = _NONE[:]
        self._pages[recording, page][nth] = self._indexes.get(text, 1)

    def text(self, recording: str | None, number: int) -> str | None:
        """Return what is said of an exchange; None if it is not chosen."""
        page, nth = divmod(number, _PAGE)
        return self._texts[self._pages.get((recording, page), _NONE)[nth]]

    def has(self, recording: str | None, note: Note) -> bool:
        """Return whether a note is on a connection of which an exchange is chosen."""
        return (recording, connection(note.body)) in self._connections
