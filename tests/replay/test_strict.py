"""Strict mode: the same requests get the same responses, anything else is a finding."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Close, Listen, Log, Send
from kproxy.replay.report import Report
from kproxy.replay.settings import ReplaySettings
from kproxy.replay.strict import StrictBroker
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.replay.making import Recorded, batch, fetch


@attrs.define(eq=False)
class Following:
    """A strict broker, and what its connections got."""

    recorded: Recorded
    report: Report = attrs.Factory(Report)
    sent: dict[int, list[bytes]] = attrs.Factory(dict)
    closed: set[int] = attrs.Factory(set)
    logs: list[str] = attrs.Factory(list)
    broker: StrictBroker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.broker = StrictBroker(self.recorded.exchanges, ReplaySettings(), self.report)

    def connect(self, number: int) -> None:
        """A client connects to the bootstrap address."""
        self.sent[number] = []
        reached = ("127.0.0.1", 9092)
        self._perform(self.broker.accepted(number, None, "127.0.0.1:5", reached, 0))

    def ask(
        self, number: int, version: int, body: object, correlation_id: int = 77
    ) -> bytes | None:
        """Send a request; the frame that comes back, if any."""
        name = type(body).__name__.removesuffix("Request")
        header = messages.RequestHeader(
            api_key=protocol.api_key(name),
            api_version=version,
            correlation_id=correlation_id,
            client_id="app",
        )
        frame = protocol.encode_request(protocol.Request(header, body))
        self._perform(self.broker.receive(number, Side.CLIENT, frame, 0))
        return self.sent[number].pop() if self.sent[number] else None

    def _perform(self, actions) -> None:
        for action in actions:
            if isinstance(action, Send):
                self.sent[action.connection].append(b"".join(action.pieces))
            elif isinstance(action, Listen):
                address = ("127.0.0.1", 19_000 + action.node_id)
                self._perform(self.broker.listening(action.node_id, address, 0))
            elif isinstance(action, Close):
                self.closed.add(action.connection)
            elif isinstance(action, Log):
                self.logs.append(action.text)


METADATA = messages.MetadataRequest(topics=None)


def test_the_same_requests_get_the_same_responses_with_our_addresses() -> None:
    following = Following(Recorded().metadata().fetched(batch("a")))
    following.connect(1)
    frame = following.ask(1, 12, METADATA)
    assert frame is not None
    response = protocol.decode_response(frame, 3, 12)
    assert response.header.correlation_id == 77
    assert [(each.host, each.port) for each in response.body.brokers] == [("127.0.0.1", 19_001)]
    frame = following.ask(1, 11, fetch({0: 0}))
    assert frame is not None
    found = protocol.decode_response(frame, 1, 11).body.responses[0].partitions[0]
    assert found.records == batch("a")
    assert following.report.findings == []


def test_the_first_difference_is_named_and_ends_the_connection() -> None:
    following = Following(Recorded().metadata().fetched(batch("a")))
    following.connect(1)
    following.ask(1, 12, METADATA)
    assert following.ask(1, 11, fetch({0: 5}, max_wait_ms=7)) is None
    assert 1 in following.closed
    (finding,) = following.report.findings
    assert "request 2, Fetch v11" in finding.text
    assert "max_wait_ms 7 (recorded: 500)" in finding.text
    assert "topics[0].partitions[0].fetch_offset 5 (recorded: 0)" in finding.text


def test_what_is_longer_than_the_recorded_is_told_by_its_elements() -> None:
    following = Following(Recorded().metadata().fetched(batch("a")))
    following.connect(1)
    following.ask(1, 12, METADATA)
    following.ask(1, 11, fetch({0: 0, 1: 0}))
    (finding,) = following.report.findings
    assert "topics[0].partitions[1] {" in finding.text
    assert finding.text.endswith("(recorded: absent)")


def test_texts_that_differ_are_told_as_in_json() -> None:
    was = Recorded()
    for group in ("g" * 90 + "-one", "h"):
        was.add(4, messages.HeartbeatRequest(group_id=group), messages.HeartbeatResponse())
    following = Following(was)
    following.connect(1)
    following.ask(1, 4, messages.HeartbeatRequest(group_id="g" * 90 + "-two"))
    (finding,) = following.report.findings
    assert finding.text.endswith(f'; group_id …{"g" * 19}-two" (recorded: …{"g" * 19}-one")')


def test_another_version_is_a_difference() -> None:
    following = Following(Recorded().metadata())
    following.connect(1)
    assert following.ask(1, 11, METADATA) is None
    assert "has Metadata v12; Metadata v11 came instead" in following.report.findings[0].text


def test_more_than_was_recorded_is_a_difference() -> None:
    following = Following(Recorded().metadata())
    following.connect(1)
    following.ask(1, 12, METADATA)
    assert following.ask(1, 12, METADATA) is None
    assert "it ends here" in following.report.findings[0].text


def two_connections() -> Recorded:
    was = Recorded().metadata()
    was.entries += Recorded(number=10).metadata().entries
    for entry in was.entries[2:]:
        entry.connection = 2
    heartbeat = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    was.number = 20
    was.add(4, heartbeat, messages.HeartbeatResponse(), connection=2)
    return was


def test_connections_are_known_by_what_they_ask_not_by_their_order() -> None:
    following = Following(two_connections())
    following.connect(1)
    following.connect(2)
    assert following.ask(1, 12, METADATA)
    heartbeat = messages.HeartbeatRequest(group_id="g", member_id="m", generation_id=1)
    assert following.ask(1, 4, heartbeat)
    assert following.ask(2, 12, METADATA)
    assert following.report.findings == []
