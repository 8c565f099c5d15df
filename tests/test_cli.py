"""What is typed, and what is said when it cannot be done: one line, and the right exit code."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import kproxy.commands
from kproxy import __version__
from kproxy.cli import COMMANDS, SERVING, main
from kproxy.recording import Recording
from tests.versions import pairs

_ANYWHERE = ["--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
DEMO = Path(__file__).parent.parent / "recordings" / "demo.mcap"


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that ends at once."""
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], "--bootstrap"),
        (["run", "--bootstrap", "a:1", "--wat"], "--wat"),
        (["fly"], "fly"),
        (["replay"], "FILE"),
        (["replay", "x", "--user", "bob"], "give NAME:PASSWORD"),
        (["replay", "x", "--mode", "magic"], "'magic'"),
        (["replay", "x", "--node-port", "1=5", "--node-port", "1=6"], "taken already"),
        (["run", "--bootstrap", ""], "names no address"),
        (["run", "--bootstrap", ","], "names no address"),
        (["run", "--bootstrap", "host:port"], "'port' is not a port"),
        (["run", "--bootstrap", "host:0"], "'0' is not a port"),
        (["run", "--bootstrap", "host:70000"], "'70000' is not a port"),
        (["run", "--bootstrap", ":9092"], "host is missing"),
        (["run", "--bootstrap", "127.0.0.1:"], "port is missing"),
        (["run", "--bootstrap", "a:1,[::1]:"], "port is missing"),
        (["run", "--bootstrap", "http://host:9092"], "is not HOST:PORT"),
        (["run", "--bootstrap", "a b:9092"], "is not HOST:PORT"),
        (["run", "--bootstrap", "::1:9092"], "in brackets"),
        (["run", "--bootstrap", "a:1", "--listen", "localhost"], "port is missing"),
        (["run", "--bootstrap", "a:1", "--node-port", "1"], "is not ID=PORT"),
        (["run", "--bootstrap", "a:1", "--node-port", "x=1"], "is not ID=PORT"),
        (["run", "--bootstrap", "a:1", "--rotate", "soon"], "is not a size or a duration"),
        (["run", "--bootstrap", "a:1", "--rotate", "1GiB,1h,2h"], "one size and one duration"),
        (["run", "--bootstrap", "a:1", "--rotate", "1ms"], "too small"),
        (["run", "--bootstrap", "a:1", "--rotate", "4KiB,off"], "too small; at least 64KiB"),
        (["run", "--bootstrap", "a:1", "--keep", "1"], "at least 2 files"),
        (["run", "--bootstrap", "a:1", "--keep", "some"], "a size, a duration or a number"),
        (["run", "--bootstrap", "a:1", "--keep", "1GiB,2GiB"], "give one size, one duration"),
        (["run", "--bootstrap", "a:1", "--keep", "1KiB"], "too small; at least 1MiB"),
        (["run", "--bootstrap", "a:1", "--keep", "1GiB", "--no-record"], "leave out --no-record"),
        (["run", "--bootstrap", "a:1", "--keep", "1GiB", "--rotate", "off"], "none to remove"),
        (["run", "--bootstrap", "a:1", "--keep", "1GiB", "--rotate", "1GiB"], "half its size"),
        (["run", "--bootstrap", "a:1", "--keep", "24h", "--rotate", "13h"], "half its time"),
        (
            ["run", "--bootstrap", "a:1", "--keep", "24h", "--keep-matching", "is:error"],
            "a size in",
        ),
        (["run", "--bootstrap", "a:1", "--record", ""], "names no file"),
        (["run", "--bootstrap", "a:1", "--advertise", "host:9092"], "is not a host"),
        (["run", "--bootstrap", "a:1", "--advertise", "http://x"], "is not"),
        (["run", "--bootstrap", "a:1", "--advertise", "a b"], "is not"),
        (["run", "--bootstrap", "a:1", "--advertise", ""], "host is missing"),
        (["run", "--bootstrap", "a:1", *(["--node-port", "1=2"] * 2)], "taken already"),
        (["run", "--bootstrap", "a:1", "--node-port", "1=19092"], "taken already"),
        (["run", "--bootstrap", "x" * 300 + ":9092"], "cannot resolve"),
        (["run", "--bootstrap", "a:1", "--idle-timeout", "1 week"], "is not a duration"),
        (["run", "--bootstrap", "a:1", "--connections-max", "0"], "at least 1"),
        (["run", "--bootstrap", "a:1", "--backlog-bytes-max", "much"], "is not a size"),
        (["run", "--bootstrap", "a:1", "--record", "x.parquet"], "does not end in .mcap"),
        (["run", "--bootstrap", "a:1", "--record", "x", "--no-record"], "not allowed with"),
        (["run", "--bootstrap", "no.such.host.invalid:9092"], "cannot resolve"),
        (["run", "--bootstrap", "a:1", "--control", "localhost"], "port is missing"),
        (["run", *_ANYWHERE, "--control", "0.0.0.0:0"], "KPROXY_CONTROL_TOKEN"),
        (["run", *_ANYWHERE, "--control", "[::]:0"], "KPROXY_CONTROL_TOKEN"),
        (["show"], "FILE"),
        (["tail", str(DEMO), str(DEMO)], "it follows one recording"),
        (["export", str(DEMO), "--to", "/nowhere/a.mcap"], "there is no folder '/nowhere'"),
        (["run", "--bootstrap", "a:1", "--seed", "x"], "not a number of at least 0"),
        (["run", "--bootstrap", "a:1", "--held-bytes-max", "x"], "not a size"),
        (["run", "--bootstrap", "a:1", "--only", "api:Fech"], "column 5: there is no API 'Fech'"),
        (["run", "--bootstrap", "a:1", "--only", "api:Fetch topic:a"], "column 11: --only cannot"),
        (["run", "--bootstrap", "a:1", "--faults", "no.toml"], "no.toml: No such file"),
        (["run", "--bootstrap", "a:1", "--faults", "/"], "/: Is a directory"),
        (["run", "--bootstrap", "a:1", "--fault", "api=Fech drop=true"], "did you mean Fetch?"),
        (["run", "--bootstrap", "a:1", "--fault", "api=Fetch"], "the rule has no action"),
        (["run", "--bootstrap", "a:1", "--fault", "eror=X"], "this is no key of a rule"),
        (
            ["run", "--bootstrap", "a:1", "--fault", "api=Fetch latency={recording=no.mcap}"],
            "no.mcap",
        ),
        (
            ["run", "--bootstrap", "a:1", *["--fault", "name=a api=Fetch drop=true"] * 2],
            "already a",
        ),
        (["run", "--bootstrap", "a:1", "--expect-faults"], "there is no rule"),
        (["fault"], "VERB"),
        (["fault", "break"], "'list', 'add'"),
        (["run", "--bootstrap", "a:1", "--control-recordings", "."], "over --control: give that"),
        (["replay", "x.mcap", "--control-recordings", "."], "over --control: give that"),
        (["run", "--bootstrap", "a:1", "--control-recordings", "/nowhere"], "is no folder"),
        (["fault", "list"], "give --control HOST:PORT, or set KPROXY_CONTROL"),
        (["fault", "list", "x", "--control", "a:1"], "list: it takes nothing more"),
        (["fault", "add", "--control", "a:1"], "add: give RULE"),
        (["fault", "change", "x", "--control", "a:1"], "change: give KEY=VALUE"),
        (["fault", "add", "drop", "--control", "a:1"], "'drop' is not key=value"),
        (["fault", "list", "--control", "a"], "the port is missing"),
    ],
)
def test_a_mistake_in_what_was_typed_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    code, out, err = said(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1 and err.startswith("kproxy")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_option_points_to_the_help_of_its_command(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    needed = {
        "run": ["--bootstrap", "a:1"],
        "demo": [],
        "git-setup": [],
        "fault": ["list"],
        "export": ["x", "--to", "x.mcap"],
        "analyze": ["x", "--out", "y"],
        "report": ["x", "--out", "y"],
        "diff": ["x", "y"],
        "import": ["x", "--out", "y.mcap"],
        "help": [],
        "certs": [],
    }.get(command, ["x"])
    code, _, err = said(capsys, command, *needed, "--wat")
    assert code == 2
    assert err == f"kproxy {command}: unrecognized arguments: --wat (see kproxy {command} --help)\n"
    code, out, _ = said(capsys, command, "--help")
    assert code == 0 and out.startswith(f"usage: kproxy {command}") and "--help" in out
    assert all(name in out for name in needed if name.startswith("--"))
    assert (command in SERVING) == ("[-- COMMAND]" in out.split("\n\n")[0])


def test_each_command_is_a_module_and_each_module_a_command() -> None:
    folder = Path(kproxy.commands.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if "def add_options(" in path.read_text()}
    assert modules == {name.replace("-", "_") for name in COMMANDS}


def test_help_and_mistakes_load_no_more_than_they_must() -> None:
    code = (
        "import sys, contextlib, kproxy.cli\n"
        "for typed in (['--help'], ['run', '--help'], ['run', '--wat'], ['show']):\n"
        "    with contextlib.suppress(SystemExit):\n"
        "        kproxy.cli.main(typed)\n"
        "heavy = {'attrs', 'trio', 'kproxy.wire.protocol', 'kproxy.net'};"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == ""


WRITING = ["kproxy.proxy", "kproxy.recording.encoding", "kproxy.recording.writer", "trio"]
FORMATS = ["kproxy.wire.payloads.avro", "kproxy.wire.payloads.protobuf"]


@pytest.mark.parametrize(
    ("typed", "needless"),
    [
        (["show", "FILE"], [*WRITING, *FORMATS, "kproxy.exchange.filter"]),
        (["show", "FILE", "number:5"], [*WRITING, *FORMATS]),
    ],
)
def test_reading_loads_no_more_than_it_must(typed: list[str], needless: list[str]) -> None:
    arguments = [str(DEMO) if each == "FILE" else each for each in typed]
    code = (
        "import sys, kproxy.cli\n"
        f"assert kproxy.cli.main({arguments!r}) == 0\n"
        f"print(*sorted(set({needless!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize("command", ["show", "recover"])
@pytest.mark.parametrize(
    ("name", "content"),
    [("missing.mcap", None), ("empty.mcap", b""), ("text.mcap", b"hello\n" * 50)],
)
def test_a_file_that_is_no_recording_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, name: str, content
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    code, out, err = said(capsys, command, str(path))
    assert (code, out) == (1, "")
    assert name in err and err.count("\n") == 1
    assert content is None or path.read_bytes() == content


def test_the_first_argument_that_is_no_file_begins_the_filter(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (
        [str(DEMO), "api:Produce", "not", "partition:1"],
        ["--json", str(DEMO), "api:Produce not partition:1"],
        [str(DEMO), "--json", "(api:Produce or number:1000)", "not partition:1"],
        [str(DEMO.parent), "time:..+10s api:Produce partition:3"],
    ):
        code, out, err = said(capsys, "show", *arguments)
        assert (code, err, len(out.splitlines())) == (0, "", 1), arguments
        assert "Produce" in out


def test_a_mistake_in_a_filter_is_pointed_at(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "show", str(DEMO), "topic:orders", "api:Fech")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "column 18: there is no API 'Fech' (did you mean Fetch?)" in err
    code, _, err = said(capsys, "show", str(DEMO), "typo.mcap")
    assert (code, err) == (1, "kproxy show: typo.mcap: does not exist\n")


LONG = "x" * 255
"""With the name of a key before it, it is longer than the name of a file may be."""


@pytest.mark.parametrize(
    ("command", "words"),  # longer than a name, longer than a path
    [("show", 1), ("show --records orders", 20), ("tail", 1), ("export --to OUT", 20)],
)
def test_a_filter_may_be_longer_than_the_name_of_a_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, words: int
) -> None:
    recorded = tmp_path / "demo.mcap"
    shutil.copy(DEMO, recorded)
    found: list[tuple[int, bytes]] = []
    for number, wanted in enumerate(
        ("topic:orders", f"topic:orders,x/{',x/'.join([LONG] * words)}")
    ):
        out = tmp_path / f"{number}.jsonl"
        typed = [str(out) if word == "OUT" else word for word in command.split()]
        code, shown, _ = said(capsys, *typed, str(recorded), wanted)
        written = out.read_bytes() if out.exists() else shown.encode()
        found.append((code, written))
    assert found[0] == found[1] and found[0][0] == 0 and len(found[0][1]) > 100


@pytest.mark.parametrize("value", ["x" * 300, f"{LONG}/" * 20, "a\0b", "\udcff" * 300])
def test_the_subject_of_a_story_may_be_what_no_file_is_called(
    capsys: pytest.CaptureFixture[str], value: str
) -> None:
    code, out, err = said(capsys, "why", str(DEMO), f"topic:{value}")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("kproxy why: there is no topic ")


@pytest.mark.parametrize("path", ["x" * 300, f"{LONG}/" * 20 + "a.mcap", "ring", "shut/a"])
def test_a_path_that_cannot_be_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: str
) -> None:
    (tmp_path / "ring").symlink_to(tmp_path / "ring")
    (tmp_path / "shut").mkdir(mode=0)
    monkeypatch.chdir(tmp_path)
    if not os.geteuid():  # who may read all
        stat = os.stat
        monkeypatch.setattr(os, "stat", lambda at, **more: stat(_open_to_root(at), **more))
        lstat = os.lstat
        monkeypatch.setattr(os, "lstat", lambda at, **more: lstat(_open_to_root(at), **more))
    for command in ("show", "stats", "tail", "scan", "textconv", "recover", "why",
                    "report --out a.html", "export --to a.jsonl", "replay"):  # fmt: skip
        found = [said(capsys, *command.split(), path)]
        if command in ("show", "stats", "why"):
            found.append(said(capsys, *command.split(), str(DEMO), path))
        for code, out, err in found:
            assert (code in (1, 2), out, err.count("\n")) == (True, "", 1), (command, err)
            assert path[0] in err


def _open_to_root(path: object) -> object:
    if str(path).endswith("shut/a"):
        raise PermissionError(13, "Permission denied", path)
    return path


def test_a_recording_is_not_overwritten(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.mcap"
    path.write_bytes(b"precious")
    arguments = ["run", "--bootstrap", "127.0.0.1:1", "--listen", "127.0.0.1:0"]
    code, out, err = said(capsys, *arguments, "--record", str(path))
    assert (code, out) == (1, "")
    assert "mine.mcap" in err and "not overwritten" in err
    assert path.read_bytes() == b"precious"


def test_the_version_and_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "--version") == (0, f"kproxy {__version__}\n", "")
    code, out, _ = said(capsys, "--help")
    assert code == 0
    for command in ("run", "show", "recover", "demo"):
        assert command in out
    assert said(capsys)[0] == 2


def test_the_demo_works_by_itself_and_its_hints_are_true(tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    done = subprocess.run(
        [sys.executable, "-m", "kproxy", "demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and done.stderr == ""
    record, replay, fault = re.split(r"^[23]\. ", done.stdout, flags=re.MULTILINE)
    assert "The consumer got 12 of 12 records" in record
    for words in ("Produce v", "JoinGroup v", "Fetch v", "OffsetCommit v"):
        assert words in record, "it shows what passes"
    assert "opaque" not in record
    assert "The same consumer got 12 of 12 records" in replay
    produced = [line for line in fault.splitlines() if "Produce v" in line and "orders[" in line]
    (failed,) = [line for line in produced if "NOT_LEADER_OR_FOLLOWER" in line]
    assert len(produced) == 3 and "injected" in failed
    assert "12 of 12 records, each once" in fault
    hints = [line for line in done.stdout.splitlines() if line.startswith("    ")]
    assert len(hints) == 3
    for hint in hints[:2]:
        shown = subprocess.run(
            ["bash", "-c", hint], cwd=tmp_path, capture_output=True, text=True, timeout=20
        )
        assert shown.returncode == 0 and "orders" in shown.stdout and not shown.stderr


def test_output_cut_off_by_head_ends_quietly() -> None:
    command = f"{sys.executable} -m kproxy show --json {DEMO} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith('{"number"') and done.stderr == ""


@pytest.mark.parametrize(
    ("typed", "to"),
    pairs(
        ["show FILE", "stats FILE", "textconv FILE", "", "show --help", "--version"],
        [">&-", "> /dev/full", "2>&-", ">&- 2>&-"],
    ),
)
def test_what_is_wanted_is_written_or_the_reason_why_not_is(to: str, typed: str) -> None:
    command = f"{sys.executable} -m kproxy {typed.replace('FILE', str(DEMO))} {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    if to == "2>&-":
        assert done.returncode == (0 if typed else 2) and done.stdout
        return
    name = " ".join(["kproxy", *typed.split()[:1]]) if "-" not in typed[:1] else "kproxy"
    why = "No space left on device" if "full" in to else "Bad file descriptor"
    assert done.returncode == 1
    assert done.stderr == ("" if "2>" in to else f"{name}: cannot write the output: {why}\n")


def test_a_folder_may_have_more_files_than_may_be_open_at_once(tmp_path: Path) -> None:
    for number in range(40):
        path = tmp_path / f"{number}.mcap"
        Recording(path, start_ns=number + 1, schema_id="x", library_version="0").close()
        shutil.copy(tmp_path / f"{number}.mcap", tmp_path / f"copy-{number}.mcap")
    command = f"ulimit -n 30; {sys.executable} -m kproxy stats {tmp_path}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert "Too many" not in done.stderr and done.stderr.count("is a copy of") == 40


def test_an_error_of_the_system_says_of_what(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import kproxy.commands.stats

    for error, words in (
        (PermissionError(13, "Permission denied", "a.mcap"), "a.mcap: Permission denied"),
        (OSError(24, "Too many open files"), "Too many open files"),
    ):
        monkeypatch.setattr(kproxy.commands.stats, "run", raising(error))
        assert said(capsys, "stats", "x") == (1, "", f"kproxy stats: {words}\n")


def raising(error: Exception):
    def run(options: object) -> int:
        raise error

    return run


@pytest.mark.parametrize("to", [">/dev/full", "2>/dev/full", ">&- 2>&-"])
def test_output_that_cannot_be_written_does_not_stop_the_proxy(to: str) -> None:
    run = f"{sys.executable} -m kproxy run --bootstrap 127.0.0.1:1 --listen 127.0.0.1:0"
    command = f"timeout -s INT 2 {run} --no-record {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.returncode == 124, "it ran until it was stopped"
    assert "Traceback" not in done.stderr


def test_a_token_that_http_cannot_carry_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for token in ("two words", "line\n", "schlüssel"):
        monkeypatch.setenv("KPROXY_CONTROL_TOKEN", token)
        typed = ["run", "--bootstrap", "127.0.0.1:1", "--no-record", "--control", "127.0.0.1:0"]
        code, out, err = said(capsys, *typed)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "KPROXY_CONTROL_TOKEN" in err and token not in err


def test_other_machines_need_the_token_for_the_metrics(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", "127.0.0.1:1", "--no-record"]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--control", "0.0.0.0:0"],
        env={**os.environ, "KPROXY_CONTROL_TOKEN": "s3cret"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stderr.readline()
            url = re.search(r"http://127\.0\.0\.1:\d+/metrics", line)[0]
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=10)
            request = urllib.request.Request(url, headers={"Authorization": "Bearer s3cret"})
            with urllib.request.urlopen(request, timeout=10) as answer:
                assert b"kproxy_connections_open 0.0" in answer.read()
            assert "s3cret" not in line
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_taken_port_is_one_line_and_exit_code_1() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "kproxy", "run", "--bootstrap", "127.0.0.1:1"]
        done = subprocess.run(
            [*command, "--listen", f"127.0.0.1:{port}", "--no-record"],
            capture_output=True,
            text=True,
            timeout=30,
        )
    assert done.returncode == 1 and done.stdout == ""
    assert "port is taken" in done.stderr and done.stderr.count("\n") == 1


def test_an_interrupt_while_it_is_imported_ends_it_without_words() -> None:
    """As if Ctrl-C came while a module of the command is imported."""
    program = (
        "import runpy, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'kproxy.cli':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "runpy.run_module('kproxy', run_name='__main__')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_what_is_installed_begins_where_python_m_does() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["scripts"]["kproxy"] == "kproxy.__main__:main"


@pytest.mark.parametrize(("option", "code"), [("--all", 1), ("--al", 2)])
def test_an_error_that_nobody_reads_is_an_error_all_the_same(
    option: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # as users have it
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kproxy", "show", option, str(tmp_path / "nosuch.mcap")]
    try:
        assert subprocess.run(command, stdout=subprocess.DEVNULL, stderr=writer).returncode == code
    finally:
        os.close(writer)
