"""Fuzzes the recording reader: mutated files, which give what was recorded or an error.

Whatever the bytes: reading ends, with RecordingError or with notes that say what is missing, and
every frame that it gives is one that was recorded, byte for byte.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

from kproxy.exchange.entries import Frame
from kproxy.recording import RecordingError
from kproxy.recording.reader import entries
from kproxy.recording.recovery import recover
from tests.fuzz.fuzzing import Target, main
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


def target() -> Target:
    """Return what tries a mutated file."""
    seeds = corpus()

    def file(rng: random.Random) -> int:
        raw, frames = rng.choice(seeds)
        raw = mutated(raw, rng)
        with tempfile.TemporaryDirectory() as folder:
            try:
                return check(raw, frames, Path(folder) / "fuzzed.mcap")
            except Exception as error:
                error.add_note(raw.hex())
                raise

    return file


if __name__ == "__main__":
    main(target())
