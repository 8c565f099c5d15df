"""A cluster without sockets: it carries out what a `Sender` wants, in made-up time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from kproxy.exchange.entries import Frame
from kproxy.exchange.pairing import pair
from kproxy.send.conversation import SentConversation
from kproxy.send.order import ahead, items
from kproxy.send.planned import SendSettings
from kproxy.send.sender import CLOSED, Do, Sender, SendLink
from kproxy.wire import protocol
from kproxy.wire.protocol import codes, messages, schema
from tests.exchange.making import MS

REFUSED = "refuses connections"
Answer = Callable[[Any], Any]
"""Gets the body of a request, returns that of the response; None: the broker hangs up; b"": it
answers another request."""


class MadeUp:
    """Brokers, all of which know each version; topics are led by the first."""

    def __init__(self, answer: Answer, nodes: Iterable[int] = (1,), lifetime_ms: int = 0) -> None:
        self.sender = Sender([("broker1", 1)])
        self.nodes = {each: (f"broker{each}", each) for each in nodes}
        self.sender.cluster.nodes = dict(self.nodes)
        self.sender.cluster.versions = {
            key: (0, schema.message(key, schema.REQUEST).versions[-1]) for key in schema.api_names()
        }
        self.asked: list[Any] = []
        """Bodies, but those of kproxy's own questions."""
        self.log: list[tuple[Do, SendLink, int]] = []
        """What was done, to which link, and when."""
        self.refusing: set[int] = set()
        self.leader = 0
        """What Metadata says; 0: the first that is there."""
        self.partitions = 1
        """That topics have."""
        self.has_topics = True
        self.coordinator_error = 0
        self.delay_ns: Callable[[], int] = lambda: MS
        self._answer, self._lifetime_ms = answer, lifetime_ms
        self._events: list[tuple[int, int, Callable[[int], None]]] = []
        self._count = itertools.count()
        self._busy_ns: dict[SendLink, int] = {}

    def run(self, copies: Iterable[Any]) -> None:
        """Go on until copies are done, or nothing happens any more."""
        sender = self.sender
        sender.wake(sender.now_ns or MS)
        while True:
            outputs, sender.outputs = sender.outputs, []
            for each in outputs:
                self._carry_out(*each)
            if all(copy.is_done for copy in copies):
                return
            at_ns = sender.next_ns
            if self._events and (at_ns is None or self._events[0][0] <= at_ns):
                now_ns, _, event = heapq.heappop(self._events)
                event(max(now_ns, sender.now_ns))
            else:
                assert at_ns is not None and at_ns < 3600_000 * MS, "it waits for ever"
                sender.wake(max(at_ns, sender.now_ns))

    def send(
        self, frames: list[Frame], settings: SendSettings | None = None, ends_ns: int = 0
    ) -> list[SentConversation]:
        """Send what these frames are, and return its copies; that there are no more is known at
        this time."""
        given = settings or SendSettings()
        copies = [SentConversation(self.sender, each, given) for each in next(given.rounds())]
        for item in ahead(items((None, each) for each in pair(frames))):
            for copy in copies if item else ():
                copy.take(item)
        for copy in copies:
            self.after(ends_ns, partial(copy.take, None))
        self.run(copies)
        return copies

    def after(self, delay_ns: int, event: Callable[[], None]) -> None:
        """Have something happen in the cluster."""
        at_ns = self.sender.now_ns + delay_ns

        def happen(at_ns: int) -> None:
            self.sender.wake(at_ns)
            event()

        heapq.heappush(self._events, (at_ns, next(self._count), happen))

    def _at(self, link: SendLink, event: Callable[[int], None]) -> None:
        """Have this happen to a link, behind what happens to it before."""
        earliest = max(self._busy_ns.get(link, 0), self.sender.now_ns)
        at_ns = self._busy_ns[link] = earliest + self.delay_ns()
        heapq.heappush(self._events, (at_ns, next(self._count), event))

    def _carry_out(self, what: Do, link: SendLink, given: Any) -> None:
        sender, lifetime_ms = self.sender, self._lifetime_ms
        self.log.append((what, link, sender.now_ns))
        if what is Do.OPEN:
            left = [each for each in given if each[1] not in self.refusing]
            if left:
                how = left[0], "", lifetime_ms
                self._at(link, lambda at_ns: sender.opened(link, *how, at_ns))
            else:
                self._at(link, lambda at_ns: sender.ended(link, REFUSED, at_ns))
        elif what is Do.LOG_IN:
            self._at(link, lambda at_ns: sender.logged_in(link, lifetime_ms, at_ns))
        elif what is Do.WRITE:
            self._take(link, given)

    def _take(self, link: SendLink, data: bytes) -> None:
        sender, asked = self.sender, protocol.decode_request(data)
        if link.is_recorded:
            self.asked.append(asked.body)
            body = self._answer(asked.body)
        else:
            body = self._own(asked.body)
        if body is BLOCKS:
            sender.blocked(link, sender.now_ns)
            body = None
        if body is None:
            self._at(link, lambda at_ns: sender.ended(link, CLOSED, at_ns))
        elif isinstance(body, Later):
            body.then = partial(self._reply, link, asked)
        elif body is not NOTHING:
            self._reply(link, asked, body)

    def _reply(self, link: SendLink, asked: protocol.Request, body: Any) -> None:
        key, version = asked.header.api_key, asked.header.api_version
        header = messages.ResponseHeader(correlation_id=asked.header.correlation_id)
        frame = (4).to_bytes(4) + (7 << 24).to_bytes(4)
        if body:
            frame = protocol.encode_response(protocol.Response(header, body, version), key)
        arrived = bytearray()
        for part in (frame[:7], frame[7:]):

            def take(at_ns: int, part: bytes = part) -> None:
                arrived.extend(part)
                self.sender.received(link, arrived, at_ns)

            self._at(link, take)

    def _own(self, body: Any) -> Any:
        """Answer what kproxy asks for itself."""
        up = {each: where for each, where in self.nodes.items() if each not in self.refusing}
        first = min(up)
        if isinstance(body, messages.FindCoordinatorRequest):
            kind = messages.FindCoordinatorResponse
            (key,) = body.coordinator_keys
            found = kind.Coordinator(key=key, node_id=first, host=up[first][0], port=up[first][1])
            found.error_code = self.coordinator_error
            return kind(coordinators=[found])
        kind = messages.MetadataResponse
        topics = [
            kind.MetadataResponseTopic(
                error_code=codes.NONE if self.has_topics else codes.UNKNOWN_TOPIC_OR_PARTITION,
                name=each.name,
                partitions=[
                    kind.MetadataResponsePartition(
                        partition_index=number, leader_id=self.leader or first
                    )
                    for number in range(self.partitions)
                ],
            )
            for each in body.topics or ()
        ]
        brokers = [
            kind.MetadataResponseBroker(node_id=each, host=host, port=port)
            for each, (host, port) in up.items()
        ]
        return kind(brokers=brokers, topics=topics, controller_id=first)


class Later:
    """An answer that comes later, by `then`."""

    then: Callable[[Any], None]


NOTHING = object()
"""A broker that does not answer."""
BLOCKS = object()
"""It takes no more bytes, then it hangs up."""
