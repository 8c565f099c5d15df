"""The notes of a recording on its own state (torn, damaged, lost), as lines for who reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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
_STOOD_STILL = (
    "kproxy itself stood still {times} times, for {longest} s at most: what was on its way then"
    " looks slower than the broker was"
)
_STALLS_MAX = 3
"""More stalls of kproxy have one sentence together."""
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
    """The notices of some recordings, in the order of their notes; losses are summed by reason,
    and many stalls of kproxy are one."""

    texts: list[str] = attrs.field(factory=list)
    losses: dict[str, tuple[str, Counter[str]]] = attrs.field(factory=dict, init=False)
    """Reason → its text, and how many "frames" and "bytes" are lost."""
    _stalls: list[str] = attrs.field(factory=list, init=False)
    """The texts on stalls."""
    _stall_count: int = attrs.field(default=0, init=False)
    _longest_seconds: float = attrs.field(default=0.0, init=False)

    def note(self, note: Note) -> None:
        """Take the next note."""
        found = notice(note)
        if found is not None and note.body.get("event") == "lost":
            reason = str(note.body.get("reason"))
            before, sums = self.losses.get(reason, ("", Counter[str]()))
            sums.update({key: note.body.get(key) or 0 for key in _LOST})
            whole = notice(attrs.evolve(note, body={**note.body, **sums})) or ""
            self._put(whole, [before] if before else [])
            self.losses[reason] = whole, sums
        elif found is not None and note.body.get("event") == "stood_still":
            self._stall_count += 1
            self._longest_seconds = max(self._longest_seconds, note.body.get("seconds") or 0.0)
            before = []
            if self._stall_count > _STALLS_MAX:
                values = {"times": self._stall_count, "longest": self._longest_seconds}
                found = _STOOD_STILL.format_map(values)
                self._stalls, before = [], self._stalls
            self._put(found, before)
            self._stalls.append(found)
        elif found is not None:
            self.texts.append(found)

    def _put(self, text: str, before: Sequence[str]) -> None:
        """Add a text in place of earlier ones."""
        at = self.texts.index(before[0]) if before else len(self.texts)
        self.texts.insert(at, text)
        for each in before:
            self.texts.remove(each)


def _time_of_day(time_ns: int) -> str:
    """Return the time of day as lines show it."""
    return f"{moment(time_ns):%H:%M:%S}.{time_ns // 1_000_000 % 1000:03}"


class _NoteBody(dict[str, Any]):
    """The body of a note; a key that a foreign file leaves out is a question mark."""

    def __missing__(self, key: str) -> str:
        return "?"
