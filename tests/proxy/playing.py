"""A cluster machine to play with: feed it frames, look at what it does."""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import Frame, Note, Side, each_frame
from kproxy.proxy.actions import Action, Address, Dial, Listen
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import (
    Request,
    Response,
    encode_request,
    encode_response,
    messages,
)
from tests.bed.memory import Clock, Kept, Performer

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
    """The proxy in a performer of its own; listeners open at once unless held."""

    settings: Settings = attrs.field(factory=lambda: Settings([BROKER], listen_port=19092))
    hold_listeners: bool = False
    cluster: Cluster = None
    performer: Performer = None
    wires: dict[int, Kept] = attrs.field(factory=dict)
    dialled: list[Dial] = attrs.field(factory=list)
    listened: dict[int, int] = attrs.field(factory=dict)
    unlistened: list[int] = attrs.field(factory=list)

    def __attrs_post_init__(self) -> None:
        self.cluster = self.cluster or Cluster(self.settings)
        clock = Clock(1_000_000_000, lambda: 1_000_000)
        self.performer = Performer(self.cluster, clock, self._wires, self._dial, self._listen)
        self.performer.unlisten = lambda action: self.unlistened.append(action.node_id)

    def _wires(self, number: int) -> Kept:
        self.wires[number] = Kept(self.performer.clock)
        return self.wires[number]

    def _dial(self, dial: Dial) -> None:
        self.dialled.append(dial)

    def _listen(self, listen: Listen) -> Address | None:
        self.listened[listen.node_id] = listen.port
        return None if self.hold_listeners else self._address(listen.node_id)

    def _address(self, node_id: int) -> Address:
        return "127.0.0.1", self.listened[node_id] or FIRST_PORT + node_id % 45_000

    def connect(self, number: int = 1, node_id: int | None = None) -> None:
        """Open a connection whose broker answers."""
        self.performer.accept(number, node_id, "127.0.0.1:5000", ("127.0.0.1", 19092))
        self.performer.dialled(number, self.dialled[-1].addresses[0])

    def client(self, data: bytes, number: int = 1) -> None:
        """The client sends bytes."""
        self.performer.receive(number, Side.CLIENT, data)

    def broker(self, data: bytes, number: int = 1) -> None:
        """The broker sends bytes."""
        self.performer.receive(number, Side.BROKER, data)

    def perform(self, actions: list[Action]) -> None:
        """Do what the machine wants."""
        self.performer.perform(actions)

    def open(self, node_id: int) -> None:
        """Open the listener that the machine wants."""
        self.performer.listening(node_id, self._address(node_id))

    def advance(self, to_ns: int) -> None:
        """Let time pass, up to then."""
        self.performer.advance(to_ns)

    def tick(self) -> int:
        """The next instant."""
        return self.performer.clock.tick()

    @property
    def now(self) -> int:
        """What time it is; it can be set."""
        return self.performer.clock.now

    @now.setter
    def now(self, now: int) -> None:
        self.performer.clock.now = now

    @property
    def logs(self) -> list[str]:
        """What was logged."""
        return self.performer.logs

    @property
    def paused(self) -> set[tuple[int, Side]]:
        """The sides of connections that are not read from."""
        return self.performer.paused

    @property
    def closed(self) -> dict[int, bool]:
        """The connections that were closed: by a reset?"""
        found = {number: wires.abrupt for number, wires in self.wires.items()}
        return {number: abrupt for number, abrupt in found.items() if abrupt is not None}

    @property
    def eofs(self) -> list[tuple[int, Side]]:
        """The half-closes that were sent."""
        return [(number, side) for number, wires in self.wires.items() for side in wires.ended]

    def to_broker(self, number: int = 1) -> bytes:
        """All that was sent to the broker."""
        return self._sent(number, Side.BROKER)

    def to_client(self, number: int = 1) -> bytes:
        """All that was sent to the client."""
        return self._sent(number, Side.CLIENT)

    def _sent(self, number: int, side: Side) -> bytes:
        return bytes(self.wires[number].sent[side]) if number in self.wires else b""

    @property
    def entries(self) -> list[Frame | Note]:
        """What was recorded."""
        return list(each_frame(self.performer.recorded))

    def frames(self, side: Side | None = None) -> list[Frame]:
        """The frames recorded."""
        found = [entry for entry in self.entries if isinstance(entry, Frame)]
        return found if side is None else [frame for frame in found if frame.side is side]

    def notes(self, event: str) -> list[Note]:
        """The notes recorded of an event."""
        return [e for e in self.entries if isinstance(e, Note) and e.body["event"] == event]


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


def begin(player: Player, number: int = 1) -> None:
    """The first request of a connection is answered: it needs no login."""
    player.client(heartbeat(-1), number)
    player.broker(heartbeat_answer(-1), number)


def end(player: Player, side: Side) -> None:
    """One side half-closes."""
    player.performer.eof(1, side)


def produce(acks: int, version: int = 9, correlation_id: int = 1, size: int = 100) -> bytes:
    """A Produce request of one partition."""
    kind = messages.ProduceRequest
    partition = kind.PartitionProduceData(index=0, records=b"r" * size)
    topic = kind.TopicProduceData(name="orders", partition_data=[partition])
    body = kind(transactional_id=None, acks=acks, timeout_ms=1000, topic_data=[topic])
    return request(0, version, body, correlation_id)
