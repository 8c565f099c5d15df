"""A program that records until it is killed: `python -m tests.recording.killed PATH SEED`.

After each batch that the writer says it has written, its last number goes to standard output.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator

from kproxy.exchange.entries import Frame, Side
from kproxy.recording import Writer

START_NS = 1_790_000_000_000_000_000


def frames(seed: int) -> Iterator[list[Frame]]:
    """The batches that the program writes, for ever."""
    chance = random.Random(seed)
    number = 0
    while True:
        batch = []
        for _ in range(chance.choice((1, 3, 50))):
            number += 1
            size = chance.choice((30, 200, 200, 3000, 60_000))
            data = bytes([number % 251]) * size
            received_ns = START_NS + number * 1000
            batch.append(Frame(Side.CLIENT, 1, number, 0, 11, number, received_ns, [data], size))
        yield batch


def main(path: str, seed: str) -> None:
    """Write until killed."""
    writer = Writer(path, start_ns=START_NS, schema_id="5eed", library_version="0.1.0")
    for batch in frames(int(seed)):
        writer.write(batch)
        print(batch[-1].number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
