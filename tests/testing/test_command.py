"""`kproxy replay … -- COMMAND` and `kproxy run … -- COMMAND`: a command as the test."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kproxy import recording
from kproxy.net.tls.credentials import ENVIRONMENT
from kproxy.testing.container import free_ports
from tests.bed import needs
from tests.testing.conftest import Do

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
APP = """\
import os, sys
from kproxy import demo
bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
demo.produce(bootstrap)
print(len(demo.consume(bootstrap)))
"""
UNMET = 3


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A recording in a folder of the test's own."""
    return Path(shutil.copy(DEMO, tmp_path / "demo.mcap"))


def terminated(*words: str | Path) -> tuple[str, int, str]:
    """Run kproxy, and end it by SIGTERM after its first line: the line, the exit code, stderr."""
    command = [sys.executable, "-m", "kproxy", *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=20)
    return first, process.returncode, told


def test_a_command_that_does_what_is_recorded_is_green(do: Do, demo: Path) -> None:
    left = demo.with_name("demo.failed.mcap")
    left.touch()
    done = do("replay", demo, "--", sys.executable, "-c", APP)
    assert (done.returncode, done.stdout) == (0, "12\n"), done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kproxy: checked: records; not checked: order, commits")
    assert not left.exists(), "what an earlier run did is of no use now"


READS = """\
import os
from confluent_kafka import Consumer, TopicPartition
from kproxy import demo
bootstrap = os.environ["KAFKA_BOOTSTRAP_SERVERS"]
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test"})
places = [TopicPartition("orders", index) for index in range(4)]
print(sum(consumer.get_watermark_offsets(place)[1] for place in places))
demo.produce(bootstrap)
print(sum(consumer.get_watermark_offsets(place)[1] for place in places))
"""
"""A test that looks how many records are there, before its app has produced and afterwards."""


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ((), "0\n12\n"),
        (("--expect", "none"), "12\n12\n"),
    ],
)
def test_records_that_are_demanded_are_there_once_they_are_produced_again(
    do: Do, demo: Path, options: tuple[str, ...], read: str
) -> None:
    done = do("replay", demo, *options, "--", sys.executable, "-c", READS)
    assert done.stdout == read, done.stderr


def test_a_command_is_given_the_place_that_is_wanted(do: Do, demo: Path) -> None:
    (port,) = free_ports(1)
    place = ("--listen", f"127.0.0.1:{port}", "--advertise", "localhost")
    done = do("replay", demo, *place, "--", sys.executable, "-c", APP + "print(bootstrap)")
    assert (done.returncode, done.stdout) == (0, f"12\nlocalhost:{port}\n"), done.stderr
    # A client that exits may leave bytes unread: then its end is a reset.
    reset = r"kproxy: connection \d+ \(127\.0\.0\.1:\d+ → .+\) ended: reset by the peer"
    # Another program may have taken one of the ports behind it.
    taken = rf"kproxy: port (?!{port}\b)\d+ is not free for node \d, it gets another .+"
    lines = done.stderr.splitlines()
    said = [line for line in lines if not re.fullmatch(f"{reset}|{taken}", line)]
    assert len(said) == 1, "no port is wanted twice"


def test_a_command_that_forgets_a_record_is_red(do: Do, demo: Path, tmp_path: Path) -> None:
    before, xml = demo.read_bytes(), tmp_path / "junit.xml"
    done = do("replay", demo, "--fail-fast", "--annotate", "--junit", xml, "--", "true")
    assert (done.returncode, done.stdout) == (UNMET, "")
    told = done.stderr.splitlines()
    failure = ElementTree.parse(xml).getroot().find("testsuite/testcase/failure")
    assert failure is not None
    assert failure.get("message", "").startswith("no broker has answered the command")
    assert "\norders: none of its 12 recorded records; the first" in (failure.text or "")
    marked = told.pop()
    assert marked.startswith(f"::error title=kproxy replay {demo}::no broker has answered")
    assert f"%0Athe client does not do what it did in {demo}%0A" in marked
    lines = told[-5:]
    assert lines[0].startswith("kproxy: orders: none of its 12 recorded records; the first:")
    assert lines[1] == f"kproxy: the client does not do what it did in {demo}"
    typed = f"kproxy replay {demo} --fail-fast --annotate --junit {xml}"
    again = f"{typed} --cassette rewrite --broker HOST:PORT -- true"
    assert lines[-1].endswith(again)
    assert "if it is only to read: --expect none" in lines[-2]
    # What it did is kept, and the command that is named shows it.
    (shown,) = (line.partition("before: kproxy ")[2] for line in lines if "before: " in line)
    assert do(*shown.split()).returncode == 0
    assert demo.read_bytes() == before


def test_a_command_that_produces_is_not_taken_for_one_that_only_reads(do: Do, demo: Path) -> None:
    app = f"from kproxy import demo\ndemo.RECORDS = 11\n{APP.rpartition('print')[0]}"
    done = do("replay", demo, "--", sys.executable, "-c", app)
    assert done.returncode == UNMET and "was never produced" in done.stderr
    assert "only to read" not in done.stderr


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--expect", "none"), 0, "not produced: orders: none of its 12 recorded records"),
        (("--compare", "order", "--expect", "none"), 0, "checked: order"),
        (("--expect", "all"), UNMET, "group billing: not repeated"),
        (("--mode", "strict"), UNMET, "of its Produce requests did not come, the first is #"),
        (("--compare", "groups"), UNMET, "groups: group billing: not repeated"),
    ],
)
def test_what_must_be_repeated_is_the_users_choice(
    do: Do, demo: Path, options: tuple[str, ...], code: int, text: str
) -> None:
    done = do("replay", demo, *options, "--", "true")
    assert done.returncode == code
    assert text in done.stderr


@pytest.mark.broker
def test_a_recording_of_nothing_is_not_kept(do: Do, mock_brokers: str, demo: Path) -> None:
    before = demo.read_bytes()
    done = do("replay", demo, "--cassette", "rewrite", "--broker", mock_brokers, "--", "true")
    assert done.returncode == UNMET
    assert "no broker has answered the command" in done.stderr
    assert demo.read_bytes() == before


def test_a_command_that_reaches_no_broker_is_told_how(do: Do, tmp_path: Path) -> None:
    empty = tmp_path / "empty.mcap"
    made = do("run", "--bootstrap", "127.0.0.1:1", "--record", empty, "--", "true")
    hint = "kproxy: no broker has answered the command: its clients connect to the address in"
    assert (made.returncode, made.stderr.count(hint)) == (0, 1)
    replayed = do("replay", empty, "--", "true")
    assert (replayed.returncode, replayed.stderr.count(hint)) == (0, 1)
    assert "the recording lacks exchanges: it is empty, and demands nothing" in replayed.stderr


def test_what_an_operator_should_look_at_is_a_warning(do: Do, demo: Path) -> None:
    script = """
import os, socket
host, port = os.environ["KAFKA_BOOTSTRAP_SERVERS"].rsplit(":", 1)
client = socket.create_connection((host, int(port)))
client.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
client.recv(1)
"""
    typed = ("replay", demo, "--log-format", "json", "--expect", "none")
    done = do(*typed, "--", sys.executable, "-c", script)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [each["level"] for each in lines if "HTTP" in each["message"]] == ["warning"]


def test_a_recording_that_hangs_up_is_not_taken_for_a_broker(do: Do, demo: Path) -> None:
    """Whose settings of TLS or SASL would be looked for."""
    script = """
import os, socket
host, port = os.environ["KAFKA_BOOTSTRAP_SERVERS"].rsplit(":", 1)
client = socket.create_connection((host, int(port)))
client.sendall(bytes.fromhex("0000000a 0012 0000 00000007 0000"))
assert client.recv(1) == b""
"""
    done = do("replay", demo, "--mode", "strict", "--", sys.executable, "-c", script)
    assert done.returncode == UNMET
    assert "it asks what was not recorded" in done.stderr
    assert "the broker hung up" not in done.stderr


@pytest.mark.parametrize("mode", ["rewrite", "verify"])
def test_what_is_no_recording_is_neither_overwritten_nor_compared(
    do: Do, mode: str, tmp_path: Path
) -> None:
    path = tmp_path / "precious.txt"
    path.write_text("mine")
    words = ("--cassette", mode, "--broker", "127.0.0.1:1", "--", "echo", "RAN")
    done = do("replay", path, *words)
    assert (done.returncode, done.stdout) == (1, ""), "the command is not even started"
    assert len(done.stderr.splitlines()) == 1
    assert path.read_text() == "mine"


def test_a_signal_after_the_command_loses_nothing(demo: Path, tmp_path: Path) -> None:
    """The command's end signals kproxy, which is then about to keep what it did."""
    script = "(sleep 0.15; for n in 1 2 3 4 5; do kill -TERM $PPID; sleep 0.05; done) & exit 7"
    command = [sys.executable, "-m", "kproxy", "replay", str(demo), "--", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode in (7, -signal.SIGTERM), "the latter when all is done"
    assert demo.with_name("demo.failed.mcap").exists()


def test_a_fault_rule_that_must_fire_and_does_not_is_told(do: Do, demo: Path) -> None:
    rule = ("--fault", "name=cut api=Produce disconnect=true", "--expect-faults")
    done = do("replay", demo, "--expect", "none", *rule, "--", "true")
    assert done.returncode == UNMET
    assert "fault  matched  fired  rule" in done.stderr and "cut" in done.stderr


def test_a_command_does_not_get_the_credentials_of_kproxy(do: Do) -> None:
    secrets = dict.fromkeys(ENVIRONMENT, "s3cret")
    shown = "import os; print([name for name in os.environ if name.startswith('KPROXY_')])"
    typed = "run", "--bootstrap", "127.0.0.1:9", "--no-record", "--", sys.executable, "-c", shown
    done = do(*typed, **secrets | {"KPROXY_SASL_MECHANISM": "PLAIN"})
    assert "SASL" not in done.stdout and "KPROXY_BOOTSTRAP" in done.stdout, done.stderr


def test_the_exit_code_of_the_command_is_kproxys(do: Do, demo: Path) -> None:
    script = 'echo "$MINE $KPROXY_BOOTSTRAP $SPRING_KAFKA_BOOTSTRAP_SERVERS $1"; exit 7'
    words = ("--bootstrap-env", "MINE", "--", "sh", "-c", script, "sh", "at={bootstrap}")
    done = do("replay", demo, "--expect", "none", *words)
    assert done.returncode == 7
    mine, ours, spring, place = done.stdout.split()
    assert mine == ours == spring == place.removeprefix("at=")
    assert "the command failed; what it did: kproxy show" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("--", "no-such-command"), 127, "no-such-command: there is no such command"),
        (("--", "/"), 126, "/: Permission denied"),
        (("--",), 2, "give a command behind --"),
        (("--fail-fast",), 2, "--fail-fast needs a command"),
        (("go", "test"), 2, "go does not exist; if it is a command, type -- before it"),
        (("--cassette", "once"), 2, "--cassette needs a command"),
        (("--broker", "b:9092", "--", "true"), 2, "--broker is for --cassette"),
        (("--record-in-ci", "--", "true"), 2, "--record-in-ci is for --cassette"),
        (("--compare", "orders", "--", "true"), 2, "not 'orders'"),
        (("--mode", "strict", "--compare", "order", "--", "true"), 2, "strict mode compares"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    do: Do, demo: Path, words: tuple[str, ...], code: int, text: str
) -> None:
    done = do("replay", demo, *words)
    assert done.returncode == code
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_recording_is_said_with_the_command_that_makes_it(do: Do, tmp_path: Path) -> None:
    done = do("replay", tmp_path / "none.mcap", "--", "true")
    assert done.returncode == 1
    assert "there is no recording" in done.stderr and "--cassette rewrite" in done.stderr


def test_at_the_first_difference_it_ends_if_that_is_wanted(do: Do, demo: Path) -> None:
    app = """\
import os, time
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": os.environ["KPROXY_BOOTSTRAP"]})
producer.produce("invoices", b"1")
print(producer.flush(30))
time.sleep(600)
"""
    done = do("replay", demo, "--fail-fast", "--", sys.executable, "-c", app)
    assert done.returncode == UNMET
    assert "kproxy: topic invoices is not in the recording" in done.stderr
    assert "not produced" not in done.stderr


@pytest.mark.broker
def test_a_recording_is_made_once_kept_if_it_passed_and_compared(
    do: Do, mock_brokers: str, tmp_path: Path
) -> None:
    made = tmp_path / "orders.mcap"
    topic = f"once-{os.urandom(4).hex()}"
    app = f"""\
import os, sys
from confluent_kafka import Producer
producer = Producer({{"bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"]}})
producer.produce({topic!r}, sys.argv[1], "key")
producer.flush()
sys.exit(int(sys.argv[2]))
"""
    command = ("--", sys.executable, "-c", app)
    once = ("replay", made, "--cassette", "once")
    assert "--broker" in do(*once, *command, "a", "0").stderr
    failed = do(*once, "--broker", mock_brokers, *command, "a", "4")
    assert (failed.returncode, made.exists()) == (4, False)
    assert made.with_name("orders.failed.mcap").exists()

    refused = do(*once, "--broker", mock_brokers, *command, "a", "0", CI="true")
    assert (refused.returncode, made.exists()) == (1, False)
    assert "--record-in-ci" in refused.stderr
    in_ci = ("--record-in-ci", "--broker", mock_brokers)
    first = do(*once, *in_ci, *command, "a", "0", CI="true")
    assert (first.returncode, first.stderr) == (0, f"kproxy: recorded {made}\n")
    assert not made.with_name("orders.failed.mcap").exists()
    assert do(*once, *command, "b", "0").returncode == UNMET, "no broker is needed now"

    before = made.read_bytes()
    words = ("replay", made, "--cassette", "verify", "--broker", mock_brokers, *command)
    differs = do(*words, "b", "0")
    assert differs.returncode == UNMET and "  + 'b'" in differs.stderr
    assert made.read_bytes() == before


@pytest.mark.broker
def test_signals_are_passed_on_and_the_recording_is_complete(
    mock_brokers: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.mcap"
    script = "trap 'exit 42' TERM; echo up; while :; do sleep 0.05; done"
    words = ("run", "--bootstrap", mock_brokers, "--record", path, "--", "sh", "-c", script)
    first, code, told = terminated(*words)
    assert first == "up\n", "stdout is the command's"
    assert code == 42
    assert f"in {path}" in told
    notes: list[str] = []
    list(recording.read(path, told=lambda note: notes.append(str(note.body.get("event")))))
    assert "torn" not in notes


def test_without_a_command_what_is_missing_is_listed(demo: Path) -> None:
    for options, code in (((), 0), (("--expect", "produced"), 1)):
        words = ("replay", demo, "--listen", "127.0.0.1:0", *options)
        first, ended, told = terminated(*words)
        assert first.startswith("127.0.0.1:")
        assert ended == code, told
        assert "orders: none of its" in told
        assert "checked: records" in told
