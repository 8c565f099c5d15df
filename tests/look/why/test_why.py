"""`kproxy why`: stories that a reader can check against the recording."""

from __future__ import annotations

import pytest

from kproxy.cli import main
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from tests.exchange.making import MS, START_NS
from tests.look.why.traffic import SECOND, Traffic, beat, metadata, two_members

# ---- several recordings


def recorded_apart(tmp_path, name: str, traffic: Traffic):
    (tmp_path / name).mkdir()
    return traffic.recorded(tmp_path / name)


@pytest.mark.parametrize("subject", ["number", "connection"])
def test_a_number_of_several_recordings_is_told_of_each_or_of_the_one_that_is_named(
    tmp_path, subject, capsys
):
    paths = [recorded_apart(tmp_path, name, two_members()) for name in ("here", "there")]
    assert main(["why", *map(str, paths), f"{subject}:1"]) == 0
    both = capsys.readouterr().out.splitlines()
    assert [line for line in both if line.endswith(".mcap:")] == [f"{path}:" for path in paths]
    assert main(["why", str(paths[1]), f"{subject}:1"]) == 0
    alone = capsys.readouterr().out
    assert main(["why", *map(str, paths), f"{subject}:there/story#1"]) == 0
    assert capsys.readouterr().out == alone
    assert main(["why", *map(str, paths), f"{subject}:her/story#1"]) == 1
    assert (
        "her/story: is no recording that is given: there is here/story, there/story"
        in capsys.readouterr().err
    )


def test_what_the_recording_ends_before_is_not_said_to_have_never_been(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    traffic.add(4000, *beat("m", 1)[:3], None)
    told = traffic.story(tmp_path, "number", "2")
    assert told[0].endswith("→ the recording ends before an answer: waited for the broker")
    assert not [line for line in told if "never" in line]
    told = traffic.story(tmp_path, "connection", "1")
    assert "The recording ends before an answer to Heartbeat #2 of 22:13:24.000." in told
    assert not [line for line in told if "never" in line]


# ---- exchanges and connections


ENDS = [
    SideEnd("broker", "reset", START_NS + 9 * SECOND),
    SideEnd("client", "eof", START_NS + 9 * SECOND + MS),
]


def test_who_ended_a_connection_after_what(tmp_path):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1))
    traffic.add(4000, *beat("m", 1)[:3], None)
    traffic.entries.append(notes.closed(1, START_NS + 9 * SECOND, {}, "eof", "", "broker", ENDS))
    assert traffic.story(tmp_path, "connection", "1") == [
        (
            "Connection 1 was opened at 22:13:20.000, from 127.0.0.1:5001 to broker.example:9092"
            " (broker 1)."
        ),
        "Its client is a.",
        "It had 2 requests: Heartbeat 2.",
        "Heartbeat #2 of 22:13:24.000 was never answered.",
        "It ended at 22:13:29.000.",
        (
            "First the broker reset the connection (reset);"
            " 1.00 ms later the client closed its side (eof)."
        ),
        "Before that it was silent for 5.0 s, since Heartbeat #2.",
        "Why is not in the recording.",
    ]
    found = traffic.story(tmp_path, "number", "2")
    assert "It was never answered, though the broker had for 5.0 s." not in found
    assert "It was never answered: it waited for the broker for 5.0 s." in found
    assert "Its connection ended at 22:13:29.000, first by the broker (reset)." in found


@pytest.mark.parametrize("how", ["down", "eof"])
def test_a_connection_without_a_request(tmp_path, how):
    traffic = Traffic()
    traffic.add(0, *beat("m", 1), connection=2)
    side = "broker" if how == "down" else "client"
    found = [SideEnd(side, how, START_NS + MS)]
    traffic.entries.append(notes.closed(1, START_NS + MS, {}, how, "", side, found))
    told = traffic.story(tmp_path, "connection", "1")
    unread = "Nothing was read from it, for its broker could not be reached."
    assert told[1] == (unread if how == "down" else "Nothing was asked on it.")


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (
            "group:nobody",
            1,
            "kproxy why: there is no group nobody in the recording; there is billing",
        ),
        ("group:*", 1, "kproxy why: there is no group * in the recording; there is billing"),
        (
            "group:biling",
            1,
            "kproxy why: there is no group biling in the recording (did you mean billing?)",
        ),
        ("number:99", 1, "kproxy why: there is no number 99 in the recording"),
        ("connection:9", 1, "kproxy why: there is no connection 9 in the recording"),
        ("number:x", 2, "kproxy why: 'x' is not the number of a request (see kproxy why --help)"),
        (
            "what:x",
            2,
            (
                "kproxy why: 'what:x' is not group:NAME, connection:N, number:N,"
                " transactional_id:NAME, topic:NAME, topic:NAME key:KEY, fault:NAME or"
                " client_id:NAME (see kproxy why --help)"
            ),
        ),
    ],
)
def test_what_there_is_no_story_of(typed, code, said, tmp_path, capsys):
    assert main(["why", str(two_members().recorded(tmp_path)), typed]) == code
    assert capsys.readouterr().err == f"{said}\n"


def test_a_name_that_begins_so_is_suggested(tmp_path, capsys):
    traffic = Traffic()
    for at, name in enumerate(("invoices", "shop-orders", "users")):
        traffic.add(at, *metadata({0: 1}, name))
    assert main(["why", str(traffic.recorded(tmp_path)), "topic:shop"]) == 1
    assert capsys.readouterr().err == (
        "kproxy why: there is no topic shop in the recording (did you mean shop-orders?)\n"
    )
