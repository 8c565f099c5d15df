"""What is routine of the protocol, and what is an error: only what a recording proves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kproxy.exchange.entries import FAULTED, INJECTED, Frame
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.exchange.pairing import pair
from kproxy.exchange.routine import ROUTINE
from kproxy.recording import Recording, read
from kproxy.wire.protocol import api_key, error_code, messages
from tests.exchange.making import START_NS, opened, request, response

M = messages
Pair = Sequence[Frame]


def both(api: str, version: int, asked: Any, answered: Any, number: int = 1, **more: Any) -> Pair:
    """A request and its response; exchange n arrives n ms after the start."""
    sent = request(api, version, asked, number)
    return sent, response(sent, answered, **more)


def joined(member_id: str, error: str, number: int = 1, **more: Any) -> Pair:
    asked = M.JoinGroupRequest(group_id="g", member_id=member_id)
    answered = M.JoinGroupResponse(error_code=error_code(error))
    return both("JoinGroup", 5, asked, answered, number, **more)


def looked_up(number: int, key: str = "g", error: str = "NONE") -> Pair:
    answered = M.FindCoordinatorResponse(error_code=error_code(error) if error != "NONE" else 0)
    return both("FindCoordinator", 3, M.FindCoordinatorRequest(key=key), answered, number)


def given_id(number: int, error: str = "NONE") -> Pair:
    answered = M.InitProducerIdResponse(error_code=error_code(error))
    return both("InitProducerId", 1, M.InitProducerIdRequest(), answered, number)


def created(number: int, name: str, error_code: int = 0, validate_only: bool = False) -> Pair:
    topic = M.CreateTopicsRequest.CreatableTopic(name=name)
    result = M.CreateTopicsResponse.CreatableTopicResult(name=name, error_code=error_code)
    asked = M.CreateTopicsRequest(topics=[topic], validate_only=validate_only)
    return both("CreateTopics", 4, asked, M.CreateTopicsResponse(topics=[result]), number)


def described(number: int, error: str, *names: str) -> Pair:
    cls = M.MetadataResponse.MetadataResponseTopic
    code = error_code(error)
    topics = [cls(name=name, error_code=code, partitions=[]) for name in names]
    known = cls(name="known", error_code=0, partitions=[])
    return both(
        "Metadata", 8, M.MetadataRequest(), M.MetadataResponse(topics=[*topics, known]), number
    )


def fetched(session_id: int) -> Pair:
    code = error_code("FETCH_SESSION_ID_NOT_FOUND")
    asked = M.FetchRequest(session_id=session_id)
    return both("Fetch", 11, asked, M.FetchResponse(error_code=code))


UNKNOWN = "UNKNOWN_TOPIC_OR_PARTITION"
LOADING = "COORDINATOR_LOAD_IN_PROGRESS"
CASES: dict[str, tuple[bool, Sequence[Pair]]] = {
    "a new member": (True, [joined("", "MEMBER_ID_REQUIRED")]),
    "a member that had an id": (False, [joined("m-1", "MEMBER_ID_REQUIRED")]),
    "a member that is not known": (False, [joined("m-1", "UNKNOWN_MEMBER_ID")]),
    "a rebalance": (True, [joined("m-1", "REBALANCE_IN_PROGRESS")]),
    "a session after a restart": (True, [fetched(7)]),
    "a session that none is": (False, [fetched(0)]),
    "a group at its start": (True, [looked_up(1), joined("", LOADING, 2)]),
    "another group": (False, [looked_up(1, "other"), joined("", LOADING, 2)]),
    "a group that nobody looked up": (False, [joined("", LOADING)]),
    "a group that loads for long": (False, [looked_up(1), joined("", LOADING, 12_000)]),
    "the first producer id": (True, [given_id(1, LOADING)]),
    "a producer id after long": (False, [given_id(1), given_id(12_000, LOADING)]),
    "the first look": (True, [looked_up(1, error="COORDINATOR_NOT_AVAILABLE")]),
    "a look after long": (
        False, [looked_up(1), looked_up(12_000, error="COORDINATOR_NOT_AVAILABLE")],
    ),
    "a new topic": (True, [created(1, "t"), described(2, UNKNOWN, "t")]),
    "a new topic without a leader": (
        True, [created(1, "t"), described(2, "LEADER_NOT_AVAILABLE", "t")],
    ),
    "a typo": (False, [created(1, "t"), described(2, UNKNOWN, "tt")]),
    "a typo beside a new topic": (False, [created(1, "t"), described(2, UNKNOWN, "t", "tt")]),
    "a topic that was not created": (False, [created(1, "t", 41), described(2, UNKNOWN, "t")]),
    "a topic that was only tried": (
        False, [created(1, "t", validate_only=True), described(2, UNKNOWN, "t")],
    ),
    "a topic before it was created": (False, [described(1, UNKNOWN, "t"), created(2, "t")]),
    "a topic of long ago": (False, [created(1, "t"), described(12_000, UNKNOWN, "t")]),
    "made by a rule": (
        False,
        [joined("", "MEMBER_ID_REQUIRED", flags=INJECTED | FAULTED, fault_ids=(1,))],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_routine(name: str, tmp_path: Path) -> None:
    """Exchanges from frames and from a file, columns of tables and counts say the same."""
    from kproxy import tables  # needs pyarrow

    routine, frames = CASES[name]
    entries = [opened(), *(frame for each in frames for frame in each)]
    failed = [each for each in pair(entries) if each.errors and each.api != "CreateTopics"]
    assert [each.routine for each in failed] == [routine]
    path = tmp_path / "some.mcap"
    recording = Recording(path, start_ns=START_NS, schema_id="x", library_version="0")
    recording.write(entries)
    recording.close()
    number = [each.number for each in failed]
    assert found(path, "is:routine") == (number if routine else [])
    assert found(path, "is:error not api:CreateTopics") == ([] if routine else number)
    assert found(path, f"error:{failed[0].errors[0]}") == number
    rows: Any = tables.read(path, columns=["number", "routine"]).read_all()
    assert [row["number"] for row in rows.to_pylist() if row["routine"]] == (
        number if routine else []
    )


def found(path: Path, wanted: str) -> list[int]:
    exchanges: list[Exchange] = list(read(str(path), parse(wanted)))
    return [each.number for each in exchanges]


def test_the_table_names_what_there_is() -> None:
    for error, apis in ROUTINE.items():
        assert error_code(error) is not None
        assert None not in map(api_key, apis)
