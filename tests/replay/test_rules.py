"""Rules act in replay as they do in the proxy: on requests, and on responses."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from kproxy.proxy.faults import Rules
from kproxy.proxy.verdicts import Ending, RequestContext, Verdict
from kproxy.replay.ruled import RuledBroker
from kproxy.replay.settings import ReplaySettings
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.replay.making import MS, ORDERS_ID, Client, Playing, Recorded, batch, fetch, produce

HEARTBEAT = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
METADATA = messages.MetadataRequest(topics=None)


@attrs.define(eq=False)
class Script:
    """Decides as it was told, one request of its API after the other."""

    verdicts: list[Verdict | None]
    api_key: int = 3
    contexts: list[RequestContext] = attrs.Factory(list)
    forgotten: list[int] = attrs.Factory(list)

    @property
    def generation(self) -> int:
        """See Rules."""
        return 0

    def wants(self, api_key: int, api_version: int) -> bool:
        """See Rules."""
        return api_key == self.api_key

    def on_request(self, context: RequestContext, frame: bytes, now: int) -> Verdict | None:
        """See Rules."""
        self.contexts.append(context)
        return self.verdicts.pop(0) if self.verdicts else None

    def closed(self, connection: int) -> None:
        """See Rules."""
        self.forgotten.append(connection)


def recorded() -> Recorded:
    return Recorded().metadata().fetched(batch("a"))


def playing(*verdicts: Verdict | None) -> Playing:
    return Playing(recorded().loaded, rules=Script(list(verdicts)))


def correlation_ids(frames: Sequence[bytes]) -> list[int]:
    return [int.from_bytes(frame[4:8], "big") for frame in frames]


def ask_both(client: Client) -> list[int]:
    """Metadata and Heartbeat: the correlation ids that came back."""
    client.send(12, METADATA)
    client.send(4, HEARTBEAT)
    return correlation_ids(client.frames)


def test_without_a_verdict_nothing_changes() -> None:
    broker = playing(None)
    client = broker.connect()
    assert ask_both(client) == [1, 2]
    assert isinstance(broker.rules, Script)
    (context,) = broker.rules.contexts
    assert (context.connection, context.client_address) == (client.number, "127.0.0.1:50001")


def test_a_rule_answers_in_place_of_the_broker() -> None:
    header = messages.ResponseHeader(correlation_id=1)
    body = messages.MetadataResponse(cluster_id="mine")
    frame = protocol.encode_response(protocol.Response(header, body, 12), 3)
    client = playing(Verdict(frames=(), response=Verdict((frame,)))).connect()
    client.send(12, METADATA)
    assert client.frames == [frame]


def test_many_requests_in_a_chunk_let_other_clients_have_their_turn() -> None:
    rules = Script([])
    broker = Playing(recorded().loaded, rules=rules)
    greedy, other = broker.connect(), broker.connect()
    greedy.send(12, METADATA)
    greedy.bytes(greedy.sent_last * 1499)
    assert len(rules.contexts) <= 101
    other.send(12, METADATA)
    assert len(other.frames) == 1, "it need not wait for the others"
    decided = len(rules.contexts)
    while decided < 1501:
        broker.pass_ms(0.000001)
        assert decided < len(rules.contexts) <= decided + 100
        decided = len(rules.contexts)
    assert len(greedy.frames) == 1500


@pytest.mark.parametrize("late", ["request", "response"])
def test_what_is_late_holds_up_what_is_behind_it(late: str) -> None:
    verdict = Verdict(delay_ns=50 * MS)
    if late == "response":
        slow = Verdict(delay_ns=50 * MS)
        verdict = Verdict(response=lambda frame, now: slow)
    broker = playing(verdict)
    client = broker.connect()
    assert ask_both(client) == []
    broker.pass_ms(49)
    assert client.frames == []
    broker.pass_ms(1)
    assert correlation_ids(client.frames) == [1, 2]


@pytest.mark.parametrize(("ending", "abrupt"), [(Ending.DISCONNECT, False), (Ending.RESET, True)])
def test_connections_end_before_and_in_the_middle_of_a_response(ending, abrupt) -> None:
    broker = playing(Verdict(ending=ending))
    client = broker.connect()
    assert ask_both(client) == []
    assert broker.closed == {client.number: abrupt}
    cut = Verdict(ending=ending, ending_bytes=6)
    broker = playing(Verdict(response=lambda frame, now: cut))
    client = broker.connect()
    client.send(12, METADATA)
    assert len(broker.sent[client.number]) == 6
    assert broker.closed == {client.number: abrupt}
    script = broker.rules
    assert isinstance(script, Script) and script.forgotten == [client.number]
    assert [*broker.broker.connections] == [], "the broker behind the rules knows it, too"


def test_a_duplicate_of_a_long_request_waits_until_that_is_done() -> None:
    kind = messages.ListOffsetsRequest
    partitions = [
        kind.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(3000)
    ]
    asked = kind(topics=[kind.ListOffsetsTopic(name="orders", partitions=partitions)])
    broker = playing()
    client = broker.connect()
    client.send(7, asked)
    broker.pass_ms(1)
    frame = client.sent_last
    broker = Playing(recorded().loaded, rules=Script([Verdict(frames=[frame, frame])], 0))
    client, next_one = broker.connect(), messages.ApiVersionsRequest()
    client.send(7, asked)
    client.send(4, next_one)
    broker.pass_ms(1)
    assert [type(each).__name__ for each in client.answers] == [
        "ListOffsetsResponse",
        "ApiVersionsResponse",
    ]


def test_a_request_is_handled_before_its_connection_ends_without_a_response() -> None:
    lost = Verdict(ending=Ending.DISCONNECT, ending_bytes=1 << 20)
    broker = Playing(recorded().loaded, rules=Script([lost], 0))
    client = broker.connect()
    client.send(9, produce(batch("new")))
    assert client.frames == [] and broker.closed == {client.number: False}
    assert broker.connect().values(1) == ["new"]


def test_rules_for_topics_mean_requests_that_name_them_by_ids() -> None:
    words = {"api": "Fetch", "topic": "orders", "error": "NOT_LEADER_OR_FOLLOWER", "times": 1}
    client = Playing(recorded().loaded, rules=Rules([words])).connect()
    request = fetch({0: 0}, max_wait_ms=0)
    request.topics[0].topic_id = ORDERS_ID
    codes = [client.ask(13, request).responses[0].partitions[0].error_code for _ in range(2)]
    assert codes == [6, 0]


@pytest.mark.parametrize("rules", [None, Rules([])])
def test_a_client_that_the_broker_hangs_up_on_sees_its_end(rules: Rules | None) -> None:
    broker = Playing(recorded().loaded, ReplaySettings(idle_seconds=5), rules=rules)
    client, idle = broker.connect(), broker.connect()
    client.bytes(b"\0\0\0\x0c\0\x03\x7f\xff\0\0\0\1\xff\xff\0\0")
    assert broker.closed == {client.number: False}, "it asked for what is not served"
    broker.pass_ms(4_000)
    assert idle.number not in broker.closed
    broker.pass_ms(2_000)
    assert broker.closed == {client.number: False, idle.number: False}
    assert broker.machine.next_wake is None and not [*broker.machine.connections]


@pytest.mark.parametrize("rules", [None, Rules([])])
def test_an_idle_client_that_takes_nothing_is_closed_behind_what_was_sent(
    rules: Rules | None,
) -> None:
    broker = Playing(recorded().loaded, ReplaySettings(idle_seconds=5), rules=rules)
    broker.taking = False
    client = broker.connect()
    for _ in range(3):
        client.send(12, METADATA)
        broker.pass_ms(1)
    broker.pass_ms(7_000)
    assert len(client.frames) == 3 and broker.closed == {client.number: False}


@pytest.mark.parametrize("late", [1, 30])
def test_a_client_that_pipelines_gets_all_behind_late_responses(late: int) -> None:
    rules = Script([Verdict(response=Verdict(delay_ns=2000 * MS))] * late, api_key=1)
    loaded = Recorded().metadata().fetched(batch("v" * (1 << 20))).loaded
    broker = Playing(loaded, rules=rules)
    client = broker.connect()
    client.send(11, fetch({0: 0}, max_wait_ms=0, max_bytes=2**31 - 1))
    client.bytes(client.sent_last * 29)
    broker.pass_ms(60_000)
    assert len(client.frames) == 30


@pytest.mark.parametrize("rules", [None, Rules([])])
def test_a_broker_without_a_listener_is_reached_where_the_client_came_in(
    rules: Rules | None,
) -> None:
    loaded = Recorded().metadata(partitions=2, nodes=2).loaded
    broker = Playing(loaded, rules=rules, ports_taken=frozenset({1}))
    client = broker.connect()
    named = client.ask(9, messages.MetadataRequest(topics=None)).brokers
    assert [each.node_id for each in named] == [2]
    asked = messages.FindCoordinatorRequest(key="g", key_type=0)
    found = client.ask(2, asked)
    assert (found.node_id, found.host, found.port) == (1, "127.0.0.1", 9092)


def test_an_operator_sees_and_ends_connections_with_rules() -> None:
    rules = Rules([{"api": "Metadata", "latency": "1s"}])
    broker = Playing(recorded().loaded, rules=rules)
    client = broker.connect()
    client.send(12, METADATA)
    assert isinstance(broker.machine, RuledBroker)
    (seen,) = broker.machine.connections
    assert (seen.client_id, seen.broker_address, seen.pending_requests) == ("app", None, 0)
    broker.perform(broker.machine.end(client.number, broker.now))
    assert broker.closed == {client.number: False} and not [*broker.machine.connections]
    broker.pass_ms(2000)
    assert client.frames == []
