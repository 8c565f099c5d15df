"""Lakes of Delta and Iceberg without their jars: which a session has, what is refused, and what a
run does after it counts, also if it is killed then."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.errors import PySparkException

from kproxy.analyze import appending, publish
from kproxy.analyze.appending import finish, new_in
from kproxy.analyze.formats import FORMATS, format_of
from kproxy.analyze.lake import PARQUET, runs
from kproxy.analyze.making import TableMaker
from kproxy.analyze.place import Place
from kproxy.analyze.tables import tables
from kproxy.exchange.merging import merge
from kproxy.look.report.kept import from_json, to_json
from kproxy.look.report.part import ReportPart
from kproxy.spark import SparkError
from tests.look.report.test_kept import PATHS, part

DELTA, ICEBERG = (dict(FORMATS[name].settings) for name in ("delta", "iceberg"))
CATALOG = {"spark.sql.catalog.mine": "org.apache.iceberg.spark.SparkCatalog"}


def session(settings: dict[str, str], without: tuple[str, ...] = ()) -> Any:
    """What is asked of a session of Spark, which is `without` the jars of some formats."""

    def load(name: str) -> Any:
        reason = "DATA_SOURCE_NOT_FOUND" if name in without else "PATH_NOT_FOUND"
        raise PySparkException(f"[{reason}] Failed to find the data source: {name}")

    reading = {"format": lambda name: types.SimpleNamespace(load=lambda path: load(name))}
    conf = types.SimpleNamespace(getAll=settings, get=settings.get)
    read = types.SimpleNamespace(**reading)
    return types.SimpleNamespace(version="4.1.4", conf=conf, read=read)


def add(lake: Place, name: str, after: str = "", of: ReportPart | None = None, **more: Any) -> None:
    """Add a run, with the part of a report of all runs up to it."""
    given = {"after": after, "offset": {}, "rows": {"exchanges": 1, "faults": 0}} | more
    (lake / "runs" / f"{name}.json").write(json.dumps(given).encode())
    if of is not None:
        (lake / "runs" / f"{name}.part").write(to_json(of).encode())


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, "parquet"),
        (DELTA, "delta"),
        (ICEBERG, "iceberg"),
        (CATALOG, "iceberg"),
        (DELTA | CATALOG, "delta"),
        (DELTA | CATALOG | {"spark.sql.sources.default": "iceberg"}, "iceberg"),
        (DELTA | {"spark.sql.sources.default": "orc"}, "delta"),
    ],
)
def test_a_new_lake_has_the_format_of_the_session_and_keeps_it(
    settings: dict[str, str], found: str, tmp_path: Path
) -> None:
    lake = Place(tmp_path / "lake")
    assert format_of(session(settings), lake) == found
    add(lake, "run-1", format=found)
    assert format_of(session(DELTA | CATALOG), lake) == found
    add(Place(tmp_path / "old"), "run-1")  # of a kproxy that knew no others
    assert format_of(session(settings), Place(tmp_path / "old")) == PARQUET


@pytest.mark.parametrize(
    ("name", "has", "what"),
    [
        ("delta", session({}), "--packages io.delta:delta-spark_4.1_2.13:VERSION --conf spark.sql"),
        ("delta", session(DELTA, without=("delta",)), "spark.sql.catalog.spark_catalog=org.apache"),
        ("iceberg", session(DELTA), "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:VERSION"),
        ("hudi", session(DELTA), "has tables of hudi, which this kproxy does not know"),
    ],
)
def test_a_session_without_the_format_of_a_lake_is_refused(
    name: str, has: Any, what: str, tmp_path: Path
) -> None:
    lake = Place(tmp_path / "lake")
    add(lake, "run-1", format=name)
    for used in (lambda: format_of(has, lake), lambda: tables(has, str(tmp_path / "lake"))):
        with pytest.raises(SparkError) as said:
            used()
        assert what in str(said.value) and "\n" not in str(said.value)


def test_settings_without_jars_make_no_lake(tmp_path: Path) -> None:
    with pytest.raises(SparkError, match="which this session of Spark does not have: give spark-"):
        format_of(session(DELTA, without=("delta",)), Place(tmp_path / "lake"))


def test_a_staged_run_is_in_all_tables_before_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Place(tmp_path / "lake")
    rows = dict.fromkeys(("exchanges", "latency", "faults"), 0)
    add(lake, "run-1", of=ReportPart(), format="delta")
    with publish.alone(lake), publish.new_run(lake, staged=True) as new:
        (new.table("exchanges") / "part-00000.parquet").write(b"rows")
        manifest = {"after": "run-1", "offset": {"at": 1}, "rows": rows, "recordings": ["a.mcap"]}
        publish.publish(new, manifest | {"format": "delta", "staged": True})
    assert new.stage.exists() and (tmp_path / "lake" / "exchanges").exists() is False
    assert new_in([str(tmp_path / "none")], lake).is_unfinished

    adding: list[str] = []

    def fail(*given: Any) -> None:
        *_, run, name = given
        assert runs(lake)[-1].staged and new.stage.exists() and run.name == new.run
        adding.append(name)
        if len(adding) == 2:
            raise ZeroDivisionError  # a killed job has come so far, too

    monkeypatch.setattr(appending, "add_rows", fail)
    maker = TableMaker(session(DELTA))
    with pytest.raises(ZeroDivisionError):
        finish(maker, lake)
    assert runs(lake)[-1].staged and new.stage.exists()
    adding[:] = ["", ""]
    finish(maker, lake)
    assert sorted(adding[2:]) == sorted(rows), "formats leave out what they have"
    assert not runs(lake)[-1].staged and runs(lake)[-1].rows == rows and not new.stage.exists()
    assert not new_in([str(tmp_path / "none")], lake).is_unfinished
    finish(maker, lake)
    assert len(adding) == 2 + len(rows), "it was added once"


def test_what_a_killed_job_has_staged_goes_if_it_does_not_count(tmp_path: Path) -> None:
    lake = Place(tmp_path / "lake")
    add(lake, "run-1", format="delta", staged=True)
    for name in ("run-1", "run-2"):
        (lake / "runs" / name / "exchanges" / "part-00000.parquet").write(b"rows")
    with pytest.raises(ZeroDivisionError), publish.alone(lake), publish.new_run(lake, True) as new:
        (new.table("exchanges") / "part-00000.parquet").write(b"rows")
        raise ZeroDivisionError
    assert (lake / "runs").children() == ["run-1", "run-1.json"]
    with pytest.raises(SparkError, match="has no analysis"):
        tables(session(DELTA), str(tmp_path / "lake"))


def shown(lake: Place) -> str:
    return (lake / "report.html").read().decode()


def test_the_page_is_of_all_runs_also_after_a_killed_one(tmp_path: Path) -> None:
    lake, maker, nothing = (
        Place(tmp_path / "lake"),
        TableMaker(session({})),
        [str(tmp_path / "none")],
    )
    first, both = part(PATHS[0]), part(*PATHS[:2])
    add(lake, "run-1", of=first, recordings=["a.mcap"])
    assert not new_in(nothing, lake).is_nothing, "there is no page yet"
    finish(maker, lake)
    assert f"<b>{count(first)}</b><span>exchanges" in shown(lake) and "b.mcap" not in shown(lake)
    assert new_in(nothing, lake).is_nothing
    add(lake, "run-2", "run-1", of=both, recordings=["b.mcap", "a.mcap"])
    assert not new_in(nothing, lake).is_nothing, "the page lacks a run"
    finish(maker, lake)
    assert f"<b>{count(both)}</b><span>exchanges" in shown(lake)
    assert "does not count" not in shown(lake)
    assert "Of <code>a.mcap</code>, <code>b.mcap</code></p>" in shown(lake)
    assert (lake / "runs").children() == ["run-1.json", "run-2.json", "run-2.part"]
    assert new_in(nothing, lake).is_nothing


@pytest.mark.parametrize("kept", [None, b"", b'["ReportPart", {"shells": 1}]', b"\xff"])
def test_a_page_says_which_runs_it_does_not_count(kept: bytes | None, tmp_path: Path) -> None:
    lake = Place(tmp_path / "lake")
    add(lake, "run-1")
    if kept is not None:
        (lake / "runs" / "run-1.part").write(kept)
    finish(TableMaker(session({})), lake)
    what = "does not count the runs up to run-1, though the tables have them: runs/run-1.part is"
    assert what in shown(lake)
    total = appending.part_of(lake, "run-1")
    merge(total, part(PATHS[0]))
    add(lake, "run-2", "run-1", of=from_json(to_json(total)))
    finish(TableMaker(session({})), lake)
    assert what in shown(lake), "nor do later pages"
    assert f"<b>{count(part(PATHS[0]))}</b><span>exchanges" in shown(lake)


def count(of: ReportPart) -> int:
    """How many exchanges a part counts."""
    return of.counts.total.count
