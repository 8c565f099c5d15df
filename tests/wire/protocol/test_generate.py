"""The maintainer's tool: definitions in, table out, and what changed in between."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from kproxy.wire.protocol import generate
from tests.bed import jvm
from tests.versions import ALL


def jar(folder: Path, version: str, *definitions: str) -> Path:
    """A jar with these definitions."""
    path = folder / f"clients-{version}.jar"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("kafka/kafka-version.properties", f"commitId=1\nversion={version}\n")
        for number, definition in enumerate(definitions):
            file.writestr(f"common/message/{number}.json", definition)
    return path


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


@pytest.mark.java
@pytest.mark.skipif(not ALL, reason="18 s; test_jvm.py asks Kafka's classes; KPROXY_TEST_ALL=1")
def test_the_tables_are_what_the_jars_say(capsys):
    assert generate.main(["--check", *map(str, jvm.definition_jars())]) == 0
    assert capsys.readouterr().out == "the tables are up to date\n"
