"""Reads recordings: one file, several, or a folder.

    paths ─▶ files in time order ─▶ chunks, verified ─▶ entries · rows

Invariants: a frame that is handed out is what was written, bit for bit, or an error is raised
before; memory does not grow with the length of a recording beyond 150 bytes per flush of the file
that is being read.

A file that is torn (its writer was killed, or is still writing) is read as far as it goes and ends
with a note `{"event": "torn", "path", "offset", "what", "writing"}` on EVENTS. A damaged file
raises RecordingError where the damage is; with `skip_damaged` the chunk is left out, and a note
`{"event": "damaged", "path", "offset", "what"}` stands in its place.

Where files of different recordings follow each other, a note `{"event": "recording", "path"}`
stands between them: connections and numbers begin anew there. The files of one recording that was
rotated follow each other without; each repeats the connections that are open, as notes with event
"open".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from kproxy.exchange.entries import EVENTS, Frame, Note
from kproxy.recording.content import Content, walk
from kproxy.recording.files import being_written, open_recording
from kproxy.recording.format import RecordingError
from kproxy.recording.scan import Chunk, Info, Scan

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange
    from kproxy.exchange.filter import Filter


@attrs.frozen
class Table:
    """The rows of one data chunk."""

    path: Path
    data_offset: int
    """Where the data chunk's record starts in the file."""
    rows: bytes
    """64 bytes per frame that ends in this chunk (`format.ROW_FIELDS`)."""


def entries(
    paths: Path | str | Iterable[Path | str], *, skip_damaged: bool = False
) -> Iterator[Frame | Note]:
    """Yield what was recorded, in the order in which it was given to the writer.

    Frames of more than 1 MiB come in pieces (FRAGMENT, MORE).

    Raises: RecordingError, see above.
    """
    previous: Info | None = None
    for path in recordings(paths):
        with open_recording(path) as file:
            damages: list[RecordingError] = []
            scan = Scan(path, file, damages.append if skip_damaged else None)
            last_ns = 0
            for content in walk(scan):
                chunk = content.chunk
                if previous is not None:
                    if not _continues(previous, scan.info):
                        yield _about("recording", chunk.start_ns, path)
                    previous = None
                while damages:
                    yield _damaged(damages.pop(0), last_ns)
                yield from content.entries()
                last_ns = max(last_ns, chunk.end_ns)
            for error in damages:
                yield _damaged(error, last_ns)
            if scan.torn is not None:
                yield _torn(scan, last_ns)
            previous = scan.info


def read(
    paths: Path | str | Iterable[Path | str], wanted: Filter | str | None = None
) -> Iterator[Exchange]:
    """Yield the exchanges of recordings: request and response together; with a filter, some.

    Raises: RecordingError; FilterError, when `wanted` is a text that is no filter.
    """
    from kproxy.exchange.exchange import pair

    found = pair(entries(paths))
    if wanted is None:
        return found
    if isinstance(wanted, str):
        from kproxy.exchange.filter import parse

        wanted = parse(wanted)
    return filter(starting(wanted, paths).matches, found)


def starting(wanted: Filter, paths: Path | str | Iterable[Path | str]) -> Filter:
    """The filter, with its times like `+30s` counted from the beginning of these recordings.

    Raises: RecordingError.
    """
    return wanted.starting(info(recordings(paths)[0]).start_ns) if wanted.relative else wanted


def rows(
    paths: Path | str | Iterable[Path | str], *, torn: Callable[[Note], None] | None = None
) -> Iterator[bytes]:
    """Yield tables of 64-byte rows (`format.ROW_FIELDS`), without reading the frames.

    Every whole frame has its row exactly once, in order. `torn` is told of torn files.

    Raises: RecordingError.
    """
    for table in tables(paths, torn=torn):
        yield table.rows


def tables(
    paths: Path | str | Iterable[Path | str], *, torn: Callable[[Note], None] | None = None
) -> Iterator[Table]:
    """Yield the tables that `rows` yields, with where they belong.

    Raises: RecordingError.
    """
    for path in recordings(paths):
        with open_recording(path) as file:
            scan = Scan(path, file)
            if info(path).native:
                yield from _header_tables(scan)
            else:
                yield from _frame_tables(scan)
            if scan.torn is not None and torn is not None:
                torn(_torn(scan, 0))


def verify(path: Path | str) -> None:
    """Check every byte of one file.

    Raises: RecordingError, also when it is torn.
    """
    path = Path(path)
    with open_recording(path) as file:
        scan = Scan(path, file)
        for content in walk(scan):
            for _ in content.entries():
                pass
        if scan.torn is not None:
            raise RecordingError(path, scan.offset, _why_torn(scan))


def info(path: Path | str) -> Info:
    """Return what the head of a file says.

    Raises: RecordingError, when it is not a recording. A torn head gives what there is of it.
    """
    path = Path(path)
    with open_recording(path) as file:
        scan = Scan(path, file)
        first = next(scan.chunks(skip=lambda _: scan.info.native), None)
        if first is not None and not scan.info.native:  # other tools may drop the metadata
            next(Content(scan, first).entries(), None)
            scan.info.start_ns = scan.info.start_ns or first.start_ns
        return scan.info


# ---------------------------------------------------------------- which files


def recordings(paths: Path | str | Iterable[Path | str]) -> list[Path]:
    """Return the files that paths stand for, in the order of the times when they start.

    A folder stands for the `*.mcap` files in it. Of several files, empty ones (only just created)
    are left out, and one whose head is not complete yet comes last.

    Raises: RecordingError, when there is none, or one of several cannot be read.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found: dict[Path, Path] = {}
    for path in map(Path, given):
        for file in _folder(path) if path.is_dir() else [path]:
            found.setdefault(file.resolve(), file)
    files = list(found.values())
    if len(files) > 1:
        files = [path for path in files if _size(path)] or files[:1]
    if len(files) > 1:
        files = sorted(files, key=_start)
    return files


def _start(path: Path) -> tuple[int, int]:
    """Return by what files are sorted: when they start, and which part they are."""
    head = info(path)
    part = head.metadata.get("part", "")
    return head.start_ns or 1 << 64, int(part) if part.isdecimal() else 0


def _size(path: Path) -> int:
    with open_recording(path) as file:
        return os.fstat(file.fileno()).st_size


def _folder(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.mcap"))
    if not files:
        below = sum(1 for _ in folder.glob("**/*.mcap"))
        hint = f"; there are {below} in folders below it: name one" if below else ""
        raise RecordingError(folder, None, f"has no recordings (*.mcap){hint}")
    return files


def _continues(before: Info, after: Info) -> bool:
    """Tell whether a file is a later part of the same recording."""
    recording = before.metadata.get("recording")
    return recording is not None and recording == after.metadata.get("recording")


def _about(event: str, time_ns: int, path: Path, **more: object) -> Note:
    return Note(EVENTS, time_ns, {"event": event, "path": str(path), **more})


def _damaged(error: RecordingError, last_ns: int) -> Note:
    return _about("damaged", last_ns, error.path, offset=error.offset, what=error.what)


def _why_torn(scan: Scan) -> str:
    if being_written(scan.file):
        return f"{scan.torn}: it is still being written"
    if scan.contents is None:
        return f"{scan.torn}, before anything was recorded"
    return f"{scan.torn}: its writer was stopped; `kproxy recover` completes it"


def _torn(scan: Scan, last_ns: int) -> Note:
    """Return the note that ends a torn file."""
    return _about(
        "torn",
        last_ns or scan.info.start_ns,
        scan.path,
        offset=scan.offset,
        what=_why_torn(scan),
        writing=being_written(scan.file),
    )


# ---------------------------------------------------------------- chunks to rows


def _header_tables(scan: Scan) -> Iterator[Table]:
    """Yield the tables of a file that kproxy wrote, seeking past the data chunks."""
    data: Chunk | None = None
    for chunk in scan.chunks(skip=lambda count: count % 2 == 0):
        if chunk.records is None or data is None:
            data = chunk
            continue
        content = Content(scan, chunk)
        table = content.only_table()
        content.check_times()
        if table:
            yield Table(scan.path, data.offset, table)
        data = None
    if data is not None:  # torn between the two
        torn_at = scan.offset
        yield from _table(scan, scan.again(data))
        scan.offset = torn_at


def _frame_tables(scan: Scan) -> Iterator[Table]:
    """Yield the tables of any file, from its frames: their rows need no header table."""
    for chunk in scan.chunks():
        yield from _table(scan, chunk)


def _table(scan: Scan, chunk: Chunk) -> Iterator[Table]:
    content = Content(scan, chunk)
    for _ in content.entries():
        pass
    if content.rows:
        yield Table(scan.path, chunk.offset, b"".join(content.rows))
