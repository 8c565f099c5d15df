"""Notes in which anybody has put anything: every command reads them, or says what is wrong."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kproxy.cli import main
from kproxy.exchange.entries import FAULTED, Frame, Note
from kproxy.recording import RecordingError, Writer, encoding, layout
from kproxy.replay.opening import Wanted, open_recorded
from kproxy.tables import reading, views
from kproxy.wire.protocol import messages
from tests.exchange.making import START_NS, request, response
from tests.look.lines.test_notes import ROWS, TOPIC_ID, traffic

ODD = ("Infinity", "-Infinity", "NaN", "1e400", "-0.0", "1e18", "7.0", "9" * 4000, "9" * 5000,
       str(1 << 63), str(-(1 << 70)), "true", "null", "[]", "{}", '""', '"x"', r'"\ud800"',
       r'"\udcff"', r'"\u0000\u001b[2J"', "[" * 500 + "]" * 500, '{"a":' * 60 + "1" + "}" * 60,
       '[[1, {"side": []}], "client", null]', '{"side": {}, "name": 1, "rule": []}', "0", "-1",
       "17", "2147483648")  # fmt: skip
"""Values, as JSON or what Python takes for it."""


def text_of(body: Any, at: tuple[Any, ...], odd: str) -> str:
    """The JSON of a body with something else at one place in it."""
    if not at:
        return odd
    if isinstance(body, dict):
        pairs = {**body, at[0]: body.get(at[0])}.items()
        of = (
            f"{json.dumps(key)}: {text_of(each, at[1:], odd) if key == at[0] else json.dumps(each)}"
            for key, each in pairs
        )
        return f"{{{', '.join(of)}}}"
    of = (
        text_of(each, at[1:], odd) if place == at[0] else json.dumps(each)
        for place, each in enumerate(body)
    )
    return f"[{', '.join(of)}]"


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places inside of a body."""
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield (*at, key)
        yield from places(value[key], (*at, key))


BODIES = [(row.note.channel, json.loads(json.dumps(row.note.body))) for row in ROWS.values()]
for _, each in BODIES:
    if each["event"] == "closed":
        each["ends"] = [{"side": "client", "how": "eof", "time_ns": START_NS + 5}]
    if each["event"] == "opened":
        each["client_tls"] = {"version": "TLSv1.3", "cipher": "x", "peer": "y", "verified": True}
    if each["event"] == "fault_rules":
        each["rules"] = [{"fault_id": 7, "name": "slow", "rule": {"api": "Produce", "latency": 3}}]
    if each["event"] == "fault":
        each |= {"phase": "after", "delay_ms": 3.5}
    if each["event"] == "schema":
        each |= {"references": [{"name": "a", "schema": "{}"}], "subject": "s", "version": 1}


@st.composite
def odd_notes(draw: st.DrawFn) -> tuple[Note, str]:
    """A note and its text, with something odd in one place."""
    channel, body = draw(st.sampled_from(BODIES))
    at = draw(st.sampled_from([*places(body), ("other",)]))
    text = text_of(body, at, draw(st.sampled_from(ODD)))
    return Note(channel, START_NS + draw(st.integers(0, 200_000_000)), {"text": text}), text


def exchanges() -> list[Frame]:
    """What notes are about: a Produce that a rule touched, a Fetch of a topic by its id."""
    fetch = messages.FetchRequest
    topics = [fetch.FetchTopic(topic_id=TOPIC_ID, partitions=[fetch.FetchPartition(partition=0)])]
    asked = request("Fetch", 13, fetch(topics=topics), number=2)
    answer = messages.FetchResponse()
    return [*traffic(flags=FAULTED, fault_ids=(7,)), asked, response(asked, answer)]


SUBJECTS = ("connection:1", "number:1", "fault:slow", "client_id:shop", "topic:orders", "group:g",
            "transactional_id:t")  # fmt: skip
COMMANDS = ("show {0}", "show --json {0}", "show --frame 1 {0}", "show --follow 1 {0}",
            "show --records orders {0}", "stats {0}", "tail {0}", "why {0}",
            *(f"why {{0}} {each}" for each in SUBJECTS), "why {0} topic:orders key:k",
            "scan {0}", "scan --json {0}", "textconv {0}", "show {0} topic:bills fault:slow",
            "report {0} --out {1}.report.html", "export {0} --to {1}.jsonl",
            "export {0} --to {1}.parquet", "export {0} --to {1}.mcap", "export {0} --to {1}.html",
            "recover {2}")  # fmt: skip


def check(path: Path, out: Path) -> None:
    """Read a recording with everything."""
    torn = out.with_name("torn.mcap")
    torn.write_bytes(path.read_bytes()[:-9])
    for command in COMMANDS:
        for old in out.parent.glob(f"{out.name}.*"):
            old.unlink()
        said, wrong = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(wrong):
            code = main(command.format(path, out, torn).split())
        assert code in (0, 1), (command, code, wrong.getvalue())
        assert code == 0 or wrong.getvalue() or "scan" in command, command
        if "--json" in command:
            for line in said.getvalue().splitlines():
                json.loads(line, parse_constant=pytest.fail)
    with contextlib.suppress(RecordingError):
        open_recorded([path], Wanted(faults=True, timing=1), folder=out.parent / "index")
    for view, columns in views.VIEWS.items():
        with contextlib.suppress(RecordingError):
            reading.read(path, view, [column.name for column in columns]).read_all()


@given(st.lists(odd_notes(), min_size=1, max_size=5))
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],  # what fails is small
)
def test_every_command_takes_any_note(
    tmp_path_factory: pytest.TempPathFactory, notes: list[tuple[Note, str]]
) -> None:
    folder = tmp_path_factory.mktemp("odd")
    path = folder / "some.mcap"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(encoding, "note_record", written)
        recording = Writer(path, start_ns=START_NS, schema_id="x", library_version="0")
        recording.write([note for note, _ in notes])
        recording.write(exchanges())
        recording.close()
    check(path, folder / "out")


def written(note: Note, sequence: int) -> bytes:
    """The record of a note whose text is given."""
    if "text" not in note.body:
        return layout.note_record(note, sequence)
    body = note.body["text"].encode()
    head = layout.message_head(
        layout.NOTES[note.channel], sequence, note.time_ns, note.time_ns, len(body)
    )
    return head + body
