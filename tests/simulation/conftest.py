"""Which seeds: `pytest tests/simulation --seed 17`, `--seeds 0-50000`, or KPROXY_SEEDS=0-50000."""

from __future__ import annotations

import os

import pytest

from tests.versions import ALL

SEEDS_DEFAULT = "0-3000" if ALL else "0-600"
_GROUPS = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known only where this folder is named on the command line."""
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, default=None, help="simulate this seed only")
    group.addoption("--seeds", default=None, help="simulate these seeds, as in 0-50000")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Share the seeds out over a few tests."""
    if "seeds" in metafunc.fixturenames:
        found = _seeds(metafunc.config)
        size = max(1, -(-len(found) // _GROUPS))
        groups = [found[start : start + size] for start in range(0, len(found), size)]
        ids = [f"{group[0]}-{group[-1]}" for group in groups]
        metafunc.parametrize("seeds", groups, ids=ids)


def _seeds(config: pytest.Config) -> range:
    seed = config.getoption("--seed", None)
    if seed is not None:
        return range(seed, seed + 1)
    text = config.getoption("--seeds", None) or os.environ.get("KPROXY_SEEDS") or SEEDS_DEFAULT
    first, _, end = text.partition("-")
    return range(int(first), int(end or int(first) + 1))
