"""What a recording has lost is missing, and what is left of it is right.

::

    a world with rules ─▶ whole recording
                     └──▶ rotated recording, of which seeded writes fail, and chunks are cut out

A write that fails loses whole entries, in the middle of frames, too; so does a chunk that another
tool leaves out, and a file that is not there. The log goes on behind each.
"""

from __future__ import annotations

import random
from pathlib import Path
from unittest import mock

import pytest

from kproxy.exchange.entries import Entry
from kproxy.exchange.exchange import Exchange
from kproxy.recording import Recording, Writer, read, writer
from tests.recording.making import rewrite
from tests.simulation.world import START_NS, World
from tests.versions import ALL

ABOUT = {"start_ns": START_NS, "schema_id": "5eed5eed", "library_version": "0.1.0"}
EACH = 40 if ALL else 20
SEEDS = range(0, 2_000 if ALL else EACH, EACH)
OF_REQUESTS = ("request_bytes", "correlation_id", "max_wait_ms", "request_flags")


def both(seed: int, folder: Path, lost: float) -> list[Path]:
    """Record a world into one file, and into several of which a share of the writes fails; return
    these. Large frames are in pieces of 200 bytes."""
    world, rng, waiting = World(seed, faulty=True), random.Random(seed), list[Entry]()
    (folder / "whole").mkdir()
    whole = Writer(folder / "whole" / "run.mcap", **ABOUT)
    torn = Recording(folder / "run.mcap", **ABOUT, rotate_bytes=3000, rotate_ns=None)
    put = writer.Writer._put

    def fails(*given: object, **more: object) -> None:
        raise OSError("the disk is full")

    def watch(passed: list[Entry]) -> None:
        learn(passed)
        waiting.extend(passed)
        if rng.random() < 0.5:
            write(rng.random() < lost)

    def write(loses: bool = False) -> None:
        whole.write(waiting)
        with mock.patch.object(writer.Writer, "_put", fails if loses else put):
            try:
                torn.write(waiting)
            except OSError:
                assert loses
        waiting.clear()

    learn, world.performer.watch = world.performer.watch, watch
    world.run()
    write()
    whole.close()
    torn.close()
    return torn.paths


def check(found: list[Exchange], every: dict[int, Exchange]) -> None:
    """Each exchange comes once, and says only what the whole recording says of it."""
    numbers = [each.number for each in found]
    assert len(set(numbers)) == len(numbers) and every.keys() >= set(numbers)
    for each in found:
        row, whole = each.row, every[each.number].row
        assert row.connection == whole.connection
        for mine, its in (
            (each.request_frame, every[each.number].request_frame),
            (each.response_frame, every[each.number].response_frame),
        ):
            assert mine is None or mine == its or (each.truncated and (its or b"").startswith(mine))
        for name in ("request_received_ns", "request_sent_ns", *OF_REQUESTS):
            mine, its = getattr(row, name), getattr(whole, name)
            late = name == "request_sent_ns" and not its  # it left behind its response
            assert not mine or mine == its or late or each.truncated, name
        if each.response_frame is not None:
            assert (row.response_received_ns, row.response_bytes) == (
                whole.response_received_ns, whole.response_bytes,
            )  # fmt: skip
            assert row.response_sent_ns in (0, whole.response_sent_ns)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is split is split often."""
    monkeypatch.setattr("kproxy.recording.encoding.PIECE_BYTES_MAX", 200)


@pytest.mark.parametrize("first", SEEDS)
@pytest.mark.parametrize("lost", [0.05, 0.4])
@pytest.mark.usefixtures("small_pieces")
def test_what_could_not_be_written_is_missing_and_the_rest_is_right(
    first: int, lost: float, tmp_path: Path
) -> None:
    some = missing = 0
    for seed in range(first, first + EACH):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = both(seed, folder, lost)
        every = {each.number: each for each in read(folder / "whole")}
        found = list(read(paths, told=lambda note: None))
        check(found, every)
        some += len(found)
        missing += len(every) - len(found)
        for path in paths:
            check(list(read(path, told=lambda note: None)), every)
    assert some > EACH and (missing or lost < 0.1)


@pytest.mark.parametrize("first", SEEDS)
@pytest.mark.usefixtures("small_pieces")
def test_pieces_that_are_left_out_are_missing_and_the_rest_is_right(
    first: int, tmp_path: Path
) -> None:
    """Of both sides, in the middle of frames, and at the head of a file that goes on."""
    some = missing = 0
    for seed in range(first, first + EACH):
        folder = tmp_path / str(seed)
        folder.mkdir()
        paths = both(seed, folder, 0)
        every = {each.number: each for each in read(folder / "whole")}
        thin = [thinned(path, folder / "thin", random.Random(seed)) for path in paths]
        found = list(read(thin, told=lambda note: None))
        check(found, every)
        some += len(found)
        missing += len(every) - sum(1 for each in found if each.request_frame)
        for path in thin:
            check(list(read(path, told=lambda note: None)), every)
    assert some > EACH and missing


def thinned(path: Path, folder: Path, rng: random.Random) -> Path:
    """Copy a recording as a tool does that leaves out the pieces of some chunks."""
    folder.mkdir(exist_ok=True)
    gone: dict[int, bool] = {}
    headless = rng.random() < 0.3

    def kept(sequence: int, topic: str) -> bool:
        if sequence not in gone:
            gone[sequence] = rng.random() < 0.1 or (headless and len(gone) < 3)
        return topic != "/kafka/pieces" or not gone[sequence]

    return rewrite(path, folder / path.name, keeps=kept)
