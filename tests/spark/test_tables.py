"""What tasks write, and what is made of it: differences, and lags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kproxy.analyze import compare, export, job
from kproxy.analyze.lake import Tables
from kproxy.analyze.making import TableMaker
from kproxy.analyze.place import Place
from kproxy.recording import Recording
from kproxy.tables import batches, splits
from kproxy.wire.protocol import messages as M
from tests.bed import needs
from tests.exchange import making
from tests.exchange.making import START_NS, opened


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
    job.analyze(TableMaker(spark, with_records=False), splits.find(paths), Place(out))
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
        first.append(export.write(0, stretches, Tables(Place(tmp_path)), True).rows)
        assert pq.read_table(tmp_path / "exchanges").num_rows == 34

    monkeypatch.setattr(export, "everything", overtaken)
    counts = export.write(0, stretches, Tables(Place(tmp_path)), True).rows
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


def test_a_connection_that_was_open_already_was_opened_at_a_time_that_is_not_known() -> None:
    tally = export.ConnectionTally()
    tally.add_note(opened(event="open"))
    assert tally.opened is None and tally.client_address == "127.0.0.1:5001"
    tally.add_note(opened())
    assert tally.opened == START_NS // 1000
