"""How entries become batches."""

from __future__ import annotations

import struct
import weakref

import attrs
import pytest

from kproxy.exchange.entries import (
    CONNECTIONS,
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    REWRITTEN,
    UNANSWERED,
    ChunkTimes,
    ExchangeRow,
    Frame,
    Note,
    Position,
    Requests,
    Run,
    Side,
)
from kproxy.recording.batch import RecordingBatch
from kproxy.recording.batch_messages import exchanges_message, frames_message
from kproxy.recording.builder import BatchBuilder
from kproxy.recording.layout import BATCH_BYTES
from kproxy.recording.table_messages import ExchangeTable, FrameTable
from tests.recording.making import START_NS, event, opened, request, response

FETCH = 1


def rows(batch: RecordingBatch) -> list[ExchangeRow]:
    """The exchanges that a batch completes."""
    parts, _ = exchanges_message(batch)
    return list(ExchangeTable(memoryview(b"".join(parts))).rows())


def taken(*entries: Frame | Run | Note) -> list[ExchangeRow]:
    """The rows of entries that come together."""
    builder = BatchBuilder()
    builder.add(entries)
    return [row for batch in builder.take() for row in rows(batch)]


def fetch(number: int, max_wait_ms: int, api_version: int = 11) -> bytes:
    """A Fetch request; from version 12 on headers have tagged fields, from 15 no replica id."""
    flexible = b"\0" if api_version >= 12 else b""
    replica = b"" if api_version >= 15 else b"\xff\xff\xff\xff"
    body = b"\0\3app" + flexible + replica + struct.pack(">ii", max_wait_ms, 1) + bytes(20)
    return struct.pack(">ihhi", 8 + len(body), FETCH, api_version, number) + body


def run_of(side: Side, requests: Requests, times: ChunkTimes, *frames: bytes, nth: int = 0) -> Run:
    """A run of these frames."""
    sizes = [len(frame) for frame in frames]
    return Run(side, 3, times, [b"".join(frames)], requests, nth, sizes)


def test_a_batch_ends_once_it_is_full() -> None:
    builder = BatchBuilder()
    for number in range(600):
        builder.add([request(number, b"f" * 1000)])
    batches = builder.take()
    assert [batch.number for batch in batches] == [1, 2, 3]
    assert [batch.frames for batch in batches] == [263, 263, 74]
    assert BATCH_BYTES <= batches[0].data_bytes < BATCH_BYTES + 1000


def test_nothing_makes_no_batch() -> None:
    assert BatchBuilder().take() == []


def test_a_batch_knows_its_times() -> None:
    builder = BatchBuilder()
    builder.add([event("e", START_NS + 9), request(1, b"f"), opened(time_ns=START_NS + 3)])
    (batch,) = builder.take()
    assert (batch.start_ns, batch.end_ns) == (START_NS + 3, START_NS + 1_000_000)


def test_pieces_are_not_copied() -> None:
    pieces = [b"a" * 50_000, memoryview(b"b" * 50_000)]
    builder = BatchBuilder()
    builder.add([request(1, b"", pieces=pieces)])
    (batch,) = builder.take()
    parts, size = frames_message(batch)
    assert parts[1] is pieces[0] and parts[2] is pieces[1]
    assert sum(map(len, parts)) == size


def test_what_is_completed_says_where_its_frames_lie() -> None:
    builder = BatchBuilder(7)
    builder.add([request(1, b"one"), request(2, b"two")])
    (first,) = builder.take()
    builder.add([response(2, b"two"), response(1, b"one")])
    (second,) = builder.take()
    assert rows(first) == []
    found = {row.number: row for row in rows(second)}
    assert Position.of(found[1].request_position) == Position(7, 0, 0)
    assert Position.of(found[2].request_position) == Position(7, 1, 0)
    assert Position.of(found[1].response_position) == Position(8, 1, 0)


def test_an_exchange_waits_until_its_response_has_left() -> None:
    builder = BatchBuilder()
    answer = response(1, b"later", sent_ns=0)
    builder.add([request(1, b"ask"), answer])
    (batch,) = builder.take()
    assert rows(batch) == []
    answer.sent_ns = START_NS + 5_000_000
    (batch,) = builder.take()
    assert [(row.number, row.response_sent_ns) for row in rows(batch)] == [
        (1, START_NS + 5_000_000)
    ]


def test_what_a_rule_withholds_is_waited_for_by_nobody_and_not_held() -> None:
    builder = BatchBuilder()
    dropped = response(1, b"dropped", sent_ns=0)
    kept_back = request(2, b"no answer", flags=NO_RESPONSE, sent_ns=0)
    asked = request(3, b"ask", sent_ns=0)
    for frame in (dropped, kept_back, asked):
        frame.withheld = True
    builder.add([opened(), request(1, b"ask"), dropped, kept_back, asked])
    (batch,) = builder.take()
    assert [(row.number, row.response_sent_ns) for row in rows(batch)] == [(1, 0), (2, 0)]
    held = [weakref.ref(frame) for frame in (dropped, kept_back, asked)]
    del dropped, kept_back, asked, frame, batch
    assert [frame() for frame in held] == [None, None, None]


def test_a_response_that_never_left_has_its_row_when_its_connection_ends() -> None:
    builder = BatchBuilder()
    builder.add([opened(), request(1, b"ask"), response(1, b"later", sent_ns=0)])
    builder.take()
    builder.add([Note("connections", START_NS, {"event": "closed", "connection": 3})])
    (batch,) = builder.take()
    assert [(row.number, row.response_sent_ns) for row in rows(batch)] == [(1, 0)]


def test_a_request_without_a_response_is_complete_when_it_has_left() -> None:
    (row,) = taken(request(1, b"ask", flags=NO_RESPONSE))
    assert (row.request_flags, row.response_flags, row.response_bytes) == (NO_RESPONSE, 0, 0)
    assert taken(request(1, b"ask", flags=NO_RESPONSE, sent_ns=0)) == []


@pytest.mark.parametrize("told", [True, False])
def test_what_is_pending_when_a_connection_ends_was_not_answered(told: bool) -> None:
    ended = [response(1, b"", pieces=[], frame_bytes=0, flags=UNANSWERED, sent_ns=0)]
    closed = Note("connections", START_NS, {"event": "closed", "connection": 3})
    (row,) = taken(opened(node_id=4), request(1, b"ask"), *(ended if told else []), closed)
    assert (row.number, row.node_id, row.response_flags) == (1, 4, UNANSWERED)
    assert row.response_bytes == row.response_position == 0


@pytest.mark.parametrize("api_version", [4, 11, 12, 15, 17])
@pytest.mark.parametrize("alone", [True, False])
def test_a_fetch_says_how_long_it_may_wait(api_version: int, alone: bool) -> None:
    data = fetch(9, 500, api_version)
    times = ChunkTimes(START_NS, START_NS)
    about = Requests(9, FETCH, api_version, 0, [9], [len(data)], times)
    asked = run_of(Side.CLIENT, about, times, data)
    if alone:
        (asked,) = asked.frames()
    times = ChunkTimes(START_NS + 100, START_NS + 200)
    answered = run_of(Side.BROKER, about, times, b"\0\0\0\4\0\0\0\x09")
    (row,) = taken(asked, answered)
    assert row.max_wait_ms == 500


def test_what_waits_behind_another_request_is_queued() -> None:
    """The second request left at 20 µs; the first response came at 100, so it waited for 80."""
    sent = ChunkTimes(START_NS, START_NS + 20_000)
    requests = Requests(1, 3, 1, 0, [1, 2], [12, 12], sent)
    data = [struct.pack(">ihhi", 8, 3, 1, n) for n in (1, 2)]
    responses = [
        run_of(Side.BROKER, requests, ChunkTimes(at, at), b"\0\0\0\4abcd", nth=nth)
        for nth, at in enumerate((START_NS + 100_000, START_NS + 150_000))
    ]
    first, second = taken(run_of(Side.CLIENT, requests, sent, *data), *responses)
    assert (first.queued_ns, second.queued_ns) == (0, 80_000)


def test_faults_of_both_halves_are_named_once() -> None:
    asked, answered = request(1, b"a", fault_ids=(4, 2)), response(1, b"b", fault_ids=[2, 9])
    (row,) = taken(asked, answered)
    assert row.fault_ids == [4, 2, 9]


@pytest.mark.parametrize("recorded", [True, False])
def test_a_response_that_is_lost_is_there_but_for_its_bytes(recorded: bool) -> None:
    builder = BatchBuilder()
    builder.add([opened()])
    asked = [request(1, b"ask")]
    builder.add(asked) if recorded else builder.lose(asked)
    builder.lose([response(1, b"gone", flags=REWRITTEN)])
    builder.finish()
    (batch,) = builder.take()
    if not recorded:
        assert rows(batch) == []  # nothing of it is
        return
    (row,) = rows(batch)
    (whole,) = taken(request(1, b"ask"), response(1, b"gone", flags=REWRITTEN))
    assert row == whole._replace(response_position=0)
    assert row.response_bytes == 4 and not row.response_flags & UNANSWERED


def test_what_a_refused_batch_told_of_recorded_requests_is_told_later() -> None:
    builder = BatchBuilder()
    builder.add([opened(), request(1, b"one"), request(2, b"two"), request(3, b"three")])
    written = builder.take()
    builder.confirm_written()
    builder.add([response(1, b"lost"), request(4, b"lost too")])
    first = builder.take()
    builder.take_back(first)
    builder.add([response(2, b"lost again"), response(4, b"lost as a whole")])
    second = builder.take()
    builder.take_back(second)
    builder.add([response(3, b"recorded")])
    third = builder.take()
    whole = {row.number: row for batch in (*first, *second) for row in rows(batch)}
    one, two, three = (row for batch in (*written, *third) for row in rows(batch))
    assert [one, two] == [whole[number]._replace(response_position=0) for number in (1, 2)]
    assert three.response_position >> 32 == third[0].number
    assert third[0].start_ns


def test_what_follows_a_lost_piece_does_not_refer_to_the_pieces_before() -> None:
    builder = BatchBuilder()
    builder.add([request(1, b"a" * 100, flags=FRAGMENT | MORE, frame_bytes=200)])
    builder.lose([request(1, b"a" * 100, flags=FRAGMENT, frame_bytes=200)])
    builder.add([request(2, b"b" * 100, flags=FRAGMENT | MORE, frame_bytes=200)])
    (batch,) = builder.take()
    parts, _ = frames_message(batch)
    assert FrameTable(memoryview(b"".join(parts))).previous_piece(1) is None


def test_a_connection_whose_end_is_lost_is_forgotten() -> None:
    builder = BatchBuilder()
    builder.add([request(1, b"ask")])
    builder.lose([Note(CONNECTIONS, START_NS, {"event": "closed", "connection": 3})])
    assert builder._connections == {}


def test_memory_does_not_grow_with_what_is_complete() -> None:
    builder = BatchBuilder()
    for number in range(1, 1000):
        builder.add([request(number, b"ask"), response(number, b"answer")])
        builder.take()
    assert not any(connection.pending for connection in builder._connections.values())
    assert not builder._late


def test_pieces_name_the_piece_before() -> None:
    whole = request(1, bytes(9_500_000))
    builder = BatchBuilder()
    builder.add([whole])
    batches = builder.take()
    assert [batch.number for batch in batches] == [1, 2, 3]
    assert [batch.frames for batch in batches] == [0, 0, 1]
    cut = attrs.evolve(whole, pieces=[b"a"], flags=FRAGMENT | MORE)
    assert cut.flags & MORE


@pytest.mark.parametrize("lost", [False, True])
def test_a_lost_response_is_one_that_others_were_queued_behind(lost: bool) -> None:
    builder = BatchBuilder()
    builder.add([request(n, bytes(20), sent_ns=START_NS + 10) for n in (1, 2)])
    asked = {"request_received_ns": START_NS, "request_sent_ns": START_NS + 10}
    first, second = (
        response(n, bytes(8), received_ns=START_NS + 5000 + n, sent_ns=START_NS + 6000, **asked)
        for n in (1, 2)
    )
    builder.lose([first]) if lost else builder.add([first])
    builder.add([second])
    assert rows(*builder.take())[-1].queued_ns == 4991


def test_an_exchange_of_which_the_end_is_recorded_knows_its_request() -> None:
    builder = BatchBuilder()
    builder.add([request(1, bytes(20), sent_ns=START_NS + 10)])
    builder.lose([response(1, bytes(20), flags=FRAGMENT | MORE, frame_bytes=40)])
    builder.add([response(1, bytes(20), flags=FRAGMENT, frame_bytes=40, sent_ns=START_NS + 20)])
    (row,) = rows(*builder.take())
    assert row.request_position and row.response_position and row.request_received_ns


def test_a_request_that_left_after_it_came_and_got_no_response_has_its_time() -> None:
    builder = BatchBuilder()
    asked = request(1, bytes(20), sent_ns=0)
    builder.add([opened(), asked])
    asked.sent_ns = START_NS + 10
    builder.finish()
    (row,) = rows(*builder.take())
    assert row.request_sent_ns == START_NS + 10


@pytest.mark.parametrize("taken_first", [True, False])
def test_a_request_that_left_after_its_batch_was_taken_has_its_time(taken_first: bool) -> None:
    builder = BatchBuilder()
    asked = request(1, bytes(20), sent_ns=0)
    builder.add([opened(), asked])
    if taken_first:
        builder.take()
        builder.take()
    asked.sent_ns = START_NS + 10
    builder.add([Note(CONNECTIONS, START_NS + 20, {"event": "closed", "connection": 3})])
    (row,) = (row for batch in builder.take() for row in rows(batch))
    assert row.response_flags & UNANSWERED and row.request_sent_ns == START_NS + 10


def test_what_has_left_or_whose_connection_has_ended_is_not_held_any_more() -> None:
    builder = BatchBuilder()
    left, never = request(1, bytes(20), sent_ns=0), request(2, bytes(20), connection=4, sent_ns=0)
    builder.add([opened(3), opened(4), left, never])
    builder.take()
    assert len(builder._unsent) == 2
    left.sent_ns = START_NS + 10
    builder.add([Note(CONNECTIONS, START_NS + 20, {"event": "closed", "connection": 4})])
    builder.take()
    assert builder._unsent == []
