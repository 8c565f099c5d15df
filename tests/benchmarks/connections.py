"""What an idle connection costs, and what it costs the others.

    python -m tests.benchmarks.connections [--idle 10000] [--busy 1000]

Opens idle connections through kproxy, each of which has asked once, then lets busy ones work beside
them, and prints resident memory per connection and the CPU per request with and without the idle.
"""

from __future__ import annotations

import argparse
import resource
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import trio

from tests.benchmarks.proxies import (
    LOAD,
    Workload,
    kproxy,
    measure,
    port,
    process,
    resident_mib,
    wait_for,
)

ASK = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions v0."""


async def hold(listen: int, count: int, opened: trio.Event, done: trio.Event) -> None:
    """Open connections that ask once and then say nothing, until done."""
    limit = trio.CapacityLimiter(100)
    left = count

    async def one() -> None:
        nonlocal left
        async with limit:
            stream = await trio.open_tcp_stream("127.0.0.1", listen)
            await stream.send_all(ASK)
            await stream.receive_some(1000)
        left -= 1
        if not left:
            opened.set()
        await done.wait()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


async def run(load: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure with no connection, with idle ones, and with busy ones beside them."""
    busy = Workload("busy", f"-api produce -size 1000 -conns {options.busy} -depth 1")
    broker = port()
    with process(load, "server", "-addr", f"127.0.0.1:{broker}"):
        wait_for(broker)
        with kproxy(broker, folder) as (listen, pid):
            before = resident_mib(pid)
            alone = await trio.to_thread.run_sync(measure, load, busy, listen, pid, 3.0)
            print(f"{options.busy} busy alone: {alone}")
        with kproxy(broker, folder) as (listen, pid):
            opened, done = trio.Event(), trio.Event()
            async with trio.open_nursery() as nursery:
                started = time.monotonic()
                nursery.start_soon(hold, listen, options.idle, opened, done)
                await opened.wait()
                took = time.monotonic() - started
                held = resident_mib(pid)
                each = (held - before) * 1024 / options.idle
                print(
                    f"{options.idle} idle: {held:.0f} MiB ({each:.1f} KiB each, {before:.0f} MiB"
                    f" before), opened in {took:.1f} s"
                )
                beside = await trio.to_thread.run_sync(measure, load, busy, listen, pid, 3.0)
                print(f"{options.busy} busy beside them: {beside}")
                done.set()


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=1_000)
    options = parser.parse_args()
    files = options.idle * 2 + options.busy * 4 + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    with tempfile.TemporaryDirectory() as name:
        load = str(Path(name) / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        trio.run(run, load, options, Path(name))


if __name__ == "__main__":
    main()
