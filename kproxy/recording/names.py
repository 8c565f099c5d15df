"""The names of recordings, for people.

Each recording counts its exchanges from 1. Where several are read, an exchange is named
`NAME#NUMBER`, and NAME is the end of the path of the recording's files: as much as no other of them
has, without the suffix, and without the part's number that rotation adds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath

from kproxy.recording.info import Info


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
