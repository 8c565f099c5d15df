"""Truth under chaos: whatever happens, bytes, order, recording and memory are what they must be."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy.exchange.entries import (
    FRAGMENT,
    NO_RESPONSE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    TRUNCATED,
    UNANSWERED,
    Entry,
    ExchangeRow,
    Frame,
    Note,
)
from kproxy.exchange.exchange import FIELDS, Exchange
from kproxy.exchange.pairing import pair
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.recording import Recording, Writer, read
from kproxy.testing.broker import Watcher
from tests.simulation.checks import is_touched
from tests.simulation.run import digest, simulate
from tests.simulation.world import START_NS, World
from tests.versions import ALL


def test_every_promise_is_kept(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


def test_every_promise_is_kept_whatever_faults_fire(seeds: range) -> None:
    """A part of the seeds again, each with fault rules of its own."""
    for seed in seeds[:: 4 if len(seeds) > 4 else 1]:
        simulate(seed, faulty=True)


def test_a_seed_is_a_seed() -> None:
    """In another process, with other hashes, the same happens."""
    command = [sys.executable, "-m", "tests.simulation.run", "--seed", "11"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert digest(simulate(11))[:16] in done.stdout


def test_much_of_what_can_happen_happens() -> None:
    """The seeds are worth their time: resets, late listeners, violations, streams, secrets …"""
    ends = {"eof", "reset", "violation", "stopped", "idle", "refused", "down"}
    wanted = {"opened", *ends, *FLAGS}
    seen: set[str] = set()
    for seed in range(150):
        if seen >= wanted:
            break
        world = World(seed)
        world.run()
        for entry in world.entries:
            if isinstance(entry, Note):
                seen.add(entry.body.get("how", "opened"))
            else:
                seen |= {name for name, flag in FLAGS.items() if entry.flags & flag}
    assert seen >= wanted


def test_every_fault_happens() -> None:
    """Among the seeds are actions of all kinds, on both sides of the broker, and what they do."""
    # What random bodies lack: records, and the very APIs, nodes and coordinators that are meant.
    rare = {"corrupt", "hide_api", "max_version", "move_coordinator", "stale_leader", "hide_node"}
    wanted = set(ACTIONS) - rare - {"rebootstrap"}
    on_both_sides = {
        (action, phase)
        for action in (
            "latency",
            "error",
            "drop",
            "disconnect",
            "blackhole",
            "truncate",
            "bandwidth",
        )
        for phase in ("before", "after")
    }
    ends_wanted = {"fault", "fault reset", "eof", "reset", "idle", "stopped"}
    actions: set[tuple[str, str]] = set()
    ends: set[str] = set()
    touched = connections = 0

    def all_happened() -> bool:
        here = {action for action, _ in actions}
        return here >= wanted and actions >= on_both_sides and ends >= ends_wanted

    for seed in range(400):
        if seed > 50 and all_happened():
            break
        world = World(seed, faulty=True)
        world.run()
        connections += len(world.links)
        touched += sum(is_touched(world, link) for link in world.links)
        for entry in world.entries:
            if isinstance(entry, Note) and entry.body["event"] == "fault":
                actions.add((entry.body["action"], entry.body["phase"]))
            elif isinstance(entry, Note):
                ends.add(entry.body.get("how", "opened"))
    assert all_happened()
    assert 0.15 < touched / connections < 0.85


FLAGS = {
    "OPAQUE": OPAQUE,
    "REDACTED": REDACTED,
    "FRAGMENT": FRAGMENT,
    "UNANSWERED": UNANSWERED,
    "NO_RESPONSE": NO_RESPONSE,
    "RAW_SASL": RAW_SASL,
    "REWRITTEN": REWRITTEN,
    "TRUNCATED": TRUNCATED,
}


@pytest.mark.parametrize("first", range(0, 10_000 if ALL else 50, 50))
def test_a_rotated_recording_is_what_passed(first: int, tmp_path: Path) -> None:
    """Connections come and go under rules, while files end and begin every few KiB: what is read of
    them together is what passed, and what one file has, and each can be read alone."""
    files = 0
    for seed in range(first, first + 50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        world, paths = _rotated(seed, folder)
        files += len(paths)
        found = {each.number: each for each in read(paths)}
        one = {each.number: each for each in read(folder / "whole")}
        assert sum(1 for _ in read(paths)) == len(found), f"seed {seed}"
        passed = {each.number: each for each in pair(world.entries)}
        assert found.keys() == one.keys() == passed.keys(), f"seed {seed}"
        for number, exchange in found.items():
            assert _placeless(exchange) == _placeless(one[number]), f"{number}, seed {seed}"
            for other in (one[number], passed[number]):
                assert _bytes(exchange) == _bytes(other), f"{number}, seed {seed}"
        for path in paths:
            _check_alone(path, found)
    assert files > 60


def _rotated(seed: int, folder: Path) -> tuple[World, list[Path]]:
    """Run a world, and record it while it runs: into many files, and into one."""
    world = World(seed, faulty=True)
    about = {"start_ns": START_NS, "schema_id": "5eed5eed", "library_version": "0.1.0"}
    rotated = Recording(folder / "run.mcap", **about, rotate_bytes=3000, rotate_ns=None)
    (folder / "whole").mkdir()
    whole = Writer(folder / "whole" / "run.mcap", **about)
    learn, waiting, rng = world.performer.watch, list[Entry](), random.Random(seed)

    def watch(passed: list[Entry]) -> None:
        learn(passed)
        waiting.extend(passed)
        if rng.random() < 0.3:
            write()

    def write() -> None:
        for sink in (rotated, whole):
            sink.write(waiting)
        waiting.clear()

    world.performer.watch = watch
    world.run()
    write()
    rotated.close()
    whole.close()
    return world, rotated.paths


def _check_alone(path: Path, every: dict[int, Exchange]) -> None:
    """What a file alone has is right as far as it goes."""
    for each in read(path, told=lambda note: None):
        whole = every[each.number]
        for of_one, of_all in zip(_bytes(each), _bytes(whole), strict=True):
            assert of_one is None or of_one == of_all or each.row.request_flags & TRUNCATED
        for name in ("connection", "api_key", "correlation_id"):
            assert getattr(each.row, name) == getattr(whole.row, name)
        arrived, last_ns = each.row.request_received_ns, whole.row.request_received_ns
        assert arrived == last_ns or (each.row.request_flags & TRUNCATED and arrived < last_ns)


def _placeless(exchange: Exchange) -> ExchangeRow:
    return exchange.row._replace(request_position=0, response_position=0)


def _bytes(exchange: Exchange) -> tuple[bytes | None, ...]:
    return (
        exchange.request_frame, exchange.response_frame, exchange.request_sent,
        exchange.response_sent,
    )  # fmt: skip


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_live_exchanges_are_those_of_the_recording(first: int, tmp_path: Path) -> None:
    """Under rules, whenever somebody looks: what a test or the live lines show is what is read."""
    held = 0
    for seed in range(first, first + (50 if ALL else 12)):
        recorded, shown = _recorded_and_shown(seed, tmp_path / f"{seed}.mcap")
        assert shown.keys() == recorded.keys(), f"seed {seed}"
        for number, exchange in recorded.items():
            row = shown[number].row
            if exchange.unanswered and row.request_sent_ns > row.response_received_ns:
                continue  # it left when its exchange was over
            for name in FIELDS.keys() - _PLACES:
                found, expected = getattr(shown[number], name), getattr(exchange, name)
                # A client that is named after its first exchange is only known to readers then.
                known = name != "client_id" or found is not None
                assert not known or found == expected, f"{name} of {number}, seed {seed}"
            held += exchange.row.fault_ns > 0 or exchange.held_behind is not None
    assert held


def _recorded_and_shown(seed: int, path: Path) -> tuple[dict[int, Exchange], dict[int, Exchange]]:
    """The exchanges of a world with rules, as its recording has them, and as they were live."""
    world, live, rng = World(seed, faulty=True), Watcher(), random.Random(seed)
    for phase in ("before", "after"):
        world.rules.add({"latency": "20ms", "phase": phase, "probability": 0.3})
    learn = world.performer.watch
    writer = Writer(path, start_ns=START_NS, schema_id="5eed5eed", library_version="0.1.0")

    def watch(passed: list[Entry]) -> None:
        learn(passed)
        writer.write(passed)
        live.take(list(passed))
        # Whoever looks when all is over may know more: what has left after the row was written.
        if rng.random() < 0.5 or any(map(_completes, passed)):
            live.exchanges()

    world.performer.watch = watch
    world.run()
    writer.close()
    found = {each.number: each for each in read(path)}
    return found, {each.number: each for each in live.exchanges()}


def _completes(entry: Entry) -> bool:
    """Whether exchanges are complete without having left."""
    if isinstance(entry, Note):
        return entry.body.get("event") == "closed"
    return isinstance(entry, Frame) and bool(entry.flags & UNANSWERED)


_PLACES = {"request_position", "response_position"}
"""Nothing that is live has a place in a file."""
