"""Runs the prototype: see the package."""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kproxy.exchange.entries import (
    CONNECTIONS,
    EVENTS,
    ChunkTimes,
    Entry,
    Note,
    Requests,
    Run,
    Side,
)
from kproxy.recording import Writer, read
from kproxy.recording.layout import Channel
from kproxy.recording.mcap import MESSAGE_HEAD
from tests.benchmarks.log.follower import Follower
from tests.benchmarks.log.pieces import CHANNEL, PIECE, LogBuilder, LogWriter, messages
from tests.simulation.world import START_NS, World

_NOTES = {Channel.CONNECTIONS: CONNECTIONS, Channel.EVENTS: EVENTS}
_ROUNDS = 5


def log_of(entries: Iterable[Entry]) -> bytes:
    """Return entries as messages."""
    builder = LogBuilder()
    builder.add(entries)
    found = (parts for batch in builder.take() for parts, *_ in messages(batch.entries))
    return b"".join(part for parts in found for part in parts)


def follow(log: bytes, on_exchange: Any) -> None:
    """Have a follower follow messages."""
    follower, view, at = Follower(on_exchange), memoryview(log), 0
    unpack, size, piece = PIECE.unpack_from, PIECE.size, follower.piece
    while at < len(log):
        _, length, channel, *_ = MESSAGE_HEAD.unpack_from(log, at)
        end = at + 9 + length
        if channel == CHANNEL:
            *_, received_ns, sent_ns, number, connection, flags, extras = unpack(log, at)
            begin = at + size + extras
            piece(
                received_ns, sent_ns, number, connection, flags, view[begin - extras : begin],
                view[begin:end], at,
            )  # fmt: skip
        else:
            time_ns = MESSAGE_HEAD.unpack_from(log, at)[4]
            body = json.loads(log[at + MESSAGE_HEAD.size : end])
            follower.note(Note(_NOTES[Channel(channel)], time_ns, body))
        at = end
    follower.finish()


def check(seeds: int) -> None:
    """Hold the follower's rows to those that a recording has of the same entries, over seeds."""
    exchanges = differences = 0
    for seed in range(seeds):
        world = World(seed, faulty=seed % 3 == 0)
        world.run()
        found: dict[int, list[Any]] = {}
        follow(
            log_of(world.recorded),
            lambda row, *_, to=found: to.setdefault(row.number, []).append(row),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows.mcap"
            writer = Writer(path, start_ns=START_NS, schema_id="seed", library_version="0")
            writer.write(world.recorded)
            writer.close()
            for exchange in read([path]):
                row = exchange.row._replace(request_position=0, response_position=0)
                row = row._replace(fault_ids=tuple(row.fault_ids))
                exchanges += 1
                got = found.pop(row.number, [])
                if got != [row]:
                    differences += 1
                    of = got[0]._asdict() if got else {}
                    print(
                        f"seed {seed}, #{row.number}: row, follower",
                        {k: (v, of.get(k)) for k, v in row._asdict().items() if v != of.get(k)},
                    )
        assert not found, f"seed {seed}: {sorted(found)} are in no row"
    print(f"{exchanges} exchanges of {seeds} seeds, {differences} differ")


def small_requests(count: int, together: int) -> Iterator[Entry]:
    """Yield runs of small requests and their responses."""
    for first in range(1, count + 1, together):
        now, ids = START_NS + first * 10_000, list(range(first, first + together))
        frames = [struct.pack(">ihhih50x", 60, 3, 12, number, 4) for number in ids]
        requests = Requests(first, 3, 12, 0, ids, [64] * together, ChunkTimes(now, now + 1000))
        about = requests, 0, requests.sizes
        yield Run(Side.CLIENT, first % 10, requests.times, [b"".join(frames)], *about)
        answers = b"".join(struct.pack(">ii56x", 60, number) for number in ids)
        times = ChunkTimes(now + 5000, now + 6000)
        yield Run(Side.BROKER, first % 10, times, [answers], *about)


def measure(count: int = 100_000) -> None:
    """Print what the follower takes for an exchange: CPU, best of some rounds."""
    for together in (1, 10):
        log, best = log_of(small_requests(count, together)), float("inf")
        for _ in range(_ROUNDS):
            begun = time.process_time()
            follow(log, lambda *_: None)
            best = min(best, time.process_time() - begun)
        print(f"{together} in a piece: {best / count * 1e6:.2f} µs per exchange")


def run(arguments: list[str]) -> int:
    """Run kproxy with the log in place of its recording."""
    from kproxy import cli
    from kproxy.net import recorder
    from kproxy.recording import rotation

    recorder.BatchBuilder = rotation.BatchBuilder = LogBuilder  # type: ignore[misc]
    rotation.Writer = LogWriter  # type: ignore[misc]
    return cli.main(["run", *arguments])


def main() -> None:
    """Do what was typed."""
    if sys.argv[1:2] == ["run"]:
        sys.exit(run(sys.argv[2:]))
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.log")
    parser.add_argument("what", choices=["check", "follow", "run"])
    parser.add_argument("--seeds", type=int, default=500)
    options = parser.parse_args()
    check(options.seeds) if options.what == "check" else measure()


if __name__ == "__main__":
    main()
