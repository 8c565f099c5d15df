"""The maintainer's tool: definitions in, table out, and what changed in between."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from kproxy.wire.protocol import generate
from tests.bed import jvm
from tests.versions import ALL

OLD = """
// a licence
{
  "apiKey": 3, "type": "request", "name": "ThingRequest", // with a comment "in the line"
  "validVersions": "0-2", "flexibleVersions": "2+",
  "fields": [
    { "name": "Things", "type": "[]Thing", "versions": "0+", "fields": [
      { "name": "OldId", "type": "int32", "versions": "0" },
      { "name": "Name", "type": "string", "versions": "0+", "nullableVersions": "1+",
        "default": "null", "about": "http://not.a.comment" }
    ]},
    { "name": "ZkReady", "type": "bool", "versions": "2+", "taggedVersions": "2+", "tag": "0",
      "default": "false" }
  ]
}
"""
NEW = """
{
  "apiKey": 3, "type": "request", "name": "ThingRequest", "listeners": ["broker"],
  "validVersions": "1-3", "flexibleVersions": "2+",
  "fields": [
    { "name": "Things", "type": "[]NewThing", "versions": "0+", "fields": [
      { "name": "Name", "type": "string", "versions": "0+", "nullableVersions": "1+",
        "default": "null" },
      { "name": "Id", "type": "uuid", "versions": "3+", "mapKey": true }
    ]},
    { "name": "ZkReady", "type": "bool", "versions": "2+", "taggedVersions": "2+", "tag": 0,
      "default": "false", "entityType": "topicName" }
  ]
}
"""
GONE = '{"type": "request", "apiKey": 4, "name": "GoneRequest", "validVersions": "none"}'
MERGED = """\
request ThingRequest 0-3 key 3 flexible 2+ listeners broker
  things []NewThing 0+
    old_id int32 0
    name string 0+ nullable 1+ default null
    id uuid 3+ key
  zk_ready bool 2+ tag 0 2+ default false topicName
"""


def jar(folder: Path, version: str, *definitions: str) -> Path:
    """A jar with these definitions."""
    path = folder / f"clients-{version}.jar"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("kafka/kafka-version.properties", f"commitId=1\nversion={version}\n")
        for number, definition in enumerate(definitions):
            file.writestr(f"common/message/{number}.json", definition)
    return path


def test_the_newest_release_that_knows_a_version_defines_it(tmp_path):
    jars = [jar(tmp_path, "3.9.2", OLD), jar(tmp_path, "4.10.0", NEW, GONE)]
    table, stub = generate.generate(jars)
    assert table.partition("\n\n")[2] == MERGED
    assert generate.generate(jars[::-1])[0] == table
    assert "4.10.0 and, for what it dropped, 3.9.2" in table
    assert "class ThingRequest:" in stub
    assert "        name: str | None = ..." in stub
    assert "    things: list[ThingRequest.NewThing] = ..." in stub


def test_a_union_that_would_change_a_version_is_refused(tmp_path):
    """Two fields whose order differs between the releases cannot be one list."""
    names = ("A", "B")
    texts = []
    for versions, order in (("0", names), ("1", names[::-1])):
        fields = [{"name": name, "type": "int8", "versions": "0+"} for name in order]
        definition = {"apiKey": 1, "type": "request", "name": "R", "validVersions": versions}
        texts.append(json.dumps(definition | {"flexibleVersions": "none", "fields": fields}))
    jars = [jar(tmp_path, "1.0", texts[0]), jar(tmp_path, "2.0", texts[1])]
    with pytest.raises(SystemExit, match=r"R v0: the merged field list differs from 1.0's"):
        generate.generate(jars)


def test_a_struct_without_bytes_is_refused(tmp_path):
    """Its count in an array could ask for a million elements that nothing bounds."""
    inner = [{"name": "Name", "type": "string", "versions": "1+"}]
    fields = [{"name": "Things", "type": "[]Thing", "versions": "0+", "fields": inner}]
    definition = {"apiKey": 1, "type": "request", "name": "R", "validVersions": "0-1"}
    text = json.dumps(definition | {"flexibleVersions": "none", "fields": fields})
    with pytest.raises(SystemExit, match="R v0: things has no bytes"):
        generate.generate([jar(tmp_path, "1.0", text)])


OLD_RECORDS = (
    """{ "type": "data", "name": "OffsetKey", "validVersions": "0-1", "flexibleVersions": "none",
      "fields": [{ "name": "group", "type": "string", "versions": "0-1" }] }""",
    """{ "type": "data", "name": "OffsetValue", "validVersions": "0-2", "flexibleVersions": "none",
      "fields": [{ "name": "offset", "type": "int64", "versions": "0+" }] }""",
    """{ "type": "data", "name": "GoneKey", "validVersions": "9", "flexibleVersions": "none",
      "fields": [{ "name": "group", "type": "string", "versions": "9" }] }""",
    """{ "type": "data", "name": "GoneValue", "validVersions": "0", "flexibleVersions": "none",
      "fields": [{ "name": "epoch", "type": "int32", "versions": "0+" }] }""",
)
NEW_RECORDS = (
    """{ "apiKey": 1, "type": "coordinator-key", "name": "OffsetKey", "validVersions": "0",
      "flexibleVersions": "none",
      "fields": [{ "name": "group", "type": "string", "versions": "0" }] }""",
    """{ "apiKey": 1, "type": "coordinator-value", "name": "OffsetValue", "validVersions": "2-3",
      "flexibleVersions": "3+", "fields": [
        { "name": "offset", "type": "int64", "versions": "0+" },
        { "name": "ids", "type": "[]int32", "taggedVersions": "3+", "nullableVersions": "3+",
          "tag": 0, "default": null }] }""",
    """{ "apiKey": 0, "type": "coordinator-key", "name": "LegacyOffsetKey", "validVersions": "0",
      "flexibleVersions": "none",
      "fields": [{ "name": "group", "type": "string", "versions": "0" }] }""",
    """{ "apiKey": 0, "type": "coordinator-value", "name": "LegacyOffsetValue",
      "validVersions": "0", "flexibleVersions": "none",
      "fields": [{ "name": "offset", "type": "int64", "versions": "0+" }] }""",
)
MERGED_RECORDS = """\
coordinator-key LegacyOffsetKey 0 key 0 flexible none topic __consumer_offsets
  group string 0+

coordinator-value LegacyOffsetValue 0-2 key 0 flexible none topic __consumer_offsets
  offset int64 0+

coordinator-key OffsetKey 0 key 1 flexible none topic __consumer_offsets
  group string 0+

coordinator-value OffsetValue 0-3 key 1 flexible 3+ topic __consumer_offsets
  offset int64 0+
  ids []int32 3+ nullable 3+ tag 0 3+

coordinator-key GoneKey 0 key 9 flexible none topic __consumer_offsets
  group string 0+

coordinator-value GoneValue 0 key 9 flexible none topic __consumer_offsets
  epoch int32 0+
"""


def test_records_have_types_whatever_the_release_calls_them(tmp_path):
    """Before 4.1 a type was the version of its key."""
    jars = []
    for version, definitions in (("3.9.2", OLD_RECORDS), ("4.10.0", NEW_RECORDS)):
        made = jar(tmp_path, version, *definitions)
        jars.append(made.rename(tmp_path / f"kafka-group-coordinator-{version}.jar"))
    table = generate.generate_records(jars)
    assert table.partition("\n\n")[2] == MERGED_RECORDS
    assert "4.10.0 and, for what it dropped, 3.9.2" in table


@pytest.mark.java
@pytest.mark.skipif(not ALL, reason="18 s; test_jvm.py asks Kafka's classes; KPROXY_TEST_ALL=1")
def test_the_tables_are_what_the_jars_say(capsys):
    assert generate.main(["--check", *map(str, jvm.definition_jars())]) == 0
    assert capsys.readouterr().out == "the tables are up to date\n"
