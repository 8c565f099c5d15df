"""Responses take as long as the recorded brokers took, where that is asked for."""

from __future__ import annotations

import pytest

from kproxy.replay.broker import ReplayBroker
from kproxy.replay.pace import Pace
from kproxy.wire.protocol import messages
from tests.replay.making import MS, Playing, Recorded, batch

METADATA = messages.MetadataRequest(topics=None)


def recorded(*took_ms: int) -> Recorded:
    """Metadata exchanges that took so long."""
    found = Recorded()
    for each in took_ms:
        found.metadata()
        request, response = found.entries[-2:]
        request.received_ns += found.number * 1000 * MS
        response.request_sent_ns = request.sent_ns = request.received_ns
        response.received_ns = response.sent_ns = request.received_ns + each * MS
    return found


@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_each_takes_its_time_and_the_first_again_after_the_last(factor: float) -> None:
    found = recorded(10, 30)
    pace = Pace(factor)
    for exchange in found.exchanges:
        pace.add(exchange)
    playing = Playing(found.loaded)
    playing.broker = ReplayBroker(found.loaded, playing.settings, playing.report, pace=pace)
    playing.perform(playing.broker.start(playing.now))
    client = playing.connect()
    for took_ms in (10, 30, 10):
        client.send(12, METADATA)
        playing.pass_ms(took_ms * factor - 1)
        assert client.frames == []
        playing.pass_ms(1)
        assert len(client.frames) == 1


def test_what_was_not_recorded_and_what_waits_by_itself_take_no_time_of_a_broker() -> None:
    found = recorded(10).fetched(batch("a"))
    request, response = found.entries[-2:]
    response.request_sent_ns = request.sent_ns = request.received_ns
    response.received_ns = request.received_ns + 400 * MS
    pace = Pace()
    for exchange in found.exchanges:
        pace.add(exchange)
    assert pace.delay_ns(1) == 0, "the Fetch waited for its max_wait_ms"
    assert pace.delay_ns(99) == 0
