"""`kproxy.tables.read`: recordings in polars, DuckDB and pyarrow, without Java."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import polars
import pytest

from kproxy import recording, tables
from kproxy.look.lines.jsonl import KEYS, to_json
from kproxy.recording import RecordingError, RecordingWarning
from kproxy.tables.views import VIEWS
from kproxy.wire.protocol import records
from kproxy.wire.protocol.record_batch import Record
from tests.bed import needs
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import request, response
from tests.recording.making import write

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"


def test_polars_reads_them() -> None:
    frame = polars.from_arrow(tables.read(DEMO).read_all())
    assert isinstance(frame, polars.DataFrame)
    counts = frame.group_by("api").len().rows()
    assert dict(counts) == Counter(each.api for each in recording.read(DEMO))


def test_duckdb_reads_them() -> None:
    reader = tables.read([DEMO, FORMATS], columns=["api", "errors"])  # noqa: F841
    found = duckdb.sql("SELECT api, count(*), sum(len(errors)) FROM reader GROUP BY api").fetchall()
    exchanges = list(recording.read([DEMO, FORMATS]))
    errors = Counter(each.api for each in exchanges for _ in each.errors)
    expected = Counter(each.api for each in exchanges)
    assert {tuple(row) for row in found} == {(api, n, errors[api]) for api, n in expected.items()}
    relation = duckdb.from_arrow(tables.read(DEMO, "records"))
    produced = sum(len(each.records) for each in recording.read(DEMO))
    assert relation.aggregate("count(*)").fetchall() == [(produced,)]


@pytest.mark.parametrize("view", VIEWS)
def test_the_schema_is_known_before_the_first_row(view: str) -> None:
    reader = tables.read(str(DEMO), view)
    assert reader.schema.names == [each.name for each in VIEWS[view] if each.default]
    assert reader.read_all().num_rows > 0
    names = [each.name for each in VIEWS[view]]
    assert tables.read(DEMO, view, names).schema.names == names


@pytest.mark.parametrize("wanted", ["api:Fetch", "topic:* not is:error", "time:+1s..", "key:*"])
def test_a_filter_means_exchanges_and_what_is_in_them(wanted: str) -> None:
    expected = list(recording.read(FORMATS, wanted))
    rows = tables.read(FORMATS, columns=KEYS, wanted=wanted).read_all().to_pylist()
    for row in rows:
        row["time"] = row["time"].strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for body in ("request", "response"):
            row[body] = row[body] and json.loads(row[body])
    assert rows == [to_json(each) for each in expected] != []
    for view, count in (
        ("frames", sum(bool(n) for e in expected for n in (e.request_bytes, e.response_bytes))),
        ("records", sum(len(each.records) for each in expected)),
    ):
        assert tables.read(FORMATS, view, wanted=wanted).read_all().num_rows == count


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"view": "exchange"}, r"no view 'exchange' \(did you mean exchanges\?\); there are exch"),
        (
            {"columns": ["clientid"]},
            r"no column 'clientid' \(did you mean client_id\?\); they have",
        ),
        ({"columns": ["nothing"], "view": "events"}, "events have no column 'nothing'; they have"),
        (
            {"view": "events", "wanted": "api:Fetch"},
            "a filter selects exchanges; events cannot be filtered",
        ),
        ({"wanted": "apis:Fetch"}, "there is no key 'apis'"),
    ],
)
def test_what_is_not_there_is_said_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tables.read(DEMO, **arguments)


def test_files_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="does not exist"):
        tables.read(tmp_path / "nothing.mcap")
    (tmp_path / "text.mcap").write_text("no recording")
    with pytest.raises(RecordingError, match="is not a recording"):
        tables.read(tmp_path)
    damaged = bytearray(DEMO.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.mcap").write_bytes(damaged)
    reader = tables.read(tmp_path / "damaged.mcap", columns=["errors"])
    with pytest.raises(RecordingError, match=r"damaged\.mcap: is damaged"):
        reader.read_all()


def test_what_bodies_expand_to_is_bounded(tmp_path: Path) -> None:
    large = records.encode_batch([Record(0, 0, None, bytes(1 << 20), ())], compression="zstd")
    entries: list[Any] = []
    for number in range(1, 21):
        asked = request("Fetch", 11, fetch_request({0: 0}), number)
        entries += [asked, response(asked, fetch_response({0: large}))]
    path = write(tmp_path / "bombs.mcap", [entries])
    assert path.stat().st_size < 100_000
    expanded = [batch.nbytes for batch in tables.read(path, columns=["response"])]
    assert sum(expanded) > 60 << 20 and max(expanded) < 30 << 20


def test_a_library_that_is_missing_is_said() -> None:
    code = "import sys; sys.modules['pyarrow'] = None\nimport kproxy.tables"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = "ImportError: pyarrow is not installed: pip install 'kproxy-kafka[tables]'"
    assert done.stderr.splitlines()[-1] == expected


def test_spark_is_not_needed() -> None:
    code = f"""
import sys
sys.modules["pyspark"] = None
from kproxy import tables
assert tables.read({str(DEMO)!r}).read_all().num_rows == 34
sys.exit("trio" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_columns_may_be_typed_as_in_spark_and_say_what_they_are() -> None:
    reader = tables.read(DEMO, columns="api, number")
    assert reader.schema.names == ["api", "number"]
    assert b"name of the API" in reader.schema.field("api").metadata[b"comment"]


def test_a_file_that_was_cut_off_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "cut.mcap"
    path.write_bytes(DEMO.read_bytes()[:-9])
    with pytest.warns(RecordingWarning, match=r"cut.mcap: read up to byte \d+"):
        assert tables.read(path).read_all().num_rows == 34
