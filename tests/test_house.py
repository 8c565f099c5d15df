"""The house rules: which room may know which, how large things are, what must be said.

Every rule reads the files that git tracks, so that what is left lying about does not count.
"""

from __future__ import annotations

import ast
import gc
import itertools
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.bed import needs

ROOT = needs.REPOSITORY
TOP_LEVEL = {"pyproject.toml", "README.md", "kproxy", "tests", "recordings", "compose.yaml"}

ROOMS = [
    "wire",
    "wire/protocol",
    "wire/payloads",
    "exchange",
    "history",
    "proxy",
    "recording",
    "capture",
    "tables",
    "replay",
    "send",
    "net/tls",
    "net/registry",
    "net",
    "look",
    "look/lines",
    "look/why",
    "look/pictures",
    "look/report",
    "look/diff",
    "look/page",
    "spark",
    "analyze",
    "testing",
    "commands",
    "cli",
]
"""A room imports only from rooms to its left, and from itself."""

ABOVE = {
    "units": "wire/protocol",
    "addresses": "wire/protocol",
    "defects": "wire/protocol",
    "printable": "wire/protocol",
    "levels": "wire/protocol",
    "control": "wire/protocol",
    "background": "wire/protocol",
    "demo": "look/lines",
    "experiment": "look/lines",
    "pytest_plugin": "testing",
    "__main__": "cli",
    "cli": "cli",
}
"""Modules that belong to no room, and the last room that they may import from."""

SANS_IO = ["wire", "exchange", "history", "proxy", "capture", "send"]
IO = {"trio", "socket", "selectors", "time", "threading", "asyncio", "random", "subprocess"}
FILES = {"os", "pathlib", "tempfile", "shutil", "io"}
OPENS_RECORDINGS = {"kproxy/replay/opening.py", "kproxy/replay/index_file.py"}
"""All of `replay` that does IO."""

FILE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70

BANNED = {
    r"(?<!java\.)\butils?\b": "a name that says what it is",
    r"\bTODO\b|\bFIXME\b|\bXXX\b": "do it, or leave it out",
    r"/work/|/root/|/tmp/lab": "no paths of a machine",
    r"registry\.npmjs|repo1?\.maven|pypi\.org/simple|proxy\.golang": "no registry hosts",
}


@cache
def tracked() -> list[Path]:
    """The files that git tracks."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("this is not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).exists()]


def modules(folder: str) -> list[Path]:
    """The tracked Python files below a folder."""
    return [path for path in tracked() if path.suffix == ".py" and ROOT / folder in path.parents]


@pytest.fixture(autouse=True, scope="module")
def no_garbage() -> Iterator[None]:
    """Syntax trees are a million objects, at which no collector need look again and again."""
    gc.disable()
    yield
    gc.enable()


@cache
def tree(path: Path) -> ast.Module:
    """A module's syntax tree."""
    return ast.parse(path.read_text())


def named(path: Path) -> str:
    """A path as it is shown."""
    return str(path.relative_to(ROOT))


def imported(path: Path) -> Iterator[str]:
    """The absolute names of the modules that a module imports, wherever in it."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(name: str) -> str | None:
    """The room of a module of kproxy."""
    parts = name.split(".")
    if parts[0] != "kproxy":
        return None
    rooms = ("/".join(parts[1:size]) for size in (3, 2))
    return next((each for each in rooms if each in ROOMS), None)


def test_the_top_level_is_what_it_is() -> None:
    top = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert {name for name in top if not name.startswith(".")} == TOP_LEVEL


def test_what_a_failed_test_did_is_not_kept() -> None:
    assert [named(path) for path in tracked() if path.name.endswith(".failed.mcap")] == []
    assert "*.failed.mcap" in (ROOT / ".gitignore").read_text().split()  # as `git-setup` has it


def test_a_room_imports_only_rooms_before_it() -> None:
    wrong = []
    for path in modules("kproxy"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        own = room(".".join(parts)) or ABOVE.get(parts[1])
        if own is None:
            assert parts == ("kproxy", "__init__"), f"{named(path)} is in no room"
            continue
        allowed = ROOMS[: ROOMS.index(own) + 1]
        for name in imported(path):
            if (found := room(name)) and found not in allowed:
                wrong.append(f"{named(path)} imports {name}")
    # The command line starts the demo, which starts all the rest; nothing else does.
    assert wrong == []


@pytest.mark.parametrize("name", SANS_IO)
def test_a_room_without_io_imports_none(name: str) -> None:
    assert modules(f"kproxy/{name}") != []
    allowed = {"kproxy/wire/protocol/generate.py": {"subprocess"}}
    wrong = [
        f"{named(path)} imports {found}"
        for path in modules(f"kproxy/{name}")
        for found in imported(path)
        if found.split(".")[0] in IO - allowed.get(named(path), set())
    ]
    assert wrong == []


def test_what_serves_a_recording_does_no_io() -> None:
    reads_nothing = "kproxy.recording.RecordingError"  # from the function that reads frames
    found = {
        named(path)
        for path in modules("kproxy/replay")
        for name in imported(path)
        if name.split(".")[0] in IO | FILES
        or (name.startswith("kproxy.recording.") and name != reads_nothing)
    }
    assert found == OPENS_RECORDINGS


def test_recordings_can_be_read_without_trio() -> None:
    code = (
        "import sys, kproxy.recording, kproxy.exchange.exchange, kproxy.look.lines.jsonl;"
        "list(kproxy.recording.read('recordings/demo.mcap'));"
        "sys.exit('trio' in sys.modules)"
    )
    python = ROOT / ".venv" / "bin" / "python"
    import sys

    command = [str(python) if python.exists() else sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def test_files_and_functions_fit() -> None:
    large = []
    for path in [*modules("kproxy"), *modules("tests")]:
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES_MAX:
            large.append(f"{named(path)} has {lines} lines")
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                size = node.end_lineno - node.lineno + 1
                if size > FUNCTION_LINES_MAX:
                    large.append(f"{named(path)}:{node.lineno} {node.name} has {size} lines")
    assert large == []


def test_everything_public_says_what_it_is() -> None:
    silent = []
    for path in modules("kproxy"):
        if not ast.get_docstring(tree(path)):
            silent.append(named(path))
        for node in _public(tree(path)):
            if not ast.get_docstring(node):
                silent.append(f"{named(path)}:{node.lineno} {node.name}")
    for path in modules("tests"):
        if path.name != "__init__.py" and not ast.get_docstring(tree(path)):
            silent.append(named(path))
    assert silent == []


def _public(parent: ast.AST) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in parent.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                yield node
                if isinstance(node, ast.ClassDef):
                    yield from _public(node)


def test_a_class_has_a_name_of_its_own() -> None:
    """A name with two meanings has to be looked up each time it is read."""
    where: dict[str, list[str]] = {}
    for path in modules("kproxy"):
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name.lstrip("_"), []).append(named(path))
    twice = [f"{name}: {', '.join(paths)}" for name, paths in where.items() if len(paths) > 1]
    assert not twice, f"class names of two modules, underscores aside: {'; '.join(twice)}"


def test_a_text_in_a_function_describes_it_or_a_declaration() -> None:
    """Another is most likely a docstring that was pasted twice, with the code behind it."""
    stray = []
    for path in [*modules("kproxy"), *modules("tests")]:
        for function in ast.walk(tree(path)):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                for before, node in itertools.pairwise(function.body):
                    if _is_text(node) and not _declares(before):
                        stray.append(f"{named(path)}:{node.lineno}")
    assert stray == []


def _is_text(node: ast.stmt) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _declares(node: ast.stmt) -> bool:
    """Whether it sets an attribute, or annotates a name."""
    if not isinstance(node, ast.Assign):
        return isinstance(node, ast.AnnAssign)
    return any(isinstance(each, ast.Attribute) for each in ast.walk(node.targets[0]))


def test_words_that_we_do_not_use() -> None:
    found = []
    for path in tracked():
        if path == Path(__file__) or path.suffix not in (".py", ".pyi", ".md", ".yaml", ".toml"):
            continue
        text = path.read_text()
        for pattern, instead in BANNED.items():
            for word in re.finditer(pattern, text, re.IGNORECASE if instead[0] == "a" else 0):
                number = text.count("\n", 0, word.start()) + 1
                found.append(f"{named(path)}:{number} {word[0]} (use: {instead})")
    assert found == []
