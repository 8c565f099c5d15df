"""Whether Spark reads many recordings as fast, and in as little memory, as few; and what 50
executors would do with 100 GB and 10 TB. Prints Markdown.

    python -m tests.benchmarks.spark_scale                       1, 8 and 32 GB, all masters
    python -m tests.benchmarks.spark_scale --sizes 1GB           only some
    python -m tests.benchmarks.spark_scale --quick               100 MB, in a few minutes

    real traffic ─▶ distinct copies ─┬▶ size × master, a process each ─▶ time, CPU, memory, bytes
                                     ├▶ Parquet ─▶ DuckDB, polars, Spark
                                     └▶ tiny files, small tasks ─▶ cost of a file, of a task
                                                    all of it ─▶ projection (`spark_projection`)

What copies have in common is said in `spark_copies`. Files are dropped from the page cache before
each query, so that small sizes have no advantage. Memory is the peak of the sum of the proportional
set sizes of all processes. CPU time and memory count the JVM's, too; its heap grows as it may, so
the memory of sizes below some GB says little. Needs disk for the largest size and 2 GB more, and
gives it back.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow.parquet as pq

from kproxy import tables
from kproxy.recording.paths import in_order
from kproxy.tables import splits
from kproxy.units import parse_bytes
from tests.bed import needs
from tests.benchmarks import spark_copies, spark_projection, spark_traffic
from tests.benchmarks.process_tree import ProcessTree, Used

GB = 1e9
MASTERS = ("local[1]", "local[2]", "local-cluster[2,1,2048]")
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
TINY_FILES = 100
"""Copies of the demo, of which little but the files themselves is to be planned."""
SMALL_TASK_BYTES = 16 << 20
VIEWS = ("exchanges", "records")
RECORDS = "records of larger sizes are not aggregated, for it takes long"


@attrs.frozen
class Measured:
    """A query, or another step of a process."""

    step: str
    seconds: float
    used: Used
    result: Any
    """What it found: it must be the same for all who are asked the same."""


def main() -> None:
    """Make recordings, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = [parse_bytes(each) for each in ("1GB", "8GB", "32GB")]
    parser.add_argument("--sizes", nargs="+", type=parse_bytes, default=sizes)
    parser.add_argument("--masters", nargs="+", default=MASTERS)
    parser.add_argument("--base", type=parse_bytes, default=parse_bytes("500MB"), help="recorded")
    parser.add_argument("--rotate", default="256MiB", help="size of a file")
    parser.add_argument("--records-max", type=parse_bytes, default=parse_bytes("8GB"), help=RECORDS)
    parser.add_argument("--folder", type=Path, help="where there is room; a temporary one")
    parser.add_argument("--executors", type=int, default=50)
    parser.add_argument("--executor-cores", type=int, default=4)
    parser.add_argument("--quick", action="store_true", help="100 MB in small files")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.base, options.rotate = [10**8], 24 * 10**6, "16MiB"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # so that the folder goes, too
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="kproxy-scale-") as name:
        free, needed = shutil.disk_usage(name).free, max(options.sizes) + 2 * 10**9
        if free < needed:
            sys.exit(f"{name} has {free / GB:.0f} GB free, {needed / GB:.0f} are needed: --folder")
        _run(Path(name), options)


def _run(folder: Path, options: argparse.Namespace) -> None:
    base = _base(folder / "base", options)
    base_bytes = _size(base)
    print(f"base: {len(base)} files, {base_bytes / 1e6:.0f} MB", flush=True)
    some: list[Path] = []
    at: dict[float, dict[str, list[Measured]]] = {}
    for size in sorted(options.sizes):
        count = max(1, round(size / base_bytes))
        made = spark_copies.copies(base, folder / "copies", range(1, count + 1))
        if not some:
            spark_copies.check(base[0], made[-1][0])
            print("a copy was checked: every byte by kproxy, every CRC by mcap", flush=True)
            some = [path for paths in made for path in paths]
        paths = [path for paths in made for path in paths]
        views = VIEWS if size <= options.records_max or not at else VIEWS[:1]
        gb = _size(paths) / GB
        at[gb] = _measure_size(gb, paths, views, folder, options.masters)
    _print_growth(at)
    _parquet(folder, some, next(iter(at[min(at)].values())))
    costs = _costs(folder, some, at)
    spark_projection.project(costs, options.executors, options.executor_cores)


def _base(folder: Path, options: argparse.Namespace) -> list[Path]:
    spark_traffic.record("mixed", folder, options.base, options.rotate)
    return [Path(str(path)) for path in in_order([folder])]


def _size(paths: Sequence[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


# ---------------------------------------------------------------- a process


def _measured(
    engine: str, paths: Sequence[Path], views: Sequence[str], folder: Path, *more: str
) -> list[Measured]:
    """Measure the steps of a process of `spark_engines`.

    The process waits before and after each step, so that what it uses is told apart.
    """
    listing = folder / "paths.json"
    listing.write_text(json.dumps(list(map(str, paths))))
    command = [sys.executable, "-m", "tests.benchmarks.spark_engines", engine, str(listing)]
    command += [str(folder / "spark.log"), ",".join(views), *more]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin and process.stdout
    tree, found = ProcessTree(process.pid), []
    try:
        for line in process.stdout:
            step = json.loads(line)
            used = tree.used()
            if "seconds" in step:
                found.append(Measured(step["step"], step["seconds"], used, step["result"]))
            process.stdin.write("\n")
        assert process.wait() == 0, f"{engine} ended with {process.returncode}"
    finally:
        tree.close()
        process.kill()
        process.wait()
    return found


# ---------------------------------------------------------------- tables


def _row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def _peak(used: Used, gb: float) -> list[str]:
    mib = used.peak_bytes / (1 << 20)
    return [f"{mib:.0f}", f"{mib / gb:.0f}"]


def _measure_size(
    gb: float, paths: Sequence[Path], views: Sequence[str], folder: Path, masters: Sequence[str]
) -> dict[str, list[Measured]]:
    """Measure a size with each master; they must find the same."""
    print(f"\n### {gb:.2f} GB in {len(paths)} files\n")
    _row("master", "step", "s", "s/GB", "CPU s/GB", "peak MiB", "MiB/GB", "MB from disk/GB")
    _row(*["---"] * 8)
    by_master: dict[str, list[Measured]] = {}
    for master in masters:
        by_master[master] = _measured(master, paths, views, folder)
        for each in by_master[master]:
            used = each.used
            cells = [f"{each.seconds:.1f}", f"{each.seconds / gb:.1f}"]
            cells += [f"{used.cpu_seconds / gb:.1f}", *_peak(used, gb)]
            _row(master, each.step, *cells, f"{used.disk_bytes / 1e6 / gb:.0f}")
    _agree([each for steps in by_master.values() for each in steps if each.step in VIEWS])
    return by_master


def _agree(steps: Sequence[Measured]) -> None:
    """Check that who was asked the same has found the same."""
    results = {(each.step, json.dumps(each.result)) for each in steps}
    assert len(results) == len({step for step, _ in results}), f"they disagree: {results}"


def _print_growth(at: dict[float, dict[str, list[Measured]]]) -> None:
    """Compare the largest size with the smallest: flat is 1."""
    small, large = min(at), max(at)
    if small == large:
        return
    print(f"\n### {large:.1f} GB beside {small:.1f} GB: 1 is flat\n")
    _row("master", "step", "s/GB ×", "CPU s/GB ×", "peak memory ×")
    _row(*["---"] * 5)
    for master in at[small]:
        few = {each.step: each for each in at[small][master]}
        for each in at[large][master]:
            one, grown = few[each.step], small / large
            cpu = each.used.cpu_seconds / max(0.01, one.used.cpu_seconds) * grown
            peak = each.used.peak_bytes / one.used.peak_bytes
            seconds = each.seconds / one.seconds * grown
            _row(master, each.step, f"{seconds:.2f}", f"{cpu:.2f}", f"{peak:.2f}")


def _parquet(folder: Path, paths: Sequence[Path], of_recordings: Sequence[Measured]) -> None:
    """Export to Parquet, and ask it what the recordings were asked."""
    gb = _size(paths) / GB
    print(f"\n### Parquet of {gb:.2f} GB of recordings\n")
    _row("who", "step", "s", "s/GB", "CPU s/GB", "peak MiB", "MiB/GB")
    _row(*["---"] * 7)
    exported: list[Path] = []
    for view in VIEWS:
        started, path = time.perf_counter(), folder / f"{view}.parquet"
        reader = tables.read(paths, view)
        rows = 0
        with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += len(batch)
        seconds, size = time.perf_counter() - started, path.stat().st_size / 1e6
        what = f"{view}, all columns, {rows:,} rows, {size:.0f} MB"
        _row("kproxy.tables writes", what, f"{seconds:.1f}", f"{seconds / gb:.1f}", "", "", "")
        exported.append(path)
    for engine in ("duckdb", "polars", "parquet local[2]"):
        steps = _measured(engine, exported, list(VIEWS), folder)
        _agree([each for each in (*of_recordings, *steps) if each.step in VIEWS])
        for each in steps:
            cpu = each.used.cpu_seconds / gb
            cells = f"{each.seconds:.2f}", f"{each.seconds / gb:.2f}", f"{cpu:.2f}"
            _row(engine, each.step, *cells, *_peak(each.used, gb))
    for path in exported:
        path.unlink()


# ---------------------------------------------------------------- what things cost


def _costs(
    folder: Path,
    some: Sequence[Path],
    at: dict[float, dict[str, list[Measured]]],
) -> spark_projection.Costs:
    """Return the costs that a projection goes by: those of the largest size with two cores; of
    tasks, by smaller ones; of files, by tiny ones."""
    gb, least = max(at), min(at)
    master = "local[2]" if "local[2]" in at[gb] else next(iter(at[gb]))
    by_size = {each: {step.step: step for step in at[each][master]} for each in at}
    gb_of_records = max(each for each, steps in by_size.items() if "records" in steps)
    steps, usual = by_size[gb], by_size[least]
    measured = _measured(master, some, ["exchanges"], folder, str(SMALL_TASK_BYTES))
    small = {step.step: step for step in measured}
    more_tasks = max(1, small["plan"].result - usual["plan"].result)
    more_seconds = _reading_seconds(small, "exchanges") - _reading_seconds(usual, "exchanges")
    tiny = spark_copies.copies([DEMO], folder / "tiny", range(1, TINY_FILES + 1))
    started = time.process_time()
    splits.stretches(splits.find([str(paths[0]) for paths in tiny]))
    file_seconds = (time.process_time() - started) / TINY_FILES
    files = len(list((folder / "copies").glob("*.mcap")))
    return spark_projection.Costs(
        file_bytes=round(gb * GB / files),
        plan_seconds_per_gb=max(0, steps["plan"].used.cpu_seconds - files * file_seconds) / gb,
        plan_seconds_per_file=file_seconds,
        exchanges_seconds_per_gb=_reading_seconds(steps, "exchanges") / gb,
        records_seconds_per_gb=_reading_seconds(by_size[gb_of_records], "records") / gb_of_records,
        task_seconds=max(0, more_seconds / more_tasks),
        tasks_per_gb=steps["plan"].result / gb,
        partition_bytes=spark_projection.pickled_bytes(splits.find(list(map(str, some)))),
        result_rows=len(steps["exchanges"].result),
        disk_bytes_per_gb=steps["exchanges"].used.disk_bytes / gb,
    )


def _reading_seconds(steps: dict[str, Measured], view: str) -> float:
    """Return the CPU seconds of an aggregate without its planning."""
    return max(0, steps[view].used.cpu_seconds - steps["plan"].used.cpu_seconds)


if __name__ == "__main__":
    main()
