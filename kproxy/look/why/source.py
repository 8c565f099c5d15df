"""A recording as a story reads it: as often as it needs, each time what it needs.

StorySource ─ read(filter) ─▶ Exchange · ConnectionEnd · Gap, in order of completion
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import Filter
from kproxy.history.events import ExchangeRows
from kproxy.history.history import History
from kproxy.history.items import Item, with_gaps
from kproxy.look.lines.stream import Stream
from kproxy.recording.notices import notice


class StoryWatcher(Protocol):
    """Follows a recording beside a story, to draw a picture of its subject."""

    def note(self, note: Note) -> None:
        """Take a note."""
        ...

    def add(self, history: History, item: Item, taken: ExchangeRows | None) -> None:
        """Take the next item, and what the story's history has taken of it."""
        ...


@attrs.define(eq=False)
class StorySource:
    """The files of one recording."""

    files: Sequence[Path]
    on_progress: Callable[[int], None]
    """Called with the bytes that were read so far, each time the recording is read."""
    watcher: StoryWatcher | None = None
    state: list[Note] = attrs.Factory(list)
    """Notes on damage and loss in the recording, from its latest reading."""

    def read(
        self, wanted: Filter | None, on_note: Callable[[Note], None] = lambda note: None
    ) -> Iterator[Item]:
        """Yield the exchanges that match a filter (None: all), all ends of connections, and gaps.

        Raises: RecordingError.
        """
        stream = Stream(self.files, wanted, None, True, self.on_progress)
        state: list[Note] = []

        def shown(noted: Callable[[Note], None]) -> Iterator[Exchange | ConnectionEnd]:
            stream.on_note = noted
            return stream.shown()

        def told(note: Note) -> None:
            on_note(note)
            if notice(note) is not None:
                state.append(note)
            if self.watcher is not None:
                self.watcher.note(note)

        yield from with_gaps(shown, told)
        self.state = state

    def watch(self, history: History, item: Item, taken: ExchangeRows | None) -> None:
        """Have the picture follow what the story's history has taken."""
        if self.watcher is not None:
            self.watcher.add(history, item, taken)

    def exchanges(self, wanted: Filter) -> Iterator[Exchange]:
        """Yield the exchanges that match a filter.

        Raises: RecordingError.
        """
        return (each for each in self.read(wanted) if isinstance(each, Exchange))
