"""Entries, each when it says all that will be known: a response when it has left.

::

    Frame, FrameRun, Note ─ take ─▶ Leaving ─▶ the same entries
                                      └ held, by connection: from a response on that has not left

An exchange of a recording is complete when its last frame has left (`exchange.follower`). Whoever
shows exchanges while they pass waits for that, too, so that both have the same times.

Invariants: the frames and runs of a connection keep their order; a note does not wait, and passes
those that are held. What never leaves, and all that is held when its connection has ended, is not
waited for. Entries that are held have bytes that the proxy holds as well, so memory is bounded by
its budget.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from kproxy.exchange.entries import (
    CONNECTIONS,
    MORE,
    NO_RESPONSE,
    UNANSWERED,
    Entry,
    FrameRun,
    Note,
    Side,
)


@attrs.define(eq=False)
class Leaving:
    """Holds entries back until they have left."""

    _held: dict[int, list[Entry]] = attrs.field(factory=dict, init=False)
    """Entries by connection; the first of each waits."""

    def __bool__(self) -> bool:
        return bool(self._held)

    def take(self, entries: Iterable[Entry] = ()) -> list[Entry]:
        """Take entries; return those, of earlier ones too, that need not wait any longer."""
        ready: list[Entry] = []
        for connection, held in list(self._held.items()):
            del self._held[connection]
            for entry in held:
                self._add(entry, connection, ready)
        for entry in entries:
            self._add(entry, _connection(entry), ready)
        return ready

    def _add(self, entry: Entry, connection: int | None, ready: list[Entry]) -> None:
        if isinstance(entry, Note):
            if connection is not None and entry.body.get("event") == "closed":
                ready += self._held.pop(connection, ())
            ready.append(entry)
        elif connection in self._held:
            self._held[connection].append(entry)
        elif _waits(entry):
            self._held[entry.connection] = [entry]
        else:
            ready.append(entry)


def _connection(entry: Entry) -> int | None:
    if not isinstance(entry, Note):
        return entry.connection
    found = entry.body.get("connection") if entry.channel == CONNECTIONS else None
    return found if isinstance(found, int) else None


def _waits(entry: Entry) -> bool:
    """Return whether an entry completes exchanges as soon as it has left."""
    if isinstance(entry, Note):
        return False
    if isinstance(entry, FrameRun):
        last = entry.side is Side.BROKER or entry.requests.flags & NO_RESPONSE
        return bool(last) and not entry.times.sent_ns
    if entry.sent_ns or entry.withheld or entry.flags & (MORE | UNANSWERED):
        return False
    return entry.side is Side.BROKER or bool(entry.flags & NO_RESPONSE)
