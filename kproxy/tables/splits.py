"""Cut recordings into stretches that can be read independently of each other.

    paths ─▶ files in time order ─▶ BatchRange, … ─▶ packed, to tasks

A stretch is a file, or, of a large file with an index, a range of its chunks, with notes of the
state where it begins: open connections, topic ids, fault rules. So a task in the middle of a file
knows client ids and topic names; the requests that it needs it finds itself, by the index.

Invariants: every batch is in one stretch, whose rows are complete without another stretch.
Stretches end where the file ended when it was cut, however it grows.
"""

from __future__ import annotations

import glob
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange import notes as note_of
from kproxy.exchange.entries import Note
from kproxy.exchange.filter import Filter
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.exchanges import missing_before
from kproxy.recording.files import reason
from kproxy.recording.info import Info
from kproxy.recording.notices import notice
from kproxy.recording.paths import Parts, in_order, info
from kproxy.recording.reader import starting
from kproxy.recording.uri import Uri, absolute, located, spelled

PARTITION_BYTES = 128 << 20
"""Bytes that a task reads about at most: starting one takes 50 to 90 ms, so no fewer than half of
it where there is more."""
_TASK_BYTES_MIN = 16 << 20
"""Bytes that a task reads at least if there are fewer tasks than cores."""
EARLIER_MAX = 8
"""Number of earlier files, by default of one hour each, that may have the request of a response."""
END = 1 << 62
"""An offset after the end of any file."""


@attrs.frozen
class BatchRange:
    """A range of batches of a file, to be read by one task."""

    path: str
    earlier: tuple[str, ...]
    """The last files of the same recording before it, which may have frames of its first rows; all
    earlier files if it is the `last`."""
    recording: str
    """The recording's id; without one, the name of its file, or its path if others have that name,
    too."""
    start: int
    """The offset of its first batch, where `notes` hold."""
    stop: int
    """The offset of the first batch that is not in it."""
    bytes: int
    """Number of bytes to read."""
    notes: tuple[Note, ...] = attrs.field(repr=False)
    to_end: bool = False
    """True if its file ends behind it: it says whether that is torn."""
    last: bool = False
    """True if its recording ends behind it: it has what is not complete there."""


@attrs.frozen
class FoundFiles:
    """The files of paths, globs and URIs, looked up once: they change meanwhile, and remote lookups
    are slow."""

    paths: tuple[str, ...]
    files: tuple[Path | Uri, ...]
    """Recordings by time; empty ones only if there is no other."""
    left_out: tuple[str, ...]
    """A line for the user about each empty file."""
    bytes: int
    """Size of all files together."""


def find(paths: Sequence[str]) -> FoundFiles:
    """Look up recordings, by absolute paths: workers have another working directory.

    Raises: RecordingError.
    """
    given = _named([absolute(each) for each in paths])
    in_time_order = in_order(given)
    all_files = {
        file for each in given for file in (each.glob("*.mcap") if each.is_dir() else [each])
    }
    sizes = {str(file): _size(file) for file in all_files}
    left_out = tuple(
        f"{path}: is empty: nothing was recorded into it"
        for path in sorted(sizes)
        if not sizes[path]
    )
    return FoundFiles(tuple(paths), tuple(in_time_order), left_out, sum(sizes.values()))


def _size(path: Path | Uri) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 1  # it is gone, or unreadable: reading it raises the error


def _named(paths: Sequence[str]) -> list[Path | Uri]:
    found: list[Path | Uri] = []
    for text in paths:
        path = located(text)
        try:
            matches = _matches(path)
        except OSError as error:
            raise RecordingError(path, None, f"cannot be read: {reason(error)}") from None
        if not matches:
            raise RecordingError(path, None, "matches no file")
        found += matches
    return found


def _matches(path: Path | Uri) -> Sequence[Path | Uri]:
    if isinstance(path, Uri) and path.is_pattern:  # first: for pyarrow a `?` begins a query
        return path.matches()
    if path.exists():
        return [path]
    if isinstance(path, Path) and glob.has_magic(str(path)):
        return sorted(map(Path, glob.glob(str(path), recursive=True)))
    raise RecordingError(path, None, "does not exist")


def resolved(wanted: Filter | None, recordings: FoundFiles) -> Filter | None:
    """Return the filter with times like `+30s` counted from the beginning of recordings.

    Raises: RecordingError, also if the filter names a recording that is none of these.
    """
    if wanted is None or not (wanted.relative or wanted.recordings):
        return wanted
    parts: list[Parts] = []
    before: Info | None = None
    for path in recordings.files if wanted.recordings else recordings.files[:1]:
        head = info(path)
        if before is None or not head.continues(before):
            parts.append(Parts([Path(str(path))], [head]))
        before = head
    return starting(wanted, parts)


def task_bytes(found: FoundFiles, tasks: int, partition_bytes: int = PARTITION_BYTES) -> int:
    """Return the bytes for each task to read, so that small recordings give enough tasks, too."""
    return min(partition_bytes, max(_TASK_BYTES_MIN, math.ceil(found.bytes / max(1, tasks))))


def stretches(
    recordings: FoundFiles,
    partition_bytes: int = PARTITION_BYTES,
    on_left_out: Callable[[str], None] = lambda text: None,
) -> list[BatchRange]:
    """Return the stretches of recordings, in order. `on_left_out` is called with a line about each
    file that is empty, or a copy of another.

    Raises: RecordingError.
    """
    for line in recordings.left_out:
        on_left_out(line)
    of_recordings: list[list[BatchRange]] = []
    before: Info | None = None
    for path in recordings.files:
        if len(recordings.files) > 1 and not path.exists():
            on_left_out(notice(note_of.gone(0, str(path))) or "")
            continue
        with RecordingFile(path) as file:
            head = file.info
            if before is not None and head.repeats(before):
                copied = note_of.copied(head.start_ns, str(head.path), str(before.path))
                on_left_out(notice(copied) or "")
                continue
            if (missing := missing_before(head, before)) is not None:
                on_left_out(notice(missing) or "")
            if before is None or not head.continues(before):
                of_recordings.append([])
            some = of_recordings[-1]
            some += cut(file, tuple(each.path for each in some if not each.start), partition_bytes)
            before = head
    for some in of_recordings:
        some[-1] = _at_end(some)
    return _named_apart(list(itertools.chain.from_iterable(of_recordings)))


def _at_end(some: Sequence[BatchRange]) -> BatchRange:
    """Return the last stretch of a recording, which has what is not complete there. If the writer
    of its file was stopped, it knows what that would begin with."""
    last = attrs.evolve(
        some[-1], last=True, earlier=tuple(each.path for each in some[:-1] if not each.start)
    )
    if last.start:
        return attrs.evolve(last, earlier=last.earlier[:-1])
    if not last.earlier:
        return last
    with RecordingFile(last.path) as file, RecordingFile(last.earlier[-1]) as before:
        notes = () if file.begins() else tuple(before.opening_notes(file.info.start_ns))
    return attrs.evolve(last, notes=notes)


def _named_apart(found: list[BatchRange]) -> list[BatchRange]:
    """Identify recordings without an id by their paths if their files have the same name."""
    stems = [located(each.path).stem for each in found]
    files = Counter(stem for each, stem in zip(found, stems, strict=True) if not each.start)
    return [
        attrs.evolve(each, recording=each.path)
        if each.recording == stem and files[stem] > 1
        else each
        for each, stem in zip(found, stems, strict=True)
    ]


def whole(info: Info, earlier: tuple[str, ...], size: int) -> BatchRange:
    """Return the stretch of a whole file, with the earlier files that its first rows may need."""
    recording = info.metadata.get("recording") or info.path.stem
    return BatchRange(spelled(info.path), earlier[-EARLIER_MAX:], recording, 0, END, size, ())


def cut(
    file: RecordingFile, earlier: tuple[str, ...], partition_bytes: int
) -> Iterator[BatchRange]:
    """Yield the stretches of a file."""
    size = file.path.stat().st_size
    part = every = whole(file.info, earlier, size)
    if size > partition_bytes:
        file.use_index()
    log, part_bytes = ConnectionLog(), _even(size, partition_bytes)
    for batch in file.batches() if file.indexed else ():
        if batch.offset - part.start >= part_bytes:
            yield attrs.evolve(part, stop=batch.offset, bytes=batch.offset - part.start)
            notes = tuple(log.opening_notes(file.end_ns))
            part = attrs.evolve(every, start=batch.offset, notes=notes)
        try:
            log.remember(batch.notes)
        except (KeyError, TypeError, AttributeError):
            what = "is damaged: it has a note about no connection"
            raise RecordingError(file.path, batch.offset, what) from None
    yield attrs.evolve(part, bytes=size - part.start, to_end=True)


def _even(total: int, part_max: int) -> int:
    """Return the size of equal parts, as few as may be: the last one would be small."""
    return math.ceil(total / math.ceil(total / max(1, part_max))) if total else 0


def packed(
    found: Iterable[BatchRange], partition_bytes: int = PARTITION_BYTES, tasks_min: int = 1
) -> list[list[BatchRange]]:
    """Group stretches so that tasks have about as much to read as each other, and there are
    enough."""
    found = list(found)
    total = sum(each.bytes for each in found)
    least = _even(total, min(partition_bytes, math.ceil(total / max(1, tasks_min))))
    groups: list[list[BatchRange]] = []
    size = 0
    for each in found:
        if not groups or size >= least:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.bytes
    return groups
