"""The axis of time of a report, without the time between recordings.

::

    spans of files ─▶ stretches ─▶ │ 9:00 … 9:20 ╎ 2 d later ╎ 11:05 … 11:07 │

Each stretch has a share of the axis by its duration, but none is too narrow to be seen.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence

import attrs

from kproxy.exchange.words.wording import duration
from kproxy.look.pictures.drawing import round_step
from kproxy.look.report.data import FileSpan
from kproxy.units import moment

_BREAK_PART = 0.1
"""A pause of this part of the recorded time, and longer, is left out."""
_SHARE_MIN = 0.06
_BREAK_SHARE = 0.025
_STRETCHES_MAX = 12
"""More recordings are shown with the pauses between some of them: the shortest ones."""
_TICKS = 6
_LABEL_SHARE = 0.14
"""The part of the axis that a label may take."""


@attrs.frozen
class Stretch:
    """A time without long pauses, and its place on the axis, from 0 to 1."""

    start_us: int
    end_us: int
    left: float
    right: float


@attrs.frozen
class Timeline:
    """An axis of time, in microseconds since 1970."""

    stretches: tuple[Stretch, ...]
    ticks: tuple[tuple[float, str], ...]
    breaks: tuple[tuple[float, str], ...]
    """Places of the pauses that are left out, from 0 to 1, and how long they are."""

    def at(self, value: float) -> float:
        """Return the position of a time on the axis, from 0 to 1."""
        index = bisect_right([each.start_us for each in self.stretches], value) - 1
        each = self.stretches[max(0, index)]
        part = (value - each.start_us) / ((each.end_us - each.start_us) or 1)
        return each.left + min(1.0, max(0.0, part)) * (each.right - each.left)

    def within(self, start_us: float, end_us: float) -> tuple[float, float]:
        """Return the positions of an interval's ends, as far as its stretch shows it."""
        index = bisect_right([each.start_us for each in self.stretches], end_us - 1) - 1
        each = self.stretches[max(0, index)]
        return self.at(max(start_us, each.start_us)), self.at(min(end_us, each.end_us))

    def apart(self, one_us: float, other_us: float) -> bool:
        """Return whether a pause between two times is left out."""
        starts = [each.start_us for each in self.stretches]
        return bisect_right(starts, one_us) != bisect_right(starts, other_us)


def timeline(files: Sequence[FileSpan], start_us: int, span_ms: float, slot_ms: float) -> Timeline:
    """Return the axis of some files; without files, of one span. A stretch is extended to whole
    slots, at its end."""
    spans = _stretches(files) or [(start_us, start_us + round(span_ms * 1000))]
    slot_us = round(slot_ms * 1000)
    spans = [(start, max(end, start + slot_us)) for start, end in spans]
    recorded_us = sum(end - start for start, end in spans)
    shares = [max((end - start) / recorded_us, _SHARE_MIN) for start, end in spans]
    scale = (1 - _BREAK_SHARE * (len(spans) - 1)) / sum(shares)
    found: list[Stretch] = []
    breaks: list[tuple[float, str]] = []
    left = 0.0
    for (start, end), share in zip(spans, shares, strict=True):
        if found:
            pause = duration((start - found[-1].end_us) / 1000)
            breaks.append((left + _BREAK_SHARE / 2, f"{pause} later"))
            left += _BREAK_SHARE
        found.append(Stretch(start, end, left, left + share * scale))
        left += share * scale
    return Timeline(tuple(found), _ticks(found), tuple(breaks))


def _stretches(files: Sequence[FileSpan]) -> list[tuple[int, int]]:
    """Return the times that files cover, joined over all but long pauses."""
    found: list[tuple[int, int]] = []
    for each in sorted(files, key=lambda span: span.start_us):
        if found and each.start_us <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], each.end_us)
        else:
            found.append((each.start_us, each.end_us))
    recorded_us = sum(end - start for start, end in found)
    pauses = sorted((b[0] - a[1] for a, b in itertools.pairwise(found)), reverse=True)
    long_us = max([recorded_us * _BREAK_PART, *pauses[_STRETCHES_MAX - 1 : _STRETCHES_MAX]])
    joined: list[tuple[int, int]] = []
    for start, end in found:
        if joined and start - joined[-1][1] <= long_us:
            joined[-1] = joined[-1][0], end
        else:
            joined.append((start, end))
    return joined


def _ticks(stretches: Sequence[Stretch]) -> tuple[tuple[float, str], ...]:
    """Return times with labels: the clock where a stretch begins, then the time since."""
    days = {moment(each.start_us * 1000).date() for each in stretches}
    form = "%H:%M:%S" if len(days) == 1 else "%d %b %H:%M:%S"
    ticks: list[tuple[float, str]] = []
    free = 0.0
    nexts = [each.left for each in stretches[1:]] + [1 + _LABEL_SHARE]
    for each, after in zip(stretches, nexts, strict=True):
        share = each.right - each.left
        if each.left >= free:
            ticks.append((each.start_us, f"{moment(each.start_us * 1000):{form}}"))
            free = each.left + _LABEL_SHARE
        span_ms = (each.end_us - each.start_us) / 1000
        step = round_step(span_ms, max(1, round(_TICKS * share)))
        for turn in range(1, int(span_ms / step) + 1):
            place = each.left + share * step * turn / span_ms
            if free - _LABEL_SHARE / 3 <= place <= after - _LABEL_SHARE * 2 / 3:
                ticks.append((each.start_us + step * turn * 1000, f"+{duration(step * turn)}"))
                free = place + _LABEL_SHARE
    return tuple(ticks)
