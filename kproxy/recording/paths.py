"""Finds the recordings that paths stand for: files, folders, several of them.

    paths ─▶ files, in the order of their start times ─▶ Parts of each recording ─▶ names, ids

Invariants: finding opens each file once; a file that is alone is not opened until its head is asked
for, so that it may be a pipe. An empty file among several was only just created, and is left out.

Each recording counts its exchanges from 1. Where several are read, an exchange is named
`NAME#NUMBER`, and NAME is the end of the path of the recording's files: as much as no other of them
has, without the suffix, and without the part's number that rotation adds.
"""

from __future__ import annotations

import contextlib
import functools
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath

import attrs

from kproxy.recording.file import RecordingFile
from kproxy.recording.files import RecordingError, reason
from kproxy.recording.info import Info
from kproxy.recording.uri import Uri

Paths = Path | str | Iterable[Path | str]


@attrs.frozen
class Parts:
    """The files of one recording, in their order."""

    paths: list[Path]
    _heads: list[Info] | None = None

    @functools.cached_property
    def heads(self) -> list[Info]:
        """What is in the head of each file.

        Raises: RecordingError.
        """
        return self._heads or [info(path) for path in self.paths]

    @property
    def head(self) -> Info:
        """What is in the head of the first file.

        Raises: RecordingError.
        """
        return self.heads[0]


def info(path: Path | Uri | str) -> Info:
    """Return the information in the head of a file.

    Raises: RecordingError, when it is not a recording. A torn head is returned as far as it goes.
    """
    with RecordingFile(path, converts=False) as file:
        return file.info


def successor(here: Info) -> Path | None:
    """Return the file beside a file that continues its recording; None if there is none."""
    later = {part: path for part, path in parts_beside(here).items() if part > here.part}
    return later[min(later)] if later else None  # those before it may be removed


def last_part(here: Info) -> Path | None:
    """Return the last file beside a file that continues its recording; None if there is none."""
    found = parts_beside(here)
    last = max(found, default=0)
    return found[last] if last > here.part else None


def kept_heads(folder: Path) -> Iterator[tuple[Path, Info]]:
    """Yield the files of a folder that were recorded with --keep, with their heads."""
    for path in folder.glob("*.mcap"):
        with contextlib.suppress(RecordingError):  # whatever else is there
            head = info(path)
            if "keep" in head.metadata:
                yield path, head


def last_files(folder: Path) -> list[Path]:
    """Return the last file of each recording in a folder that was made with --keep, in the order in
    which they began."""
    last: dict[str, tuple[Path, Info]] = {}
    for path, head in kept_heads(folder):
        if recording := head.metadata.get("recording", ""):
            earlier = last.get(recording, (path, head))
            last[recording] = max(earlier, (path, head), key=lambda each: each[1].part)
    return [path for path, head in sorted(last.values(), key=lambda each: each[1].start_ns)]


def parts_beside(here: Info) -> dict[int, Path]:
    """Return the other files of a recording in the folder of one of them, by their parts."""
    found: dict[int, Path] = {}
    for other in here.path.parent.glob("*.mcap") if isinstance(here.path, Path) else ():
        with contextlib.suppress(RecordingError):  # whatever else is there
            there = info(other)
            if there.continues(here) and there.part != here.part:
                found[there.part] = other
    return found


def size_of(paths: Iterable[Path]) -> int:
    """Return the bytes of files, of those that were not removed meanwhile."""
    return sum(path.stat().st_size for path in paths if path.exists())


def recordings(paths: Paths) -> list[Path]:
    """Return the files that paths stand for, in the order of their start times.

    A folder stands for the `*.mcap` files in it. Of several files, empty ones (only just created)
    are left out, and one whose head is not complete yet comes last.

    Raises: RecordingError, when there is none, or one of several cannot be read.
    """
    return [path for path, _ in _local(paths)]


def in_order(paths: Iterable[Path | Uri]) -> list[Path | Uri]:
    """Return the files that paths or URIs stand for, as `recordings` does. The files of a recording
    stay together, even if another one was recorded at the same time.

    Raises: RecordingError.
    """
    return [path for path, _ in _in_order(paths)]


def by_recording(paths: Paths) -> list[Parts]:
    """Return the recordings that paths stand for.

    Raises: RecordingError, as `recordings`.
    """
    groups: list[list[tuple[Path, Info]]] = []
    for path, head in _local(paths):
        if head is None:
            return [Parts([path])]
        if not groups or not head.continues(groups[-1][-1][1]):
            groups.append([])
        groups[-1].append((path, head))
    return [Parts([path for path, _ in each], [head for _, head in each]) for each in groups]


def _local(paths: Paths) -> list[tuple[Path, Info | None]]:
    given = map(Path, [paths] if isinstance(paths, (str, Path)) else paths)
    return [(path, head) for path, head in _in_order(given) if isinstance(path, Path)]


def _in_order(paths: Iterable[Path | Uri]) -> Sequence[tuple[Path | Uri, Info | None]]:
    """Return the files in their order, each with its head, if there is more than one."""
    paths = list(paths)
    found: dict[Path | Uri, Path | Uri] = {}
    for path in paths:
        for file in _files(path):
            found.setdefault(_resolved(file), file)
    files = list(found.values())
    if len(files) > 1:
        files = [path for path in files if not is_empty(path)] or files[:1]
    return _sorted(files, paths) if len(files) > 1 else [(path, None) for path in files]


def short_names(found: Sequence[Parts]) -> list[str]:
    """Return a name for each recording that no other of them has.

    Raises: RecordingError.
    """
    return distinct([each.head for each in found])


def named(found: Sequence[Parts], name: str) -> list[Parts]:
    """Return the recordings that go by a name.

    Raises: RecordingError, if there is none.
    """
    chosen = [each for each in found if goes_by(each.head, name)]
    if not chosen:
        known = short_names(found)
        more = f" and {len(known) - _NAMES_MAX} more" if len(known) > _NAMES_MAX else ""
        what = f"is no recording that is given: there is {', '.join(known[:_NAMES_MAX])}{more}"
        raise RecordingError(name, None, what)
    return chosen


_NAMES_MAX = 10


def names(found: Sequence[Parts]) -> dict[str, str]:
    """Return the name of each file's recording, by path; none, if there is only one recording.

    Raises: RecordingError.
    """
    if len(found) < 2:
        return {}
    given = zip(found, short_names(found), strict=True)
    return {str(path): name for each, name in given for path in each.paths}


def ids(found: Iterable[Parts]) -> dict[str, str]:
    """Return the id of each file's recording, by path; without one the name of the file, or its
    path where another one has that name.

    Raises: RecordingError.
    """
    files = [
        (path, head.metadata.get("recording"))
        for each in found
        for path, head in zip(each.paths, each.heads, strict=True)
    ]
    stems = Counter(path.stem for path, name in files if not name)
    return {
        str(path): name or (path.stem if stems[path.stem] < 2 else str(path))
        for path, name in files
    }


def _files(path: Path | Uri) -> Sequence[Path | Uri]:
    """Return the files that a path stands for: those of a folder, or the path itself."""
    try:
        return _folder(path) if path.is_dir() else [path]
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise RecordingError(path, None, f"cannot be read: {reason(error)}") from None


def _resolved(path: Path | Uri) -> Path | Uri:
    try:
        return path.resolve()
    except RuntimeError:  # before Python 3.13, it is that for links in a ring
        raise RecordingError(path, None, "cannot be read: its links lead nowhere") from None
    except (OSError, ValueError) as error:  # a name that is too long, a NUL byte
        raise RecordingError(path, None, f"cannot be read: {error}") from None


def is_empty(path: Path | Uri) -> bool:
    """Return whether a file is empty, as one that was only just created.

    Raises: OSError.
    """
    if not path.exists():
        return False
    about = path.stat()
    return not about.st_size and stat.S_ISREG(about.st_mode)  # a pipe has no size


def _sorted(
    files: Iterable[Path | Uri], given: Sequence[Path | Uri]
) -> list[tuple[Path | Uri, Info]]:
    """Sort files by start time and part, copies by size, the largest first; the files of a
    recording follow its first one. A file that was found in a folder, or is beside others that
    were recorded with `kproxy run --keep`, may be removed meanwhile, and is left out."""
    found: list[tuple[Path | Uri, Info, int]] = []
    missing: list[Path | Uri] = []
    for path in files:
        try:
            found.append((path, info(path), path.stat().st_size))
        except (RecordingError, FileNotFoundError):
            if path.exists():
                raise
            if path in given:
                missing.append(path)
    local = ((path, head) for path, head, _ in found if isinstance(path, Path))
    kept = {path.parent for path, head in local if "keep" in head.metadata}
    for path in missing:
        if not isinstance(path, Path) or path.parent not in kept:
            raise RecordingError(path, None, "does not exist")
    found.sort(key=lambda each: (each[1].start_ns or 1 << 64, each[1].part, -each[2]))
    parts: dict[str, list[tuple[Path | Uri, Info]]] = {}
    for path, head, _ in found:
        parts.setdefault(head.metadata.get("recording") or str(path), []).append((path, head))
    return [each for group in parts.values() for each in group]


def _folder(folder: Path | Uri) -> Sequence[Path | Uri]:
    files = sorted(folder.glob("*.mcap"), key=str)
    if not files:
        below = sum(1 for _ in folder.glob("**/*.mcap"))
        hint = f"; there are {below} in folders below it: name one" if below else ""
        raise RecordingError(folder, None, f"has no recordings (*.mcap){hint}")
    return files


# ---------------------------------------------------------------- names


def distinct(heads: Sequence[Info]) -> list[str]:
    """Return a name for each of these recordings that no other of them goes by, by the head of one
    of its files."""
    paths = [_path(head) for head in heads]
    ends = Counter(path[-length:] for path in paths for length in range(1, len(path) + 1))
    return [
        next(
            (
                "/".join(path[-length:])
                for length in range(1, len(path) + 1)
                if ends[path[-length:]] == 1
            ),
            head.metadata.get("recording") or str(head.path),
        )
        for head, path in zip(heads, paths, strict=True)
    ]


def goes_by(head: Info, name: str) -> bool:
    """Return whether a recording goes by a name: its id, or an end of its path."""
    wanted = tuple(name.split("/"))
    return name == head.metadata.get("recording") or _path(head)[-len(wanted) :] == wanted


def _path(head: Info) -> tuple[str, ...]:
    path = PurePath(str(head.path))
    stem = path.stem.removesuffix(f"-{head.part:04}") if head.part > 1 else path.stem
    return (*path.parts[:-1], stem)
