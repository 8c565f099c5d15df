"""The index of a large recording, kept in the user's cache, so that the next start is quick.

::

    magic │ u32 size of the key │ key, in JSON │ `Indexed`, pickled │ u32 CRC-32 of all before

The key has the recording's files (path, size, time of the last change, a checksum of both ends, the
last of which has checksums of all the rest), the options they were loaded with, and the version of
kproxy. An index with another key, or a damaged one, is ignored. It is written to a temporary file,
which is then renamed. It is trusted only if nobody else can write it; and unpickling makes no other
classes than `_CLASSES`.

The folder keeps `KEPT_BYTES_MAX` of indexes: those that were used last.

Like the recording, an index may hold personal data, so only its owner can read it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import pickle
import stat
import sys
import time
import uuid
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs
from zlib_ng.zlib_ng import crc32

from kproxy import __version__
from kproxy.recording import files
from kproxy.recording.files import make_folder, replacing
from kproxy.recording.layout import FORMAT_VERSION
from kproxy.recording.stored import Locations
from kproxy.replay.batch_index import PartitionBatches
from kproxy.replay.live_order import PartitionTransaction
from kproxy.replay.loaded import Committed, CommittingGroups, Loaded, Other, RefusedBatch
from kproxy.replay.log import PartitionLog
from kproxy.replay.store import Store
from kproxy.replay.topics import ClusterState, Partition, Topic

INDEX_VERSION = 14
"""Version of the format; the key has that of kproxy, too, which may load a recording in another
way."""
KEPT_BYTES_MAX = 1 << 30
"""Limit of all indexes together; the newest is kept, however large. The index of a recording of a
gigabyte has some tens of megabytes."""
REMEMBERED_MAX = 64
"""Indexes of small recordings in memory."""
_MAGIC = b"KPROXYIX"
_END_BYTES = 4096
_CRC_BYTES = 4
_READ_BYTES = 1 << 20
_UNFINISHED = ".index-"
_UNFINISHED_SECONDS = 3600
"""Older unfinished files belong to processes that have died."""


@attrs.define(eq=False)
class Indexed:
    """The contents of an index."""

    loaded: Loaded
    locations: list[Locations]
    times: dict[int, array]
    """Recorded response times for `pace`, by API key."""
    faults: list[dict[str, Any]]
    """Fault rules of `recorded_faults`, as dicts."""
    not_repeated: list[str]
    """Recorded faults that no rule repeats."""


# ---- keys and paths


def cache_folder() -> Path | None:
    """Return the folder for indexes in the user's cache; None for a user without a home."""
    return files.cache_folder("replay")


def key_of(paths: Sequence[Path], way: Sequence[Any]) -> dict[str, Any]:
    """Return the key of an index of these files, loaded with these options.

    Raises: OSError.
    """
    files = []
    for path in paths:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            start = file.read(_END_BYTES)
            file.seek(max(0, about.st_size - _END_BYTES))
            ends = crc32(file.read(_END_BYTES), crc32(start))
        files.append([str(path.resolve()), about.st_size, about.st_mtime_ns, ends])
    versions = [__version__, INDEX_VERSION, FORMAT_VERSION, sys.byteorder, _fields()]
    return {"files": files, "way": list(way), "versions": versions}


def path_of(folder: Path, key: dict[str, Any]) -> Path:
    """Return the path of the index of a key; an outdated index has the same path."""
    names = [each[0] for each in key["files"]]
    text = json.dumps([names, key["way"]])
    return folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.index"


# ---- reading and writing


def read(path: Path, key: dict[str, Any]) -> Indexed | None:
    """Read an index; return None if there is none with this key."""
    head = _head(key)
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its other end.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as file:
            if not _is_trusted(os.fstat(number)) or file.read(len(head)) != head:
                return None
            if not _is_whole(file):
                return None
            file.seek(len(head))
            found = _Unpickler(file).load()
    except Exception:  # there is none, or whatever a damaged one makes of itself
        return None
    with contextlib.suppress(OSError):
        os.utime(path)  # the time of its last use
    return found if isinstance(found, Indexed) else None


def _head(key: dict[str, Any]) -> bytes:
    """Return the beginning of the index of a key."""
    text = json.dumps(key, separators=(",", ":")).encode()
    return b"".join((_MAGIC, len(text).to_bytes(4, "little"), text))


def _is_trusted(about: os.stat_result) -> bool:
    """Return whether only the user can write a file: another could change what is replayed."""
    owned = about.st_uid == os.geteuid() and not about.st_mode & 0o022
    return owned and stat.S_ISREG(about.st_mode)


def _is_whole(file: BinaryIO) -> bool:
    """Return whether a file ends with the CRC of all before."""
    left, found = file.seek(-_CRC_BYTES, os.SEEK_END), 0
    crc = file.read()
    file.seek(0)
    while data := file.read(min(left, _READ_BYTES)):
        left, found = left - len(data), crc32(data, found)
    return found.to_bytes(_CRC_BYTES, "little") == crc


@functools.lru_cache(maxsize=REMEMBERED_MAX)
def _remembered(head: bytes) -> list[bytes]:
    return []


def remember(key: dict[str, Any], indexed: Indexed) -> None:
    """Keep the index of a small recording in memory, for the next test that shares it."""
    _remembered(_head(key))[:] = [pickle.dumps(indexed)]


def recall(key: dict[str, Any]) -> Indexed | None:
    """Return an index that this process remembers: a new one each time, for a replay changes it."""
    return next(map(pickle.loads, _remembered(_head(key))), None)


def write(path: Path, key: dict[str, Any], indexed: Indexed) -> None:
    """Write an index.

    Raises: OSError.
    """
    make_folder(path.parent)
    _remove_unfinished(path.parent)
    with replacing(path, _UNFINISHED) as file:
        counted = _WithChecksum(file)
        counted.write(_head(key))
        pickle.dump(indexed, counted)
        file.write(counted.crc.to_bytes(_CRC_BYTES, "little"))
    _remove_unused(path)


@attrs.define
class _WithChecksum:
    """Writes a file, and counts the CRC of what it writes."""

    file: BinaryIO
    crc: int = 0

    def write(self, data: Any) -> None:
        """Write bytes of any kind."""
        self.crc = crc32(data, self.crc)
        self.file.write(data)


def _remove_unused(newest: Path) -> None:
    """Remove the indexes that were used longest ago, if all together exceed the limit."""
    found: list[tuple[float, int, Path]] = []
    for each in newest.parent.glob(f"*{newest.suffix}"):
        with contextlib.suppress(OSError):  # another process may have removed it
            about = each.stat()
            found.append((about.st_mtime, about.st_size, each))
    left = KEPT_BYTES_MAX - sum(size for _, size, path in found if path == newest)
    for _, size, path in sorted(found, reverse=True):
        if path == newest:
            continue
        left -= size
        if left < 0:
            with contextlib.suppress(OSError):
                path.unlink()


def _remove_unfinished(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed."""
    for each in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - each.stat().st_mtime > _UNFINISHED_SECONDS:
                each.unlink()


_CLASSES = (
    Indexed,
    Loaded,
    ClusterState,
    Store,
    Topic,
    Partition,
    PartitionLog,
    PartitionBatches,
    PartitionTransaction,
    Committed,
    CommittingGroups,
    Other,
    RefusedBatch,
    Locations,
    uuid.UUID,
    array,
)
_NAMES = {(each.__module__, each.__name__) for each in _CLASSES} | {
    ("array", "_array_reconstructor")
}


@functools.cache
def _fields() -> int:
    """Return a checksum of the names of all that is pickled: other code has another index."""
    named = [each for each in _CLASSES if attrs.has(each)]
    return crc32(repr([sorted(attrs.fields_dict(each)) for each in named]).encode())


class _Unpickler(pickle.Unpickler):
    """Makes what an index holds, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _NAMES:
            raise pickle.UnpicklingError(f"an index has no {module}.{name}")
        return super().find_class(module, name)
