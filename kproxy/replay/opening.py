"""Open recordings to be replayed: read them, or load an index of them.

::

    files ─┬─ index with the same key ───────────────────────┐
           └─ read, exchange by exchange ─▶ index ───────────┴─▶ Indexed ─▶ ReplayBroker

The index of a large recording is a file, and has the places of its records; that of a small one is
in memory with its records, for tests of one process that share it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.levels import Logger, silent
from kproxy.recording import RecordingError
from kproxy.recording.opened import OpenRecordings
from kproxy.replay import index_file
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.index_file import Indexed
from kproxy.replay.learned import learned_of
from kproxy.replay.load import Loader
from kproxy.replay.loaded import Loaded
from kproxy.replay.pace import Pace
from kproxy.replay.placed import PlaceOf, nowhere
from kproxy.replay.recorded_faults import RecordedFaults
from kproxy.replay.report import Report
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode, ReplaySettings
from kproxy.replay.strict import Strict
from kproxy.wire.payloads.schemas import NOTE as SCHEMA

INDEXED_BYTES_MIN = 1 << 20
"""Smaller recordings are read by each process: 16,000 small exchanges take a second."""
_PROGRESS_EVERY_BYTES = 4 << 20
_LACKING_SHOWN = 10
_NEVER_SECONDS = 1e9
"""In strict mode, an idle connection ends when the recorded one does."""

Progress = Callable[[int, int], None]
"""Called with the number of bytes read, and of all bytes."""


@attrs.frozen
class Wanted:
    """The parts of a recording to load."""

    mode: Mode = Mode.STATE
    timing: float = 0.0
    """Factor of the recorded response times; 0 for none."""
    faults: bool = False
    """True to load the recorded faults."""


def open_broker(
    files: Iterable[Path | str],
    settings: ReplaySettings,
    wanted: Wanted,
    report: Report,
    log: Logger,
    on_fault: Callable[[dict[str, Any]], object],
    on_note: Callable[[Note], None] = lambda note: None,
    progress: Progress = lambda done, total: None,
) -> ReplayBroker:
    """Open recordings as a broker. `on_fault` gets the recorded faults, as fault rules; what the
    recordings lack is logged.

    Raises: RecordingError.
    """
    if settings.mode is Mode.STRICT:
        opened = OpenRecordings.of(list(files))
        strict, loaded = Strict(_exchanges(opened, on_note, progress)), Loaded()
        loaded.cluster.racks = dict.fromkeys(strict.nodes)
        progress(opened.file_bytes, opened.file_bytes)
        settings = attrs.evolve(settings, idle_seconds=_NEVER_SECONDS)
        return ReplayBroker(loaded, settings, report, strict=strict)
    recorded = open_recorded(files, wanted, progress, log, on_note=on_note)
    if recorded.not_repeated:
        log(f"recorded faults that do not come back: {', '.join(recorded.not_repeated)}")
    for words in recorded.faults:
        on_fault(words)
    lacking = recorded.loaded.lacking
    for text in lacking[:_LACKING_SHOWN]:
        log(f"the recording lacks {text}")
    if len(lacking) > _LACKING_SHOWN:
        log(f"… and {len(lacking) - _LACKING_SHOWN} more that it lacks")
    pace = Pace(wanted.timing, recorded.times) if wanted.timing else None
    return ReplayBroker(recorded.loaded, settings, report, pace)


def open_recorded(
    files: Iterable[Path | str],
    wanted: Wanted,
    progress: Progress = lambda done, total: None,
    log: Logger = silent,
    folder: Path | None = None,
    on_note: Callable[[Note], None] = lambda note: None,
) -> Indexed:
    """Open recordings. `folder` has the indexes; by default it is in the user's cache. `on_note`
    is called with their notes, if they are read: recordings with an index are whole, but for parts
    that are not there.

    Raises: RecordingError.
    """
    opened = OpenRecordings.of(list(files))
    key = _key(opened, wanted)
    is_small = opened.file_bytes < INDEXED_BYTES_MIN
    folder = folder or (None if is_small else index_file.cache_folder())
    if key is None or (folder is None and not is_small):
        return _readable(_read(opened, wanted, progress, on_note, opened.place), opened)
    if is_small and (remembered := index_file.recall(key)):
        return remembered
    path = index_file.path_of(folder or Path(), key)
    indexed = None if is_small else index_file.read(path, key)
    if indexed is not None:
        with contextlib.suppress(RecordingError):  # reading it says what is wrong
            again = OpenRecordings.again(opened.paths, indexed.locations)
            for note in again.missing():
                on_note(note)
            return _readable(indexed, again)
    indexed = _read(opened, wanted, progress, on_note, nowhere if is_small else opened.place)
    if is_small:
        if opened.whole and not any(opened.missing()):
            index_file.remember(key, indexed)
    elif opened.whole:
        try:
            index_file.write(path, key, indexed)
        except OSError as error:
            log(f"the next start reads all of it again: {path.parent}: {error.strerror}")
    return _readable(indexed, opened)


def _key(opened: OpenRecordings, wanted: Wanted) -> dict[str, Any] | None:
    """Return the key of an index of these files; None if they get no index."""
    if not opened.file_bytes:  # a pipe, which can be read once
        return None
    try:
        way = [wanted.mode.value, bool(wanted.timing), wanted.faults]
        return index_file.key_of(opened.paths, way)
    except OSError:  # reading it says what is wrong
        return None


def _exchanges(
    opened: OpenRecordings, on_note: Callable[[Note], None], progress: Progress
) -> Iterator[Exchange]:
    """Yield the exchanges of recordings, and say how far it is."""
    total, next_bytes = opened.file_bytes, 0
    for exchange in opened.exchanges(on_note):
        yield exchange
        if (done := opened.bytes_passed) >= next_bytes:
            progress(done, total)
            next_bytes = done + _PROGRESS_EVERY_BYTES


def _read(
    opened: OpenRecordings,
    wanted: Wanted,
    progress: Progress,
    on_note: Callable[[Note], None],
    place: PlaceOf,
) -> Indexed:
    served = modelled(wanted.mode)
    loader = Loader(served, place)
    loader.loaded.cluster.store.read_frame = opened.frame
    pace = Pace() if wanted.timing else None
    faults = RecordedFaults(served) if wanted.faults else None

    def take_note(note: Note) -> None:
        on_note(note)
        if note.channel != CONNECTIONS and note.body.get("event") == SCHEMA:
            loader.loaded.note_schema(note.body)
        if (found := learned_of(note)) is not None:
            loader.loaded.learned = found.words
        if faults is not None:
            faults.note(note)

    for exchange in _exchanges(opened, take_note, progress):
        loader.add(exchange)
        if pace is not None:
            pace.add(exchange)
        if faults is not None:
            faults.add(exchange)
    loaded = loader.finish()
    progress(opened.file_bytes, opened.file_bytes)
    names, topics = loaded.cluster.names, loaded.cluster.topics
    rules = [] if faults is None else list(faults.rules(names, topics))
    left_out = {} if faults is None else faults.left_out
    not_repeated = [f"{what} ({number})" for what, number in left_out.items()]
    times = {} if pace is None else pace.times
    return Indexed(loaded, opened.locations, times, rules, not_repeated)


def _readable(indexed: Indexed, opened: OpenRecordings) -> Indexed:
    indexed.loaded.cluster.store.read_frame = partial(OpenRecordings.frame, opened)
    return indexed
