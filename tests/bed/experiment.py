"""An experiment: kproxy with fault rules, and what its recording says of them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from kproxy import recording
from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from tests.bed import proxies


def running(
    cluster: str, folder: Path, *rules: str, seed: int = 1
) -> AbstractContextManager[proxies.Proxy]:
    """Run kproxy before a cluster with these rules, as one types them behind --fault."""
    options = [part for rule in rules for part in ("--fault", rule)]
    return proxies.running(cluster, folder, *options, "--seed", str(seed))


def fired(path: Path) -> list[dict[str, Any]]:
    """The faults of which a recording says that they fired, in order."""
    notes = [each.body for each in recording.entries(path) if isinstance(each, Note)]
    return [body for body in notes if body["event"] == "fault"]


def read(path: Path, *filters: str) -> list[Exchange]:
    """The exchanges of a recording, or those that a filter means."""
    return list(recording.read(path, *filters))
