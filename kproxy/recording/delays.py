"""The delays of brokers in a recording, from which a fault rule may take its latencies.

Invariant: the delays of a recording take no more than a megabyte, however long it is, so that a
cache that has a limit for recordings has one for bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from kproxy.exchange.entries import Note
from kproxy.recording.files import RecordingError
from kproxy.recording.reader import read

RECORDINGS_MAX = 64
"""The delays of at most this many recordings are kept for further rules."""
DELAYS_MAX = 1 << 17


def broker_delays(name: str) -> Sequence[int]:
    """Read the broker's time of each exchange, in nanoseconds.

    Of a recording with more than `DELAYS_MAX` exchanges, every second, fourth, … is taken.

    Raises:
        ValueError: there is no such recording, or it cannot be read; the text says why.
    """
    try:
        taken_ms = (exchange.broker_ms for exchange in read(name, told=_ignore))
        return _thinned(int(each * 1e6) for each in taken_ms if each is not None)
    except (RecordingError, OSError) as error:
        raise ValueError(str(error)) from error


def _ignore(note: Note) -> None:
    """Ignore the state of the recording: the delays of a part of it will do."""


def _thinned(delays: Iterable[int]) -> array[int]:
    """Return at most `DELAYS_MAX` of the delays, evenly spaced."""
    kept, step = array("q"), 1
    for number, delay in enumerate(delays):
        if number % step:
            continue
        if len(kept) == DELAYS_MAX:
            kept, step = kept[::2], 2 * step
            if number % step:
                continue
        kept.append(delay)
    return kept
