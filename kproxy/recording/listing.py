"""Lists the files that a text stands for, with a stamp of each, and opens none of them.

    path, folder, glob, URI ─▶ one listing ─▶ {file: Stamp}

Invariants: a local folder costs one `stat` per file, and remote storage one listing, and a request
that tells a folder from a file; the stamp of a file differs when it grew or when another file took
its name, as far as the storage tells: an object of the same size and time looks the same.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from kproxy.recording.files import RecordingError, reason
from kproxy.recording.uri import Uri, located


class Stamp(NamedTuple):
    """What a listing says of a file."""

    bytes: int
    """Its size; -1 if it is no regular file."""
    modified_ns: int
    inode: tuple[int, int] = (0, 0)
    """Its device and inode; zeros on storage that has none."""


def listed(text: str) -> dict[str, Stamp] | None:
    """Return the files of a path, a folder, a glob or a URI, as texts for `located`; None if it is
    not there. Of a file and links to it, one is listed.

    Raises: RecordingError, if they cannot be listed.
    """
    path = located(text)
    try:
        if isinstance(path, Uri):
            found = path.listed()
            if found is None:
                return None
            return {uri.text: Stamp(about.st_size, about.st_mtime_ns) for uri, about in found}
        return _local(path)
    except OSError as error:
        raise RecordingError(path, None, f"cannot be read: {reason(error)}") from None


def _local(path: Path) -> dict[str, Stamp] | None:
    if path.is_dir():
        return _without_links(_in_folder(path))
    if path.exists():
        return {str(path): _stamp(path.stat())}
    if not glob.has_magic(str(path)):
        return None
    found: list[_Listed] = []
    for name in glob.glob(str(path), recursive=True):
        if os.path.isdir(name):
            found += _in_folder(Path(name))
        else:
            found += _file(name, os.path.islink(name))
    return _without_links(found)


_Listed = tuple[str, Stamp, bool]
"""The name of a file, its stamp, and whether it is a link."""


def _in_folder(folder: Path) -> list[_Listed]:
    above = str(folder)
    with os.scandir(folder) as entries:
        names = [(entry.name, entry.is_symlink()) for entry in entries]
    wanted = ((name, is_link) for name, is_link in names if name.endswith(".mcap"))
    return [each for name, link in wanted for each in _file(os.path.join(above, name), link)]


def _file(name: str, is_link: bool) -> list[_Listed]:
    try:
        return [(name, _stamp(os.stat(name)), is_link)]
    except OSError:  # it is gone, or links lead nowhere, which opening it reports
        return [(name, Stamp(-1, 0), False)] if is_link else []


def _stamp(about: os.stat_result) -> Stamp:
    size = about.st_size if stat.S_ISREG(about.st_mode) else -1
    return Stamp(size, about.st_mtime_ns, (about.st_dev, about.st_ino))


def _without_links(found: Iterable[_Listed]) -> dict[str, Stamp]:
    """Return the files without those that another one of them is, too."""
    found = sorted(found)
    linked = {stamp.inode for _, stamp, is_link in found if is_link}
    seen: set[tuple[int, int]] = set()
    kept: dict[str, Stamp] = {}
    for name, stamp, _ in found:
        if stamp.inode in linked:
            if stamp.inode in seen:
                continue
            seen.add(stamp.inode)
        kept[name] = stamp
    return kept
