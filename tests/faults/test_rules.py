"""Rules at work: who wins, what is counted, what is decided alike, what changes while running."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy.proxy.faults import Rule, RuleError, Rules, plain, table, unmatched
from kproxy.proxy.verdicts import Ending
from kproxy.wire.protocol import messages
from tests.faults.making import NOW, ask, request_frame, respond, response_frame

HEARTBEAT = 12
SECOND = 1_000_000_000


def heartbeat(group: str = "g", client_id: str | None = "app") -> bytes:
    """The smallest request there is."""
    return request_frame(
        HEARTBEAT, 4, messages.HeartbeatRequest(group_id=group), client_id=client_id
    )


BEAT = heartbeat()
ANSWER = response_frame(HEARTBEAT, 4, messages.HeartbeatResponse())


def fired(rules: Rules, count: int = 20, name: str | None = None, **where: Any) -> list[int]:
    """The ordinals of the heartbeats that a rule (the only one) hits."""
    rule = rules.find(name) if name else rules.rules[0]
    found: list[int] = []
    for number in range(1, count + 1):
        before = rule.fired
        ask(rules, BEAT, now=NOW + number * SECOND, number=number, **where)
        if rule.fired > before:
            found.append(number)
    return found


# ── triggers ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "hits"),
    [
        ({}, list(range(1, 11))),
        ({"times": 2}, [1, 2]),
        ({"skip": 3}, [4, 5, 6, 7, 8, 9, 10]),
        ({"skip": 3, "times": 2}, [4, 5]),
        ({"every": 3}, [3, 6, 9]),
        ({"every": 3, "skip": 2, "times": 2}, [5, 8]),
        ({"start_after": "4s"}, [5, 6, 7, 8, 9, 10]),
        ({"duration": "3s"}, [1, 2, 3]),
        ({"start_after": "2s", "duration": "3s", "every": 2}, [4]),
        ({"probability": 0}, []),
    ],
)
def test_what_is_hit(words: dict[str, Any], hits: list[int]) -> None:
    assert fired(Rules([Rule(drop=True, **words)]), 10) == hits


def test_time_begins_when_the_rule_is_loaded() -> None:
    rules = Rules([Rule(drop=True, start_after="5s")], now=NOW)
    assert fired(rules, 8) == [5, 6, 7, 8]


def test_a_probability_is_met() -> None:
    hits = fired(Rules([Rule(drop=True, probability=0.3)], seed=1), 3000)
    assert 800 < len(hits) < 1000


@hypothesis.given(
    seed=st.integers(0, 1 << 32),
    others=st.lists(st.sampled_from([0.0, 0.4, 1.0]), max_size=4),
    at=st.integers(0, 4),
)
def test_other_rules_do_not_change_what_a_rule_decides(
    seed: int, others: list[float], at: int
) -> None:
    mine = Rule(name="mine", latency="1ms", probability=0.5, skip=2)
    alone = fired(Rules([mine], seed=seed), 30, "mine")
    rules: list[Rule] = [
        Rule(name=f"other {number}", drop=True, probability=probability, every=2)
        for number, probability in enumerate(others)
    ]
    rules.insert(min(at, len(rules)), mine)
    assert fired(Rules(rules, seed=seed), 30, "mine") == alone


def test_the_seed_decides_and_so_does_the_name() -> None:
    def hits(seed: int, name: str) -> list[int]:
        return fired(Rules([Rule(name=name, drop=True, probability=0.5)], seed=seed), 40)

    assert hits(1, "x") == hits(1, "x")
    assert hits(1, "x") != hits(2, "x")
    assert hits(1, "x") != hits(1, "y")
    # Pinned: an experiment that was written down with its seed must stay the same.
    assert fired(Rules([Rule(name="x", drop=True, probability=0.5)], seed=1), 12) == [
        *(1, 4, 5, 6, 10, 12)
    ]


# ── several rules ────────────────────────────────────────────────────────────────────────────


def test_the_first_rule_wins_and_the_next_keeps_its_turn() -> None:
    rules = Rules(
        [
            Rule(name="first", api="Heartbeat", error="REBALANCE_IN_PROGRESS", times=1),
            Rule(name="second", api="Heartbeat", disconnect=True, times=1),
        ]
    )
    verdicts = [ask(rules, BEAT) for _ in range(3)]
    assert verdicts[0].response is not None
    assert verdicts[1].ending is Ending.DISCONNECT
    assert verdicts[2] is None
    assert [(rule.matched, rule.fired) for rule in rules.rules] == [(3, 1), (3, 1)]


def test_latencies_add_up_and_do_not_keep_others_from_winning() -> None:
    rules = Rules(
        [
            Rule(latency="10ms"),
            Rule(latency="5ms"),
            Rule(latency="2ms", phase="before"),
            Rule(api="Heartbeat", disconnect=True, phase="after"),
        ]
    )
    verdict = ask(rules, BEAT)
    found = respond(verdict, ANSWER)
    assert verdict.delay_ns == 2_000_000
    assert (found.delay_ns, found.ending) == (15_000_000, Ending.DISCONNECT)
    assert verdict.fault_ids == (1, 2, 3, 4)
    assert [note.body["fault_id"] for note in verdict.notes] == [1, 2, 3, 4]


def test_our_own_response_is_late_by_all_latencies() -> None:
    rules = Rules(
        [
            Rule(latency="10ms"),
            Rule(latency="2ms", phase="before"),
            Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS"),
        ]
    )
    verdict = ask(rules, BEAT)
    assert verdict.response.delay_ns == 12_000_000
    assert verdict.delay_ns == 0


def test_a_changed_response_is_late_too() -> None:
    rules = Rules([Rule(latency="10ms"), Rule(api="Heartbeat", throttle="1s", client_id="app")])
    verdict = ask(rules, BEAT)
    assert callable(verdict.response)  # it depends on what the broker says
    assert respond(verdict, ANSWER).delay_ns == 10_000_000
    # A response that cannot be read is passed on, late all the same.
    broken = respond(ask(rules, BEAT), ANSWER[:4] + b"\xff" * 4)
    assert (broken.frames, broken.delay_ns) == (None, 10_000_000)


def test_a_request_that_cannot_be_read_is_nobodys_item() -> None:
    rules = Rules([Rule(group="g", drop=True), Rule(latency="1ms")])
    verdict = ask(rules, BEAT[:20])
    assert verdict.fault_ids == (2,)


# ── matching ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "matches"),
    [
        ({"api": "Heartbeat"}, True),
        ({"api": 12}, True),
        ({"api": ["Fetch", "Heartbeat"]}, True),
        ({"api": "Fetch"}, False),
        ({"api_version": 4}, True),
        ({"api_version": "..3"}, False),
        ({"api_version": [0, "4.."]}, True),
        ({"group": "g"}, True),
        ({"group": "g*"}, True),
        ({"group": ["x", "*"]}, True),
        ({"group": "G"}, False),
        ({"client_id": "a*p"}, True),
        ({"client_id": "b*"}, False),
        ({"node_id": 1}, True),
        ({"node_id": "2.."}, False),
        ({"transactional_id": "g"}, False),
        ({"where": "group:g client_id:app"}, True),
        ({"where": "not api:Heartbeat"}, False),
    ],
)
def test_who_is_meant(words: dict[str, Any], matches: bool) -> None:
    rules = Rules([Rule(drop=True, **words)])
    ask(rules, BEAT)
    assert rules.rules[0].matched == int(matches)


def test_what_has_no_client_id_or_node_is_not_meant() -> None:
    rules = Rules([Rule(drop=True, client_id="*"), Rule(drop=True, node_id="0..")])
    ask(rules, heartbeat(client_id=None), node_id=None)
    assert [rule.matched for rule in rules.rules] == [0, 0]


def test_only_kinds_that_a_rule_can_mean_are_wanted() -> None:
    rules = Rules(
        [
            Rule(api="Fetch", latency="1ms"),
            Rule(group="g", latency="1ms"),
            Rule(api="Metadata", rebootstrap=True),
        ]
    )
    assert rules.wants(1, 0)
    assert rules.wants(HEARTBEAT, 4)
    assert not rules.wants(0, 9)
    assert (rules.wants(3, 12), rules.wants(3, 13)) == (False, True)
    assert not rules.wants(999, 0)
    assert Rules([Rule(node_id=1, drop=True)]).wants(999, 0)


# ── counting ─────────────────────────────────────────────────────────────────────────────────


def test_a_rule_that_waits_for_a_response_has_its_turn_back_when_none_comes() -> None:
    rules = Rules([Rule(api="Heartbeat", throttle="1s", times=1)])
    ask(rules, BEAT, connection=5)
    assert ask(rules, BEAT, connection=6) is None  # taken
    rules.closed(5)
    verdict = ask(rules, BEAT, connection=6)
    assert respond(verdict, ANSWER).fault_ids == (1,)
    rules.closed(6)
    assert rules.rules[0].fired == 1


def test_every_fault_is_noted_once() -> None:
    rules = Rules([Rule(name="slow", latency="1ms"), Rule(api="Heartbeat", throttle="1s")])
    verdict = ask(rules, BEAT, number=17, connection=3)
    notes = [*verdict.notes, *respond(verdict, ANSWER, now=NOW + 9).notes]
    assert [(note.body["rule"], note.body["action"], note.time_ns - NOW) for note in notes] == [
        ("slow", "latency", 0),
        ("api=Heartbeat throttle=1s", "throttle", 9),
    ]
    assert {(note.body["number"], note.body["connection"]) for note in notes} == {(17, 3)}
    assert notes[0].body["delay_ms"] == 1.0


def test_the_table_and_the_warnings() -> None:
    rules = Rules(
        [
            Rule(name="used", api="Heartbeat", drop=True),
            Rule(name="idle", api="Fetch", drop=True),
            Rule(name="shy", api="Heartbeat", drop=True, skip=99),
        ]
    )
    rules.enable("idle", False)
    for _ in range(12):
        ask(rules, BEAT)
    assert table(rules.rules) == (
        "fault  matched  fired  rule\n"
        "    1       12     12  used\n"
        "    2        0      0  idle (disabled)\n"
        "    3       12      0  shy"
    )
    assert unmatched(rules.rules) == [
        "fault rule 'idle' never matched",
        "fault rule 'shy' matched 12 times and never fired",
    ]


# ── changing ─────────────────────────────────────────────────────────────────────────────────


def test_rules_change_while_running() -> None:
    rules = Rules()
    seen = {rules.generation}

    def changed() -> bool:
        new = rules.generation not in seen
        seen.add(rules.generation)
        return new

    assert not rules.wants(HEARTBEAT, 4)
    rules.add({"name": "a", "api": "Heartbeat", "drop": True})
    assert changed()
    assert rules.wants(HEARTBEAT, 4)
    ask(rules, BEAT)
    rules.change("a", {"drop": None, "disconnect": True, "times": 2})
    assert changed()
    assert ask(rules, BEAT).ending is Ending.DISCONNECT
    assert ask(rules, BEAT) is None  # the one before the change counts
    rules.reset()
    assert ask(rules, BEAT) is not None
    rules.enable("a", False)
    assert changed()
    assert not rules.wants(HEARTBEAT, 4)
    rules.enable(1)
    assert changed()
    rules.remove("a")
    assert changed()
    assert not rules.wants(HEARTBEAT, 4)
    assert rules.add(Rule(name="a", drop=True)).fault_id == 2
    rules.clear()
    assert rules.rules == ()


def test_a_change_that_cannot_be_leaves_all_as_it_was() -> None:
    rules = Rules([Rule(name="a", api="Heartbeat", drop=True), Rule(name="b", drop=True)])
    for name, words in [
        ("a", {"api": "Hertbeat"}),
        ("a", {"name": "b"}),
        ("c", {}),
        ("a", {"x": 1}),
    ]:
        with pytest.raises(RuleError):
            rules.change(name, words)
    with pytest.raises(RuleError, match="there is already a rule 'a'"):
        rules.add(Rule(name="a", drop=True))
    with pytest.raises(RuleError, match="there is no rule 'c'; the rules are 'a', 'b'"):
        rules.remove("c")
    assert [rule.name for rule in rules.rules] == ["a", "b"]
    assert rules.rules[0].rule == Rule(name="a", api="Heartbeat", drop=True)


def test_rules_without_names_are_called_by_their_words() -> None:
    rules = Rules([Rule(api="Heartbeat", drop=True)] * 2)
    assert [rule.name for rule in rules.rules] == [
        "api=Heartbeat drop=true",
        "api=Heartbeat drop=true #2",
    ]
    assert plain(rules.rules[0]) == {
        "fault_id": 1,
        "name": "api=Heartbeat drop=true",
        "enabled": True,
        "matched": 0,
        "fired": 0,
        "rule": {"api": "Heartbeat", "drop": True},
        "warnings": [],
    }


def beats(*correlation_ids: int) -> list[bytes]:
    body = messages.HeartbeatRequest(group_id="g")
    return [request_frame(HEARTBEAT, 4, body, each) for each in correlation_ids]


def said(rules: Rules) -> str:
    return table(rules.rules).splitlines()[1]


def test_a_client_that_asks_again_in_a_loop_is_told() -> None:
    rules = Rules([Rule(name="again", api="Heartbeat", error="COORDINATOR_NOT_AVAILABLE")])
    for frame in beats(*range(1, 1012)):
        ask(rules, frame)
    assert said(rules).endswith(
        "again (a loop: 1,010 times a client's next request was what this rule had just hit)"
    )
    rules.reset()
    assert said(rules).endswith("again")


@pytest.mark.parametrize(
    ("words", "step", "connections"),
    [
        ({"error": "COORDINATOR_NOT_AVAILABLE"}, 2, 1),  # it asked for something else meanwhile
        ({"error": "COORDINATOR_NOT_AVAILABLE"}, 1, 2),  # each answers another connection
        ({"latency": "1ms"}, 1, 1),  # that is how clients poll
    ],
)
def test_what_is_not_known_to_be_a_loop_is_none(
    words: dict[str, Any], step: int, connections: int
) -> None:
    rules = Rules([Rule(name="once", api="Heartbeat", **words)])
    for number, frame in enumerate(beats(*range(1, 200, step))):
        ask(rules, frame, connection=number % connections)
    assert said(rules).endswith("once")
