"""What tasks write, and what SQL makes of it: what clients did around faults, and lags."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kproxy.analyze import export, tables
from kproxy.tables import splits
from tests.bed import needs

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=tables.FAULT_SECONDS)
TIME = pa.timestamp("us", "UTC")
NAMES = pa.list_(pa.string())

EXCHANGES = pa.schema({
    "recording": pa.string(), "number": pa.int64(), "time": TIME, "connection": pa.int64(),
    "client_id": pa.string(), "api": pa.string(), "topics": NAMES, "errors": NAMES,
    "faults": NAMES, "service_ms": pa.float64(), "response_bytes": pa.int64(),
    "one_way": pa.bool_(),
})  # fmt: skip
EVENTS = pa.schema({
    "recording": pa.string(), "event": pa.string(), "fault": pa.string(), "number": pa.int64(),
    "time": TIME, "time_ns": pa.int64(), "body": pa.string(),
})  # fmt: skip
CONNECTIONS = pa.schema({"recording": pa.string(), "client_id": pa.string(), "opened": TIME})

Row = dict[str, Any]


def view(spark: Any, folder: Path, name: str, rows: Sequence[Row], schema: pa.Schema) -> None:
    """Let queries read rows by the name of a table."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema), folder / name)
    spark.read.parquet((folder / name).as_uri()).createOrReplaceTempView(name)


def traffic(count: int, clients: Sequence[str | None], seconds: float) -> list[list[Row]]:
    """Exchanges of clients that retry what fails, the faults that they met, and connections."""
    chance = random.Random(7)
    exchanges: list[Row] = []
    events: list[Row] = []
    connections: list[Row] = []
    for number in range(1, count + 1):
        at = BEGAN + timedelta(milliseconds=round(1000 * seconds * number / count))
        about = {"recording": chance.choice("ab"), "client_id": chance.choice(clients)}
        faults = ["away"] if chance.random() < 0.1 else []
        answered = chance.random() < 0.9
        exchanges.append(
            about | {
                "number": number, "time": at, "connection": 1, "topics": ["orders"],
                "api": chance.choice(["Fetch", "Produce"]), "faults": faults, "one_way": False,
                "errors": ["NOT_COORDINATOR"] if chance.random() < 0.3 else [],
                "service_ms": round(chance.random() * 100, 3) if answered else None,
                "response_bytes": 9 if answered else None,
            }
        )  # fmt: skip
        for fault in faults:
            hit = at + timedelta(milliseconds=chance.choice([0, 1, 700]))
            action = chance.choice(["error", "latency"])
            event = {"event": "fault", "fault": fault, "time": hit}
            event["body"] = json.dumps({"action": action})
            event |= {"number": number, "time_ns": round(hit.timestamp() * 1e6) * 1000}
            events.append(event | {"recording": about["recording"]})
        if chance.random() < 0.05:
            connections.append(about | {"opened": at})
    return [exchanges, events, connections]


def views(spark: Any, folder: Path, found: Sequence[Sequence[Row]]) -> None:
    """Let queries read what happened."""
    given = (("exchanges", EXCHANGES), ("events", EVENTS), ("connections", CONNECTIONS))
    for (name, schema), rows in zip(given, found, strict=True):
        view(spark, folder, name, rows, schema)


def expected(event: Row, exchanges: Sequence[Row], connections: Sequence[Row]) -> Row:
    """What a client did around a fault, looked up one by one."""
    itself = next(x for x in exchanges if x["number"] == event["number"])

    def same(row: Row) -> bool:
        return all(row[name] == itself[name] for name in ("recording", "client_id"))

    def average(some: Sequence[Row]) -> Any:
        values = [x["service_ms"] for x in some if x["service_ms"] is not None]
        return pytest.approx(sum(values) / len(values), abs=0.001) if values else None

    hit = event["time"]
    near = [x for x in exchanges if same(x) and hit - WINDOW <= x["time"] <= hit + WINDOW]
    later = [x for x in near if x["number"] > itself["number"]]
    tried = [x for x in later if x["api"] == itself["api"]]
    good = [
        x for x in tried
        if x["time"] > hit and x["response_bytes"] and not x["errors"] and not x["faults"]
    ]  # fmt: skip
    until = good[0]["number"] if good else None
    recovered_ms = (good[0]["time"] - hit) / timedelta(milliseconds=1) if good else None
    if "latency" in event["body"] and itself["response_bytes"] and not itself["errors"]:
        tried, until, recovered_ms = [], itself["number"], 0  # it was only late
    opened = [o["opened"] for o in connections if same(o)]
    return {
        "fault": event["fault"], "number": event["number"], "api": itself["api"],
        "retries": sum(until is None or x["number"] <= until for x in tried),
        "reconnects": sum(hit < at <= hit + WINDOW for at in opened),
        "recovered_number": until,
        "recovered_ms": recovered_ms,
        "service_ms_before": average([x for x in near if x["number"] < itself["number"]]),
        "service_ms_after": average(later),
    }  # fmt: skip


@pytest.mark.java
@pytest.mark.parametrize("seconds", [20, 400, 9000])
def test_what_a_client_did_around_a_fault(spark: Any, tmp_path: Path, seconds: float) -> None:
    exchanges, events, connections = traffic(400, ["shop", "billing", None], seconds)
    nowhere = {"event": "fault", "fault": "lost", "time": BEGAN, "time_ns": 0, "body": "{}"}
    views(spark, tmp_path, [exchanges, [*events, nowhere | {"recording": "a"}], connections])
    lost, *found = [row.asDict() for row in spark.sql(tables.FAULTS).collect()]
    assert (lost["fault"], lost["retries"], lost["recovered_ms"]) == ("lost", 0, None)
    events.sort(key=lambda event: (event["time"], event["number"]))
    wanted = [expected(each, exchanges, connections) for each in events]
    assert len(wanted) > 20
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted


@pytest.mark.java
def test_many_faults_of_one_client_take_no_time_each(spark: Any, tmp_path: Path) -> None:
    """One by one they are joined with 20 000 exchanges each, which takes many minutes."""
    exchanges, events, connections = traffic(20_000, ["shop"], 25)
    views(spark, tmp_path, [exchanges, events, connections])
    began = time.monotonic()
    found = spark.sql(tables.FAULTS).collect()
    assert len(found) == len(events) > 1800
    assert time.monotonic() - began < 90


GROUP_EVENTS = pa.schema({
    "recording": pa.string(), "time": TIME, "group": pa.string(), "event": pa.string(),
    "client_id": pa.string(), "member_id": pa.string(), "generation": pa.int32(),
    "topic": pa.string(), "partition": pa.int32(), "committed": pa.int64(),
    "error": pa.string(), "number": pa.int64(),
})  # fmt: skip
LOG_ENDS = pa.schema({"topic": pa.string(), "partition": pa.int32(), "log_end": pa.int64()})


@pytest.mark.java
def test_the_lag_is_unknown_where_the_end_of_the_log_is(spark: Any, tmp_path: Path) -> None:
    def commit(group: str, partition: int) -> Row:
        about = {"recording": "a", "time": BEGAN, "event": "OffsetCommit", "number": 1}
        return about | {"group": group, "topic": "orders", "partition": partition, "committed": 5}

    commits = [commit("billing", each) for each in range(3)] + [commit("audit", 2)]
    ends = [{"topic": "orders", "partition": 0, "log_end": 9}]
    ends += [{"topic": "orders", "partition": 1, "log_end": 3}]  # a commit is ahead of what is seen
    view(spark, tmp_path, "group_events", commits, GROUP_EVENTS)
    view(spark, tmp_path, "log_ends", ends, LOG_ENDS)
    audit, billing = [row.asDict(recursive=True) for row in spark.sql(tables.GROUPS).collect()]
    assert [each["lag"] for each in billing["partitions"]] == [4, 0, None]
    assert billing["lag"] == 4
    assert [each["lag"] for each in audit["partitions"]] == [None] and audit["lag"] is None


def test_two_attempts_at_a_task_do_each_other_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretches = splits.stretches(splits.find([str(needs.REPOSITORY / "recordings" / "demo.mcap")]))
    read = export.events
    first: list[dict[str, int]] = []

    def overtaken(stretch: splits.Stretch) -> Any:
        """Where the first attempt has written exchanges already, make the second one whole."""
        monkeypatch.setattr(export, "events", read)
        assert list(tmp_path.glob("exchanges/.part-*")) and not list(tmp_path.rglob("*.parquet"))
        first.append(export.write(0, stretches, str(tmp_path), True))
        assert pq.read_table(tmp_path / "exchanges").num_rows == 34
        return read(stretch)

    monkeypatch.setattr(export, "events", overtaken)
    counts = export.write(0, stretches, str(tmp_path), True)
    assert first == [counts] and counts["exchanges"] == 34
    for name, count in counts.items():
        files = list((tmp_path / name).glob("*")) if count else []
        assert [path.name for path in files] == ["part-00000.parquet"] * bool(count)
        assert sum(pq.read_table(path).num_rows for path in files) == count


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stretch: splits.Stretch) -> Any:
        raise OSError("No space left on device")

    monkeypatch.setattr(export, "events", full)
    stretches = splits.stretches(splits.find([str(needs.REPOSITORY / "recordings" / "demo.mcap")]))
    with pytest.raises(OSError, match="No space"):
        export.write(0, stretches, str(tmp_path), True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
