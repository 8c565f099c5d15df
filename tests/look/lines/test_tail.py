"""`kproxy tail`: a recording as it grows."""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import contextmanager

import pytest

from kproxy.exchange.entries import Side
from kproxy.look.lines.show import show_tail
from kproxy.recording import Recording, RecordingError
from kproxy.wire.protocol import messages
from tests.exchange.making import MS, START_NS, opened, request, response

PATIENCE_SECONDS = 30


def beats(*numbers: int, group: str = "g"):
    """Heartbeats that fail, which nobody folds."""
    for number in numbers:
        asked = request("Heartbeat", 4, messages.HeartbeatRequest(group_id=group), number)
        yield asked
        yield response(asked, messages.HeartbeatResponse(error_code=27))


def begin(path, **options) -> Recording:
    options = {"schema_id": "x", "library_version": "0", **options}
    return Recording(path, start_ns=START_NS, **options)


class Tail:
    """What it writes, line by line."""

    def __init__(self, path, **options) -> None:
        self.lines: queue.Queue[str] = queue.Queue()
        self.failure: BaseException | None = None
        read_end, write_end = os.pipe()
        self.reader = os.fdopen(read_end)
        self.out = os.fdopen(write_end, "w")
        self.threads = [
            threading.Thread(target=self._follow, args=(path, options), daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]
        for thread in self.threads:
            thread.start()

    def _follow(self, path, options) -> None:
        try:
            show_tail(path, self.out, **options)
        except BaseException as error:
            self.failure = error
        self.out.close()

    def _read(self) -> None:
        with self.reader:
            for line in self.reader:
                self.lines.put(line)

    def next(self) -> str:
        """The number of the exchange in the next line."""
        return self.lines.get(timeout=PATIENCE_SECONDS).split()[1]

    def finish(self) -> list[str]:
        """Wait for its end; the lines that were not taken."""
        for thread in self.threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        if self.failure is not None:
            raise self.failure
        return list(self.lines.queue)


@contextmanager
def recording(path, **options):
    made = begin(path, **options)
    try:
        yield made
    finally:
        made.close()


def test_it_shows_what_comes_and_ends_with_the_recording(tmp_path):
    path = tmp_path / "live.mcap"
    with recording(path) as made:
        made.write([opened(), *beats(*range(1, 16))])
        tail = Tail(path)
        assert [tail.next() for _ in range(10)] == [f"#{n}" for n in range(6, 16)]
        asked, answered = beats(16)
        made.write([asked])
        made.write([answered])
        assert tail.next() == "#16"
        asked = request("Heartbeat", 4, messages.HeartbeatRequest(), 17)
        assert asked.side is Side.CLIENT
        made.write([asked])
    (left,) = tail.finish()
    assert "#17" in left and "the recording ends before an answer" in left


def test_it_goes_on_with_the_next_file(tmp_path):
    path = tmp_path / "live.mcap"
    with recording(path, rotate_ns=100 * MS) as made:
        made.write([*beats(1)])
        tail = Tail(path)
        assert tail.next() == "#1"
        made.write([*beats(1000)])  # a second later, by its time
        assert tail.next() == "#1000"
        assert len(list(tmp_path.glob("*.mcap"))) == 2
    assert tail.finish() == []


def test_no_recording(tmp_path):
    with pytest.raises(RecordingError):
        Tail(tmp_path / "nowhere.mcap").finish()


def test_it_is_no_more_than_200_ms_behind(tmp_path):
    """Of what is in the file: half of the time is the recorder's."""
    path = tmp_path / "live.mcap"
    with recording(path) as made:
        made.write([*beats(1)])
        tail = Tail(path)
        assert tail.next() == "#1"
        late = []
        for number in range(2, 12):
            started = time.monotonic()
            made.write([*beats(number)])
            assert tail.next() == f"#{number}"
            late.append(time.monotonic() - started)
        # A busy machine may hold up one or the other.
        assert sorted(late)[len(late) // 2] < 0.2, late
    tail.finish()
