"""Nothing that peers or files say reaches a terminal as it is."""

from __future__ import annotations

import contextlib
import io
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.look.lines.show import show_json, show_lines
from kproxy.printable import printable
from kproxy.wire.protocol import messages
from tests.exchange.making import MS, START_NS, request, response
from tests.recording.making import rewrite, write

HOSTILE = "\x1b]0;owned\x07\r\n12:00:00 forged\u202e\x9b2J\udc80"
METADATA = messages.MetadataResponse


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders → ünïcode", "orders → ünïcode"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc", r"a\nb\tc"),
        ("caf\udce9", r"caf\xe9"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
    ],
)
def test_what_a_terminal_must_not_see(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_whatever_it_is_becomes_printable_and_stays_so(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable() and printable(shown) == shown
    assert text != shown or text.isprintable()


def note(channel: str = CONNECTIONS, **body: object) -> Note:
    return Note(channel, START_NS + 9 * MS, {"connection": 1, **body})


def metadata(host: str, topic: str, error: int = 0):
    asked = request("Metadata", 8, messages.MetadataRequest(topics=None))
    broker = METADATA.MetadataResponseBroker(node_id=1, host=host, port=9092)
    topic = METADATA.MetadataResponseTopic(name=topic, error_code=error)
    return [asked, response(asked, METADATA(brokers=[broker], topics=[topic]))]


BEAT = request("Heartbeat", 4, messages.HeartbeatRequest(group_id=HOSTILE, member_id=HOSTILE), 3)
SOURCES = {
    "a broker's host": metadata(HOSTILE, "t"),
    "a topic": metadata("host", HOSTILE),
    "a group": [BEAT],
    "a node id": [note(event="opened", node_id=HOSTILE), *metadata("h", "t"), BEAT],
    "an address": [note(event="opened", client_address=HOSTILE), *metadata("h", "t")],
    "a connection": [Note(CONNECTIONS, START_NS, {"event": "closed", "connection": HOSTILE})],
    "a reason": [note(event="closed", reason=HOSTILE, how=HOSTILE, side=HOSTILE)],
    "ends": [note(event="closed", ends=[{"side": "client", "how": HOSTILE, "time_ns": 1 << 90}])],
    "a loss": [note(EVENTS, event="lost", frames=HOSTILE, reason=HOSTILE)],
    "no numbers": [
        note(event="opened", node_id=math.nan, client_address=math.inf, client_id=math.nan),
        *metadata("h", "t"),
        note(event="closed", reason=math.nan, ends=[{"side": "broker", "time_ns": math.nan}]),
        note(EVENTS, event="lost", frames=math.nan, bytes=-math.inf),
    ],
}


NO_NUMBERS = {math.nan: 1111.5, math.inf: 2222.5, -math.inf: -2222.5}


def writable(value: Any) -> Any:
    """A note's body with numbers in place of what is none: our own writer refuses that."""
    if isinstance(value, dict):
        return {key: writable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [writable(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(number for each, number in NO_NUMBERS.items() if str(each) == str(value))
    return value


def foreign(message: bytes) -> bytes:
    """What another program makes of a message."""
    return message.replace(b"2222.5", b"Infinity").replace(b"1111.5", b"NaN")


def written(folder: Path, entries: list) -> Path:
    """A file with these entries that another program wrote."""
    own = [
        attrs.evolve(each, body=writable(each.body)) if isinstance(each, Note) else each
        for each in entries
    ]
    path = write(folder / "own.mcap", [own], compression="none")
    return rewrite(path, folder / "foreign.mcap", change=foreign)


@pytest.mark.parametrize("source", SOURCES)
def test_show_prints_no_character_that_a_terminal_obeys(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path, SOURCES[source])
    for colour in (False, True):
        out = io.StringIO()
        show_lines([path], out, colour)
        text = out.getvalue() + capsys.readouterr().err
        for style in ("\x1b[0m", *(f"\x1b[{n}m" for n in ("2", "1", "31;1", "35", "33", "36"))):
            text = text.replace(style, "")
        assert all(line.isprintable() for line in text.split("\n")), text
    out = io.StringIO()
    show_json([path], out)
    text = out.getvalue() + capsys.readouterr().err
    assert text and all(line.isprintable() for line in text.split("\n"))
    for line in out.getvalue().split("\n")[:-1]:
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


@pytest.mark.parametrize(
    "arguments",
    [["show", HOSTILE], ["recover", HOSTILE], [HOSTILE], ["show", "x", "--owned\x1b[2J"]],
)
def test_errors_about_what_was_typed_are_printable_too(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "kproxy", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.split("\n")[:-1]
    assert line.isprintable() and "owned" in line


def test_a_file_that_cannot_be_read_is_not_taken_for_output_that_cannot_be_written() -> None:
    unreadable = Path("/proc/self/mem")
    with contextlib.suppress(PermissionError), unreadable.open("rb"):
        command = [sys.executable, "-m", "kproxy", "show", str(unreadable)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 1
        assert done.stderr == "kproxy show: /proc/self/mem: cannot be read: Input/output error\n"
        return
    pytest.skip("no file here fails to be read")
