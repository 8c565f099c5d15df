"""Every note that there is, and that each reader of recordings has words of its own for it.

The table below has a row for each constructor of `kproxy.exchange.notes`.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import FAULTED, ExchangeRow, Frame, Note
from kproxy.exchange.filter import parse
from kproxy.look.lines import meaning
from kproxy.look.lines.show import show_connection, show_json, show_lines
from kproxy.look.report.findings import findings
from kproxy.look.report.light import light_data
from kproxy.look.why.stories import show_why
from kproxy.recording import Writer, entries, read
from kproxy.recording.cut import cut
from kproxy.recording.notices import notice
from kproxy.tables import views
from kproxy.testing.renewing import maker
from kproxy.wire.payloads.schemas import Schema, note_of
from kproxy.wire.protocol import messages
from tests.exchange.batches import batch
from tests.exchange.bodies import produce_request, produce_response
from tests.exchange.making import MS, START_NS, request, response, token, unanswered
from tests.recording.making import SETTINGS, write

AT = START_NS + 50 * MS
ABOUT = {"node_id": 2, "client_address": "127.0.0.1:5001", "broker_address": "b.example:9092"}
TOPIC_ID = uuid.UUID(int=77)


# ── what readers say ─────────────────────────────────────────────────────────────────────────


def recorded(folder: Path, *given: Frame | Note, name: str = "some.mcap") -> Path:
    """A recording of these."""
    write(folder / name, [list(given)])
    return folder / name


def traffic(**changes: object) -> list[Frame]:
    """One exchange: a Produce of three records."""
    asked = request("Produce", 9, produce_request({0: batch(3)}), **changes)
    return [asked, response(asked, produce_response({0: 41}), **changes)]


def noticed(note: Note, folder: Path) -> str:
    """What all views say at their end."""
    return notice(note) or ""


def story(note: Note, folder: Path) -> str:
    """What `kproxy why connection:1` says."""
    out = io.StringIO()
    show_why([recorded(folder, note, *traffic())], "connection", "1", out)
    return out.getvalue()


def lines(note: Note, folder: Path) -> str:
    """What `kproxy show` says of an exchange that a rule touched, and of one with a topic id."""
    F = messages.FetchRequest
    topics = [F.FetchTopic(topic_id=TOPIC_ID, partitions=[F.FetchPartition(partition=0)])]
    fetch = request("Fetch", 13, F(topics=topics), number=2)
    touched = traffic(flags=FAULTED, fault_ids=(7,))
    out = io.StringIO()
    show_lines([recorded(folder, note, *touched, fetch, token(3, b"secret"))], out)
    return out.getvalue()


def found(note: Note, folder: Path) -> str:
    """What `kproxy why` finds."""
    return " ".join(each.whole for each in findings(light_data([recorded(folder, note)])))


def cut_off(note: Note, folder: Path) -> str:
    """The same, of a request that has no answer when kproxy ends."""
    closed = notes.closed(1, AT, ABOUT, "stopped", "", None, [SideEnd("proxy", "stopped", AT)])
    asked = traffic()[0]
    given = [asked, unanswered(asked), note, closed]
    return " ".join(each.whole for each in findings(light_data([recorded(folder, *given)])))


def ends(note: Note, folder: Path) -> str:
    """The last line and the last object of JSON of a connection."""
    path = recorded(folder, *traffic(), note)
    text, objects = io.StringIO(), io.StringIO()
    show_lines([path], text)
    show_json([path], objects)
    last = json.loads(objects.getvalue().splitlines()[-1])
    return f"{text.getvalue()} {last.get('event')} {last.get('reason')}"


def headed(note: Note, folder: Path) -> str:
    """The headings above a connection that two recordings have."""
    other = recorded(folder, *traffic(), name="other.mcap")
    out = io.StringIO()
    show_connection([recorded(folder, *traffic()), other], "1", out)
    return out.getvalue()


def compared(note: Note, folder: Path) -> str:
    """What git's diff has of two recordings: without the values that are to be ignored."""
    without = list(meaning.lines([recorded(folder, *traffic(), name="all.mcap")]))
    return "ignored" if list(meaning.lines([recorded(folder, note, *traffic())])) != without else ""


def meant(note: Note, folder: Path) -> str:
    """What the value of a record means."""
    asked = request(
        "Produce", 9, produce_request({0: batch(1, value=b'\0\0\0\0\x11{"new": true}')})
    )
    path = recorded(folder, asked, response(asked, produce_response({0: 41})), note)
    (exchange,) = read(path)
    return str(exchange.records[0].meaning("value"))


def made(note: Note, folder: Path) -> str:
    """What `kproxy renew` runs."""
    return str((maker(recorded(folder, note, *traffic())) or {}).get("test"))


def mended(note: Note, folder: Path) -> str:
    """What `kproxy recover` says, and that the note is in the file then."""
    path = recorded(folder, *traffic())
    path.write_bytes(path.read_bytes()[:-9])
    assert main(["recover", str(path)]) == 0
    return next(e.body["event"] for e in reversed(list(entries(path))) if isinstance(e, Note))


def pending(note: Note, folder: Path) -> str:
    """What `kproxy show` says of a torn file that has neither the request nor a row of it."""
    path = recorded(folder, *traffic(), note)
    path.write_bytes(path.read_bytes()[:-9])
    out = io.StringIO()
    show_lines([path], out)
    return out.getvalue()


def gone(note: Note, folder: Path) -> str:
    """What is said of parts that are not there."""
    path = folder / "some-0013.mcap"
    about = {"recording": "5eed", "part": "13", "keep": "--keep 1GiB"}
    writer = Writer(path, **SETTINGS, metadata=about)
    writer.write([*traffic(), note])
    writer.close()
    told: list[Note] = []
    assert list(read(path, told=told.append))
    return " ".join(filter(None, map(notice, told)))


# ── all notes ────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Row:
    """A note, who says it, in which words, and whether a cut-out of the recording keeps it."""

    note: Note
    said: Callable[[Note, Path], str]
    words: str
    kept: bool = False


ROWS = {
    "opened": Row(notes.opened(1, AT, ABOUT), story, "was opened at 22:13:20", True),
    "still_open": Row(
        notes.still_open(AT, {"connection": 1, **ABOUT}), story, "was open alr", True
    ),
    "client_id": Row(notes.client_id(1, AT, "late"), lines, " late ", True),
    "user": Row(notes.user(1, AT, "billing", 1), story, "Its user is billing.", True),
    "closed": Row(
        notes.closed(1, AT, {}, "eof", "it hung", "client"),
        ends,
        ": it hung\n closed it hung",
        True,
    ),
    "topic_id": Row(notes.topic_id(AT, str(TOPIC_ID), "bills"), lines, "bills[0", True),
    "schema": Row(
        notes.schema(AT, note_of([17], Schema("JSON", "{}"))), meant, "{'new': True}", True
    ),
    "fault_rules": Row(
        notes.fault_rules(AT, 3, [{"fault_id": 7, "name": "slow"}]), lines, "fault slow", True
    ),
    "fault": Row(notes.fault(AT, "slow", 7, 1, 1, action="drop"), lines, "fault slow"),
    "session_refused": Row(notes.session_refused(AT, "slow", 7, 1, 1), lines, "fault slow"),
    "outage": Row(
        notes.outage(2, "no broker", AT, AT + MS), found, "not be reached for 1.00 ms", True
    ),
    "slow_peer": Row(
        notes.slow_peer(1, "broker", 2, AT, AT + 1090 * MS), found, "Broker 2 took 1.1 s to read"
    ),
    "lost": Row(notes.lost(3, 99, "full", 1, AT), noticed, "3 frames (99 bytes) are not in", True),
    "stood_still": Row(
        notes.stood_still(AT - MS * 7000, AT), noticed, "stood still for 7.0 s", True
    ),
    "stopped": Row(notes.stopped(AT, "SIGTERM"), cut_off, "kproxy was stopped by SIGTERM at 22:13"),
    "clock_step": Row(
        notes.clock_step(AT, -3_600_000 * MS), noticed, "was set by -3600.0 s at", True
    ),
    "removed": Row(
        notes.removed(AT, "5eed", 1, 12, "--keep 1GiB"), gone, "parts 1 to 12 were removed by --ke"
    ),
    "ignored": Row(notes.ignored(AT, ["partition"]), compared, "ignored"),
    "learned": Row(
        notes.learned(AT, {"event": "learned", "varies": [{"word": "key"}]}), compared, "ignored"
    ),
    "made_by": Row(notes.made_by(AT, {"from": "..", "test": "t.py::t"}), made, "t.py::t"),
    "pending": Row(
        notes.pending(
            AT, [ExchangeRow(2, AT, connection=1, api_key=12, request_bytes=40, fault_ns=0)]
        ),
        pending,
        "Heartbeat",
    ),
    "recovered": Row(notes.recovered(AT, 9), mended, "recovered"),
    "torn": Row(
        notes.torn(AT, "x.mcap", 7, "gone", False), noticed, "x.mcap: read up to byte 7: gone"
    ),
    "damaged": Row(
        notes.damaged(AT, "x.mcap", 7, "odd"), noticed, "x.mcap: left out what is damaged"
    ),
    "copied": Row(notes.copied(AT, "b.mcap", "a.mcap"), noticed, "b.mcap is a copy of a.mcap"),
    "gone": Row(notes.gone(AT, "b.mcap"), noticed, "b.mcap was removed before it was read"),
    "all_removed": Row(
        notes.all_removed(AT, 2, 12, "--keep 2"),
        noticed,
        "2 earlier recordings were removed by --keep",
    ),
    "pause": Row(
        notes.pause(AT - MS * 95_000, AT, "it was killed"),
        noticed,
        "kproxy was not recording from 2023-11-14 22:11:45 to 2023-11-14 22:13:20: it was killed",
    ),
    "unread": Row(
        notes.unread(AT, "x.mcap", ["#7", "#9"]),
        noticed,
        "x.mcap: left out records of exchanges that unpack to too much: 2, the first #7",
    ),
    "missing": Row(
        notes.missing(AT, "x.mcap", 3, 1),
        noticed,
        "x.mcap is part 3 of its recording: parts 1 to 2",
    ),
    "recording": Row(notes.recording(AT, "x.mcap"), headed, "other:\n"),
}
"""Constructor → its note."""


def test_the_table_has_every_note() -> None:
    made = {
        name
        for name, function in inspect.getmembers(notes, inspect.isfunction)
        if function.__module__ == notes.__name__
        and inspect.signature(function).return_annotation == "Note"
        and not name.startswith("_")
    }
    assert made == set(ROWS) | {"index"}, "an index of the file, which readers keep to themselves"
    events = [row.note.body["event"] for row in ROWS.values()]
    assert len(set(events)) == len(events)
    listed = set(re.findall(r"\w+", (notes.__doc__ or "").partition("How to add")[0]))
    assert set(events) <= listed


@pytest.mark.parametrize("name", ROWS)
def test_a_reader_has_words_for_it(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    said = row.said(row.note, tmp_path)
    assert row.words in said
    assert "?" not in (notice(row.note) or "")


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_events_in_spark_names_it(name: str) -> None:
    (described,) = [column for column in views.EVENTS if column.name == "event"]
    event = ROWS[name].note.body["event"]
    assert event in re.findall(r"\w+", described.comment)
    assert described.value_of(ROWS[name].note) == event


@pytest.mark.parametrize("name", ROWS)
def test_a_cut_out_keeps_it_or_leaves_it_out(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    path = recorded(tmp_path, *traffic()[:1], row.note, *traffic()[1:])
    cut([path], tmp_path / "part.mcap", parse("api:Produce"), "0")
    found = [each for each in entries(tmp_path / "part.mcap") if isinstance(each, Note)]
    assert (row.note.body["event"] in [each.body["event"] for each in found]) is row.kept
