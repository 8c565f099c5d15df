"""What a history takes of a recording, in order: exchanges, ends of connections, and gaps.

Invariant: whoever follows something over time (a transaction, a member, a silence) takes the gaps,
and leaves there what is open: its end is not in the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entries import EVENTS, Note
from kproxy.exchange.exchange import Exchange


@attrs.frozen
class Gap:
    """A place where a part of the recording is not there."""

    time_ns: int


Item = Exchange | ConnectionEnd | Gap
GAPS = ("missing", "damaged", "lost")
"""Notes that report one. A file that is torn ends there."""


@attrs.define(eq=False)
class Gaps:
    """Finds the gaps of a recording: its notes tell them before the exchanges around them come."""

    _ahead: list[Gap] = attrs.field(factory=list[Gap], init=False)

    def note(self, note: Note) -> None:
        """Take the next note."""
        if note.channel == EVENTS and note.body.get("event") in GAPS:
            self._ahead.append(Gap(note.time_ns))

    def before(self, item: Exchange | ConnectionEnd) -> Iterator[Gap]:
        """Yield the gaps that come before the next exchange or end of a connection."""
        if not self._ahead:
            return
        time_ns = item.completed_ns if isinstance(item, Exchange) else item.time_ns
        while self._ahead and self._ahead[0].time_ns <= time_ns:
            yield self._ahead.pop(0)


def with_gaps(
    read: Callable[[Callable[[Note], None]], Iterable[Exchange | ConnectionEnd]],
    on_note: Callable[[Note], None] = lambda note: None,
) -> Iterator[Item]:
    """Yield what a recording has, with its gaps. `read` yields it without them, and tells each note
    to the function that it is given; `on_note` gets these notes."""
    gaps = Gaps()

    def noted(note: Note) -> None:
        gaps.note(note)
        on_note(note)

    for item in read(noted):
        yield from gaps.before(item)
        yield item
