"""A lake: tables to which each run of `analyze --append` adds what is new in the recordings.

    LAKE/exchanges/run=20261123T140500.123Z-1f0c/date=2026-11-23/api=Produce/part-00000.parquet …
    LAKE/latency/run=20261123T140500.123Z-1f0c/part-….parquet …
    LAKE/runs/20261123T140500.123Z-1f0c.json         written last: it makes the run count
    LAKE/runs/20261123T140500.123Z-1f0c.html         its report
    LAKE/runs/20261123T140500.123Z-1f0c.part         what a report says of all runs up to it
    LAKE/report.html                                 the report of all runs

In a lake of Delta or Iceberg, tables are what the format makes of LAKE/TABLE, and those of a run
are staged until they are added (`formats`):

    LAKE/runs/20261123T140500.123Z-1f0c/exchanges/part-00000.parquet …

A run says after which one it came, and how far the recordings were read when it had ended: an
offset, as a stream has it (`spark.offsets`). So the next one goes on there, and what is in a lake
is there once.

Invariants: a run counts whole or not at all. Of runs that came after the same one, because several
were made at a time, the first by name counts. A run that does not count changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import attrs

from kproxy.analyze.described import ABOUT
from kproxy.analyze.place import Place
from kproxy.spark import SparkError

MANIFEST = "analysis.json"
"""The file of an analysis that stands alone."""
RUNS = "runs"
PARQUET = "parquet"
PART = ".part"
"""The ending of the file with the part of a report (`look.report.kept`), which only the last run
keeps. It is not .json, for that is what makes a run count."""
STEPS = ("traffic",)
"""Tables that are there while a run is made; a killed one leaves them."""
_BESIDE = ("report.html", "tables.md", RUNS, *STEPS)


@attrs.frozen
class Tables:
    """Where tables are: each in a folder, and in a lake in that of a run."""

    folder: Place
    run: str = ""
    """The name of the run; "" if the tables are those of one analysis."""
    hidden: bool = False
    """True while a run on a disk is made: then those who read a whole folder do not see it."""
    staged: bool = False
    """True if the tables are to be added to those of another format."""

    @property
    def divided(self) -> bool:
        """True if large tables are divided, as Hive does."""
        return bool(self.run) and not self.staged

    @property
    def stage(self) -> Place:
        """The folder of a run that is staged."""
        return self.folder / RUNS / self.run

    def table(self, name: str) -> Place:
        """Return the folder of a table."""
        if self.staged:
            return self.stage / name
        of_run = f"{'.' if self.hidden else ''}run={self.run}"
        return self.folder / name / of_run if self.run else self.folder / name

    def remove(self, name: str) -> None:
        """Remove a table; on a disk also its folder, if no other run has it."""
        self.table(name).remove()
        folder = (self.folder / name).local
        if self.run and folder is not None:
            with contextlib.suppress(OSError):
                folder.rmdir()


@attrs.frozen
class LakeRun:
    """A run that counts."""

    name: str
    offset: dict[str, Any]
    """How far the recordings were read when it had ended."""
    rows: dict[str, int]
    """Table → its number of rows."""
    format: str = PARQUET
    """Of the tables, by the name that Spark knows."""
    staged: bool = False
    """True until the rows are in the tables, if the format is not Parquet."""
    recordings: list[str] = attrs.field(factory=list)
    """Their names as the user gave them."""


def runs(lake: Place) -> list[LakeRun]:
    """Return the runs of a lake, in their order; none if it is not there yet.

    Raises: SparkError, if the folder is something else; OSError.
    """
    names = lake.children()
    if MANIFEST in names:
        raise SparkError(f"{lake} is one analysis, and cannot be added to: name another folder")
    others = [name for name in names if name not in (*_BESIDE, *ABOUT) and name[0] != "."]
    if others:
        raise SparkError(f"{lake} has {others[0]}, which is of no analysis: name another folder")
    files = [name for name in (lake / RUNS).children() if name.endswith(".json")]
    following: dict[str, LakeRun] = {}
    for file in sorted(files, reverse=True):  # the first by name is set last
        after, run = _read(lake / RUNS / file, file.removesuffix(".json"))
        following[after] = run
    for after, run in following.items():
        if after and f"{after}.json" not in files:
            what = f"{lake}: the manifest of run {after} is missing, after which {run.name} came"
            raise SparkError(f"{what}: put {RUNS}/{after}.json back, or name another folder")
    chain: list[LakeRun] = []
    while (one := following.pop(chain[-1].name if chain else "", None)) is not None:
        chain.append(one)
    return chain


def _read(file: Place, name: str) -> tuple[str, LakeRun]:
    """Return after which run one came, and what it says of itself.

    Raises: SparkError, if it makes no sense; OSError.
    """
    if file.local is not None and not file.local.is_file():
        raise SparkError(f"{file} is no file, though runs have one there: move it away")
    try:
        found: Any = json.loads(file.read())
    except (ValueError, RecursionError):
        raise SparkError(f"{file} is no JSON: put back what it was") from None
    kinds = {
        "after": str, "offset": dict, "rows": dict, "format": str, "staged": bool,
        "recordings": list,
    }  # fmt: skip
    missing = {"format": PARQUET, "staged": False, "recordings": []}
    said: dict[str, Any] = missing | found if isinstance(found, dict) else {}
    if any(not isinstance(said.get(key), kind) for key, kind in kinds.items()):
        raise SparkError(f"{file} does not say what its run added: put back what it was")
    after, *rest = (said[key] for key in kinds)
    return after, LakeRun(name, *rest)


def mark_added(lake: Place, run: LakeRun) -> None:
    """Say in the manifest of a run that its rows are in the tables of the lake.

    Raises: OSError.
    """
    file = lake / RUNS / f"{run.name}.json"
    file.write(encoded(json.loads(file.read()) | {"staged": False}))


def encoded(manifest: Mapping[str, Any]) -> bytes:
    """Return a manifest as JSON."""
    return f"{json.dumps(manifest, indent=2)}\n".encode()


def new_name() -> str:
    """Return a name for a run that begins now."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(2)}"
