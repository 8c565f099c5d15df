"""Run seeds by hand, as many as you like::

    python -m tests.simulation.run --seeds 0 1000000 [--faults]

Seeds are shared out over all processors. The first one that fails ends the run, with its traceback
and the command that repeats it.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import multiprocessing
import sys
import time
import traceback

import attrs

from kproxy.exchange.entries import Frame, Side
from tests.simulation.checks import check
from tests.simulation.checks_faults import check_faults
from tests.simulation.world import World

_BATCH = 200


def simulate(seed: int, faulty: bool = False) -> World:
    """Run one seed, with fault rules or without, and check what came of it.

    Raises:
        AssertionError: a promise was broken.
    """
    world = World(seed, faulty)
    try:
        world.run()
        (check_faults if faulty else check)(world)
    except Exception as error:
        more = " --faults" if faulty else ""
        command = f"python -m tests.simulation.run --seed {seed}{more}"
        error.add_note(f"seed {seed}; repeat it with: {command}")
        raise
    return world


def digest(world: World) -> str:
    """A text that two runs of one seed have in common."""
    found = hashlib.sha256()
    for entry in world.entries:
        plain = attrs.evolve(entry, pieces=[entry.data]) if isinstance(entry, Frame) else entry
        found.update(repr(plain).encode("utf-8", "surrogatepass"))
    for link in world.links:
        for side in Side:
            found.update(bytes(link.received[side]))
    return found.hexdigest()


def _batch(faulty: bool, first: int) -> tuple[int, str, int]:
    """Run a batch of seeds: how many, what failed, how many frames were recorded."""
    frames = 0
    for seed in range(first, first + _BATCH):
        try:
            frames += len(simulate(seed, faulty).entries)
        except Exception:
            return seed - first, traceback.format_exc(), frames
    return _BATCH, "", frames


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--seed", type=int, help="run this one, in this process")
    which.add_argument("--seeds", type=int, nargs=2, metavar=("FROM", "TO"))
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--faults", action="store_true", help="with fault rules")
    options = parser.parse_args()
    if options.seed is not None:
        world = simulate(options.seed, options.faults)
        print(f"seed {options.seed}: {len(world.entries)} entries, {digest(world)[:16]}")
        return 0
    started = time.monotonic()
    done = frames = 0
    batch = functools.partial(_batch, options.faults)
    with multiprocessing.Pool(options.processes) as pool:
        for count, failed, recorded in pool.imap_unordered(batch, range(*options.seeds, _BATCH)):
            done += count
            frames += recorded
            if failed:
                print(failed)
                return 1
            if done % 20_000 == 0:
                rate = done / (time.monotonic() - started)
                print(f"{done} seeds, {frames} entries, {rate:.0f} seeds/s", flush=True)
    seconds = time.monotonic() - started
    print(f"{done} seeds, {frames} entries recorded, in {seconds:.0f} s: {done / seconds:.0f}/s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
