"""`kproxy why number:N` of every error that Kafka has: no contradiction, no retry that is none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kproxy.look.why.number import number_story
from kproxy.look.why.source import StorySource
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.errors import CODES
from tests import versions
from tests.exchange.bodies import fetch_request, fetch_response
from tests.look.why.traffic import Traffic, initialized, metadata, numbered, produce

M = messages
Exchange = tuple[str, int, object, object]

NO_LATER = "The recording shows no later"


def _produce(part: int, code: int) -> Exchange:
    made = produce(numbered(5, 0, 0), part)
    made[3].responses[0].partition_responses[0].error_code = code
    return made


def _fetch(part: int, code: int) -> Exchange:
    body = fetch_response({part: b""})
    body.responses[0].partitions[0].error_code = code
    return "Fetch", 11, fetch_request({part: 5}, session_id=part + 1, session_epoch=1), body


def _whole_fetch(part: int, code: int) -> Exchange:
    asked = fetch_request({part: 5}, session_id=part + 1, session_epoch=1)
    return "Fetch", 11, asked, M.FetchResponse(error_code=code)


def _metadata(part: int, code: int) -> Exchange:
    return metadata({}, f"topic-{part}", error_code=code)


def _heartbeat(part: int, code: int) -> Exchange:
    asked = M.HeartbeatRequest(group_id="billing", generation_id=3, member_id=f"m-{part}")
    return "Heartbeat", 3, asked, M.HeartbeatResponse(error_code=code)


def _join(part: int, code: int) -> Exchange:
    asked = M.JoinGroupRequest(
        group_id="billing", member_id=f"m-{part}", group_instance_id=f"i-{part}"
    )
    return "JoinGroup", 8, asked, M.JoinGroupResponse(error_code=code, member_id=f"m-{part}")


def _commit(part: int, code: int) -> Exchange:
    A, R = M.OffsetCommitRequest, M.OffsetCommitResponse
    one = A.OffsetCommitRequestPartition(partition_index=part, committed_offset=5)
    asked = A(
        group_id="billing", topics=[A.OffsetCommitRequestTopic(name="orders", partitions=[one])]
    )
    got = R.OffsetCommitResponsePartition(partition_index=part, error_code=code)
    topics = [R.OffsetCommitResponseTopic(name="orders", partitions=[got])]
    return "OffsetCommit", 8, asked, R(topics=topics)


def _member(part: int, code: int) -> Exchange:
    H = M.ConsumerGroupHeartbeatRequest
    asked = H(group_id="billing", member_id=f"m-{part}", member_epoch=3)
    return "ConsumerGroupHeartbeat", 0, asked, M.ConsumerGroupHeartbeatResponse(error_code=code)


def _end(part: int, code: int) -> Exchange:
    A = M.EndTxnRequest
    asked = A(transactional_id=f"tx-{part}", producer_id=5, producer_epoch=0, committed=True)
    return "EndTxn", 1, asked, M.EndTxnResponse(error_code=code)


def _initialize(part: int, code: int) -> Exchange:
    made = initialized(f"tx-{part}", 5, 0)
    made[3].error_code = code
    return made


def _coordinator(part: int, code: int) -> Exchange:
    asked = M.FindCoordinatorRequest(key=f"group-{part}", key_type=0)
    return "FindCoordinator", 2, asked, M.FindCoordinatorResponse(error_code=code)


def _create(part: int, code: int) -> Exchange:
    A, R = M.CreateTopicsRequest, M.CreateTopicsResponse
    topic = A.CreatableTopic(name=f"topic-{part}", num_partitions=1, replication_factor=3)
    result = R.CreatableTopicResult(name=f"topic-{part}", error_code=code)
    return "CreateTopics", 5, A(topics=[topic]), R(topics=[result])


def _handshake(part: int, code: int) -> Exchange:
    asked = M.SaslHandshakeRequest(mechanism=f"PLAIN{part}")
    return "SaslHandshake", 1, asked, M.SaslHandshakeResponse(error_code=code, mechanisms=["X"])


APIS: list[Callable[[int, int], Exchange]] = [
    _produce, _fetch, _whole_fetch, _metadata, _heartbeat, _join, _commit, _member, _end,
    _initialize, _coordinator, _create, _handshake,
]  # fmt: skip
ERRORS = sorted(name for name, code in CODES.items() if code)


ROTATIONS = range(len(APIS) if versions.ALL else 1)
"""Each error with one API, or, with KPROXY_TEST_ALL=1, with all of them."""


def told(path: Path, number: int) -> list[str]:
    return list(number_story(StorySource([path], lambda done_bytes: None), str(number)))


def consistent(story: list[str], name: str) -> None:
    """AssertionError where a story has no reason, repeats itself, or has holes."""
    text = "\n".join(story[1:])
    assert f"failed with {name}" in text
    assert len(set(story)) == len(story), "a sentence is there twice"
    assert not re.search(r"\bNone\b|  |\{|\}|\.\.|-1\b|does not help", text), text
    assert all(re.match(r"[A-Z#0-9a-z].*[.”]$", line) for line in story[1:]), text


@pytest.mark.parametrize("rotation", ROTATIONS)
@pytest.mark.parametrize("first", range(0, len(ERRORS), len(APIS)))
def test_every_error_has_a_story_and_no_retry_that_is_none(first, rotation, tmp_path):
    traffic, cases = Traffic(), []
    for at, name in enumerate(ERRORS[first : first + len(APIS)]):
        make = APIS[(first + at + rotation) % len(APIS)]
        number = traffic.add(1000 * at, *make(2 * at, CODES[name]))
        traffic.add(1000 * at + 100, *make(2 * at + 1, 0))  # another partition, member, key
        cases.append((name, number))
    path = traffic.recorded(tmp_path)
    for name, number in cases:
        story = told(path, number)
        consistent(story, name)
        again = [line for line in story if "later client a" in line]
        assert not [line for line in again if "joined group billing again" not in line], story
        assert again or [line for line in story if line.startswith(NO_LATER)], story
