"""What a log costs to write and to follow, without sockets and disks: `python -m …log`.

    runs of small requests and responses ─▶ Encoder ─▶ chunks ─▶ Follower ─▶ rows

Prints CPU per exchange, the best of some rounds, with one frame in a piece and with ten.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator

from kproxy.exchange.entries import ChunkTimes, Entry, FrameRun, Requests, Side
from kproxy.exchange.follower import Follower
from kproxy.recording.encoding import ChunkRecords, Encoder
from kproxy.recording.mcap import RECORD
from kproxy.recording.pieces import Pieces

_COUNT = 100_000
_ROUNDS = 5
_START_NS = 1_790_000_000_000_000_000


def small_requests(count: int, together: int) -> Iterator[Entry]:
    """Yield runs of small requests and their responses."""
    for first in range(1, count + 1, together):
        now, ids = _START_NS + first * 10_000, list(range(first, first + together))
        frames = [struct.pack(">ihhih50x", 60, 3, 12, number, 4) for number in ids]
        requests = Requests(first, 3, 12, 0, ids, [64] * together, ChunkTimes(now, now + 1000))
        about = requests, 0, requests.sizes
        yield FrameRun(Side.CLIENT, first % 10, requests.times, [b"".join(frames)], *about)
        answers = b"".join(struct.pack(">ii56x", 60, number) for number in ids)
        times = ChunkTimes(now + 5000, now + 6000)
        yield FrameRun(Side.BROKER, first % 10, times, [answers], *about)


def pieces(chunk: ChunkRecords) -> Pieces:
    """Return the pieces of a chunk as a reader has them."""
    records = b"".join(chunk.parts)
    ends: list[tuple[int, int]] = []
    at = 0
    while at < len(records):
        _, length = RECORD.unpack_from(records, at)
        ends.append((at, at + RECORD.size + length))
        at = ends[-1][1]
    return Pieces(chunk.sequence, memoryview(records), ends)


def follow(chunks: list[Pieces]) -> int:
    """Have a follower follow chunks; return the number of exchanges."""
    follower, found = Follower(), 0
    for each in chunks:
        each.follow(follower)
        found += len(follower.take())
    return found


def _best(work: Callable[[], object]) -> float:
    """Return the CPU of one exchange in µs."""
    times: list[float] = []
    for _ in range(_ROUNDS):
        begun = time.process_time()
        work()
        times.append(time.process_time() - begun)
    return min(times) / _COUNT * 1e6


def main() -> None:
    """Print the table."""
    for together in (1, 10):
        entries = list(small_requests(_COUNT, together))
        written = _best(lambda entries=entries: list(Encoder().chunks(entries)))
        chunks = [pieces(each) for each in Encoder().chunks(entries)]
        assert follow(chunks) == _COUNT
        followed = _best(lambda chunks=chunks: follow(chunks))
        print(f"{together} in a piece: written in {written:.2f} µs, followed in {followed:.2f} µs")


if __name__ == "__main__":
    main()
