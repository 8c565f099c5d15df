"""Machines in memory: what one sends another receives, at the time at which it should."""

from __future__ import annotations

import typing

import attrs
import pytest

from kproxy.exchange.entries import Frame, Side, each
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Dial,
    Eof,
    Listen,
    Pause,
    Resume,
    Send,
    Unlisten,
)
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.machine import TlsSession
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol.messages import MetadataRequest
from tests.bed import memory
from tests.bed.memory import Clock, Performer
from tests.bed.network import Network
from tests.proxy.machines import Answerer, Caller
from tests.proxy.playing import heartbeat, heartbeat_answer, metadata, request, response

START_NS = 1_790_000_000_000_000_000
PROXY, BROKER = ("proxy", 19092), ("broker", 9092)


def three(broker: Answerer, **changes) -> tuple[Network, Performer, Performer]:
    """A network of a client, the proxy and a broker; returns it and the first two."""
    network = Network(Clock(START_NS))
    settings = Settings([BROKER], listen_port=PROXY[1], advertised_host="proxy", **changes)
    proxy = network.add(Cluster(settings), PROXY)
    network.add(broker, BROKER)
    return network, network.add(Caller()), proxy


def frames(performer: Performer) -> list[Frame]:
    return [entry for entry in each(performer.recorded) if isinstance(entry, Frame)]


def test_every_action_is_performed() -> None:
    assert set(memory.PERFORMERS) == set(typing.get_args(Action))


def test_an_unknown_action_is_an_error() -> None:
    @attrs.define
    class Juggle:
        connection: int

    with pytest.raises(TypeError, match="Performer performs no Juggle"):
        Performer(Caller()).perform([Juggle(1)])


def test_client_proxy_and_broker_talk_without_a_socket() -> None:
    broker = Answerer(heartbeat_answer(7))
    network, client, proxy = three(broker)
    client.perform(client.machine.call(1, PROXY, heartbeat(7)))
    network.run()
    assert client.machine.received == {1: heartbeat_answer(7)}
    assert broker.received == {1: heartbeat(7)}
    assert [frame.data for frame in frames(proxy)] == [heartbeat(7), heartbeat_answer(7)]
    client.perform([Close(1, False)])
    network.run()
    assert not proxy.links and not broker.received
    assert [note.body["event"] for note in each(proxy.recorded) if not isinstance(note, Frame)] == [
        "opened",
        "client_id",
        "closed",
    ]


def test_time_passes_to_the_nanosecond() -> None:
    broker = Answerer(heartbeat_answer(7), delay_ns=5_000_001)
    network, client, proxy = three(broker)
    client.perform(client.machine.call(1, PROXY, heartbeat(7)))
    network.advance(START_NS + 5_000_000)
    assert client.machine.received == {1: b""}
    network.advance(START_NS + 5_000_001)
    assert client.machine.received == {1: heartbeat_answer(7)}
    _, answer = frames(proxy)
    assert answer.received_ns - answer.request_sent_ns == 5_000_001
    assert broker.woken == [(START_NS + 5_000_001,) * 2]


def test_silence_ends_a_connection_at_its_time() -> None:
    network, client, _ = three(Answerer(b""), idle_seconds=600)
    client.perform(client.machine.call(1, PROXY, b""))
    network.advance(START_NS + 599 * 10**9)
    assert client.machine.ended == []
    network.advance(START_NS + 601 * 10**9)
    assert client.machine.ended == [1]


def test_the_listener_of_a_node_is_found_by_its_address() -> None:
    asked = request(3, 9, MetadataRequest(topics=None), 7)
    network, client, proxy = three(Answerer(response(3, 9, metadata((1, *BROKER)), 7)))
    client.perform(client.machine.call(1, PROXY, asked))
    network.run()
    assert network.listeners["proxy", 19094] == (proxy, 1)
    client.perform(client.machine.call(2, ("proxy", 19094), asked))
    network.run()
    assert client.machine.received[2] == client.machine.received[1] != b""
    assert frames(proxy)[-1].connection == 2


def test_where_nobody_listens_a_dial_is_refused() -> None:
    network = Network()
    client = network.add(Caller())
    client.perform(client.machine.call(1, PROXY, b""))
    network.run()
    assert client.machine.refused == {1: "nobody listens there"} and not client.links


def test_a_reset_arrives_as_one() -> None:
    broker = Answerer(b"")
    network, client, proxy = three(broker)
    client.perform(client.machine.call(1, PROXY, heartbeat(1)))
    network.run()
    client.perform([Close(1, True)])
    network.run()
    assert [e.body["how"] for e in proxy.recorded if getattr(e, "body", {}).get("how")] == ["reset"]
    assert not broker.received


def test_a_client_is_not_read_while_its_broker_is_dialled_or_it_is_paused() -> None:
    network = Network()
    proxy = network.add(Cluster(Settings([BROKER])), PROXY)
    dials: list[Dial] = []
    proxy.dial = dials.append
    client = network.add(Caller())
    client.perform(client.machine.call(1, PROXY, heartbeat(1)))
    network.run()
    assert len(dials) == 1 and not frames(proxy)
    proxy.perform([Pause(1, Side.CLIENT)])
    proxy.wires(1).to[Side.BROKER] = proxy.wires(1).to[Side.CLIENT]  # a broker that echoes
    proxy.dialled(1, BROKER)
    network.run()
    assert not frames(proxy)
    proxy.perform([Resume(1, Side.CLIENT)])
    network.run()
    assert [frame.data for frame in frames(proxy)] == [heartbeat(1)]


def test_what_only_a_defect_would_do_is_an_error() -> None:
    performer = Performer(Answerer(b""))
    performer.accept(1)
    for action, error in (
        (Send(2, Side.CLIENT, [b"x"], []), LookupError),
        (Eof(2, Side.CLIENT), LookupError),
        (Close(2, False), LookupError),
        (Resume(1, Side.CLIENT), ValueError),
    ):
        with pytest.raises(error):
            performer.perform([action])
    performer.perform([Pause(1, Side.CLIENT)])
    with pytest.raises(ValueError, match="paused already"):
        performer.perform([Pause(1, Side.CLIENT)])


def test_a_machine_that_does_not_go_to_sleep_again_is_an_error() -> None:
    class Restless(Answerer):
        next_wake = 5

    with pytest.raises(RuntimeError, match="for ever"):
        Performer(Restless(b"")).advance(10)


def test_a_peer_that_is_gone_is_told_after_all_actions() -> None:
    class Gone(memory.Kept):
        def send(self, side, data, timed) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    broker = Answerer(b"r")
    performer = Performer(broker, wires=lambda number: Gone(Clock()))
    performer.accept(1)
    performer.receive(1, Side.CLIENT, b"x")
    assert not performer.links and not broker.received


def test_a_dial_that_is_answered_late_is_not_for_who_has_gone() -> None:
    found: list[Address] = []

    class Hasty(Caller):
        def dialled(
            self, number: int, broker: Address, now: int, tls: TlsSession | None = None
        ) -> list[Action]:
            found.append(broker)
            return []

    performer = Performer(Hasty())
    performer.perform([Dial(1, [BROKER]), Close(1, False)])
    performer.perform([Dial(2, [BROKER])])
    assert found == [BROKER] and list(performer.links) == [2]


def test_a_listener_that_was_closed_is_not_reached_any_more() -> None:
    network = Network()
    broker = network.add(Answerer(b""), BROKER)
    broker.perform([Listen(1, 9093), Listen(2, 0)])
    assert set(network.listeners) == {BROKER, ("broker", 9093), ("broker", 40_000)}
    broker.perform([Unlisten(1)])
    client = network.add(Caller())
    client.perform(client.machine.call(1, ("broker", 9093), b""))
    network.run()
    assert client.machine.refused and set(network.listeners) == {BROKER, ("broker", 40_000)}
