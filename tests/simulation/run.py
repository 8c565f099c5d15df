"""Run a seed by hand: `python -m tests.simulation.run --seed 17 [--faults]`.

Many are run by `pytest -n auto tests/simulation --seeds 0-50000`.
"""

from __future__ import annotations

import argparse
import hashlib

import attrs

from kproxy.exchange.entries import Frame, Side
from tests.simulation.checks import check
from tests.simulation.checks_faults import check_faults
from tests.simulation.world import World


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--faults", action="store_true", help="with fault rules")
    options = parser.parse_args()
    world = simulate(options.seed, options.faults)
    print(f"seed {options.seed}: {len(world.entries)} entries, {digest(world)[:16]}")


if __name__ == "__main__":
    main()
