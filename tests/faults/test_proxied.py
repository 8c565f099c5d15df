"""Rules in the proxy's machine: bytes in, bytes out, and what is recorded."""

from __future__ import annotations

from kproxy.exchange.entries import INJECTED, Side
from kproxy.proxy import verdicts
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rule, Rules
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import codec, messages
from tests.proxy.playing import BROKER, Player, heartbeat, heartbeat_answer, produce, response

SATISFIES: verdicts.Rules = Rules()
"""For the type checker."""


def player(*rules: Rule) -> Player:
    """A proxy with rules, and one connection."""
    found = Player(cluster=Cluster(Settings([BROKER], listen_port=19092), Rules(rules)))
    found.connect()
    return found


def test_our_response_waits_for_its_turn() -> None:
    proxy = player(Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS", every=2))
    proxy.client(heartbeat(1) + heartbeat(2) + heartbeat(3))
    assert proxy.to_broker() == heartbeat(1) + heartbeat(3)
    assert proxy.to_client() == b""
    proxy.broker(heartbeat_answer(1) + heartbeat_answer(3))
    assert proxy.to_client() == b"".join(
        [heartbeat_answer(1), heartbeat_answer(2, 27), heartbeat_answer(3)]
    )
    injected = [frame.number for frame in proxy.frames(Side.BROKER) if frame.flags & INJECTED]
    assert injected == [2]


def test_a_write_is_made_and_its_response_says_otherwise() -> None:
    proxy = player(Rule(api="Produce", phase="after", error="REQUEST_TIMED_OUT", times=1))
    frame = produce(acks=-1)
    proxy.client(frame)
    assert proxy.to_broker() == frame
    cls = messages.ProduceResponse
    partition = cls.PartitionProduceResponse(index=0, base_offset=5)
    topic = cls.TopicProduceResponse(name="orders", partition_responses=[partition])
    proxy.broker(response(0, 9, cls(responses=[topic])))
    body = codec.decode_response(proxy.to_client(), 0, 9).body
    (failed,) = body.responses[0].partition_responses
    assert (failed.error_code, failed.base_offset) == (7, -1)


def test_an_error_without_a_response_closes_the_connection() -> None:
    proxy = player(Rule(api="Produce", error="NOT_LEADER_OR_FOLLOWER"))
    proxy.client(produce(acks=0))
    assert proxy.to_broker() == b""
    assert 1 in proxy.closed


def test_the_second_response_to_a_duplicate_is_swallowed() -> None:
    proxy = player(Rule(api="Heartbeat", duplicate=True, times=1))
    proxy.client(heartbeat(1) + heartbeat(2))
    assert proxy.to_broker() == heartbeat(1) * 2 + heartbeat(2)
    proxy.broker(heartbeat_answer(1, 0) + heartbeat_answer(1, 25) + heartbeat_answer(2))
    assert proxy.to_client() == heartbeat_answer(1) + heartbeat_answer(2)
