"""Kafka's own measuring tools against a real broker, direct and through kproxy, in one run.

    python -m tests.benchmarks.kafka_perf [--rounds 3] [--seconds 10] [--shares 0.55]
                                          [--only producer|consumer]

producer-perf and consumer-perf (the jar kafka-tools) work with Kafka 4.3.1, which tests/bed starts
from Maven artifacts: direct, through kproxy, and through a kproxy that does not record, in turn.
Each first as fast as it goes, then limited to shares of what it reached directly (by --throughput
of producer-perf; consumer-perf knows no limit, so the broker has a quota for it): then there may be
a core to spare, and the ratio says whether kproxy keeps up. Records are 1000 bytes of JSON.

Of the best round (most records per second; where the rate is given, the lowest p99) a line says:

* MB/s, records per second and p99 as the tool prints them, and the rate as a ratio to the direct
  one. MB is 2^20 bytes there. What producer-perf says is of its steady state, without the first
  tenth (the rate under a limit is that of the whole run, because the tool makes up for a slow
  beginning); the rates of consumer-perf leave out the time until its group had formed; it has no
  p99.
* CPU time of kproxy in seconds per GB of records (10^9 bytes), and as a share of a core meanwhile.
* How busy the machine was while the tool ran, in % of all its cores: idle, and used by others than
  tool, broker and kproxy (the kernel's threads that write files back are among them). Broker, tool
  and kproxy would like a core each: where they share fewer, the ratio says what kproxy takes away
  from the other two, not what it can do.
* MB/s of every round, so that the noise can be seen.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import attrs
from confluent_kafka.admin import AdminClient, NewTopic

from tests.bed import jvm, kafka
from tests.benchmarks.proxies import cpu_seconds, direct, kproxy

VERSION = "4.3.1"
TOOLS = "org.apache.kafka.tools"
RECORD_BYTES = 1000
PARTITIONS = 3
LIMITED = "limited"
"""The client id whose fetches the broker's quota limits."""
HOTSPOT = {"_JAVA_OPTIONS": "-XX:TieredStopAtLevel=4"}
"""Broker and tools run long enough here for the better compiler, which the test bed leaves off."""
WAYS: dict[str, Callable] = {
    "direct": direct,
    "kproxy": kproxy,
    "kproxy --no-record": lambda broker, folder: kproxy(broker, folder, "--no-record"),
}


@attrs.define(eq=False)
class Broker(kafka.Kafka):
    """A broker whose quotas count from the first second on, where others forgive the first ten."""

    def _configure(self) -> None:
        super()._configure()
        with (self.folder / "server.properties").open("a") as file:
            file.write("quota.window.num=2\nquota.window.size.seconds=1\n")


@attrs.frozen
class Figures:
    """What one run of a tool gave."""

    mb_per_second: float
    records_per_second: float
    p99_ms: float | None
    proxy_seconds: float
    """CPU time that kproxy has used."""
    wall_seconds: float
    idle: float
    """Share of all cores that nobody used."""
    others: float
    """Share of all cores that others used than the tool, the broker and the proxy."""


@attrs.frozen
class Bed:
    """What every run needs."""

    broker: Broker
    admin: AdminClient
    payload: Path
    """Records, one per line."""
    folder: Path
    """Where recordings go meanwhile."""


# The tools


def command(tool: str, *arguments: str) -> list[str]:
    """The command that runs one of Kafka's tools."""
    return jvm.java([jvm.kafka_jars(VERSION)], tool, *arguments, heap="512m")


def producer(bed: Bed, port: int, topic: str, records: int, limit: int) -> list[str]:
    """The command for producer-perf; a limit of -1 is none."""
    return command(
        f"{TOOLS}.ProducerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic),
        *("--num-records", str(records), "--warmup-records", str(records // 10)),
        *("--throughput", str(limit), "--payload-file", str(bed.payload)),
    )


def produced(said: str, limit: int) -> tuple[float, float, float | None]:
    """MB/s, records per second and p99 from what producer-perf says.

    With a limit the rates are those of all records: the tool makes up for a slow beginning.
    """
    pattern = r"records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).* (\d+) ms 99th"
    found = re.findall(pattern, said)
    assert len(found) == 2, said
    whole, steady = found
    rate = whole if limit > 0 else steady
    return float(rate[1]), float(rate[0]), float(steady[2])


def consumer(bed: Bed, port: int, topic: str, records: int, limit: int) -> list[str]:
    """The command for consumer-perf; with a limit its client id is the one that has a quota."""
    return command(
        f"{TOOLS}.ConsumerPerformance",
        *("--bootstrap-server", f"127.0.0.1:{port}", "--topic", topic),
        *("--num-records", str(records), "--hide-header"),
        *(("--command-property", f"client.id={LIMITED}") if limit > 0 else ()),
    )


def consumed(said: str, limit: int) -> tuple[float, float, float | None]:
    """MB/s and records per second from what consumer-perf says, without the time for its group."""
    fields = said.strip().splitlines()[-1].split(", ")
    assert len(fields) == 10, said
    return float(fields[8]), float(fields[9]), None


# One run


def machine_seconds() -> tuple[float, float]:
    """What all cores have been idle so far, and what they have been busy."""
    line = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, idle, wait, *rest = map(int, line.split()[1:9])
    ticks = os.sysconf("SC_CLK_TCK")
    return (idle + wait) / ticks, (user + nice + system + sum(rest)) / ticks


def children_seconds() -> float:
    """CPU time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(bed: Bed, line: list[str], parse: Callable, pid: int, limit: int = -1) -> Figures:
    """Run a tool once; `pid` is the proxy's, or our own."""
    assert bed.broker.process

    def clocks() -> list[float]:
        known = [children_seconds(), cpu_seconds(bed.broker.process.pid), cpu_seconds(pid)]
        return [time.monotonic(), *machine_seconds(), *known]

    before = clocks()
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    spent = [after - earlier for after, earlier in zip(clocks(), before, strict=True)]
    wall, idle, busy, tool, broker, proxy = spent
    others = max(0.0, busy - tool - broker - proxy) / (idle + busy)
    return Figures(*parse(done.stdout, limit), proxy, wall, idle / (idle + busy), others)


def rounds(bed: Bed, options: argparse.Namespace, make: Callable, parse: Callable, **run) -> dict:
    """Run a tool every way in turn, again and again; the figures of each way."""
    found: dict[str, list[Figures]] = {}
    for _ in range(options.rounds):
        for way, start in WAYS.items():
            topic = run.get("topic") or create(bed)
            with start(bed.broker.port, bed.folder) as (port, pid):
                line = make(bed, port, topic, run["records"], run["limit"])
                found.setdefault(way, []).append(measure(bed, line, parse, pid, run["limit"]))
            if topic != run.get("topic"):
                delete(bed, topic)
    return found


def say(title: str, found: dict[str, list[Figures]], records: int, limited: bool) -> Figures:
    """Print the best round of each way; return that of the direct one."""
    print(f"\n{title}, {records} records of {RECORD_BYTES} bytes")

    def merit(figures: Figures) -> float:
        by_latency = limited and figures.p99_ms is not None
        return -figures.p99_ms if by_latency else figures.records_per_second

    best = {way: max(each, key=merit) for way, each in found.items()}
    for way, f in best.items():
        ratio = f.records_per_second / best["direct"].records_per_second
        latency = "" if f.p99_ms is None else f"p99 {f.p99_ms:.0f} ms"
        cost = ""
        if way != "direct":
            gb = f.proxy_seconds / (records * RECORD_BYTES / 1e9)
            cost = f"{gb:.2f} s/GB, {f.proxy_seconds / f.wall_seconds:.0%} of a core"
        each = " ".join(f"{one.mb_per_second:.0f}" for one in found[way])
        print(
            f"  {way:18} {f.mb_per_second:6.1f} MB/s {f.records_per_second:8.0f} records/s"
            f" {ratio:5.2f}x  {latency:12} {cost:26} idle {f.idle:4.0%} others {f.others:4.0%}"
            f"  ({each})",
            flush=True,
        )
    return best["direct"]


# What is measured


def measure_producer(bed: Bed, options: argparse.Namespace) -> None:
    """producer-perf as fast as it goes, then limited."""
    topic = create(bed)
    for records in (500_000, 1_000_000, 1_000_000):  # the broker has to warm up, too
        line = producer(bed, bed.broker.port, topic, records, -1)
        warm = measure(bed, line, produced, os.getpid())
    delete(bed, topic)
    records = int(warm.records_per_second * options.seconds)
    found = rounds(bed, options, producer, produced, records=records, limit=-1)
    unlimited = say("producer-perf, as fast as it goes", found, records, limited=False)
    for share in options.shares:
        limit = int(unlimited.records_per_second * share)
        records = int(limit * options.seconds)
        found = rounds(bed, options, producer, produced, records=records, limit=limit)
        say(f"producer-perf, --throughput {limit}", found, records, limited=True)


def measure_consumer(bed: Bed, options: argparse.Namespace) -> None:
    """consumer-perf as fast as it goes, then limited by the broker, on one and the same topic."""
    topic, records = create(bed), options.consumer_records
    measure(bed, producer(bed, bed.broker.port, topic, records, -1), produced, os.getpid())
    measure(bed, consumer(bed, bed.broker.port, topic, records, -1), consumed, os.getpid())
    found = rounds(bed, options, consumer, consumed, topic=topic, records=records, limit=-1)
    unlimited = say("consumer-perf, as fast as it goes", found, records, limited=False)
    for share in options.shares:
        limit = int(unlimited.mb_per_second * 2**20 * share)
        set_quota(bed, limit)
        found = rounds(bed, options, consumer, consumed, topic=topic, records=records, limit=limit)
        title = f"consumer-perf, quota {limit / 2**20:.0f} MB/s"
        say(title, found, records, limited=True)
    delete(bed, topic)


def create(bed: Bed) -> str:
    """Make a topic, whose data go away at once when it is deleted; its name."""
    name = f"perf-{time.monotonic_ns()}"
    config = {"file.delete.delay.ms": "0"}
    wanted = [NewTopic(name, PARTITIONS, 1, config=config)]
    for future in bed.admin.create_topics(wanted).values():
        future.result(30)
    return name


def delete(bed: Bed, topic: str) -> None:
    """Delete a topic, so that neither disk nor page cache fill up."""
    for future in bed.admin.delete_topics([topic]).values():
        future.result(30)


def set_quota(bed: Bed, bytes_per_second: int) -> None:
    """Have the broker limit the fetches of the client id for it."""
    change = ["--alter", "--add-config", f"consumer_byte_rate={bytes_per_second}"]
    entity = ["--entity-type", "clients", "--entity-name", LIMITED]
    line = command(
        "kafka.admin.ConfigCommand", "--bootstrap-server", bed.broker.address, *change, *entity
    )
    subprocess.run(line, capture_output=True, check=True)


def json_lines(count: int) -> str:
    """Records as applications send them, one per line."""
    chance = random.Random(7)
    lines = []
    for number in range(count):
        body = {"id": number, "user": f"u{chance.randrange(10**6):06}", "items": []}
        while len(text := json.dumps(body)) < RECORD_BYTES - 90:
            price = chance.randrange(90_000) / 100
            state = chance.choice(["new", "paid", "shipped"])
            trace = f"{chance.getrandbits(64):016x}"
            body["items"].append({"amount": price, "state": state, "trace": trace})
        body["note"] = "x" * (RECORD_BYTES - len(text) - len(', "note": ""'))
        lines.append(json.dumps(body))
    return "\n".join(lines)


def main() -> None:
    """Parse what was typed, start the broker, run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10, help="of a run of producer-perf")
    parser.add_argument("--consumer-records", type=int, default=5_000_000)
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.55], help="of what is reached directly"
    )
    parser.add_argument("--only", choices=["producer", "consumer"])
    parser.add_argument("--folder", default=None, help="where data and recordings go meanwhile")
    options = parser.parse_args()
    os.environ.update(HOTSPOT)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        payload = folder / "records.txt"
        payload.write_text(json_lines(2000))
        broker = Broker(VERSION, folder / "broker")
        try:
            broker.start()
            admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 2})
            bed = Bed(broker, admin, payload, folder)
            for tool, measured in (("producer", measure_producer), ("consumer", measure_consumer)):
                if options.only in (None, tool):
                    measured(bed, options)
        finally:
            broker.kill()


if __name__ == "__main__":
    main()
