"""Exchanges of several recordings: each has a name, every output prints it, every command takes
it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.cli import main
from kproxy.recording.info import Info
from kproxy.recording.paths import distinct, goes_by
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Three recordings, two of which have files of one name."""
    for name, source in (
        ("shop", DEMO),
        ("a/orders", FORMATS / "transactions.mcap"),
        ("b/orders", FORMATS / "cut.mcap"),
    ):
        path = tmp_path / f"{name}.mcap"
        path.parent.mkdir(exist_ok=True)
        shutil.copy(source, path)
    return tmp_path


def out_of(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out.splitlines()


def files(folder: Path) -> list[Path]:
    return [folder / "shop.mcap", folder / "a", folder / "b"]


def test_lines_have_names_that_are_found_again(folder: Path, capsys) -> None:
    lines = out_of(capsys, "show", "--all", *files(folder), "number:1..3")
    names = [word for line in lines for word in line.split() if "#" in word]
    assert set(names) == {
        f"{name}#{n}" for name in ("shop", "a/orders", "b/orders") for n in (1, 2, 3)
    }
    for name, line in zip(names, lines, strict=True):
        assert out_of(capsys, "show", "--all", *files(folder), f"number:{name}") == [line]
        assert out_of(capsys, "show", "--frame", name, *files(folder))[0].split() == line.split()
    columns = {line.index(" c") for line in lines}
    assert len(columns) == 1, "they are aligned"


def test_json_and_records_have_names(folder: Path, capsys) -> None:
    objects = map(json.loads, out_of(capsys, "show", "--json", *files(folder), "number:2"))
    assert [each["name"] for each in objects] == ["shop#2", "a/orders#2", "b/orders#2"]
    lines = out_of(capsys, "show", "--records", "orders", *files(folder), "number:shop#6")
    assert lines and all(" shop#6 " in line for line in lines)
    (alone,) = map(json.loads, out_of(capsys, "show", "--json", folder / "a", "number:2"))
    assert "name" not in alone


def test_a_connection_is_shown_of_each_or_of_one(folder: Path, capsys) -> None:
    lines = out_of(capsys, "show", "--follow", "1", *files(folder))
    assert [line for line in lines if line.endswith(":")] == ["shop:", "a/orders:", "b/orders:"]
    alone = out_of(capsys, "show", "--follow", "1", folder / "b")
    assert out_of(capsys, "show", "--follow", "b/orders#1", *files(folder)) == alone


def test_a_name_that_several_go_by_is_all_of_them(folder: Path, capsys) -> None:
    lines = out_of(capsys, "show", *files(folder), "number:orders#2")
    assert [line.split()[1] for line in lines] == ["a/orders#2", "b/orders#2"]


@given(st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=8))
def test_names_are_distinct_and_found(paths: list[list[str]]) -> None:
    heads = [
        Info(Path("/".join(path) + ".mcap"), metadata={"recording": str(number)})
        for number, path in enumerate(paths)
    ]
    names = distinct(heads)
    assert len(set(names)) == len(names)
    for name, head in zip(names, heads, strict=True):
        assert goes_by(head, name)
    for name, path in zip(names, paths, strict=True):
        if not name.isdigit():
            assert [goes_by(other, name) for other in heads].count(True) == 1
            assert "/".join(path).endswith(name)
