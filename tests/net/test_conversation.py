"""What clients of a recording ask a cluster, and in what order, by a cluster that is made up."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from kproxy.exchange.entries import Frame
from kproxy.exchange.pairing import pair
from kproxy.net.conversation import SentConversation
from kproxy.send.order import ahead, items
from kproxy.send.sent import Sent
from kproxy.send.substitution import Renaming
from kproxy.send.target import TargetCluster
from kproxy.wire import protocol
from kproxy.wire.protocol import codes, messages
from kproxy.wire.protocol.schema import NO_UUID
from tests.exchange.batches import batch
from tests.exchange.bodies import fetch_request, fetch_response
from tests.exchange.making import MS, request, response


class MadeUp:
    """A `Sender` without sockets: each connection takes less time than the one before."""

    def __init__(self, answer: Callable[[Any], Any]) -> None:
        self.cluster, self.sent = TargetCluster(), Sent()
        self.cluster.versions = dict.fromkeys(range(100), (0, 99))
        self.cluster.nodes = {1: ("broker", 9092)}
        self.asked: list[Any] = []
        self._answer = answer

    async def learn_topics(self, topics: set[str]) -> None:
        """All are led by the same broker."""
        self.cluster.topic_ids |= dict.fromkeys(topics, NO_UUID)

    async def learn_coordinator(self, key: tuple[int, str]) -> None:
        """It coordinates all groups, too."""
        self.cluster.coordinators[key] = 1

    async def connect(self, node: int | None, client_id: str | None) -> Any:
        """Connect."""
        self.sent.connections += 1
        await trio.sleep(1 / self.sent.connections)
        return SimpleNamespace(ended=False)

    async def request(
        self, link: Any, key: int, version: int, client_id: str, body: Any, take: Any
    ) -> None:
        """Answer at once."""
        self.asked.append(body)
        answer = protocol.Response(messages.ResponseHeader(), self._answer(body), version)
        take(protocol.encode_response(answer, key))

    def close(self, link: Any) -> None:
        """End nothing."""


async def send(frames: list[Frame], answer: Callable[[Any], Any]) -> MadeUp:
    """Send what these frames are to a cluster that answers so."""
    made_up = MadeUp(answer)
    conversation = SentConversation(made_up, Renaming(), 0, False)  # pyrefly: ignore
    await conversation.run(ahead(items((None, each) for each in pair(frames))))
    return made_up


async def test_members_join_in_the_order_that_they_had(autojump_clock) -> None:
    """So the same one leads, however long each takes to connect."""
    kind = messages.JoinGroupRequest
    asked = [
        request("JoinGroup", 5, kind(group_id="g", group_instance_id=f"{n}"), n, connection=n)
        for n in range(1, 4)
    ]
    joined = messages.JoinGroupResponse()
    answers = [response(each, joined, received_ns=asked[-1].sent_ns + MS) for each in asked]
    made_up = await send([*asked, *answers], lambda body: joined)
    assert [each.group_instance_id for each in made_up.asked] == ["1", "2", "3"]


@pytest.mark.parametrize("is_only_given_its_id", [True, False])
async def test_a_member_that_is_only_given_its_id_waits_for_what_came_before_that(
    is_only_given_its_id: bool, autojump_clock
) -> None:
    """It holds up the others until it comes with it."""
    error_code = codes.MEMBER_ID_REQUIRED if is_only_given_its_id else codes.NONE
    joined, metadata = messages.JoinGroupResponse(error_code=error_code), messages.MetadataResponse
    before = request("Metadata", 4, messages.MetadataRequest())
    join = request("JoinGroup", 5, messages.JoinGroupRequest(group_id="g"), 2, connection=2)
    told = response(before, metadata(), received_ns=join.sent_ns + MS)
    frames = [before, join, told, response(join, joined)]
    made_up = await send(
        frames, lambda body: joined if isinstance(body, messages.JoinGroupRequest) else metadata()
    )
    kinds = [type(each).__name__ for each in made_up.asked]
    assert (kinds == ["MetadataRequest", "JoinGroupRequest"]) is is_only_given_its_id


async def test_a_fetch_goes_on_until_all_that_was_recorded_has_come(autojump_clock) -> None:
    batches = {0: batch(2), 2: batch(3, offset=2)}
    asked = request("Fetch", 4, fetch_request({0: 0}))
    frames = [asked, response(asked, fetch_response({0: b"".join(batches.values())}))]
    offsets = []

    def answer(body: Any) -> Any:
        offsets.append(body.topics[0].partitions[0].fetch_offset)
        return fetch_response({0: batches[offsets[-1]]})

    made_up = await send(frames, answer)
    assert offsets == [0, 2]
    assert not made_up.sent.differences
