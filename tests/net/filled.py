"""A program that records onto a disk until not even a heartbeat fits any more, then ends well.

`python -m tests.net.filled FOLDER`; prints how many frames it has recorded and lost, what the
recording says is lost, and whether it is complete, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import trio

from kproxy.exchange.entries import Frame, Note, Side
from kproxy.net.recorder import Recorder
from kproxy.recording import Recording, entries

START_NS = 1_790_000_000_000_000_000


async def fill(recorder: Recorder) -> None:
    """Record ever smaller frames, each size until one does not fit."""
    number = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        for size in (200_000, 20_000, 2000, 200, 20):
            lost = recorder.frames_lost
            while recorder.frames_lost == lost:
                number += 1
                at_ns, data = START_NS + number, (size - 4).to_bytes(4) + os.urandom(size - 4)
                recorder.put([Frame(Side.CLIENT, 1, number, 12, 4, number, at_ns, [data], size)])
                while recorder.frames_recorded + recorder.frames_lost < number:
                    await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    await recorder.finish()


def main(folder: str) -> None:
    """Fill the disk of a folder."""
    path = Path(folder) / "r.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id="5eed", library_version="0.1.0")
    recorder = Recorder(recording, lambda text: None)
    trio.run(fill, recorder)
    notes = [entry.body for entry in entries(path) if isinstance(entry, Note)]
    said = {
        "recorded": recorder.frames_recorded,
        "lost": recorder.frames_lost,
        "told": sum(body["frames"] for body in notes if body["event"] == "lost"),
        "complete": all(body["event"] != "torn" for body in notes),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
