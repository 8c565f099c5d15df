"""Two sides of recordings, read and compared.

::

    paths of A ─▶ recordings ─┐
                              ├─▶ by name ─▶ pairs ─ compare ─▶ Difference …
    paths of B ─▶ recordings ─┘

One recording is compared with one, whatever their names are; of several, those with the same name.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.history.items import Item, with_gaps
from kproxy.look.diff.compare import ASPECTS, LATENCY_FACTOR, compare
from kproxy.look.lines.meaning import learned_in
from kproxy.look.lines.stream import Stream
from kproxy.recording import RecordingError
from kproxy.recording.exchanges import pauses
from kproxy.recording.notices import Notices
from kproxy.recording.paths import Parts, by_recording, short_names
from kproxy.replay.compared import Difference
from kproxy.replay.ignore_words import with_words
from kproxy.replay.ignored import Ignored
from kproxy.replay.learned import own_words


@attrs.frozen
class Comparing:
    """How recordings are compared."""

    ignored: Ignored = attrs.Factory(Ignored)
    """What is ignored besides what the recordings' own settings say."""
    aspects: Collection[str] = ASPECTS
    latency_factor: float = LATENCY_FACTOR


def diff(
    before: Sequence[Path],
    after: Sequence[Path],
    how: Comparing,
    notices: Notices,
    on_progress: Callable[[int], None] = lambda done_bytes: None,
) -> list[Difference]:
    """Return the differences between recordings. `on_progress` is called with the bytes read
    so far.

    Raises:
        RecordingError: a path is not there, no recording, or damaged.
    """
    done: Counter[tuple[int, Path]] = Counter()

    def of_file(side: int, path: Path, done_bytes: int) -> None:
        done[side, path] = done_bytes
        on_progress(done.total())

    one, other = by_recording(before), by_recording(after)
    for note in (*pauses(one), *pauses(other)):
        notices.note(note)
    if len(one) == len(other) == 1:
        return _pair(one[0], other[0], how, notices, of_file)
    olds, news = (dict(zip(short_names(each), each, strict=True)) for each in (one, other))
    found: list[Difference] = []
    for name in dict.fromkeys([*olds, *news]):
        if name in olds and name in news:
            pair = _pair(olds[name], news[name], how, notices, of_file)
            found += [attrs.evolve(each, subject=f"{name}: {each.subject}") for each in pair]
        else:
            there = ("is there", None) if name in olds else (None, "is there")
            found.append(Difference("recordings", f"recording {name}", *there))
    return found


def _pair(
    before: Parts,
    after: Parts,
    how: Comparing,
    notices: Notices,
    on_progress: Callable[[int, Path, int], None],
) -> list[Difference]:
    words: list[str] = []
    for path in (*before.paths, *after.paths):
        with contextlib.suppress(RecordingError, OSError):  # reading it says what is wrong
            words += learned_in(path).words

    def on_note(note: Note) -> None:
        notices.note(note)
        words.extend(own_words(note))

    sides: list[Iterator[Item]] = []
    for side, each in enumerate((before, after)):
        stream = Stream(each.paths, on_progress=partial(on_progress, side, each.paths[0]))
        items = with_gaps(partial(_read, stream), on_note)
        first = next(items, None)  # the notes before it say what to ignore
        sides.append(iter(()) if first is None else itertools.chain([first], items))
    ignored = with_words(how.ignored, words, notices.texts.append)
    return compare(sides[0], sides[1], ignored, how.aspects, how.latency_factor)


def _read(stream: Stream, told: Callable[[Note], None]) -> Iterator[Exchange | ConnectionEnd]:
    stream.on_note = told
    return stream.shown()
