"""Who ended a connection, and what a request waited for that was never answered."""

from __future__ import annotations

import json
import math

import pytest

from kproxy.exchange import note_values, notes
from kproxy.exchange.endings import SideEnd, Unanswered, connection_end
from kproxy.exchange.entries import CONNECTIONS, Note
from kproxy.exchange.pairing import pair
from kproxy.wire.protocol import messages
from tests.exchange.making import MS, START_NS, request, unanswered

BEAT = messages.HeartbeatRequest(group_id="g", member_id="m")


def beat(number: int, **changes: object):
    return request("Heartbeat", 4, BEAT, number, **changes)


def test_a_note_says_how_each_side_ended_and_who_was_first() -> None:
    ends = [SideEnd("broker", "reset", START_NS), SideEnd("client", "eof", START_NS + MS)]
    about = {"client_address": "127.0.0.1:5001", "node_id": 2}
    note = notes.closed(7, START_NS + MS, about, "eof", "why not", "client", ends)
    assert note.body["first"] == "broker"
    end = connection_end(note)
    assert end.ends == tuple(ends) and end.first == ends[0]
    assert (end.connection, end.node_id, end.client_address) == (7, 2, "127.0.0.1:5001")
    assert (end.time_ns, end.reason) == (START_NS + MS, "why not")


@pytest.mark.parametrize(
    ("side", "who"), [("client", "client"), ("broker", "broker"), (None, "proxy")]
)
def test_a_note_without_ends_names_the_side_that_it_has(side: str | None, who: str) -> None:
    end = connection_end(notes.closed(1, START_NS, {}, "idle", "", side))
    assert end.ends == (SideEnd(who, "idle", START_NS),)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ends": 3, "node_id": math.nan, "reason": ["x"], "client_address": 1},
        {"ends": [3, {"side": "\x1b[2J"}, {}], "connection": "one"},
    ],
)
def test_a_foreign_note_is_read_as_far_as_it_makes_sense(body: dict[str, object]) -> None:
    data = json.dumps({"event": "closed", "connection": 1, **body}).encode()
    end = connection_end(Note(CONNECTIONS, START_NS, note_values.body_of(data)))
    assert end.ends == () and end.first is None
    assert (end.reason, end.node_id, end.client_address) == ("", None, None)


@pytest.mark.parametrize("value", ["NaN", "1e400", "1.5", "true", '"1"', "[1]", str(1 << 31)])
def test_what_is_no_number_of_a_connection_is_left_out(value: str) -> None:
    assert note_values.body_of(b'{"connection": %s}' % value.encode()).get("connection") is None
    assert note_values.body_of(b'{"connection": 7.0}') == {"connection": 7}


def waits(*entries) -> list[Unanswered | None]:
    return [exchange.unanswered for exchange in pair(entries)]


def test_the_first_waited_for_the_broker_and_the_others_behind_it() -> None:
    asked = [beat(number) for number in (1, 2, 3)]
    ended = Note(CONNECTIONS, START_NS + 11 * MS, {"event": "closed", "connection": 1})
    assert waits(*asked, ended) == [
        Unanswered("broker", None, 10.0),
        Unanswered("earlier", 1, 9.0),
        Unanswered("earlier", 1, 8.0),
    ]


def test_what_was_not_sent_on_waited_for_the_proxy() -> None:
    ended = Note(CONNECTIONS, START_NS + 3 * MS, {"event": "closed", "connection": 1})
    assert waits(beat(1, sent_ns=0), ended) == [Unanswered("proxy", None, 2.0)]


def test_the_entry_that_says_so_knows_the_times_better_than_the_request() -> None:
    asked = beat(1)
    late = beat(1, sent_ns=0)
    assert waits(late, unanswered(asked)) == [Unanswered("broker", None, 2.05)]
    assert waits(unanswered(asked)) == [Unanswered("broker", None, 2.05)]


def test_at_the_end_of_a_recording_the_last_entry_tells_how_long() -> None:
    other = beat(5, connection=2)
    assert waits(beat(1), other) == [
        Unanswered("broker", None, 4.0),
        Unanswered("broker", None, 0.0),
    ]
