"""What the recording of the soak holds: its parts are read in full, counted and deleted.

parts ─▶ counts ─▶ Counts, summed up over all parts so far
"""

from __future__ import annotations

from pathlib import Path

import attrs

from kproxy import recording
from kproxy.exchange.entries import EVENTS, MORE, Frame, Note, Side


@attrs.define
class Counts:
    """What a part of the recording holds, or several do."""

    requests: int = 0
    highest: int = 0
    """The highest number of an exchange; they count from 1 without gaps."""
    lost: int = 0
    opened: int = 0
    closed: int = 0
    file_bytes: int = 0

    def __add__(self, other: Counts) -> Counts:
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in attrs.fields(Counts)
        }
        return Counts(**sums | {"highest": max(self.highest, other.highest)})


def counts(path: Path) -> tuple[Counts, bool]:
    """Read a part; what it holds, and whether it is complete.

    Raises: RecordingError, when it is damaged.
    """
    found, complete = Counts(file_bytes=path.stat().st_size), True
    for entry in recording.entries(path):
        if isinstance(entry, Frame):
            if entry.side is Side.CLIENT and not entry.flags & MORE:
                found.requests += 1
                found.highest = max(found.highest, entry.number)
        elif entry.channel == EVENTS:
            complete = complete and entry.body["event"] != "torn"
            found.lost += _lost(entry)
        else:
            found.opened += entry.body["event"] == "opened"
            found.closed += entry.body["event"] == "closed"
    return found, complete


def _lost(note: Note) -> int:
    return note.body["frames"] if note.body["event"] == "lost" else 0


@attrs.define
class Parts:
    """The parts of the recording so far; those that are complete are deleted when counted."""

    folder: Path
    before: Counts = attrs.field(factory=Counts)
    """What the deleted ones held."""

    def count(self) -> Counts:
        """What all parts hold up to now."""
        total = Counts()
        for path in sorted(self.folder.glob("*.mcap")):
            found, complete = counts(path)
            if complete:
                self.before += found
                path.unlink()
            else:
                total += found
        return self.before + total
