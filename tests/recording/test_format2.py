"""Recordings of format 2 are read as what they are converted to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from mcap.writer import CompressionType

from kproxy.cli import main
from kproxy.recording import RecordingError, RecordingFile, format2, read, verify
from kproxy.recording.uri import located
from tests.recording.making import rewrite, write
from tests.versions import some

FORMATS = Path(__file__).parent / "formats"
OLD = sorted((FORMATS / "2").glob("*.mcap"))


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


@pytest.mark.parametrize("old", some(OLD, OLD[::3]), ids=lambda path: path.stem)
def test_a_file_is_converted_and_then_shown_as_it_is_without_that(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.mcap"
    shown(capsys, "recover", str(old), "--out", str(new))
    verify(new)
    lines, err = shown(capsys, "show", "--json", str(new))
    assert "format" not in err and lines
    assert shown(capsys, "show", "--json", str(old))[0] == lines


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


def test_a_frame_that_lies_in_several_files_is_whole(tmp_path: Path) -> None:
    """However its files are converted, together or one by one."""
    split = sorted((Path(__file__).parent / "golden").glob("v2-split*.mcap"))
    expected = b"\0\0\x01\x28\0\0\0\x01" + b"a" * 92 + b"b" * 100 + b"c" * 100
    new = [tmp_path / path.name for path in split]
    for path, to in zip(split, new, strict=True):
        format2.convert(path, to)
    for paths in (split, new):
        (found,) = read(paths)
        assert found.response_frame == expected
    (alone,) = read(tmp_path / "v2-split-0003.mcap")
    assert alone.response_frame is None and alone.row.response_bytes == 300


def test_a_file_is_not_converted_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = Path(shutil.copy(FORMATS / "2" / "torn.mcap", tmp_path / "old.mcap"))
    before = old.read_bytes()
    assert main(["recover", str(old)]) == 1
    assert f"`kproxy recover {old} --out NEW` converts it" in capsys.readouterr().err
    assert old.read_bytes() == before
    assert main(["recover", str(old), "--out", str(old)]) == 1
    assert "is there already" in capsys.readouterr().err and old.read_bytes() == before


def test_a_file_of_the_present_format_is_not_converted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, new = write(tmp_path / "a.mcap", []), tmp_path / "new.mcap"
    assert main(["recover", str(path), "--out", str(new)]) == 1
    assert "nothing to convert" in capsys.readouterr().err and not new.exists()


@pytest.mark.parametrize("name", ["login", "faults", "large"])
def test_what_another_tool_has_rewritten_is_converted_as_well(name: str, tmp_path: Path) -> None:
    old = FORMATS / "2" / f"{name}.mcap"
    how = {"compression": CompressionType.LZ4, "chunk_size": 200}
    rewritten = rewrite(old, tmp_path / "rewritten.mcap", **how)
    found = [(each.row[:8], each.request_frame, each.response_frame) for each in read(rewritten)]
    assert found == [(each.row[:8], each.request_frame, each.response_frame) for each in read(old)]


def test_one_without_its_schemas_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = rewrite(OLD[0], tmp_path / "bare.mcap", keep_schemas=False)
    assert main(["stats", str(bare)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{bare}: is damaged" in line


def test_a_file_that_is_far_away_is_copied_first() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://old.mcap", "wb") as file:
        file.write(OLD[0].read_bytes())
    far = located("fsspec+memory://old.mcap")
    with pytest.raises(RecordingError) as raised:
        RecordingFile(far)
    advice = "copy it to this machine, then `kproxy recover COPY --out NEW` converts it"
    assert str(raised.value) == f"{far}: has the former format 2: {advice}"


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
    assert "pip install 'kproxy-kafka[tables]'" in line
