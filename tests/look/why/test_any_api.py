"""Stories of recordings with every API in every version: none fails, whatever bodies hold."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from kproxy.look.why.stories import SUBJECTS, show_why
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
