"""`kproxy report`: a page in seconds, which names what to look at and how."""

from __future__ import annotations

import html
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kproxy import cli
from kproxy.look.report.findings import findings
from kproxy.look.report.light import folded, light_data
from kproxy.look.report.page import page
from kproxy.look.why.finding import Finding, Harm, Subject
from kproxy.wire.protocol import messages as M
from tests.bed import needs
from tests.look.report.making import api, gathered, plain, row_of
from tests.look.why.traffic import Traffic

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"


def report(*arguments: object) -> int:
    """Run `kproxy report`."""
    return cli.main(["report", *map(str, arguments)])


def test_the_page_stands_alone_and_is_for_its_owner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert report(DEMO, "--out", out) == 0
    assert capsys.readouterr().out == f"34 exchanges: {out}\n"
    made = out.read_text()
    assert not re.search(r"<script|<link|src=|href=|url\(|https?://", made)
    assert "prefers-color-scheme: dark" in made and made.count("<svg") >= 4
    assert "Made by <code>kproxy report</code>" in made
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [out], "nothing half is left"


def test_it_needs_neither_spark_nor_arrow(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules |= dict.fromkeys(('pyarrow', 'numpy', 'pyspark'))\n"
        "from kproxy import cli; sys.exit(cli.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(DEMO), "--out", str(tmp_path / "r.html")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_every_command_of_a_finding_finds_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "some recordings"
    folder.mkdir()
    for path in (DEMO, *FORMATS.glob("*.mcap")):
        (folder / path.name).write_bytes(path.read_bytes())
    assert report("some recordings", "--out", "report.html") == 0
    capsys.readouterr()
    made = Path("report.html").read_text()
    items = re.findall(r"<li class=.(?:bad|warn|info).>(.*?)</li>", made)
    commands = [html.unescape(each) for each in re.findall(r"<code>(kproxy .*?)</code></li>", made)]
    assert len(items) - len(commands) <= 1 and len(commands) >= 5
    for command in commands:
        program, *arguments = shlex.split(command)
        assert program == "kproxy" and cli.main(arguments) == 0, command
        assert capsys.readouterr().out.strip(), command
    (unanswered,) = (each for each in commands if "is:unanswered" in each)
    assert unanswered == "kproxy show 'some recordings' 'is:unanswered not is:undelivered'"


def test_an_older_report_is_replaced_and_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "report.html"
    assert report(DEMO, "--out", out) == 0 and report(DEMO, "--out", out) == 0
    before = out.read_bytes()
    assert report(tmp_path / "missing.mcap", "--out", out) == 1
    assert out.read_bytes() == before, "a report that fails leaves the older one"
    other = tmp_path / "diary.html"
    other.write_text("<h1>dear diary</h1>")
    capsys.readouterr()
    assert report(DEMO, "--out", other) == 1
    assert capsys.readouterr().err == (
        f"kproxy report: {other} is there already, and no report of kproxy: name another file\n"
    )
    assert other.read_text() == "<h1>dear diary</h1>"
    for out, words in (
        (tmp_path, "is a folder: name a file in it"),
        (tmp_path / "no" / "report.html", "there is no folder"),
        (DEMO, "no report of kproxy"),
    ):
        assert report(DEMO, "--out", out) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line


def test_routine_errors_are_told_apart(tmp_path: Path) -> None:
    traffic = Traffic()
    J = M.JoinGroupRequest
    for at in range(3):
        asked = J(group_id="g", protocol_type="consumer")
        traffic.add(at, "JoinGroup", 5, asked, M.JoinGroupResponse(error_code=79))
    path = traffic.recorded(tmp_path)
    data = light_data([path])
    (errors,) = (each for each in findings(data) if each.kind == "errors")
    assert errors.command([path]) == f"kproxy show {path} is:routine"
    assert errors.text.startswith("3 responses (100 %) had errors that are part of normal")
    assert errors.evidence[0].startswith("MEMBER_ID_REQUIRED of JoinGroup")
    assert "<b>0</b><span>with errors</span>" in page(data, [])
    assert [each["errors"] for each in data.groups] == [0]
    traffic.add(9, "Heartbeat", 3, M.HeartbeatRequest(), M.HeartbeatResponse(error_code=25))
    data = light_data([traffic.recorded(tmp_path)])
    (errors,) = (each for each in findings(data) if each.kind == "errors")
    assert errors.text.startswith(
        "1 response (25 %) had errors, besides 3 with routine ones:"
        " UNKNOWN_MEMBER_ID of Heartbeat, 1 time"
    )
    shown = page(data, [])
    assert "<b>1</b><span>with errors</span>" in shown
    apis = plain(shown).partition("<h2>APIs</h2>")[2].partition("</section>")[0]
    failed = [row_of(apis, name)[1] for name in ("JoinGroup", "Heartbeat")]
    assert failed == ["0", "1"], "the table counts as the tile does"


def test_a_request_that_is_open_when_the_recording_ends_is_not_lost(tmp_path: Path) -> None:
    cut = FORMATS / "cut.mcap"
    made = tmp_path / "cut.html"
    assert report(cut, "--out", made) == 0
    assert "<b>0</b><span>never answered</span>" in made.read_text()
    assert made.read_text().count("never answered") == 1
    lost = api("Produce", 9, unanswered=4, open=1, touched=1) | {
        "unanswered_number": 5, "unanswered_file": "a.mcap",
    }  # fmt: skip
    found = gathered([lost], {})
    found.totals |= {"unanswered": 4, "open": 1, "touched": 1, "undelivered": 2, "exchanges": 9}
    text = page(found, [])
    assert "2 Produce requests were never answered (first #5)" in text
    assert (
        "1 other request was never answered, touched by fault rules; 1 more had no answer yet at"
        " the end." in text
    )
    assert "2 responses came and did not reach the client, or not whole." in text
    found.totals["too_late"] = 1
    text = page(found, [])
    assert (
        "1 response came and did not reach the client, or not whole; 1 more came when its"
        " connection had ended." in text
    )


def test_commands_name_what_the_user_gave_in_place_of_many_files() -> None:
    names = {f"{name}-{part:04}.mcap": name for name in ("a", "b") for part in range(1, 8)}
    files = tuple(each for each in names if each.startswith("b"))

    def command(*shown_by: str, about: Subject | None = None, files: tuple[str, ...] = files):
        made = Finding(Harm.LATENCY, "", "", (9,), about, files=files, shown_by=shown_by)
        return " ".join(shlex.split(made.command(["rec/"], names))[1:])

    assert command(about=Subject("number", 9)) == "why rec/ number:b#9"
    assert command(about=Subject("group", "g")) == "why rec/ group:g"
    assert command("show", "--frame", "9") == "show rec/ --frame b#9"
    assert command("show", "api:Fetch") == "show rec/ api:Fetch number:b#1.."
    assert command("show", "api:Fetch", files=tuple(names)) == "show rec/ api:Fetch"
    assert command("show", "api:Fetch", files=files[:2]).count(".mcap") == 2, "only these"


def test_what_many_recordings_tell_alike_is_told_of_the_last() -> None:
    def told(file: int, topic: str, times: int) -> Finding:
        text = f"Topic {topic} is asked for {times} times (#{file})."
        return Finding(Harm.LATENCY, "k", text, (), Subject("topic", topic), files=(f"{file}",))

    few = [told(file, "a1", file) for file in range(3)]
    many = [told(file, "a2", 7 * file) for file in range(90) for _ in range(2)]
    other = told(89, "a3", 7)
    found = folded([*few, *many, other])
    assert found[:3] == few and found[-1] == other
    assert [each.files[0] for each in found[3:-1]] == ["87", "87", "88", "88", "89", "89"]
    assert [each.evidence for each in found if each.evidence] == [
        ("Likewise in 87 earlier recordings.",)
    ]
