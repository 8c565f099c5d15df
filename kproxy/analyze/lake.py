"""A lake: a folder to which each run of `analyze --append` adds what is new in the recordings.

    LAKE/run-20261123T140500.123Z-1f0c/exchanges/date=2026-11-23/api=Produce/part-00000.parquet …
    LAKE/run-20261123T140500.123Z-1f0c/analysis.json     written last: it makes the run count

A run says after which one it came, and how far the recordings were read when it had ended: an
offset, as a stream has it (`spark.offsets`). So the next one goes on there, and what is in a lake
is there once.

Invariants: a run counts whole or not at all. Of runs that came after the same one, because several
were made at a time, the first by name counts. A run that does not count changes nothing.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from kproxy.analyze.place import Place
from kproxy.spark import SparkError

MANIFEST = "analysis.json"
_PREFIX = "run-"


@attrs.frozen
class Run:
    """A run that counts."""

    name: str
    """Of its folder."""
    offset: dict[str, Any]
    """How far the recordings were read when it had ended."""
    rows: dict[str, int]
    """Table → its number of rows."""


def runs(lake: Place) -> list[Run]:
    """Return the runs of a lake, in their order; none if it is not there yet.

    Raises: SparkError, if the folder is something else; OSError.
    """
    names = lake.children()
    if MANIFEST in names:
        raise SparkError(f"{lake} is one analysis, and cannot be added to: name another folder")
    found = [name for name in names if name.startswith(_PREFIX)]
    others = [name for name in names if not name.startswith((_PREFIX, ".", "report.html"))]
    if others:
        raise SparkError(f"{lake} has {others[0]}, which is of no analysis: name another folder")
    following: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for name in sorted(found, reverse=True):  # the first by name is set last
        manifest = _manifest(lake / name / MANIFEST)
        if manifest is not None:
            following[str(manifest["after"])] = name, manifest
    chain: list[Run] = []
    while (one := following.pop(chain[-1].name if chain else "", None)) is not None:
        name, manifest = one
        chain.append(Run(name, dict(manifest["offset"]), dict(manifest["rows"])))
    return chain


def _manifest(file: Place) -> Mapping[str, Any] | None:
    """Return what a run says of itself; None if it is not complete.

    Raises: SparkError, if it makes no sense.
    """
    try:
        found: Any = json.loads(file.read())
    except FileNotFoundError:
        return None
    except ValueError:
        raise SparkError(f"{file} is no JSON: remove its folder") from None
    kinds = {"after": str, "offset": dict, "rows": dict}
    if not isinstance(found, dict) or any(
        not isinstance(found.get(name), kind) for name, kind in kinds.items()
    ):
        raise SparkError(f"{file} does not say what its run added: remove its folder")
    return found


def new_name() -> str:
    """Return a name for a run that begins now."""
    return f"{_PREFIX}{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(2)}"
