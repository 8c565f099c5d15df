"""Rules that could never match or would overflow, and names that a terminal would obey."""

from __future__ import annotations

from typing import Any

import pytest

from kproxy.proxy.faults import (
    Rule,
    RuleError,
    Rules,
    rule_from_flag,
    rule_from_words,
    rules_from_toml,
    table,
    unmatched,
)
from tests.faults.making import ask, respond
from tests.faults.test_rules import ANSWER, BEAT

DIGITS = "9" * 400
REFUSED: list[tuple[str, str]] = [
    # Nothing is in an empty range, or outside of what Kafka can say.
    (
        "drop=true partition=5..3",
        "partition: '5..3' is an empty range; the smaller",
    ),
    ("drop=true partition=0..-1", "partition: '0..-1' is an empty range"),
    ("drop=true partition=[0, 2147483648]", "partition: 2147483648 is not from -2147483648 to 21"),
    ("drop=true partition=..2147483648", "partition: 2147483648 is not from -2147483648 to 21"),
    ("drop=true node_id=..-1", "node_id: -1 is not from 0 to 2147483647"),
    ("drop=true node_id=7..3", "node_id: '7..3' is an empty range"),
    ("drop=true node_id=-2", "node_id: -2 is not from 0 to 2147483647"),
    ("drop=true api_version=3..1", "api_version: '3..1' is an empty range"),
    ("drop=true api_version=32768", "api_version: 32768 is not from 0 to 32767"),
    ("drop=true api_version=30000", "api_version: no API that the rule means has such a version"),
    ("topic='' drop=true", "topic: an empty name names nothing"),
    ("group=[a,''] drop=true", "group: an empty name names nothing"),
    ("transactional_id='' drop=true", "transactional_id: an empty name names nothing"),
    # Durations: a response says its throttle time in milliseconds, in 32 bits.
    (
        "latency=99999999999999999999999d",
        "latency: '99999999999999999999999d' is more than 2147483647ms",
    ),
    (f"latency={DIGITS}d", f"latency: '{DIGITS}d' is not a duration such as"),
    ("throttle=400000d", "throttle: '400000d' is more than 2147483647ms"),
    ("throttle=25d", "throttle: '25d' is more than 2147483647ms"),
    ("slow_close=25d", "slow_close: '25d' is more than 2147483647ms"),
    ("latency={uniform=['1s','25d']}", "latency: '25d' is more than 2147483647ms"),
    ("latency={normal={mean='25d',sigma='1s'}}", "latency: '25d' is more than 2147483647ms"),
    ("latency={normal={mean='1s',sigma='25d'}}", "latency: '25d' is more than 2147483647ms"),
    ("latency={lognormal={median='25d',sigma=1}}", "latency: '25d' is more than 2147483647ms"),
    ("drop=true start_after=366d", "start_after: '366d' is more than 365d"),
    ("drop=true duration=366d", "duration: '366d' is more than 365d"),
    # Counts and sizes.
    (
        "drop=true times=1000000000001",
        "times: 1000000000001 is not a number from 1 up to",
    ),
    (
        "drop=true every=1000000000001",
        "every: 1000000000001 is not a number from 1 up to",
    ),
    ("drop=true skip=1000000000001", "skip: 1000000000001 is not a number from 0 up to"),
    ("truncate=2147483648", "truncate: 2147483648 is not a number of bytes from 0 to 2147483647"),
    ("corrupt=10001", "corrupt: 10001 is more than 10000 bits"),
    ("corrupt={bits=10001}", "corrupt: 10001 is more than 10000 bits"),
    ("bandwidth=0.2", "bandwidth: 0.2 is not a size"),
    ("bandwidth='0.2'", "bandwidth: '0.2' is not a size above 0"),
    ("bandwidth=2TiB", "bandwidth: '2TiB' is more than 1TiB"),
    (f"bandwidth={DIGITS}GiB", f"bandwidth: '{DIGITS}GiB' is not a size such as"),
    ("hide_node=2147483648", "hide_node: 2147483648 is not the id of a node"),
    ("move_coordinator=2147483648", "move_coordinator: 2147483648 is not the id of a node"),
    ("max_version={Produce=32768}", "max_version: 32768 is not a version of Produce"),
    # More digits than Python turns into a number, and more than it writes.
    (f"drop=true times={DIGITS * 12}", "times: "),
    (f"drop=true times=0x{'f' * 5000}", "times: "),
    (f"drop=true partition=1..{DIGITS * 12}", "partition: "),
]


@pytest.mark.parametrize(("text", "what"), REFUSED, ids=[text[:60] for text, _ in REFUSED])
def test_a_rule_that_can_do_nothing_is_refused(text: str, what: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_from_flag(text)
    told = str(caught.value)
    assert told.partition(f"--fault {text!r}: ")[2].startswith(what)
    assert told.isprintable()


ACCEPTED = [
    "drop=true partition=3..5 node_id=0..0 api_version=..32767",
    "drop=true partition=..0",
    "drop=true partition=-1",  # a client may ask for it
    "drop=true client_id=''",
    "throttle=2147483647ms",
    "latency=0ms",
    "latency={uniform=['0ms','24d']}",
    "drop=true start_after=365d duration=365d times=1000000000000 skip=0",
    "truncate=2147483647",
    "bandwidth=1TiB",
    "bandwidth=1",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_makes_sense_is_taken(text: str) -> None:
    assert Rules([rule_from_flag(text)]).warnings == []


def test_a_file_with_too_many_digits_or_brackets_is_refused() -> None:
    for value in (DIGITS * 12, "[" * 3000):
        with pytest.raises(RuleError, match=r"^x.toml:\d+: this is no TOML"):
            rules_from_toml(f"[[fault]]\ndrop = true\ntimes = {value}\n", "x.toml")


@pytest.mark.parametrize(
    "latency",
    [
        {"lognormal": {"median": "24d", "sigma": 5}},
        {"normal": {"mean": "24d", "sigma": "24d"}},
    ],
    ids=str,
)
def test_no_drawn_latency_is_longer_than_one_may_be(latency: Any) -> None:
    rules = Rules([Rule(latency=latency)])
    found = [respond(ask(rules, BEAT), ANSWER).delay_ns for _ in range(300)]
    assert max(found) == 2_147_483_647 * 1_000_000


# ── names that a terminal would obey ─────────────────────────────────────────────────────────

HOSTILE = "x\n    9        9      9  forged\x1b[31m\u202e"


def hostile() -> Rules:
    """One rule that never matches, and one that warns."""
    odd = Rule(name=HOSTILE + "2", api="Heartbeat", error="CORRUPT_MESSAGE", skip=5)
    return Rules([Rule(name=HOSTILE, api="Fetch", drop=True), odd])


def test_a_name_forges_no_line() -> None:
    rules = hostile()
    ask(rules, BEAT)
    lines = table(rules.rules).split("\n")
    assert len(lines) == 3
    for line in (*lines, *unmatched(rules.rules), *rules.warnings):
        assert line.isprintable()
    assert "x\\n" in lines[1]
    assert len(rules.warnings) == 1
    assert rules.find(HOSTILE).name == HOSTILE  # what was said stays as it was


def test_a_name_forges_no_line_of_an_error() -> None:
    rules = hostile()
    mistakes: list[Any] = [
        lambda: rules.find(HOSTILE + "3"),
        lambda: rules.add(Rule(name=HOSTILE, drop=True)),
        lambda: rule_from_words({HOSTILE: 1}),
        lambda: rule_from_flag(f"topic=['{HOSTILE}'=]"),
        lambda: rule_from_flag(f"drop=true client_id=a\x1b group='{HOSTILE}' api_version=77"),
        lambda: rules_from_toml("x = 1", HOSTILE),
        lambda: Rules([Rule(api="Fetch", latency={"uniform": ["2s\n", "1s\n"]})]),
    ]
    for mistake in mistakes:
        with pytest.raises(RuleError) as caught:
            mistake()
        assert str(caught.value).isprintable()
