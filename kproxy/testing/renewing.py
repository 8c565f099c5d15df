"""Recordings that are made anew: by what, whether they are old, and the question whether the new
one replaces the old one.

::

    NAME.mcap ─ note "made_by" ─▶ its test or command runs ─▶ NAME.renewed.mcap
        └────────────── differing ──────────────┴─▶ replace: yes ─▶ NAME.mcap
                                                             no  ─▶ removed

Invariant: a recording is replaced by a whole one, at once, and only if somebody has said so.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from kproxy.exchange import secrets
from kproxy.look.lines.meaning import learned_in
from kproxy.recording import RecordingError
from kproxy.recording.file import RecordingFile
from kproxy.recording.paths import info
from kproxy.replay.ignored import Ignored
from kproxy.testing.files import renewed_file
from kproxy.testing.learning import note_learned

LEFT_OUT = "…"
"""In place of a credential in a command line."""
_LINES_SHOWN = 60
_DAY_SECONDS = 86400


def made_by(path: Path, folder: Path, **what: str | Sequence[str]) -> dict[str, Any]:
    """Return what makes a recording anew: `test`, the node id of pytest, or `options` of `kproxy
    replay` and `command`; run in a folder. What looks like a credential is left out."""
    for name, words in what.items():
        if not isinstance(words, str):
            what[name] = [_plain(*each) for each in pairwise(["", *words])]
    return {"from": os.path.relpath(folder, path.resolve().parent), **what}


def _plain(before: str, word: str) -> str:
    """Return a word of a command line, which may be the value of the word before it."""
    name, data = before.lstrip("-").encode(), word.encode(errors="surrogateescape")
    found = secrets.find(data) or (secrets.find_named(name, data) if before[:1] == "-" else [])
    for each in reversed(found):
        data = data[: each.start] + LEFT_OUT.encode() + data[each.end :]
    return data.decode(errors="replace")


def maker(path: Path) -> dict[str, Any] | None:
    """Return what makes a recording anew, if it says so.

    Raises: RecordingError; OSError.
    """
    with RecordingFile(path) as file:
        return next((note.body for note in file.events("made_by")), None)


def days_old(path: Path, stale_seconds: float | None) -> int | None:
    """Return the age of a recording in days, if it is more than so many seconds.

    Raises: RecordingError; OSError.
    """
    if stale_seconds is None:
        return None
    age = time.time() - info(path).start_ns / 1e9
    return int(age / _DAY_SECONDS) if age > stale_seconds else None


def stale_line(ages: dict[str, int], again: str) -> str:
    """Return a line on recordings that are old, by name; `again` is what records them anew."""
    name, days = max(ages.items(), key=lambda each: each[1])
    others = f", and {len(ages) - 1} more are old" if len(ages) > 1 else ""
    return f"{name} was recorded {days} days ago{others}; record again: {again}"


def keep_learned(old: Path, new: Path) -> None:
    """Note in a recording what an older one says that varies.

    Raises: RecordingError; OSError.
    """
    learned = learned_in(old)
    if learned.parts:
        note_learned(new, learned)


def differing(old: Path, new: Path, ignored: Ignored | None = None) -> list[str]:
    """Return lines on what a recording means otherwise than an older one.

    Raises: RecordingError.
    """
    from kproxy.look.diff.compare import MEANING
    from kproxy.look.diff.lines import lines
    from kproxy.look.diff.reading import Comparing, diff
    from kproxy.recording.notices import Notices

    found = [*lines(diff([old], [new], Comparing(ignored or Ignored(), MEANING), Notices()))]
    left_out = len(found) - _LINES_SHOWN
    return found[:_LINES_SHOWN] + ([f"… and {left_out} more lines"] if left_out > 0 else [])


class Renewed(NamedTuple):
    """A recording, beside which lies what was recorded again."""

    path: Path
    shown: str
    """The path as users name it."""


def replace(
    renewed: Sequence[Renewed], write: Callable[[str], object], *, is_sure: bool
) -> list[str]:
    """Show what each new recording means otherwise, and put it in the place of the old one: if it
    `is_sure`, else if the answer on the terminal is yes. Return the names of those that stay."""
    stay: list[str] = []
    try:
        for each in renewed:
            answer = _settle(each, write, is_sure=is_sure)
            is_sure = is_sure or answer == "a"
            stay += [] if answer in ("y", "a") else [each.shown]
    finally:
        for each in renewed:  # that are not decided about, too
            renewed_file(each.path).unlink(missing_ok=True)
    return stay


def _settle(renewed: Renewed, write: Callable[[str], object], *, is_sure: bool) -> str:
    """Replace a recording, or not; return the answer."""
    (path, shown), new = renewed, renewed_file(renewed.path)
    try:
        found = differing(path, new)
        write(f"{shown}, recorded again, {'differs (+):' if found else 'means the same'}")
        for line in found:
            write(f"  {line}")
        answer = "a" if is_sure else _answer(shown)
        if answer in ("y", "a"):
            new.replace(path.resolve())
    except (RecordingError, OSError) as error:
        write(f"{shown} stays as it was: {error}")
        return "n"
    write(f"{shown} {'stays as it was' if answer == 'n' else 'is replaced'}")
    return answer


def _answer(shown: str) -> str:
    """Ask on the terminal; return "y", "n" or "a" (all). Without one it is "n"."""
    if not (sys.stdin and sys.stdin.isatty()):
        return "n"
    try:
        typed = input(f"replace {shown}? yes, no, all: ").strip().lower()
    except EOFError:
        return "n"
    return typed[:1] if re.fullmatch(r"y(es)?|a(ll)?", typed) else "n"
