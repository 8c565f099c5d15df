"""The same behaviour, recorded twice, shows no difference: in `git diff`, with every client.

The topics and groups are made anew between the two recordings, and nothing else is.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, admin

from kproxy.look.lines import meaning
from kproxy.testing import record
from tests.bed import needs, programs
from tests.bed.proxies import KPROXY
from tests.versions import some

pytestmark = pytest.mark.broker

CLIENTS = [
    pytest.param("confluent-kafka"),
    pytest.param("aiokafka"),
    pytest.param("kafka-python"),
    pytest.param("java-4.4.0", marks=pytest.mark.java),
    pytest.param("kafkajs", marks=pytest.mark.node),
]
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"


def git(folder: Path, *words: str) -> str:
    """What git prints in a folder."""
    who = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    done = subprocess.run(["git", *who, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def differences(folder: Path, then: Path, now: Path) -> str:
    """What `git diff` shows where a committed recording is replaced."""
    folder.mkdir()
    git(folder, "init", "-q")
    done = subprocess.run([KPROXY, "git-setup"], cwd=folder, text=True)
    assert done.returncode == 0
    shutil.copy(then, folder / "test.mcap")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Record")
    shutil.copy(now, folder / "test.mcap")
    assert "test.mcap" in git(folder, "status", "--porcelain"), "the bytes are others"
    return git(folder, "diff")


def wait(futures: dict[str, Any]) -> None:
    """Wait for what an admin client does; that there was nothing to delete is fine."""
    for each in futures.values():
        try:
            each.result(30)
        except KafkaException as error:
            if "UNKNOWN" not in error.args[0].name() and "NOT_FOUND" not in error.args[0].name():
                raise


def make_anew(bootstrap: str, prefix: str) -> None:
    """Delete what an earlier recording has left, and make the topics."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    there = [name for name in client.list_topics(timeout=10).topics if name.startswith(prefix)]
    if there:
        wait(client.delete_topics(there))
    found = client.list_consumer_groups().result(30).valid
    groups = [each.group_id for each in found if each.group_id.startswith(prefix)]
    if groups:
        wait(client.delete_consumer_groups(groups))
    made = [admin.NewTopic(f"{prefix}-records", 2, 1), admin.NewTopic(f"{prefix}-ledger", 1, 1)]
    wait(client.create_topics(made))


@pytest.mark.parametrize("name", some(CLIENTS, CLIENTS[:1]))
def test_a_client_that_does_the_same_again(
    name: str, real_broker: str, prefix: str, tmp_path: Path
) -> None:
    client = programs.named(name)
    steps = tuple(each for each in client.steps["4.3.1"] if each not in ("create", "admin"))

    then, now = tmp_path / "then.mcap", tmp_path / "now.mcap"
    for path in (then, now):
        make_anew(real_broker, prefix)
        with record(real_broker, path) as broker:
            programs.work(client, broker.bootstrap, prefix, steps)
    lines = list(meaning.lines([then]))
    assert f"topic {prefix}-records, 2 partitions" in lines
    assert sum("no key" in line for line in lines) == 5
    assert differences(tmp_path / "git", then, now) == ""


def test_what_is_done_otherwise_shows(mock_brokers: str, prefix: str, tmp_path: Path) -> None:
    from confluent_kafka import Producer

    paths = [tmp_path / "then.mcap", tmp_path / "now.mcap"]
    for path, state in zip(paths, ("new", "paid"), strict=True):
        with record(mock_brokers, path) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "shop"})
            for number in range(3):
                value = f"{number} {state if number == 1 else 'new'}"
                producer.produce(prefix, key="k", value=value, headers={"trace": "a"})
            assert producer.flush(10) == 0
    shown = differences(tmp_path / "git", *paths)
    changed = [line for line in shown.splitlines() if line[0] in "+-" and line[1] == " "]
    assert [line.split("] ")[1] for line in changed] == [
        "k → 1 new  (trace=a)",
        "k → 1 paid  (trace=a)",
    ]


def test_what_is_to_be_ignored_the_recording_says(
    mock_brokers: str, prefix: str, tmp_path: Path
) -> None:
    from confluent_kafka import Producer

    paths = [tmp_path / "then.mcap", tmp_path / "now.mcap"]
    for number, path in enumerate(paths):
        with record(mock_brokers, path, ignore=["json:id", "header:trace"]) as broker:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            headers = {"trace": str(number)}
            producer.produce(prefix, key="k", value=f'{{"id": {number}}}', headers=headers)
            assert producer.flush(10) == 0
    assert differences(tmp_path / "git", *paths) == ""


def test_a_file_that_is_no_recording_does_not_end_the_diff(tmp_path: Path) -> None:
    (tmp_path / "then.mcap").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    shown = differences(tmp_path / "git", tmp_path / "then.mcap", DEMO)
    assert "-cannot be read: " in shown and "+topic orders, 4 partitions" in shown


def test_the_setup_replaces_what_turns_the_difference_off(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    attributes = tmp_path / ".gitattributes"
    attributes.write_text("*.mcap binary\n*.bin binary\n")
    (tmp_path / ".gitignore").write_text("*.pyc")
    for said in ("replaced `*.mcap binary`", "has it"):
        command = [KPROXY, "git-setup"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and said in done.stdout
        assert attributes.read_text() == "*.bin binary\n*.mcap -text diff=kproxy\n"
        assert (tmp_path / ".gitignore").read_text() == "*.pyc\n*.failed.mcap\n"
    for name, state in (("a.failed.mcap", ""), ("a.mcap", "?? a.mcap\n")):
        (tmp_path / name).touch()
        assert git(tmp_path, "status", "--porcelain", name) == state


def test_the_setup_outside_of_a_repository_is_one_line(tmp_path: Path) -> None:
    command = [KPROXY, "git-setup"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "not a git repository" in done.stderr
