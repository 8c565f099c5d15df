"""What tasks write, and what SQL makes of it: what clients did around faults, and lags."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kproxy.analyze import compare, export, job, queries
from kproxy.analyze.lake import Tables
from kproxy.analyze.making import Making
from kproxy.analyze.place import Place
from kproxy.protocol import messages as M
from kproxy.recording import Recording
from kproxy.tables import batches, splits
from tests.bed import needs
from tests.exchange import making

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
WINDOW = timedelta(seconds=queries.FAULT_SECONDS)
TIME = pa.timestamp("us", "UTC")
NAMES = pa.list_(pa.string())

EXCHANGES = pa.schema({
    "recording": pa.string(), "number": pa.int64(), "time": TIME, "connection": pa.int64(),
    "client_id": pa.string(), "api": pa.string(), "topics": NAMES, "errors": NAMES,
    "faults": NAMES, "service_ms": pa.float64(), "response_bytes": pa.int64(),
    "client_address": pa.string(), "response_sent_ns": pa.int64(), "fault_ms": pa.float64(),
    "undelivered": pa.bool_(), "late": pa.bool_(), "opaque": pa.bool_(),
})  # fmt: skip
EVENTS = pa.schema({
    "recording": pa.string(), "event": pa.string(), "fault": pa.string(), "number": pa.int64(),
    "time": TIME, "time_ns": pa.int64(), "body": pa.string(),
})  # fmt: skip
CONNECTIONS = pa.schema({
    "recording": pa.string(), "client_id": pa.string(), "client_address": pa.string(),
    "opened": TIME,
})  # fmt: skip

Row = dict[str, Any]


def table(spark: Any, folder: Path, name: str, rows: Sequence[Row], schema: pa.Schema) -> Any:
    """Rows as a table of Spark."""
    pq.write_table(pa.Table.from_pylist(list(rows), schema), folder / name)
    return spark.read.parquet((folder / name).as_uri())


def traffic(count: int, clients: Sequence[str | None], seconds: float) -> list[list[Row]]:
    """Exchanges of clients that retry what fails, the faults that they met, and connections."""
    chance = random.Random(7)
    exchanges: list[Row] = []
    events: list[Row] = []
    connections: list[Row] = []
    for number in range(1, count + 1):
        at = BEGAN + timedelta(milliseconds=round(1000 * seconds * number / count))
        about = {"recording": chance.choice("ab"), "client_id": chance.choice(clients)}
        about["client_address"] = chance.choice(["10.0.0.1:5001", "10.0.0.2:5002", None])
        faults = ["away"] if chance.random() < 0.1 else []
        answered = chance.random() < 0.9
        exchanges.append(
            about | {
                "number": number, "time": at, "connection": 1, "topics": ["orders"],
                "api": chance.choice(["Fetch", "Produce"]), "faults": faults, "fault_ms": 0.0,
                "undelivered": chance.random() < 0.1, "late": chance.random() < 0.1,
                "opaque": chance.random() < 0.1, "response_sent_ns": 9 if answered else 0,
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


def tables(spark: Any, folder: Path, found: Sequence[Sequence[Row]]) -> dict[str, Any]:
    """What happened, as tables that queries name."""
    given = (("exchanges", EXCHANGES), ("events", EVENTS), ("connections", CONNECTIONS))
    return {
        name: table(spark, folder, name, rows, schema)
        for (name, schema), rows in zip(given, found, strict=True)
    }


def expected(event: Row, exchanges: Sequence[Row], connections: Sequence[Row]) -> Row:
    """What a client did around a fault, looked up one by one."""
    itself = next(x for x in exchanges if x["number"] == event["number"])

    def same(row: Row) -> bool:
        return all(
            row[name] == itself[name] for name in ("recording", "client_id", "client_address")
        )

    def good(row: Row) -> bool:
        lost = row["undelivered"] or row["late"] or row["opaque"]
        return bool(row["response_bytes"]) and not (row["errors"] or lost)

    def average(some: Sequence[Row]) -> Any:
        values = [x["service_ms"] for x in some if x["service_ms"] is not None]
        return pytest.approx(sum(values) / len(values), abs=0.001) if values else None

    hit = event["time"]
    near = [x for x in exchanges if same(x) and hit - WINDOW <= x["time"] <= hit + WINDOW]
    later = [x for x in near if x["number"] > itself["number"]]
    tried = [x for x in later if x["api"] == itself["api"]]
    back = [x for x in tried if x["time"] > hit and good(x) and not x["faults"]]
    until = back[0]["number"] if back else None
    recovered_ms = (back[0]["time"] - hit) / timedelta(milliseconds=1) if back else None
    if "latency" in event["body"] and good(itself):
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
    happened = [exchanges, [*events, nowhere | {"recording": "a"}], connections]
    given = tables(spark, tmp_path, happened)
    lost, *found = [row.asDict() for row in spark.sql(queries.FAULTS, **given).collect()]
    assert (lost["fault"], lost["retries"], lost["recovered_ms"]) == ("lost", 0, None)
    events.sort(key=lambda event: (event["time"], event["number"]))
    wanted = [expected(each, exchanges, connections) for each in events]
    assert len(wanted) > 20
    assert [{name: row[name] for name in wanted[0]} for row in found] == wanted


@pytest.mark.java
def test_many_faults_of_one_client_take_no_time_each(spark: Any, tmp_path: Path) -> None:
    """One by one they are joined with 20 000 exchanges each, which takes many minutes."""
    exchanges, events, connections = traffic(20_000, ["shop"], 25)
    given = tables(spark, tmp_path, [exchanges, events, connections])
    began = time.monotonic()
    found = spark.sql(queries.FAULTS, **given).collect()
    assert len(found) == len(events) > 1800
    assert time.monotonic() - began < 90


@pytest.mark.java
def test_routine_errors_are_no_difference_from_a_baseline(spark: Any, tmp_path: Path) -> None:
    columns = [("api", pa.string()), ("topic", pa.string())]
    columns += [("broker_histogram", pa.map_(pa.int32(), pa.int64()))]
    columns += [(name, pa.int64()) for name in ("count", "errors", "routine")]

    def made(name: str, errors: int, routine: int) -> Place:
        row = {"api": "ApiVersions", "topic": None, "broker_histogram": [(600, 40)], "count": 40}
        (tmp_path / name / "latency").mkdir(parents=True)
        rows = [row | {"errors": errors, "routine": routine}] * 2
        made = pa.Table.from_pylist(rows, pa.schema(columns))
        pq.write_table(made, tmp_path / name / "latency" / "a.parquet")
        return Place(tmp_path / name)

    (row,) = compare.differences(spark, made("new", 20, 18), made("old", 2, 2))
    assert (row["count"], row["errors"], row["baseline_errors"]) == (80, 0.05, 0.0)


def behind(folder: Path, cluster_id: str | None, log_end: int, committed: int, day: int) -> str:
    """A recording of a group that commits, and of how far its topic goes."""
    at_ns = making.START_NS + day * 86_400 * 10**9
    topic = M.MetadataResponse.MetadataResponseTopic(name="orders")
    cluster = M.MetadataResponse(cluster_id=cluster_id, topics=[topic])
    ask, tell, keep = M.ListOffsetsRequest, M.ListOffsetsResponse, M.OffsetCommitRequest
    asked = ask.ListOffsetsTopic(name="orders", partitions=[ask.ListOffsetsPartition(timestamp=-1)])
    told = tell.ListOffsetsTopicResponse(
        name="orders", partitions=[tell.ListOffsetsPartitionResponse(offset=log_end)]
    )
    kept = keep.OffsetCommitRequestTopic(
        name="orders", partitions=[keep.OffsetCommitRequestPartition(committed_offset=committed)]
    )
    latest, ends = ask(topics=[asked]), tell(topics=[told])
    commit = keep(group_id="billing", topics=[kept])
    done = M.OffsetCommitResponse()
    exchanges = (
        ("Metadata", 5, M.MetadataRequest(), cluster), ("ListOffsets", 2, latest, ends),
        ("OffsetCommit", 5, commit, done),
    )  # fmt: skip
    entries: list[Any] = [attrs.evolve(making.opened(1, node_id=1), time_ns=at_ns)]
    for number, (api, version, asked, answered) in enumerate(exchanges, 1):
        frame = making.request(api, version, asked, number)
        frame = attrs.evolve(frame, received_ns=at_ns + number, sent_ns=at_ns + number)
        entries += [frame, making.response(frame, answered)]
    path = folder / f"{cluster_id}-{day}.mcap"
    made = Recording(path, start_ns=at_ns, schema_id="x", library_version="0")
    made.write(entries)
    made.close()
    return str(path)


@pytest.mark.java
def test_the_lag_is_that_of_one_cluster(spark: Any, tmp_path: Path) -> None:
    paths = [
        behind(tmp_path, "east", 100, 90, 0), behind(tmp_path, "west", 5000, 5000, 0),
        behind(tmp_path, "east", 120, 95, 1), behind(tmp_path, None, 7, 4, 1),
    ]  # fmt: skip
    out = tmp_path / "out"
    job.analyze(Making(spark, with_records=False), splits.find(paths), Place(out))
    assert not (out / "records").exists()
    groups = pq.read_table(out / "groups").to_pylist()
    lags = {row["cluster"]: (row["group"], row["lag"], row["commits"]) for row in groups}
    (unknown,) = lags.keys() - {"east", "west"}
    assert lags == {
        "east": ("billing", 25, 2), "west": ("billing", 0, 1), unknown: ("billing", 3, 1)
    }  # fmt: skip
    clusters = Counter(row["cluster"] for row in pq.read_table(out / "recordings").to_pylist())
    assert clusters == {"east": 2, "west": 1, unknown: 1}
    page = (out / "report.html").read_text()
    assert "Group billing of cluster east ends 25 offsets behind its topics" in page
    assert "4 900" not in page and "5 000" not in page


def test_two_attempts_at_a_task_do_each_other_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stretches = splits.stretches(splits.find([str(needs.REPOSITORY / "recordings" / "demo.mcap")]))
    monkeypatch.setattr(batches, "ROWS_MAX", 1)
    read = export.everything
    first: list[dict[str, int]] = []

    def overtaken(*arguments: Any) -> Iterator[Any]:
        """Where the first attempt has written exchanges already, make the second one whole."""
        yield from read(*arguments)
        monkeypatch.setattr(export, "everything", read)
        assert list(tmp_path.glob("exchanges/.part-*")) and not list(tmp_path.rglob("*.parquet"))
        first.append(export.write(0, stretches, Tables(Place(tmp_path)), True)[0])
        assert pq.read_table(tmp_path / "exchanges").num_rows == 34

    monkeypatch.setattr(export, "everything", overtaken)
    counts, _ = export.write(0, stretches, Tables(Place(tmp_path)), True)
    assert first == [counts] and counts["exchanges"] == 34
    for name, count in counts.items():
        files = list((tmp_path / name).glob("*")) if count else []
        assert [path.name for path in files] == ["part-00000.parquet"] * bool(count)
        assert sum(pq.read_table(path).num_rows for path in files) == count


def test_a_task_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = export.everything

    def full(*arguments: Any) -> Iterator[Any]:
        yield from read(*arguments)
        raise OSError("No space left on device")

    monkeypatch.setattr(export, "everything", full)
    stretches = splits.stretches(splits.find([str(needs.REPOSITORY / "recordings" / "demo.mcap")]))
    with pytest.raises(OSError, match="No space"):
        export.write(0, stretches, Tables(Place(tmp_path)), True)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
