"""A program that records until it is killed: `python -m tests.recording.killed PATH SEED`.

After each batch that the writer says it has written, its last number goes to standard output.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator

from kproxy.exchange.entries import ChunkTimes, Frame, FrameRun, Requests, Side, count_frames
from kproxy.recording import Writer

START_NS = 1_790_000_000_000_000_000


def request(number: int, size: int) -> bytes:
    """A request of so many bytes."""
    return struct.pack(">ihhi", size - 4, 0, 11, number) + bytes([number % 251]) * (size - 12)


def batches(seed: int) -> Iterator[list[Frame | FrameRun]]:
    """What the program writes, for ever: frames one by one, and runs of small ones."""
    chance = random.Random(seed)
    number = 0
    while True:
        count = chance.choice((1, 3, 50))
        received_ns = START_NS + number * 1000
        numbers = range(number + 1, number + count + 1)
        number += count
        if chance.random() < 0.5:
            sizes = [chance.choice((30, 200, 3000)) for _ in numbers]
            data = b"".join(request(n, size) for n, size in zip(numbers, sizes, strict=True))
            times = ChunkTimes(received_ns)
            requests = Requests(numbers[0], 0, 11, 0, [*numbers], sizes, times)
            yield [FrameRun(Side.CLIENT, 1, times, [data], requests, 0, sizes)]
        else:
            sizes = [chance.choice((30, 200, 3000, 60_000)) for _ in numbers]
            yield [
                Frame(Side.CLIENT, 1, n, 0, 11, n, received_ns, [request(n, size)], size)
                for n, size in zip(numbers, sizes, strict=True)
            ]


def main(path: str, seed: str) -> None:
    """Write until killed."""
    writer = Writer(path, start_ns=START_NS, schema_id="5eed", library_version="0.1.0")
    number = 0
    for batch in batches(int(seed)):
        writer.write(batch)
        number += count_frames(batch)
        print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
