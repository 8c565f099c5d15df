"""Times follow the system's clock when that is set, and durations do not notice."""

from __future__ import annotations

from pathlib import Path

import attrs
import hypothesis
import pytest
import trio
from hypothesis import strategies as st

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    ERROR_NOT_LOOKED,
    ChunkTimes,
    Entry,
    Frame,
    FrameRun,
    Requests,
    Side,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.exchange.pairing import Pairing
from kproxy.net import serve
from kproxy.net.clock import STEP_NS_MIN, Clock
from kproxy.net.recorder import Recorder
from kproxy.recording import Recording, read
from kproxy.recording.notices import notice
from kproxy.units import moment
from tests.net.proxied import proxied, receive_exactly
from tests.net.test_pump import answer, answering, ask
from tests.net.test_recorder import running, until

START_NS = 1_790_000_000_000_000_000
SECOND = 1_000_000_000
HOUR = 3600 * SECOND


@attrs.define
class Machine:
    """The two clocks of a machine, which somebody sets, and which sleeps."""

    system: int = START_NS
    monotonic: int = 7

    def clock(self) -> Clock:
        return Clock(lambda: self.system, lambda: self.monotonic)

    def run(self, passed_ns: int, drift_ns: int = 0) -> None:
        self.monotonic += passed_ns
        self.system += passed_ns + drift_ns


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, HOUR), st.integers(-2 * HOUR, 2 * HOUR)), max_size=300)
)
def test_the_clock_follows_every_step_and_never_runs_backwards(moves) -> None:
    machine = Machine()
    clock, shown = machine.clock(), []
    for passed, drift in moves:
        machine.run(passed, drift)
        before = clock()
        step = clock.check()
        assert before == clock() and (not step or abs(step) >= STEP_NS_MIN)
        assert abs(clock.wall_ns(clock()) - machine.system) < 1_000_000
        shown.append((clock(), clock.wall_ns(clock())))
    times = [each for each, _ in shown]
    assert times == sorted(times) and clock.wall_ns(0) == 0


def test_drift_is_followed_without_a_word() -> None:
    machine = Machine()
    clock = machine.clock()
    for _ in range(100_000):
        machine.run(SECOND // 10, 50_000)  # 500 ppm, for almost three hours
        assert clock.check() == 0
    assert abs(clock.wall_ns(clock()) - machine.system) < 1_000_000


@attrs.define
class Traffic:
    """Exchanges of one connection, as the proxy hands them to a recorder."""

    clock: Clock
    number: int = 0

    def asked(self, alone: bool = False) -> tuple[Requests, list[Entry]]:
        self.number += 1
        times = ChunkTimes(self.clock(), self.clock())
        data = b"\0\0\0\x08\0\x0c\0\x04" + self.number.to_bytes(4)
        requests = Requests(self.number, 12, 4, 0, [self.number], [12], times)
        if not alone:
            return requests, [FrameRun(Side.CLIENT, 1, times, [data], requests, 0, [12])]
        frame = Frame(
            Side.CLIENT, 1, self.number, 12, 4, self.number, times.received_ns, [data], 12
        )
        frame.sent_ns = times.sent_ns
        return requests, [frame]

    def answered(self, requests: Requests, alone: bool = False) -> list[Entry]:
        times = ChunkTimes(self.clock(), self.clock())
        data = b"\0\0\0\x04" + requests.number.to_bytes(4)
        if not alone:
            return [FrameRun(Side.BROKER, 1, times, [data], requests, 0, [8])]
        asked = requests.times
        return [
            Frame(
                Side.BROKER, 1, requests.number, 12, 4, requests.number, times.received_ns, [data],
                8, 0, times.sent_ns, asked.received_ns, asked.sent_ns, 12, ERROR_NOT_LOOKED,
            )
        ]  # fmt: skip


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("step", [HOUR, -HOUR])
async def test_recorded_and_live_times_follow_and_durations_stay(
    step: int, alone: bool, tmp_path: Path
) -> None:
    machine, live, pairing = Machine(), [], Pairing()
    clock = machine.clock()
    settings = {"schema_id": "5eed", "library_version": "0", "rotate_ns": 600 * SECOND}
    recording = Recording(tmp_path / "a.mcap", start_ns=clock(), **settings)

    def watch(entries) -> None:
        live.extend(exchange for entry in entries for exchange in pairing.feed(entry))

    recorder, traffic = Recorder(recording, print, watch, clock=clock), Traffic(clock)
    asked_at: list[int] = []
    async with running(recorder):
        recorder.put([notes.opened(1, clock(), {})])
        waiting = []
        for number in range(1, 7):
            requests, entries = traffic.asked(alone)
            asked_at.append(machine.system)
            recorder.put(entries)
            waiting.append(requests)
            machine.run(SECOND)
            if number == 3:  # and two requests are pending
                machine.run(0, step)
                recorder.put([notes.clock_step(clock(), clock.check())])
            if number > 1:
                recorder.put(traffic.answered(waiting.pop(0), alone))
            await until(lambda n=number - 1: len(live) >= n)
        recorder.put([notes.closed(1, clock(), {}, "eof", "", "client")])
    await recorder.finish()
    found = sorted(read(recording.paths), key=lambda each: each.number)
    assert len(recording.paths) > 1, "a file ends by its age, whichever way the clock was set"
    assert [each.row.request_received_ns for each in found] == asked_at
    assert [each.broker_ms for each in found] == [2000.0] * 5 + [None]
    shown = {each.number: each.row for each in live}
    for each in found:
        if each.response_bytes:
            # Which part of the broker's time was a queue is only known on one clock.
            other = {"request_position": 0, "response_position": -1}
            queued = {"queued_ns": shown[each.number].queued_ns}
            assert shown[each.number] == each.row._replace(**other, **queued)
            assert each.queued_ms == (1000.0 if each.number > 1 else 0.0)
    _check_filters(recording.paths, found)
    said: list[str] = []
    list(read(recording.paths, told=lambda note: said.append(notice(note) or "")))
    assert [text for text in said if f"was set by {step / SECOND} s" in text]


def _check_filters(paths: list[Path], found: list[Exchange]) -> None:
    """A range of times has what another log has of the same moments."""
    for each in found:
        at = moment(each.time_ns)
        wanted = parse(f"time:{at:%Y-%m-%dT%H:%M:%S}..{at:%Y-%m-%dT%H:%M:%S}.999")
        same = [x.number for x in found if moment(x.time_ns).replace(microsecond=0) == at]
        assert [x.number for x in read(paths, wanted=wanted)] == same == [each.number]


async def test_a_step_is_noted_and_logged_once(tmp_path: Path, monkeypatch) -> None:
    shift = 0
    system = Clock()  # it is not set meanwhile
    monkeypatch.setattr(serve, "Clock", lambda: Clock(lambda: system() + shift))
    async with proxied(answering, tmp_path / "r.mcap") as proxy:
        async with await proxy.connect() as client:
            await client.send_all(ask(1))
            await receive_exactly(client, len(answer(1)))
            shift = -2 * HOUR
            with trio.fail_after(10):
                while not proxy.logs:
                    await trio.sleep(0.01)
            await client.send_all(ask(2))
            await receive_exactly(client, len(answer(2)))
    assert proxy.logs == ["the system's clock was set back by 120.0 min: later times follow it"]
    assert proxy.summary is not None
    first, second = read(proxy.summary.paths)
    assert -2 * HOUR < second.time_ns - first.time_ns < -2 * HOUR + 60 * SECOND
    assert second.broker_ms is not None and 0 <= second.broker_ms < 20_000
