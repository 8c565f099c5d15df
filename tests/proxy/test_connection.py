"""Requests and responses through the machine: bytes in, actions out."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    OPAQUE,
    PIECE_BYTES_MAX,
    TRUNCATED,
    UNANSWERED,
    VIEWED_BYTES_MIN,
    Frame,
    Side,
)
from kproxy.proxy.machine import Accepted
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import decode_response, messages
from tests.exchange.bodies import fetch_request
from tests.proxy.playing import (
    BROKER,
    Player,
    begin,
    end,
    heartbeat,
    heartbeat_answer,
    metadata,
    produce,
    request,
    response,
)

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12


def ask_metadata(correlation_id: int, version: int = 9) -> bytes:
    return request(METADATA, version, messages.MetadataRequest(topics=None), correlation_id)


def session(splits_client: list[bytes], splits_broker: list[bytes]) -> Player:
    """Everything from the client first, then everything from the broker, chunk by chunk."""
    player = Player()
    player.connect()
    for chunk in splits_client:
        player.client(chunk)
    for chunk in splits_broker:
        player.broker(chunk)
    return player


FRAME_BYTES = st.sampled_from(
    [
        *range(60, 64),
        *(VIEWED_BYTES_MIN + more for more in (-1, 0, 1, 4)),
        *(PIECE_BYTES_MAX + more for more in (-4, 0, 1)),
    ]
)
"""Sizes on both sides of those from which on a frame is taken in another way."""


def joined_frames(player: Player) -> list[tuple]:
    """The frames recorded, with the pieces of each in one."""
    found: dict[tuple[Side, int], list[Frame]] = {}
    for frame in player.frames():
        found.setdefault((frame.side, frame.number), []).append(frame)
    return [
        (*key, pieces[-1].api_key, pieces[-1].flags & ~FRAGMENT, b"".join(p.data for p in pieces))
        for key, pieces in sorted(found.items())
    ]


@given(
    st.lists(st.tuples(st.sampled_from([-1, 0, 1]), FRAME_BYTES, FRAME_BYTES), max_size=6),
    st.lists(st.floats(0, 1), max_size=3),
    st.lists(st.floats(0, 1), max_size=3),
)
@settings(max_examples=60, deadline=None)
def test_frames_that_are_whole_in_a_chunk_pass_like_those_in_parts(
    asked: list[tuple[int, int, int]], client_cuts: list[float], broker_cuts: list[float]
) -> None:
    front = len(produce(1, size=0))
    requests = [heartbeat(1)]
    responses = [heartbeat_answer(1)]
    for number, (acks, request_bytes, response_bytes) in enumerate(asked, 2):
        frame = produce(acks, size=request_bytes - front, correlation_id=number)
        requests.append(frame)
        if acks:
            size = (response_bytes - 4).to_bytes(4)
            responses.append(size + number.to_bytes(4) + bytes(response_bytes - 8))

    def chunks(frames: list[bytes], cuts: list[float]) -> list[bytes]:
        """The first frame, and the others cut anywhere."""
        data = b"".join(frames[1:])
        edges = sorted({0, len(data), *(round(cut * len(data)) for cut in cuts)})
        return [frames[0], *(data[a:b] for a, b in itertools.pairwise(edges))]

    def parts(frames: list[bytes]) -> list[bytes]:
        """Each frame in two chunks."""
        return [part for frame in frames for part in (frame[:13], frame[13:])]

    one = session(chunks(requests, client_cuts), chunks(responses, broker_cuts))
    other = session(parts(requests), parts(responses))
    assert one.to_broker() == b"".join(requests)
    assert one.to_client() == b"".join(responses)
    assert joined_frames(one) == joined_frames(other)
    assert not one.cluster.busy


def test_a_large_frame_leaves_before_it_is_whole_and_is_recorded_in_pieces() -> None:
    frame = produce(0, size=3_000_000)
    player = Player()
    player.connect()
    for start in range(0, len(frame), 65_536):
        player.client(frame[start : start + 65_536])
        assert len(player.to_broker()) == min(start + 65_536, len(frame))
    recorded = player.frames(Side.CLIENT)
    assert len(recorded) > 2
    assert b"".join(piece.data for piece in recorded) == frame
    more = [bool(piece.flags & MORE) for piece in recorded]
    assert more == [True] * (len(recorded) - 1) + [False]
    assert recorded[-1].flags & NO_RESPONSE


@pytest.mark.parametrize("version", range(4, 18))
def test_a_large_fetch_response_leaves_as_it_arrives(version: int) -> None:
    player = Player()
    player.connect()
    player.client(request(FETCH, version, messages.FetchRequest(topics=[])))
    records = messages.FetchResponse.PartitionData(records=b"r" * 1_000_000)
    topic = messages.FetchResponse.FetchableTopicResponse(partitions=[records])
    frame = response(FETCH, version, messages.FetchResponse(responses=[topic]))
    for start in range(0, 900_000, 65_536):
        player.broker(frame[start : start + 65_536])
        assert len(player.to_client()) == start + 65_536


def test_the_client_is_not_named_by_what_a_large_first_request_holds() -> None:
    frame = produce(1, size=1_500_000)
    player = Player()
    player.connect()
    for start in range(0, len(frame), 65_536):
        player.client(frame[start : start + 65_536])
    assert player.notes("client_id") == []
    player.client(heartbeat(2))
    assert [note.body["client_id"] for note in player.notes("client_id")] == ["app"]


@pytest.mark.parametrize("version", [14, 99, 32767, -1, -32768])
def test_a_produce_that_is_not_in_our_table_keeps_the_pairing_either_way(version: int) -> None:
    future = bytearray(produce(0, 13))
    future[6:8] = version.to_bytes(2, signed=True)
    player = Player()
    player.connect()
    begin(player)
    player.client(bytes(future) + heartbeat(2))
    player.broker(heartbeat_answer(2))
    assert player.to_client() == heartbeat_answer(-1) + heartbeat_answer(2)
    assert player.frames()[2].flags & OPAQUE


def test_unknown_apis_and_versions_pass_and_are_recorded_opaque() -> None:
    asked = struct.pack(">ihhi", 11, 999, 3, 5) + b"abc"
    answer = struct.pack(">ii", 7, 5) + b"xyz"
    player = Player()
    player.connect()
    begin(player)
    player.client(asked)
    player.broker(answer)
    assert player.to_broker() == heartbeat(-1) + asked
    assert player.to_client() == heartbeat_answer(-1) + answer
    assert [frame.data for frame in player.frames()[2:]] == [asked, answer]
    assert [frame.flags & OPAQUE for frame in player.frames()[2:]] == [OPAQUE, OPAQUE]
    assert [frame.api_key for frame in player.frames()[2:]] == [999, 999]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes.fromhex("16030100c8010000c40303"), "TLS"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "HTTP"),
        (b"\x7f\xff\xff\xff" + bytes(20), "limit"),
        (b"\xff\xff\xff\xff" + bytes(20), "negative size"),
        (b"hello, is this a mail server?\r\n", "Kafka protocol"),
        (bytes(12), "too small"),
    ],
)
def test_what_is_not_kafka_ends_that_connection_with_a_reason(data: bytes, words: str) -> None:
    player = Player()
    player.connect(1)
    player.connect(2)
    player.client(heartbeat(1) + data, 1)
    player.client(heartbeat(1), 2)
    assert player.closed == {1: False}
    assert words in player.logs[0] and "\n" not in player.logs[0]
    assert player.to_broker(1) == heartbeat(1), "what came before it was Kafka's and went on"
    assert player.to_broker(2) == heartbeat(1)
    assert player.notes("closed")[0].body["reason"] in player.logs[0]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes.fromhex("15030300020250"), "TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP"),
        (heartbeat_answer(2), "another id where correlation id 1 was due"),
        (b"\xff\xff\xff\xff1234", "negative size"),
    ],
)
def test_a_broker_that_breaks_the_protocol_ends_that_connection(data: bytes, words: str) -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(1))
    player.broker(data)
    assert 1 in player.closed
    assert words in player.logs[0]
    assert player.to_client() == b""


def test_the_brokers_half_close_is_passed_on_and_open_requests_are_noted() -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(1))
    player.perform(player.cluster.closed(1, Side.BROKER, "eof", "", player.tick()))
    assert player.eofs == [(1, Side.CLIENT)]
    player.perform(player.cluster.closed(1, Side.CLIENT, "eof", "", player.tick()))
    assert player.frames()[-1].flags & UNANSWERED
    assert player.frames()[-1].number == 1
    assert player.notes("closed")


def test_a_half_close_waits_for_the_last_byte_of_the_last_answer() -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(1))
    end(player, Side.CLIENT)
    player.broker(heartbeat_answer(1)[:9])
    assert player.eofs == [] and player.cluster.busy, "the broker is still answering"
    player.broker(heartbeat_answer(1)[9:])
    assert player.eofs == [(1, Side.BROKER)] and not player.cluster.busy


def test_the_brokers_half_close_comes_behind_what_waits_for_a_listener() -> None:
    player = Player(hold_listeners=True)
    player.connect()
    player.client(ask_metadata(1) + heartbeat(2))
    end(player, Side.CLIENT)
    player.broker(response(METADATA, 9, metadata((1, "b1", 9092)), 1) + heartbeat_answer(2))
    end(player, Side.BROKER)
    assert not player.eofs and not player.closed and player.cluster.busy
    player.open(1)
    assert player.to_client().endswith(heartbeat_answer(2))
    assert player.closed == {1: False}


@pytest.mark.parametrize("broken", [None, *Side])
def test_what_waits_for_a_listener_is_recorded_when_the_connection_ends(broken) -> None:
    player = Player(hold_listeners=True)
    player.connect()
    player.client(ask_metadata(1) + heartbeat(2) + ask_metadata(3) + heartbeat(4) + heartbeat(5))
    answers = [response(METADATA, 9, metadata((n, f"b{n}", 9092)), n) for n in (1, 3)]
    came = [answers[0], heartbeat_answer(2), answers[1], heartbeat_answer(4)]
    player.broker(b"".join(came) + heartbeat_answer(5)[:9])
    player.performer.stop() if broken is None else player.performer.reset(1, broken)
    *whole, cut = player.frames(Side.BROKER)
    assert [frame.data for frame in whole] == came
    assert cut.data == heartbeat_answer(5)[:9] and cut.flags & TRUNCATED
    assert player.to_client() == b"" and not any(frame.sent_ns for frame in [*whole, cut])


def test_a_connection_that_ends_while_its_broker_is_dialled_was_opened() -> None:
    player = Player()
    player.perform(
        player.cluster.accepted(Accepted(1, None, "x:1", ("127.0.0.1", 1)), player.tick())
    )
    player.perform(player.cluster.stop(player.tick()))
    assert [note.body["event"] for note in player.entries] == ["opened", "closed"]


@pytest.mark.parametrize("waits_for", [FETCH, HEARTBEAT, None])
def test_a_reset_is_logged_where_its_client_waits_for_more_than_a_poll(
    waits_for: int | None,
) -> None:
    player = Player()
    player.connect()
    player.client(heartbeat(1))
    player.broker(heartbeat_answer(1))
    if waits_for == FETCH:
        player.client(request(FETCH, 11, fetch_request({0: 5}), 2))
    elif waits_for == HEARTBEAT:
        player.client(heartbeat(2))
    player.performer.reset(1, Side.CLIENT)
    assert bool(player.logs) == (waits_for == HEARTBEAT), player.logs
    (note,) = player.notes("closed")
    assert note.body["how"] == "reset"


def test_tls_is_guessed_only_where_the_address_has_never_answered() -> None:
    def versions(player: Player, number: int) -> None:
        player.connect(number)
        player.client(request(18, 3, messages.ApiVersionsRequest()), number)

    answering, silent = Player(), Player()
    versions(answering, 1)
    answering.broker(response(18, 3, messages.ApiVersionsResponse(api_keys=[])), 1)
    for player in (answering, silent):
        versions(player, 2)
        player.performer.reset(2, Side.BROKER)
    assert "--broker-tls" in silent.logs[0]
    assert not any("--broker-tls" in line for line in answering.logs)


def test_a_request_cut_off_is_passed_on_and_recorded_as_far_as_it_came() -> None:
    frame = produce(1)
    player = Player()
    player.connect()
    begin(player)
    player.client(frame[:50])
    player.perform(player.cluster.closed(1, Side.CLIENT, "eof", "", player.tick()))
    assert player.to_broker() == heartbeat(-1) + frame[:50]
    assert player.frames()[2].data == frame[:50]
    assert player.frames()[2].flags & TRUNCATED


def test_a_listener_is_open_before_the_response_that_names_its_broker_leaves() -> None:
    player = Player(hold_listeners=True)
    player.connect()
    player.client(ask_metadata(1) + heartbeat(2))
    answer = response(METADATA, 9, metadata((1, "b1", 9092), (5, "b5", 9092)), 1)
    player.broker(answer + heartbeat_answer(2))
    assert player.to_client() == b""
    assert player.listened == {1: 19094, 5: 19098}, "listen port + 1 + node id"
    player.open(1)
    assert player.to_client() == b""
    player.open(5)
    assert player.to_client().endswith(heartbeat_answer(2))
    assert b"b5" not in player.to_client()


def test_responses_stay_in_order_when_one_listener_opens_because_of_another() -> None:
    player = Player(hold_listeners=True)
    one, two = (response(METADATA, 9, metadata((n, f"b{n}", 9092)), n) for n in (1, 2))
    for number in (1, 2):
        player.connect(number)
        player.client(ask_metadata(1) + ask_metadata(2), number)
        player.broker(one + two, number)
    player.hold_listeners = False
    player.open(1)
    for number in (1, 2):
        ids = [f.correlation_id for f in player.frames(Side.BROKER) if f.connection == number]
        assert ids == [1, 2]
        assert player.to_client(number).index(b"\0\0\0\1") < player.to_client(number).index(
            two[4:8]
        )


def test_a_node_id_too_large_for_a_port_gets_any_with_a_warning() -> None:
    player = Player()
    player.connect()
    player.client(ask_metadata(1))
    player.broker(response(METADATA, 9, metadata((1, "b1", 9092), (60_000, "b2", 9092)), 1))
    assert player.listened == {1: 19094, 60_000: 0}
    assert len(player.logs) == 1 and "node 60000 is too large" in player.logs[0]


def test_a_broker_is_dialled_at_the_address_it_was_last_given() -> None:
    player = Player()
    player.connect(1)
    player.client(ask_metadata(1) + ask_metadata(2))
    player.broker(response(METADATA, 9, metadata((1, "old", 9092)), 1))
    player.connect(2, node_id=1)
    assert player.dialled[-1].addresses == (("old", 9092),)
    player.broker(response(METADATA, 9, metadata((1, "new", 9093)), 2), 1)
    player.connect(3, node_id=1)
    assert player.dialled[-1].addresses == (("new", 9093),)
    assert player.listened == {1: 19094}, "one listener for one node, whatever its address"


def test_bootstrap_addresses_are_tried_in_turn_from_the_last_that_answered() -> None:
    player = Player(Settings([("a", 1), ("b", 2), ("c", 3)]))
    player.connect(1)
    assert player.dialled[0].addresses == [("a", 1), ("b", 2), ("c", 3)]
    player.perform(
        player.cluster.accepted(Accepted(2, None, "x:1", ("127.0.0.1", 1)), player.tick())
    )
    player.perform(player.cluster.dialled(2, ("b", 2), player.tick()))
    player.connect(3)
    assert player.dialled[-1].addresses == [("b", 2), ("c", 3), ("a", 1)]


def test_a_client_is_given_the_host_at_which_it_reached_us() -> None:
    player = Player()
    player.perform(
        player.cluster.accepted(Accepted(1, None, "x:1", ("192.0.2.7", 19092)), player.tick())
    )
    player.perform(player.cluster.dialled(1, BROKER, player.tick()))
    player.client(ask_metadata(1))
    player.broker(response(METADATA, 9, metadata((1, "b1", 9092)), 1))
    body = decode_response(player.to_client(), METADATA, 9).body
    assert body.brokers[0].host == "192.0.2.7"


def test_silence_ends_a_connection() -> None:
    player = Player(Settings([BROKER], idle_seconds=600))
    player.connect()
    player.now += 599 * 10**9
    player.perform(player.cluster.wake(player.now))
    assert not player.closed
    player.now += 2 * 10**9
    player.perform(player.cluster.wake(player.now))
    assert 1 in player.closed and "600 s" in player.logs[0]
    assert player.cluster.next_wake is None or player.cluster.next_wake > player.now


def test_a_client_is_read_again_when_its_broker_has_ended() -> None:
    """Otherwise nobody would notice that the client ends too."""
    player = Player(Settings([BROKER], pending_requests_max=2))
    player.connect()
    player.client(heartbeat(1) + heartbeat(2))
    assert player.paused == {(1, Side.CLIENT)}
    end(player, Side.BROKER)
    assert not player.paused
    player.client(heartbeat(3))
    assert not player.paused


def test_a_request_over_the_limit_ends_the_connection() -> None:
    player = Player(Settings([BROKER], request_bytes_max=200))
    player.connect()
    player.client(produce(1, size=100))
    assert not player.closed
    player.client(produce(1, size=200))
    assert player.closed and "over the limit of 200" in player.logs[0]


def test_what_waits_for_an_answer_does_not_hold_large_requests() -> None:
    player = Player()
    player.connect()
    player.client(produce(1, size=100_000))
    pending = player.cluster._connections[1]._pending
    assert len(pending) == 1
    *numbers, times, verdict = pending.first
    assert all(type(number) is int for number in numbers) and times.sent_ns > 0 and verdict is None
    answer = response(PRODUCE, 9, messages.ProduceResponse(responses=[]), 1)
    player.broker(answer)
    assert player.frames(Side.BROKER)[0].request_sent_ns == times.sent_ns
