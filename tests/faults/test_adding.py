"""The page on how to add an action, followed to the letter; and a core that knows none by name."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import pytest

from kproxy.proxy.faults import Rule, RuleError, Rules, actions, help_text, rule_from_flag, table
from kproxy.proxy.faults.action import Action, Plan
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.proxy.faults.values import parse_yes
from kproxy.proxy.verdicts import Ending, Verdict
from tests.faults.making import NOW, ask, respond
from tests.faults.test_rules import ANSWER, BEAT


def as_the_page_says() -> dict[str, Action]:
    """The table of actions with the one of the page, made of the page's own code."""
    assert actions.__doc__ is not None
    blocks = re.findall(r"::\n\n((?:    .*\n|\n)+)", actions.__doc__)
    code, line = map(textwrap.dedent, blocks)
    names: dict[str, Any] = dict(vars(actions))
    exec(code, names)
    return ACTIONS | eval(f"{{{line}}}", names)


def test_who_follows_the_page_has_an_action() -> None:
    known = as_the_page_says()
    (key,) = known.keys() - ACTIONS.keys()
    rules = Rules([Rule(api="Heartbeat", times=2, **{key: True})], actions=known)
    verdicts = [ask(rules, BEAT) for _ in range(3)]
    assert [(rule.matched, rule.fired) for rule in rules.rules] == [(3, 2)]
    assert verdicts[2] is None
    for verdict in verdicts[:2]:
        assert verdict is not None
        (note,) = verdict.notes
        assert (note.body["action"], note.body["phase"]) == (key, "before")
        assert verdict == Verdict(fault_ids=(1,), notes=verdict.notes)  # nothing happens
        assert respond(verdict, ANSWER) == Verdict()
    assert table(rules.rules).endswith("    1        3      2  api=Heartbeat times=2 nothing=true")


def test_help_and_errors_know_it_too() -> None:
    known = as_the_page_says()
    action = known["nothing"]
    assert rule_from_flag(action.example, actions=known) == Rule(api="Produce", nothing=True)
    assert f"nothing\n    {action.example}\n\n    Nothing happens" in help_text(known)
    with pytest.raises(RuleError, match="nothing: 3 is not true"):
        rule_from_flag("nothing=3", actions=known)
    with pytest.raises(RuleError, match="this one has drop and nothing"):
        rule_from_flag("nothing=true drop=true", actions=known)
    with pytest.raises(RuleError, match=r"noting: this is no key of a rule .*nothing"):
        rule_from_flag("noting=true", actions=known)
    with pytest.raises(RuleError, match="nothing: this is no key of a rule"):
        rule_from_flag("nothing=true")
    rules = Rules([{"name": "a", "drop": True}], actions=known)
    assert rules.change("a", {"drop": None, "nothing": True}).key == "nothing"


def test_a_rule_that_changes_keeps_what_it_has_done_and_what_it_waits_for() -> None:
    rules = Rules([Rule(name="a", api="Heartbeat", throttle="1s", times=1)], now=NOW)
    ask(rules, BEAT, connection=5)
    active = rules.change("a", {"throttle": "2s"})
    assert (active.fault_id, active.matched, active.fired, active.since_ns) == (1, 1, 1, NOW)
    rules.closed(5)  # it never came to it
    assert rules.find("a").fired == 0


def test_delays_of_an_action_and_of_those_that_add_up_are_summed() -> None:
    late = Action(lambda hit: Plan(Verdict(delay_ns=5)), parse_yes, "late=true")
    both = Action(
        lambda hit: Plan(Verdict(delay_ns=100, response=Verdict(delay_ns=2000))),
        parse_yes,
        "both=true",
        adds_up=True,
    )
    known = ACTIONS | {"late": late, "both": both}
    rules = Rules(
        [Rule(both=True), Rule(late=True), Rule(both=True), Rule(disconnect=True)], actions=known
    )
    verdict = ask(rules, BEAT)
    assert verdict is not None
    assert (verdict.delay_ns, respond(verdict, ANSWER).delay_ns) == (205, 4000)
    assert verdict.fault_ids == (1, 2, 3)
    assert verdict.ending is not Ending.DISCONNECT
