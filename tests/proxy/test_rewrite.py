"""Addresses are found from the schema, and replaced without touching anything else."""

from __future__ import annotations

import struct

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.exchange.entries import OPAQUE, REWRITTEN, Side
from kproxy.proxy import rewrite
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import decode_response, messages, schema
from tests.proxy.playing import BROKER, Player, metadata, request, response
from tests.simulation.filling import ADDRESSES
from tests.versions import kinds

EVERY = [(schema.api_key(name), version) for name in ADDRESSES for version in ADDRESSES[name]]


def test_exactly_the_client_facing_addresses_are_found() -> None:
    found = {
        (key, version)
        for key, version in schema.known_versions()
        if rewrite.address_fields(key, version)
    }
    assert found == set(EVERY)


def body_with(api_key: int, version: int, brokers: list[tuple[int, str, int]], records: bytes):
    """A response body of any API that has addresses, naming these brokers."""
    kind = getattr(messages, schema.message(api_key, schema.RESPONSE).name)
    name = schema.api_name(api_key)
    if name == "FindCoordinator" and version < 4:
        node_id, host, port = brokers[0]
        return kind(node_id=node_id, host=host, port=port)
    if name == "FindCoordinator":
        found = [kind.Coordinator(key="k", node_id=n, host=h, port=p) for n, h, p in brokers]
        return kind(coordinators=found)
    if name == "Metadata":
        return metadata(*brokers)
    if name == "DescribeCluster":
        found = [kind.DescribeClusterBroker(broker_id=n, host=h, port=p) for n, h, p in brokers]
        return kind(cluster_id="c", controller_id=1, brokers=found)
    endpoints = [kind.NodeEndpoint(node_id=n, host=h, port=p, rack="r") for n, h, p in brokers]
    body = kind(node_endpoints=endpoints)
    if name == "Fetch":
        topic = kind.FetchableTopicResponse(partitions=[kind.PartitionData(records=records)])
        body.responses = [topic]
    if name == "ShareFetch":
        topic = kind.ShareFetchableTopicResponse(partitions=[kind.PartitionData(records=records)])
        body.responses = [topic]
    return body


def addresses(body) -> list[tuple[int, str, int]]:
    """Every (node id, host, port) in a decoded body, but for fields that its version lacks."""
    found = []
    if isinstance(body, list):
        for item in body:
            found += addresses(item)
    elif attrs.has(type(body)):
        node_id = getattr(body, "node_id", getattr(body, "broker_id", None))
        if node_id is not None and isinstance(getattr(body, "host", None), str):
            if not getattr(body, "coordinators", None):
                found.append((node_id, body.host, body.port))
        for field in attrs.fields(type(body)):
            found += addresses(getattr(body, field.name))
    return found


def ask(api_key: int, version: int) -> bytes:
    """A request that will be answered."""
    body = getattr(messages, schema.message(api_key, schema.REQUEST).name)()
    if api_key == 0:
        body.acks = -1
    return request(api_key, version, body)


def play(api_key: int, version: int, frame: bytes, chunk: int = 1 << 20, **changes) -> Player:
    """Ask, and answer with this frame, chunk by chunk."""
    player = Player(attrs.evolve(Settings([BROKER], 19092), **changes))
    player.connect()
    player.client(ask(api_key, version))
    for start in range(0, len(frame), chunk):
        player.broker(frame[start : start + chunk])
    return player


BROKERS = [(1, "kafka-1.internal.example", 9092), (2, "b", 9093)]


@pytest.mark.parametrize(("api_key", "version"), kinds(EVERY))
def test_every_api_that_has_addresses_gets_ours(api_key: int, version: int) -> None:
    body = body_with(api_key, version, BROKERS, b"r" * 100)
    named = addresses(decode_response(response(api_key, version, body), api_key, version).body)
    player = play(api_key, version, response(api_key, version, body))
    after = decode_response(player.to_client(), api_key, version).body
    assert addresses(after) == [(n, "127.0.0.1", 19093 + n) for n, _, _ in named]
    assert player.frames(Side.BROKER)[0].data == response(api_key, version, body)
    assert player.frames(Side.BROKER)[0].flags & REWRITTEN


@given(
    which=st.sampled_from(EVERY),
    brokers=st.lists(
        st.tuples(st.integers(-1, 40_000), st.text(max_size=300), st.integers(-1, 65_535)),
        min_size=1,
        max_size=5,
        unique_by=lambda broker: broker[0],
    ),
    host=st.sampled_from(["h", "a.host.with.a.long.name." * 9, "::1"]),
    chunk=st.sampled_from([1, 7, 1000]),
)
@settings(max_examples=150)
def test_nothing_but_usable_addresses_changes(which, brokers, host, chunk) -> None:
    api_key, version = which
    frame = response(api_key, version, body_with(api_key, version, brokers, b"r"))
    player = play(api_key, version, frame, chunk, advertised_host=host)
    before = decode_response(frame, api_key, version)
    after = decode_response(player.to_client(), api_key, version)
    ours = [
        (n, host, player.listened[n] or 20_000 + n) if n >= 0 and h and p > 0 else (n, h, p)
        for n, h, p in addresses(before.body)
    ]
    assert addresses(after.body) == ours
    theirs = iter(addresses(before.body))
    _put_back(after.body, theirs)
    assert after == before


def _put_back(body, theirs) -> None:
    if isinstance(body, list):
        for item in body:
            _put_back(item, theirs)
    elif attrs.has(type(body)):
        node_id = getattr(body, "node_id", getattr(body, "broker_id", None))
        if node_id is not None and isinstance(getattr(body, "host", None), str):
            if not getattr(body, "coordinators", None):
                _, body.host, body.port = next(theirs)
        for field in attrs.fields(type(body)):
            _put_back(getattr(body, field.name), theirs)


STREAMED = [
    (schema.api_key(name), version)
    for name in ("Fetch", "ShareFetch")
    for version in ADDRESSES[name]
]


@pytest.mark.parametrize("host", ["h", "kafka-1.internal.exampl", "x" * 24, "x" * 25, "y" * 200])
@pytest.mark.parametrize(("api_key", "version"), kinds(STREAMED))
def test_a_large_response_streams_and_keeps_its_length(api_key, version, host) -> None:
    body = body_with(api_key, version, BROKERS, b"r" * 600_000)
    frame = response(api_key, version, body)
    player = Player(Settings([BROKER], 19092, advertised_host=host))
    player.connect()
    player.client(ask(api_key, version))
    for start in range(0, len(frame), 65_536):
        player.broker(frame[start : start + 65_536])
        if start + 65_536 < len(frame) - 200:
            assert len(player.to_client()) == start + 65_536, "it leaves as it comes"
    sent = player.to_client()
    assert len(sent) == len(frame)
    after = decode_response(sent, api_key, version)
    assert after.trailing == b""
    given = addresses(after.body)
    assert given in ([], [(n, host, 19093 + n) for n, _, _ in BROKERS])
    assert given or 2 * len(host) > len(BROKERS[0][1]) + 1, "a list that fits stays"
    recorded = b"".join(piece.data for piece in player.frames(Side.BROKER))
    assert recorded == frame


@pytest.mark.parametrize("tag", [2_097_151, 268_435_455])
@pytest.mark.parametrize("api_key", [1, 78])
def test_a_large_response_keeps_its_length_whatever_tags_it_has(api_key: int, tag: int) -> None:
    version = ADDRESSES[schema.api_name(api_key)][-1]
    body = body_with(api_key, version, BROKERS, b"r" * 600_000)
    body.unknown_tags = ((tag, b"x"),)
    frame = response(api_key, version, body)
    player = play(api_key, version, frame, 65_536, advertised_host="h")
    after = decode_response(player.to_client(), api_key, version).body
    assert len(player.to_client()) == len(frame)
    assert addresses(after) == [(n, "h", 19093 + n) for n, _, _ in BROKERS]
    assert (tag, b"x") in after.unknown_tags


def test_the_end_of_a_large_response_is_not_held_without_limit() -> None:
    body = body_with(1, 16, BROKERS, b"r" * 600_000)
    body.unknown_tags = ((7, bytes(40 << 20)),)
    frame = response(1, 16, body)
    player = Player(Settings([BROKER], 19092))
    player.connect()
    player.client(ask(1, 16))
    for start in range(0, len(frame), 1 << 20):
        if player.closed:
            break
        player.broker(frame[start : start + (1 << 20)])
    assert player.closed and start < 20 << 20
    assert "behind the records" in player.logs[-1]


def test_too_many_brokers_at_the_start_are_said_and_do_no_harm() -> None:
    player = Player(Settings([BROKER], nodes_max=1))
    found = rewrite.find_all(response(3, 9, metadata(*BROKERS)), 3, 9)
    player.perform(player.cluster.discovered(found, player.tick()))
    assert "over 1 brokers" in player.logs[0]
    player.connect()


def test_the_same_answer_again_gets_the_same_addresses_until_one_changes() -> None:
    player = Player()
    player.connect()
    moved = [(1, "kafka-9.internal.example", 9092)]
    for number, brokers in enumerate([BROKERS, BROKERS, moved, BROKERS], 1):
        player.client(request(3, 9, messages.MetadataRequest(topics=None), number))
        player.broker(response(3, 9, metadata(*brokers), number))
        sent = player.frames(Side.BROKER)[-1].sent
        assert decode_response(sent, 3, 9).header.correlation_id == number
        ours = [(n, "127.0.0.1", 19093 + n) for n, _, _ in brokers]
        assert addresses(decode_response(sent, 3, 9).body) == ours
        assert player.to_client().endswith(sent)
        player.connect(number + 1, node_id=1)
        assert player.dialled[-1].addresses == (brokers[0][1:],)


def test_an_answer_that_another_connection_contradicted_is_not_remembered() -> None:
    """Broker 1 is at A, then at B, then at A again; who connects to it last must get to A."""
    player = Player()
    player.connect(1)
    player.connect(2)
    a, b = [(1, "a.example", 9092)], [(1, "b.example", 9092)]
    for number, (connection, brokers) in enumerate([(1, a), (2, b), (1, a)], 1):
        player.client(request(3, 9, messages.MetadataRequest(topics=None), number), connection)
        player.broker(response(3, 9, metadata(*brokers), number), connection)
        player.connect(10 + number, node_id=1)
        assert player.dialled[-1].addresses == (brokers[0][1:],)


def test_a_trailing_byte_is_kept() -> None:
    """librdkafka's mock cluster sends Metadata 9+ with one byte too many."""
    frame = bytearray(response(3, 9, metadata(*BROKERS)) + b"\0")
    frame[:4] = struct.pack(">i", len(frame) - 4)
    player = play(3, 9, bytes(frame))
    after = decode_response(player.to_client(), 3, 9)
    assert after.trailing == b"\0"
    assert addresses(after.body) == [(n, "127.0.0.1", 19093 + n) for n, _, _ in BROKERS]


def test_a_response_that_cannot_be_walked_passes_as_it_came() -> None:
    frame = struct.pack(">ii", 10, 1) + b"\xff" * 6
    player = Player()
    player.connect()
    player.client(request(3, 9, messages.MetadataRequest(topics=None)))
    player.broker(frame)
    assert player.to_client() == frame
    assert player.frames(Side.BROKER)[0].flags & OPAQUE
