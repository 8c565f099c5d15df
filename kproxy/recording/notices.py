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

    losses: dict[str, Counter[str]] = attrs.field(factory=dict, init=False)
    """Reason → how many "frames" and "bytes" are lost."""
    _said: dict[str, Note | None] = attrs.field(factory=dict, init=False)
    """Texts; and the reasons of losses, each with its first note."""

    def note(self, note: Note) -> None:
        """Take the next note."""
        text = notice(note)
        if text is not None and note.body.get("event") == "lost":
            reason = str(note.body.get("reason"))
            self._said.setdefault(reason, note)
            sums = self.losses.setdefault(reason, Counter())
            sums.update({key: note.body.get(key) or 0 for key in _LOST})
        elif text is not None:
            self.say(text)

    def say(self, text: str) -> None:
        """Take a text beside the notes, once."""
        self._said.setdefault(text, None)

    @property
    def texts(self) -> list[str]:
        """The notices, as lines."""
        return [text if note is None else self._loss(text, note)
                for text, note in self._said.items()]  # fmt: skip

    def _loss(self, reason: str, first: Note) -> str:
        return notice(attrs.evolve(first, body={**first.body, **self.losses[reason]})) or ""


def _time_of_day(time_ns: int) -> str:
    """Return the time of day as lines show it."""
    return f"{moment(time_ns):%H:%M:%S}.{time_ns // 1_000_000 % 1000:03}"


class _NoteBody(dict[str, Any]):
    """The body of a note; a key that a foreign file leaves out is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
