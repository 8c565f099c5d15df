"""An analysis is visible whole, or not at all; runs of a lake never mix."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kproxy.analyze import publish
from kproxy.analyze.lake import MANIFEST, Tables, runs
from kproxy.analyze.place import Place
from kproxy.spark import SparkError


@pytest.fixture(params=["local", "remote"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A folder that is not there yet, on a disk and as remote storage."""
    folder = tmp_path / "out"
    return Place.named(str(folder) if request.param == "local" else f"fsspec+file://{folder}")


def fill(folder: Place) -> None:
    (folder / "exchanges" / "part-00000.parquet").write(b"rows")
    (folder / MANIFEST).write(b'{"rows": {"exchanges": 1}}')


def add(lake: Place) -> None:
    """Add a run that comes after those that it sees."""
    after = [each.name for each in runs(lake)]
    with publish.alone(lake), publish.new_run(lake) as new:
        fill_run(new, after[-1] if after else "")


def fill_run(new: Tables, after: str) -> None:
    (new.table("exchanges") / "part-00000.parquet").write(b"rows")
    rows = {"exchanges": 1, "records": 0}  # a table without rows may have no folder
    manifest = {"after": after, "offset": {"after": after}, "rows": rows}
    publish.publish(new, manifest)


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
        add(out)
    assert [each.offset["after"] for each in runs(out)] == ["", *(r.name for r in runs(out)[:2])]
    before = files(out)
    with pytest.raises(ZeroDivisionError), publish.alone(out), publish.new_run(out) as new:
        fill_run(new, runs(out)[-1].name)
        raise ZeroDivisionError
    assert files(out) == before and len(runs(out)) == 3
    with pytest.raises(SparkError, match="name another folder, or remove it; --append adds to it"):
        publish.check_free(out)


def test_of_two_that_add_at_a_time_one_does(out: Place) -> None:
    """On a disk the second waits for nothing; on remote storage it finds out at the end."""
    with pytest.raises(SparkError, match=r"another kproxy analyze (adds|has added) to .*out"):
        with publish.alone(out), publish.new_run(out) as first:
            fill_run(first, "")
            with publish.alone(out), publish.new_run(out) as second:
                fill_run(second, "")
                assert first.run < second.run, "the first by name counts"
    assert len(runs(out)) <= 1


def test_a_run_that_comes_too_late_does_not_take_the_place_of_another(tmp_path: Path) -> None:
    out = Place.named(f"fsspec+file://{tmp_path}/out")
    with pytest.raises(SparkError, match=r"has added to .*out meanwhile: try again"):
        with publish.new_run(out) as first:
            add(out)
            before = runs(out)
            fill_run(first, "")
    assert runs(out) == before and first.run < before[0].name and first.run not in str(files(out))


def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path) -> None:
    lake = Place(tmp_path)
    add(lake)
    before = files(lake)
    killed = Tables(lake, "20261123T000000.0Z-dead", hidden=True)
    for hidden in (True, False):  # also one that was killed while its tables got their names
        table = Tables(lake, killed.run, hidden=hidden).table("exchanges")
        (table / "part-00000.parquet").write(b"rows")
    add(lake)
    assert len(files(lake)) == 2 * len(before) and killed.run not in "".join(files(lake))


def test_what_no_killed_run_has_left_stays(tmp_path: Path) -> None:
    lake = Place(tmp_path / "lake")
    for _ in range(3):
        add(lake)
    first, second, third = (run.name for run in runs(lake))
    others = [".backup/dry-run=1", ".backup/run=1", "exchanges/other=1"]
    for name in others:
        (lake / name / "file").write(b"precious")
    manifest = lake / "runs" / f"{second}.json"
    was = manifest.read()
    manifest.remove()
    with pytest.raises(SparkError, match=f"run {second} is missing"):
        add(lake)
    manifest.write(was)
    add(lake)
    assert [run.name for run in runs(lake)][:3] == [first, second, third]
    kept = {str(path.relative_to(tmp_path / "lake")) for path in (tmp_path / "lake").rglob("*")}
    assert {*others, *(f"exchanges/run={name}" for name in (first, second, third))} <= kept


def test_a_link_is_said_before_anything_is_made(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in ("empty", "nowhere"):
        link = tmp_path / f"to-{target}"
        link.symlink_to(tmp_path / target)
        for check in (publish.check_free, publish.check_lake):
            with pytest.raises(SparkError, match="is a link: name the folder"):
                check(Place(link))


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_who_sees_a_lake_depends_on_its_mode_and_on_no_umask(mode: int, tmp_path: Path) -> None:
    lake = Place(tmp_path / "lake", mode)
    os.mkdir(tmp_path / "lake", 0o755)
    with publish.alone(lake), publish.new_run(lake) as new:
        table = tmp_path / "lake" / "latency" / f".run={new.run}"
        table.mkdir(parents=True)  # as Spark writes it, with the umask's modes
        (table / "part-00000.parquet").touch(0o644)
        publish.publish(new, {"after": "", "offset": {}, "rows": {"latency": 1}})
    made = {each: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "lake").rglob("*")}
    assert len(made) == 5
    folders = 0o700 if mode == 0o600 else 0o750
    assert made == {each: folders if each.is_dir() else mode for each in made}
