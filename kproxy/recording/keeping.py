"""Decides which files of recordings are removed, so that a folder stays within limits.

    files, oldest first ─┐
    limits, time, room ──┴─▶ what_goes ─▶ files to remove, in this order

Parts of recordings go first, the oldest first; what is being written never goes. Excerpts are what
was kept of parts that are gone. They may fill half of the size that is allowed: beyond that the
oldest of them go before any part, and the others only when no part is left that could.

Nothing here reads a clock, or the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

KEPT_FROM = "kept_from"
"""The key in the head of an excerpt that says of which file it is."""
_SLACK_BYTES_MIN = 64 << 20
"""A process that makes excerpts needs a second to start."""


@attrs.frozen
class KeepLimits:
    """The limits of a folder of recordings; None: there is no such limit."""

    size_bytes: int | None = None
    """The size of all files, with those that are being written, and excerpts."""
    age_ns: int | None = None
    """The time since the end of a part."""
    files: int | None = None
    """The number of parts, with those that are being written."""
    free_bytes: int | None = None
    """The least room on the disk."""

    def with_slack(self) -> KeepLimits:
        """Return the limits beyond which nothing more is waited for: a tenth more on the disk, 64
        MiB at least, or half the room that should be free."""
        size_bytes = self.size_bytes
        return KeepLimits(
            size_bytes=size_bytes and size_bytes + max(size_bytes // 10, _SLACK_BYTES_MIN),
            free_bytes=None if self.free_bytes is None else self.free_bytes // 2,
        )


@attrs.frozen
class KeptFile:
    """A complete file that may go."""

    path: Path
    size_bytes: int
    ended_ns: int
    recording: str = ""
    """The id of its recording."""
    part: int = 0
    is_excerpt: bool = False


def what_goes(
    files: Sequence[KeptFile],
    limits: KeepLimits,
    now_ns: int,
    free_bytes: int,
    open_bytes: int = 0,
) -> list[KeptFile]:
    """Return the files to remove, in this order. `files` are the complete ones, the oldest first;
    `open_bytes` is the size of the one that is being written, and `free_bytes` the room on the
    disk."""
    parts = [file for file in files if not file.is_excerpt]
    excerpts = [file for file in files if file.is_excerpt]
    going: list[KeptFile] = []
    if limits.age_ns is not None:
        going += [file for file in parts if now_ns - file.ended_ns >= limits.age_ns]
    if limits.files is not None:
        left = _without(parts, going)
        going += left[: max(0, len(left) + 1 - limits.files)]
    if limits.size_bytes is not None:
        going += _enough(excerpts, _size(excerpts) - limits.size_bytes // 2)
    left = _without([*parts, *excerpts], going)
    excess_bytes = 0
    if limits.size_bytes is not None:
        excess_bytes = _size(left) + open_bytes - limits.size_bytes
    if limits.free_bytes is not None:
        excess_bytes = max(excess_bytes, limits.free_bytes - free_bytes - _size(going))
    going += _enough(left, excess_bytes)
    return going


def _without(files: Sequence[KeptFile], going: Sequence[KeptFile]) -> list[KeptFile]:
    gone = {file.path for file in going}
    return [file for file in files if file.path not in gone]


def _enough(files: Sequence[KeptFile], size_bytes: int) -> Iterator[KeptFile]:
    """Yield the first files, as many as have this size together."""
    for file in files:
        if size_bytes <= 0:
            return
        yield file
        size_bytes -= file.size_bytes


def _size(files: Sequence[KeptFile]) -> int:
    return sum(file.size_bytes for file in files)
