"""What a request costs through kproxy, beside HAProxy and Toxiproxy, in one run.

    python -m tests.benchmarks.proxies [--rounds 3] [--seconds 3] [--only NAME …] [--before FOLDER]

A load generator (tests/benchmarks/load, Go) works through each proxy in turn, again and again. Of
each figure the median counts: CPU time of the proxy per request (or per GB), which is far steadier
than wall time, and requests per second, p50, p99, p999 and resident memory beside it. Below, what
recording costs against not recording, and what it wrote against what the disk takes. With
`--before`, the working copy of an earlier kproxy, each round has both in turn, the one or the other
first, and the ratio of their CPU times is shown pair by pair: so it holds on a noisy machine.
HAProxy in TCP mode is the bound: C, no Kafka, no recording. Needs go, and haproxy and toxiproxy
where they are to be compared (HAProxy is a package of most systems, Toxiproxy a Go module with
`cmd/server`, named by TOXIPROXY or found as toxiproxy-server).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs

LOAD = Path(__file__).parent / "load"
TICKS = os.sysconf("SC_CLK_TCK")
BEFORE = ", before"
"""Marks a peer that is an earlier kproxy."""


@attrs.frozen
class Workload:
    """One way to load a proxy."""

    name: str
    arguments: str
    per_gb: bool = False
    """Whether its CPU time counts per GB, not per request."""


WORKLOADS = [
    Workload("small 1x1", "-api metadata -conns 1 -depth 1"),
    Workload("small 10x10", "-api metadata -conns 10 -depth 10"),
    Workload("produce 1KB 4x16", "-api produce -size 1000 -conns 4 -depth 16"),
    Workload("produce 1KB 4x16 new", "-new -api produce -size 1000 -conns 4 -depth 16"),
    Workload("fetch 100KB 4x4", "-api fetch -size 100000 -conns 4 -depth 4"),
    Workload("produce 100KB 4x4", "-api produce -size 100000 -conns 4 -depth 4", True),
    Workload("produce 1MB 2x2", "-api produce -size 1000000 -conns 2 -depth 2", True),
    Workload("fetch 1MB 2x2", "-api fetch -size 1000000 -conns 2 -depth 2", True),
    Workload("produce 1MB 2x2 new", "-new -api produce -size 1000000 -conns 2 -depth 2", True),
    Workload("fetch 1MB 2x2 new", "-new -api fetch -size 1000000 -conns 2 -depth 2", True),
]


@attrs.frozen
class Figures:
    """What one round gave."""

    cpu: float
    """Microseconds per request, or seconds per GB."""
    requests_per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    resident_mib: float
    recorded_mb_per_second: float
    """What the recording grew by."""


def port() -> int:
    """A port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """User and system time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid: int, field: str = "VmHWM") -> float:
    """The most memory that a process has had resident; by VmRSS what it has now."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+)", status)[1]) / 1024


def wait_for(address: int) -> None:
    """Wait until something listens at a port."""
    for _ in range(200):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", address), 0.2):
            return
        time.sleep(0.05)
    raise RuntimeError(f"nothing listens at {address}")


@contextlib.contextmanager
def process(*command: str, **options) -> Iterator[subprocess.Popen]:
    """A program that runs as long as the block."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    running = subprocess.Popen(command, **(quiet | options))
    try:
        yield running
    finally:
        running.terminate()
        running.wait(10)


@contextlib.contextmanager
def haproxy(broker: int, folder: Path) -> Iterator[tuple[int, int]]:
    """HAProxy as a TCP proxy on one thread; yields its port and process id."""
    listen = port()
    config = folder / "haproxy.cfg"
    config.write_text(
        "global\n nbthread 1\n maxconn 5000\n"
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n"
        f"listen kafka\n bind 127.0.0.1:{listen}\n server broker 127.0.0.1:{broker}\n"
    )
    with process("haproxy", "-db", "-f", str(config)) as running:
        wait_for(listen)
        yield listen, running.pid


@contextlib.contextmanager
def toxiproxy(broker: int, folder: Path) -> Iterator[tuple[int, int]]:
    """Toxiproxy without toxics."""
    listen, control = port(), port()
    program = os.environ.get("TOXIPROXY", "toxiproxy-server")
    with process(program, "-port", str(control)) as running:
        wait_for(control)
        proxy = {
            "name": "kafka",
            "listen": f"127.0.0.1:{listen}",
            "upstream": f"127.0.0.1:{broker}",
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{control}/proxies", json.dumps(proxy).encode(), method="POST"
        )
        urllib.request.urlopen(request).read()
        yield listen, running.pid


@contextlib.contextmanager
def kproxy(
    broker: int,
    folder: Path,
    *options: str,
    checkout: Path | None = None,
) -> Iterator[tuple[int, int]]:
    """kproxy, here or of another checkout; with a recording that is removed afterwards, unless told
    otherwise."""
    record = ["--record", str(folder / f"{time.monotonic_ns()}.mcap")]
    command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", f"127.0.0.1:{broker}"]
    command += ["--listen", "127.0.0.1:0", "--quiet"]
    command += record if "--no-record" not in options else []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with process(*command, *options, cwd=checkout, **pipes) as running:
        yield int(running.stdout.readline().strip().rpartition(":")[2]), running.pid
        running.terminate()
        said = running.stderr.read()
        if "LOST" in said:
            print(said.strip().splitlines()[-1])
    for file in folder.glob("*.mcap"):
        file.unlink()


@contextlib.contextmanager
def direct(broker: int, folder: Path) -> Iterator[tuple[int, int]]:
    """No proxy at all; the figures are the broker's own."""
    yield broker, os.getpid()


def peers(before: Path | None) -> dict[str, Callable]:
    """The proxies that this machine has, HAProxy first."""
    found: dict[str, Callable] = {}
    if shutil.which("haproxy"):
        found["haproxy"] = haproxy
    if shutil.which(os.environ.get("TOXIPROXY", "toxiproxy-server")):
        found["toxiproxy"] = toxiproxy
    for options in ((), ("--no-record",), ("--control", "127.0.0.1:0")):
        name = " ".join(("kproxy", *options[:1]))
        found[name] = partial(kproxy_with, options, None)
        if before is not None:
            found[name + BEFORE] = partial(kproxy_with, options, before)
    return found


def kproxy_with(
    options: Sequence[str], checkout: Path | None, broker: int, folder: Path
) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """kproxy with options, as a peer."""
    return kproxy(broker, folder, *options, checkout=checkout)


def measure(
    load: str, workload: Workload, listen: int, pid: int, seconds: float, folder: Path
) -> Figures:
    """Load one proxy once."""
    before = cpu_seconds(pid)
    command = [load, "client", "-addr", f"127.0.0.1:{listen}", *workload.arguments.split()]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "-secs", str(seconds)], capture_output=True, text=True, check=True
    )
    wall = time.monotonic() - started
    used = cpu_seconds(pid) - before
    recorded = sum(path.stat().st_size for path in folder.glob("*.mcap"))
    words = dict(word.split("=", 1) for word in done.stdout.split() if "=" in word)
    rate = float(words["req/s"])
    work = float(words["MB/s"]) * wall / 1000 if workload.per_gb else rate * wall / 1e6
    return Figures(
        used / work if work else float("nan"),
        rate,
        float(words["p50us"]),
        float(words["p99us"]),
        float(words["p999us"]),
        resident_mib(pid),
        recorded / wall / 1e6,
    )


def disk_mb_per_second(folder: Path) -> float:
    """What the disk takes past the page cache, by dd."""
    path, mib = folder / "dd", 1024
    command = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={mib}", "oflag=direct"]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, check=False)
    seconds = time.monotonic() - started
    path.unlink(missing_ok=True)
    return float("nan") if done.returncode else mib * 1.048576 / seconds


def medians(found: list[Figures]) -> Figures:
    """The median of each figure."""
    columns = zip(*(attrs.astuple(figures) for figures in found), strict=True)
    return Figures(*map(statistics.median, columns))


def run(load: str, workload: Workload, options: argparse.Namespace) -> None:
    """Measure one workload through every proxy, alternating, and print the medians of each."""
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, broker = Path(name), port()
        with process(load, "server", "-addr", f"127.0.0.1:{broker}", "-payload", options.payload):
            wait_for(broker)
            for number in range(options.rounds):
                present = list(peers(options.before).items())
                for peer, start in reversed(present) if number % 2 else present:
                    if options.peers and peer not in options.peers:
                        continue
                    with start(broker, folder) as (listen, pid):
                        figures = measure(load, workload, listen, pid, options.seconds, folder)
                    found.setdefault(peer, []).append(figures)
            disk = disk_mb_per_second(folder)
    middle = {peer: medians(figures) for peer, figures in found.items()}
    bound = middle.get("haproxy")
    unit = "s/GB" if workload.per_gb else "µs/req"
    print(f"\n{workload.name} ({options.payload})")
    for peer, f in middle.items():
        ratio = f"{f.cpu / bound.cpu:5.2f}x" if bound else ""
        print(
            f"  {peer:20} {f.cpu:7.2f} {unit:7} {ratio:7} {f.requests_per_second:9.0f} req/s"
            f"  p50 {f.p50_us:7.0f} p99 {f.p99_us:7.0f} p999 {f.p999_us:7.0f} µs"
            f"  {f.resident_mib:5.0f} MiB",
            flush=True,
        )
    for peer in middle:
        if peer + BEFORE in middle:
            pairs(peer, found[peer], found[peer + BEFORE])
    if "kproxy" in middle and "kproxy --no-record" in middle:
        beside(middle["kproxy"], middle["kproxy --no-record"], disk)


def pairs(peer: str, now: list[Figures], before: list[Figures]) -> None:
    """Print the ratios of CPU times and of tails, of all pairs."""
    each = list(zip(now, before, strict=True))
    cpu = spread([a.cpu / b.cpu for a, b in each])
    p99 = spread([a.p99_us / b.p99_us for a, b in each])
    print(f"  {peer} / before, {len(each)} pairs: CPU {cpu}, p99 {p99}", flush=True)


def spread(ratios: list[float]) -> str:
    """The median of ratios, the least and the greatest."""
    return f"{statistics.median(ratios):.3f}x ({min(ratios):.3f} to {max(ratios):.3f})"


def beside(recording: Figures, not_recording: Figures, disk: float) -> None:
    """Print what recording costs, as ratios."""
    ratios = {
        "CPU": recording.cpu / not_recording.cpu,
        "req/s": recording.requests_per_second / not_recording.requests_per_second,
        "p50": recording.p50_us / not_recording.p50_us,
        "p99": recording.p99_us / not_recording.p99_us,
        "p999": recording.p999_us / not_recording.p999_us,
    }
    text = ", ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
    written = recording.recorded_mb_per_second
    print(f"  recording / not recording: {text}")
    print(f"  recorded {written:.0f} MB/s, {written / disk:.2f}x what dd oflag=direct writes")


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--payload", default="json", choices=["json", "zeros", "random"])
    parser.add_argument("--only", nargs="*", default=[], help="names of workloads, or parts")
    parser.add_argument("--peers", nargs="*", default=[], help="names of proxies")
    parser.add_argument("--folder", default=None, help="where recordings go meanwhile")
    parser.add_argument("--before", type=Path, help="the working copy of an earlier kproxy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        load = str(Path(folder) / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        for workload in WORKLOADS:
            if not options.only or any(part in workload.name for part in options.only):
                run(load, workload, options)


if __name__ == "__main__":
    main()
