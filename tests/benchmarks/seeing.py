"""What looking costs: `python -m tests.benchmarks.seeing [--exchanges 200000] [--before FOLDER]`.

The same small exchanges as a recording and, where tshark is installed, as a capture of packets;
with `--before`, also as a recording of an earlier kproxy, whose working copy that is. In one run,
each way to look is done in turn, several rounds, and the best wall time counts, with the CPU time
and the largest resident memory of that round. Everything is written to /dev/null.

tshark dissects Kafka of the versions that it knows; it is asked for what a header filter and
`stats --headers` ask for: the fields of the header of each frame.

On a busy machine, take CPU time, or, where there are counters, instructions (`perf stat -e
instructions:u`), less those of a recording of 200 exchanges.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import attrs

from tests.benchmarks import seeing_traffic
from tests.benchmarks.seeing_traffic import Template, entries, templates

REPOSITORY = Path(__file__).parents[2]
_RUN = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from kproxy.cli import main; sys.exit(main())"
)
_PCAP_HEAD = struct.Struct("<IHHiIII")
_PACKET_HEAD = struct.Struct("<IIII")
_IP = struct.Struct(">BBHHHBBHII")
_TCP = struct.Struct(">HHIIBBHHH")
_RAW_IP = 101
_PORT = 9092
_BROKER = 0x0A000064


@attrs.frozen
class Way:
    """One way to look."""

    name: str
    command: list[str]


@attrs.define
class Cost:
    """What one took."""

    wall_seconds: float
    cpu_seconds: float
    resident_mib: float


def packets(made: list[Template], count: int) -> Iterator[bytes]:
    """A capture of packets, one per frame, with a TCP stream per connection."""
    yield _PCAP_HEAD.pack(0xA1B23C4D, 2, 4, 0, 0, 262_144, _RAW_IP)
    sent: dict[tuple[int, int], int] = {}
    frames = (f for batch in entries(made, count) for f in batch if hasattr(f, "side"))
    for frame in sorted(frames, key=lambda each: each.received_ns):
        client, data = 0x0A000000 | frame.connection, frame.data
        ends = [(client, 40_000 + frame.connection), (_BROKER, _PORT)]
        (source, port), (target, to) = ends[:: -1 if frame.side else 1]
        key = frame.connection, frame.side
        at, acknowledged = sent.get(key, 1), sent.get((frame.connection, 1 - frame.side), 1)
        sent[key] = at + len(data)
        tcp = _TCP.pack(port, to, at, acknowledged, 0x50, 0x18, 65_535, 0, 0)
        size = _IP.size + len(tcp) + len(data)
        ip = _IP.pack(0x45, 0, size, 0, 0, 64, 6, 0, source, target)
        seconds, nanoseconds = divmod(frame.received_ns, 1_000_000_000)
        yield _PACKET_HEAD.pack(seconds, nanoseconds, size, size) + ip + tcp + data


def recorded(folder: Path, made: Path, path: Path, count: int) -> Path:
    """Have the kproxy of a working copy record the exchanges."""
    command = [sys.executable, seeing_traffic.__file__, str(made), str(path), str(count)]
    # `-P`, or the folder of the script would come first.
    environment = os.environ | {"PYTHONPATH": str(folder)}
    subprocess.run([command[0], "-P", *command[1:]], env=environment, cwd=folder, check=True)
    return path


def kproxy(folder: Path, *arguments: str) -> list[str]:
    """The command line of the kproxy of a working copy."""
    return [sys.executable, "-P", "-c", _RUN, str(folder), *arguments]


def ways(folder: Path, made: list[Template], count: int, before: Path | None) -> Iterator[Way]:
    """Make the files; yield the ways to look at them."""
    pickled = folder / "templates.pickle"
    pickled.write_bytes(pickle.dumps(made))
    path = str(recorded(REPOSITORY, pickled, folder / "now.mcap", count))
    for name, arguments in (
        ("a header filter", ["show", path, "api:Heartbeat connection:7 broker_ms:1.."]),
        ("stats --headers", ["stats", "--headers", path]),
        ("stats", ["stats", path]),
        ("show", ["show", path]),
        ("show --all", ["show", "--all", path]),
        ("show --json", ["show", "--json", path]),
        ("export .parquet", ["export", path, "--to", str(folder / "out.parquet")]),
    ):
        yield Way(name, kproxy(REPOSITORY, *arguments))
    if before is not None:
        old = str(recorded(before, pickled, folder / "before.mcap", count))
        yield Way("before: show", kproxy(before, "show", old))
        yield Way("before: show --json", kproxy(before, "show", "--json", old))
    if tshark := shutil.which("tshark"):
        capture = folder / "now.pcap"
        with capture.open("wb") as file:
            file.writelines(packets(made, count))
        fields = ("kafka.api_key", "kafka.correlation_id", "kafka.client_id")
        wanted = [word for field in fields for word in ("-e", field)]
        command = [tshark, "-r", str(capture), "-d", "tcp.port==9092,kafka"]
        yield Way("tshark -Y kafka -T fields", [*command, "-Y", "kafka", "-T", "fields", *wanted])
    else:
        print("tshark is not installed: it is left out")


def done(way: Way) -> Cost:
    """Do it once."""
    if way.command[-2] == "--to":
        Path(way.command[-1]).unlink(missing_ok=True)
    began = time.monotonic()
    process = subprocess.Popen(way.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    resident_mib = 0.0
    pid = 0
    while not pid:
        # Not what `wait4` says: that counts what this process had when it made the other.
        resident_mib = max(resident_mib, _resident_mib(process.pid))
        time.sleep(0.01)
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = status
    if status:
        raise RuntimeError(f"{way.name} ended with {status}")
    cpu = usage.ru_utime + usage.ru_stime
    return Cost(time.monotonic() - began, cpu, resident_mib)


def _resident_mib(pid: int) -> float:
    """The most that a process has had in memory so far, without those that help it."""
    try:
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--exchanges", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--before", type=Path, help="the working copy of an earlier kproxy")
    options = parser.parse_args()
    count = options.exchanges
    with tempfile.TemporaryDirectory() as folder:
        found = list(ways(Path(folder), templates(), count, options.before))
        best: dict[str, Cost] = {}
        for _ in range(options.rounds):
            for way in found:
                cost = done(way)
                if way.name not in best or cost.wall_seconds < best[way.name].wall_seconds:
                    best[way.name] = cost
    print(f"{count} exchanges               µs each, wall    µs each, CPU   MiB resident")
    for name, cost in best.items():
        wall, cpu = (each / count * 1e6 for each in (cost.wall_seconds, cost.cpu_seconds))
        print(f"  {name:26}{wall:18.2f}{cpu:17.2f}{cost.resident_mib:15.0f}")


if __name__ == "__main__":
    main()
