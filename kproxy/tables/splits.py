"""Cuts recordings into stretches that can be read independently of each other.

::

    paths ─▶ files in time order ─▶ one pass over notes ─▶ Stretch, Stretch, …  ─▶ packed, to tasks

A stretch is some of the batches of one file, and what was known where it begins: which connections
are open, topic ids, fault rules. So a task in mid-file knows client ids and topic names. The pass
reads tables of exchanges and notes, a few per cent of a file, and passes over frames.

Invariants: every batch is in one stretch, whose rows are complete without another stretch. A
stretch begins some batches before its first one: most requests that were answered in the first
batches lie there. Files end where they ended when they were planned, however they grow.
"""

from __future__ import annotations

import glob
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import attrs

from kproxy.exchange import notes as note_of
from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError, RecordingFile
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.files import reason
from kproxy.recording.notices import notice
from kproxy.recording.reader import in_order
from kproxy.recording.stored import StoredBatch
from kproxy.recording.uri import Uri, absolute, located, spelled

PARTITION_BYTES = 128 << 20
"""A task has at least so much to read: starting one costs 50 to 90 ms."""
_TASK_BYTES_MIN = 16 << 20
"""Nor less than this, where cores would have nothing to do."""
_BATCHES_MAX = 64 << 10
"""A stretch has no more batches: those of a quiet recording have a few hundred bytes."""
_LEAD_BATCHES = 32
EARLIER_MAX = 8
"""Requests wait for their responses in so many files, by default so many hours, at most."""
_WHOLE_FACTOR = 10
END = 1 << 62
"""Behind the end of any file."""


@attrs.frozen
class Stretch:
    """Some batches of a file, to be read by one task."""

    path: str
    earlier: tuple[str, ...]
    """The last files of the same recording before it: frames of its first rows may lie there. Of
    the rest, all of them: what is pending may."""
    recording: str
    """Its id; of a recording without one, the name of its file, or its path where others have that
    name too."""
    begin: int
    """The offset of the batch where `notes` hold."""
    start: int
    """The offset of its first batch."""
    stop: int
    """The offset of the first batch that is not in it."""
    bytes: int
    """How much there is to read."""
    notes: tuple[Note, ...] = attrs.field(repr=False)
    rest: bool = False
    """Whether it is about what has no row: the requests that are pending where the file is torn."""
    last: bool = False
    """Whether no file of the same recording follows."""


@attrs.frozen
class FoundFiles:
    """What paths, globs and URIs stand for, looked for once: files come and go meanwhile, and far
    away each look takes its time."""

    paths: tuple[str, ...]
    files: tuple[Path | Uri, ...]
    """By time; of several, not those that are empty."""
    left_out: tuple[str, ...]
    """A line for each file that is empty."""
    bytes: int
    """Of all files."""


def find(paths: Sequence[str]) -> FoundFiles:
    """Look for recordings; their paths are absolute, for workers have another working directory.

    Raises: RecordingError.
    """
    named = _named([absolute(each) for each in paths])
    found = in_order(named)
    every = {file for each in named for file in (each.glob("*.mcap") if each.is_dir() else [each])}
    sizes = {str(file): _size(file) for file in every}
    left_out = tuple(
        f"{path}: is empty: nothing was recorded into it"
        for path in sorted(sizes)
        if not sizes[path]
    )
    return FoundFiles(tuple(paths), tuple(found), left_out, sum(sizes.values()))


def _size(path: Path | Uri) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 1  # it is gone, or cannot be read: who reads it says so


def files(paths: Sequence[str]) -> list[Path | Uri]:
    """Return the recordings that paths, globs and URIs stand for, by time; of several, not those
    that are empty.

    Raises: RecordingError.
    """
    return in_order(_named(paths))


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


def candidates(text: str) -> list[Path | Uri]:
    """Return the files that a path, a glob or a URI stands for now: there may be none, and they may
    be no recordings.

    Raises: RecordingError, when that cannot be told.
    """
    path = located(text)
    try:
        found = _matches(path)
        return [
            file for each in found for file in (each.glob("*.mcap") if each.is_dir() else [each])
        ]
    except OSError as error:
        raise RecordingError(path, None, f"cannot be read: {reason(error)}") from None
    except RecordingError:
        return []  # it is not there


def _matches(path: Path | Uri) -> Sequence[Path | Uri]:
    if isinstance(path, Uri) and path.is_pattern:  # first: to pyarrow a `?` begins a query
        return path.matches()
    if path.exists():
        return [path]
    if isinstance(path, Path) and glob.has_magic(str(path)):
        return sorted(map(Path, glob.glob(str(path), recursive=True)))
    raise RecordingError(path, None, "does not exist")


def task_bytes(found: FoundFiles, tasks: int, partition_bytes: int = PARTITION_BYTES) -> int:
    """Return how much a task should read, so that of small recordings there are enough tasks."""
    return min(partition_bytes, max(_TASK_BYTES_MIN, math.ceil(found.bytes / max(1, tasks))))


def stretches(
    recordings: FoundFiles,
    partition_bytes: int = PARTITION_BYTES,
    told: Callable[[str], None] = lambda text: None,
) -> list[Stretch]:
    """Return the stretches of recordings, in order. `told` is given a line for each file of which
    less is read than its name promises: it stops before its end, is empty, or is a copy.

    Raises: RecordingError.
    """
    cuts: list[list[Stretch]] = []
    before: RecordingFile | None = None
    earlier: tuple[str, ...] = ()
    for path in recordings.files:
        with RecordingFile(path) as file:
            if before is not None and file.info.repeats(before.info):
                told(_copied(file, before))
                continue
            earlier = earlier_of(file, before, earlier)
            cuts.append(list(cut(file, earlier, partition_bytes)))
            if not file.complete:
                told(_stops(file))
            before = file
    for line in recordings.left_out:
        told(line)
    cuts = _named_apart(cuts)
    for some, following in zip(cuts, [*cuts[1:], None], strict=True):
        if following is None or not following[0].earlier:
            some[-1] = attrs.evolve(some[-1], last=True)
    return [each for some in cuts for each in some]


def copies(recordings: FoundFiles) -> list[str]:
    """Return a line for each file that `stretches` passes over: it is a copy of the one before it.

    Raises: RecordingError.
    """
    lines: list[str] = []
    before: RecordingFile | None = None
    for path in recordings.files:
        with RecordingFile(path) as file:
            if before is not None and file.info.repeats(before.info):
                lines.append(_copied(file, before))
            else:
                before = file
    return lines


def _copied(file: RecordingFile, original: RecordingFile) -> str:
    return notice(note_of.copied(file.info.start_ns, str(file.path), str(original.path))) or ""


def _named_apart(cuts: list[list[Stretch]]) -> list[list[Stretch]]:
    """Have recordings without an id whose files are called the same go by their paths."""
    stems = Counter(_stem(some[0]) for some in cuts)
    return [
        [attrs.evolve(each, recording=each.path) for each in some]
        if some[0].recording == _stem(some[0]) and stems[some[0].recording] > 1
        else some
        for some in cuts
    ]


def _stem(stretch: Stretch) -> str:
    return located(stretch.path).stem


def earlier_of(
    file: RecordingFile, before: RecordingFile | None, earlier: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the files of a recording before one of its files; `before` is the file before it, of
    whatever recording, and `earlier` are those before that one."""
    if before is None or not file.info.continues(before.info):
        return ()
    return (*earlier, spelled(before.path))


def whole(file: RecordingFile, earlier: tuple[str, ...], size: int) -> Stretch:
    """Return the stretch that is all of a file; of earlier files it knows those that its first rows
    may need."""
    recording = file.info.metadata.get("recording") or file.path.stem
    return Stretch(spelled(file.path), earlier[-EARLIER_MAX:], recording, 0, 0, END, size, ())


def _stops(file: RecordingFile) -> str:
    note = file.torn
    if note is None:  # of a file that one task reads whole no pass was made
        return f"{file.path}: stops before its end: it is read as far as it goes"
    return notice(note) or ""


def cut(
    file: RecordingFile, earlier: tuple[str, ...], partition_bytes: int, rest: bool = True
) -> Iterator[Stretch]:
    """Yield the stretches of a file; with `rest`, also that of what has no row."""
    size = file.path.stat().st_size
    every = whole(file, earlier, size)
    if not _divisible(file, size, partition_bytes):
        yield every
        if rest and not file.complete:
            yield attrs.evolve(every, earlier=earlier, rest=True)
        return
    log = ConnectionLog()
    part = every
    batches = 0
    following: Stretch | None = None
    for batch in file.batches():
        batches += 1
        if following is None and _enough(part, batch, batches, partition_bytes):
            notes = tuple(log.opening_notes(file.end_ns))
            following = attrs.evolve(every, begin=batch.offset, notes=notes)
            batches = 0
        elif following is not None and batches >= _LEAD_BATCHES:
            yield _until(part, batch.offset)
            part, following, batches = attrs.evolve(following, start=batch.offset), None, 0
        _remember(log, file, batch)
    yield _until(part, file.scan.offset)
    if rest and not file.complete:
        yield attrs.evolve(_until(every, file.scan.offset), earlier=earlier, rest=True)


def _until(stretch: Stretch, stop: int) -> Stretch:
    return attrs.evolve(stretch, stop=stop, bytes=stop - stretch.start)


def _divisible(file: RecordingFile, size: int, partition_bytes: int) -> bool:
    if isinstance(file.path, Uri):  # a pass from afar takes as long as a task: for large files only
        return file.info.native and size > _WHOLE_FACTOR * partition_bytes
    return file.info.native  # other tools put batches together as they like


def _enough(part: Stretch, batch: StoredBatch, batches: int, partition_bytes: int) -> bool:
    return batch.offset - part.start >= partition_bytes or batches >= _BATCHES_MAX


def _remember(log: ConnectionLog, file: RecordingFile, batch: StoredBatch) -> None:
    try:
        log.remember(batch.notes)
    except (KeyError, TypeError, AttributeError):
        what = "is damaged: it has a note about no connection"
        raise RecordingError(file.path, batch.offset, what) from None


def packed(
    found: Iterable[Stretch], partition_bytes: int = PARTITION_BYTES, tasks_min: int = 1
) -> list[list[Stretch]]:
    """Put stretches together so that each task has enough to do, and there are enough tasks."""
    found = list(found)
    total = sum(each.bytes for each in found)
    least = min(partition_bytes, math.ceil(total / max(1, tasks_min)))
    groups: list[list[Stretch]] = []
    size = 0
    for each in found:
        if not groups or size >= least:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.bytes
    return groups
