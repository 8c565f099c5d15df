"""What recording costs: `python -m tests.benchmarks.recording`.

CPU time (of this process, user and system) per frame and per GB, the best of several rounds; the
ways to record are alternated within a round, because the machine's speed wanders. Frames are made
just before they are recorded, which is not counted, as they come fresh from the proxy. Files go to
a temporary folder, `--folder` names another. Compared with: the plainest file that has a length, a
header and a CRC per frame, and the `mcap` package.

The mix at the end is what the rule for compression was chosen by: small requests and big responses
alternate, as with a consumer.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import mcap.writer

from kproxy.exchange.entries import ChunkTimes, Frame, FrameRun, Requests, Side
from kproxy.exchange.pairing import pair
from kproxy.recording import RecordingFile, Writer, entries, read, verify

START_NS = 1_790_000_000_000_000_000
MIB = 1 << 20
_HEADER = struct.Struct("<IIQQQIIIIIIihhhHHBB")


def text(size: int, chance: random.Random) -> bytes:
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


def frames(count: int, datas: Sequence[list[bytes]]) -> list[Frame]:
    """Requests and responses in turn."""
    made = []
    for number in range(count):
        pieces = datas[number % len(datas)]
        size = sum(map(len, pieces))
        at = START_NS + number * 100_000
        asked = number % 2 * (at - 40_000)
        made.append(
            Frame(
                Side(number % 2), number % 50, number // 2 + 1, 0, 11, number, at, pieces, size, 0,
                at + 20_000, asked, asked and asked + 20_000, number % 2 * 200, 0,
            )
        )  # fmt: skip
    return made


def batches(count: int, size: int, datas: Sequence[list[bytes]]) -> Iterator[list[Frame]]:
    """Make batches of so many frames, each when it is asked for."""
    for _ in range(count // size):
        yield frames(size, datas)


class Stopwatch:
    """CPU time of what is done `with` it."""

    seconds = 0.0

    def __enter__(self) -> None:
        self._start = time.process_time()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.process_time() - self._start


def kproxy(path: Path, made: Iterable[list[Frame]], compression: str) -> float:
    """Record with kproxy; return CPU seconds."""
    watch = Stopwatch()
    settings = {"start_ns": START_NS, "schema_id": "5eed", "library_version": "0"}
    writer = Writer(path, compression=compression, **settings)
    for batch in made:
        with watch:
            writer.write(batch)
    with watch:
        writer.close()
    return watch.seconds


def plain(path: Path, made: Iterable[list[Frame]]) -> float:
    """A header with a length and a CRC per frame, written in batches; nothing else."""
    watch = Stopwatch()
    pack = _HEADER.pack
    with path.open("wb", buffering=0) as file:
        for batch in made:
            with watch:
                parts: list[bytes] = []
                for f in batch:
                    data = f.pieces[0]
                    parts.append(
                        pack(
                            len(data), zlib.crc32(data), f.received_ns, f.request_received_ns,
                            f.number, 0, 0, 0, f.frame_bytes, f.request_bytes, f.connection,
                            f.correlation_id, f.api_key, f.api_version, f.error_code, 0,
                            f.flags, f.side, 0,
                        )
                    )  # fmt: skip
                    parts.append(data)
                file.write(b"".join(parts))
    return watch.seconds


def package(path: Path, made: Iterable[list[Frame]]) -> float:
    """The mcap package, without indexes and compression, and with empty rows."""
    watch = Stopwatch()
    with path.open("wb") as file:
        writer = mcap.writer.Writer(
            file,
            chunk_size=256 * 1024,
            compression=mcap.writer.CompressionType.NONE,
            index_types=mcap.writer.IndexType.NONE,
        )
        writer.start(profile="kproxy")
        channel = writer.register_channel("/kafka/frames", "kproxy", 0)
        for batch in made:
            with watch:
                for frame in batch:
                    at = frame.received_ns
                    writer.add_message(channel, at, b"\0" * 64 + frame.pieces[0], at)
        with watch:
            writer.finish()
    return watch.seconds


Ways = dict[str, Callable[[Path], float]]
"""Record into a file in one way or another; CPU seconds."""


def best(ways: Ways, rounds: int, folder: Path) -> dict[str, tuple[float, int]]:
    """CPU seconds and bytes of each way, the best of the rounds."""
    found: dict[str, tuple[float, int]] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            path = folder / "bench.mcap"
            seconds = way(path)
            size = path.stat().st_size
            path.unlink()
            if name not in found or seconds < found[name][0]:
                found[name] = (seconds, size)
    return found


def ways(make: Callable[[], Iterable[list[Frame]]], compare: bool) -> Ways:
    """The ways to record these batches."""
    own: Ways = {
        "kproxy none": lambda path: kproxy(path, make(), "none"),
        "kproxy adaptive": lambda path: kproxy(path, make(), "adaptive"),
    }
    if compare:
        own |= {
            "plain file": lambda path: plain(path, make()),
            "mcap package": lambda path: package(path, make()),
        }
    return own


def small(rounds: int, folder: Path) -> None:
    """Frames of 200 bytes, in full chunks and in what 100 ms of little traffic give."""
    chance = random.Random(1)
    datas = [[text(200, chance)] for _ in range(900)]
    for size in (900, 30):
        count = 36_000
        print(f"\n200-byte frames of JSON, {size} per flush      µs/frame   bytes/frame")
        make = functools.partial(batches, count, size, datas)
        for name, (seconds, written) in best(ways(make, size > 100), rounds, folder).items():
            print(f"  {name:40}{seconds / count * 1e6:10.2f}{written / count:14.0f}")


def big(rounds: int, folder: Path) -> None:
    """Frames of 1 MiB as they arrive from a socket, in pieces of 64 KiB and in one."""
    chance = random.Random(2)
    for kind, data in (("JSON", text(MIB, chance)), ("random", chance.randbytes(MIB))):
        for cut in (MIB, 65_536):
            pieces = [data[at : at + cut] for at in range(0, MIB, cut)]
            make = functools.partial(batches, 256, 1, [pieces])
            crc = crc_seconds(pieces)
            print(f"\n1 MiB frames of {kind}, pieces of {cut >> 10} KiB     CPU s/GB   bytes/frame")
            print(f"  {'one CRC-32 of everything, nothing else':40}{crc:10.2f}")
            for name, (seconds, written) in best(ways(make, False), rounds, folder).items():
                print(f"  {name:40}{seconds / (256 * MIB) * 1e9:10.2f}{written / 256:14.0f}")


def crc_seconds(pieces: list[bytes]) -> float:
    """CPU seconds per GB for the checksum alone."""
    before = time.process_time()
    for _ in range(100):
        crc = 0
        for piece in pieces:
            crc = zlib.crc32(piece, crc)
    return (time.process_time() - before) / (100 * sum(map(len, pieces))) * 1e9


def mix(rounds: int, folder: Path) -> None:
    """What to do with a flush of small requests and big responses."""
    chance = random.Random(3)
    for kind, data in (("JSON", text(100_000, chance)), ("random", chance.randbytes(100_000))):
        for small_frames in (2, 50, 400):
            datas = [[text(200, chance)] for _ in range(small_frames)] + [[data]]
            make = functools.partial(batches, 60 * len(datas), len(datas), datas)
            print(
                f"\n{small_frames} × 200 bytes, then 100 kB of {kind}, a flush"
                "     µs/flush   bytes/flush"
            )
            options: Ways = {
                "all stored": lambda path, make=make: kproxy(path, make(), "none"),
                "the larger part decides (kproxy)": lambda path, make=make: kproxy(
                    path, make(), "adaptive"
                ),
                "a chunk per run of one kind": lambda path, make=make: kproxy(
                    path, runs(make()), "adaptive"
                ),
            }
            found = best(options, rounds, folder)
            for name, (seconds, written) in found.items():
                print(f"  {name:40}{seconds / 60 * 1e6:10.0f}{written / 60:14.0f}")


def runs(made: Iterable[list[Frame]]) -> Iterator[list[Frame]]:
    """Cut the big frame at the end of each batch off."""
    for batch in made:
        yield batch[:-1]
        yield batch[-1:]


def pipelined(count: int, depth: int) -> Iterator[list[FrameRun]]:
    """Exchanges of 60 and 200 bytes, so many in flight, in batches of what 50 ms give."""
    payload = text(200, random.Random(4))
    now = START_NS
    for first in range(1, count, 500):
        made: list[FrameRun] = []
        for start in range(first, first + 500, depth):
            numbers = range(start, start + depth)
            sent, back = ChunkTimes(now, now + 20_000), ChunkTimes(now + 300_000, now + 310_000)
            requests = Requests(start, 12, 4, 0, [*numbers], [60] * depth, sent)
            asked = b"".join(struct.pack(">ihhi48s", 56, 12, 4, n, b"\0\3app") for n in numbers)
            answered = b"".join(struct.pack(">ii192s", 196, n, payload) for n in numbers)
            made.append(FrameRun(Side.CLIENT, 3, sent, [asked], requests, 0, [60] * depth))
            made.append(FrameRun(Side.BROKER, 3, back, [answered], requests, 0, [200] * depth))
            now += 350_000
        yield made


def in_runs(rounds: int, folder: Path) -> None:
    """Small frames that come together in chunks, as they do through the proxy."""
    for depth in (1, 10, 50):
        best_seconds, size = 1e9, 0
        for _ in range(rounds):
            path = folder / "runs.mcap"
            best_seconds = min(best_seconds, kproxy(path, pipelined(10_000, depth), "adaptive"))
            size = path.stat().st_size
            path.unlink()
        figures = f"{best_seconds / 20_000 * 1e6:10.2f} µs/frame {size / 20_000:8.1f} bytes/frame"
        print(f"  {depth} in flight: {figures}")


def reading(rounds: int, folder: Path) -> None:
    """Reading back a million exchanges, in seconds; "frames, paired" is how it was before."""
    path, count = folder / "read.mcap", 100_000
    kproxy(path, pipelined(count, 10), "adaptive")
    print(f"\nreading {count} exchanges, ten in flight     s for a million")
    ways = {
        "columns": rows,
        "read, without bodies": lambda path: sum(1 for each in read(path) if each.broker_ms),
        "read, with both frames": lambda path: sum(
            len(each.request_frame) + len(each.response_frame) for each in read(path)
        ),
        "frames, paired": lambda path: sum(1 for _ in pair(entries(path))),
        "verify": verify,
    }
    for name, way in ways.items():
        seconds = 1e9
        for _ in range(rounds):
            before = time.process_time()
            way(path)
            seconds = min(seconds, time.process_time() - before)
        print(f"  {name:40}{seconds * 1e6 / count:10.3f}")


def rows(path: Path) -> int:
    """The rows of the exchanges."""
    with RecordingFile(path) as file:
        every = (row for batch in file.batches() for row in file.exchanges(batch))
        return sum(row.response_received_ns - row.request_sent_ns for row in every)


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for measure in (small, in_runs, big, mix, reading):
            measure(options.rounds, Path(folder))


if __name__ == "__main__":
    main()
