"""Rules as people write them: what is understood, and what a mistake is answered with."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy.proxy.faults import (
    Rule,
    RuleError,
    Rules,
    help_text,
    rule_from_flag,
    rule_from_words,
    rules_from_toml,
)
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.rule import KEYS

FILE = """\
# An experiment.

[[fault]]
name = "leader change"
api = "Produce"
topic = ["orders-*", "bills"]
error = "NOT_LEADER_OR_FOLLOWER"
times = 2

[[fault]]  # a slow broker
node_id = 2
latency = { lognormal = { median = "20ms", sigma = 0.6 } }

[[fault]]
api = ["Fetch", 0]
api_version = "..3"
[fault.corrupt]
bits = 3
fix_crc = true
"""


def test_a_file_is_a_list_of_tables() -> None:
    first, second, third = rules_from_toml(FILE, "faults.toml")
    assert first == Rule(
        name="leader change",
        api="Produce",
        topic=["orders-*", "bills"],
        error="NOT_LEADER_OR_FOLLOWER",
        times=2,
    )
    assert second == Rule(node_id=2, latency={"lognormal": {"median": "20ms", "sigma": 0.6}})
    assert third.words["corrupt"] == {"bits": 3, "fix_crc": True}
    assert rules_from_toml("") == []


FLAGS: list[tuple[str, Rule]] = [
    (
        "api=Produce error=NOT_LEADER_OR_FOLLOWER times=2",
        Rule(api="Produce", error="NOT_LEADER_OR_FOLLOWER", times=2),
    ),
    ("node_id=2 latency=300ms", Rule(node_id=2, latency="300ms")),
    ("topic=2024-01-01 error=29", Rule(topic="2024-01-01", error=29)),
    ("topic=true latency=1s", Rule(topic="true", latency="1s")),
    (
        'latency={uniform = ["10ms", "50ms"]}  api=[1, "Fetch"]',
        Rule(latency={"uniform": ["10ms", "50ms"]}, api=[1, "Fetch"]),
    ),
    ("api=[Produce, Fetch] drop=true", Rule(api=["Produce", "Fetch"], drop=True)),
    (
        "latency={normal={mean=20ms, sigma='5ms'}}",
        Rule(latency={"normal": {"mean": "20ms", "sigma": "5ms"}}),
    ),
    ("drop=true api_version=3..7", Rule(drop=True, api_version="3..7")),
    (
        """where="topic:orders-* client_id:'x y'" probability=0.5 reset=true""",
        Rule(where="topic:orders-* client_id:'x y'", probability=0.5, reset=True),
    ),
    ("max_version={Produce = 7}", Rule(max_version={"Produce": 7})),
    ("hide_api=DescribeCluster", Rule(hide_api="DescribeCluster")),
]


@pytest.mark.parametrize(("text", "rule"), FLAGS, ids=[text for text, _ in FLAGS])
def test_a_flag_is_words(text: str, rule: Rule) -> None:
    assert rule_from_flag(text) == rule


@pytest.mark.parametrize("key", ACTIONS)
def test_every_action_says_how_to_use_it(key: str) -> None:
    action = ACTIONS[key]
    assert rule_from_flag(action.example).words[key] is not None
    assert action.help
    assert f"\n    {action.help.splitlines()[0]}" in help_text()


def test_words_come_back_as_they_were_said() -> None:
    for rule in rules_from_toml(FILE):
        assert rule_from_words(rule.words) == rule


MISTAKES: list[tuple[str, str]] = [
    ("apl=Produce drop=true", "apl: this is no key of a rule (did you mean api?)"),
    ("api=Prodce drop=true", "api: 'Prodce' is no API of Kafka (did you mean Produce?)"),
    (
        "api=Produce,Fetch drop=true",
        "api: 'Produce,Fetch' is no API of Kafka (a list is written [Produce,Fetch])",
    ),
    ("api=produce drop=true", "api: 'produce' is no API of Kafka (did you mean Produce?)"),
    (
        "api=Produce error=NOT_LEADER",
        "error: 'NOT_LEADER' is no error of Kafka (did you mean NOT_LEADER_OR_FOLLOWER?)",
    ),
    ("api=Produce error=9999", "error: 9999 is no error of Kafka"),
    ("api=Produce error=NONE", "error: 'NONE' is no error of Kafka"),
    ("error=UNKNOWN_SERVER_ERROR", "api: any API may report UNKNOWN_SERVER_ERROR: say which"),
    (
        "api=Heartbeat error=NOT_COORDINATOR level=partition",
        "level: Heartbeat has no place for NOT_COORDINATOR at the level 'partition'",
    ),
    ("api=Heartbeat topic=orders latency=1s", "topic: Heartbeat names no topic"),
    ("api=Fetch group=g latency=1s", "group: Fetch names no group"),
    ("api=Fetch api_version=99 latency=1s", "api_version: Fetch has versions 0 to 18"),
    ("api=Metadata api_version=0..12 rebootstrap=true", "rebootstrap: Metadata has no version"),
    ("api=SaslHandshake throttle=1s", "throttle: SaslHandshake has no version"),
    ("api=Produce", f"the rule has no action; one of {', '.join(ACTIONS)}"),
    ("drop=true reset=true", "reset: a rule has one action, this one has drop and reset"),
    ("drop=false", "drop: False is not true"),
    ("api=Produce hide_node=1", "api: hide_node does nothing to Produce; it works for Metadata"),
    ("latency=fast", "latency: 'fast' is not a duration such as 300ms"),
    ("latency=5", "latency: 5 is not a duration"),
    ("latency={unifrom=[1,2]}", "latency: 'unifrom' is none of uniform, normal, lognormal"),
    ('latency={uniform=["2ms", "1ms"]}', "latency: uniform from 2ms to 1ms"),
    ("latency={normal={mean='1ms'}}", "latency: normal wants {mean = …, sigma = …}"),
    ("latency={lognormal={median='1ms', sigma='1ms'}}", "latency: the sigma of lognormal is"),
    ("latency={recording='x.mcap'}", "latency: the latencies of x.mcap cannot be read here"),
    ("drop=true probability=2", "probability: 2 is not from 0 to 1"),
    ("drop=true times=0", "times: 0 is not a number from 1 up"),
    ("drop=true every=1.5", "every: 1.5 is not a number from 1 up"),
    ("drop=true skip=-1", "skip: -1 is not a number from 0 up"),
    ("drop=true duration=0s", "duration: '0s' is no time at all"),
    ("drop=true phase=during", "phase: 'during' is not one of before, after"),
    ("api=Produce duplicate=true phase=after", "phase: duplicate has no phase 'after'"),
    ("drop=true level=topic", "level: drop has no levels"),
    ("truncate=-1", "truncate: -1 is not a number of bytes"),
    ("corrupt=0", "corrupt: 0 is not a number of bits"),
    ("bandwidth=0", "bandwidth: 0 is not a size above 0"),
    ("max_version=3", "max_version: 3 is not a table"),
    ("max_version={Prodce=3}", "max_version: 'Prodce' is no API of Kafka (did you mean"),
    ("drop=true partition=x", "partition: 'x' is not a number, a range such as 3..7"),
    ("drop=true topic=[]", "topic: an empty list means nothing"),
    ("drop=true where=topic:", "where: column "),
    ("api=[Produce,,Fetch] drop=true", "api: [Produce,,Fetch] is neither TOML nor a bare word"),
    ("latency={uniform} api=1", "latency: {uniform} is neither TOML nor a bare word"),
    ("drop=true where=time:+1s..", "where: no recording begins here: say start_after"),
    ("drop=true where=broker_ms:5..", "where: column 1: a rule cannot look at broker_ms"),
    ("api=999 topic=x drop=true", "api: kproxy cannot read API 999"),
    ("nonsense", "'nonsense' is not key=value"),
    ("client_id:shop", "'client_id:shop' is not key=value: write client_id=shop"),
    ("drop=true drop=true", "drop: this key is there twice"),
    ("drop=", "drop: it has no value"),
    ("topic='x drop=true", "the quote ' is not closed"),
    ("api=[1 drop=true", "brackets do not match"),
    ("api=[1,, drop=true]", "api: [1,, drop=true] is neither TOML nor a bare word"),
]


@pytest.mark.parametrize(("text", "what"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_a_mistake_says_what_is_allowed(text: str, what: str) -> None:
    with pytest.raises(RuleError) as caught:
        rule_from_flag(text)
    assert str(caught.value).startswith(f"--fault {text!r}: {what}")
    assert "\n" not in str(caught.value)


FILES: list[tuple[str, str]] = [
    ('[[fault]]\napi = "Produce"\ndrop = true\n[[fault]]\n\neror = 3\n', "x.toml:6: eror: "),
    ('[[fault]]\napi = "Produce"\n[fault.latency]\nunifrom = 1\n', "x.toml:3: latency: "),
    ('[[fault]]\napi = "Produce\n', "x.toml:2: this is no TOML: "),
    ('[[fault]]\napi = "Produce"\n', "x.toml:1: the rule has no action"),
    ('[fault]\napi = "Produce"\n', "x.toml: fault: rules are [[fault]] tables"),
    (
        "seed = 3\n[[fault]]\ndrop=true\n",
        "x.toml:1: seed: rules stand in [[fault]] tables, and nothing else may",
    ),
    ("fault = [{drop = true, times = 0}]", "x.toml:1: times: "),
]


@pytest.mark.parametrize(("text", "what"), FILES, ids=[what for _, what in FILES])
def test_a_mistake_in_a_file_says_the_line(text: str, what: str) -> None:
    with pytest.raises(RuleError) as caught:
        rules_from_toml(text, "x.toml")
    assert str(caught.value).startswith(what)


def test_an_error_that_kafka_would_not_send_is_a_warning() -> None:
    rules = Rules([Rule(api="Heartbeat", error="CORRUPT_MESSAGE")])
    (warning,) = rules.warnings
    assert "Kafka does not send CORRUPT_MESSAGE in Heartbeat; it sends" in warning
    assert "REBALANCE_IN_PROGRESS" in warning
    assert Rules([Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS")]).warnings == []
    assert Rules([Rule(api="Heartbeat", error="UNKNOWN_SERVER_ERROR")]).warnings == []


def test_a_rule_without_an_api_means_those_that_send_its_error() -> None:
    rules = Rules([Rule(topic="orders", error="TOPIC_AUTHORIZATION_FAILED")])
    wanted = {key for key in range(95) if rules.wants(key, {0: 9, 1: 12}.get(key, 0))}
    assert {0, 1, 2, 3, 8} <= wanted
    assert not wanted & {11, 12, 14, 18, 22}


@hypothesis.given(st.text(alphabet="ab=[]{}'\" 1,.-\n", max_size=30))
def test_any_text_is_a_rule_or_a_mistake(text: str) -> None:
    try:
        rule_from_flag(text)
    except RuleError as error:
        assert str(error)


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 9),
    st.text(max_size=4),
    st.sampled_from(["Fetch", "10ms", "1..3", "NOT_COORDINATOR", "before", float("nan")]),
    st.lists(st.one_of(st.integers(0, 3), st.text(max_size=2)), max_size=2),
    st.dictionaries(st.sampled_from(["uniform", "bits", "Fetch"]), st.integers(), max_size=2),
)


@hypothesis.given(st.dictionaries(st.sampled_from([*KEYS, *ACTIONS, "nokey"]), VALUES, max_size=4))
def test_any_words_are_a_rule_or_a_mistake(words: dict[str, Any]) -> None:
    try:
        Rules([words])
    except RuleError as error:
        assert str(error)
