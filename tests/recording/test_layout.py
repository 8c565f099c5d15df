"""The format is frozen: files of every released version are read as on the day they were made."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import mcap.records
import pytest

from kproxy.recording import RecordingError, entries, info, read, verify
from tests.recording.making import conversation, oracle, portable, write

GOLDEN = Path(__file__).parent / "golden"
FORMATS = Path(__file__).parent / "formats"
EXPECTED = json.loads((GOLDEN / "v3.json").read_text())


@pytest.mark.parametrize("name", ["stored", "zstd", "rewritten-lz4"])
def test_golden_files_are_read_as_ever(name: str) -> None:
    path = GOLDEN / f"v3-{name}.mcap"
    assert [portable(entry) for entry in entries(path)] == EXPECTED
    verify(path)
    head = info(path)
    assert (head.format_version, head.schema_id) == (3, "5eed5eed")
    assert head.metadata["command"] == "test"
    rows = [exchange.row for exchange in read(path)]
    assert rows == [exchange.row for exchange in read(GOLDEN / "v3-stored.mcap")]


def test_the_golden_torn_file_is_read_as_ever() -> None:
    *read, torn = entries(GOLDEN / "v3-torn.mcap")
    assert [portable(entry) for entry in read] == EXPECTED[:6]
    assert torn.body["what"].startswith("ends in the middle of a chunk")


def test_the_writer_still_writes_version_3_byte_for_byte(tmp_path: Path) -> None:
    settings = {"compression": "none", "metadata": {"command": "test"}}
    path = write(tmp_path / "a.mcap", conversation(), **settings)
    assert path.read_bytes() == (GOLDEN / "v3-stored.mcap").read_bytes()


def test_a_version_before_the_first_release_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    data = (FORMATS / "2" / "login.mcap").read_bytes()
    path.write_bytes(data.replace(b"format_version\1\0\0\x002", b"format_version\1\0\0\x001"))
    with pytest.raises(RecordingError) as raised:
        info(path)
    what = "has format version 1, which no release wrote or reads: record it again"
    assert str(raised.value) == f"{path}: {what}"


def test_notes_follow_the_schemas_in_the_file() -> None:
    path = GOLDEN / "v3-stored.mcap"
    schemas = {}
    channels = {}
    checked = 0
    for record in oracle(path):
        if isinstance(record, mcap.records.Schema):
            schemas[record.id] = record
        elif isinstance(record, mcap.records.Channel):
            channels[record.id] = record
        elif isinstance(record, mcap.records.Message):
            channel = channels[record.channel_id]
            schema = schemas[channel.schema_id]
            if schema.encoding == "jsonschema":
                assert channel.message_encoding == "json"
                jsonschema.validate(json.loads(record.data), json.loads(schema.data))
                checked += 1
    assert checked == 4
    assert schemas[1].encoding == "text"
