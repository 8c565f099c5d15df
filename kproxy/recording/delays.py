"""How long the brokers in a recording took: what a fault rule may take its latencies from."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kproxy.recording.files import RecordingError
from kproxy.recording.reader import read


def broker_delays(name: str) -> Sequence[int]:
    """Read how long the broker took, in nanoseconds, exchange by exchange.

    Raises:
        ValueError: there is no such recording, or it cannot be read; the text says why.
    """
    try:
        taken_ms = (exchange.broker_ms for exchange in read(name))
        return array("q", (int(each * 1e6) for each in taken_ms if each is not None))
    except (RecordingError, OSError) as error:
        raise ValueError(str(error)) from error
