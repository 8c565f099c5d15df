"""The recorder keeps what it can, counts what it cannot, and says so."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import trio

from kproxy.exchange.entries import CONNECTIONS, Frame, Note, Side
from kproxy.exchange.pairing import Pairing
from kproxy.levels import Level, keeping
from kproxy.net.recorder import Recorder
from kproxy.recording import Recording, read
from tests.bed.logged import to


def frame(number: int, size: int = 100) -> Frame:
    head = (size - 4).to_bytes(4) + b"\0\x0c\0\x04" + number.to_bytes(4)
    return Frame(Side.CLIENT, 1, number, 12, 4, number, number, [head.ljust(size, b"\0")], size)


class Disk:
    """A recording that can refuse, and that can be slow."""

    def __init__(self) -> None:
        self.written: list[int] = []
        self.noted: list[dict] = []
        self.error: Exception | None = None
        self.prepared = self.closed = self.waits = False

    def write(self, entries, wall=None) -> None:
        if self.error:
            raise self.error
        self.written += [entry.number for entry in entries if isinstance(entry, Frame)]
        self.noted += [entry.body for entry in entries if isinstance(entry, Note)]

    def prepare_close(self) -> None:
        self.prepared = True

    def close(self) -> None:
        self.closed = True


@contextlib.asynccontextmanager
async def running(recorder: Recorder) -> AsyncIterator[None]:
    """Run a recorder; what it has not written then is left to `finish`."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        yield
        nursery.cancel_scope.cancel()


async def until(condition) -> None:
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.01)


async def test_the_last_job_is_prepared_for_and_has_all_that_waits() -> None:
    done: list[str] = []

    class Noting(Disk):
        def write(self, entries, wall=None) -> None:
            done.append("write")
            super().write(entries)

        def prepare_close(self) -> None:
            done.append("prepare_close")

    disk, seen = Noting(), []
    recorder = Recorder(disk, print, seen.extend)
    async with running(recorder):
        recorder.put([frame(1)])
        await until(lambda: disk.written == [1])
    done.clear()
    recorder.put([frame(2, 4_000_000)])
    recorder.put([frame(3, 100_000)])
    assert recorder.frames_unwritten == 2 and recorder.backlog_bytes > 4_100_000
    await recorder.finish()
    assert done == ["prepare_close", "write"] and disk.closed
    assert disk.written == [1, 2, 3] and recorder.frames_recorded == 3
    assert [each.number for each in seen] == [1, 2, 3]


async def test_a_full_disk_is_said_once_counted_and_noted_when_there_is_room() -> None:
    disk, logs = Disk(), list[tuple[str, Level]]()
    disk.error = OSError(28, "No space left on device")
    recorder = Recorder(disk, keeping(logs))
    async with running(recorder):
        recorder.put([frame(1), frame(2)])
        await until(lambda: recorder.frames_lost == 2)
        recorder.put([frame(3)])
        await until(lambda: recorder.frames_lost == 3)
        disk.error = None
        recorder.put([frame(4)])
        await until(lambda: disk.written == [4])
        await until(lambda: recorder.frames_recorded)
    (full, level), again = logs
    assert "No space left on device" in full and level == "error"
    assert again == ("the recording goes on; 3 frames before this are not in it", "info")
    reason = "cannot write the recording: No space left on device"
    (note,) = disk.noted
    assert note == {
        "event": "lost",
        "frames": 3,
        "bytes": 300,
        "reason": reason,
        "from_ns": 1,
        "until_ns": 3,
    }
    assert (recorder.frames_recorded, recorder.frames_lost) == (1, 3)


async def test_a_gap_is_noted_without_further_traffic() -> None:
    """Else a kill of a proxy that has become quiet would leave no trace of it."""
    disk, logs = Disk(), []
    disk.error = OSError(28, "No space left on device")
    recorder = Recorder(disk, to(logs))
    async with running(recorder):
        recorder.put([frame(1), frame(2)])
        await until(lambda: recorder.frames_lost == 2)
        disk.error = None
        await until(lambda: disk.noted)
    assert [note["frames"] for note in disk.noted] == [2]
    assert len(logs) == 2 and logs[1].startswith("the recording goes on; 2 frames")


async def test_what_has_left_late_is_written_and_shown_without_further_traffic(
    tmp_path: Path,
) -> None:
    settings = {"start_ns": 1, "schema_id": "5eed", "library_version": "0"}
    recording, live = Recording(tmp_path / "a.mcap", **settings), []
    pairing = Pairing()

    def watch(entries) -> None:
        live.extend(exchange for entry in entries for exchange in pairing.feed(entry))

    recorder = Recorder(recording, print, watch)
    data = b"\0\0\0\x04\0\0\0\x01"
    answer = Frame(Side.BROKER, 1, 1, 12, 4, 1, 5, [data], 8, request_received_ns=1)
    async with running(recorder):
        recorder.put([frame(1), answer])
        await until(lambda: recorder.frames_recorded == 2)
        assert not live  # a rule holds the response
        answer.sent_ns, answer.fault_ns = 4009, 4000
        await until(lambda: live)
        # As a kill would leave it.
        await until(lambda: [each.fault_ms for each in read(recording.paths[0])] == [0.004])
    await recorder.finish()
    assert live[0].row.response_sent_ns == 4009 and live[0].fault_ms == 0.004


async def test_a_file_that_goes_on_says_what_is_pending(tmp_path: Path) -> None:
    settings = {"start_ns": 1, "schema_id": "5eed", "library_version": "0"}
    recording = Recording(tmp_path / "a.mcap", rotate_bytes=1, **settings)
    recorder = Recorder(recording, print)
    async with running(recorder):
        for number in (1, 2, 3):
            recorder.put([frame(number)])
            await until(lambda n=number: recorder.frames_recorded == n)
    last = shutil.copy(recording.paths[-1], tmp_path / "copy")  # as a kill would leave it
    assert len(recording.paths) > 2
    assert [each.number for each in read(last) if each.unanswered] == [1, 2, 3]
    await recorder.finish()


async def test_what_is_lost_at_the_very_end_is_noted_if_there_is_room_for_that() -> None:
    class Tight(Disk):
        def write(self, entries, wall=None) -> None:
            if any(isinstance(entry, Frame) for entry in entries):
                raise OSError(28, "No space left on device")
            super().write(entries)

    disk = Tight()
    recorder = Recorder(disk, print)
    recorder.put([frame(1), frame(2)])
    await recorder.finish()
    assert disk.noted[0]["frames"] == recorder.frames_lost == 2


async def test_connections_are_known_after_a_disk_that_hung() -> None:
    disk = Disk()
    recorder = Recorder(disk, print, backlog_bytes_max=1000)
    recorder.put([frame(1, 700)])
    opened = Note(CONNECTIONS, 2, {"event": "opened", "connection": 2})
    recorder.put([opened, frame(2)])
    assert recorder.frames_lost == 1
    await recorder.finish()
    assert disk.written == [1]
    assert [body["event"] for body in disk.noted] == ["opened", "lost"]


def test_notes_are_bounded_too() -> None:
    recorder = Recorder(Disk(), print, backlog_bytes_max=1000)
    for number in range(10_000):
        recorder.put([Note(CONNECTIONS, 2, {"event": "opened", "connection": number})])
    assert recorder.backlog_bytes < 5 << 20


def test_lossless_keeps_all_and_asks_the_pump_to_wait() -> None:
    recorder = Recorder(Disk(), print, lossless=True, backlog_bytes_max=1000)
    for number in range(100):
        recorder.put([frame(number)])
    assert recorder.congested() and recorder.frames_unwritten == 100


async def test_the_pump_waits_for_a_busy_disk(autojump_clock) -> None:
    recorder = Recorder(None, print, lambda _: None, backlog_bytes_max=1000)
    recorder.put([frame(1, 600)])
    assert recorder.congested()
    async with running(recorder):
        await recorder.room()
        assert not recorder.congested() and trio.current_time() < 0.4


async def test_the_pump_does_not_wait_for_a_disk_that_hangs(autojump_clock) -> None:
    recorder = Recorder(None, print, lambda _: None, backlog_bytes_max=1000)
    recorder.put([frame(1, 600)])
    started = trio.current_time()
    await recorder.room()
    assert trio.current_time() - started == 0.5
    assert not recorder.congested(), "it has waited long enough"


async def test_an_onlooker_that_fails_does_not_cost_the_recording() -> None:
    disk, logs = Disk(), []

    def watch(_) -> None:
        raise ZeroDivisionError("oh")

    recorder = Recorder(disk, to(logs), watch)
    async with running(recorder):
        recorder.put([frame(1)])
        await until(lambda: logs)
        recorder.put([frame(2)])
        await until(lambda: disk.written == [1, 2])
    assert len(logs) == 1 and "ZeroDivisionError" in logs[0]
