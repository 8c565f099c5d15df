"""Recordings made out of message bodies, and a client of the replaying broker without sockets."""

from __future__ import annotations

import uuid
from typing import Any

import attrs

from kproxy.exchange.entries import Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.pairing import pair
from kproxy.exchange.topic_records import AbortedTransactions
from kproxy.proxy.actions import Action, Close, Eof, Listen, Log, Send
from kproxy.proxy.machine import Accepted
from kproxy.proxy.verdicts import Decider
from kproxy.replay.broker import ReplayBroker
from kproxy.replay.load import load
from kproxy.replay.loaded import Loaded
from kproxy.replay.produced_report import report_unproduced
from kproxy.replay.report import Report
from kproxy.replay.ruled import RuledBroker
from kproxy.replay.serving import modelled
from kproxy.replay.settings import Mode, ReplaySettings
from kproxy.replay.strict import Strict
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from kproxy.wire.protocol.record_batch import Record
from kproxy.wire.protocol.records import encode_batch
from tests.exchange import making

ORDERS_ID = uuid.UUID(int=7)
MS = 1_000_000


def api(body: Any) -> str:
    """The API of a message."""
    return type(body).__name__.removesuffix("Request").removesuffix("Response")


@attrs.define(eq=False)
class Recorded:
    """Exchanges, as a recording would have them."""

    entries: list[Any] = attrs.Factory(list)
    number: int = 0

    def add(self, version: int, request: Any, response: Any = None, **changes: Any) -> Recorded:
        """One more exchange."""
        self.number += 1
        asked = making.request(api(request), version, request, self.number, **changes)
        self.entries.append(asked)
        if response is not None:
            self.entries.append(making.response(asked, response))
        return self

    @property
    def exchanges(self) -> list[Exchange]:
        """What `recording.read` would give."""
        return list(pair(self.entries))

    @property
    def loaded(self) -> Loaded:
        """What the replaying broker makes of it."""
        return self.loaded_for(Mode.STATE)

    def loaded_for(self, mode: Mode) -> Loaded:
        """The same for a mode."""
        return load(self.exchanges, modelled(mode))

    def metadata(self, topic: str = "orders", partitions: int = 1, nodes: int = 1) -> Recorded:
        """A Metadata exchange that describes one topic, led by the nodes in turn, from 1 on."""
        kind = messages.MetadataResponse
        brokers = [
            kind.MetadataResponseBroker(node_id=node, host=f"kafka-{node}", port=9092)
            for node in range(1, nodes + 1)
        ]
        described = kind.MetadataResponseTopic(
            name=topic,
            topic_id=ORDERS_ID if topic == "orders" else uuid.uuid5(ORDERS_ID, topic),
            partitions=[
                kind.MetadataResponsePartition(
                    partition_index=index,
                    leader_id=1 + index % nodes,
                    leader_epoch=3,
                    replica_nodes=[1 + index % nodes],
                    isr_nodes=[1 + index % nodes],
                )
                for index in range(partitions)
            ],
        )
        response = kind(brokers=brokers, cluster_id="a", controller_id=1, topics=[described])
        return self.add(12, messages.MetadataRequest(topics=None), response)

    def fetched(self, data: bytes, offset: int = 0, partition: int = 0) -> Recorded:
        """A Fetch of "orders" that got these batches."""
        response = messages.FetchResponse
        found = response.PartitionData(
            partition_index=partition,
            high_watermark=100,
            aborted_transactions=None,
            records=data,
        )
        topic = response.FetchableTopicResponse(topic="orders", partitions=[found])
        return self.add(11, fetch({partition: offset}), response(responses=[topic]))

    def produced(
        self, data: bytes, base_offset: int = 0, partition: int = 0, **answer: Any
    ) -> Recorded:
        """A Produce to "orders" whose batch was put at an offset."""
        kind = messages.ProduceResponse
        placed = kind.PartitionProduceResponse(index=partition, base_offset=base_offset, **answer)
        topic = kind.TopicProduceResponse(name="orders", partition_responses=[placed])
        return self.add(9, produce(data, partition), kind(responses=[topic]))

    def stood(self, group: str, offset: int, partition: int = 0) -> Recorded:
        """An OffsetFetch of a group for "orders"."""
        kind = messages.OffsetFetchResponse
        found = kind.OffsetFetchResponsePartitions(
            partition_index=partition, committed_offset=offset, metadata="", error_code=0
        )
        topic = kind.OffsetFetchResponseTopics(name="orders", partitions=[found])
        groups = [kind.OffsetFetchResponseGroup(group_id=group, topics=[topic])]
        return self.add(8, offset_fetch(group, partition), kind(groups=groups))


def batch(
    *values: str | None,
    base_offset: int = 0,
    key: bytes | None = b"k",
    time: int = 1000,
    **more: Any,
) -> bytes:
    """A batch of records with these values, a second apart."""
    records = [
        Record(
            base_offset + index,
            time + 1000 * index,
            key,
            None if value is None else value.encode(),
        )
        for index, value in enumerate(values)
    ]
    return encode_batch(records, base_offset=base_offset, **more)


def fetch(offsets: dict[int, int], **more: Any) -> Any:
    """A Fetch of "orders" from these offsets, by name."""
    request = messages.FetchRequest
    partitions = [
        request.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
        for index, offset in offsets.items()
    ]
    topic = request.FetchTopic(topic="orders", partitions=partitions)
    settings = {"max_wait_ms": 500, "min_bytes": 1, "topics": [topic], **more}
    return request(**settings)


def produce(data: bytes, partition: int = 0, acks: int = -1, topic: str = "orders") -> Any:
    """A Produce of one batch."""
    request = messages.ProduceRequest
    one = request.PartitionProduceData(index=partition, records=data)
    each = request.TopicProduceData(name=topic, partition_data=[one])
    return request(acks=acks, timeout_ms=1000, topic_data=[each])


def offset_fetch(group: str, partition: int = 0) -> Any:
    """An OffsetFetch of a group for "orders", version 8."""
    request = messages.OffsetFetchRequest
    topic = request.OffsetFetchRequestTopics(name="orders", partition_indexes=[partition])
    return request(groups=[request.OffsetFetchRequestGroup(group_id=group, topics=[topic])])


@attrs.define(eq=False)
class Playing:
    """A replaying broker with clients, in memory; time passes when it is told to."""

    loaded: Loaded
    settings: ReplaySettings = attrs.Factory(ReplaySettings)
    report: Report = attrs.Factory(Report)
    rules: Decider | None = None
    strict: Strict | None = None
    now: int = 1_700_000_000_000_000_000
    broker: ReplayBroker = attrs.field(init=False)
    sent: dict[int, bytearray] = attrs.Factory(dict)
    closed: dict[int, bool] = attrs.Factory(dict)
    """The connections that were closed, and whether abruptly."""
    half_closed: list[int] = attrs.Factory(list)
    logs: list[str] = attrs.Factory(list)
    ports_taken: frozenset[int] = frozenset()
    """The brokers whose listeners cannot be opened."""
    taking: bool = True
    """Whether clients take what is sent."""
    leaving: list[Any] = attrs.Factory(list)
    """The times of what they have not taken."""
    _numbers: int = 0
    _correlation: int = 0
    _ruled: RuledBroker | None = None

    def __attrs_post_init__(self) -> None:
        self.broker = ReplayBroker(self.loaded, self.settings, self.report, strict=self.strict)
        self.perform(self.machine.start(self.now))

    @property
    def machine(self) -> ReplayBroker | RuledBroker:
        """What clients meet: the broker, or what is in front of it."""
        if self.rules is None:
            return self.broker
        if self._ruled is None:
            self._ruled = RuledBroker(self.broker, self.rules)
        return self._ruled

    def connect(self) -> Client:
        """A new connection."""
        self._numbers += 1
        self.sent[self._numbers] = bytearray()
        address = f"127.0.0.1:{50_000 + self._numbers}"
        reached = ("127.0.0.1", 9092)
        client = Accepted(self._numbers, None, address, reached)
        self.perform(self.machine.accepted(client, self.now))
        return Client(self, self._numbers)

    def take(self) -> None:
        """Clients take what was sent."""
        self._sent()
        for number in self.sent.keys() - self.closed.keys():
            self.perform(self.machine.all_sent(number, Side.CLIENT, self.now))

    def _sent(self) -> None:
        for times in self.leaving:
            times.sent_ns = self.now
        self.leaving.clear()

    def pass_ms(self, milliseconds: float) -> None:
        """Let time pass; the machine is woken at exactly the times that it names."""
        end = self.now + int(milliseconds * MS)
        while (due := self.machine.next_wake) is not None and due <= end:
            self.now = max(self.now, due)
            self.perform(self.machine.wake(self.now))
        self.now = end

    def end(self) -> None:
        """Stop it, and report what was not produced."""
        self.perform(self.machine.stop(self.now))
        report_unproduced(self.broker.state.check, self.report)

    def perform(self, actions: list[Action]) -> None:
        """Do what the machine wants."""
        for action in actions:
            if isinstance(action, Send):
                assert action.connection not in self.closed, "it sends after the end"
                self.sent[action.connection] += b"".join(action.pieces)
                self.leaving += action.timed
                if self.taking:
                    self._sent()
            elif isinstance(action, Eof):
                self.half_closed.append(action.connection)
            elif isinstance(action, Close):
                self.closed[action.connection] = action.abrupt
            elif isinstance(action, Listen) and action.node_id in self.ports_taken:
                self.perform(self.machine.not_listening(action.node_id, "taken", self.now))
            elif isinstance(action, Listen):
                address = ("127.0.0.1", 19_000 + action.node_id)
                self.perform(self.machine.listening(action.node_id, address, self.now))
            elif isinstance(action, Log):
                self.logs.append(action.text)


@attrs.define(eq=False)
class Client:
    """One connection to it."""

    playing: Playing
    number: int
    asked: list[tuple[int, int]] = attrs.Factory(list)
    """Api key and version of the requests that have no response yet."""
    sent_last: bytes = b""
    _correlation: int = 0

    def send(self, version: int, request: Any, client_id: str = "app") -> None:
        """Send a request."""
        self._correlation += 1
        key = protocol.api_key(api(request))
        assert key is not None
        header = messages.RequestHeader(
            api_key=key,
            api_version=version,
            correlation_id=self._correlation,
            client_id=client_id,
        )
        frame = protocol.encode_request(protocol.Request(header, request))
        self.asked.append((key, version))
        self.sent_last = frame
        self.bytes(frame)

    def bytes(self, data: bytes) -> None:
        """Send any bytes."""
        playing = self.playing
        playing.perform(playing.machine.receive(self.number, Side.CLIENT, data, playing.now))

    @property
    def frames(self) -> list[bytes]:
        """Whole frames that came; they are gone then."""
        data, found = self.playing.sent[self.number], []
        while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
            found.append(bytes(data[:size]))
            del data[:size]
        return found

    @property
    def answers(self) -> list[Any]:
        """The bodies of the responses that came; they are gone then."""
        return [protocol.decode_response(frame, *self.asked.pop(0)).body for frame in self.frames]

    def ask(self, version: int, request: Any) -> Any:
        """Send a request that is answered at once, and return the body of its response."""
        self.send(version, request)
        (answer,) = self.answers
        return answer

    def fetch(self, offset: int, version: int = 11, partition: int = 0, **more: Any) -> Any:
        """Fetch from one partition of "orders" at once: its part of the response."""
        answer = self.ask(version, fetch({partition: offset}, **{"max_wait_ms": 0, **more}))
        return answer.responses[0].partitions[0]

    def values(self, offset: int = 0, **more: Any) -> list[str | None]:
        """The values that a consumer reads from an offset on."""
        from kproxy.wire.protocol import records

        return [
            None if record.value is None else record.value.decode()
            for each in records.batches(bytes(self.fetch(offset, **more).records))
            for record in each.records
            if record.offset >= offset and not each.control
        ]

    def committed(self) -> list[str]:
        """The values that a reader of committed records gets, from the beginning."""
        from kproxy.wire.protocol import records

        found = self.fetch(0, isolation_level=1)
        aborted = AbortedTransactions(found.aborted_transactions or ())
        return [
            (record.value or b"").decode()
            for each in records.batches(bytes(found.records))
            if not aborted.is_dropped(each) and not each.control
            for record in each.records
        ]

    def produce(self, data: bytes, partition: int = 0, version: int = 9) -> Any:
        """Produce one batch to "orders": its part of the response."""
        answer = self.ask(version, produce(data, partition))
        return answer.responses[0].partition_responses[0]
