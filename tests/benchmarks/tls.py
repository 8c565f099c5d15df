"""What TLS on both sides costs through kproxy, beside HAProxy, in one run.

    python -m tests.benchmarks.tls [--rounds 10] [--seconds 2] [--only NAME …] [--before FOLDER]

Both end the TLS of the client and begin their own to the broker, with the same version and ciphers;
kproxy does not record. They have their turn in each round, the one or the other first, so that each
pair of CPU times has seen the same machine: the median of the ratios counts. With `--before`, the
working copy of an earlier kproxy has its turn, too. Needs go and haproxy.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import socket
import ssl
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import attrs

from tests.bed import certificates
from tests.bed.certificates import Certificates
from tests.benchmarks.proxies import (
    LOAD,
    Figures,
    Workload,
    kproxy,
    measure,
    medians,
    port,
    process,
    wait_for,
)

WORKLOADS = [
    Workload("produce 1KB 1x1", "-api produce -size 1000 -conns 1 -depth 1"),
    Workload("produce 1KB 4x16", "-api produce -size 1000 -conns 4 -depth 16"),
    Workload("fetch 1KB 4x16", "-api fetch -size 1000 -conns 4 -depth 16"),
    Workload("produce 1MB 2x2", "-api produce -size 1000000 -conns 2 -depth 2", True),
    Workload("fetch 1MB 2x2", "-api fetch -size 1000000 -conns 2 -depth 2", True),
]

Peer = Callable[[int, Path], contextlib.AbstractContextManager[tuple[int, int]]]
"""A function from the broker's port and a folder to a proxy: its port and process id."""


@attrs.frozen
class Agreed:
    """What a client and a server agree on."""

    version: str
    cipher: str


def agreed(address: int, made: Certificates) -> Agreed:
    """What a server agrees on with OpenSSL as a client, which kproxy and HAProxy are to brokers."""
    context = ssl.create_default_context(cafile=made.ca)
    with socket.create_connection(("127.0.0.1", address)) as sock:
        with context.wrap_socket(sock, server_hostname="localhost") as tls:
            return Agreed(tls.version(), tls.cipher()[0])


@contextlib.contextmanager
def haproxy(
    to_client: Agreed, to_broker: Agreed, made: Certificates, broker: int, folder: Path
) -> Iterator[tuple[int, int]]:
    """HAProxy on one thread, which ends and begins TLS as kproxy does."""
    listen = port()
    config = folder / "haproxy.cfg"
    bind, server = (
        f"ssl ssl-min-ver {each.version} ciphersuites {each.cipher}"
        for each in (to_client, to_broker)
    )
    config.write_text(
        "global\n nbthread 1\n maxconn 5000\n"
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 1h\n timeout server 1h\n"
        f"listen kafka\n bind 127.0.0.1:{listen} {bind} crt {made.broker}\n"
        f" server broker 127.0.0.1:{broker} {server} verify required ca-file {made.ca}\n"
    )
    with process("haproxy", "-db", "-f", str(config)) as running:
        wait_for(listen)
        yield listen, running.pid


def kproxy_in_tls(
    checkout: Path | None, made: Certificates, broker: int, folder: Path
) -> contextlib.AbstractContextManager[tuple[int, int]]:
    """kproxy with TLS on both sides, here or of another checkout."""
    tls = f"--no-record --listen-tls {made.broker} --broker-tls-ca {made.ca}"
    return kproxy(broker, folder, *tls.split(), checkout=checkout)


def peers(made: Certificates, broker: int, folder: Path, before: Path | None) -> dict[str, Peer]:
    """HAProxy, if it is there, and kproxy; the ciphers of both are kproxy's."""
    found: dict[str, Peer] = {"kproxy": partial(kproxy_in_tls, None, made)}
    if before is not None:
        found["before"] = partial(kproxy_in_tls, before, made)
    to_broker = agreed(broker, made)
    with found["kproxy"](broker, folder) as (listen, _):
        to_client = agreed(listen, made)
    print(f"{to_client.version} {to_client.cipher} to clients, {to_broker.cipher} to the broker")
    if not shutil.which("haproxy"):
        print("haproxy is not installed: nothing to compare with")
        return found
    bound = partial(haproxy, to_client, to_broker, made)
    with bound(broker, folder) as (listen, _):
        assert agreed(listen, made) == to_client
    return {"haproxy": bound} | found


def run(
    load: str, workload: Workload, made: Certificates, options: argparse.Namespace, folder: Path
) -> None:
    """Measure one workload through each proxy, alternating; print medians and ratios."""
    found: dict[str, list[Figures]] = {}
    broker = port()
    workload = attrs.evolve(workload, arguments=f"{workload.arguments} -tls {made.ca}")
    with process(load, "server", "-addr", f"127.0.0.1:{broker}", "-tls", str(made.broker)):
        wait_for(broker)
        present = list(peers(made, broker, folder, options.before).items())
        for number in range(options.rounds):
            for peer, start in reversed(present) if number % 2 else present:
                with start(broker, folder) as (listen, pid):
                    figures = measure(load, workload, listen, pid, options.seconds, folder)
                found.setdefault(peer, []).append(figures)
    unit = "s/GB" if workload.per_gb else "µs/req"
    print(workload.name)
    for peer, figures in found.items():
        middle, cpu = medians(figures), [each.cpu for each in figures]
        print(
            f"  {peer:8} {middle.cpu:7.2f} {unit:7} ({min(cpu):.2f} to {max(cpu):.2f})"
            f" {middle.requests_per_second:8.0f} req/s  p50 {middle.p50_us:6.0f}"
            f" p99 {middle.p99_us:6.0f} µs  {middle.resident_mib:4.0f} MiB"
        )
    for peer in ("haproxy", "before"):
        if peer in found:
            pairs = zip(found["kproxy"], found[peer], strict=True)
            ratios = sorted(ours.cpu / theirs.cpu for ours, theirs in pairs)
            middle = statistics.median(ratios)
            many = f"{len(ratios)} pairs, {ratios[0]:.3f} to {ratios[-1]:.3f}"
            print(f"  kproxy / {peer}: CPU {middle:.3f}x ({many})", flush=True)


def main() -> None:
    """Parse what was typed, build the load generator, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="names of workloads, or parts")
    parser.add_argument("--before", type=Path, help="the working copy of an earlier kproxy")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        load = str(folder / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=LOAD, check=True)
        made = certificates.make(folder / "certificates")
        for workload in WORKLOADS:
            if not options.only or any(part in workload.name for part in options.only):
                run(load, workload, made, options, folder)


if __name__ == "__main__":
    main()
