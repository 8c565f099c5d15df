"""Open recordings to be replayed: read them once, or know from an index what there is in them.

::

    files ─┬─ index that fits ─────────────────────────────┐
           └─ read, exchange by exchange ─▶ index, if large ─┴─▶ Recorded ─▶ Broker

Small recordings are read each time: that takes no longer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.entries import Note
from kproxy.recording import RecordingError
from kproxy.recording.opened import OpenRecordings
from kproxy.replay import index_file
from kproxy.replay.index_file import Indexed
from kproxy.replay.load import Loader
from kproxy.replay.loaded import Loaded
from kproxy.replay.pace import Pace
from kproxy.replay.recorded_faults import RecordedFaults
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode

INDEXED_BYTES_MIN = 32 << 20
"""Recordings of less are read anew each time."""
_TOLD_EVERY_BYTES = 4 << 20

Progress = Callable[[int, int], None]
"""Told how many bytes were read, and of how many."""


@attrs.define(eq=False)
class Recorded:
    """What a replaying broker is made of."""

    loaded: Loaded
    pace: Pace | None
    faults: list[dict[str, Any]]
    """The words of rules that make go wrong what went wrong."""


@attrs.frozen
class Wanted:
    """What of a recording is wanted."""

    mode: Mode = Mode.STATE
    timing: float = 0.0
    """By what recorded times are multiplied; 0 for none."""
    faults: bool = False
    """Whether what went wrong is."""


def open_recorded(
    files: Iterable[Path | str],
    wanted: Wanted,
    progress: Progress = lambda done, total: None,
    log: Callable[[str], None] = lambda text: None,
    folder: Path | None = None,
    told: Callable[[Note], None] = lambda note: None,
) -> Recorded:
    """Open recordings; `folder` is where indexes are kept, by default in the user's cache. `told`
    is given their notes, where they are read: what has an index is whole.

    Raises: RecordingError.
    """
    opened = OpenRecordings.of(list(files))
    key = _key(opened, wanted)
    folder = folder or index_file.cache_folder()
    if key is None or folder is None:
        return _recorded(_read(opened, wanted, progress, told), opened, wanted)
    path = index_file.path_of(folder, key)
    indexed = index_file.read(path, key)
    if indexed is not None:
        with contextlib.suppress(RecordingError):  # to read it says what is wrong with it
            return _recorded(indexed, OpenRecordings.again(opened.paths, indexed.locations), wanted)
    indexed = _read(opened, wanted, progress, told)
    if opened.whole:
        try:
            index_file.write(path, key, indexed)
        except OSError as error:
            log(f"the next start reads all of it again: {path.parent}: {error.strerror}")
    return _recorded(indexed, opened, wanted)


def _key(opened: OpenRecordings, wanted: Wanted) -> dict[str, Any] | None:
    """What an index must say of itself; None where there is to be none."""
    if opened.bytes < INDEXED_BYTES_MIN:
        return None
    try:
        way = [wanted.mode.value, bool(wanted.timing), wanted.faults]
        return index_file.key_of(opened.paths, way)
    except OSError:  # to read it says what is wrong with it
        return None


def _read(
    opened: OpenRecordings, wanted: Wanted, progress: Progress, told: Callable[[Note], None]
) -> Indexed:
    served = modelled(wanted.mode)
    loader = Loader(served, opened.place)
    loader.loaded.cluster.store.read_frame = opened.frame
    pace = Pace() if wanted.timing else None
    faults = RecordedFaults(served) if wanted.faults else None

    def note(one: Note) -> None:
        told(one)
        if faults is not None:
            faults.note(one)

    total, next_bytes = opened.bytes, 0
    for exchange in opened.exchanges(note):
        loader.add(exchange)
        if pace is not None:
            pace.add(exchange)
        if faults is not None:
            faults.add(exchange)
        if (done := opened.bytes_passed) >= next_bytes:
            progress(done, total)
            next_bytes = done + _TOLD_EVERY_BYTES
    loaded = loader.finish()
    progress(total, total)
    names, topics = loaded.cluster.names, loaded.cluster.topics
    rules = [] if faults is None else list(faults.rules(names, topics))
    return Indexed(loaded, opened.locations, {} if pace is None else pace.times, rules)


def _recorded(indexed: Indexed, opened: OpenRecordings, wanted: Wanted) -> Recorded:
    indexed.loaded.cluster.store.read_frame = partial(OpenRecordings.frame, opened)
    pace = Pace(wanted.timing, indexed.times) if wanted.timing else None
    return Recorded(indexed.loaded, pace, indexed.faults)
