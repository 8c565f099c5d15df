"""A disk that is slow, hangs or is full, under a real recorder, pump and recording.

The slow one takes nothing until it is given leave, one write at a time: so it needs no clock.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trio

from kproxy.exchange.entries import Frame, Note
from kproxy.recording import read, verify
from kproxy.recording.reader import entries
from tests.net.proxied import Proxied, proxied, receive_exactly
from tests.net.test_control_api import Asking
from tests.net.test_metrics import fetch, values
from tests.net.test_pump import answer, answering, ask

BACKLOG_BYTES_MAX = 100_000
LOCAL = ("127.0.0.1", 0)


@attrs.define(eq=False)
class Disk:
    """Lets writes of recordings pass, or makes them wait."""

    leave: threading.Semaphore = attrs.field(factory=lambda: threading.Semaphore(0))
    hanging: threading.Event = attrs.field(factory=threading.Event)
    """Set when a write waits."""
    throttled: bool = False

    def heal(self) -> None:
        """Let everything pass from now on."""
        self.throttled = False
        self.leave.release(1000)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """The disk of all recordings."""
    disk = Disk()
    pwritev = os.pwritev

    def put(fd: int, buffers: list[bytes], offset: int) -> int:
        if disk.throttled:
            disk.hanging.set()
            assert disk.leave.acquire(timeout=20)
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", put)
    yield disk
    disk.heal()


async def beat(client: trio.SocketStream, first: int, count: int) -> None:
    """So many heartbeats, one after the other, each answered right."""
    for number in range(first, first + count):
        await client.send_all(ask(number))
        assert await receive_exactly(client, len(answer(number))) == answer(number)


async def lost(proxy: Proxied) -> float:
    """How many frames are lost, as the metrics say."""
    return values(await fetch(proxy))["kproxy_frames_lost_total"]


def recorded(path: Path) -> tuple[list[bytes], list[dict]]:
    """The frames of a recording and its notes of what is lost; it is whole."""
    verify(path)
    found = list(entries(path))
    notes = [entry.body for entry in found if isinstance(entry, Note)]
    frames = [entry.data for entry in found if isinstance(entry, Frame)]
    return frames, [body for body in notes if body["event"] == "lost"]


def check_exchanges(path: Path) -> None:
    """Every frame is of an exchange, none of which is taken for one that was not answered."""
    halves = [(each.request_frame, each.response_frame) for each in read(path)]
    said = sorted(frame for pair in halves for frame in pair if frame is not None)
    assert said == sorted(recorded(path)[0])
    assert all(each.response_bytes or each.open_at_end for each in read(path))


async def test_a_disk_that_refuses_costs_no_more_than_what_it_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.mcap"
    full, done = threading.Event(), trio.Event()
    pwritev = os.pwritev

    def put(fd: int, buffers: list[bytes], offset: int) -> int:
        if full.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwritev(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", put)
    held = Held()
    async with proxied(held.serve, path, control=LOCAL) as proxy:
        async with trio.open_nursery() as nursery, await proxy.connect() as client:
            for _ in range(3):
                nursery.start_soon(beat_until, proxy, done)
            for number in range(_HELD, _HELD + 3):
                # Its request is on the disk before that refuses, and its response comes after.
                await client.send_all(ask(number))
                while ask(number) not in on_disk(path):
                    await trio.sleep(0.01)
                before = await lost(proxy)
                full.set()
                held.answers.release()
                assert await receive_exactly(client, len(answer(number))) == answer(number)
                for _ in range(2):  # batch by batch: the one with that response is among them
                    refused = await lost(proxy)
                    while await lost(proxy) == refused:
                        await trio.sleep(0.01)
                while await lost(proxy) < before + 20:
                    await trio.sleep(0.01)
                full.clear()
                path_bytes = path.stat().st_size
                while path.stat().st_size == path_bytes:
                    await trio.sleep(0.01)
            done.set()
    _, notes = recorded(path)
    assert sum(note["frames"] for note in notes) == proxy.summary.frames_lost >= 60
    exchanges = list(read(path))
    said = [frame for each in exchanges for frame in (each.request_frame, each.response_frame)]
    assert sorted(filter(None, said)) == sorted(recorded(path)[0])
    half = [each for each in exchanges if each.request_frame and not each.response_frame]
    assert {ask(number) for number in range(_HELD, _HELD + 3)} <= {
        each.request_frame for each in half
    }
    assert all(each.open_at_end for each in half), "nobody knows that they were not answered"


_HELD = 1_000_000
"""From this number on a broker holds its responses back."""


@attrs.define(eq=False)
class Held:
    """A broker that answers Heartbeats, some of them when it is told to."""

    answers: trio.Semaphore = attrs.field(factory=lambda: trio.Semaphore(0))

    async def serve(self, stream: trio.SocketStream) -> None:
        """Answer a client, until it ends."""
        async with stream:
            while True:
                try:
                    asked = await receive_exactly(stream, len(ask(0)))
                except trio.EndOfChannel:
                    return
                number = int.from_bytes(asked[8:12])
                if number >= _HELD:
                    await self.answers.acquire()
                await trio.sleep(0.01)
                await stream.send_all(answer(number))


def on_disk(path: Path) -> list[bytes]:
    """The frames of a recording that is still written."""
    return [entry.data for entry in entries(path) if isinstance(entry, Frame)]


async def beat_until(proxy: Proxied, done: trio.Event) -> None:
    """Heartbeats, until it is done."""
    number = 0
    async with await proxy.connect() as client:
        while not done.is_set():
            await beat(client, number, 1)
            number += 1


async def test_a_disk_that_hangs_holds_nobody_up_and_its_losses_are_told(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "r.mcap"
    async with proxied(
        answering, path, control=LOCAL, backlog_bytes_max=BACKLOG_BYTES_MAX
    ) as proxy:
        async with await proxy.connect() as client, await proxy.connect() as bystander:
            await beat(client, 0, 10)
            disk.throttled = True
            beats = 10
            while not await lost(proxy):
                await beat(client, beats, 50)
                beats += 50
            assert disk.hanging.is_set()
            metrics = values(await fetch(proxy))
            assert BACKLOG_BYTES_MAX / 2 < metrics["kproxy_backlog_bytes"] <= BACKLOG_BYTES_MAX
            await beat(bystander, 0, 100)
            disk.heal()
        while values(await fetch(proxy))["kproxy_backlog_bytes"]:
            await trio.sleep(0.01)
        during = await lost(proxy)
        assert (await Asking(proxy)("status"))["frames_lost"] == during
    frames, notes = recorded(path)
    check_exchanges(path)
    passed = 2 * (beats + 100)
    assert proxy.summary.frames_lost == during == sum(note["frames"] for note in notes)
    assert (proxy.summary.frames_recorded, len(frames)) == (passed - during, passed - during)
    assert {note["reason"] for note in notes} == {"the disk does not keep up"}
    said = [line for line in proxy.logs if not re.match("(metrics|page): http", line)]
    assert said == [
        "the disk does not keep up; the proxy goes on and counts what it does not record",
        f"the recording goes on; {during:.0f} frames before this are not in it",
    ]


async def test_with_nothing_to_be_lost_a_disk_that_hangs_is_waited_for(
    tmp_path: Path, disk: Disk
) -> None:
    path = tmp_path / "r.mcap"
    options = {"lossless": True, "backlog_bytes_max": BACKLOG_BYTES_MAX, "control": LOCAL}
    async with proxied(answering, path, **options) as proxy, trio.open_nursery() as nursery:
        disk.throttled = True
        done = trio.Event()

        async def beat_on() -> None:
            async with await proxy.connect() as client:
                await beat(client, 0, 300)
            done.set()

        nursery.start_soon(beat_on)
        # Longer than the pump waits where losses are allowed, and than this takes on a good disk.
        with trio.move_on_after(1.5) as waiting:
            await done.wait()
        backlog_bytes = 0.0
        while backlog_bytes <= BACKLOG_BYTES_MAX / 2:  # a busy machine takes its time
            await trio.sleep(0.05)
            backlog_bytes = values(await fetch(proxy))["kproxy_backlog_bytes"]
        assert waiting.cancelled_caught and disk.hanging.is_set()
        assert backlog_bytes < BACKLOG_BYTES_MAX
        disk.heal()
        await done.wait()
    frames, notes = recorded(path)
    assert len(frames) == proxy.summary.frames_recorded == 600
    assert not notes and not proxy.summary.frames_lost
