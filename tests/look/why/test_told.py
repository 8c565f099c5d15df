"""Every story of recorded and of random traffic, word for word: a diff of `told` shows each change.

`python -m tests.look.why.test_told` writes the folder anew.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy.look.lines.stream import Stream
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.look.why.stories import story
from tests.bed import needs
from tests.bed.random_cluster import RandomCluster

FOLDER = Path(__file__).parent / "told"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
INCIDENTS = Path(__file__).parent / "incidents"
RECORDED = {
    **{
        name: INCIDENTS / f"{name}.mcap" for name in ("crashloop", "dups", "hang", "quota", "reset")
    },
    **{name: FORMATS / f"{name}.mcap" for name in ("faults", "transactions")},
}
SEEDS = {f"random-{seed}": seed for seed in (17, 19, 24)}
_NAMES = {
    "group": "groups", "topic": "topics", "transactional_id": "transactional_ids",
    "fault": "faults",
}  # fmt: skip
_TOLD_MAX = 6
"""Subjects of a kind, and exchanges that failed."""
HEAD = f"""\
# What is found in a recording, and the stories of its first {_TOLD_MAX} groups, topics,
# transactional ids, fault rules, clients and connections, in the order of their names, and of the
# first {_TOLD_MAX} exchanges that failed. Written by `python -m tests.look.why.test_told`.
"""


def told(path: Path) -> Iterator[str]:
    """All that is told of a recording: what is found, and the stories of some subjects."""
    for each in findings(light_data([path])):
        yield each.text
        yield from (f"  {more}" for more in each.evidence)
        yield f"  {' '.join(each.words)}"
    subjects: dict[tuple[str, str], None] = {}
    failed: list[str] = []
    for each in Stream([path]).exchanges():
        for kind, names in _NAMES.items():
            subjects |= dict.fromkeys((kind, name) for name in getattr(each, names))
        subjects["client_id", each.client_id or ""] = None
        subjects["connection", str(each.connection)] = None
        if each.errors or each.unanswered is not None or each.faults:
            failed.append(str(each.number))
    by_kind: dict[str, list[str]] = {}
    for kind, name in sorted(subjects):
        by_kind.setdefault(kind, []).append(name)
    for kind, names in {**by_kind, "number": failed}.items():
        for name in names[:_TOLD_MAX]:
            yield f"---- {kind}:{name}"
            yield from story([path], kind, name)[0]
        if len(names) > _TOLD_MAX:
            yield f"---- {kind}: {len(names) - _TOLD_MAX} more are left out"


def _text(name: str, folder: Path) -> str:
    path = RECORDED.get(name)
    if path is None:
        path = RandomCluster(SEEDS[name]).run(80).recorded(folder)
    return HEAD + "\n".join([*told(path), ""])


@pytest.mark.parametrize("name", [*RECORDED, *SEEDS])
def test_stories_are_told_as_they_were(name: str, tmp_path: Path) -> None:
    assert _text(name, tmp_path) == (FOLDER / f"{name}.txt").read_text("utf-8")


if __name__ == "__main__":
    for each in (*RECORDED, *SEEDS):
        with tempfile.TemporaryDirectory() as made:
            (FOLDER / f"{each}.txt").write_text(_text(each, Path(made)), "utf-8")
