"""Whatever passes, rules raise nothing, and what they send is well formed or a prefix of it."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy.proxy.faults import Rule, RuleError, Rules, actions, words_from_text
from kproxy.wire.protocol import codec, schema
from tests.faults.making import (
    KINDS,
    LATEST,
    NOW,
    TOPIC_NAMES,
    context,
    request_frame,
    respond,
    response_frame,
)
from tests.wire.protocol.strategies import bodies

ACTIONS: list[dict[str, Any]] = [
    {"error": "UNKNOWN_SERVER_ERROR"},
    {"error": "UNKNOWN_SERVER_ERROR", "level": "topic"},
    {"error": "UNKNOWN_SERVER_ERROR", "level": "partition"},
    {"error": "UNSUPPORTED_VERSION", "topic": "*"},
    {"error": "UNSUPPORTED_VERSION", "partition": "..0"},
    {"throttle": "1s", "group": "*"},
    {"latency": {"uniform": ["1ms", "2ms"]}, "topic": "topic"},
    {"corrupt": 3},
    {"corrupt": {"bits": 900, "fix_crc": True}},
    {"hide_node": 1},
    {"stale_leader": True},
    {"move_coordinator": True},
    {"rebootstrap": True},
    {"max_version": {"Produce": 1}},
    {"hide_api": [0, 1]},
    {"disconnect": True, "transactional_id": "*"},
    {"duplicate": True, "where": "topic:* or group:*"},
    {"truncate": 3},
]
ACTIONS += [
    {key: words_from_text(action.example)[key]}
    for key, action in actions.ACTIONS.items()
    if not any(key in words for words in ACTIONS)
]  # others, and new ones, as their examples have them


@functools.cache
def possible(api_key: int) -> list[Rule]:
    """The rules that an API can have."""
    found = []
    for words in ACTIONS:
        for phase in ("before", "after"):
            with contextlib.suppress(RuleError):
                rule = Rule(api=api_key, phase=phase, **words)
                Rules([rule])
                found.append(rule)
        with contextlib.suppress(RuleError):
            Rules([Rule(api=api_key, **words)])
            found.append(Rule(api=api_key, **words))
    return found


@pytest.mark.parametrize("api_key", sorted(LATEST), ids=schema.api_name)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=2, suppress_health_check=list(hypothesis.HealthCheck))
def test_rules_survive_any_traffic(api_key: int, data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([each for key, each in KINDS if key == api_key]))
    kind = api_key, version
    rules = Rules(data.draw(st.lists(st.sampled_from(possible(api_key)), min_size=1, max_size=3)))
    frames = {}
    for direction in (schema.REQUEST, schema.RESPONSE):
        message = schema.message(api_key, direction)
        assert message is not None
        frames[direction] = data.draw(bodies(message, version))
    request = _damaged(data, request_frame(*kind, frames[schema.REQUEST]))
    response = _damaged(data, response_frame(*kind, frames[schema.RESPONSE]))

    verdict = rules.on_request(context(topic_names=TOPIC_NAMES), request, NOW)
    if verdict is not None:
        for sent in verdict.frames or ():
            assert sent == request or codec.decode_request(sent).header.api_key == api_key
        for sent in respond(verdict, response, NOW).frames or ():
            codec.decode_response(sent, api_key, version)
    rules.closed(1)
    for rule in rules.rules:
        assert 0 <= rule.fired <= rule.matched


def _damaged(data: st.DataObject, frame: bytes) -> bytes:
    """The frame, maybe with a byte changed or its end cut off; its size and header hold."""
    if data.draw(st.booleans()):
        return frame
    at = data.draw(st.integers(8, len(frame) - 1)) if len(frame) > 8 else len(frame)
    changed = frame[:at] + data.draw(st.binary(max_size=1)) + frame[at + 1 :]
    return (len(changed) - 4).to_bytes(4) + changed[4:]
