"""What an idle connection costs, and what it costs the others.

    python -m tests.benchmarks.connections [--idle 10000] [--busy 1000] [--rounds 3]

Holds idle connections through kproxy, each of which has asked once, and lets busy ones (Produce of
1 KB, one in flight each) work beside them, in turn with busy ones through a kproxy that holds no
idle ones. Prints what an idle connection takes of resident memory, what holding them costs per
second, and of the best round with and without them: CPU per request, requests per second, p50, p99,
and what that is as a ratio. Both record.

A connection takes two open files of kproxy, so 11,000 need a limit of 22,100 (`ulimit -Hn`; root
may raise it, this program does). Where the limit stays lower, it says so and holds fewer idle ones.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import struct
import subprocess
import tempfile
import time
from pathlib import Path

import trio

from tests.benchmarks.proxies import (
    LOAD,
    Figures,
    Workload,
    cpu_seconds,
    kproxy,
    measure,
    port,
    process,
    resident_mib,
    wait_for,
)

ASK = struct.pack(">ihhih", 10, 18, 0, 1, -1)
"""ApiVersions v0."""
FILES_BESIDE = 110
"""Open files of kproxy that are no connections of ours, and a few to spare."""
REST_SECONDS = 10


def open_files(wanted: int) -> int:
    """Raise the limit of open files, for this process and what it starts; return what it is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
    else:
        hard = wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def affordable(idle: int, busy: int) -> int:
    """Return how many idle connections there can be; say so if they are not as many as wanted."""
    limit = open_files((idle + busy) * 2 + FILES_BESIDE)
    possible = min(idle, (limit - FILES_BESIDE) // 2 - busy)
    if possible < 1:
        raise SystemExit(
            f"The limit of open files, {limit}, is too low for {busy} busy ones alone."
        )
    if possible < idle:
        print(
            f"The limit of open files is {limit} and may not be raised here, so kproxy can hold"
            f" {possible + busy} connections: {possible} idle ones instead of {idle}.",
            flush=True,
        )
    return possible


async def hold(listen: int, count: int, opened: trio.Event, done: trio.Event) -> None:
    """Open connections that ask once and then say nothing, until done."""
    limit = trio.CapacityLimiter(100)
    left = count

    async def one() -> None:
        nonlocal left
        async with limit:
            stream = await trio.open_tcp_stream("127.0.0.1", listen)
            await stream.send_all(ASK)
            if not await stream.receive_some(1000):
                raise RuntimeError("kproxy has closed an idle connection")
        left -= 1
        if not left:
            opened.set()
        await done.wait()
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        for _ in range(count):
            nursery.start_soon(one)


async def run(load: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure busy connections with and without idle ones beside them, in turn."""
    # The default is 10,000.
    more = ["--connections-max", str(options.idle + options.busy + 10)]
    broker = port()
    with (
        process(load, "server", "-addr", f"127.0.0.1:{broker}"),
        kproxy(broker, folder, *more) as alone,
        kproxy(broker, folder, *more) as beside,
    ):
        wait_for(broker)
        opened, done = trio.Event(), trio.Event()
        before, started = resident_mib(beside[1], "VmRSS"), time.monotonic()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, beside[0], options.idle, opened, done)
            await opened.wait()
            say_what_idle_ones_take(beside[1], options.idle, before, time.monotonic() - started)
            await trio.to_thread.run_sync(work, load, options, folder, alone, beside)
            done.set()


def say_what_idle_ones_take(pid: int, count: int, before: float, took: float) -> None:
    """Print what so many connections take while nothing happens on them."""
    held, used = resident_mib(pid, "VmRSS"), cpu_seconds(pid)
    time.sleep(REST_SECONDS)
    milliseconds = (cpu_seconds(pid) - used) / REST_SECONDS * 1000
    print(
        f"{count} idle: {held:.0f} MiB resident, {(held - before) * 1024 / count:.1f} KiB each"
        f" ({before:.0f} MiB before), opened in {took:.1f} s,"
        f" {milliseconds:.1f} ms of CPU a second while nothing happens",
        flush=True,
    )


def work(
    load: str,
    options: argparse.Namespace,
    folder: Path,
    alone: tuple[int, int],
    beside: tuple[int, int],
) -> None:
    """Load the proxy that holds nothing and the one that holds idle connections; print both."""
    busy = Workload("busy", f"-api produce -size 1000 -conns {options.busy} -depth 1")
    places = {"alone": alone, f"beside {options.idle} idle": beside}
    best: dict[str, Figures] = {}
    for _ in range(options.rounds):
        for name, (listen, pid) in places.items():
            figures = measure(load, busy, listen, pid, options.seconds, folder)
            if name not in best or figures.cpu < best[name].cpu:
                best[name] = figures
    files = len(list(Path(f"/proc/{beside[1]}/fd").iterdir()))
    if files < 2 * options.idle:
        raise RuntimeError(f"kproxy has only {files} files open: idle connections have ended")
    print(f"{options.busy} busy:")
    bound = best["alone"].cpu
    for name, f in best.items():
        print(
            f"  {name:20} {f.cpu:7.2f} µs/req {f.cpu / bound:5.2f}x {f.requests_per_second:9.0f}"
            f" req/s  p50 {f.p50_us:7.0f} µs  p99 {f.p99_us:7.0f} µs  {f.resident_mib:5.0f} MiB"
        )


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--busy", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    options.idle = affordable(options.idle, options.busy)
    with tempfile.TemporaryDirectory() as name:
        load = str(Path(name) / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        trio.run(run, load, options, Path(name))


if __name__ == "__main__":
    main()
