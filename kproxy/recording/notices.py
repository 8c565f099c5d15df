"""The notes of a recording on its own state (torn, damaged, lost), as lines for who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from kproxy.exchange.entries import EVENTS, Note
from kproxy.recording.info import Info
from kproxy.units import moment

_NOTICES = {
    "torn": "{path}: read up to byte {offset}: {what}",
    "damaged": "{path}: left out what is damaged at byte {offset}: {what}",
    "missing": "{path} is part {part} of its recording: {what}",
    "copied": "{path} is a copy of {original}, which is read alone",
    "gone": "{path} was removed before it was read",
    "all_removed": "{what}",
    "pause": "{what}",
    "unread": (
        "{path}: left out {what}; choose others with a filter, or see one by itself with"
        " kproxy show --frame {number}"
    ),
    "lost": "{frames} frames ({bytes} bytes) are not in the recording: {reason}",
    "stood_still": (
        "kproxy itself stood still for {seconds} s until {time}: what was on its way then looks"
        " slower than the broker was"
    ),
    "clock_step": (
        "the system's clock was set by {seconds} s at {time}, or the machine slept until then:"
        " later times follow it"
    ),
}
"""The sentence on the state of a recording, by event."""
_LOST = "frames", "bytes"
CAPTURED = {"source": "capture"}
"""What the head of a recording says that was made of captured packets."""
CAPTURE_POINT = (
    "the broker's time includes the network between it and where the packets were captured"
)


def notice(note: Note) -> str | None:
    """Return the sentence on the state of a recording that a note stands for, if it does."""
    if note.channel != EVENTS:
        return None
    text = _NOTICES.get(str(note.body.get("event")))
    if text == _NOTICES["lost"] and not note.body.get("frames"):
        text = text.replace("{frames} frames ({bytes} bytes)", "{bytes} bytes")
    values = {"time": _time_of_day(note.time_ns), **note.body}
    return None if text is None else text.format_map(_NoteBody(values))


def on_times(heads: Iterable[Info]) -> list[str]:
    """Return the sentence on the times of recordings, if some were made of captures."""
    return [CAPTURE_POINT] if any(CAPTURED.items() <= h.metadata.items() for h in heads) else []


@attrs.define(eq=False)
class Notices:
    """The notices of some recordings, in the order of their notes; losses are summed by reason."""

    texts: list[str] = attrs.field(factory=list[str])
    losses: dict[str, tuple[int, Counter[str]]] = attrs.field(factory=dict, init=False)
    """Reason → which of the texts it is, and how many "frames" and "bytes" are lost."""

    def note(self, note: Note) -> None:
        """Take the next note."""
        found = notice(note)
        if found is not None and note.body.get("event") == "lost":
            reason = str(note.body.get("reason"))
            at, sums = self.losses.setdefault(reason, (len(self.texts), Counter()))
            sums.update({key: note.body.get(key) or 0 for key in _LOST})
            whole = attrs.evolve(note, body={**note.body, **sums})
            self.texts[at : at + 1] = [notice(whole) or ""]
        elif found is not None:
            self.texts.append(found)


def _time_of_day(time_ns: int) -> str:
    """Return the time of day as lines show it."""
    return f"{moment(time_ns):%H:%M:%S}.{time_ns // 1_000_000 % 1000:03}"


class _NoteBody(dict[str, Any]):
    """The body of a note; a key that a foreign file leaves out is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
