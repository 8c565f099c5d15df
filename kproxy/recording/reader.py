"""Reads recordings: one file, several, or a folder.

    paths ─▶ files in time order ─▶ batches ─┬─▶ read: exchanges, their frames opened when asked for
                                             └─▶ entries: every frame and note, all of it checked

Invariants: a frame that is handed out is what was written, bit for bit, or an error is raised
before; memory does not grow with the length of a recording beyond some hundred bytes per batch.

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

import itertools
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kproxy.exchange import notes
from kproxy.exchange.entries import UNANSWERED, ExchangeRow, Frame, Note, Position, Side
from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, RecordingWarning
from kproxy.recording.info import Info
from kproxy.recording.names import distinct, goes_by
from kproxy.recording.notices import notice
from kproxy.recording.stored import StoredBatch
from kproxy.recording.table_messages import FrameTable
from kproxy.recording.uri import Uri

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange
    from kproxy.exchange.filter import Filter

Paths = Path | str | Iterable[Path | str]


def entries(
    paths: Paths,
    *,
    skip_damaged: bool = False,
    passed: Callable[[int], None] = lambda done: None,
) -> Iterator[Frame | Note]:
    """Yield all entries, in the order in which they were given to the writer.

    Frames of more than 1 MiB come in pieces (FRAGMENT, MORE). A response has its request's times,
    size and fault ids if it had left when its batch was written. `passed` gets the number of bytes
    read of all files, after every batch.

    Raises: RecordingError, see above.
    """
    previous: Info | None = None
    passed_bytes = 0
    for path in recordings(paths):
        with RecordingFile(path, whole=True, skip_damaged=skip_damaged) as file:
            for batch in file.batches():
                if previous is not None and not file.info.continues(previous):
                    yield notes.recording(file.end_ns, str(path))
                previous = None
                yield from _damages(file)
                yield from batch_entries(file, batch)
                passed(passed_bytes + file.scan.offset)
            passed_bytes += file.scan.offset
            yield from _damages(file)
            if file.torn is not None:
                yield file.torn
            previous = file.info


def read(
    paths: Paths,
    wanted: Filter | str | None = None,
    told: Callable[[Note], None] | None = None,
) -> Iterator[Exchange]:
    """Yield the exchanges of recordings, or those that match a filter. Their frames are opened on
    demand.

    `told` gets the notes of the recordings, and those that say where a file is torn; the note that
    a connection was closed comes after its exchanges. Without it, a RecordingWarning reports
    missing parts of the recordings.

    Raises: RecordingError; FilterError, when `wanted` is a text that is not a filter.
    """
    if isinstance(wanted, str):
        from kproxy.exchange.filter import parse

        wanted = parse(wanted)
    if wanted is not None:
        wanted = starting(wanted, paths)
    return _exchanges(paths, told or warn, wanted)


def warn(note: Note) -> None:
    """Warn if a note reports the state of a recording.

    Warns: RecordingWarning.
    """
    found = notice(note)
    if found is not None:
        warnings.warn(found, RecordingWarning, stacklevel=2)


def starting(wanted: Filter, paths: Paths) -> Filter:
    """Return the filter with times like `+30s` counted from the beginning of these recordings.

    Raises: RecordingError, also if it names a recording that is none of these.
    """
    if wanted.recordings:
        found = by_recording(paths)
        for name in wanted.recordings:
            named(found, name)
    return wanted.starting(info(recordings(paths)[0]).start_ns) if wanted.relative else wanted


def _exchanges(
    paths: Paths, told: Callable[[Note], None], wanted: Filter | None
) -> Iterator[Exchange]:
    from kproxy.recording.exchanges import Reader

    found = by_recording(paths)
    yield from Reader(told, wanted, names=names(found)).files(itertools.chain(*found))


def verify(path: Path | str) -> None:
    """Check every byte of one file.

    Raises: RecordingError, also when it is torn.
    """
    with RecordingFile(path, whole=True) as file:
        for batch in file.batches():
            for _ in batch_entries(file, batch):
                pass
        if file.torn is not None:
            raise RecordingError(path, file.scan.offset, file.why_torn())


def info(path: Path | Uri | str) -> Info:
    """Return the information in the head of a file.

    Raises: RecordingError, when it is not a recording. A torn head is returned as far as it goes.
    """
    with RecordingFile(path) as file:
        return file.info


# ---------------------------------------------------------------- which files


def recordings(paths: Paths) -> list[Path]:
    """Return the files that paths stand for, in the order of their start times.

    A folder stands for the `*.mcap` files in it. Of several files, empty ones (only just created)
    are left out, and one whose head is not complete yet comes last.

    Raises: RecordingError, when there is none, or one of several cannot be read.
    """
    given = map(Path, [paths] if isinstance(paths, (str, Path)) else paths)
    return [path for path in in_order(given) if isinstance(path, Path)]


def in_order(paths: Iterable[Path | Uri]) -> list[Path | Uri]:
    """Return the files that paths or URIs stand for, as `recordings` does. The files of a recording
    stay together, even if another one was recorded at the same time.

    Raises: RecordingError.
    """
    found: dict[Path | Uri, Path | Uri] = {}
    for path in paths:
        for file in _folder(path) if path.is_dir() else [path]:
            found.setdefault(_resolved(file), file)
    files = list(found.values())
    if len(files) > 1:
        files = [path for path in files if not is_empty(path)] or files[:1]
    return _sort_files(files) if len(files) > 1 else files


def by_recording(paths: Paths) -> list[list[Path]]:
    """Return the files that paths stand for, a list for each recording.

    Raises: RecordingError, as `recordings`.
    """
    files = recordings(paths)
    if len(files) == 1:
        return [files]
    found: list[list[Path]] = []
    before: Info | None = None
    for path in files:
        head = info(path)
        if before is None or not head.continues(before):
            found.append([])
        found[-1].append(path)
        before = head
    return found


def short_names(found: Sequence[Sequence[Path]]) -> list[str]:
    """Return a name for each recording that no other of them has.

    Raises: RecordingError.
    """
    return distinct([info(files[0]) for files in found])


def named(found: Sequence[list[Path]], name: str) -> list[list[Path]]:
    """Return the recordings that go by a name.

    Raises: RecordingError, if there is none.
    """
    chosen = [files for files in found if goes_by(info(files[0]), name)]
    if not chosen:
        known = short_names(found)
        more = f" and {len(known) - _NAMES_MAX} more" if len(known) > _NAMES_MAX else ""
        what = f"is no recording that is given: there is {', '.join(known[:_NAMES_MAX])}{more}"
        raise RecordingError(name, None, what)
    return chosen


_NAMES_MAX = 10


def names(found: Sequence[Sequence[Path]]) -> dict[str, str]:
    """Return the name of each file's recording, by path; none, if there is only one recording.

    Raises: RecordingError.
    """
    if len(found) < 2:
        return {}
    given = zip(found, short_names(found), strict=True)
    return {str(path): name for files, name in given for path in files}


def ids(recordings: Iterable[Sequence[Path]]) -> dict[str, str]:
    """Return the id of each file's recording, by path; without one the name of the file, or its
    path where another one has that name.

    Raises: RecordingError.
    """
    files = [(path, info(path).metadata.get("recording")) for group in recordings for path in group]
    stems = Counter(path.stem for path, name in files if not name)
    return {
        str(path): name or (path.stem if stems[path.stem] < 2 else str(path))
        for path, name in files
    }


def _resolved(path: Path | Uri) -> Path | Uri:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # before Python 3.13, it is that for links in a ring
        raise RecordingError(path, None, "cannot be read: its links lead nowhere") from None


def is_empty(path: Path | Uri) -> bool:
    """Return whether a file is empty, as one that was only just created.

    Raises: OSError.
    """
    if not path.exists():
        return False
    about = path.stat()
    return not about.st_size and stat.S_ISREG(about.st_mode)  # a pipe has no size


def _sort_files(files: Iterable[Path | Uri]) -> list[Path | Uri]:
    """Sort files by start time and part, copies by size, the largest first; the files of a
    recording follow its first one."""
    heads = [(path, info(path), path.stat().st_size) for path in files]
    heads.sort(key=lambda each: (each[1].start_ns or 1 << 64, each[1].part, -each[2]))
    parts: dict[str, list[Path | Uri]] = {}
    for path, head, _ in heads:
        parts.setdefault(head.metadata.get("recording") or str(path), []).append(path)
    return [path for group in parts.values() for path in group]


def _folder(folder: Path | Uri) -> Sequence[Path | Uri]:
    files = sorted(folder.glob("*.mcap"), key=str)
    if not files:
        below = sum(1 for _ in folder.glob("**/*.mcap"))
        hint = f"; there are {below} in folders below it: name one" if below else ""
        raise RecordingError(folder, None, f"has no recordings (*.mcap){hint}")
    return files


def _damages(file: RecordingFile) -> Iterator[Note]:
    while file.damages:
        error = file.damages.pop(0)
        yield notes.damaged(file.end_ns, str(error.path), error.offset, error.what)


# ---------------------------------------------------------------- batches to entries


def batch_entries(file: RecordingFile, batch: StoredBatch) -> Iterator[Frame | Note]:
    """Yield the entries of a batch, in the order in which they were given to the writer.

    Raises: RecordingError.
    """
    frames, exchanges = file.frames(batch), file.exchanges(batch)
    rows = {} if exchanges is None else {row.number: row for row in exchanges.rows()}
    given = 0
    if frames is not None:
        for run, count in enumerate(frames.column("notes").tolist()):
            yield from batch.notes[given:count]
            given = max(given, count)
            for index, frame in enumerate(_run(file, batch, frames, run)):
                row = rows.get(frame.number)
                if row is not None:
                    _copy_from_row(frame, row, Position(batch.number, run, index))
                yield frame
    yield from batch.notes[given:]


def _run(file: RecordingFile, batch: StoredBatch, table: FrameTable, run: int) -> list[Frame]:
    try:
        return table.run(run)
    except ValueError as error:
        raise file.wrong(batch.frames, error) from None


def _copy_from_row(frame: Frame, row: ExchangeRow, position: Position) -> None:
    """Copy the request's values from the exchange's row into a response."""
    if frame.side is Side.CLIENT:
        return
    if Position.of(row.response_position) == position or frame.flags & UNANSWERED:
        frame.request_received_ns = row.request_received_ns
        frame.request_sent_ns = row.request_sent_ns
        frame.request_bytes = row.request_bytes
        frame.error_code = row.error_code
        frame.fault_ids = tuple(row.fault_ids)
