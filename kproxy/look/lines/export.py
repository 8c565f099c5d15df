"""`kproxy export`: exchanges that match a filter, as a file for other tools or a recording.

::

    Stream ─┬─▶ .jsonl     the lines of `show --json`
            ├─▶ .parquet   a row per exchange; lists and structs as such, bodies as JSON (`tables`)
            ├─▶ .mcap      `recording.cut`: a recording that replays
            ├─▶ .pcapng    packets for Wireshark: `packets`
            └─▶ .html      a page for a browser: `look.page.one_file`

The file is written under a temporary name in the same folder, and renamed when it is complete; an
existing file is never replaced. Like a recording, only its owner can read it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import kproxy
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.jsonl import KEYS, pieces
from kproxy.look.lines.stream import Stream

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
    from kproxy.look.lines.packets import write_packets

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
