"""What views read of recordings: item by item, in order, and nothing that was given is kept."""

from __future__ import annotations

import io
import weakref
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from kproxy.look.lines.show import show_json, show_lines
from kproxy.look.lines.stream import Stream
from kproxy.recording import RecordingError
from kproxy.wire.protocol import messages
from tests.bed import needs
from tests.exchange.making import MS, START_NS, closed, opened, request, response
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


def test_a_recording_begins_with_noise_of_a_connection_that_one_before_had(
    tmp_path: Path,
) -> None:
    paths: list[Path] = []
    for name, ends in (("ends", True), ("open", False), ("last", False)):
        entries = [opened(1, node_id=1), *beating(range(1, 6), 1)]
        if ends:
            entries.append(attrs.evolve(closed(1), time_ns=START_NS + 9 * MS))
        paths.append(write(tmp_path / f"{name}.mcap", [entries]))
    show_lines(paths, out := io.StringIO())
    lines = out.getvalue().splitlines()
    assert "" not in lines
    for name in ("ends", "open", "last"):
        (first,) = (line for line in lines if f"{name}#" in line)
        assert f"{name}#1 " in first, "the first of each, and the others counted"
    assert sum("Heartbeat ×4" in line for line in lines) == 3


def test_nothing_keeps_an_exchange_that_was_given(tmp_path: Path) -> None:
    beats = write(tmp_path / "beats.mcap", [beating(range(1, COUNT + 1), 1)])
    given: list[weakref.ref[object]] = []
    for each in Stream([beats]).shown():
        assert not any(before() for before in given)
        given.append(weakref.ref(each))
        del each
    assert len(given) == COUNT


def test_an_end_that_came_before_the_damage_is_shown(tmp_path: Path) -> None:
    data = bytearray((needs.REPOSITORY / "tests/recording/formats/3/large.mcap").read_bytes())
    data[42600] ^= 1
    path = tmp_path / "damaged.mcap"
    path.write_bytes(data)
    out = io.StringIO()
    with pytest.raises(RecordingError, match="is damaged"):
        show_json([path], out)
    assert '"event": "closed"' in out.getvalue().splitlines()[-1]
