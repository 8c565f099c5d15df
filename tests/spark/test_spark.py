"""The data source in Spark: batch, SQL, streaming, and on a cluster of processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from kproxy import recording
from kproxy.exchange.exchange import Exchange
from kproxy.look.lines.jsonl import to_json
from tests.bed import needs, proxies, traffic
from tests.bed.waiting import until
from tests.spark.test_admission import record
from tests.versions import ALL

pytestmark = pytest.mark.java

DEMO = str(needs.REPOSITORY / "recordings" / "demo.mcap")
BODIES = "recording,number,time,errors,topics,partitions,groups,request,faults,unanswered"


def test_spark_reads_what_show_says(spark: Any, broken: Path) -> None:
    expected = [to_json(exchange) for exchange in recording.read(broken)]
    frame = spark.read.format("kproxy").load(str(broken)).orderBy("number")
    found = [row.asDict(recursive=True) for row in frame.collect()]
    for row, same in zip(found, sorted(expected, key=lambda each: each["number"]), strict=True):
        names = row.keys() & same.keys() - {"time"}
        assert {name: row[name] for name in names} == {name: same[name] for name in names}
    paths = list(map(str, broken.glob("*.mcap")))
    listed = spark.read.format("kproxy").option("columns", BODIES).load([*paths, DEMO])
    rows = [row.asDict(recursive=True) for row in listed.collect()]
    assert len(rows) == len(expected) + len(list(recording.read(DEMO)))
    (own,) = {row["recording"] for row in rows if row["faults"]}
    by_number = {row["number"]: row for row in rows if row["recording"] == own}
    for same in expected:
        row = by_number[same["number"]]
        assert json.loads(row["request"]) == same["request"]
        for name in ("errors", "topics", "partitions", "groups"):
            assert row[name] == same[name]


def test_views_schemas_and_sql(spark: Any, broken: Path) -> None:
    exchanges = list(recording.read(broken))
    read = spark.read.format("kproxy")
    some = read.schema("request_received_ns BIGINT, api STRING").load(f"{broken}/*.mcap")
    assert {tuple(row) for row in some.collect()} == {
        (each.row.request_received_ns, each.api) for each in exchanges
    }, "nanoseconds are kept"
    assert some.count() == len(exchanges)
    records = spark.read.format("kproxy").option("view", "records").load(str(broken))
    assert records.count() == sum(len(each.records) for each in exchanges)
    wanted = "api:Produce,Fetch (topic:* or is:error) time:+0s.."
    numbers = Counter(each.number for each in recording.read(broken, wanted))
    assert 0 < len(numbers) < len(exchanges)
    for view in ("exchanges", "records"):
        matching = spark.read.format("kproxy").options(view=view, filter=wanted).load(str(broken))
        assert {row.number for row in matching.select("number").collect()} <= numbers.keys()
        assert view == "records" or matching.count() == len(numbers)
    (header,) = records.where("produced and headers[0].value = '7'").select("headers").first()
    assert [(each.key, each.value) for each in header] == [("trace", b"7"), ("empty", None)]
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW ev USING kproxy OPTIONS (path '{broken}', view 'events')"
    )
    hits = {row.fault for row in spark.sql("SELECT fault FROM ev WHERE event = 'fault'").collect()}
    assert hits == {"late", "cut", "slow", "away"}
    comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE ev").collect()}
    assert comments["reason"].startswith("what went wrong") and all(comments.values())


def test_what_is_wrong_in_an_option_is_said_before_anything_is_read(spark: Any) -> None:
    for read in (spark.read, spark.readStream):
        with pytest.raises(PySparkException, match="there is no option colums"):
            read.format("kproxy").option("colums", "api").load(str(DEMO))


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"columns": "nothing"}, "exchanges have no column 'nothing'"),
        ({"view": "nothing"}, "there is no view 'nothing'; there are exchanges, records"),
        ({"schema": "number STRING"}, "column number of exchanges is BIGINT, not STRING"),
        ({"path": "/nowhere.mcap"}, "/nowhere.mcap: does not exist"),
        ({"colums": "api"}, "there is no option colums; there are columns, filter"),
        ({"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger is a number from 1 on, not '0'"),
        ({"filter": "apy:Fetch"}, "filter 'apy:Fetch': column 1: there is no key 'apy'"),
        ({"filter": "number:shop#1"}, "shop: is no recording that is given: there is demo"),
        ({"filter": "api:Fetch", "view": "events"}, "a filter selects exchanges; events cannot"),
    ],
)
def test_what_is_wrong_is_said(spark: Any, options: dict[str, str], what: str) -> None:
    read = spark.read.format("kproxy")
    if schema := options.pop("schema", None):
        read = read.schema(schema)
    with pytest.raises(PySparkException, match=re.escape(what)) as raised:
        read.options(**{"path": DEMO, **options}).load().count()
    from kproxy.spark.session import first_line

    assert first_line(raised.value).startswith(what)


def ended(query: Any) -> Any:
    """A query of a stream, at its end."""
    assert query.awaitTermination(120) and query.exception() is None
    return query


def patiently(work: Callable[[], Any]) -> Any:
    """Do it again as long as Spark does not wait for its Python, which has 10 s to start."""
    for left in reversed(range(60)):
        try:
            return work()
        except StreamingQueryException as error:
            if not left or "Python worker failed to connect back" not in str(error):
                raise
    return None


def test_a_stream_may_be_filtered_but_for_times_since_its_beginning(
    spark: Any, broken: Path
) -> None:
    stream = spark.readStream.format("kproxy")
    fetches = stream.option("filter", "api:Fetch").load(str(broken))
    query = fetches.writeStream.format("memory").queryName("fetches").trigger(availableNow=True)
    patiently(lambda: ended(query.start()))
    found = Counter(row.number for row in spark.table("fetches").collect())
    assert found == Counter(each.number for each in recording.read(broken, "api:Fetch"))
    times = stream.option("filter", "time:+1s..").load(str(broken))
    with pytest.raises(PySparkException, match="a stream has no beginning for times like"):
        patiently(lambda: times.writeStream.format("noop").start().awaitTermination(60))


def test_a_stream_follows_what_is_written_and_rotated_meanwhile(
    spark: Any, mock_brokers: str, tmp_path: Path
) -> None:
    captures, sink = tmp_path / "captures", tmp_path / "sink"
    stream = spark.readStream.format("kproxy").load(str(captures)).select("recording", "number")

    def start(**trigger: Any) -> Any:
        writer = stream.writeStream.format("parquet").trigger(**trigger)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(str(sink))

    def count(query: Any) -> int:
        assert not query.awaitTermination(0.3), query.exception()  # to ask costs as much as to read
        return sum(progress.numInputRows for progress in query.recentProgress)

    def following() -> Any:
        query = start(processingTime="500 milliseconds")
        until(lambda: count(query) > 200, "rows come", 60)
        return query

    with proxies.running(mock_brokers, captures, "--quiet", "--rotate", "64KiB,1h") as proxy:
        with traffic.flowing(proxy.bootstrap, "spark-live"):
            query = patiently(following)
            until(lambda: len(list(captures.glob("*.mcap"))) > 1, "it rotates")
            query.stop()
        read_meanwhile = spark.read.parquet(str(sink)).count()
    patiently(lambda: ended(start(availableNow=True)))  # it goes on from its checkpoint
    rows = Counter(tuple(row) for row in spark.read.parquet(str(sink)).collect())
    whole = spark.read.format("kproxy").load(str(captures)).select("recording", "number")
    assert rows == Counter(tuple(row) for row in whole.collect())
    numbers = sorted(number for _, number in rows)
    assert numbers == [each.number for each in sorted_exchanges(captures)]
    assert 200 < read_meanwhile < len(numbers)


def test_a_backlog_is_worked_off_in_batches_over_restarts(spark: Any, tmp_path: Path) -> None:
    source, sink = tmp_path / "captures", tmp_path / "sink"
    expected = record(source, "first", 4, 2)

    def run(name: str, text: str) -> list[int]:
        read = spark.readStream.format("kproxy").option("columns", "file,number")
        stream = read.option(name, text).load(str(source))
        writer = stream.writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.trigger(availableNow=True)
        query = patiently(lambda: ended(writer.start(str(sink))))
        return [each.numInputRows for each in query.recentProgress if each.numInputRows]

    assert run("maxFilesPerTrigger", "2") == [4, 4]
    expected += record(source, "second", 1, 3)
    # The last batch was neither written nor committed: it comes again, and then the rest.
    for folder in (tmp_path / "checkpoint" / "commits", sink / "_spark_metadata"):
        for name in ("1", ".1.crc"):
            (folder / name).unlink()
    expected[0].unlink()
    assert run("MAXBYTESPERTRIGGER", "13k") == [4, 2, 1]
    files = Counter(row["file"] for row in spark.read.parquet(str(sink)).collect())
    assert files == {str(path): 3 if "second" in path.name else 2 for path in expected}


def sorted_exchanges(folder: Path) -> list[Exchange]:
    """The exchanges of a folder by number."""
    return sorted(recording.read(folder), key=lambda each: each.number)


def test_the_queries_in_the_manual_say_something(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (needs.REPOSITORY / "kproxy" / "manual" / "spark.md").read_text()
    (code,) = re.findall(r"Five queries.*?^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(needs.REPOSITORY)
    names: dict[str, Any] = {}
    exec(compile(code, "spark.md", "exec"), names)
    tables = capsys.readouterr().out.strip().split("\n\n")
    assert len(tables) == code.count(".show()") == 5
    assert all(table.count("\n") >= 4 for table in tables), "each has a row"
    assert "MEMBER_ID_REQUIRED" in tables[-1]
    comments = {row.col_name: row.comment for row in spark.sql("DESCRIBE exchanges").collect()}
    assert comments["service_ms"] and all(comments.values())
    several = [("Produce", ["A", "B"]), ("Produce", ["A"]), ("Fetch", [])]
    schema = names["named"].select("api", "errors").schema
    last = "\n".join(code.splitlines()[-2:])
    exec(last, {"named": spark.createDataFrame(several, schema)})
    found = re.findall(r"\|\s*(\w+)\|\s*(\w+)\|\s*(\d+)\|", capsys.readouterr().out)
    assert sorted(found) == [("Produce", "A", "2"), ("Produce", "B", "1")], "each error by itself"
    (columns,) = re.findall(r'`frames` has the bytes with `columns="(.*?)"`', page)
    read = spark.read.load("recordings", format="kproxy", view="frames", columns=columns)
    assert all(row.data for row in read.collect())


_SENT_ALONG = """
import sys
from pyspark.sql import SparkSession
import kproxy.spark
archive, path = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
kproxy.spark.register(spark)
where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("kproxy").__file__).first()
assert archive in where or ".zip" in where, where
frame = spark.read.format("kproxy").option("partition_bytes", "1").load(path)
rows = frame.select("number", "api", "client_id").collect()
print("found", sorted(tuple(row) for row in rows))
"""


def packed(folder: Path) -> Path:
    """An archive of kproxy, as `--py-files` takes it."""
    with zipfile.ZipFile(folder / "kproxy-sent.zip", "w") as archive:
        for path in (needs.REPOSITORY / "kproxy").rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(needs.REPOSITORY))
    return folder / "kproxy-sent.zip"


def test_an_archive_of_it_reads_recordings(tmp_path: Path) -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import kproxy; from kproxy import tables\n"
    code += "assert kproxy.__file__.startswith(sys.argv[1]); from kproxy.spark import source\n"
    code += "source.KproxyDataSource({'path': sys.argv[2]}).schema()\n"
    code += "print(tables.read(sys.argv[2], columns=['topics']).read_all().num_rows)"
    done = subprocess.run(
        [sys.executable, "-c", code, packed(tmp_path), DEMO], capture_output=True, text=True
    )
    assert done.stdout == "34\n", done.stderr


@pytest.mark.skipif(not ALL, reason="three JVMs; KPROXY_TEST_ALL=1")
def test_it_works_when_it_is_sent_along_to_a_cluster(broken: Path, tmp_path: Path) -> None:
    needs.program("java")
    archive, program = packed(tmp_path), tmp_path / "job.py"
    program.write_text(_SENT_ALONG)
    command = [str(Path(sys.executable).with_name("spark-submit")), "--py-files", str(archive)]
    command += ["--master", "local-cluster[2,1,1024]", "--conf", "spark.ui.enabled=false"]
    command += ["--conf", "spark.log.level=OFF", str(program), str(archive)]
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    done = subprocess.run(
        [*command, os.path.relpath(broken, tmp_path)],
        env=os.environ | python | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    expected = sorted((each.number, each.api, each.client_id) for each in recording.read(broken))
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"found {expected}" in done.stdout
