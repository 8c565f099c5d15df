"""A defect in what records costs frames that are counted and told, and never the traffic."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from kproxy.exchange.entries import Entry, Frame, Note
from kproxy.net import serve
from kproxy.net.clock import Clock
from kproxy.net.recorder import Recorder
from kproxy.recording import entries, verify
from kproxy.recording.connections import ConnectionLog
from kproxy.recording.encoding import Encoder
from kproxy.recording.rotation import Recording
from kproxy.recording.writer import Writer
from tests.bed.logged import to
from tests.net.proxied import Proxied, proxied, receive_exactly
from tests.net.test_pump import answer, answering, ask
from tests.net.test_recorder import Disk, frame, until

OH = "by a defect in kproxy, please report it: ValueError: oh"
GOES_ON = "; the proxy goes on and counts what it does not record"
CANNOT_WRITE = f"cannot write the recording {OH}"
CANNOT_RECORD = f"cannot record what passes {OH}"


async def beat(client: trio.SocketStream, first: int, count: int) -> None:
    """So many heartbeats, one after the other, each answered right."""
    for number in range(first, first + count):
        await client.send_all(ask(number))
        assert await receive_exactly(client, len(answer(number))) == answer(number)


def failing(function: Callable, broken: list[bool], late: bool = False) -> Callable:
    """A function that has a defect while there is something in `broken`; a late one shows when it
    has done what it does."""

    def call(*arguments: object, **named: object) -> object:
        fails = bool(broken)  # once: it may change meanwhile
        if fails and not late:
            raise ValueError("oh")
        result = function(*arguments, **named)
        if fails:
            raise ValueError("oh")
        return result

    return call


def recorded(*paths: Path) -> tuple[int, list[dict]]:
    """How many frames files have, and their notes of what is lost; all of them are whole."""
    found: list[Frame | Note] = []
    for path in paths:
        verify(path)
        found += entries(path)
    bodies = [entry.body for entry in found if isinstance(entry, Note)]
    assert not [body for body in bodies if body["event"] == "torn"]
    frames = sum(isinstance(entry, Frame) for entry in found)
    return frames, [body for body in bodies if body["event"] == "lost"]


async def test_a_sink_with_a_defect_is_as_one_that_refuses() -> None:
    disk, logs = Disk(), []
    disk.error = ValueError("oh")
    recorder = Recorder(disk, to(logs))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        for number in (1, 2):
            recorder.put([frame(number)])
            await until(lambda n=number: recorder.frames_lost == n)
        assert not recorder.congested()
        disk.error = None
        recorder.put([frame(3)])
        await until(lambda: disk.written == [3])
        nursery.cancel_scope.cancel()
    assert logs[0] == CANNOT_WRITE + GOES_ON
    (note,) = disk.noted
    assert (note["frames"], note["bytes"], note["reason"]) == (2, 200, CANNOT_WRITE)


@pytest.mark.parametrize("defective", ["sink", "intake"])
async def test_with_nothing_to_be_lost_a_defect_ends_the_recorder(defective: str) -> None:
    def broken(*_: object) -> list[Entry]:
        raise ValueError("oh")

    disk = Disk()
    if defective == "sink":
        disk.error = ValueError("oh")
    intake = broken if defective == "intake" else None
    recorder = Recorder(disk, print, lossless=True, intake=intake)
    recorder.put([frame(1)])
    with trio.fail_after(10):
        await recorder.run()
    assert recorder.failure.endswith(OH) and recorder.frames_lost == 1


async def through(proxy: Proxied, broken: list[bool]) -> int:
    """A conversation that a defect begins and ends in; returns how many frames passed."""
    async with await proxy.connect() as client:
        await beat(client, 0, 5)
        broken.append(True)
        beats = 5
        while beats < 50 or not proxy.logs:
            await beat(client, beats, 5)
            beats += 5
        broken.clear()
        await beat(client, beats, 5)
    return 2 * (beats + 5)


@pytest.mark.parametrize(
    ("owner", "name", "late", "reason"),
    [
        (Writer, "write", False, CANNOT_WRITE),
        (Writer, "_chunk", True, CANNOT_WRITE),
        (ConnectionLog, "notes_to_repeat", False, CANNOT_WRITE),
        (os, "pwritev", True, CANNOT_WRITE),
        (Encoder, "_run", True, CANNOT_WRITE),
        (Encoder, "_begin", False, CANNOT_WRITE),
    ],
)
async def test_whatever_has_a_defect_the_traffic_goes_on_and_the_loss_is_told(
    owner: object,
    name: str,
    late: bool,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken: list[bool] = []
    monkeypatch.setattr(owner, name, failing(getattr(owner, name), broken, late))
    async with proxied(answering, tmp_path / "r.mcap") as proxy:
        passed = await through(proxy, broken)
    assert proxy.logs[0] == reason + GOES_ON
    assert proxy.summary is not None
    frames, notes = recorded(*proxy.summary.paths)
    lost = proxy.summary.frames_lost
    assert lost == sum(note["frames"] for note in notes) > 0
    assert {note["reason"] for note in notes} == {reason}
    assert frames == proxy.summary.frames_recorded == passed - lost > 0


async def test_an_observer_with_a_defect_costs_what_it_was_to_see(tmp_path: Path) -> None:
    broken: list[bool] = []

    class Observer:
        def began(self, start_ns: int, note: Callable[[Note], None], clock: Clock) -> None:
            pass

        def take(self, entries: list[Entry]) -> None:
            if broken:
                raise ValueError("oh")

    async with proxied(answering, tmp_path / "r.mcap", observer=Observer()) as proxy:
        passed = await through(proxy, broken)
    assert proxy.logs[0] == CANNOT_RECORD + GOES_ON
    assert proxy.summary is not None
    frames, notes = recorded(*proxy.summary.paths)
    assert (frames, sum(note["frames"] for note in notes)) == (20, passed - 20)


def only(error: BaseException) -> BaseException:
    """The exception in groups of one."""
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


async def test_with_nothing_to_be_lost_a_defect_ends_the_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bool] = []
    monkeypatch.setattr(Writer, "write", failing(Writer.write, broken))
    with pytest.RaisesGroup(serve.RecordingFailed, flatten_subgroups=True) as caught:
        async with proxied(answering, tmp_path / "r.mcap", lossless=True) as proxy:
            async with await proxy.connect() as client:
                await beat(client, 0, 1)
                broken.append(True)
                await beat(client, 1, 1)
                await trio.sleep_forever()
    error = only(caught.value)
    assert str(error).startswith(CANNOT_WRITE)
    assert re.search(r"; [24] frames that passed are not recorded$", str(error))


async def test_a_defect_at_the_very_end_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken: list[bool] = [True]
    monkeypatch.setattr(Recording, "close", failing(Recording.close, broken))
    async with proxied(answering, tmp_path / "r.mcap") as proxy:
        async with await proxy.connect() as client:
            await beat(client, 0, 5)
    assert proxy.logs == [f"cannot complete the recording {OH}; kproxy recover does that later"]
    assert proxy.summary is not None and proxy.summary.frames_recorded == 10
