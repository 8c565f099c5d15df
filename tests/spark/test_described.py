"""The tables of an analysis: their types, what explains them, what a report has of them."""

from __future__ import annotations

import html
import re
from collections import Counter

import pyarrow.parquet as pq
import pytest

from kproxy import recording
from kproxy.analyze import described
from tests.look.report.making import plain
from tests.spark.conftest import Commanded

TABLES = described.ABOUT.keys()
LEFT_OUT = ("file", "request", "response", "request_frame", "response_frame", "partitions")
LEFT_OUT += ("key_json", "value_json")
"""Columns of views that have none in the tables."""

pytestmark = pytest.mark.java


def test_every_column_of_every_table_is_explained(analysis: Commanded) -> None:
    folder = analysis.folder
    sections = (folder / "tables.md").read_text().split("\n## ")[1:]
    explained = {each.partition("\n")[0]: each for each in sections}
    assert explained.keys() == TABLES
    for table, text in explained.items():
        columns = pq.read_table(folder / table).schema
        said = re.findall(r"^\| `(\w+)` \| .+? \| (\S.*) \|$", text, re.MULTILINE)
        assert [name for name, _ in said] == columns.names
        assert described.comments(table).keys() <= set(columns.names) | {*LEFT_OUT}
        if table in ("exchanges", "records", "events", "group_events"):
            comments = {each.name: (each.metadata or {})[b"comment"].decode() for each in columns}
            assert comments == dict(said), "a reader of Parquet finds them, too"
    assert "topic IS NULL" in explained["latency"]


def test_the_report_says_what_each_topic_and_client_took(analysis: Commanded) -> None:
    exchanges = list(recording.read(analysis.recordings))
    expected: dict[str, Counter[tuple[str, str]]] = {"topic": Counter(), "client": Counter()}
    wrong: dict[str, Counter[tuple[str, str]]] = {"topic": Counter(), "client": Counter()}
    for each in exchanges:
        failed = each.errors and not each.routine
        of_client = [each.client_id] if each.client_id is not None else []
        for kind, names in (("topic", each.topics), ("client", of_client)):
            expected[kind].update((each.api, name) for name in names)
            wrong[kind].update((each.api, name) for name in names if failed)
    page = plain((analysis.folder / "report.html").read_text())
    for kind, counts in expected.items():
        section = page.partition(f"Latency by {kind}")[2].partition("</section>")[0]
        rows = [row.split("</td><td>") for row in re.findall("<tr><td>(.*?)</td></tr>", section)]
        assert len(rows) > 5 and all(len(row) == 7 for row in rows)
        for name, of, count, errors, *_ in rows:
            key = name, html.unescape(of)
            assert (int(count.replace(" ", "")), int(errors)) == (counts[key], wrong[kind][key])
