"""The notes that later files of a recording repeat: on connections, topics, schemas and faults.

    notes ─▶ ConnectionLog ─▶ the notes with which a file begins, or that it must repeat

A file begins with a note per connection that is open, `{"event": "open", …}` with everything that
earlier notes on CONNECTIONS told of that connection, the first one per topic id, those on the
schemas of records, the last one on the fault rules, and the last one per recording of which parts
were removed.
So whoever learns something that later files need says it once, in a note.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from kproxy.exchange import notes
from kproxy.exchange.entries import EVENTS, Note
from kproxy.wire.payloads import schemas

_STANDING = {
    "topic_id": ("topic_id",),
    "fault_rules": (),
    schemas.NOTE: ("id", "guid"),
    "removed": ("recording",),
}
"""The events on EVENTS whose notes hold for later files, and the keys that say what a note is
about: a newer note about the same thing replaces an older one."""
_About = tuple[str, ...]


class ConnectionLog:
    """Remembers the open connections, and the notes to repeat because a disk refused them."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, Any]] = {}
        self._standing: dict[_About, Note] = {}
        """Notes on EVENTS that hold for later files, by what they are about."""
        self._incomplete: set[int] = set()
        """Open connections whose notes are missing in the current file, because a batch was
        refused."""
        self._without_opened: set[int] = set()
        """Open connections without even the note that they are open."""
        self._endings: list[Note] = []
        """Refused notes about the ends of other connections: no more than were open then."""
        self._missing_standing: dict[_About, Note] = {}

    def opening_notes(self, time_ns: int) -> list[Note]:
        """Return the notes with which a file starts."""
        return [*self._opened(time_ns, self._open), *_at(time_ns, self._standing.values())]

    def notes_to_repeat(self, time_ns: int) -> list[Note]:
        """Return the notes to repeat in the current file."""
        return [
            *self._endings,
            *self._opened(time_ns, self._incomplete),
            *_at(time_ns, self._missing_standing.values()),
        ]

    def clear_missing(self) -> None:
        """Note that the current file has all notes to repeat, or begins anew."""
        self._incomplete.clear()
        self._without_opened.clear()
        self._endings.clear()
        self._missing_standing.clear()

    def keep_missing(self, missing: Iterable[Note]) -> None:
        """Keep the notes that could not be written, to repeat them."""
        for note in missing:
            event, connection = note.body.get("event"), note.body.get("connection", -1)
            if note.channel == EVENTS:
                if event in _STANDING:
                    self._missing_standing[_about(note)] = note
                continue
            if event == "opened":
                self._without_opened.add(connection)
            elif event == "closed" and connection not in self._without_opened:
                self._endings.append(note)
            self._incomplete.add(connection)

    def remember(self, taken: Iterable[Note]) -> None:
        """Learn from notes, written or not: a connection is open even if its note is lost."""
        for note in taken:
            self._remember(note)
        self._incomplete &= self._open.keys()
        self._without_opened &= self._open.keys()

    def _remember(self, note: Note) -> None:
        body = note.body
        event = body.get("event")
        if note.channel == EVENTS:
            if event in _STANDING:
                self._standing[_about(note)] = note
            return
        connection = body["connection"]
        if event in ("opened", "open"):
            self._open[connection] = {"opened_ns": note.time_ns} | body
        elif event == "closed":
            self._open.pop(connection, None)
        elif connection in self._open:
            _merge(self._open[connection], body)

    def _opened(self, time_ns: int, connections: Iterable[int]) -> list[Note]:
        return [notes.still_open(time_ns, self._open[number]) for number in connections]


def _about(note: Note) -> _About:
    """Return the subject of a note of `_STANDING`."""
    event = note.body["event"]
    return event, *(str(note.body.get(key)) for key in _STANDING[event])


def _at(time_ns: int, standing: Iterable[Note]) -> list[Note]:
    return [attrs.evolve(note, time_ns=time_ns) for note in standing]


def _merge(known: dict[str, Any], body: dict[str, Any]) -> None:
    """Add the values of a note to the known ones, mappings key by key."""
    for key, value in body.items():
        if key == "event":
            continue
        if isinstance(value, dict):
            known[key] = known.get(key, {}) | value
        else:
            known[key] = value
