"""Recordings are made anew by what made them: shown beside the old ones, replaced if somebody says
so, and old ones are told."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import attrs
import pytest

from kproxy import cli, recording
from kproxy.look.lines.meaning import learned_in
from kproxy.testing import files, renewing
from tests.bed.proxies import KPROXY
from tests.testing.plugin import record, run

pytest_plugins = ["pytester"]
APP = """
import json, os, sys, uuid
from pathlib import Path
from confluent_kafka import Producer

def work(bootstrap, topic):
    producer = Producer({"bootstrap.servers": bootstrap})
    made = {"id": str(uuid.uuid4()), "total": Path("total").read_text()}
    producer.produce(topic, key="k", value=json.dumps(made))
    assert producer.flush(10) == 0
"""
COMMAND = (
    f"{APP}\nwork(os.environ['KAFKA_BOOTSTRAP_SERVERS'], sys.argv[1])"
    "\nsys.exit(Path('total').read_text() == 'broken')"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an app's input, where commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "total").write_text("11.5")
    return tmp_path


def kproxy(capfd: pytest.CaptureFixture[str], *options: object) -> tuple[int, str, str]:
    """Run kproxy without a terminal: the exit code, stdout, stderr."""
    code = cli.main([*map(str, options)])
    return code, *capfd.readouterr()


def on_a_terminal(answers: str, *options: object) -> str:
    """Run kproxy on a terminal where these are typed; return what it shows."""
    ours, its = pty.openpty()
    os.write(ours, answers.encode())
    with subprocess.Popen([KPROXY, *map(str, options)], stdin=its, stdout=its, stderr=its):
        os.close(its)
        shown = b""
        try:
            while some := os.read(ours, 4096):
                shown += some
        except OSError:  # all that had it have ended
            pass
    os.close(ours)
    return shown.decode().replace("\r", "")


def value(path: Path) -> str:
    (record,) = [each for one in recording.read(path) for each in one.records]
    return str(json.loads(record.value or b"")["total"])


def test_a_command_is_recorded_again_and_nothing_is_replaced_unasked(
    mock_brokers: str, prefix: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = project / "recordings" / "app.mcap"
    path.parent.mkdir()
    app = ["--", sys.executable, "-c", COMMAND, prefix]
    broker = ["--broker", mock_brokers]
    how = ["--cassette=once", "--learn", 2, *broker, "--ignore-header", "trace", "--user", "a:b"]
    code, _, errors = kproxy(capfd, "replay", path, *how, *app)
    assert code == 0, errors
    varies = learned_in(path)
    assert varies.words == [f"{prefix}/json:id:uuid"]
    made = renewing.maker(path)
    assert made is not None
    assert made["from"] == ".."
    assert made["options"] == ["--ignore-header", "trace"]
    before = path.read_bytes()
    (project / "total").write_text("12.0")
    code, shown, errors = kproxy(capfd, "renew", "recordings", *broker)
    assert code == 0, errors
    lines = shown.splitlines()
    assert lines[0] == "recordings/app.mcap, recorded again, differs (+):"
    assert any("11.5" in each and each.lstrip()[0] == "-" for each in lines), lines
    assert any("12.0" in each and each.lstrip()[0] == "+" for each in lines), lines
    assert lines[-1] == "there is no terminal to ask: --yes replaces all"
    assert path.read_bytes() == before
    (project / "total").write_text("broken")
    code, _, errors = kproxy(capfd, "renew", "recordings", *broker, "--yes")
    assert code == 1
    assert "its command failed, and it stays as it was" in errors
    assert path.read_bytes() == before
    _, shown, _ = kproxy(capfd, "renew", path, *broker, "--stale-after", "1h")
    assert shown == "no recording is that old\n"
    (project / "total").write_text("12.0")
    assert kproxy(capfd, "renew", path, *broker, "--yes")[0] == 0
    assert [value(path), *path.parent.iterdir()] == ["12.0", path]
    assert learned_in(path) == varies
    assert kproxy(capfd, "replay", path, *app)[0] == 0


def test_a_credential_of_a_command_is_not_kept(
    mock_brokers: str, prefix: str, project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    app = [sys.executable, "-c", COMMAND, prefix, "--password", "hunter22", "api_key=qwert17y"]
    how = "--cassette=once", "--broker", mock_brokers
    code, _, errors = kproxy(capfd, "replay", "app.mcap", *how, "--", *app)
    assert code == 0, errors
    assert b"hunter22" not in (data := Path("app.mcap").read_bytes())
    assert b"qwert17y" not in data
    code, _, errors = kproxy(capfd, "renew", "app.mcap", "--broker", mock_brokers)
    assert (code, errors.count("\n")) == (1, 1)
    assert "a credential of its command is not kept: kproxy replay app.mcap" in errors
    assert errors.endswith("--password '…' 'api_key=…'\n")


def test_a_test_is_recorded_again_and_the_terminal_is_asked(
    pytester: pytest.Pytester, mock_brokers: str, prefix: str
) -> None:
    names = "one", "other"
    source = "".join(
        f"def test_{name}(kproxy):\n    work(kproxy.bootstrap, '{prefix}{name}')\n"
        for name in names
    )
    pytester.makepyfile(test_app=f"{APP}\n{source}")
    pytester.makeini("[pytest]\n")
    total = pytester.path / "total"
    total.write_text("11.5")
    record(pytester, mock_brokers).assert_outcomes(passed=2)
    paths = [pytester.path / "recordings" / "test_app" / f"test_{name}.mcap" for name in names]
    total.write_text("12.0")
    shown = on_a_terminal("y\nn\n", "renew", "recordings", "--broker", mock_brokers)
    assert "test_other.mcap stays as it was" in shown, shown
    assert [value(each) for each in paths] == ["12.0", "11.5"]
    silent = record(pytester, mock_brokers, "renew")
    silent.stdout.fnmatch_lines(["kproxy: there is no terminal to ask: --kproxy-yes replaces all"])
    assert value(paths[1]) == "11.5"
    options = "--kproxy-mode=renew", "--kproxy-broker", mock_brokers, "--kproxy-yes", "-n2"
    run(pytester, *options).assert_outcomes(passed=2)
    assert [value(each) for each in paths] == ["12.0", "12.0"]
    assert sorted(paths[0].parent.iterdir()) == paths


def test_old_recordings_are_told_and_do_not_fail(
    pytester: pytest.Pytester, mock_brokers: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pytester.path / "total").write_text("11.5")
    source = (
        f"{APP}\n@pytest.mark.kproxy(ignore='json:id')\n@pytest.mark.parametrize('n', 'ab')\n"
        f"def test_app(kproxy, n):\n    work(kproxy.bootstrap, {prefix!r})\n"
    )
    pytester.makepyfile(f"import pytest\n{source}")
    options = "--kproxy-stale-after=90d", "-Werror"
    broker = "--kproxy-broker", mock_brokers
    run(pytester, "--kproxy-mode=once", *broker).assert_outcomes(passed=2)
    found = run(pytester, *options)
    found.assert_outcomes(passed=2)
    assert "record again" not in found.stdout.str()
    later, info = 120 * 86400, renewing.info
    monkeypatch.setattr(
        renewing,
        "info",
        lambda path: attrs.evolve(info(path), start_ns=info(path).start_ns - later * 10**9),
    )
    found = run(pytester, *options)
    found.assert_outcomes(passed=2)
    found.stdout.fnmatch_lines(
        ["kproxy: recordings/*mcap was recorded 120 days ago, and 1 more are old; record again:*"]
    )
    path = next((pytester.path / "recordings").rglob("*.mcap"))
    assert not files.renewed_file(path).exists()
    assert time.time() - path.stat().st_mtime < 60
