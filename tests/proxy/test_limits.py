"""Limits, endings and versions: what no peer may do to the machine, or to the recording."""

from __future__ import annotations

import struct
import uuid

import pytest

from kproxy.exchange.entries import INJECTED, Side
from kproxy.proxy.authenticate import LoginSession
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import decode_response, messages, schema
from tests.proxy.playing import (
    BROKER,
    Player,
    end,
    heartbeat,
    heartbeat_answer,
    metadata,
    produce,
    request,
    response,
)

METADATA = 3


# ---- who ended it


def ends(player: Player) -> list[tuple[str, str]]:
    """How each side ended, by the recording, the first one first."""
    (note,) = player.notes("closed")
    return [(found["side"], found["how"]) for found in note.body["ends"]]


@pytest.mark.parametrize("first", Side)
def test_the_recording_says_which_side_ended_first(first: Side) -> None:
    player = Player()
    player.connect()
    end(player, first)
    end(player, Side(1 - first))
    names = [side.name.lower() for side in (first, Side(1 - first))]
    assert ends(player) == [(names[0], "eof"), (names[1], "eof")]
    (note,) = player.notes("closed")
    assert note.body["first"] == names[0]


def test_the_recording_says_that_the_proxy_ended_it() -> None:
    player = Player()
    player.connect()
    player.client(b"GET / HTTP/1.1\r\n\r\n")
    assert ends(player) == [("proxy", "violation")]


# ---- a client that has ended, a broker that hangs


def test_a_client_that_has_ended_keeps_its_slot_ten_seconds_without_a_byte() -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(1) + heartbeat(2))
    end(player, Side.CLIENT)
    due = player.cluster.next_wake
    assert due is not None and due - player.now == 10_000_000_000
    player.now = due - 1_000_000
    player.broker(heartbeat_answer(1))
    player.perform(player.cluster.wake(due))
    assert not player.closed, "a byte came in time"
    due = player.cluster.next_wake
    assert due is not None
    player.perform(player.cluster.wake(due))
    assert player.closed == {1: False} and ends(player)[0] == ("client", "eof")


# ---- memory


def test_requests_in_one_chunk_are_limited_by_their_number() -> None:
    player = Player(Settings([BROKER], pending_requests_max=10))
    player.connect()
    player.client(b"".join(heartbeat(n) for n in range(400)))
    assert player.to_broker() == b"".join(heartbeat(n) for n in range(10))
    assert player.paused == {(1, Side.CLIENT)}
    for n in range(400):
        player.broker(heartbeat_answer(n))
    assert player.to_broker() == b"".join(heartbeat(n) for n in range(400))
    assert player.paused == set() and not player.closed


def test_a_request_that_has_begun_to_leave_is_read_to_its_end() -> None:
    player = Player(Settings([BROKER], pending_requests_max=3))
    player.connect()
    asked = b"".join(heartbeat(n) for n in range(5))
    player.client(asked[:-5])
    assert player.paused == {(1, Side.CLIENT)}
    player.broker(heartbeat_answer(0) + heartbeat_answer(1))
    assert player.to_broker() == asked[:-5]
    assert not player.paused, "a broker may want all of it before it answers the others"
    player.client(asked[-5:])
    assert player.to_broker() == asked
    assert player.paused == {(1, Side.CLIENT)}


def test_requests_that_wait_for_room_reach_the_broker_before_the_clients_end() -> None:
    player = Player(Settings([BROKER], pending_requests_max=2))
    player.connect()
    player.client(b"".join(heartbeat(n) for n in range(6)))
    end(player, Side.CLIENT)
    for n in range(6):
        assert player.eofs == []
        player.broker(heartbeat_answer(n))
    assert player.to_broker() == b"".join(heartbeat(n) for n in range(6))
    assert player.eofs == [(1, Side.BROKER)]


def test_what_all_connections_hold_is_limited() -> None:
    player = Player(Settings([BROKER], held_bytes_max=100_000))
    answer = response(METADATA, 9, metadata(*((n, "kafka.example", 9092) for n in range(2000))))
    for number in (1, 2, 3, 4):
        player.connect(number)
        player.client(request(METADATA, 9, messages.MetadataRequest(), 1), number)
        player.broker(answer[:-5][:30_000], number)
    assert 4 in player.closed and 1 not in player.closed
    assert "--held-bytes-max" in player.logs[-1]
    player.perform(player.cluster.closed(1, Side.CLIENT, "reset", "", player.tick()))
    player.connect(5)
    player.client(request(METADATA, 9, messages.MetadataRequest(), 1), 5)
    player.broker(answer[:30_000], 5)
    assert 5 not in player.closed, "what a closed connection held is free again"


def test_unfinished_frames_are_recorded_in_pieces_where_much_is_held() -> None:
    player = Player(Settings([BROKER], held_bytes_max=1_000_000))
    whole = produce(1, size=900_000)
    for number in range(1, 40):
        player.connect(number)
        for start in range(0, 800_000, 16_384):
            player.client(whole[start : min(start + 16_384, 800_000)], number)
        assert player.to_broker(number) == whole[:800_000]
    assert not player.closed
    kept = sum(len(frame.data) for frame in player.frames(Side.CLIENT))
    assert kept > 39 * 700_000, "it went to the recording instead"


# ---- large responses


def test_a_large_fetch_streams_when_its_header_comes_by_itself() -> None:
    player = Player()
    player.connect()
    fetch = request(1, 16, messages.FetchRequest(), 1)
    player.client(fetch)
    size = 101 << 20
    head = struct.pack(">ii", size, 1)
    player.broker(head)
    player.broker(b"\0" + bytes(4) + bytes(2) + bytes(4) + b"\x02" + bytes(60))
    assert not player.closed, player.logs
    assert len(player.to_client()) > 50


# ---- ApiVersions


def api_versions(version: int) -> bytes:
    """A request in a version that may be unknown: none needs a body to be answered."""
    return struct.pack(">ihhih", 10, 18, version, 7, -1)


def test_a_version_of_api_versions_that_we_do_not_know_is_answered_as_by_an_old_broker() -> None:
    player = Player()
    player.connect()
    player.client(api_versions(99))
    assert player.to_broker() == b""
    answer = decode_response(player.to_client(), 18, 0).body
    assert answer.error_code == 35
    assert [(a.api_key, a.min_version) for a in answer.api_keys] == [(18, 0)]
    assert player.frames(Side.BROKER)[0].flags & INJECTED


def test_versions_that_we_cannot_rewrite_are_not_offered() -> None:
    player = Player()
    player.connect()
    kind = messages.ApiVersionsResponse
    offered = [(3, 0, 99), (18, 0, 4), (12, 0, 99), (1, 4, 17), (60, 90, 99)]
    body = kind(
        error_code=0,
        api_keys=[
            kind.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, low, high in offered
        ],
    )
    for correlation_id in (1, 2):
        player.client(request(18, 3, messages.ApiVersionsRequest(), correlation_id))
        player.broker(response(18, 3, body, correlation_id))
    told = decode_response(player.to_client()[: len(player.to_client()) // 2], 18, 3).body
    newest = max(schema.message(3, schema.RESPONSE).versions)
    found = [(a.api_key, a.min_version, a.max_version) for a in told.api_keys]
    assert found == [(3, 0, newest), *offered[1:]]
    assert sum("Metadata 99" in text for text in player.logs) == 1, "it is told once"
    assert any("DescribeCluster from version 90" in text for text in player.logs)


# ---- topic ids


def test_a_topic_id_is_noted_when_a_response_first_names_it() -> None:
    player = Player()
    player.connect()
    kind = messages.MetadataResponse
    ids = [uuid.UUID(int=n) for n in (5, 6)]
    for correlation_id, some in ((1, ids[:1]), (2, ids[:1]), (3, ids)):
        topics = [kind.MetadataResponseTopic(name=f"t{i.int}", topic_id=i) for i in some]
        player.client(request(METADATA, 12, messages.MetadataRequest(), correlation_id))
        player.broker(response(METADATA, 12, kind(topics=topics), correlation_id))
    assert [note.body["topic"] for note in player.notes("topic_id")] == ["t5", "t6"]


# ---- nodes


def test_a_response_that_names_too_many_brokers_registers_none_of_them() -> None:
    player = Player(Settings([BROKER], nodes_max=3))
    player.connect()
    player.client(request(METADATA, 9, messages.MetadataRequest(), 1))
    player.broker(response(METADATA, 9, metadata(*((n, "k", 9092) for n in range(4)))))
    assert player.closed and player.listened == {}
    player.connect(2)
    player.client(request(METADATA, 9, messages.MetadataRequest(), 1), 2)
    player.broker(response(METADATA, 9, metadata((7, "k", 9092))), 2)
    assert list(player.listened) == [7] and 2 not in player.closed


def test_a_broker_that_nothing_names_for_an_hour_makes_way_for_another() -> None:
    player = Player(Settings([BROKER], nodes_max=2))
    player.connect()

    def names(*node_ids: int) -> None:
        player.client(request(METADATA, 9, messages.MetadataRequest(), 1))
        player.broker(response(METADATA, 9, metadata(*((n, "k", 9092) for n in node_ids))))

    names(1, 2)
    player.now += 3_000_000_000_000
    names(2)
    player.now += 1_000_000_000_000
    names(2, 3)
    assert player.unlistened == [1] and sorted(player.listened) == [1, 2, 3]
    assert not player.closed


# ---- what is likely wrong


def test_a_broker_that_hangs_up_on_plaintext_may_speak_tls() -> None:
    player = Player()
    player.connect()
    player.client(request(18, 3, messages.ApiVersionsRequest(), 1))
    end(player, Side.BROKER)
    (line,) = player.logs
    assert "TLS" in line and "--bootstrap" in line


@pytest.mark.parametrize("own_login", [None, LoginSession("PLAIN", 2, 0)])
def test_a_broker_that_hangs_up_after_api_versions_may_want_sasl(
    own_login: LoginSession | None,
) -> None:
    """Not if kproxy has logged in."""
    player = Player()
    player.performer.accept(1, None, "127.0.0.1:5000", ("127.0.0.1", 19092))
    player.performer.dialled(1, BROKER, own_login)
    player.client(request(18, 3, messages.ApiVersionsRequest(), 1))
    kind = messages.ApiVersionsResponse
    player.broker(response(18, 3, kind(api_keys=[]), 1))
    player.client(request(METADATA, 9, messages.MetadataRequest(), 2))
    player.perform(player.cluster.closed(1, Side.BROKER, "reset", "reset by the peer", 9))
    (line,) = player.logs
    assert ("SASL_PLAINTEXT" in line) == (own_login is None)


def test_a_node_that_does_not_speak_kafka_is_named_with_its_listeners() -> None:
    player = Player()
    player.connect()
    player.client(request(METADATA, 9, messages.MetadataRequest(), 1))
    player.broker(response(METADATA, 9, metadata((7, "k", 9092))))
    player.connect(2, node_id=7)
    player.client(heartbeat(1), 2)
    player.broker(b"HTTP/1.1 400 Bad Request\r\n\r\n", 2)
    assert "advertised.listeners of node 7" in player.logs[-1]


def test_a_frame_cut_between_chunks_that_wait_for_room_is_whole_again() -> None:
    player = Player(Settings([BROKER], listen_port=19092, pending_requests_max=1))
    player.connect()
    third = heartbeat(3)
    player.client(heartbeat(1) + heartbeat(2) + third[:6])
    player.client(third[6:])
    for number in (1, 2, 3):
        player.broker(heartbeat_answer(number))
    assert player.to_broker() == heartbeat(1) + heartbeat(2) + third
    assert not player.closed and player.paused == set()
