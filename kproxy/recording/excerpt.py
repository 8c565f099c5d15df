"""Keeps of a file that is to be removed the exchanges that match a filter, in a file beside it.

    run-0003.mcap ─▶ cut ─▶ .run-0003-kept ─ to the disk, renamed ─▶ run-0003-kept.mcap

Invariants: the excerpt is whole or not there, and the file itself is not touched; so who is killed
at any moment has lost nothing, and may begin again: the same file gets the same excerpt.

Proxies run this as a process of its own (`python -m kproxy.recording.excerpt FILTER FILE…`), which
gives way to them: exchanges must be decoded to find those that match.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from pathlib import Path

from kproxy import __version__
from kproxy.background import stand_behind
from kproxy.exchange.filter import Filter, parse
from kproxy.recording.cut import cut
from kproxy.recording.files import RecordingError, reason
from kproxy.recording.keeping import KEPT_FROM
from kproxy.recording.paths import info


def excerpt(path: Path, wanted: Filter) -> Path | None:
    """Write the exchanges of a file that match a filter to a file beside it, and return that; None
    if none does.

    Raises:
        RecordingError: the file cannot be read.
        OSError: the excerpt cannot be written.
    """
    head = info(path)
    kept_from = f"{head.metadata.get('recording', path.stem)}/{head.part}"
    # No suffix: whoever reads the recordings of the folder must not take it for one of them.
    unfinished = path.with_name(f".{path.stem}-kept")
    unfinished.unlink(missing_ok=True)  # of one that was killed
    try:
        about = {KEPT_FROM: kept_from, "keep": head.metadata.get("keep", "")}
        if not cut(path, unfinished, wanted, __version__, metadata=about):
            return None
        _to_disk(unfinished)
        to = _free_name(path, kept_from)
        os.replace(unfinished, to)
        _to_disk(path.parent)
        return to
    finally:
        unfinished.unlink(missing_ok=True)


def _free_name(path: Path, kept_from: str) -> Path:
    """Return a name that is free, or that of an earlier excerpt of the same file."""
    for number in itertools.count(1):
        to = path.with_stem(f"{path.stem}-kept{'' if number == 1 else f'-{number}'}")
        if not to.exists():
            return to
        with contextlib.suppress(RecordingError):
            if info(to).metadata.get(KEPT_FROM) == kept_from:
                return to
    raise AssertionError


def _to_disk(path: Path) -> None:
    """Wait until a file, or a name in a folder, is on the disk.

    Raises: OSError.
    """
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def main() -> None:
    """Print a line of JSON for each file: its excerpt, if there is one, or why there is none."""
    stand_behind()
    text, *paths = sys.argv[1:]
    wanted = parse(text)
    for each in paths:
        found: dict[str, str] = {}
        try:
            made = excerpt(Path(each), wanted)
            found = {} if made is None else {"excerpt": str(made)}
        except RecordingError as error:
            found = {"error": str(error)}
        except OSError as error:
            found = {"error": reason(error)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
