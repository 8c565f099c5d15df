"""Where the CPU time of a recording proxy goes, one step after the other.

    python -m tests.benchmarks.steps [--rounds 5] [--seconds 2] [--only NAME …]

For each workload: what the kernel and the interpreter take of a whole `kproxy run`, with and
without a recording (`/proc/PID/stat`, under the load generator), and what each step takes when it
is done alone, in this process, with chunks like those of that run::

    machine       framing, pairing, addresses: `Cluster.receive`
    + pieces      `Encoder.chunks`
    + file        CRC, and writing
    + compression

A step is the difference of two runs, one with it and one without; they are alternated, and the
median of the rounds counts. What is left of the interpreter's time is the pump, the selector, trio,
and handing entries to the writer's thread. Needs go, on Linux.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import attrs

from kproxy import __version__
from kproxy.exchange.entries import Entry, Side
from kproxy.proxy.actions import Action, Listen, RecordEntries, Send
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.machine import Accepted
from kproxy.proxy.settings import Settings
from kproxy.recording import Writer
from kproxy.recording.encoding import Encoder
from kproxy.wire.protocol import schema
from tests.benchmarks import proxies

CONNECTIONS = 4
CHUNKS_PER_FLUSH = 400
"""About what comes in 50 ms."""

Sink = Callable[[list[Entry]], object]


@attrs.frozen
class Exchanges:
    """A workload: what it is to the load generator, and one chunk of requests with the chunks of
    their responses."""

    name: str
    depth: int
    """The number of exchanges in them."""
    requests: Sequence[bytes]
    responses: Sequence[bytes]


def frame(*parts: bytes) -> bytes:
    """A size and what it is of."""
    body = b"".join(parts)
    return len(body).to_bytes(4) + body


def text(value: str) -> bytes:
    """A string with its length."""
    return len(value).to_bytes(2) + value.encode()


def json_text(size: int, chance: random.Random) -> bytes:
    """JSON of about that many bytes, as an application would produce."""
    parts: list[str] = []
    while sum(map(len, parts)) < size:
        order = {
            "order_id": chance.randrange(10**9),
            "customer": f"customer-{chance.randrange(10_000)}",
            "amount": round(chance.uniform(1, 500), 2),
            "status": chance.choice(("NEW", "PAID", "SHIPPED")),
        }
        parts.append(json.dumps(order))
    return "".join(parts).encode()[:size]


def request(key: int, version: int, number: int, *body: bytes) -> bytes:
    """A request of the load generator."""
    head = key.to_bytes(2) + version.to_bytes(2) + number.to_bytes(4) + text("load")
    return frame(head, *body)


def int32(value: int) -> bytes:
    """Four bytes."""
    return value.to_bytes(4, signed=True)


def metadata(number: int) -> tuple[bytes, bytes]:
    """Metadata v1 of one topic, and the response."""
    broker = int32(1) + int32(0) + text("127.0.0.1") + int32(9092) + b"\xff\xff"
    topic = b"\0\0" + text("load") + b"\0" + int32(1) + b"\0\0" + int32(0) * 2
    response = broker + int32(0) + int32(1) + topic + (int32(1) + int32(0)) * 2
    return request(3, 1, number, int32(-1)), frame(int32(number), response)


def produce(number: int, payload: bytes) -> tuple[bytes, bytes]:
    """Produce v3 of one batch, and the response."""
    named = int32(1) + text("load") + int32(1) + int32(0)
    asked = b"\xff\xff\0\1" + int32(30_000) + named + int32(len(payload)) + payload
    answer = int32(number) + named + bytes(10) + b"\xff" * 8 + int32(0)
    return request(0, 3, number, asked), frame(answer)


def fetch(number: int, payload: bytes) -> tuple[bytes, bytes]:
    """Fetch v4 of one partition, and the response."""
    named = int32(1) + text("load") + int32(1) + int32(0)
    asked = int32(-1) + int32(500) + int32(1) + int32(1 << 20) + b"\0" + named + bytes(12)
    answer = int32(number) + int32(0) + named + bytes(18) + int32(-1) + int32(len(payload))
    return request(1, 4, number, asked), frame(answer, payload)


def workloads() -> Iterable[Exchanges]:
    """Those of `proxies` that the manual has."""
    chance = random.Random(5)
    for name, depth, exchange in (
        ("small 1x1", 1, metadata),
        ("small 10x10", 10, metadata),
        ("produce 1KB 4x16", 16, lambda n: produce(n, json_text(1000, chance))),
    ):
        asked, answered = zip(*(exchange(n) for n in range(depth)), strict=True)
        yield Exchanges(name, depth, [b"".join(asked)], [b"".join(answered)])
    for name, size, exchange in (
        ("fetch 100KB 4x4", 100_000, fetch),
        ("fetch 1MB 2x2", 1_000_000, fetch),
        ("produce 1MB 2x2", 1_000_000, produce),
    ):
        payload = json_text(10_000, chance) * (size // 10_000)
        both = [[*_chunks(each)] for each in exchange(1, payload)]
        yield Exchanges(name, 1, *both)


def _chunks(data: bytes) -> Iterable[bytes]:
    """What a socket gives at once of it."""
    for start in range(0, len(data), 256 << 10):
        yield data[start : start + (256 << 10)]


class Alone:
    """A machine whose actions are performed without sockets."""

    def __init__(self) -> None:
        self.cluster = Cluster(Settings([("127.0.0.1", 9092)]))
        self.entries: list[Entry] = []
        for number in range(1, CONNECTIONS + 1):
            client = Accepted(number, None, "127.0.0.1:5000", ("127.0.0.1", 19092))
            self.perform(self.cluster.accepted(client, time.time_ns()))
            self.perform(self.cluster.dialled(number, "127.0.0.1:9092", time.time_ns()))

    def perform(self, actions: Iterable[Action]) -> None:
        """Send and record."""
        for action in actions:
            kind = type(action)
            if kind is Send:
                now = time.time_ns()
                for times in action.timed:
                    times.sent_ns = now
                self.entries += action.entries
            elif kind is RecordEntries:
                self.entries += action.entries
            elif kind is Listen:
                self.perform(self.cluster.listening(action.node_id, ("127.0.0.1", 1), 1))

    def run(self, work: Exchanges, rounds: int, sink: Sink) -> float:
        """Return the CPU seconds that so many rounds of the chunks take."""
        receive, perform = self.cluster.receive, self.perform
        numbers = itertools.cycle(range(1, CONNECTIONS + 1))
        started = time.process_time()
        for nth, number in zip(range(rounds), numbers, strict=False):
            for side, chunks in ((Side.CLIENT, work.requests), (Side.BROKER, work.responses)):
                for chunk in chunks:
                    # As received: bytes of its own.
                    data = bytes(memoryview(chunk))
                    perform(receive(number, side, data, time.time_ns()))
            if nth % CHUNKS_PER_FLUSH == 0:
                sink(self.entries)
                self.entries = []
        sink(self.entries)
        return time.process_time() - started


def forget(entries: list[Entry]) -> None:
    """Take entries, and do nothing with them."""


def pieces() -> Sink:
    """Return what makes chunks of entries."""
    encoder = Encoder()
    return lambda entries: [*encoder.chunks(entries)]


def alone(work: Exchanges, rounds: int, folder: Path) -> dict[str, float]:
    """Return the CPU seconds with more and more of the steps."""
    taken: dict[str, float] = {}
    for name in STEPS:
        path = folder / f"{name}.mcap"
        sink = forget if name == "machine" else pieces()
        writer = None
        if name in ("file", "compression"):
            how = "none" if name == "file" else "adaptive"
            about = {"schema_id": schema.schema_id(), "library_version": __version__}
            writer = Writer(path, start_ns=1, compression=how, **about)
            sink = writer.write
        taken[name] = Alone().run(work, rounds, sink)
        if writer is not None:
            writer.close()
            path.unlink()
    return taken


def whole(load: str, work: Exchanges, seconds: float, folder: Path, *options: str) -> list[float]:
    """Return what one exchange costs a whole proxy, in µs: of user and of system time."""
    about = next(each for each in proxies.WORKLOADS if each.name == work.name)
    broker = proxies.port()
    with proxies.process(load, "server", "-addr", f"127.0.0.1:{broker}"):
        proxies.wait_for(broker)
        with proxies.kproxy(broker, folder, *options) as (listen, pid):
            command = [load, "client", "-addr", f"127.0.0.1:{listen}", *about.arguments.split()]
            before, started = times_of(pid), time.monotonic()
            done = subprocess.run(
                [*command, "-secs", str(seconds)], capture_output=True, text=True, check=True
            )
            wall = time.monotonic() - started
            rate = float(done.stdout.partition("req/s=")[2].split()[0])
            used = [b - a for a, b in zip(before, times_of(pid), strict=True)]
    return [each * 1e6 / (rate * wall) for each in used]


def times_of(pid: int) -> list[float]:
    """User and system seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return [int(field) / proxies.TICKS for field in fields[11:13]]


def show(work: Exchanges, found: Sequence[dict[str, float]], rounds: int) -> None:
    """Print the table of a workload."""
    middle = {name: statistics.median(each[name] for each in found) for name in found[0]}
    per = 1e6 / (rounds * work.depth)
    steps = list(itertools.pairwise([0.0, *(middle[name] * per for name in STEPS)]))
    print(f"\n{work.name}, µs per exchange")
    for name, (before, after) in zip(STEPS, steps, strict=True):
        print(f"  {name:12} {after - before:8.1f}")
    for name in ("recording", "not recording"):
        user, system = (middle[f"{name} {each}"] for each in ("user", "system"))
        known = steps[-1][1] if name == "recording" else steps[0][1]
        text = f"kernel {system:.1f}, interpreter and libraries {user:.1f}"
        print(f"  {name}: {text}, of it beside the steps {user - known:.1f}", flush=True)


STEPS = ("machine", "pieces", "file", "compression")


def main() -> None:
    """Parse what was typed, build the load generator, measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--only", nargs="*", default=[], help="names of workloads, or parts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, load = Path(name), str(Path(name) / "load")
        subprocess.run(["go", "build", "-o", load, "."], cwd=proxies.LOAD, check=True)
        for work in workloads():
            if options.only and not any(part in work.name for part in options.only):
                continue
            rounds = max(200, min(20_000, 400_000_000 // sum(map(len, work.responses))) // 4)
            found = []
            for _ in range(options.rounds):
                taken = alone(work, rounds, folder)
                for kind, more in (("recording", ()), ("not recording", ("--no-record",))):
                    user, system = whole(load, work, options.seconds, folder, *more)
                    taken |= {f"{kind} user": user, f"{kind} system": system}
                found.append(taken)
            show(work, found, rounds)


if __name__ == "__main__":
    main()
