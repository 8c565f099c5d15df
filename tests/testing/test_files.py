"""`kproxy.testing.files`: which file is whose."""

from __future__ import annotations

import stat
from itertools import combinations
from pathlib import Path, PurePath

import pytest

from kproxy.testing.files import keep
from kproxy.testing.files import test_file as file_of

TESTS = [
    ("test_x.py", "test_a", None),
    ("test_x.py", "test_a", "json"),
    ("test_x.py", "test_a", "Json"),
    ("test_x.py", "test_a", "JSON"),
    ("test_x.py", "test_a", "a/b"),
    ("test_x.py", "test_a", "a b"),
    ("test_x.py", "test_a", "A b"),
    ("test_x.py", "test_a", "x" * 200),
    ("test_x.py", "test_a", "x" * 201),
    ("other/test_x.py", "test_a", None),
    ("../other/test_x.py", "test_a", None),
    ("../../other/test_x.py", "test_a", None),
]


def test_no_two_tests_have_the_same_file_also_where_case_does_not_count() -> None:
    for one, other in combinations(TESTS, 2):
        first, second = (
            file_of(Path("recordings"), PurePath(module), [name], parameters)
            for module, name, parameters in (one, other)
        )
        assert str(first).lower() != str(second).lower()


@pytest.mark.parametrize("module", ["tests/test_x.py", "../other/test_x.py", "../../test_x.py"])
def test_a_file_is_below_the_folder(module: str) -> None:
    path = file_of(Path("recordings"), PurePath(module), ["TestOrders", "test_one"], None)
    assert ".." not in path.parts and path.parts[0] == "recordings"
    assert path.name == "TestOrders.test_one.mcap"


def test_what_any_file_system_takes_stays_as_it_is() -> None:
    path = file_of(Path("recordings"), PurePath("tests/test_x.py"), ["test_a"], "a-1.5")
    assert path == Path("recordings/tests/test_x/test_a-a-1.5.mcap")


def test_a_kept_recording_is_for_its_owner_only(tmp_path: Path) -> None:
    made, path = tmp_path / "made.mcap", tmp_path / "kept" / "test.mcap"
    made.write_bytes(b"frames")
    made.chmod(0o644)
    keep(made, path)
    assert path.read_bytes() == b"frames"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == [path.name]
