"""What fault rules cost, and how exact they are.

    python -m tests.benchmarks.faults [--rounds 5] [--seconds 2] [--only cost delayed timer]

* `cost`: CPU per request without rules, and with 100 rules for other APIs, in turn through two
  proxies that run side by side; the median of the ratios of all rounds counts.
* `delayed`: 10,000 requests at once, each held for two seconds by a rule. What that takes of memory
  and CPU, and how late the last response is.
* `timer`: a latency of 100 ms, measured at a client that has one request in flight.

The load generator of `tests.benchmarks.proxies` is client and broker; needs go.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

from tests.benchmarks.proxies import (
    LOAD,
    Workload,
    cpu_seconds,
    kproxy,
    measure,
    port,
    process,
    resident_mib,
    wait_for,
)

WORKLOADS = [
    Workload("metadata 10x10", "-api metadata -conns 10 -depth 10"),
    Workload("produce 1KB 4x16", "-api produce -size 1000 -conns 4 -depth 16"),
]
OTHER_APIS = ("Heartbeat", "JoinGroup", "OffsetCommit", "FindCoordinator", "EndTxn")
"""APIs of which the workloads have no request."""

CONNECTIONS = 20
REQUESTS = 500
"""On each of them: together the delayed ones."""
HELD_SECONDS = 2.0
LATENCY_SECONDS = 0.1
SAMPLES = 100

_ASK = struct.Struct(">ihhih")
_ANSWER = struct.Struct(">ii")


def ask(correlation_id: int) -> bytes:
    """An ApiVersions request of version 0."""
    return _ASK.pack(10, 18, 0, correlation_id, -1)


def other_rules(folder: Path) -> list[str]:
    """100 rules that mean nothing that the workloads send."""
    path = folder / "others.toml"
    path.write_text(
        "".join(
            f'[[fault]]\nname = "rule {number}"\napi = "{OTHER_APIS[number % len(OTHER_APIS)]}"\n'
            f'client_id = "team-{number}-*"\nlatency = "10ms"\n'
            for number in range(100)
        )
    )
    return ["--faults", str(path)]


def cost(load: str, options: argparse.Namespace, folder: Path) -> None:
    """Compare the cost of a request without rules and with rules for others."""
    broker = port()
    rules = other_rules(folder)
    with (
        process(load, "server", "-addr", f"127.0.0.1:{broker}"),
        kproxy(broker, folder) as without,
        kproxy(broker, folder, *rules) as with_rules,
    ):
        wait_for(broker)
        for workload in WORKLOADS:
            found: dict[int, list[float]] = {without[0]: [], with_rules[0]: []}
            for number in range(options.rounds):
                pair = (without, with_rules) if number % 2 else (with_rules, without)
                for listen, pid in pair:
                    figures = measure(load, workload, listen, pid, options.seconds, folder)
                    found[listen].append(figures.cpu)
            plain, ruled = found.values()
            ratios = [ours / theirs for theirs, ours in zip(plain, ruled, strict=True)]
            print(
                f"{workload.name}: {min(plain):.2f} µs/req without rules, {min(ruled):.2f} with"
                f" 100 for others; ratio {statistics.median(ratios):.3f} (median of"
                f" {', '.join(f'{ratio:.3f}' for ratio in ratios)})",
                flush=True,
            )


def delayed(load: str, options: argparse.Namespace, folder: Path) -> None:
    """Hold 10,000 frames at once."""
    broker = port()
    rule = ["--fault", f"api=ApiVersions latency={HELD_SECONDS:g}s"]
    with (
        process(load, "server", "-addr", f"127.0.0.1:{broker}"),
        kproxy(broker, folder, *rule) as (listen, pid),
    ):
        wait_for(broker)
        rest_mib, used, started = resident_mib(pid, "VmRSS"), cpu_seconds(pid), time.monotonic()
        late = trio.run(_all_at_once, listen)
        count = CONNECTIONS * REQUESTS
        print(
            f"{count} requests held at once: {resident_mib(pid) - rest_mib:.1f} MiB more at the"
            f" most ({rest_mib:.0f} before), {(cpu_seconds(pid) - used) / count * 1e6:.0f} µs of"
            f" CPU each; responses {min(late) * 1000:.1f} to {max(late) * 1000:.1f} ms late, all"
            f" in {time.monotonic() - started:.2f} s",
            flush=True,
        )


async def _all_at_once(listen: int) -> list[float]:
    """Send all requests at once; return by how much more than told each response was late."""
    late: list[float] = []

    async def one() -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", listen)
        sent = trio.current_time()
        await stream.send_all(b"".join(map(ask, range(REQUESTS))))
        data = b""
        for _ in range(REQUESTS):
            data = await _response(stream, data)
            late.append(trio.current_time() - sent - HELD_SECONDS)
        await stream.aclose()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(CONNECTIONS):
                nursery.start_soon(one)
    return late


async def _response(stream: trio.SocketStream, data: bytes) -> bytes:
    """Read one response; return what has arrived behind it."""
    while len(data) < 4 or len(data) < 4 + _ANSWER.unpack_from(data.ljust(8, b"\0"))[0]:
        more = await stream.receive_some(65536)
        if not more:
            raise RuntimeError("kproxy has closed the connection")
        data += more
    return data[4 + _ANSWER.unpack_from(data)[0] :]


def timer(load: str, options: argparse.Namespace, folder: Path) -> None:
    """Measure a latency of 100 ms at a client."""
    broker = port()
    rule = ["--fault", f"api=ApiVersions latency={LATENCY_SECONDS * 1000:g}ms"]
    with (
        process(load, "server", "-addr", f"127.0.0.1:{broker}"),
        kproxy(broker, folder, *rule) as (listen, _),
    ):
        wait_for(broker)
        late = sorted(trio.run(_one_by_one, listen))
        p50, p99 = late[len(late) // 2], late[int(len(late) * 0.99)]
        print(
            f"a latency of 100 ms is {late[0] * 1000:.2f} ms late at the least,"
            f" {p50 * 1000:.2f} p50, {p99 * 1000:.2f} p99",
            flush=True,
        )


async def _one_by_one(listen: int) -> list[float]:
    """Send requests in turn; return by how much more than told each response was late."""
    late: list[float] = []
    stream = await trio.open_tcp_stream("127.0.0.1", listen)
    for number in range(SAMPLES):
        sent = trio.current_time()
        await stream.send_all(ask(number))
        await _response(stream, b"")
        late.append(trio.current_time() - sent - LATENCY_SECONDS)
    await stream.aclose()
    return late


PARTS: dict[str, Callable[[str, argparse.Namespace, Path], None]] = {
    "cost": cost,
    "delayed": delayed,
    "timer": timer,
}


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = str(folder / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        for part in options.only:
            PARTS[part](load, options, folder)


if __name__ == "__main__":
    main()
