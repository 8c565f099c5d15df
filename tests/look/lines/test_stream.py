"""What views read of recordings: item by item, in order, and nothing that was given is kept."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

from kproxy.look.lines.stream import Stream
from kproxy.wire.protocol import messages
from tests.exchange.making import request, response
from tests.recording.making import write

COUNT = 40
BEAT = messages.HeartbeatRequest(group_id="shop")


def beating(
    numbers: range, connection: int, error: Callable[[int], bool] = lambda number: False
) -> list:
    """Heartbeats of a connection, of which some fail."""
    entries: list = []
    for number in numbers:
        frame = request("Heartbeat", 4, BEAT, number, connection)
        code = 27 * error(number)
        entries += [frame, response(frame, messages.HeartbeatResponse(error_code=code))]
    return entries


def test_nothing_keeps_an_exchange_that_was_given(tmp_path: Path) -> None:
    beats = write(tmp_path / "beats.mcap", [beating(range(1, COUNT + 1), 1)])
    given: list[weakref.ref[object]] = []
    for each in Stream([beats]).shown():
        assert not any(before() for before in given)
        given.append(weakref.ref(each))
        del each
    assert len(given) == COUNT
