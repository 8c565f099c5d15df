"""What a recording or a broker may hold does no harm: to secrets, to the cluster, to the run."""

from __future__ import annotations

import pytest

from kproxy.exchange.entries import Frame, Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import pair
from kproxy.net import sending
from kproxy.proxy import redact
from kproxy.send import calls, compared
from kproxy.send.apis import why_left_out
from kproxy.send.planned import SendPlan
from kproxy.send.sender import Sender
from kproxy.send.transactions import ImplicitTransactions
from kproxy.wire import protocol
from kproxy.wire.protocol import api_key, codec, messages


def exchange(request, version: int, response=None) -> Exchange:
    """The exchange of a recording, blanked as recordings are."""
    key = api_key(type(request).__name__.removesuffix("Request"))
    head = messages.RequestHeader(api_key=key, api_version=version, correlation_id=1)
    sides = {Side.CLIENT: protocol.encode_request(protocol.Request(head, request))}
    if response is not None:
        sides[Side.BROKER] = answer(response, version)
    frames = []
    for side, frame in sides.items():
        data = redact.redact(frame, side, key, version) or frame
        times = 1 + len(frames)
        frames.append(Frame(side, 1, 1, key, version, 1, times, [data], len(data), sent_ns=times))
    return next(pair(frames))


def answer(response, version: int) -> bytes:
    """The frame of a response."""
    key = api_key(type(response).__name__.removesuffix("Response"))
    header = messages.ResponseHeader(correlation_id=1)
    return codec.encode_response(protocol.Response(header, response, version), key)


def has_all(where) -> bool:
    """A cluster that lacks no partition."""
    return False


def token(secret: str, principal: str = "bob"):
    """A response with a token."""
    kind = messages.DescribeDelegationTokenResponse
    each = kind.DescribedDelegationToken(
        principal_type="User", principal_name=principal, token_id=secret, hmac=secret.encode()
    )
    return kind(tokens=[each])


def test_secrets_are_no_differences_and_are_not_shown() -> None:
    recorded = exchange(messages.DescribeDelegationTokenRequest(), 3, token("old"))
    key = recorded.api_key
    assert b"old" not in recorded.response_frame
    then = calls.decoded(recorded.response_frame, key, 3)
    now = calls.decoded(answer(token("a new one", "eve"), 3), key, 3)
    found = list(compared.differences(recorded, then, now, 3, has_all))
    assert [(each.recorded, each.now) for each in found] == [("bob", "eve")]
    unseen = calls.decoded(answer(token(""), 3), key, 3)
    assert "new one" not in str(list(compared.differences(recorded, unseen, now, 3, has_all)))


@pytest.mark.parametrize("version", [12, 16])
def test_a_follower_fetches_between_brokers(version: int) -> None:
    kind = messages.FetchRequest
    state = kind.ReplicaState(replica_id=2, replica_epoch=1) if version > 14 else {}
    follower = kind(replica_state=state) if version > 14 else kind(replica_id=2)
    assert why_left_out(exchange(follower, version), True) == "requests between brokers"
    assert why_left_out(exchange(kind(), version), True) == ""


def test_a_damaged_transactional_batch_begins_nothing() -> None:
    kind = messages.ProduceRequest
    topic = kind.TopicProduceData(name="t")
    for records in (b"\xff" * 80, b"\0" * 16 + b"\x02" + b"\0" * 5, b""):
        topic.partition_data = [kind.PartitionProduceData(index=0, records=records)]
        body = kind(transactional_id="tx", topic_data=[topic])
        assert list(ImplicitTransactions().requests("Produce", 12, 11, body)) == []


@pytest.mark.parametrize(
    ("cluster_id", "port", "same"), [("", 9092, True), ("", 9093, False), ("other", 9092, False)]
)
async def test_a_cluster_is_known_by_where_its_names_lead(cluster_id, port, same) -> None:
    plan = SendPlan(cluster_ids={"recorded"} if cluster_id else set())
    plan.brokers.add(("localhost", 9092))
    to = Sender([("127.0.0.1", port)])
    to.cluster.cluster_id = cluster_id
    assert await sending._is_recorded(plan, to, [("127.0.0.1", port)]) is same
