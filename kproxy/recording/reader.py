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
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kproxy.exchange import notes
from kproxy.exchange.entries import Frame, Note
from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, RecordingWarning
from kproxy.recording.info import Info
from kproxy.recording.notices import notice
from kproxy.recording.paths import Parts, Paths, by_recording, named, names, recordings

if TYPE_CHECKING:
    from kproxy.exchange.exchange import Exchange
    from kproxy.exchange.filter import Filter


def entries(
    paths: Paths,
    *,
    skip_damaged: bool = False,
    passed: Callable[[int], None] = lambda done: None,
) -> Iterator[Frame | Note]:
    """Yield all entries, in the order in which they were given to the writer.

    Frames of more than 1 MiB come in pieces (FRAGMENT, MORE). `passed` gets the number of bytes
    read of all files, after every batch.

    Raises: RecordingError, see above.
    """
    previous: Info | None = None
    passed_bytes = 0
    given = recordings(paths)
    for path in given:
        opened = open_if_there(path, len(given) > 1, skip_damaged)
        if opened is None:
            yield notes.gone(0, str(path))
            continue
        with opened as file:
            for batch in file.batches():
                if previous is not None and not file.info.continues(previous):
                    yield notes.recording(file.end_ns, str(path))
                previous = None
                yield from _damages(file)
                yield from file.entries(batch)
                passed(passed_bytes + file.scan.offset)
            passed_bytes += file.scan.offset
            yield from _damages(file)
            if file.torn is not None:
                yield file.torn
            previous = file.info


def open_if_there(path: Path, several: bool, skip_damaged: bool = False) -> RecordingFile | None:
    """Open a file; None if it is one of several, and was removed since it was found.

    Raises: RecordingError.
    """
    try:
        return RecordingFile(path, skip_damaged=skip_damaged)
    except RecordingError:
        if several and not path.exists():
            return None
        raise


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
        wanted = starting(wanted, by_recording(paths))
    return _exchanges(paths, told or warn, wanted)


def warn(note: Note) -> None:
    """Warn if a note reports the state of a recording.

    Warns: RecordingWarning.
    """
    found = notice(note)
    if found is not None:
        warnings.warn(found, RecordingWarning, stacklevel=2)


def starting(wanted: Filter, found: Sequence[Parts]) -> Filter:
    """Return the filter with times like `+30s` counted from the beginning of these recordings.

    Raises: RecordingError, also if it names a recording that is none of these.
    """
    for name in wanted.recordings:
        named(found, name)
    return wanted.starting(found[0].head.start_ns) if wanted.relative else wanted


def _exchanges(
    paths: Paths, told: Callable[[Note], None], wanted: Filter | None
) -> Iterator[Exchange]:
    from kproxy.recording.exchanges import Reader

    found = by_recording(paths)
    files = itertools.chain.from_iterable(each.paths for each in found)
    yield from Reader(told, wanted, names=names(found)).files(files)


def verify(path: Path | str) -> None:
    """Check every byte of one file.

    Raises: RecordingError, also when it is torn.
    """
    with RecordingFile(path) as file:
        for batch in file.batches():
            for _ in file.entries(batch):
                pass
        if file.torn is not None:
            raise RecordingError(path, file.scan.offset, file.why_torn())


def _damages(file: RecordingFile) -> Iterator[Note]:
    while file.damages:
        error = file.damages.pop(0)
        yield notes.damaged(file.end_ns, str(error.path), error.offset, error.what)
