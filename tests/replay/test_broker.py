"""The replaying broker as a machine: bytes in, actions out."""

from __future__ import annotations

import gc
import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Listen
from kproxy.proxy.faults import Rules
from kproxy.proxy.machine import Accepted
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.report import Report
from kproxy.replay.serving import SERVED
from kproxy.replay.settings import Mode, ReplaySettings
from kproxy.wire import protocol
from kproxy.wire.protocol import messages, schema
from tests.replay.making import MS, Playing, Recorded, batch, fetch, produce


def playing() -> Playing:
    return Playing(Recorded().metadata(nodes=2).fetched(batch("a")).loaded)


def frames(*requests: tuple[int, object]) -> bytes:
    data = b""
    for number, (version, body) in enumerate(requests, 1):
        name = type(body).__name__.removesuffix("Request")
        header = messages.RequestHeader(
            api_key=protocol.api_key(name), api_version=version, correlation_id=number
        )
        data += protocol.encode_request(protocol.Request(header, body))
    return data


REQUESTS = frames(
    (4, messages.ApiVersionsRequest(client_software_name="a", client_software_version="1")),
    (12, messages.MetadataRequest(topics=None)),
    (11, fetch({0: 0}, max_wait_ms=0)),
)


@given(st.lists(st.integers(0, len(REQUESTS)), max_size=6))
def test_how_bytes_are_cut_does_not_matter(cuts) -> None:
    whole = playing().connect()
    whole.bytes(REQUESTS)
    pieces = playing().connect()
    edges = [0, *sorted(cuts), len(REQUESTS)]
    for start, stop in itertools.pairwise(edges):
        if stop > start:
            pieces.bytes(REQUESTS[start:stop])
    assert pieces.frames == whole.frames != []


def test_responses_come_in_the_order_of_the_requests() -> None:
    broker = playing()
    client = broker.connect()
    client.bytes(
        frames((11, fetch({0: 1}, max_wait_ms=100)), (12, messages.MetadataRequest(topics=None)))
    )
    assert client.frames == []
    broker.pass_ms(100)
    assert [int.from_bytes(frame[4:8], "big") for frame in client.frames] == [1, 2]


def test_idle_connections_are_ended() -> None:
    minute = 60_000
    broker = playing()
    idle, lively, waiting, half = (broker.connect() for _ in range(4))
    half.bytes(REQUESTS[:7])
    waiting.bytes(frames((11, fetch({0: 1}, max_wait_ms=15 * minute))))
    broker.pass_ms(6 * minute)
    lively.ask(12, messages.MetadataRequest(topics=None))
    broker.pass_ms(4 * minute - 1)
    assert broker.closed == {}
    broker.pass_ms(1)
    assert broker.closed == {idle.number: False, half.number: False}
    assert "nothing arrived for 600 s" in broker.logs[-1]
    broker.pass_ms(5 * minute + 999)
    assert broker.closed.keys() == {idle.number, half.number} and len(waiting.frames) == 1
    broker.pass_ms(9 * minute)
    assert waiting.number not in broker.closed, "it had its response a moment ago"
    broker.pass_ms(minute)
    assert len(broker.closed) == 4 and broker.broker.next_wake is None


@pytest.mark.parametrize("mode", [Mode.STATE, Mode.SEMANTIC])
def test_members_of_share_and_streams_groups_are_refused_at_once(mode: Mode) -> None:
    share = messages.ShareGroupHeartbeatRequest(group_id="s", member_id="m")
    streams = messages.StreamsGroupHeartbeatRequest(group_id="s", member_id="m")
    was = Recorded().metadata().add(1, share, messages.ShareGroupHeartbeatResponse(member_id="m"))
    broker = Playing(was.loaded_for(mode), ReplaySettings(mode=mode))
    client = broker.connect()
    answer = client.ask(4, messages.ApiVersionsRequest())
    assert {76, 88} <= {each.api_key for each in answer.api_keys}
    assert not {78, 79} & {each.api_key for each in answer.api_keys}
    for request, version, kind in ((share, 1, "share"), (streams, 0, "streams")):
        refused = client.ask(version, request)
        assert protocol.error_name(refused.error_code) == "INVALID_REQUEST"
        assert refused.error_message == f"{kind} groups are not replayed by kproxy"
        assert (
            broker.report.findings[-1].text == f"group s: {kind} groups are not replayed by kproxy"
        )


def test_an_api_versions_that_is_too_new_is_answered_in_version_0() -> None:
    client = playing().connect()
    client.bytes(b"\0\0\0\x0c\0\x12\x7f\xff\0\0\0\x09\xff\xff\0\0")
    (frame,) = client.frames
    response = protocol.decode_response(frame, 18, 0)
    assert response.header.correlation_id == 9
    assert protocol.error_name(response.body.error_code) == "UNSUPPORTED_VERSION"
    assert [each.api_key for each in response.body.api_keys] == [18]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x16\x03\x01\x02\x00\x01", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"DELETE / HTTP/1.1\r\n", "HTTP"),
        (b"\x7f\xff\xff\xff\0\0", "over the limit of 104857600 bytes (socket.request.max.bytes)"),
        (b"\0\0\0\x0c\0\x4e\0\x01\0\0\0\x09\xff\xff\0\0", "ShareFetch v1 is not served"),
        (b"\0\0\0\x0c\0\x01\0\x0b\0\0\0\x09\xff\xff\0\0", "FetchRequest v11"),
        (b"\0\0\0\x01\0", "request of 5 bytes"),
    ],
)
def test_nonsense_ends_the_connection_with_a_reason(data: bytes, why: str) -> None:
    broker = playing()
    client = broker.connect()
    client.bytes(data)
    assert client.number in broker.closed
    assert why in broker.logs[-1]


@given(st.binary(max_size=60))
def test_any_bytes_end_well(data: bytes) -> None:
    broker = playing()
    client = broker.connect()
    client.bytes(REQUESTS + len(data).to_bytes(4, "big") + data)
    broker.pass_ms(1000)


def test_what_a_client_has_asked_is_answered_at_its_half_close() -> None:
    broker = playing()
    client = broker.connect()
    polls = [(11, fetch({0: 1}, max_wait_ms=2**31 - 1))] * 3
    client.bytes(frames(*polls))
    broker.perform(broker.broker.closed(client.number, Side.CLIENT, "eof", "", broker.now))
    assert len(client.frames) == 3, "it may be gone, and nobody would notice for as long"
    assert client.number in broker.closed
    assert broker.broker.next_wake is None


def test_a_connection_that_breaks_while_it_waits_is_forgotten() -> None:
    broker = playing()
    client = broker.connect()
    client.bytes(frames((11, fetch({0: 1}, max_wait_ms=2**31 - 1))))
    broker.perform(broker.broker.closed(client.number, Side.CLIENT, "reset", "gone", broker.now))
    assert broker.broker.next_wake is None
    assert client.frames == []


def test_a_request_that_waits_counts_as_held() -> None:
    broker = Playing(Recorded().metadata().loaded, ReplaySettings(held_bytes_max=2000))
    first, second = broker.connect(), broker.connect()
    poll = fetch({0: 0}, max_wait_ms=1000, rack_id="r" * 1200)
    first.send(11, poll)
    second.send(11, poll)
    assert list(broker.closed) == [second.number]
    broker.pass_ms(1000)
    assert len(first.frames) == 1
    third = broker.connect()
    third.send(11, poll)  # what the first has held is free again
    assert not broker.closed.get(third.number)


def test_a_client_waits_until_all_brokers_listen() -> None:
    loaded = Recorded().metadata(nodes=2).loaded
    broker = ReplayBroker(loaded, ReplaySettings(listen_port=9000), Report())
    actions = broker.accepted(Accepted(1, None, "127.0.0.1:5", ("127.0.0.1", 9000)), 0)
    assert [(each.node_id, each.port) for each in actions if isinstance(each, Listen)] == [
        (1, 9002),
        (2, 9003),
    ]
    asked = frames((12, messages.MetadataRequest(topics=None)))
    assert broker.receive(1, Side.CLIENT, asked, 0) == []
    assert broker.listening(2, ("127.0.0.1", 9003), 0) == []
    actions = broker.not_listening(1, "taken", 0)
    body = protocol.decode_response(b"".join(actions[-1].pieces), 3, 12).body
    assert [each.node_id for each in body.brokers] == [2]


def test_the_names_of_served_apis_are_apis() -> None:
    assert all(name in schema.api_names().values() for name in SERVED)


def test_all_connections_together_hold_so_much_and_no_more() -> None:
    playing = Playing(Recorded().metadata().loaded, ReplaySettings(held_bytes_max=2000))
    first, second = playing.connect(), playing.connect()
    unfinished = (1900).to_bytes(4, "big") + bytes(1500)
    first.bytes(unfinished)
    second.bytes(unfinished)
    assert list(playing.closed) == [second.number]
    assert any("--held-bytes-max" in text for text in playing.logs)
    playing.perform(playing.broker.closed(first.number, Side.CLIENT, "eof", "", playing.now))
    third = playing.connect()
    third.bytes(unfinished)  # what the first has held is free again
    assert third.number not in playing.closed


def test_a_client_that_ends_while_it_takes_no_responses_leaves_nothing_behind() -> None:
    broker = Playing(Recorded().metadata().fetched(batch("v" * (1 << 20))).loaded)
    broker.taking = False
    fetches = frames(*[(11, fetch({0: 0}, max_wait_ms=0, max_bytes=2**31 - 1))] * 10)

    def come_and_go() -> int:
        client = broker.connect()
        client.bytes(fetches)
        broker.pass_ms(10)
        client.bytes(frames((9, produce(bytes(8 << 20)))))
        broker.perform(broker.broker.closed(client.number, Side.CLIENT, "reset", "", broker.now))
        assert client.number in broker.closed
        del broker.sent[client.number]
        broker.leaving.clear()
        return tracemalloc.get_traced_memory()[0]

    gc.disable()  # a serving process collects rarely
    tracemalloc.start()
    try:
        first = come_and_go()
        assert max(come_and_go() for _ in range(3)) < first + (1 << 20)
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("rules", [None, [], [{"api": "Fetch", "latency": "1ms"}]])
def test_a_client_that_takes_no_responses_gets_no_more_of_them(rules: list | None) -> None:
    size = 1 << 20
    loaded = Recorded().metadata().fetched(batch("v" * size)).loaded
    broker = Playing(loaded, rules=None if rules is None else Rules(rules))
    broker.taking = False
    client = broker.connect()
    client.bytes(frames(*[(11, fetch({0: 0}, max_wait_ms=0, max_bytes=2**31 - 1))] * 50))
    broker.pass_ms(1000)
    assert len(client.frames) < 10
    due = broker.broker.next_wake
    assert due and due > broker.now + 500_000 * MS, "it looks for idle connections, and that is all"
    broker.taking = True
    broker.take()
    broker.pass_ms(1000)
    assert len(client.frames) > 40


@pytest.mark.parametrize("mode", [Mode.STATE, Mode.SEMANTIC])
def test_each_version_that_is_advertised_is_answered(mode: Mode) -> None:
    recorded = Recorded().metadata().produced(batch("a")).stood("g", 1)
    broker = Playing(recorded.loaded_for(mode), ReplaySettings(mode=mode))
    about = {
        "Fetch": fetch({0: 0}),
        "Produce": produce(batch("a"), acks=1),
        "SaslAuthenticate": None,  # it needs a handshake: `test_sasl`
    }
    for key, (least, greatest) in broker.broker.state.ranges.items():
        name = protocol.api_name(key) or ""
        kind = getattr(messages, f"{name}Request")
        body = about.get(name, kind())
        for version in range(least, greatest + 1) if body is not None else ():
            client = broker.connect()
            client.send(version, body)
            broker.pass_ms(0 if broker.sent[client.number] else 70_000)
            assert len(client.answers) == 1, f"{name} v{version}: {broker.logs[-1:]}"
