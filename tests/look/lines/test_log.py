"""The log: nothing in it is forged, and no flood of it."""

from __future__ import annotations

import datetime
import io
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.defects import defect
from kproxy.look.lines.console import Console
from kproxy.look.lines.log import KINDS_MAX, PERIOD_NS, SHOWN_MAX, LineLog, Repeats


def ended(number: int, reason: str = "a frame of -1 bytes") -> str:
    return f"connection {number} (10.0.0.{number % 250}:{number} → node 1) ended: {reason}"


def test_lines_of_one_kind_are_counted_and_the_others_written() -> None:
    repeats = Repeats()
    written = [line for n in range(3000) for line in repeats.lines(ended(n), n)]
    assert written == [ended(n) for n in range(SHOWN_MAX)]
    assert repeats.lines(ended(1, "the client speaks TLS"), 5) == [
        ended(1, "the client speaks TLS")
    ]
    assert repeats.due(PERIOD_NS - 1) == []
    assert repeats.due(PERIOD_NS) == [
        f"and {3000 - SHOWN_MAX:,} more like this in the last minute: {ended(2999)}"
    ]
    assert repeats.due(2 * PERIOD_NS) == []


def test_few_lines_are_never_counted() -> None:
    repeats = Repeats()
    for minute in range(5):
        assert repeats.lines(ended(minute), minute * PERIOD_NS) == [ended(minute)]
    assert repeats.finish() == []


def test_a_peer_that_thinks_of_a_new_reason_each_time_is_limited_too() -> None:
    repeats = Repeats()
    names = ["".join(chr(97 + n // 26**i % 26) for i in range(4)) for n in range(10_000)]
    written = [line for name in names for line in repeats.lines(f"ended: by {name}", 0)]
    assert KINDS_MAX <= len(written) <= KINDS_MAX + SHOWN_MAX
    (rest,) = repeats.finish()
    assert rest.startswith(f"and {len(names) - len(written):,} more like this")


@pytest.mark.parametrize(
    "hostile",
    ["\x1b]0;owned\x07", "\nkproxy: all is well", "\r\x1b[2Kforged", "\u202egnp.exe", "\x9b2J"],
)
def test_what_peers_say_is_made_printable(hostile: str) -> None:
    out = io.StringIO()
    with LineLog(out) as log:
        log(f"the broker advertises {hostile}:9092")
        log.write(f"kproxy run: {hostile}")
    first, second = out.getvalue().splitlines()
    assert (first + second).isprintable() and out.getvalue().count("\n") == 2
    assert first.startswith("kproxy: the broker advertises ") and second.startswith("kproxy run: ")


def test_what_was_held_back_is_said_in_time() -> None:
    now = [0]
    said = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "more like this" in text:
                said.set()
            return super().write(text)

    out = Stream()
    with LineLog(out, lambda: now[0], tick_seconds=0.01) as log:
        for n in range(SHOWN_MAX + 7):
            log(ended(n))
        now[0] = PERIOD_NS
        assert said.wait(5)
    assert "kproxy: and 7 more like this in the last minute: " in out.getvalue()


@given(st.lists(st.tuples(st.sampled_from(["info", "warning", "error"]), st.text(max_size=30))))
def test_each_line_is_an_object_with_time_level_and_message(given_lines) -> None:
    out, plain = io.StringIO(), io.StringIO()
    with LineLog(out, log_format="json") as log, LineLog(plain) as text_log:
        for level, text in given_lines:
            log(text, level)
            text_log(text, level)
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    assert ["kproxy: " + each["message"] for each in found] == plain.getvalue().split("\n")[:-1]
    if len(given_lines) <= SHOWN_MAX:
        assert [each["level"] for each in found] == [level for level, _ in given_lines]
    for each in found:
        at = datetime.datetime.fromisoformat(each["time"])
        assert at.utcoffset() == datetime.timedelta() and each.keys() == {
            "time",
            "level",
            "message",
        }


def test_levels_stay_with_what_was_held_back_and_defects_are_errors() -> None:
    err = io.StringIO()
    with Console(io.StringIO(), err, False, log_format="json") as console:
        for n in range(SHOWN_MAX + 7):
            console.log(ended(n), "warning")
        console.log(f"connection 1 ended {defect(ZeroDivisionError('oh'))}")
        console.log.write("kproxy: a line of a report")
        console.fail("kproxy run: the disk is full")
    levels = [json.loads(line)["level"] for line in err.getvalue().splitlines()]
    assert levels == ["warning"] * SHOWN_MAX + ["error", "info", "error", "warning"]


def test_lines_may_have_time_and_level_as_text() -> None:
    out = io.StringIO()
    with LineLog(out, log_format="time") as log:
        log("no broker yet", "warning")
    at, _, rest = out.getvalue().partition(" ")
    assert rest == "warning kproxy: no broker yet\n"
    assert at.endswith("Z") and len(at) == len("2026-01-02T03:04:05.678Z")
    datetime.datetime.fromisoformat(at)
