"""An analysis is visible whole, or not at all; runs of a lake never mix."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kproxy.analyze import publish
from kproxy.analyze.lake import MANIFEST, runs
from kproxy.analyze.place import Place
from kproxy.spark import SparkError


@pytest.fixture(params=["local", "remote"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder that is not there yet, on a disk and as remote storage."""
    folder = tmp_path / "out"
    return Place.named(str(folder) if request.param == "local" else f"fsspec+file://{folder}")


def fill(folder: Place, after: str = "") -> None:
    (folder / "exchanges" / "part-00000.parquet").write(b"rows")
    manifest = {"after": after, "offset": {"after": after}, "rows": {"exchanges": 1}}
    (folder / MANIFEST).write(json.dumps(manifest).encode())


def files(out: Place) -> list[str]:
    folder = Path(str(out).removeprefix("fsspec+file://"))
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file())


def test_it_is_there_when_it_is_complete(out: Place) -> None:
    with publish.new_analysis(out) as folder:
        fill(folder)
        assert MANIFEST not in out.children()
    assert MANIFEST in out.children()
    with pytest.raises(SparkError, match=r"out is there already: name another folder, or remove"):
        publish.check_free(out)
    with pytest.raises(SparkError, match="is one analysis, and cannot be added to"):
        publish.check_lake(out)


def test_what_fails_leaves_nothing(out: Place) -> None:
    with pytest.raises(ZeroDivisionError), publish.new_analysis(out) as folder:
        fill(folder)
        raise ZeroDivisionError
    assert files(out) == [] and [each for each in out.children() if each != "run"] == []


def test_runs_are_added_one_after_the_other(out: Place) -> None:
    publish.check_lake(out)
    for _ in range(3):
        after = runs(out)[-1].name if runs(out) else ""
        with publish.new_run(out) as folder:
            fill(folder, after)
    assert [each.offset["after"] for each in runs(out)] == ["", *(r.name for r in runs(out)[:2])]
    before = files(out)
    with pytest.raises(ZeroDivisionError), publish.new_run(out) as folder:
        fill(folder, runs(out)[-1].name)
        raise ZeroDivisionError
    assert files(out) == before and len(runs(out)) == 3
    with pytest.raises(SparkError, match="name another folder, or remove it; --append adds to it"):
        publish.check_free(out)


def test_of_two_that_add_at_a_time_one_does(out: Place) -> None:
    """On a disk the second waits for nothing; on remote storage it finds out at the end."""
    with pytest.raises(SparkError, match=r"another kproxy analyze (adds|has added) to .*out"):
        with publish.new_run(out) as first:
            fill(first)
            with publish.new_run(out) as second:
                fill(second)
                # Of two runs after the same one the first by name counts.
                assert str(first) < str(second)
    assert len(runs(out)) <= 1


def test_others_see_what_the_mode_lets_them(tmp_path: Path) -> None:
    modes = {0o600: (0o600, 0o700), 0o640: (0o640, 0o750)}
    for mode, wanted in modes.items():
        out = Place(tmp_path / f"{mode:o}", mode)
        with publish.new_analysis(out) as folder:
            fill(folder)
            loose = folder.local
            assert loose is not None
            (loose / "of_spark").mkdir(mode=0o777)
            (loose / "of_spark" / "part").touch(0o666)
        found = {each: stat.S_IMODE(each.stat().st_mode) for each in out.local.rglob("*")}
        assert {mode for each, mode in found.items() if each.is_file()} == {wanted[0]}
        assert {mode for each, mode in found.items() if each.is_dir()} == {wanted[1]}
        assert stat.S_IMODE(os.stat(out.local).st_mode) == wanted[1]
