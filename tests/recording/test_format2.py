"""Recordings of format 2 are read as what they are converted to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from kproxy.cli import main
from kproxy.recording import format2, read, verify

FORMATS = Path(__file__).parent / "formats"
OLD = sorted((FORMATS / "2").glob("*.mcap"))
ROTATED = sorted((FORMATS / "2").glob("rotated*.mcap"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    format2._converted.cache_clear()
    return tmp_path / "cache" / "kproxy" / "converted"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[str], str]:
    """The lines of a command that succeeds, and its stderr."""
    assert main([*arguments]) == 0
    found = capsys.readouterr()
    return found.out.splitlines(), found.err


@pytest.mark.parametrize("old", OLD, ids=lambda path: path.stem)
def test_a_file_is_converted_and_then_shown_as_it_is_without_that(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.mcap"
    shown(capsys, "recover", str(old), "--out", str(new))
    verify(new)
    lines, err = shown(capsys, "show", "--json", str(new))
    assert "format" not in err and lines
    assert shown(capsys, "show", "--json", str(old))[0] == lines
    assert all(each.request_frame or each.response_frame for each in read(new))


def test_it_is_said_once_that_a_file_is_read_as_converted(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(shutil.copy(FORMATS / "2" / "login.mcap", tmp_path / "old.mcap"))
    said = (
        f"{old} has the former format 2: read as converted; "
        f"`kproxy recover {old} --out NEW` keeps that\n"
    )
    lines, err = shown(capsys, "stats", str(old))
    assert err == said and lines
    (made,) = cache.iterdir()
    assert shown(capsys, "stats", str(old)) == (lines, "")
    old.touch()
    assert shown(capsys, "stats", str(old)) == (lines, said)
    assert [*cache.iterdir()] != [made], "and what it was before is not kept"


def test_the_files_of_a_recording_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = list(read(ROTATED))
    assert len(found) > len(list(read(ROTATED[:1])))
    assert not [each.number for each in found if each.open_at_end]
    for each in found:  # also where its request is in the file before
        sizes = len(each.request_frame or b""), len(each.response_frame or b"")
        assert sizes == (each.request_bytes, each.response_bytes or 0)
    said = capsys.readouterr().err.splitlines()
    assert sorted(line.partition(" ")[0] for line in said) == [*map(str, ROTATED)]


def test_a_file_is_not_converted_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(shutil.copy(FORMATS / "2" / "torn.mcap", tmp_path / "old.mcap"))
    before = old.read_bytes()
    assert main(["recover", str(old)]) == 1
    assert f"`kproxy recover {old} --out NEW` converts it" in capsys.readouterr().err
    assert old.read_bytes() == before
    assert main(["recover", str(old), "--out", str(old)]) == 1
    assert "File exists" in capsys.readouterr().err and old.read_bytes() == before


def test_a_file_of_the_present_format_is_not_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.mcap"
    assert main(["recover", str(FORMATS / "3" / "login.mcap"), "--out", str(new)]) == 1
    assert "nothing to convert" in capsys.readouterr().err and not new.exists()


def test_without_a_place_for_it_a_line_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["stats", str(OLD[0])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Not a directory" in line and f"`kproxy recover {OLD[0]} --out NEW`" in line


def test_without_pyarrow_a_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["stats", str(OLD[0])]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'kproxy[tables]'" in line
