"""What many executors would do with more recordings than fit here, by measured costs.

::

    planning, on the driver alone       files × cost of a file + GB × cost of their tables
    reading, on all cores               GB × CPU seconds + tasks × cost of a task
    partitions, in the driver's memory  tasks × pickled bytes of one
    shuffle                             tasks × rows of the result

Costs are CPU seconds, for what others do on a machine does not add to them. So it assumes that
storage gives what is said to be needed, and that no task is much longer than others. Each limit
grows with the bytes, so each has a size at which it is reached: the smallest breaks first.
"""

from __future__ import annotations

import pickle

import attrs

from kproxy.tables.splits import FoundFiles, packed, stretches

SIZES_GB = {"100 GB": 100.0, "10 TB": 10_000.0}
PLAN_SECONDS_MAX = 600
"""Nobody waits longer for a first task."""
PARTITIONS_BYTES_MAX = 256 << 20
"""A quarter of the heap that a driver has by default: Spark has them once, plans twice."""
TASKS_MAX = 100_000
"""Of one stage: what a driver of Spark is known to schedule and track without trouble."""


@attrs.frozen
class Costs:
    """What was measured."""

    file_bytes: int
    plan_seconds_per_gb: float
    plan_seconds_per_file: float
    exchanges_seconds_per_gb: float
    """To read headers and aggregate them, on all cores together; so for the next two."""
    records_seconds_per_gb: float
    task_seconds: float
    tasks_per_gb: float
    partition_bytes: float
    """Of one task, as the driver keeps it."""
    result_rows: int
    """That a task gives to the shuffle at most."""
    disk_bytes_per_gb: float


def pickled_bytes(found: FoundFiles) -> float:
    """Return the mean size of the partition of a task, pickled."""
    groups = packed(stretches(found))
    return sum(len(pickle.dumps(tuple(group))) for group in groups) / len(groups)


def project(costs: Costs, executors: int, executor_cores: int) -> None:
    """Print the projection, and what breaks first."""
    cores = executors * executor_cores
    print(f"\n### Projected: {executors} executors of {executor_cores} cores\n")
    for name, value in attrs.asdict(costs).items():
        print(f"* {name}: {value:,.4g}")
    rows = {name: _projected(costs, gb, cores, executors) for name, gb in SIZES_GB.items()}
    print(f"\n| | {' | '.join(rows)} |\n{'| --- ' * (len(rows) + 1)}|")
    for what in next(iter(rows.values())):
        print(f"| {what} | {' | '.join(each[what] for each in rows.values())} |")
    print("\nReached at, the first one first:\n")
    for gb, limit in sorted(_limits(costs, cores)):
        print(f"* {gb:,.0f} GB: {limit}")


def _projected(costs: Costs, gb: float, cores: int, executors: int) -> dict[str, str]:
    files, tasks = gb * 1e9 / costs.file_bytes, gb * costs.tasks_per_gb
    planning = _plan_seconds(costs, gb)
    overhead = tasks * costs.task_seconds / cores
    read = gb * costs.exchanges_seconds_per_gb / cores + overhead
    records = gb * costs.records_seconds_per_gb / cores + overhead
    rates = costs.disk_bytes_per_gb * gb / 1e6 / read, gb * 1e3 / records
    return {
        "files": f"{files:,.0f}",
        "tasks": f"{tasks:,.0f} in {tasks / cores:,.1f} waves",
        "planning, on the driver alone": f"{planning:,.0f} s",
        "headers, on all cores": f"{read:,.1f} s",
        "records, on all cores": f"{records:,.1f} s",
        "of each, overhead of tasks": f"{overhead:,.1f} s",
        "headers, with planning": f"{planning + read:,.0f} s",
        "records, with planning": f"{planning + records:,.0f} s",
        "partitions, pickled": f"{tasks * costs.partition_bytes / 1e6:,.1f} MB",
        "rows to the shuffle": f"{tasks * costs.result_rows:,.0f} at most",
        "from storage, for headers": _rate(rates[0], executors),
        "from storage, for records": _rate(rates[1], executors),
    }


def _rate(mb_per_second: float, executors: int) -> str:
    return f"{mb_per_second:,.0f} MB/s, {mb_per_second / executors:,.0f} for an executor"


def _plan_seconds(costs: Costs, gb: float) -> float:
    files = gb * 1e9 / costs.file_bytes
    return gb * costs.plan_seconds_per_gb + files * costs.plan_seconds_per_file


def _limits(costs: Costs, cores: int) -> list[tuple[float, str]]:
    """Return what does not grow with the executors, and the GB at which it is reached."""
    plan = _plan_seconds(costs, 1)
    read, records = (
        (each + costs.tasks_per_gb * costs.task_seconds) / cores
        for each in (costs.exchanges_seconds_per_gb, costs.records_seconds_per_gb)
    )
    partitions = costs.tasks_per_gb * costs.partition_bytes
    slower = (
        f"{plan / read:,.1f} × as long as headers, {plan / records:,.1f} × records, at any size"
    )
    return [
        (
            PLAN_SECONDS_MAX / plan,
            f"planning takes {PLAN_SECONDS_MAX} s on the driver: {slower}",
        ),
        (
            PARTITIONS_BYTES_MAX / partitions,
            f"partitions take {PARTITIONS_BYTES_MAX >> 20} MiB, a quarter of the driver's heap",
        ),
        (TASKS_MAX / costs.tasks_per_gb, f"{TASKS_MAX:,} tasks in a stage"),
    ]
