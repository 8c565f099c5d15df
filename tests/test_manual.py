"""The README and the manual are true: commands are run, programs executed, names looked up."""

from __future__ import annotations

import io
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kproxy.cli import main
from kproxy.commands.parser import COMMANDS, command_parser
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import FIELDS
from kproxy.exchange.filter.keys import KEYS, QUALITIES
from kproxy.look.lines import manual
from kproxy.look.lines.jsonl import end_json
from kproxy.net.control_api import ControlApi
from kproxy.proxy.faults import Rules, rule_from_flag, rules_from_toml
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.rule import KEYS as RULE_KEYS
from kproxy.recording import pieces
from kproxy.recording.layout import schema_records
from tests.bed import needs
from tests.bed.pages import MANUAL, MANUAL_PAGES, PAGES, README, Page, kproxy_arguments
from tests.bed.promises import options, promised

BY_NAME = {page.name: page for page in PAGES}
OTHER_PROGRAMS = {"--master", "--packages", "--py-files", "--test"}
"""Options of spark-submit and node that pages name."""
RUN_ELSEWHERE = ("from kproxy.spark", "def test_")
"""Programs that tests/spark and tests/testing run."""

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def lines_of(pages: list[Page], having: str) -> list[Any]:
    """The commands of pages in which a text stands, as parameters of a test."""
    return [
        pytest.param(line, id=f"{page.name}: {line[:60]}")
        for page in pages
        for line in page.shell_lines()
        if having in line
    ]


def python_blocks() -> list[Any]:
    """The programs of pages that are run here, as parameters of a test."""
    return [
        pytest.param(code, id=f"{page.name}-{number}")
        for page in PAGES
        for number, code in enumerate(page.blocks("python"))
        if not any(word in code for word in RUN_ELSEWHERE)
    ]


# ---- the README


def test_the_readme_is_a_tour_of_three_minutes() -> None:
    assert len(README.text.splitlines()) <= 197
    prose = [line for line in README.prose.splitlines() if not line.startswith(("|", "  <"))]
    assert [line for line in prose if len(line) > 101] == []


def test_two_commands_do_all_the_set_up() -> None:
    demo, tests = (line for line in README.shell_lines() if line.startswith("python3 -m venv"))
    assert demo.endswith(".venv/bin/kproxy demo")
    assert tests.endswith(".venv/bin/pytest")


def test_ci_runs_the_test_command_character_for_character() -> None:
    command = next(line for line in README.shell_lines() if line.endswith(".venv/bin/pytest"))
    ci = (needs.REPOSITORY / ".ci" / "run").read_text().splitlines()
    assert ci[-1] == command
    assert "export KPROXY_REQUIRE_ALL=1" in ci


def test_the_readme_lists_all_commands_and_all_pages() -> None:
    rows = re.findall(r"^\| `kproxy ([\w-]+)` \| (.*?) \| (.*?) \|$", README.text, re.MULTILINE)
    assert {name: about for name, about, _ in rows} == {
        name: command.about for name, command in COMMANDS.items()
    }
    for name, _, links in rows:
        topic = COMMANDS[name].topic
        assert not topic or f"(kproxy/manual/{topic}.md)" in links, name
    assert all(f"kproxy/manual/{page.path.name}" in README.text for page in MANUAL_PAGES)


def test_the_readme_and_the_page_about_testing_show_the_same_test() -> None:
    testing = BY_NAME["testing"]
    (shown,) = (code for code in README.blocks("python") if "def test_" in code)
    assert shown in testing.blocks("python")
    typed = [line for line in README.shell_lines() if line.startswith("pytest")]
    assert typed and set(typed) <= set(testing.shell_lines())


# ---- commands


@every_page
def test_the_commands_of_a_page_can_be_typed(page: Page) -> None:
    for line in page.shell_lines():
        if typed := kproxy_arguments(line):
            command_parser(typed[0]).parse_intermixed_args(typed[1:])


@pytest.mark.parametrize("line", lines_of(PAGES, "recordings/demo"))
def test_what_pages_do_with_the_recording_works(
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "recordings").symlink_to(needs.REPOSITORY / "recordings")
    typed = kproxy_arguments(line)
    assert typed is not None
    command = [sys.executable, "-m", "kproxy", *typed]
    if typed[0] == "web":  # serves until it is stopped
        with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as served:
            assert served.stdout is not None and served.stdout.readline().startswith("http://")
            served.terminate()
        assert served.returncode == 0
        return
    monkeypatch.chdir(tmp_path)
    code, *printed = said(capsys, *typed)
    found, wrong = printed[:: -1 if typed[0] == "scan" else 1]
    assert found and (code, wrong) == (0, "")


def test_the_recipes_show_what_the_page_says(
    capsys: pytest.CaptureFixture[str], monkeypatch
) -> None:
    monkeypatch.chdir(needs.REPOSITORY)
    pattern = r"one line each:\n\n```sh\n(.*?)```\n\n```\n(.*?)```"
    found = re.search(pattern, BY_NAME["recordings"].text, re.DOTALL)
    assert found is not None
    commands, shown = (block.splitlines() for block in found.groups())
    for command in commands:
        if command.startswith("#"):
            continue
        main(shlex.split(command)[1:])
        lines = capsys.readouterr().out.splitlines()
        assert shown[0] == lines[0]
        while shown and shown[0] in lines:
            del shown[0]
    assert shown == []


@pytest.mark.parametrize("line", lines_of([BY_NAME["faults"]], "demo --fault"))
def test_the_experiments_show_what_pages_say(line: str, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka")
    command = [sys.executable, "-m", *shlex.split(line), "--expect-faults"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    name = line.partition("name=")[2].split()[0]
    for page in (README, BY_NAME["faults"]):
        for words in re.findall(rf"^.*, (?:dropped by )?fault {name}$", page.text, re.MULTILINE):
            (api,), error = re.findall(r"(\w+) v\d+ ", words), words.rpartition("→ ")[2]
            hit = [each for each in done.stdout.splitlines() if each.endswith(f"fault {name}")]
            assert hit and all(api in each and error.split()[0] in each for each in hit)
    if name == "cut":
        assert re.search(r"12 of 12 records, \d+ of them twice", done.stdout)


def test_the_readme_shows_an_experiment_of_the_manual() -> None:
    shown = [line for line in README.shell_lines() if "demo --fault" in line]
    assert shown and set(shown) <= set(BY_NAME["faults"].shell_lines())


# ---- programs


@pytest.mark.parametrize("code", python_blocks())
def test_programs_run(code: str, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(needs.REPOSITORY)
    names: dict[str, Any] = {}
    exec(compile(code, "page.md", "exec"), names)
    out = capsys.readouterr().out
    assert out, "it prints what it found"
    if "duckdb" in code:
        numbers = names["table"]["number"].to_list()
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), "each exchange once"
        assert "│ Fetch " in out
    elif "recording.read(" in code:
        assert "billing" in out, "the demo has slow fetches by that client"


def test_pages_have_programs_that_run() -> None:
    assert len(python_blocks()) >= 5


@every_page
def test_files_of_rules_and_of_options_can_be_loaded(page: Page, tmp_path: Path) -> None:
    for block in page.blocks("toml"):
        is_config = block.startswith("# kproxy.toml")
        assert rules_from_toml(block, alone=not is_config)
        if is_config:
            path = tmp_path / "kproxy.toml"
            path.write_text(block)
            assert main(["run", "--config", str(path), "--print-config"]) == 0


# ---- names


@pytest.fixture(scope="module")
def known_options() -> set[str]:
    """All options of kproxy, and of its pytest plugin."""
    plugin = (needs.REPOSITORY / "kproxy" / "pytest_plugin.py").read_text()
    found = {"--version", *re.findall(r'"(--kproxy-[a-z-]+)"', plugin)}
    return found.union(*(options(name) for name in COMMANDS))


@every_page
def test_a_page_names_no_option_that_does_not_exist(page: Page, known_options: set[str]) -> None:
    assert page.options() - known_options - OTHER_PROGRAMS == set()


def test_each_option_is_named_in_the_manual(known_options: set[str]) -> None:
    named = set[str]().union(*(page.options() for page in MANUAL_PAGES))
    assert known_options - named - {"--help", "--version", "-h"} == set()


@pytest.mark.parametrize("command", [name for name in COMMANDS if COMMANDS[name].topic])
def test_each_option_is_on_the_page_of_its_command(command: str) -> None:
    """A page explains the options of its commands; those of others it names with their page."""
    page = BY_NAME[COMMANDS[command].topic]
    pages = {
        "run": ["tls", "schemas", "service"],
        "replay": ["tls", "service"],
        "send": ["tls"],
        "demo": ["faults", "run", "tls"],
    }
    pages["recover"] = ["schemas"]
    others = [BY_NAME[name] for name in pages.get(command, ())]
    assert all(f"kproxy help {other.name}" in page.text for other in others if command != "demo")
    elsewhere = {option for other in others for option in other.options()}
    assert {*options(command)} - page.options() - elsewhere - {"--help", "-h"} == set()
    assert f"kproxy {command}" in page.text


@every_page
def test_the_files_and_links_of_a_page_are_there(page: Page) -> None:
    for name in re.findall(r"`(kproxy/[\w/.]+)`", page.text):
        assert (needs.REPOSITORY / name).exists(), name
    links = re.findall(r"\]\(([^)]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.text)
    for link in filter(None, (a or b for a, b in links)):
        if not link.startswith("https://"):
            assert (page.path.parent / link).exists(), link


@every_page
def test_topics_that_a_page_refers_to_are_there(page: Page) -> None:
    named = set(re.findall(r"kproxy help ([a-z-]+(?:\.[a-z]+)?)", page.text))
    assert named <= {*manual.TOPICS, *manual.FILES, *COMMANDS}


def test_the_page_about_metrics_lists_all() -> None:
    rows = re.findall(r"^\| `(kproxy_\w+)` \|", BY_NAME["metrics"].text, re.MULTILINE)
    assert len(rows) == len(set(rows))
    names = {re.sub("_(total|info)$", "", row) for row in rows}
    assert names == set(promised()["metrics"])


def test_the_pictures_of_pages_are_small() -> None:
    shown = re.findall(r'(?:src|srcset)="([^"]+)"', README.text)
    assert len(shown) == 2, "light and dark"
    for name in shown:
        data = (needs.REPOSITORY / name).read_bytes()
        assert data.startswith(b"\x89PNG") and len(data) < 150_000


def test_the_page_about_faults_has_all_keys_and_actions() -> None:
    text = BY_NAME["faults"].text
    assert [name for name in RULE_KEYS if f"| `{name}` |" not in text] == []
    assert [name for name in ACTIONS if f"| `{name}=" not in text] == []


def test_the_page_about_the_format_has_all_fields() -> None:
    fields = re.findall(r"(\w+) ([iu]\d\d)\b", schema_records().decode("ascii", "replace"))
    text = BY_NAME["format"].text
    assert len(fields) == 8
    assert [each for each in fields if "`{}` {}".format(*each) not in text] == []
    assert [each for each in pieces.EXTRAS if f"`{each}`" not in text] == []


def test_the_page_about_recordings_has_the_keys_of_the_end_of_a_connection() -> None:
    keys = {*end_json(ConnectionEnd(1, 0, None, None, (), ""))} - {"event"}
    assert [key for key in keys if f"`{key}`" not in BY_NAME["recordings"].text] == []


def test_the_actions_on_the_page_can_be_typed() -> None:
    typed = re.findall(r"^\| `(\w+=.*?)` \|", BY_NAME["faults"].text, re.MULTILINE)
    rules = Rules()
    for words in typed:
        action = words.replace("NAME", "NOT_LEADER_OR_FOLLOWER")
        rules.add(rule_from_flag(f"name={len(rules.rules)} {action}"), 0)
    assert len(rules.rules) == len(ACTIONS)


def test_the_page_about_running_has_all_routes() -> None:
    routes = ControlApi(None).routes()  # type: ignore[arg-type]  # nothing is asked of it
    asked = [f"{method} {path}" for path in routes for method in routes[path]]
    plain = [each.replace("{name}", "NAME").replace("{number}", "N") for each in asked]
    text = BY_NAME["run"].text
    assert [each for each in (*plain, "GET /metrics") if f"| `{each}` |" not in text] == []


# ---- kproxy help


def said(capsys: pytest.CaptureFixture[str], *typed: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command."""
    try:
        code = main(typed)
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


def test_help_lists_topics_and_commands(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "help")
    assert (code, err) == (0, "")
    for name in (*manual.TOPICS, *COMMANDS):
        assert f"| {name} |" in out
    assert {page.name for page in MANUAL_PAGES} == {*manual.TOPICS} - {"fields"}


@pytest.mark.parametrize("page", MANUAL_PAGES, ids=lambda page: page.name)
def test_help_prints_a_page_as_it_is_into_a_pipe(
    page: Page, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(capsys, "help", page.name)
    assert (code, err) == (0, "")
    assert out.startswith(page.text)


def test_help_lists_fields_and_filter_keys_from_their_table(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fields, filters = said(capsys, "help", "fields")[1], said(capsys, "help", "filters")[1]
    for name, field in FIELDS.items():
        assert f"| `{name}` |" in fields and field.about in fields
    for key in KEYS:
        assert f"| `{key.name}` |" in filters and key.example in filters
    for name in QUALITIES:
        assert f"| `is:{name}` |" in filters


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in manual.TOPICS])
def test_help_of_a_command_is_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "help", command) == said(capsys, command, "--help")


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_each_command_ends_with_examples_that_can_be_typed(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, command, "--help")[1]
    examples = re.findall(r"^  (kproxy .*)$", out.partition("Examples:\n")[2], re.MULTILINE)
    assert examples
    for example in examples:
        name, *typed = kproxy_arguments(example) or []
        assert name == command
        command_parser(name).parse_intermixed_args(typed)
    topic = COMMANDS[command].topic
    assert not topic or f"Manual: kproxy help {topic}\n" in out


@pytest.mark.parametrize("command", ["show", "stats", "tail", "export", "run", "fault"])
def test_helps_name_the_one_page_about_filters(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = said(capsys, command, "--help")[1]
    assert "kproxy help filters" in re.sub(r"\s+", " ", out)
    assert "is:unanswered" not in out, "the keys stand in one place"


def test_an_unknown_topic_is_one_line_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(capsys, "help", "filter")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "'filter' (did you mean filters?)" in err


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    command = f"{sys.executable} -m kproxy help recordings | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("# Read recordings\n", "")


def on_terminal(topic: str, **environment: str) -> str:
    """What a terminal of 80 columns gets."""
    reading, writing = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", **environment}
    command = [sys.executable, "-m", "kproxy", "help", topic]
    with subprocess.Popen(command, stdout=writing, stderr=writing, env=env) as process:
        os.close(writing)
        shown = io.BytesIO()
        while True:
            try:
                data = os.read(reading, 1 << 16)
            except OSError:  # Linux: the other end is closed
                break
            if not data:
                break
            shown.write(data)
        assert process.wait(timeout=30) == 0
    os.close(reading)
    return shown.getvalue().decode().replace("\r\n", "\n")


@pytest.mark.parametrize("topic", manual.TOPICS)
def test_a_page_fits_a_terminal(topic: str) -> None:
    lines = [*manual.rendered(manual.page(topic), 80)]
    assert [line for line in lines if len(line) > 80 and not line.startswith("    ")] == []
    assert not any(line.startswith(("#", "|", "```", "<")) for line in lines)


def test_code_in_the_manual_fits_a_terminal() -> None:
    assert [
        line
        for page in MANUAL_PAGES
        for language in ("sh", "python", "toml")
        for block in page.blocks(language)
        for line in block.splitlines()
        if len(line) > 76
    ] == []


def test_a_terminal_gets_bold_headings_and_aligned_tables() -> None:
    shown = on_terminal("run", NO_COLOR="")
    assert shown.startswith("\x1b[1mRun the proxy\x1b[0m\n")
    plain = re.sub(r"\x1b\[\d*m", "", shown)
    begins = [line.index("where clients") for line in plain.splitlines() if "--listen HOST" in line]
    (header,) = {line.index("meaning") for line in plain.splitlines() if line.startswith("option  ")
                 and line.index("meaning") in begins}  # fmt: skip
    assert begins == [header]
    assert "\x1b" not in on_terminal("run", NO_COLOR="1")


def test_pages_of_the_manual_are_all_tracked_by_their_list() -> None:
    assert sorted(path.name for path in MANUAL.iterdir()) == sorted(
        [*(page.path.name for page in MANUAL_PAGES), *manual.FILES]
    )


@pytest.mark.parametrize("name", manual.FILES)
def test_files_are_printed_as_they_are(name: str, capfdbinary: Any) -> None:
    assert main(["help", name]) == 0
    assert capfdbinary.readouterr().out == (MANUAL / name).read_bytes()


# ---- where kproxy does not run


def test_windows_gets_one_line() -> None:
    code = (
        "import sys\n"
        "sys.platform = 'win32'\n"
        "for name in ('fcntl', 'grp', 'pwd', 'resource', 'termios'):\n"
        "    sys.modules[name] = None\n"
        "import kproxy.cli\n"
        "sys.exit(kproxy.cli.main(['run', '--bootstrap', 'a:1']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "Windows is not supported" in done.stderr
