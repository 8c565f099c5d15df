"""A cluster machine to play with: feed it frames, look at what it does."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import Frame, Note, Side, each
from kproxy.protocol import (
    Request,
    Response,
    encode_request,
    encode_response,
    messages,
)
from kproxy.proxy.actions import (
    Close,
    Dial,
    Eof,
    Listen,
    Log,
    Pause,
    Record,
    Resume,
    Send,
)
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.settings import Settings

BROKER = ("broker.example", 9092)
FIRST_PORT = 20_000


def request(api_key: int, version: int, body, correlation_id: int = 1, client_id="app") -> bytes:
    """A request frame."""
    header = messages.RequestHeader(
        api_key=api_key,
        api_version=version,
        correlation_id=correlation_id,
        client_id=client_id,
    )
    return encode_request(Request(header, body))


def response(api_key: int, version: int, body, correlation_id: int = 1) -> bytes:
    """A response frame."""
    header = messages.ResponseHeader(correlation_id=correlation_id)
    return encode_response(Response(header, body, version), api_key)


@attrs.define
class Player:
    """Performs the actions of a machine in memory; listeners open at once unless held."""

    settings: Settings = attrs.field(factory=lambda: Settings([BROKER], listen_port=19092))
    hold_listeners: bool = False
    cluster: Cluster = None
    sent: dict = attrs.field(factory=dict)
    """(connection, side) → bytes sent to that side."""
    recorded: list = attrs.field(factory=list)
    dialled: list = attrs.field(factory=list)
    listened: dict = attrs.field(factory=dict)
    eofs: list = attrs.field(factory=list)
    paused: set = attrs.field(factory=set)
    closed: dict = attrs.field(factory=dict)
    logs: list = attrs.field(factory=list)
    now: int = 1_000_000_000

    def __attrs_post_init__(self) -> None:
        self.cluster = self.cluster or Cluster(self.settings)

    def connect(self, number: int = 1, node_id: int | None = None) -> None:
        """Open a connection whose broker answers."""
        local_address = ("127.0.0.1", 19092)
        self.perform(
            self.cluster.accepted(number, node_id, "127.0.0.1:5000", local_address, self.tick())
        )
        address = self.dialled[-1].addresses[0]
        self.perform(self.cluster.dialled(number, address, self.tick()))

    def client(self, data: bytes, number: int = 1) -> None:
        """The client sends bytes."""
        self.perform(self.cluster.receive(number, Side.CLIENT, data, self.tick()))

    def broker(self, data: bytes, number: int = 1) -> None:
        """The broker sends bytes."""
        self.perform(self.cluster.receive(number, Side.BROKER, data, self.tick()))

    def tick(self) -> int:
        """The next instant."""
        self.now += 1_000_000
        return self.now

    def to_broker(self, number: int = 1) -> bytes:
        """All that was sent to the broker."""
        return bytes(self.sent.get((number, Side.BROKER), b""))

    def to_client(self, number: int = 1) -> bytes:
        """All that was sent to the client."""
        return bytes(self.sent.get((number, Side.CLIENT), b""))

    @property
    def entries(self) -> list[Frame | Note]:
        """What was recorded."""
        return list(each(self.recorded))

    def frames(self, side: Side | None = None) -> list[Frame]:
        """The frames recorded."""
        found = [entry for entry in self.entries if isinstance(entry, Frame)]
        return found if side is None else [frame for frame in found if frame.side is side]

    def notes(self, event: str) -> list[Note]:
        """The notes recorded of an event."""
        return [e for e in self.entries if isinstance(e, Note) and e.body["event"] == event]

    def perform(self, actions) -> None:
        """Do what the machine asks for."""
        for action in actions:
            match action:
                case Send():
                    out = self.sent.setdefault((action.connection, action.side), bytearray())
                    for piece in action.pieces:
                        out += piece
                    for times in action.timed:
                        times.sent_ns = self.tick()
                case Record():
                    self.recorded += action.entries
                case Dial():
                    self.dialled.append(action)
                case Listen():
                    self.listened[action.node_id] = action.port
                    if not self.hold_listeners:
                        self.open(action.node_id)
                case Eof():
                    self.eofs.append((action.connection, action.side))
                case Pause():
                    self.paused.add((action.connection, action.side))
                case Resume():
                    self.paused.discard((action.connection, action.side))
                case Close():
                    self.closed[action.connection] = action.abrupt
                case Log():
                    self.logs.append(action.text)

    def open(self, node_id: int) -> None:
        """Open the listener that was asked for."""
        port = self.listened[node_id] or FIRST_PORT + node_id % 45_000
        self.perform(self.cluster.listening(node_id, ("127.0.0.1", port), self.tick()))


def metadata(*brokers: tuple[int, str, int]):
    """A Metadata response body with these brokers and one topic."""
    kind = messages.MetadataResponse
    return kind(
        brokers=[
            kind.MetadataResponseBroker(node_id=node_id, host=host, port=port, rack=None)
            for node_id, host, port in brokers
        ],
        cluster_id="cluster",
        controller_id=brokers[0][0] if brokers else -1,
        topics=[kind.MetadataResponseTopic(name="orders", partitions=[])],
    )


def heartbeat(correlation_id: int) -> bytes:
    """A small request."""
    return request(12, 4, messages.HeartbeatRequest(group_id="g"), correlation_id)


def heartbeat_answer(correlation_id: int, error_code: int = 0) -> bytes:
    """Its response."""
    return response(12, 4, messages.HeartbeatResponse(error_code=error_code), correlation_id)


def end(player: Player, side: Side) -> None:
    """One side half-closes."""
    player.perform(player.cluster.closed(1, side, "eof", "", player.tick()))


def produce(acks: int, version: int = 9, correlation_id: int = 1, size: int = 100) -> bytes:
    """A Produce request of one partition."""
    kind = messages.ProduceRequest
    partition = kind.PartitionProduceData(index=0, records=b"r" * size)
    topic = kind.TopicProduceData(name="orders", partition_data=[partition])
    body = kind(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[topic])
    return request(0, version, body, correlation_id)
