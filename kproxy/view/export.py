"""`kproxy export`: what a filter means, as a file for other tools, or as a smaller recording.

::

    Stream ─┬─▶ .jsonl     the lines of `show --json`
            ├─▶ .parquet   a row per exchange; lists and structs as such, bodies as JSON (`tables`)
            └─▶ .mcap      `recording.cut`: a recording that replays

The file is written beside its place under a name of its own, and gets its name when it is whole;
what has that name already is never replaced. Like a recording it is for its owner only.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path

import kproxy
from kproxy.exchange.exchange import Exchange
from kproxy.recording.reader import by_recording
from kproxy.view.jsonl import KEYS, pieces
from kproxy.view.stream import Stream


class ExportError(Exception):
    """Why nothing was exported, in one line."""


def export(stream: Stream, to: Path) -> int:
    """Write what a stream gives to a file of one of `KINDS`; return how many exchanges these are.

    Raises:
        ExportError: the file is there already, or a library is missing.
        RecordingError: a path is not there, not a recording, or damaged.
        OSError: the file cannot be written.
    """
    write = KINDS[to.suffix]
    if to.exists():
        raise _taken(to)
    # With no suffix: whoever reads the folder's recordings must not take it for one of them.
    unfinished = to.with_name(f".export-{secrets.token_hex(4)}")
    try:
        count = write(stream, unfinished)
        _publish(unfinished, to)
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    return count


def _publish(unfinished: Path, to: Path) -> None:
    """Give a file its name, unless that is taken by now."""
    try:
        os.link(unfinished, to)
    except FileExistsError:
        raise _taken(to) from None
    except OSError:  # there are file systems without links
        _rename(unfinished, to)


def _taken(to: Path) -> ExportError:
    return ExportError(f"{to} is there already; it is not replaced")


def _rename(unfinished: Path, to: Path) -> None:
    """Give a file a name that is free, where a rename would replace what has that name by now: a
    file that must be new takes the name first, and only that is replaced.

    Killed before that, kproxy leaves the unfinished file alone; from then on beside a file that
    says where the export is, or is empty where it was killed between two calls.
    """
    try:
        file = _open(to)
    except FileExistsError:
        raise _taken(to) from None
    try:
        with open(file, "wb") as placeholder:
            placeholder.write(f"kproxy export was killed: all of it is in {unfinished}\n".encode())
        unfinished.rename(to)
    except BaseException:
        if unfinished.exists():  # else it has its name already
            to.unlink()
        raise


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)


# ---- JSON


def _jsonl(stream: Stream, path: Path) -> int:
    count = 0
    with open(_open(path), "w", encoding="ascii") as file:
        for each in stream.shown():
            count += isinstance(each, Exchange)
            file.writelines(pieces(each, stream.recording))
            file.write("\n")
    return count


# ---- a recording


def _mcap(stream: Stream, path: Path) -> int:
    from kproxy.recording.cut import cut

    version = kproxy.__version__
    return cut(stream.paths, path, stream.wanted, version, stream.note, stream.passed)


# ---- Parquet


def _parquet(stream: Stream, path: Path) -> int:
    try:
        from kproxy.tables.parquet import write_exchanges
    except ImportError as error:
        raise ExportError(str(error)) from None

    def recording(exchange: Exchange) -> str | None:
        return stream.recording

    several = len(by_recording(stream.paths)) > 1
    return write_exchanges(stream.exchanges(), KEYS, path, recording if several else None)


KINDS: dict[str, Callable[[Stream, Path], int]] = {
    ".jsonl": _jsonl,
    ".mcap": _mcap,
    ".parquet": _parquet,
}
"""What can be written, by the suffix of the file's name."""
