"""What varies between runs is learned: kept in the recording, shown, edited, and compared by its
kind; what may be data is asked about."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from kproxy.cli import main
from kproxy.look.lines import meaning
from kproxy.look.lines.meaning import learned_in
from kproxy.replay.learned import Learned, LearnedPart
from kproxy.testing import learn, record, replay
from kproxy.testing.sessions import Mismatch
from tests.bed import needs
from tests.testing.conftest import Do
from tests.testing.plugin import run

pytest_plugins = ["pytester"]
APP = """
import json, os, sys, time, uuid
from confluent_kafka import Producer

def work(bootstrap, topic, same="", total=11.5, note="x"):
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(3):
        made = {"n": number, "id": same or str(uuid.uuid4()), "at": time.time(), "total": total}
        headers = {"trace": made["id"], "note": note}
        producer.produce(topic, key=str(uuid.uuid4()), value=json.dumps(made), headers=headers)
    assert producer.flush(10) == 0
"""
COMMAND = f"{APP}\nwork(os.environ['KAFKA_BOOTSTRAP_SERVERS'], *sys.argv[1:])"
exec(compile(APP, "app", "exec"))  # the app of commands, here, too
work = globals()["work"]


def learned(path: Path) -> list[str]:
    return sorted(learned_in(path).words)


def words(topic: str) -> list[str]:
    return [
        f"{topic}/{each}"
        for each in ("header:trace:uuid", "json:at:time", "json:id:uuid", "key:uuid")
    ]


def test_a_command_is_recorded_twice_and_what_varies_is_of_its_kind(
    do: Do, mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    path = tmp_path / "app.mcap"
    app = ["--", sys.executable, "-c", COMMAND, prefix]
    how = ["--cassette", "once", "--learn", "2", "--broker", mock_brokers]
    failed = do("replay", path, *how, *app[:3], f"{COMMAND}; sys.exit(7)", prefix)
    assert failed.returncode == 7
    kept = path.with_suffix(".failed.mcap")
    assert failed.stderr == f"kproxy: the command failed; what it did: kproxy show {kept}\n"
    done = do("replay", path, *how, *app)
    assert done.returncode == 0, done.stderr
    assert f"learned what varies: 4 parts (kproxy learned {path})" in done.stderr
    assert learned(path) == words(prefix)
    assert [line for line in meaning.lines([path]) if "varies" in line]
    assert do("replay", path, *app).returncode == 0
    red = do("replay", path, *app, "always-the-same")
    assert red.returncode == 3
    assert 'has id "always-the-same", recorded a UUID' in red.stderr
    shown = do("learned", path)
    assert shown.stdout.splitlines()[-1].startswith(f"{prefix}/header:trace:uuid  # ")
    # Edited: the id may be anything, and the trace is to be the same again.
    text = tmp_path / "varies.txt"
    kept = [line for line in shown.stdout.splitlines() if "json:id" not in line]
    text.write_text("\n".join([*kept, f"{prefix}/json:id"]))
    assert do("learned", path, "--set", text).returncode == 0
    assert f"{prefix}/json:id" in learned(path)
    text.write_text("keys\n")
    wrong = do("learned", path, "--set", text)
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "line 1: 'keys' cannot be ignored" in wrong.stderr


def test_what_may_be_data_is_asked_about_and_compared(
    mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    paths = [tmp_path / "one.mcap", tmp_path / "other.mcap"]
    for path, total, note in zip(paths, (11.5, 12.0), ("new", "paid"), strict=True):
        with record(mock_brokers, path) as broker:
            work(broker.bootstrap, prefix, "", total, note)
    lines = learn(paths[0], paths[1:])
    assert (
        f"{prefix}/json:total varies (11.5, 12.0): data? if not, say so: kproxy learned" in lines[1]
    )
    assert f"{prefix}/header:note varies (new, paid)" in "\n".join(lines[1:])
    assert learned(paths[0]) == words(prefix)
    with replay(paths[0]) as broker:
        work(broker.bootstrap, prefix, "", 11.5, "new")
    with (
        pytest.raises(Mismatch, match=r"has total 12.0, recorded 11.5"),
        replay(paths[0]) as broker,
    ):
        work(broker.bootstrap, prefix, "", 12.0, "new")


def test_where_the_number_of_records_varies_that_is_asked_about(
    do: Do, mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    """As a worker of Kafka Connect tells of its status."""

    def tell(bootstrap: str, *states: str) -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        for state in states:
            producer.produce(prefix, state, "worker")
        assert producer.flush(10) == 0

    paths = [tmp_path / "one.mcap", tmp_path / "other.mcap"]
    for path, states in zip(paths, (["up"], ["up", "up"]), strict=True):
        with record(mock_brokers, path) as broker:
            tell(broker.bootstrap, *states)
    (line,) = learn(paths[0], [paths[1]])
    assert line.startswith(f"{prefix}/records varies (1, 2): data? if not, say so: ")
    with pytest.raises(Mismatch, match="once more"), replay(paths[0]) as broker:
        tell(broker.bootstrap, "up", "up")
    shown = do("learned", paths[0]).stdout
    text = tmp_path / "varies.txt"
    text.write_text(shown.removeprefix("? "))
    do("learned", paths[0], "--set", text)
    for states in [], ["up", "up", "down"]:
        with replay(paths[0], compare="all") as broker:
            tell(broker.bootstrap, *states)
    assert do("diff", *paths).returncode == 0


def test_tests_are_recorded_twice(
    pytester: pytest.Pytester, mock_brokers: str, prefix: str
) -> None:
    pytester.makepyfile(
        test_app=f"""{APP}
import pytest
runs = []

@pytest.fixture(scope="module")
def once():
    runs.append("module")

def test_one(kproxy, once):
    runs.append(kproxy.mode)
    work(kproxy.bootstrap, {prefix!r})
    assert len(kproxy.produced()) == 3
    if kproxy.mode == "record":
        assert len(runs) in (2, 3) and runs.count("module") == 1

def test_without():
    pass
"""
    )
    options = "--kproxy-mode=once", "--kproxy-broker", mock_brokers
    found = run(pytester, *options, "--kproxy-learn")
    found.assert_outcomes(passed=2)
    path = pytester.path / "recordings" / "test_app" / "test_one.mcap"
    assert learned(path) == words(prefix)
    found.stdout.fnmatch_lines(
        ["kproxy: learned what varies: 4 parts (kproxy learned *test_one.mcap)"]
    )
    for _ in "12":
        run(pytester).assert_outcomes(passed=2)


def test_where_nothing_was_learned_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["learned", str(needs.REPOSITORY / "recordings" / "demo.mcap")]) == 0
    assert capsys.readouterr().err.startswith("kproxy learned: nothing was learned: ")


def test_the_list_is_read_as_it_is_written() -> None:
    parts = ("orders/json:id:uuid", "a1"), ("consumed", ""), ("header:a#b:any", "x  # y")
    given = Learned(tuple(LearnedPart(*each) for each in parts))
    given = Learned((*given.parts, LearnedPart("orders/json:n", "1, 2", is_asked=True)))
    text = "# a comment\n\n" + "\n".join(given.lines())
    assert Learned().edited(text).words == given.words
    assert given.edited(text) == given
    assert given.edited(text.replace("? ", "")).words == [*given.words, "orders/json:n"]


def test_a_difference_of_recordings_leaves_out_what_varies(
    do: Do, mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{number}.mcap" for number in range(3)]
    for path in paths:
        with record(mock_brokers, path) as broker:
            work(broker.bootstrap, prefix)
    assert do("diff", paths[0], paths[2], "--compare", "records").stdout
    learn(paths[0], [paths[1]])
    done = do("diff", paths[0], paths[2], "--compare", "records")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout
