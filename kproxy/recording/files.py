"""Recordings as files: opening them, and telling whether one is still being written.

A writer holds an advisory lock on its file. The kernel drops it when the writer dies, however that
happens, so that a torn file and one that is still growing can be told apart.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from kproxy.recording.uri import Uri, located

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


class RecordingError(Exception):
    """A file that is not a recording, or no longer a valid one.

    `path` (Path or Uri), `offset` (of the byte in the file, or None) and `what` (what is wrong and
    what to do about it) say it all; the text is one line with the three.
    """

    exit_code = 1

    def __init__(self, path: Path | Uri | str, offset: int | None, what: str):
        self.path = located(path) if isinstance(path, str) else path
        self.offset = offset
        self.what = what
        super().__init__(path, offset, what)

    def __str__(self) -> str:
        where = "" if self.offset is None else f" (at byte {self.offset})"
        return f"{self.path}: {self.what}{where}"


class FormerFormatError(RecordingError):
    """A recording of format 2 that cannot be converted, as it must be before it is read."""

    exit_code = 2


class RecordingWarning(UserWarning):
    """A recording that is incomplete, or read without a part that is damaged or missing."""


def open_recording(path: Path | Uri) -> BinaryIO:
    """Open a file for reading.

    Raises: RecordingError, when it is not there, may not be read, or is not a regular file.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            raise RecordingError(path, None, "is not a file")
        return path.open("rb")
    except FileNotFoundError:
        raise RecordingError(path, None, "does not exist") from None
    except OSError as error:
        raise RecordingError(path, None, f"cannot be read: {reason(error)}") from None


def reason(error: OSError) -> str:
    """Return in one line why an operation failed."""
    return error.strerror or str(error).partition("\n")[0]


def make_folder(folder: Path, mode: int = 0o700) -> None:
    """Create a folder, by default for its owner only, and the missing folders above it.

    Raises: OSError.
    """
    for each in reversed((folder, *folder.parents)):  # of `parents=True`, the mode is the umask's
        if not each.exists():
            each.mkdir(mode=0o700, exist_ok=True)
            if mode != 0o700:  # of `mkdir`, the umask takes some
                each.chmod(mode)


@contextlib.contextmanager
def replacing(path: Path, prefix: str) -> Generator[BinaryIO]:
    """Write a file, for its owner only, that takes the place of `path` as a whole: others see the
    old or the new content. Until then its name begins with the prefix.

    Raises: OSError.
    """
    number, name = tempfile.mkstemp(dir=path.parent, prefix=prefix)  # for its owner only
    try:
        with os.fdopen(number, "wb") as file:
            yield file
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def cache_folder(name: str) -> Path | None:
    """Return the folder for the part `name` of kproxy's cache; None for a user without a home."""
    base = _users_folder("XDG_CACHE_HOME", ".cache")
    return base and base / name


def state_folder() -> Path | None:
    """Return the folder for what kproxy keeps from run to run; None for a user without a home."""
    return _users_folder("XDG_STATE_HOME", ".local/state")


def _users_folder(variable: str, usual: str) -> Path | None:
    given = os.environ.get(variable, "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / usual
    except RuntimeError:
        return None
    return base / "kproxy"


def file_bytes(file: BinaryIO) -> int:
    """Return the size of an open file."""
    try:
        return os.fstat(file.fileno()).st_size
    except OSError:  # it is not of the kernel's
        at = file.tell()
        size = file.seek(0, os.SEEK_END)
        file.seek(at)
        return size


def _locked(fd: int, exclusive: bool) -> bool | None:
    """Try to lock an open file; return whether it was free, None where there are no locks, as on
    some network file systems."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def being_written(file: BinaryIO) -> bool:
    """Return whether a living process is writing the file."""
    with contextlib.suppress(OSError):  # it is not of the kernel's
        free = _locked(file.fileno(), exclusive=False)
        if free and fcntl is not None:
            fcntl.flock(file.fileno(), fcntl.LOCK_UN)
        return free is False
    return False


def lock(fd: int) -> bool:
    """Lock an open file as being written, until its descriptor is closed or its process dies.

    Returns whether it was free; also where locks are not supported.
    """
    return _locked(fd, exclusive=True) is not False


def is_free(fd: int) -> bool:
    """Return whether it is certain that no living process has locked an open file."""
    return _locked(fd, exclusive=True) is True


def write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    """Write data at an offset, repeatedly if the system takes only a part of it.

    Raises: OSError.
    """
    while len(data):
        written = os.pwrite(fd, data, at)
        data = data[written:]
        at += written


def uncache(fd: int) -> None:
    """Have the kernel write a file to the disk now, and drop its pages from the cache.

    A recording grows without end and is rarely read while it does. In the page cache it would push
    out the pages of brokers and others; and the kernel takes fresh memory for every page, which on
    a virtual machine costs several times as much as the writing (2.6 CPU seconds per GB against
    0.25 with reused pages). Does not wait until it is written; does nothing where there is no such
    call.
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):  # not every file system knows it
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
