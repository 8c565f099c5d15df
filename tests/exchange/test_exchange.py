"""Entries in, exchanges out."""

from __future__ import annotations

import gc
import random
import weakref
from datetime import UTC, datetime

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.exchange import notes
from kproxy.exchange.body_json import body_text
from kproxy.exchange.entries import (
    EVENTS,
    FAULTED,
    INJECTED,
    NO_RESPONSE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    TRUNCATED,
    Note,
    Side,
)
from kproxy.exchange.pairing import Pairing, pair
from kproxy.wire.protocol import messages
from tests.exchange.making import (
    MS,
    START_NS,
    answer,
    closed,
    fragments,
    opened,
    request,
    response,
    token,
    unanswered,
)

HEARTBEAT = messages.HeartbeatRequest(group_id="checkout", generation_id=3, member_id="m-1")
ALIVE = messages.HeartbeatResponse()


def heartbeat(number: int = 1, connection: int = 1, **changes):
    return request("Heartbeat", 4, HEARTBEAT, number, connection, **changes)


def test_a_request_whose_header_is_of_another_api_than_its_row_is_opaque():
    asked = attrs.evolve(heartbeat(), api_key=1, api_version=11)
    (exchange,) = pair([asked, response(heartbeat(), ALIVE)])
    assert exchange.request is None and exchange.opaque
    assert "opaque" in exchange.text and exchange.facts.topics == []
    assert body_text(exchange, "request").startswith('{"frame": ')


def test_the_response_knows_when_the_request_was_sent_even_if_that_was_recorded_before():
    asked = heartbeat(sent_ns=0)
    answered = response(asked, ALIVE)
    answered.request_sent_ns = asked.received_ns + MS
    answered.received_ns = asked.received_ns + 4 * MS
    answered.sent_ns = answered.received_ns + MS
    (exchange,) = pair([asked, answered])
    assert exchange.broker_ms == 3.0
    assert exchange.proxy_ms == 2.0


def test_unknown_times_are_none():
    asked = heartbeat(sent_ns=0)
    (exchange,) = pair([asked, response(asked, ALIVE, request_sent_ns=0)])
    assert exchange.broker_ms is None
    assert exchange.proxy_ms is None
    asked = heartbeat()
    (exchange,) = pair([asked, response(asked, ALIVE, sent_ns=0)])
    assert exchange.broker_ms == 2.0
    assert exchange.proxy_ms is None


def test_an_answer_is_never_earlier_than_its_request():
    """What is handed on in one go counts as sent when the last of it was: after this answer."""
    asked = heartbeat()
    answered = response(asked, ALIVE, request_sent_ns=0)
    asked.sent_ns = answered.received_ns + MS
    (exchange,) = pair([asked, answered])
    assert exchange.broker_ms is None
    assert exchange.proxy_ms is None


def test_an_injected_response_took_no_time_at_the_broker():
    asked = heartbeat(sent_ns=0)
    answered = response(asked, ALIVE, request_sent_ns=0, flags=INJECTED)
    answered.received_ns = asked.received_ns
    answered.sent_ns = asked.received_ns + 5 * MS
    (exchange,) = pair([asked, answered])
    assert exchange.injected
    assert exchange.broker_ms is None
    assert exchange.proxy_ms == 5.0


def test_acks_0_is_complete_at_once():
    body = messages.ProduceRequest(acks=0, timeout_ms=1000)
    asked = request("Produce", 9, body, flags=NO_RESPONSE)
    pairing = Pairing()
    (exchange,) = pairing.feed(asked)
    assert exchange.one_way
    assert exchange.response is exchange.response_frame is exchange.response_bytes is None
    assert exchange.broker_ms is None
    assert exchange.proxy_ms == 0.05
    assert pairing.finish() == []


def test_another_recording_knows_nothing_of_the_connections_of_the_one_before():
    first, second = heartbeat(), heartbeat()
    entries = [opened(node_id=2), first, response(first, ALIVE), notes.recording(START_NS, "b")]
    *_, exchange = pair([*entries, second, response(second, ALIVE)])
    assert exchange.client_address is exchange.node_id is None


@pytest.mark.parametrize("ending", ["unanswered", "closed", "end of stream"])
def test_never_answered(ending):
    asked = heartbeat()
    entries = [opened(), asked]
    entries += {"unanswered": [unanswered(asked)], "closed": [closed()]}.get(ending, [])
    (exchange,) = pair(entries)
    assert exchange.request == HEARTBEAT
    assert exchange.client_address == "127.0.0.1:5001"
    assert exchange.response is exchange.response_frame is exchange.response_bytes is None
    assert exchange.broker_ms is None
    assert not exchange.opaque


def test_a_response_whose_request_is_in_an_earlier_file():
    asked = heartbeat(number=5)
    (exchange,) = pair([opened(node_id=1, event="open"), response(asked, ALIVE)])
    assert exchange.request is exchange.request_frame is None
    assert (exchange.api, exchange.api_version, exchange.correlation_id) == ("Heartbeat", 4, 105)
    assert exchange.response == ALIVE
    assert exchange.request_bytes == len(asked.data)
    assert exchange.time == datetime(2023, 11, 14, 22, 13, 20, 5000, tzinfo=UTC)
    assert exchange.broker_ms == 2.0
    assert exchange.proxy_ms == 0.08
    assert exchange.client_address == "127.0.0.1:5001"
    assert exchange.client_id is None
    assert not exchange.opaque


# ---- pieces


@given(st.data())
def test_frames_in_pieces_are_put_together(data):
    asked = heartbeat(1)
    answered = response(asked, ALIVE)
    other = heartbeat(2, connection=2)
    cuts = st.lists(st.integers(1, len(asked.data) - 1), max_size=4)
    pieces = [
        *fragments(asked, data.draw(cuts)),
        *fragments(answered, data.draw(st.lists(st.integers(1, len(answered.data) - 1)))),
    ]
    at = data.draw(st.integers(0, len(pieces)))
    entries = [*pieces[:at], *fragments(other, [9]), *pieces[at:], response(other, ALIVE)]
    exchanges = {each.number: each for each in pair(entries)}
    assert exchanges.keys() == {1, 2}
    assert exchanges[1].request_frame == asked.data
    assert exchanges[1].response_frame == answered.data
    assert exchanges[1].client_id == "app"
    assert exchanges[1].request == exchanges[2].request == HEARTBEAT
    assert not exchanges[1].truncated


def test_a_request_whose_last_piece_is_missing_was_made_all_the_same():
    first, _ = fragments(heartbeat(), [20])
    for entries in ([first], [opened(), first, closed()]):
        (exchange,) = pair(entries)
        assert exchange.truncated
        assert exchange.opaque
        assert exchange.api == "Heartbeat"
        assert exchange.request is None
        assert len(exchange.request_frame) == 20
        assert exchange.request_bytes == len(heartbeat().data)


def test_a_response_whose_last_piece_is_missing_is_none():
    asked = heartbeat()
    first, _ = fragments(response(asked, ALIVE), [6])
    (exchange,) = pair([asked, first])
    assert exchange.response is exchange.response_bytes is None


def test_a_response_whose_first_piece_is_in_an_earlier_file_is_truncated():
    _, last = fragments(response(heartbeat(), ALIVE), [6])
    (exchange,) = pair([last])
    assert exchange.truncated
    assert exchange.opaque
    assert exchange.response is None
    assert exchange.errors == []


def test_a_truncated_request_waits_for_the_end_of_its_connection():
    asked = heartbeat(1)
    half = heartbeat(2, pieces=[heartbeat(2).data[:13]], flags=TRUNCATED | OPAQUE)
    exchanges = list(pair([asked, half, response(asked, ALIVE), unanswered(half), closed()]))
    assert [(each.number, each.truncated, each.opaque) for each in exchanges] == [
        (1, False, False),
        (2, True, True),
    ]


def test_half_a_header_has_no_api():
    half = heartbeat(pieces=[b"\0\0\0\x20\0"], flags=TRUNCATED, api_key=-1, api_version=-1)
    (exchange,) = pair([half])
    assert exchange.api is exchange.api_key is exchange.api_version is exchange.client_id is None
    assert exchange.opaque
    assert "half a header      → the recording ends before an answer" in exchange.text
    assert repr(exchange) == f"<Exchange {exchange.text}>"


# ---- what the bodies say


def test_unknown_apis_and_versions_are_opaque_and_keep_their_bytes():
    for key, version, name in ((999, 3, "Api999"), (12, 77, "Heartbeat")):
        data = heartbeat().data
        data = data[:4] + key.to_bytes(2, "big") + version.to_bytes(2, "big") + data[8:]
        asked = heartbeat(pieces=[data], api_key=key, api_version=version, flags=OPAQUE)
        (exchange,) = pair([asked, answer(asked, b"\0\0\0\x04\0\0\0\x65")])
        assert (exchange.api, exchange.api_version) == (name, version)
        assert exchange.opaque
        assert exchange.request is exchange.response is None
        assert exchange.request_frame == data
        assert exchange.client_id == "app"
        assert exchange.errors == []


def test_a_frame_that_was_blanked_out_whole_says_nothing():
    """Zeros may well decode, but they are not what was sent."""
    asked = heartbeat()
    size = len(response(asked, ALIVE).data)
    blank = answer(asked, response(asked, ALIVE).data[:8] + bytes(size - 8))
    blank.flags = OPAQUE | REDACTED
    (exchange,) = pair([asked, blank])
    assert exchange.redacted
    assert exchange.opaque


def test_sasl_tokens_without_a_header():
    asked = token(3, b"*" * 30)
    answered = answer(asked, b"\0\0\0\0", flags=RAW_SASL | REDACTED)
    (exchange,) = pair([asked, answered])
    assert exchange.api == "SaslToken"
    assert exchange.api_key is exchange.api_version is exchange.correlation_id is None
    assert exchange.request is exchange.response is None
    assert exchange.request_bytes == 34
    assert exchange.response_bytes == 4
    assert exchange.broker_ms == 2.0
    assert exchange.redacted
    assert not exchange.opaque


def test_faults_are_named_by_their_rules_as_far_as_notes_tell_them():
    asked = heartbeat(flags=FAULTED, fault_ids=(2,))
    answered = response(asked, ALIVE, flags=FAULTED, fault_ids=(2, 7))
    rule = {"fault_id": 2, "name": "slow", "rule": {"latency": "1s"}}
    told = notes.fault_rules(START_NS, 1, [rule, {"fault_id": "x"}, {}])
    fired = notes.fault(START_NS, "gone", 7, 1, 1)
    for before, expected in (
        ([], ["2", "7"]),
        ([told], ["slow", "7"]),
        ([fired], ["2", "gone"]),
        ([told, fired], ["slow", "gone"]),
    ):
        (exchange,) = pair([*before, asked, answered])
        assert exchange.faults == expected


# ---- what it costs


def test_nothing_is_kept_of_what_is_complete():
    pairing = Pairing()
    kept = []
    for number in range(1, 200):
        connection = number % 7
        pairing.feed(opened(connection))
        asked = heartbeat(number, connection)
        answered = response(asked, ALIVE)
        for entry in (*fragments(asked, [7]), *fragments(answered, [6])):
            kept.append(weakref.ref(entry))
            pairing.feed(entry)
        pairing.feed(closed(connection))
    del asked, answered, entry
    gc.collect()
    assert [each for each in kept if each() is not None] == []
    state = attrs.astuple(pairing, recurse=False)
    assert not any(each for each in state if isinstance(each, dict))


@pytest.mark.parametrize("body", [{}, {"event": "opened"}, {"event": "closed", "connection": []}])
def test_foreign_notes_do_no_harm(body):
    asked = heartbeat()
    for channel in ("connections", EVENTS):
        (exchange,) = pair([Note(channel, 0, body), asked, response(asked, ALIVE)])
        assert exchange.response == ALIVE


@given(st.integers(0, 2**32), st.integers(1, 30))
def test_any_traffic_gives_every_exchange_once(seed, count):
    """Connections, endings, pieces at random: each number comes out once, bytes as they went in."""
    chance = random.Random(seed)
    asked = {n: heartbeat(n, connection=chance.randint(1, 4)) for n in range(1, count + 1)}
    fates = {n: chance.choice(["answered", "unanswered", "left"]) for n in asked}
    entries = []
    waiting: dict[int, list[int]] = {}
    for number, frame in asked.items():
        entries += fragments(frame, [8]) if chance.random() < 0.3 else [frame]
        waiting.setdefault(frame.connection, []).append(number)
        while waiting[frame.connection] and chance.random() < 0.6:
            due = waiting[frame.connection].pop(0)
            if fates[due] == "answered":
                entries.append(response(asked[due], ALIVE))
            elif fates[due] == "unanswered":
                entries.append(unanswered(asked[due]))
            else:
                fates[due] = "left"
    exchanges = list(pair(entries))
    assert sorted(each.number for each in exchanges) == list(asked)
    answered = {entry.number for entry in entries if entry.side is Side.BROKER and entry.pieces}
    for each in exchanges:
        assert each.request_frame == asked[each.number].data
        assert (each.response is not None) == (each.number in answered)


def test_what_left_when_its_exchange_was_over_was_not_held_in_it():
    asked = request("Heartbeat", 4, messages.HeartbeatRequest(), fault_ns=20 * MS)
    end = unanswered(asked)
    end.request_sent_ns, asked.sent_ns = 0, end.received_ns + 20 * MS
    (exchange,) = pair([asked, end])
    assert (exchange.row.request_sent_ns, exchange.fault_ms) == (0, 0)
