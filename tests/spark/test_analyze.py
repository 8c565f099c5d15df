"""`kproxy analyze`: its tables add up, its report stands alone, and its errors are one line."""

from __future__ import annotations

import math
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kproxy import recording
from kproxy.analyze import compare
from kproxy.exchange import delivered
from kproxy.look.report import significance
from kproxy.spark import SparkError, java
from kproxy.spark.session import check
from kproxy.tables import splits
from kproxy.units import format_bytes
from tests.bed import needs
from tests.bed.waiting import until
from tests.look.report.making import plain
from tests.spark.command import run
from tests.spark.conftest import Commanded
from tests.versions import ALL

DEMO = str(needs.REPOSITORY / "recordings" / "demo.mcap")
TABLES = {
    "exchanges", "records", "events", "group_events", "latency", "throughput", "errors",
    "connections", "recordings", "groups", "faults",
}  # fmt: skip


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table."""
    return pq.read_table(folder / table).to_pylist()


def readable(folder: Path) -> dict[str, str]:
    """The modes in a folder that are not those of what only the owner may read."""
    found = {each: each.lstat().st_mode for each in folder.rglob("*")}
    kept = {each: 0o700 if each.is_dir() else 0o600 for each in found}
    return {
        str(each.relative_to(folder)): oct(stat.S_IMODE(mode))
        for each, mode in found.items()
        if stat.S_IMODE(mode) != kept[each]
    }


@pytest.mark.java
def test_the_tables_add_up(analysis: Commanded) -> None:
    folder = analysis.folder
    exchanges = list(recording.read(analysis.recordings))
    assert {path.name for path in folder.iterdir() if path.is_dir()} == TABLES
    assert not list(folder.parent.glob(".*")), "something half is left"
    all_of_it = [row for row in rows(folder, "latency") if row["topic"] is None]
    by_api = Counter[str]()
    for row in all_of_it:
        by_api[row["api"]] += row["count"]
        assert sum(n for _, n in row["proxy_histogram"] or ()) <= row["count"]
    assert by_api == Counter(each.api for each in exchanges)
    assert sum(row["errors"] for row in all_of_it) == sum(bool(each.errors) for each in exchanges)
    errors = Counter[str]()
    for row in rows(folder, "errors"):
        errors[row["error"]] += row["count"]
    assert errors == Counter(error for each in exchanges for error in each.errors)
    through = rows(folder, "throughput")
    written = [each for each in exchanges if delivered.may_have_written(each)]
    arrived = [each for each in exchanges if not each.may_be_lost and each.response_told is None]
    for counted, name in ((written, "records_produced"), (arrived, "records_consumed")):
        produced = counted is written
        expected = sum(r.produced is produced for each in counted for r in each.records)
        assert sum(row[name] for row in through) == expected > 100, name
    connections = rows(folder, "connections")
    assert {row["connection"] for row in connections} >= {each.connection for each in exchanges}
    assert sum(row["exchanges"] for row in connections) == len(exchanges)


@pytest.mark.java
def test_groups_and_faults_are_told(analysis: Commanded) -> None:
    folder, broken = analysis.folder, analysis.recordings
    (group,) = (row for row in rows(folder, "groups") if row["group"].endswith("-billing"))
    assert group["commits"] >= 4 and group["members"] >= 1 and group["last_generation"] >= 1
    ends = {each["partition"]: each for each in group["partitions"]}
    assert all(each["log_end"] >= each["committed"] > 0 for each in ends.values())
    faults = rows(folder, "faults")
    hits = Counter(name for each in recording.read(broken) for name in each.faults)
    assert Counter(row["fault"] for row in faults) == hits
    (away,) = (row for row in faults if row["fault"] == "away")
    again = next(
        each
        for each in recording.read(broken)
        if each.number > away["number"] and each.api == "OffsetCommit" and not each.errors
    )
    assert away["recovered_number"] == again.number and away["retries"] >= 1
    (cut,) = (row for row in faults if row["fault"] == "cut")
    assert cut["reconnects"] >= 1


@pytest.mark.java
def test_the_report_stands_alone_and_says_what_stands_out(analysis: Commanded) -> None:
    page = plain((analysis.folder / "report.html").read_text())
    assert not re.search(r"<script|<link|src=|href=|url\(|https?://", page)
    assert "prefers-color-scheme: dark" in page and page.count("<svg") >= 4
    for path in (analysis.recordings, analysis.baseline):
        assert f"<code>{path}</code>" in page
    for words in ("faults were injected", "fault away", "Compared with the baseline", "Produce"):
        assert words in page
    before = sum(each.api == "Produce" for each in recording.read(analysis.baseline))
    differences = page.partition("Compared with the baseline")[2].partition("</section>")[0]
    (found,) = re.findall("<tr><td>Produce</td><td>all</td>(.*?)</tr>", differences)
    _, count, _, _, p99, *_ = re.findall("<td>(.*?)</td>", found)
    assert int(count) == before < 3 and p99.endswith(" (chance)"), "two exchanges prove nothing"


@pytest.mark.java
def test_the_command_says_what_it_reads_and_what_it_made(analysis: Commanded) -> None:
    size = splits.find([str(analysis.recordings), str(analysis.baseline)]).bytes
    *steps, notice = analysis.said.stderr.splitlines()
    assert analysis.said.returncode == 0
    assert steps[:2] == [
        "kproxy analyze: starting Spark …",
        f"kproxy analyze: reading {format_bytes(size)} …",
    ]
    assert any(re.search(r": making tables: \d of \d …$", step) for step in steps)
    assert steps[-1] == "kproxy analyze: writing the report …"
    assert any(step.startswith("kproxy analyze: reading: ") for step in steps)
    assert notice.startswith(f"kproxy analyze: baseline: {analysis.baseline}: read up to byte ")
    count = len(list(recording.read(analysis.recordings)))
    page = analysis.folder / "report.html"
    assert analysis.said.stdout == f"{count} exchanges: {page}\n"
    assert {each.parent.name for each in analysis.folder.glob("*/*.parquet")} == TABLES
    assert len(rows(analysis.folder, "exchanges")) == count
    # It is for its owner only, and the user's own folder stays as it is.
    above = analysis.folder.parents[1]
    assert readable(above) == {}
    assert stat.S_IMODE(above.stat().st_mode) == 0o755


@pytest.mark.java
@pytest.mark.skipif(not ALL, reason="a minute; KPROXY_TEST_ALL=1")
@pytest.mark.skipif(shutil.which("prlimit") is None, reason="a full disk needs prlimit")
def test_a_full_disk_is_one_line_and_leaves_nothing(
    broken: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs.program("java")
    # Nor is there room for an archive of classes in an empty cache.
    cache = {"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    analyze = [sys.executable, "-m", "kproxy", "analyze", str(broken), "--out", tmp_path / "out"]
    done = subprocess.run(
        ["prlimit", "--fsize=30000", *analyze],
        env=os.environ | cache,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert (done.returncode, done.stdout) == (1, "")
    *steps, said = done.stderr.splitlines()
    assert all(step.endswith(" …") for step in steps)
    assert said == (
        f"kproxy analyze: {tmp_path}: File too large: make room there, or name another folder"
        " with --out"
    )
    assert not list(tmp_path.iterdir())


def test_an_archive_of_classes_is_taken_when_it_is_whole(tmp_path: Path) -> None:
    jars = tmp_path / "jars"
    jars.mkdir()
    found = java.Java("java", "17")
    begin = java.archive_options(found, jars, tmp_path).split()[0]
    part = Path(begin.removeprefix("-XX:ArchiveClassesAtExit="))
    assert part.parent == tmp_path

    def written(size: int, seconds_ago: float) -> str:
        with part.open("wb") as file:
            file.truncate(size)
        os.utime(part, (time.time() - seconds_ago,) * 2)
        return java.archive_options(found, jars, tmp_path)

    assert written(200 << 20, 1).startswith(begin), "it is still written"
    assert written(1 << 20, 60).startswith(begin) and not part.exists(), "it was cut off"
    (whole,) = written(200 << 20, 60).split()[:1]
    assert Path(whole.removeprefix("-XX:SharedArchiveFile=")).stat().st_size == 200 << 20
    (jars / "other.jar").touch()
    assert "ArchiveClassesAtExit" in java.archive_options(found, jars, tmp_path), "of other jars"


@pytest.mark.java
@pytest.mark.skipif(not ALL, reason="a JVM of its own; KPROXY_TEST_ALL=1")
def test_a_jvm_of_spark_starts_with_an_archive_in_a_folder_of_any_name(tmp_path: Path) -> None:
    needs.program("java")
    folder = tmp_path / """it's a "cache" \\ of 1"""
    options = java.archive_options(java.Java("java", "17"), tmp_path, folder)
    assert folder.is_dir()
    program = "from pyspark.java_gateway import launch_gateway as go\n"
    program += "from pyspark import SparkConf\nimport sys\n"
    program += "conf = SparkConf().set('spark.driver.extraJavaOptions', sys.argv[1])\n"
    program += "jvm = go(conf).jvm.java.lang.management.ManagementFactory.getRuntimeMXBean()\n"
    program += "print(*jvm.getInputArguments(), sep='\\n', flush=True)\n"
    program += "import os; os.kill(jvm.getPid(), 9)"  # it would write an archive
    done = subprocess.run(
        [sys.executable, "-c", program, options], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert f"-XX:ArchiveClassesAtExit={folder}/" in done.stdout
    assert java.archive_options(java.Java("java", "17"), tmp_path, tmp_path / "a:b") == ""


@pytest.mark.parametrize(
    ("name", "version", "what"),
    [
        (None, "", "Spark needs Java 17 or newer, and there is none: install it"),
        ("openjdk", '"11.0.2"', "Spark needs Java 17 or newer, "),
        ("java", '"1.8.0_292"', "is Java 8: install it, and let JAVA_HOME name its folder"),
        ("broken", "", "is no Java that runs: install Java 17"),
    ],
)
def test_a_java_that_is_missing_or_old_is_said(
    name: str | None, version: str, what: str, tmp_path: Path
) -> None:
    if name is not None:
        program = tmp_path / "java"
        program.write_text(f"#!/bin/sh\necho '{name} version {version}' >&2\n")
        program.chmod(0o700)
    path = f"{tmp_path}:/bin" if name else str(tmp_path)
    done = run(DEMO, "--out", str(tmp_path / "out"), PATH=path, JAVA_HOME="")
    assert done.returncode == 1 and what in done.stderr
    assert done.stderr.startswith("kproxy analyze: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("version", "what"),
    [
        ("false", "java does not start: No room: For the heap (is it "),
        ("true", "[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port"),
    ],
)
def test_a_java_that_does_not_start_is_said(version: str, what: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\n"
        f"[ $1 = -version ] && {version} && echo 'openjdk version \"21\"' && exit\n"
        "echo No room >&2; echo For the heap >&2; exit 1\n"
    )
    program.chmod(0o700)
    done = run(DEMO, "--out", str(tmp_path / "out"), JAVA_HOME=str(tmp_path))
    assert done.returncode == 1 and done.stdout == ""
    *_, said = done.stderr.splitlines()
    assert what in said and "memory" in said


@pytest.mark.parametrize(
    ("arguments", "code", "what"),
    [
        (["/nowhere.mcap", "--out", "out"], 1, "/nowhere.mcap: does not exist"),
        ([DEMO, "--out", "out", "--fail-above", "2"], 2, "--fail-above says how much slower"),
        ([DEMO, "--out", "out", "--fail-above", "0"], 2, "is not a factor of at least 1"),
    ],
)
@pytest.mark.java
def test_what_cannot_be_done_is_one_line(arguments: list[str], code: int, what: str) -> None:
    needs.program("java")
    done = run(*arguments)
    assert done.returncode == code and what in done.stderr and done.stderr.count("\n") == 1


def test_without_pyspark_it_says_what_to_install(tmp_path: Path) -> None:
    hidden = "import sys; sys.modules['pyspark'] = None\n"
    (tmp_path / "sitecustomize.py").write_text(hidden)
    done = run(DEMO, "--out", str(tmp_path / "out"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        "kproxy analyze: pyspark is not installed: pip install 'kproxy-kafka[spark]'\n"
    )


def test_what_is_slower_is_told_from_chance() -> None:
    old = {600: 900, 700: 100}
    slow = {664: 900, 764: 100}  # all of it twice as long
    found = significance.difference(slow, old, "p50")
    assert found["p50_ratio"] == 2 and found["p50_sigma"] > significance.SIGNIFICANT
    few = significance.difference({664: 2}, {600: 2}, "p50")
    assert few["p50_ratio"] == 2 and few["p50_sigma"] < significance.SIGNIFICANT
    row = {f"{name}_ratio": 2.0 for name in ("p50", "p95", "p99")}
    sure = row | {f"{name}_sigma": 9.0 for name in ("p50", "p95", "p99")}
    chance = row | {f"{name}_sigma": 1.0 for name in ("p50", "p95", "p99")}
    assert compare.slower([sure, chance], 1.5) == [sure]
    assert compare.slower([sure], 2.5) == []


def test_what_is_the_same_or_only_on_one_side_is_not_slower() -> None:
    same = {600: 900, 700: 100}
    slow = {math.floor(each + 64 * math.log2(1.3)): n for each, n in same.items()}
    for name in ("p50", "p95", "p99"):
        found = significance.difference(same, same, name)
        assert (found[f"{name}_ratio"], found[f"{name}_sigma"]) == (1, 0)
        found = significance.difference(slow, same, name)
        assert found[f"{name}_ratio"] == pytest.approx(1.3, abs=0.02)
        assert found[f"{name}_sigma"] > significance.SIGNIFICANT
        assert significance.difference(same, {}, name)[f"{name}_ratio"] is None
    assert significance.sigmas(3, 10, 0, 0) == 0.0


@pytest.mark.parametrize("hangs", ["-version", "start"])
def test_a_java_that_hangs_is_said(hangs: str, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    said = "" if hangs == "-version" else """[ $1 = -version ] && exec echo 'java version "17"'\n"""
    program.write_text(f"#!/bin/sh\n{said}echo $$ >> {tmp_path}/pids; sleep 1000\n")
    program.chmod(0o700)
    code = "from kproxy.spark import java, session, SparkError\n"
    code += "java.VERSION_SECONDS_MAX = java.START_SECONDS_MAX = 2\n"
    code += "try: session('local[1]')\nexcept SparkError as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"JAVA_HOME": str(tmp_path)},
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.stdout.startswith(f"{program} hangs: it did not "), done.stderr
    assert "within 2 s; let JAVA_HOME name" in done.stdout and done.stdout.count("\n") == 1
    for number in (tmp_path / "pids").read_text().split():
        until(lambda pid=int(number): not alive(pid), "it was not left running")


def alive(number: int) -> bool:
    """Whether there is a process."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("name", "jars", "what"),
    [
        ("spark-submit", ["spark-core_2.13-3.5.1.jar"], "Spark 3.5, but pyspark is "),
        ("nothing", [], "which has no bin/spark-submit: unset it"),
    ],
)
def test_another_spark_is_said(
    name: str, jars: list[str], what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (f"bin/{name}", *(f"jars/{jar}" for jar in jars)):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(SparkError, match=f"SPARK_HOME is {tmp_path}, .*{what}"):
        check()


@pytest.mark.java
def test_a_master_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    needs.program("java")
    out = tmp_path / "out"
    for url, what in (
        ("spark://127.0.0.1:1", "no master of Spark can be reached there (Connection refused)"),
        ("spark://nowhere", "is no URL of a master of Spark, as spark://host:7077"),
        (
            "sc://127.0.0.1:1/;token=x",
            "sc://127.0.0.1:1: no server of Spark Connect can be",
        ),
    ):
        done = run(DEMO, "--out", str(out), "--master", url)
        assert (done.returncode, done.stderr.count("\n")) == (1, 2)
        assert what in done.stderr.splitlines()[1]
