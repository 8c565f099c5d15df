"""Which runs of a lake count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from kproxy.analyze import export
from kproxy.analyze.lake import LakeRun, Tables, new_name, runs
from kproxy.analyze.place import Place
from kproxy.spark import SparkError


def add(lake: Place, name: str, after: str, **more: Any) -> None:
    manifest = {"after": after, "offset": {"of": name}, "rows": {}} | more
    (lake / "runs" / f"{name}.json").write(json.dumps(manifest).encode())


def test_a_run_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    lake = Place(tmp_path / "lake")
    assert runs(lake) == []
    add(lake, "run-2", "")
    add(lake, "run-1", "run-2", rows={"exchanges": 3})  # a clock that was set back
    first, second = runs(lake)
    assert first == LakeRun("run-2", {"of": "run-2"}, {})
    assert second == LakeRun("run-1", {"of": "run-1"}, {"exchanges": 3})


def test_a_run_without_its_end_does_not_count(tmp_path: Path) -> None:
    lake = Place(tmp_path)
    add(lake, "run-1", "")
    for name in export.TABLES:  # also those that are only there while a run is made
        (Tables(lake, "run-2").table(name) / "part-00000.parquet").write(b"x")
    assert [each.name for each in runs(lake)] == ["run-1"]


@given(st.permutations(["run-a", "run-b", "run-c"]))
def test_of_runs_made_at_a_time_one_counts(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    lake = Place(tmp_path_factory.mktemp("lake"))
    add(lake, "run-0", "")
    for name in names:
        add(lake, name, "run-0")
    add(lake, "run-d", "run-b")  # of a writer that had not seen run-a
    assert [each.name for each in runs(lake)] == ["run-0", "run-a"]


def test_names_of_runs_differ() -> None:
    assert len({new_name() for _ in range(100)}) > 90


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("analysis.json", "{}", "is one analysis, and cannot be added to: name another folder"),
        ("photo.jpg", "", "has photo.jpg, which is of no analysis: name another folder"),
        ("runs/1.json", "{", "1.json is no JSON: put back what it was"),
        ("runs/1.json", "[]", "does not say what its run added: put back what it was"),
        ("runs/1.json", '{"after": 1}', "does not say what its run added"),
        ("runs/1.json", "[" * 200_000, "is no JSON"),
        ("runs/1.json/file", "", "1.json is no file"),
        (
            "runs/2.json",
            '{"after": "1", "offset": {}, "rows": {}}',
            "run 1 is missing, after which 2 came: put runs/1.json back",
        ),
    ],
)
def test_what_is_no_lake_is_said(tmp_path: Path, file: str, text: str, what: str) -> None:
    Place(tmp_path / file).write(text.encode())
    with pytest.raises(SparkError, match=what):
        runs(Place(tmp_path))
