"""Fuzzes the recording reader: mutated files, which give what was recorded or an error.

    python -m tests.fuzz.recordings --seconds 60
    python -m tests.fuzz.recordings --inputs 1000000 --seed 7

Whatever the bytes: reading ends, with RecordingError or with notes that say what is missing, and
every frame that it gives is one that was recorded, byte for byte.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from kproxy.exchange.entries import Frame
from kproxy.recording import RecordingError
from kproxy.recording.reader import entries
from kproxy.recording.recovery import recover
from tests.fuzz.mutate import mutated

RECORDINGS = Path(__file__).parents[1] / "recording"
CORPUS = ("golden/v3-[stz]*.mcap", "formats/3/*.mcap")
"""Files that kproxy wrote."""


def key(frame: Frame) -> tuple:
    """What must not change about a frame."""
    return (frame.side, frame.connection, frame.number, frame.api_key, frame.flags, frame.data)


def corpus() -> list[tuple[bytes, set[tuple]]]:
    """Recordings, and the frames in each."""
    return [
        (path.read_bytes(), {key(entry) for entry in entries(path) if isinstance(entry, Frame)})
        for pattern in CORPUS
        for path in sorted(RECORDINGS.glob(pattern))
    ]


def check(raw: bytes, frames: set[tuple], path: Path) -> int:
    """Read it in every way; returns how many frames it gave."""
    path.write_bytes(raw)
    given = 0
    for skip in (False, True):
        try:
            for entry in entries(path, skip_damaged=skip):
                if isinstance(entry, Frame):
                    given += 1
                    assert key(entry) in frames, "this frame was never recorded"
        except RecordingError as error:
            assert "\n" not in str(error)
    try:
        recover(path)
    except RecordingError as error:
        assert "\n" not in str(error)
        assert path.read_bytes() == raw, "what cannot be recovered is left as it was"
    return given


def run(seed: int, seconds: float, inputs_max: int | None = None) -> tuple[int, int]:
    """Fuzz; returns how many files there were and how many frames they gave."""
    rng = random.Random(seed)
    seeds = corpus()
    until = time.monotonic() + seconds
    inputs = given = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzzed.mcap"
        while time.monotonic() < until and (inputs_max is None or inputs < inputs_max):
            raw, frames = rng.choice(seeds)
            raw = mutated(raw, rng)
            inputs += 1
            try:
                given += check(raw, frames, path)
            except Exception:
                print(f"seed {seed}, input {inputs}: {raw.hex()}", file=sys.stderr)
                raise
    return inputs, given


def main() -> None:
    """Fuzz as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.recordings")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--inputs", type=int, default=None, help="stop after this many")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    seconds = float("inf") if options.inputs else options.seconds
    inputs, given = run(options.seed, seconds, options.inputs)
    print(f"seed {options.seed}: {inputs:,} files, {given:,} frames")


if __name__ == "__main__":
    main()
