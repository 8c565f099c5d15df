"""The options of `kproxy run` that keep a folder of recordings within limits.

--keep 20GiB,24h,100 --keep-free 10GiB ─▶ KeepLimits
--rotate                               ─▶ files small enough to be removed one by one
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kproxy.commands.options import UsageError, count
from kproxy.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from kproxy.recording.keeping import KeepLimits

_ROTATE_BYTES, _ROTATE_SECONDS = 1 << 30, 3600.0
_KEEP_BYTES_MIN = 1 << 20
_KEEP_SECONDS_MIN = 10.0
_FILES = 10
"""A limit is kept by at least this many files, unless --rotate says otherwise."""

Rotation = tuple[int | None, float | None]
"""Bytes and seconds after which a new file begins."""


TypedLimits = tuple[str, dict[str, Any]]
"""What an option of these was typed as, and the limits that it stands for."""


def keep(text: str) -> TypedLimits:
    """Parse SIZE,TIME,N, or some of them."""
    found: dict[str, Any] = {}
    parts = text.split(",")
    for part in parts:
        for name, parse in _KEPT:
            with contextlib.suppress(ValueError):
                found[name] = parse(part)
                break
        else:
            raise ValueError(f"{part!r} is not a size, a duration or a number of files, {_AS_IN}")
    if len(found) < len(parts):
        raise ValueError(f"{text!r}: give one size, one duration and one number, {_AS_IN}")
    least = found.get("size_bytes", _KEEP_BYTES_MIN), found.get("age_ns", _KEEP_SECONDS_MIN * 1e9)
    if least[0] < _KEEP_BYTES_MIN or least[1] < _KEEP_SECONDS_MIN * 1e9:
        raise ValueError(f"{text!r} is too small; at least 1MiB and 10s")
    if found.get("files", 2) < 2:
        raise ValueError(f"{text!r}: at least 2 files, of which one is being written")
    return text, found


_AS_IN = "as in 20GiB,24h,100"
_KEPT: list[tuple[str, Callable[[str], Any]]] = [
    ("files", count),  # before the others, to which a number alone is bytes or seconds
    ("size_bytes", parse_bytes),
    ("age_ns", lambda text: int(parse_seconds(text) * 1e9)),
]


def keep_free(text: str) -> TypedLimits:
    """Parse the size that is to be left free on the disk."""
    return text, {"free_bytes": parse_bytes(text)}


def keep_limits(options: argparse.Namespace) -> tuple[KeepLimits | None, str]:
    """Return the limits of the folder, None if there are none, and the options that set them.

    Raises:
        UsageError: the options do not go together.
    """
    given = {"--keep": options.keep, "--keep-free": options.keep_free}
    typed = {option: each for option, each in given.items() if each is not None}
    if options.keep_matching is not None and not (
        options.keep_free or (options.keep and "size_bytes" in options.keep[1])
    ):
        what = "needs a size in --keep, or --keep-free: what it keeps would grow without end"
        raise UsageError(f"--keep-matching {what}")
    if not typed:
        return None, ""
    if options.no_record:
        raise UsageError(f"{min(typed)} removes files of recordings; leave out --no-record")
    from kproxy.recording.keeping import KeepLimits

    limits = {name: value for _, each in typed.values() for name, value in each.items()}
    return KeepLimits(**limits), " ".join(f"{name} {text}" for name, (text, _) in typed.items())


def rotation_within(given: Rotation | None, limits: KeepLimits | None) -> Rotation:
    """Return when a new file begins: what --rotate does not say follows from the limits, so that
    there are files to remove.

    Raises:
        UsageError: --rotate leaves no files to remove.
    """
    if limits is None:
        return (_ROTATE_BYTES, _ROTATE_SECONDS) if given is None else given
    if given == (None, None):
        raise UsageError("--rotate off leaves one file, and --keep none to remove; leave one out")
    rotate_bytes, rotate_seconds = given or (None, None)
    size_bytes = limits.size_bytes or _FILES * _ROTATE_BYTES
    age_seconds = _FILES * _ROTATE_SECONDS if limits.age_ns is None else limits.age_ns / 1e9
    if rotate_bytes and limits.size_bytes and rotate_bytes > size_bytes // 2:
        raise UsageError("--rotate begins files too large for --keep: half its size at most")
    if rotate_seconds and limits.age_ns and rotate_seconds > age_seconds / 2:
        raise UsageError("--rotate begins files too rarely for --keep: after half its time at most")
    if given is None or (rotate_bytes is None and limits.size_bytes):
        rotate_bytes = min(_ROTATE_BYTES, size_bytes // _FILES)
    if given is None or (rotate_seconds is None and limits.age_ns):
        rotate_seconds = min(_ROTATE_SECONDS, age_seconds / _FILES)
    return rotate_bytes, rotate_seconds
