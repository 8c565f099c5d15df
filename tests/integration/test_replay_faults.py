"""Faults compose with replay: no broker is needed to see how a client survives one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy import demo
from kproxy.control import Control
from tests.bed import needs, proxies, replays

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
MOVED = "api=Produce topic=orders error=NOT_LEADER_OR_FOLLOWER"


def test_a_producer_survives_a_fault_of_the_recording(tmp_path: Path) -> None:
    options = ("--visible", "causal", "--fault", f"{MOVED} times=1", "--expect-faults")
    with replays.running(DEMO, tmp_path, *options) as replay:
        assert demo.produce(replay.bootstrap) == demo.RECORDS
        assert len(demo.consume(replay.bootstrap)) == demo.RECORDS
    (line,) = re.findall(r"^ *1 +\d+ +(\d+) +api=Produce", replay.log, re.MULTILINE)
    assert line == "1", "it fired once"


@pytest.mark.parametrize("fault", [MOVED, "api=Produce phase=after disconnect=true"])
def test_what_went_wrong_when_it_was_recorded_goes_wrong_again(fault: str, tmp_path: Path) -> None:
    with (
        replays.running(DEMO, tmp_path / "broker", "--visible", "causal") as broker,
        proxies.running(broker.bootstrap, tmp_path, "--fault", f"{fault} times=1") as proxy,
    ):
        demo.produce(proxy.bootstrap)
        broker.code = 1 if "after" in fault else 0  # it got some records twice
    options = ("--visible", "causal", "--recorded-faults", "--expect-faults")
    with replays.running(proxy.recording, tmp_path, *options) as replay:
        assert demo.produce(replay.bootstrap) == demo.RECORDS
    (line,) = re.findall(r"^ *1 +\d+ +(\d+) +recorded-1$", replay.log, re.MULTILINE)
    assert line == "1", "it fired once"


def test_a_fault_that_never_fired_is_told(tmp_path: Path) -> None:
    with replays.running(DEMO, tmp_path, "--fault", MOVED, "--expect-faults") as replay:
        replay.code = 1
        assert len(demo.consume(replay.bootstrap)) == demo.RECORDS


def test_faults_and_connections_of_a_replay_are_controlled(tmp_path: Path) -> None:
    options = ("--control", "127.0.0.1:0", "--visible", "causal")
    with replays.running(DEMO, tmp_path, *options) as replay:
        url = replay.says("metrics: http").partition("http://")[2]
        control = Control(url.removesuffix("/metrics"))
        with control.fault(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=1) as fault:
            assert demo.produce(replay.bootstrap) == demo.RECORDS
        assert fault.fired == 1
        assert control.faults() == []
        assert control.status()["connections_accepted"] > 0
        assert control.connections() == []


@pytest.mark.parametrize(
    "option",
    [["--fault", MOVED], ["--recorded-faults"], ["--timing", "2"], ["--control", "h:1"]],
)
def test_strict_mode_only_follows_the_recording(option: list[str]) -> None:
    command = [sys.executable, "-m", "kproxy", "replay", str(DEMO), "--mode", "strict", *option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "strict mode" in done.stderr
