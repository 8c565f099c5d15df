"""Strict mode: the same requests get the same responses, anything else is a finding."""

from __future__ import annotations

from typing import Any

import pytest

from kproxy.replay.loaded import Loaded
from kproxy.replay.report import Report
from kproxy.replay.strict import Strict
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.replay.making import Playing, Recorded, batch, fetch

METADATA = messages.MetadataRequest(topics=None)
HEARTBEAT = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)


def following(recorded: Recorded) -> Playing:
    """A strict broker."""
    strict, loaded = Strict(recorded.exchanges), Loaded()
    loaded.cluster.racks = dict.fromkeys(strict.nodes)
    return Playing(loaded, strict=strict)


def differing(recorded: Recorded, *asked: tuple[int, Any]) -> str:
    """The finding of a connection whose last request differs from the recorded one."""
    broker = following(recorded)
    client = broker.connect()
    for version, request in asked:
        assert client.number not in broker.closed
        client.send(version, request)
    assert broker.closed == {client.number: False}
    assert len(client.frames) == len(asked) - 1
    (finding,) = broker.report.findings
    return finding.text


def test_the_same_requests_get_the_same_responses_with_our_addresses() -> None:
    broker = following(Recorded().metadata().fetched(batch("a")))
    client = broker.connect()
    client._correlation = 76
    client.send(12, METADATA)
    (frame,) = client.frames
    response = protocol.decode_response(frame, 3, 12)
    assert response.header.correlation_id == 77
    assert [(each.host, each.port) for each in response.body.brokers] == [("127.0.0.1", 19_001)]
    client.asked.clear()
    assert client.fetch(0, max_wait_ms=500).records == batch("a")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            fetch({0: 5}, max_wait_ms=7),
            ["request 2, Fetch v11", "max_wait_ms 7, recorded 500", "fetch_offset 5"],
        ),
        (fetch({0: 0, 1: 0}), ["topics[0].partitions[1] {", ", recorded without"]),
        (METADATA, ["has Fetch v11; Metadata v11 came instead"]),
    ],
)
def test_the_first_difference_is_named_and_ends_the_connection(asked: Any, told: list[str]) -> None:
    text = differing(Recorded().metadata().fetched(batch("a")), (12, METADATA), (11, asked))
    assert all(each in text for each in told), text


def test_texts_that_differ_are_told_as_in_json() -> None:
    was = Recorded()
    for group in ("g" * 90 + "-one", "h"):
        was.add(4, messages.HeartbeatRequest(group_id=group), messages.HeartbeatResponse())
    text = differing(was, (4, messages.HeartbeatRequest(group_id="g" * 90 + "-two")))
    assert text.endswith(f'; group_id …{"g" * 19}-two", recorded …{"g" * 19}-one"')


def test_more_than_was_recorded_is_a_difference() -> None:
    text = differing(Recorded().metadata(), (12, METADATA), (12, METADATA))
    assert "it ends here" in text


def test_connections_are_known_by_what_they_ask_not_by_their_order() -> None:
    was = Recorded().metadata()
    was.entries += Recorded(number=10).metadata().entries
    for entry in was.entries[2:]:
        entry.connection = 2
    was.number = 20
    was.add(4, HEARTBEAT, messages.HeartbeatResponse(), connection=2)
    broker = following(was)
    first, second = broker.connect(), broker.connect()
    for client, version, request in (
        (first, 12, METADATA),
        (first, 4, HEARTBEAT),
        (second, 12, METADATA),
    ):
        client.send(version, request)
        assert len(client.frames) == 1
    assert broker.report.findings == []


def test_recorded_produce_requests_that_do_not_come_are_counted() -> None:
    was = Recorded()
    for value in ("a", "b"):
        was.produced(batch(value))
    broker = following(was)
    report = Report()
    assert broker.broker.strict is not None
    broker.broker.strict.report_unplayed(report)
    assert "2 of its Produce requests did not come, the first is #1" in report.findings[0].text
