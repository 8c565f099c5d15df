"""An hour with real clients: does kproxy grow, slow down, or lose anything?

    python -m tests.benchmarks.soak [--minutes 60] [--restart-every 240] [--life 45]
                                    [--records-per-second 40] [--record-bytes 2000]

::

    soak_clients × 3 ──▶ kproxy run ──▶ Kafka 4.3.1, restarted every few minutes,
    a producer and         └─▶ parts      in order and by kill -9 in turn
    a group each                └─▶ counted, then deleted

Producers and consumers of confluent-kafka, kafka-python and aiokafka live for a while, end, and are
made anew. kproxy records, in parts of half a minute; each is read in full, and deleted. The load is
low, so that an hour can pass beside other work; the more records per second, the more of it.

Every minute prints a row: requests so far, CPU µs of kproxy per request in this minute, what it has
resident, open files, connections (now, and opened so far), MB recorded so far, frames lost,
restarts, records acknowledged so far, and errors of clients: those within GRACE_SECONDS of a
(re)start, and others. After an hour, or Ctrl-C, comes the verdict, in lines that begin with `ok` or
`FAILED`: whether the last third of the rows is like the first (medians; slopes by least squares),
whether the recording has every exchange, whether every group saw every record that was acknowledged
to any producer, and whether kproxy ended well. The exit code is 1 with FAILED, else 0.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import attrs
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bed import kafka
from tests.benchmarks.proxies import cpu_seconds, resident_mib
from tests.benchmarks.soak_clients import LIBRARIES, NUMBER, Settings
from tests.benchmarks.soak_recording import Counts, Parts

VERSION = "4.3.1"
TOPIC = "soak"
PARTITIONS = 4
ROTATE = "64MiB,30s"
GRACE_SECONDS = 30
"""So long after the broker is back clients may still complain."""
DRAIN_SECONDS = 120
"""How long it may take at the end until everything is acknowledged and seen."""
END_SECONDS = 60
MINUTES_MIN = 15
"""Shorter runs say little: memory settles in the first minutes."""
RESIDENT_GROWTH_MAX = 1.05
RESIDENT_GROWTH_MIB_MAX = 2
CPU_GROWTH_MAX = 1.15
HEADING = (
    "minute  requests  µs/req  RSS MiB  files  connections  MB recorded  lost  restarts    acked"
    "  errors: expected  others"
)


# The broker


@attrs.define
class Restarts:
    """Restarts the broker in a thread of its own; knows when that was."""

    broker: kafka.Kafka
    spans: list[tuple[float, float]]
    """From when till when it was away, the first time before everything began; the last one may
    still be open, until infinity."""
    _pool: ThreadPoolExecutor = attrs.field(factory=lambda: ThreadPoolExecutor(1))
    _pending: Future | None = None

    @property
    def count(self) -> int:
        """How many there were."""
        return len(self.spans) - 1

    def begin(self) -> None:
        """Restart it, in order or by force in turn; raises what went wrong with the last time."""
        self.wait()
        self._pending = self._pool.submit(self._restart, self.count % 2 == 1)

    def wait(self) -> None:
        """Wait until it is back."""
        if self._pending is not None:
            self._pending.result()

    def _restart(self, by_force: bool) -> None:
        started = time.time()
        self.spans.append((started, float("inf")))
        if by_force:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker.start()
        self.spans[-1] = (started, time.time())

    def explain(self, when: float) -> bool:
        """Whether an error at this time comes from a restart."""
        return any(start - 1 < when < end + GRACE_SECONDS for start, end in self.spans)


# The clients


@attrs.define(eq=False)
class Clients:
    """The processes of soak_clients, and what they complain about."""

    bootstrap: str
    libraries: list[str]
    settings: Settings
    processes: dict[str, subprocess.Popen] = attrs.field(factory=dict)
    said: queue.SimpleQueue = attrs.field(factory=queue.SimpleQueue)

    def start(self) -> None:
        """Start a process for each library."""
        folder = Path(self.settings.folder)
        for number, library in enumerate(self.libraries):
            settings = json.dumps(attrs.asdict(attrs.evolve(self.settings, library_number=number)))
            command = [sys.executable, "-m", "tests.benchmarks.soak_clients", library]
            with (folder / f"{library}.log").open("wb") as log:
                process = subprocess.Popen(
                    [*command, self.bootstrap, settings],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                )
            self.processes[library] = process
            threading.Thread(target=self._listen, args=(process,), daemon=True).start()

    def _listen(self, process: subprocess.Popen) -> None:
        for line in process.stdout:
            self.said.put(json.loads(line))

    def check(self) -> None:
        """Raises AssertionError when one has ended by itself."""
        for library, process in self.processes.items():
            log = Path(self.settings.folder) / f"{library}.log"
            assert process.poll() is None, f"{library} has ended: {log.read_text()[-3000:]}"

    def finish(self) -> None:
        """Have the producers end."""
        for process in self.processes.values():
            process.stdin.write("finish\n")
            process.stdin.flush()

    def numbers(self, library: str, what: str) -> list[int]:
        """The numbers of the records that are "acked" or "seen"."""
        data = (Path(self.settings.folder) / f"{library}.{what}").read_bytes()
        data = data[: len(data) // NUMBER.size * NUMBER.size]
        return [number for (number,) in NUMBER.iter_unpack(data)]

    def acked(self) -> int:
        """How many records are acknowledged so far."""
        folder = Path(self.settings.folder)
        return sum(path.stat().st_size for path in folder.glob("*.acked")) // NUMBER.size

    def missing(self) -> dict[str, int]:
        """By library: how many of the acknowledged records its group has not seen."""
        acked = {number for library in self.libraries for number in self.numbers(library, "acked")}
        return {each: len(acked - set(self.numbers(each, "seen"))) for each in self.libraries}

    def end(self) -> list[str]:
        """Have the consumers end, too; the libraries of which not everything did."""
        hanging = []
        for process in self.processes.values():
            process.stdin.close()
        for library, process in self.processes.items():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                hanging.append(library)
                process.kill()
                process.wait()
        return hanging


@attrs.define
class Complaints:
    """Errors of clients, by whether a restart explains them."""

    expected: int = 0
    others: Counter[str] = attrs.field(factory=Counter)
    finished: int = 0
    """How many producers have flushed and ended."""

    def take(self, said: queue.SimpleQueue, restarts: Restarts) -> None:
        """Sort what the clients have said."""
        with contextlib.suppress(queue.Empty):
            while True:
                event = said.get_nowait()
                if "finished" in event:
                    self.finished += 1
                elif event["known"] or restarts.explain(event["time"]):
                    self.expected += 1
                else:
                    self.others[f"{event['who']}: {event['error']}"] += 1


# kproxy


@contextlib.contextmanager
def proxy(bootstrap: str, folder: Path) -> Iterator[tuple[subprocess.Popen, str]]:
    """kproxy as a user runs it, with its log in a file; yields its process and its address."""
    command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", bootstrap]
    command += ["--listen", "127.0.0.1:0", "--quiet", "--rotate", ROTATE]
    command += ["--record", str(folder / "parts" / "soak.mcap")]
    with (folder / "kproxy.log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
        )
    try:
        address = process.stdout.readline().strip()
        assert address, f"kproxy has ended: {(folder / 'kproxy.log').read_text()}"
        yield process, address
    finally:
        process.kill()
        process.wait()


@attrs.frozen
class Row:
    """A minute."""

    minute: int
    requests: int
    cpu_us: float
    """Of kproxy, per request in this minute."""
    resident_mib: float
    files: int
    connections: int
    opened: int
    recorded_mb: float
    lost: int
    restarts: int
    acked: int
    expected: int
    others: int

    def __str__(self) -> str:
        return (
            f"{self.minute:6} {self.requests:9} {self.cpu_us:7.1f} {self.resident_mib:8.1f}"
            f" {self.files:6} {self.connections:5}/{self.opened:<6} {self.recorded_mb:11.1f}"
            f" {self.lost:5} {self.restarts:9} {self.acked:8} {self.expected:17} {self.others:7}"
        )


@attrs.define(eq=False)
class Soak:
    """Everything that runs, and what was seen of it."""

    process: subprocess.Popen
    """Of kproxy."""
    parts: Parts
    restarts: Restarts
    clients: Clients
    complaints: Complaints = attrs.field(factory=Complaints)
    rows: list[Row] = attrs.field(factory=list)
    _cpu: float = 0.0
    _requests: int = 0

    def run(self, minutes: int, restart_seconds: float) -> None:
        """Let it run, print a row each minute."""
        started = time.monotonic()
        due = started + restart_seconds
        print(HEADING, flush=True)
        for minute in range(1, minutes + 1):
            while time.monotonic() < started + 60 * minute:
                time.sleep(0.5)
                self.clients.check()
                assert self.process.poll() is None, "kproxy has ended; see its log"
                if time.monotonic() >= due:
                    due += restart_seconds
                    self.restarts.begin()
            self.rows.append(self.row(minute))
            print(self.rows[-1], flush=True)

    def row(self, minute: int) -> Row:
        """Look at everything."""
        found, used = self.parts.count(), cpu_seconds(self.process.pid)
        cpu_us = (used - self._cpu) / max(1, found.requests - self._requests) * 1e6
        self._cpu, self._requests = used, found.requests
        self.complaints.take(self.clients.said, self.restarts)
        return Row(
            minute=minute,
            requests=found.requests,
            cpu_us=cpu_us,
            resident_mib=resident_mib(self.process.pid, "VmRSS"),
            files=len(os.listdir(f"/proc/{self.process.pid}/fd")),
            connections=found.opened - found.closed,
            opened=found.opened,
            recorded_mb=found.file_bytes / 1e6,
            lost=found.lost,
            restarts=self.restarts.count,
            acked=self.clients.acked(),
            expected=self.complaints.expected,
            others=self.complaints.others.total(),
        )

    def drain(self) -> dict[str, int]:
        """End the producers, wait until all is seen; how many records each group has missed."""
        self.restarts.wait()
        self.clients.finish()
        deadline = time.monotonic() + DRAIN_SECONDS
        while True:
            self.complaints.take(self.clients.said, self.restarts)
            missing = self.clients.missing()
            done = self.complaints.finished == len(missing) and not any(missing.values())
            if done or time.monotonic() > deadline:
                return missing
            time.sleep(1)

    def shares(self, seconds: float) -> str:
        """What everything but the broker has used of a core."""
        pids = [process.pid for process in self.clients.processes.values()]
        used = {"kproxy": cpu_seconds(self.process.pid), "clients": sum(map(cpu_seconds, pids))}
        used["this program"] = cpu_seconds(os.getpid())
        return ", ".join(f"{name} {each / seconds:.1%}" for name, each in used.items())


# The verdict


def thirds(rows: list[Row], field: str) -> tuple[float, float, float]:
    """The medians of a column's first and last third, and its slope per hour."""
    values = [getattr(row, field) for row in rows]
    count = max(1, len(values) // 3)
    slope = 0.0
    if len(values) > 1:
        slope = statistics.linear_regression([row.minute / 60 for row in rows], values).slope
    return statistics.median(values[:count]), statistics.median(values[-count:]), slope


def steadiness(rows: list[Row]) -> list[tuple[bool, str]]:
    """Whether memory and CPU per request are at the end what they were at the beginning."""
    short = len(rows) < MINUTES_MIN
    remark = f"; not judged in less than {MINUTES_MIN} minutes" if short else ""
    before, after, slope = thirds(rows, "resident_mib")
    allowed = max(before * RESIDENT_GROWTH_MAX, before + RESIDENT_GROWTH_MIB_MAX)
    text = f"{before:.1f} MiB in the first third, {after:.1f} in the last ({slope:+.1f} an hour)"
    memory = (short or after <= allowed, f"resident: {text}{remark}")
    before, after, slope = thirds(rows, "cpu_us")
    text = f"{before:.1f} µs in the first third, {after:.1f} in the last ({slope:+.1f} an hour)"
    work = (short or after <= before * CPU_GROWTH_MAX, f"CPU per request: {text}{remark}")
    return [memory, work]


def verdict(soak: Soak, total: Counts, missing: dict[str, int], log: str) -> list[tuple[bool, str]]:
    """What was asked, and whether it is so."""
    found = steadiness(soak.rows)
    said = re.search(r"recorded (\d+) frames(, \d+ frames LOST)?", log)
    whole = total.highest == total.requests and not total.lost and said and not said[2]
    found.append(
        (
            bool(whole),
            (
                f"recording: {total.requests} requests, the last one has number {total.highest},"
                f" {total.lost} frames lost; kproxy says: {said[0] if said else 'nothing'}"
            ),
        )
    )
    for library, count in missing.items():
        acked, seen = (soak.clients.numbers(library, what) for what in ("acked", "seen"))
        twice = len(seen) - len(set(seen))
        text = f"{len(acked)} records acknowledged, {len(set(seen))} of all seen ({twice} again)"
        found.append((bool(acked) and not count, f"{library}: {text}, {count} missed"))
    others = soak.complaints.others.total()
    text = f"errors of clients: {soak.complaints.expected} around restarts, {others} others"
    found.append((not others, text))
    code = soak.process.returncode
    ended_well = code == 0 and "Traceback" not in log and "defect" not in log
    found.append(
        (ended_well, f"kproxy ended with {code}, {len(log.splitlines())} lines in its log")
    )
    return found


def conclude(soak: Soak, missing: dict[str, int], hanging: list[str], folder: Path) -> bool:
    """End kproxy, print the verdict; whether all of it is good."""
    soak.process.send_signal(signal.SIGINT)
    soak.process.wait(30)
    log = (folder / "kproxy.log").read_text()
    total = soak.parts.count()
    results = verdict(soak, total, missing, log)
    results.append((not hanging, f"clients that did not end: {', '.join(hanging) or 'none'}"))
    for good, text in results:
        print("ok    " if good else "FAILED", text)
    for text, count in soak.complaints.others.most_common(20):
        print(f"       {count} × {text}")
    kinds = Counter(re.sub(r"\d+", "N", line) for line in log.splitlines()[:-1])
    for text, count in kinds.most_common(10):
        print(f"       log: {count} × {text[:120]}")
    return all(good for good, _ in results)


def create_topic(broker: kafka.Kafka) -> None:
    """Make the topic that everybody uses."""
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
    config = {"segment.bytes": str(64 << 20)}  # so that a killed broker comes back quickly
    wanted = [NewTopic(TOPIC, PARTITIONS, 1, config=config)]
    for future in admin.create_topics(wanted).values():
        future.result(30)


def run(options: argparse.Namespace, folder: Path) -> bool:
    """Start everything, let it run, end it; whether the verdict is good."""
    broker = kafka.Kafka(VERSION, folder / "broker")
    settings = Settings(
        TOPIC, str(folder), 0, options.records_per_second, options.record_bytes, options.life
    )
    started = time.time()
    try:
        broker.start()
        create_topic(broker)
        with proxy(broker.address, folder) as (process, address):
            clients = Clients(address, options.libraries, settings)
            restarts = Restarts(broker, [(started, time.time())])
            soak = Soak(process, Parts(folder / "parts"), restarts, clients)
            try:
                clients.start()
                with contextlib.suppress(KeyboardInterrupt):
                    soak.run(options.minutes, options.restart_every)
                soak.rows = soak.rows or [soak.row(1)]
                print(f"CPU, of a core: {soak.shares(time.time() - restarts.spans[0][1])}")
                missing = soak.drain()
            finally:
                hanging = clients.end()
            return conclude(soak, missing, hanging, folder)
    finally:
        broker.kill()


def main() -> None:
    """Parse what was typed and run; what was written stays only if the verdict is bad."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--restart-every", type=float, default=240, help="seconds")
    parser.add_argument("--life", type=float, default=45, help="seconds that a client lives")
    parser.add_argument("--records-per-second", type=float, default=40, help="of each library")
    parser.add_argument("--record-bytes", type=int, default=2000)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--folder", default=None, help="where everything goes meanwhile")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="kproxy-soak-", dir=options.folder))
    good = False
    try:
        good = run(options, folder)
    finally:
        if good:
            shutil.rmtree(folder)
        else:
            print(f"what was written is in {folder}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
