"""`kproxy recover --schemas`: a recording gets the schemas that it lacks, and reads alone then."""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.recording import RecordingFile, recover, verify
from tests.bed import schema_registry
from tests.net.registry.recorded import framed, produced, recording, values

NEW = {"state": "new"}


def lacking(folder: Path, *ids: int) -> Path:
    """A recording whose records name schemas that it does not have."""
    path, *_ = recording(folder / "a.mcap", produced(*map(framed, ids)))
    assert all(str(each).endswith("is not in the recording") for each in values(path))
    return path


def test_a_registry_gives_what_is_lacking(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with schema_registry.serving(first_id=17) as registry:
        registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        path = lacking(tmp_path, 17, 99)
        assert main(["recover", str(path), "--schemas", registry.address]) == 0
        assert capsys.readouterr().out == f"{path}: 1 schema added; not found: schema 99\n"
        asked = len(registry.asked)
        assert main(["recover", str(path), "--schemas", registry.address]) == 0
        assert capsys.readouterr().out == f"{path}: no schema added; not found: schema 99\n"
        assert [each for each in registry.asked[asked:] if "17" in each] == [], "it has that one"
    verify(path)
    assert values(path) == [NEW, "schema 99 is not in the recording"]


def test_a_torn_recording_is_completed_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "orders-value.json").write_text("{}")
    path = lacking(tmp_path, 17)
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["recover", str(path), "--schemas", str(tmp_path / "schemas")]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "completed" in first
    assert second == f"{path}: 1 schema added"
    verify(path)
    assert values(path) == [NEW]


def test_a_large_recording_keeps_its_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kproxy.recording.writer.FILE_BYTES_MIN", 0)
    monkeypatch.setattr(sys.modules[recover.__module__], "FILE_BYTES_MIN", 0)
    (tmp_path / "17.json").write_text("{}")
    path = lacking(tmp_path, *[17] * 40)
    assert main(["recover", str(path), "--schemas", str(tmp_path)]) == 0
    with RecordingFile(path) as file:
        file.use_index()
        assert file.indexed
    assert values(path) == [NEW] * 40


def test_a_full_disk_leaves_the_recording_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "17.json").write_text("{}")
    path = lacking(tmp_path, 17)
    before, real = path.read_bytes(), os.pwritev

    def refuse(*given: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", refuse)
    assert main(["recover", str(path), "--schemas", str(tmp_path)]) == 1
    monkeypatch.setattr(os, "pwritev", real)
    assert "No space left" in capsys.readouterr().err
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("nowhere", "'nowhere' is no folder; give http://HOST:PORT of a registry"),
        ("http://ann:secret@localhost:1", "no password: set KPROXY_SCHEMA_REGISTRY_AUTH"),
        ("ftp://localhost", "is no URL of a registry"),
    ],
)
def test_what_is_no_source_is_said(
    given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recover", str(lacking(tmp_path, 17)), "--schemas", given]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "secret" not in error
    assert error.count("\n") == 1


def test_a_registry_wants_to_know_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = lacking(tmp_path, 17)
    with schema_registry.serving(user="ann:secret", first_id=17) as registry:
        registry.add("orders-value", {"schema": "{}", "schemaType": "JSON"})
        assert main(["recover", str(path), "--schemas", registry.address]) == 0
        assert "401: give what it wants in KPROXY_SCHEMA_REGISTRY_AUTH" in capsys.readouterr().out
        monkeypatch.setenv("KPROXY_SCHEMA_REGISTRY_AUTH", "ann:secret")
        assert main(["recover", str(path), "--schemas", registry.address]) == 0
    assert values(path) == [NEW]
    stored = path.read_bytes()
    assert b"secret" not in stored
    assert base64.b64encode(b"ann:secret") not in stored
