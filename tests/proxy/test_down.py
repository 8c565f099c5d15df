"""A broker that is down: its listener refuses, it is probed, and its listener opens again."""

from __future__ import annotations

import struct
from functools import partial

import attrs
import pytest

from kproxy.exchange.entries import Note, Side
from kproxy.proxy.actions import Address
from kproxy.proxy.due import Due
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import messages
from tests.proxy.playing import (
    BROKER,
    Player,
    end,
    heartbeat,
    metadata,
    request,
    response,
)

METADATA = 3
MS = 1_000_000
"""In nanoseconds."""


@attrs.define
class Outage:
    """A player whose brokers 1 and 2 a client knows, and what it does as one is down."""

    player: Player
    refused: list[int] = attrs.field(factory=list)
    probes: list[tuple[int, int, Address]] = attrs.field(factory=list)
    """When, which node, and where."""
    numbers: int = 1

    def names(self, *brokers: tuple[int, str, int]) -> None:
        """A response names these brokers."""
        self.player.client(request(METADATA, 9, messages.MetadataRequest(), 1))
        self.player.broker(response(METADATA, 9, metadata(*brokers)))

    def connects(self, node_id: int | None) -> int:
        """A client connects to the listener of a node."""
        self.numbers += 1
        address = ("127.0.0.1", 19092)
        self.player.performer.accept(self.numbers, node_id, "127.0.0.1:6000", address)
        return self.numbers

    def finds_it_down(self, node_id: int | None, refused: bool = True) -> int:
        """A client connects, and its broker does not answer."""
        number = self.connects(node_id)
        reason = "refuses connections" if refused else "does not answer"
        self.player.performer.not_dialled(number, reason, refused)
        return number

    def passes(self, many_ms: int) -> None:
        """Let time pass."""
        self.player.advance(self.player.now + many_ms * MS)

    def answered(self, answers: bool, address: Address | None = None) -> None:
        """The last probe ends."""
        _, node_id, where = self.probes[-1]
        self.player.performer.probed(node_id, (address or where,), answers)


def outage(hold_listeners: bool = False, nodes_max: int = 1000, probes: bool = False) -> Outage:
    player = Player(Settings([BROKER], listen_port=19092, nodes_max=nodes_max, probes=probes))
    found = Outage(player)
    player.performer.clock.step = lambda: 0
    player.performer.refuse = lambda action: found.refused.append(action.node_id)
    player.performer.probe = lambda action: found.probes.append(
        (player.now, action.node_id, action.addresses[0])
    )
    player.connect()
    found.names((1, "one", 9092), (2, "two", 9092))
    player.hold_listeners = hold_listeners
    player.listened.clear()
    return found


def test_the_listener_of_a_node_refuses_when_its_broker_does() -> None:
    at = outage()
    other = at.connects(1)
    at.player.performer.dialled(other, ("one", 9092))
    number = at.finds_it_down(1)
    assert at.refused == [1]
    assert at.player.closed == {number: False}, "those that are established stay"
    assert at.player.cluster.reachable == {None: True, 1: False, 2: False}
    (line,) = at.player.logs
    assert line.startswith("node 1 is down, connections to it are refused: refuses connections")


def test_it_refuses_before_the_client_that_found_out_is_closed() -> None:
    at = outage()
    number = at.connects(1)
    actions = at.player.cluster.not_dialled(number, "refuses connections", True, at.player.tick())
    names = [type(action).__name__ for action in actions]
    assert names.index("Refuse") < names.index("Close")


@pytest.mark.parametrize("node_id", [None, 1])
def test_a_broker_that_does_not_refuse_leaves_its_listener_open(node_id: int | None) -> None:
    at = outage()
    at.finds_it_down(node_id, refused=False)
    at.passes(60_000)
    assert at.refused == [] and at.probes == []
    assert at.player.cluster.reachable[node_id] is False


def test_a_node_that_is_down_is_probed_often_and_after_ten_seconds_less_so() -> None:
    at = outage()
    down_ns = at.player.now
    at.finds_it_down(1)
    for _ in range(60):
        before = len(at.probes)
        while len(at.probes) == before:
            at.passes(1)
        at.answered(False)
    after_ms = [(when - down_ns) // MS for when, _, _ in at.probes]
    assert after_ms == [200 * n for n in range(1, 51)] + [10_000 + 1000 * n for n in range(1, 11)]
    assert {(node_id, where) for _, node_id, where in at.probes} == {(1, ("one", 9092))}
    assert at.player.listened == {} and len(at.player.logs) == 1


def test_no_probe_begins_before_the_last_one_has_ended() -> None:
    at = outage()
    at.finds_it_down(1)
    at.passes(5000)
    assert len(at.probes) == 1
    at.answered(False)
    at.passes(199)
    assert len(at.probes) == 1
    at.passes(1)
    assert len(at.probes) == 2


def test_an_answer_opens_the_listener_at_its_port_and_is_said_once() -> None:
    at = outage()
    at.finds_it_down(1)
    at.finds_it_down(1)
    at.passes(200)
    at.answered(True)
    assert at.refused == [1] and at.player.listened == {1: 19094}
    assert at.player.cluster.reachable == {None: True, 1: True, 2: False}
    assert at.player.logs[1:] == ["node 1 answers again; 2 connections have ended meanwhile"]
    at.passes(300_000)
    assert len(at.probes) == 1, "nothing is due any more"
    at.finds_it_down(1)
    assert at.refused == [1, 1], "the next time is like the first"


def test_only_the_node_that_is_down_refuses() -> None:
    at = outage()
    at.finds_it_down(2)
    number = at.connects(1)
    at.player.performer.dialled(number, ("one", 9092))
    at.passes(200)
    assert at.refused == [2] and [node_id for _, node_id, _ in at.probes] == [2]
    at.names((1, "one", 9092), (2, "two", 9092))
    assert b"one" not in at.player.to_client() and b"two" not in at.player.to_client()
    assert at.player.listened == {}, "it is named as ever, at the same port"
    assert at.player.cluster.reachable == {None: True, 1: True, 2: False}


def test_a_broker_that_moves_while_it_is_down_is_looked_for_where_it_is_now() -> None:
    at = outage()
    at.finds_it_down(1)
    at.passes(200)
    at.names((1, "new", 9093))
    at.answered(True, ("one", 9092))
    assert [where for _, _, where in at.probes] == [("one", 9092), ("new", 9093)]
    assert at.player.listened == {}, "who answers at the old address is another one"
    at.answered(True)
    assert at.player.listened == {1: 19094}


def test_a_listener_that_cannot_open_again_is_tried_again() -> None:
    at = outage(hold_listeners=True)
    at.finds_it_down(1)
    for _ in range(3):
        before = len(at.probes)
        at.passes(1000)
        assert len(at.probes) == before + 1
        at.answered(True)
        at.answered(True)
        assert at.player.cluster.reachable[1] is False
        at.player.performer.not_listening(1, "taken")
    assert len(at.player.logs) == 1
    at.passes(1000)
    at.answered(True)
    at.player.open(1)
    assert at.player.cluster.reachable[1] is True
    at.passes(60_000)
    assert len(at.probes) == 4
    at.names((1, "one", 9092), (2, "two", 9092))
    assert b"one" not in at.player.to_client(), "it is named as ever, at the same port"


def test_stopping_ends_the_probing() -> None:
    at = outage()
    at.finds_it_down(1)
    at.passes(200)
    at.player.performer.stop()
    assert at.player.cluster.next_wake is None
    at.answered(True)
    assert at.player.listened == {} and len(at.probes) == 1


def test_a_node_that_makes_way_for_another_is_not_looked_for_and_not_spoken_of() -> None:
    at = outage(nodes_max=2)
    at.finds_it_down(1)
    for _ in range(4001):
        at.names((2, "two", 9092))
        at.passes(1000)
        at.answered(False)
    at.names((2, "two", 9092), (3, "three", 9092))
    assert at.player.unlistened == [1]
    assert at.player.cluster.reachable == {None: True, 2: False, 3: False}
    before = len(at.probes)
    at.passes(10_000)
    assert len(at.probes) == before


# ---- what is due


def test_a_busy_connection_whose_client_has_ended_is_not_looked_at_for_each_chunk() -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(7))
    end(player, Side.CLIENT)
    player.broker(struct.pack(">ii", 20_000, 7))
    for _ in range(10_000):
        player.broker(b"x")
    wakes = 0
    wake = player.cluster.wake

    def counted(now: int):
        nonlocal wakes
        wakes += 1
        return wake(now)

    player.cluster.wake = counted
    while not player.closed:
        player.advance(player.now + 1000 * MS)
    assert wakes <= 3


def test_times_that_do_not_count_any_more_do_not_pile_up() -> None:
    due = Due()
    now = 0
    for number in range(10):
        due.note(number, 10**15)
    for _ in range(10_000):
        now += 2
        for number in range(10):
            due.note(number, now - 1)
        assert sorted(iter(partial(due.take, now), None)) == list(range(10))
        for number in range(10):
            due.note(number, 10**15 + now)
    assert len(due) <= 40
    assert due.next_ns == 10**15 + now


# ---- brokers that no client uses


def test_brokers_that_no_client_uses_are_probed_new_ones_soon_and_the_bootstrap_often() -> None:
    at = outage(probes=True)
    used = at.connects(1)
    at.player.performer.dialled(used, ("one", 9092))
    began_ns, up = at.player.now, {2}
    at.player.performer.probe = lambda action: (
        at.probes.append((at.player.now, action.node_id or 0, action.addresses[0])),
        action.node_id in up,
    )[1]
    for _ in range(61):
        at.passes(500)
        if at.player.now - began_ns > 15_000 * MS:
            up = {None, 2} - up
    seconds = {
        node: [(when - began_ns) // 1000 // MS for when, each, _ in at.probes if each == node]
        for node in (0, 1, 2)
    }
    assert seconds[1] == [], "a client uses it"
    assert len(seconds[2]) in (3, 4) and seconds[2][0] <= 1
    assert 14 <= len(seconds[0]) <= 16


def test_a_broker_that_is_probed_is_logged_when_it_goes_and_comes() -> None:
    at = outage(probes=True)
    logs = at.player.logs
    at.player.performer.probe = lambda action: action.node_id in up
    up: set[int | None] = {None, 1, 2}
    at.passes(11_000)
    assert at.player.cluster.reachable == {None: True, 1: True, 2: True} and logs == []
    up = {None, 1}
    at.passes(11_000)
    up = {1, 2}
    at.passes(11_000)
    assert at.player.cluster.reachable == {None: False, 1: True, 2: True}
    assert logs == [
        "node 2 is down: it refuses",
        "the bootstrap broker is down: it refuses",
        "node 2 answers again",
    ]
    assert at.player.performer.levels == ["warning", "warning", "info"]
    spans = [
        (
            each.body["node_id"],
            each.body["until_ns"] and each.body["until_ns"] - each.body["from_ns"],
        )
        for each in at.player.performer.recorded
        if isinstance(each, Note) and each.body["event"] == "outage"
    ]
    assert spans == [(2, None), (None, None), (2, 10_000 * MS)], "and noted, with its length"


def test_a_bootstrap_that_comes_after_kproxy_is_not_logged_again() -> None:
    player = Player(Settings([BROKER], probes=True))
    up = False
    player.performer.probe = lambda action: up
    player.advance(player.now + 5000 * MS)
    assert player.cluster.reachable == {None: False}
    up = True
    player.advance(player.now + 3000 * MS)
    assert player.cluster.reachable == {None: True} and player.logs == []


def test_a_probe_says_nothing_of_a_broker_that_a_client_reached_meanwhile() -> None:
    at = outage(probes=True)
    at.passes(2000)
    (probe,) = [each for each in at.probes if each[1] == 2]
    used = at.connects(2)
    at.player.performer.dialled(used, ("two", 9092))
    at.player.performer.probed(2, (probe[2],), False)
    assert at.player.cluster.reachable[2] and at.player.logs == []
    at.player.performer.probed(77, (("far", 1),), True)
    assert 77 not in at.player.cluster.reachable
    at.player.performer.stop()
    assert at.player.cluster.next_wake is None


def test_a_node_that_gets_no_listener_is_not_spoken_of_though_it_was_probed() -> None:
    at = outage(probes=True, hold_listeners=True)
    at.names((3, "three", 9092))
    at.passes(2000)
    at.player.performer.not_listening(3, "taken")
    at.player.performer.probed(3, (("three", 9092),), True)
    assert at.player.cluster.reachable.keys() == {None, 1, 2}


def test_of_many_brokers_a_few_are_probed_at_once_and_each_has_its_turn() -> None:
    at = outage(probes=True)
    at.names(*((node_id, "host", 9092) for node_id in range(1, 101)))
    at.passes(1000)
    assert len(at.probes) == 16
    at.player.performer.probe = lambda action: True
    for _, node_id, where in [*at.probes]:
        at.player.performer.probed(node_id, (where,), True)
    at.passes(10_000)
    assert all(at.player.cluster.reachable.values())
