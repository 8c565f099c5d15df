"""Stories of recordings with every API in every version: none fails, whatever bodies hold; and each
fault action has its sentence."""

from __future__ import annotations

import io
from pathlib import Path
from unittest.mock import Mock

import pytest

from kproxy.exchange.entries import WITHHELD
from kproxy.look.why.number import what_rules_did
from kproxy.look.why.stories import SUBJECTS, show_why
from kproxy.proxy.faults.action import PHASES
from kproxy.proxy.faults.actions import ACTIONS
from kproxy.wire.protocol import schema
from tests.exchange.bodies import filled
from tests.look.why.traffic import Traffic


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of all APIs in all versions, each answered once and once not."""
    traffic = Traffic()
    for key, api in schema.api_names().items():
        asked, answered = schema.message(key, "request"), schema.message(key, "response")
        if asked is None or answered is None:
            continue
        for version in asked.versions:
            request = filled(asked.name, asked.fields, version)
            response = filled(answered.name, answered.fields, version)
            for answer in (response, None):
                traffic.add(traffic.number, api, version, request, answer, client="x")
    assert traffic.number > 500
    return traffic.recorded(tmp_path_factory.mktemp("all"))


@pytest.mark.parametrize("subject", [each for each in SUBJECTS if not SUBJECTS[each].numbered])
def test_a_story_of_any_exchange_is_told(everything, subject):
    out = io.StringIO()
    is_found = show_why([everything], subject, "x", out, SUBJECTS[subject].within and "x")
    assert is_found == (subject != "fault")
    assert (subject == "key") == out.getvalue().startswith(
        "No record of x that can be read has key"
    )
    assert bool(out.getvalue()) == is_found


@pytest.mark.parametrize("action", ACTIONS)
def test_each_fault_action_has_a_sentence(action: str) -> None:
    row = Mock(request_flags=WITHHELD, response_flags=WITHHELD)
    exchange = Mock(row=row, faults=(), one_way=False)
    phases = ACTIONS[action].phases
    for phase in phases if isinstance(phases, tuple) else PHASES:
        (said,) = what_rules_did(exchange, [{"rule": "r", "action": action, "phase": phase}])
        assert "acted on it" not in said, (
            f"{action} has no sentence for phase {phase}: add one to kproxy/look/why/number.py"
        )
