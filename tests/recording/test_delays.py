"""The delays that rules take from a recording: few of many, from all of its time."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from kproxy import recording
from kproxy.commands.faults import add_fault_options, fault_rules
from kproxy.recording import delays

DEMO = Path(__file__).parents[2] / "recordings" / "demo.mcap"


def test_all_delays_of_a_short_recording_are_taken() -> None:
    taken = [each.broker_ms for each in recording.read(DEMO) if each.broker_ms is not None]
    assert list(delays.broker_delays(str(DEMO))) == [int(each * 1e6) for each in taken]


@pytest.mark.parametrize("most", [1, 2, 5, 16])
def test_of_a_long_one_some_are_taken_evenly(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(delays.broker_delays(str(DEMO)))
    assert len(whole) > 16
    monkeypatch.setattr(delays, "DELAYS_MAX", most)
    step = 1
    while len(whole[::step]) > most:
        step *= 2
    assert list(delays.broker_delays(str(DEMO))) == whole[::step]


def test_delays_of_few_recordings_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def counted(name: str) -> list[int]:
        read.append(name)
        return [1]

    monkeypatch.setattr(delays, "broker_delays", counted)
    monkeypatch.setattr(delays, "RECORDINGS_MAX", 3)
    parser = argparse.ArgumentParser()
    add_fault_options(parser)
    rules = fault_rules(parser.parse_args([]))
    for name in "abcd":
        rules.add({"latency": {"recording": name}})
    rules.clear()
    for name in "dcba":
        rules.add({"latency": {"recording": name}})
    assert read == ["a", "b", "c", "d", "a"], "the oldest has gone, the others are read once"
