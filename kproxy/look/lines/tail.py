"""`kproxy tail`: a recording as it grows.

    FileFollower ─▶ exchanges ─▶ Folding ─▶ lines, at once

The recorder writes within 100 ms of the traffic, so a line comes within 200 ms of its response. It
ends when the recording is complete and no other file continues it, or when its writer has died.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from kproxy.exchange.filter import Filter
from kproxy.look.lines.lines import Folding, style_for
from kproxy.look.lines.show import names_one, write
from kproxy.look.lines.stream import Stream
from kproxy.recording.following import POLL_SECONDS

LINES_BEFORE = 10
"""Lines of exchanges recorded before the start that are shown first."""
_FOLDED_FOR = timedelta(seconds=10)


def show_tail(
    path: Path,
    out: TextIO,
    wanted: Filter | None = None,
    lines_before: int | None = LINES_BEFORE,
    local: bool = False,
) -> None:
    """Write lines of a recording as it grows, until it is complete.

    It begins with the last `lines_before` lines that are there already; None: with all.

    Raises:
        RecordingError: the path is not there, not a recording, or damaged.
    """
    stream = Stream([path], wanted)
    folds = not names_one(wanted)
    folding = Folding(style_for(out, local), folds, folded_for=_FOLDED_FOR)
    lines = _lines(stream, folding, lines_before, out)
    write((f"{line}\n" for line in lines), stream.notices, out, "tail")


def _lines(
    stream: Stream, folding: Folding, lines_before: int | None, out: TextIO
) -> Iterator[str]:
    before: deque[str] | None = deque(maxlen=lines_before)
    waiting = False
    for each in stream.growing():
        if each is None:  # everything recorded so far has been read
            if not waiting:
                yield from before or ()
                yield from folding.pause()
                before, waiting = None, True
                out.flush()
            time.sleep(POLL_SECONDS)
        else:
            waiting = False
            lines = folding.take(each)
            if before is None:
                yield from lines
            else:
                before.extend(lines)
    yield from folding.flush()
