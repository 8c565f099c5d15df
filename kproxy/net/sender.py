"""Connections to the brokers of a cluster: requests out, responses in, by their order.

::

    request ─▶ BrokerLink ─▶ broker ─▶ read ─▶ who waits for it
                   └── frames, notes ─▶ the recorder

Owns what the cluster has answered of itself (`send.target`), for which it asks on a connection of
its own that is not recorded, and the figures of what was sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import NO_RESPONSE, Entry, Frame, Side
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.net.dial import Ourselves, Unreachable, dial, why
from kproxy.net.handshake import Secured
from kproxy.net.listeners import Listening
from kproxy.net.security import Security
from kproxy.net.transport import Transport
from kproxy.proxy import redact
from kproxy.proxy.actions import Address
from kproxy.send import target
from kproxy.send.compared import Deviation
from kproxy.send.target import TargetCluster
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, messages

AGAIN_SECONDS = 0.1
PASSES_SECONDS = 10.0
"""For this long a request is sent again while an error passes."""
ANSWER_SECONDS = 30.0


class ClusterGone(Exception):
    """The cluster cannot be reached, or not any more; the text says why."""


@attrs.define(eq=False)
class Sent:
    """What was sent, what came of it."""

    left_out: Counter[str] = attrs.field(factory=Counter)
    """Why requests were not sent."""
    requests: int = 0
    answered: int = 0
    one_way: int = 0
    """Requests that nobody answers."""
    connections: int = 0
    request_bytes: int = 0
    response_bytes: int = 0
    latencies: dict[str, Histogram] = attrs.field(factory=dict)
    """By API, in microseconds."""
    differences: dict[Deviation, list[int]] = attrs.field(factory=dict)
    """How often, and the number of the first exchange."""
    last: Exchange | None = None
    """The exchange that was sent last."""
    began: float = 0.0
    seconds: float = 0.0
    """For how long it has been sent."""
    ended: str = ""
    """Why it ended early; "" if it did not."""
    records: int = 0
    """Of the inputs of a service, those that were written …"""
    all_records: int = 0
    """… and all of them; 0 if a conversation is sent."""

    def differs(self, difference: Deviation, number: int) -> None:
        """Count a difference of an exchange."""
        self.differences.setdefault(difference, [0, number])[0] += 1


@attrs.define(eq=False)
class BrokerLink:
    """A connection to a broker."""

    number: int
    node: int | None
    transport: Transport
    sending: Any = attrs.field(factory=trio.Lock)
    waiting: deque[tuple[int, int, int, int, Callable[[bytes | None], None]]] = attrs.field(
        factory=deque
    )
    """Correlation id, API key, version, number and what takes the response, None if none comes."""
    ended: bool = False

    async def write(self, data: bytes) -> None:
        """Send all of this.

        Raises: OSError.
        """
        transport, view = self.transport, memoryview(data)
        try:
            async with self.sending:
                taken = transport.try_send(view)
                while taken < len(data) or transport.wants_write:
                    await trio.lowlevel.wait_writable(transport.fileno())
                    transport.flush()
                    if taken < len(data):
                        taken += transport.try_send(view[taken:])
        except (trio.ClosedResourceError, ValueError):  # the other task has closed it
            raise OSError("the connection ended") from None


class Sender:
    """The cluster, and what all conversations with it share."""

    def __init__(
        self,
        bootstrap: Iterable[Address],
        security: Security,
        emit: Callable[[Sequence[Entry]], None] | None,
        now_ns: Callable[[], int],
    ) -> None:
        self.cluster = TargetCluster()
        self.sent = Sent()
        self.nursery: trio.Nursery
        self._bootstrap = list(bootstrap)
        self._secure = security.query
        self._emit = emit
        self._now_ns = now_ns
        self._numbers = 0
        self._control: dict[int | None, BrokerLink] = {}
        self._asking = trio.Lock()

    async def begin(self, topics: Iterable[str]) -> None:
        """Ask for the brokers and their versions, and for the topics of the recording.

        Raises: ClusterGone.
        """
        await self.ask(target.API_VERSIONS, 0, messages.ApiVersionsRequest())
        await self.learn_topics(topics)

    async def learn_topics(self, topics: Iterable[str]) -> None:
        """Ask for the leaders and ids of topics."""
        await self.ask(target.METADATA, None, target.metadata_request(topics))

    async def learn_coordinator(self, key: tuple[int, str]) -> None:
        """Ask for the coordinator of a group or a transactional id, until there is one."""
        with trio.move_on_after(PASSES_SECONDS):
            while True:
                body = await self.ask(
                    target.FIND_COORDINATOR, None, target.coordinator_request(key)
                )
                found = next(iter(body.coordinators), body)
                if not found.error_code:
                    self.cluster.coordinators[key] = found.node_id
                    self.cluster.nodes.setdefault(found.node_id, (found.host, found.port))
                    return
                await trio.sleep(AGAIN_SECONDS)

    async def ask(
        self, api_key: int, version: int | None, body: Any, node: int | None = None
    ) -> Any:
        """Ask the cluster, or a broker of it, something of kproxy's own, which is not recorded;
        return the answer. Without a version it is the newest that both know.

        Raises: ClusterGone.
        """
        async with self._asking:
            for _ in range(2):  # a connection that has long been idle may have been closed
                link = await self._control_link(node)
                known = version
                if known is None:
                    known = self.cluster.version(api_key, target.NEWEST, body)
                answer = await self.answer(link, api_key, known, body)
                if answer is not None:
                    found, _ = codec.decode_response_body(answer, api_key, known)
                    if api_key == target.API_VERSIONS:
                        self.cluster.learn_versions(found)
                    elif api_key == target.METADATA:
                        self.cluster.learn_metadata(found)
                    return found
        raise ClusterGone("the brokers close the connection (do they want TLS, or a login?)")

    async def answer(self, link: BrokerLink, api_key: int, version: int, body: Any) -> bytes | None:
        """Send a request of kproxy's own on a link; return what is answered, None if the connection
        ends first.

        Raises: ClusterGone.
        """
        put, answers = trio.open_memory_channel[bytes | None](1)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                await self.request(link, api_key, version, "kproxy", body, put.send_nowait)
                return await answers.receive()
        except OSError:
            return None
        except trio.TooSlowError:
            raise ClusterGone(f"no answer within {ANSWER_SECONDS:g} s") from None

    async def _control_link(self, node: int | None) -> BrokerLink:
        link = self._control.get(node)
        if link is None or link.ended:
            link = self._control[node] = await self.connect(node, recorded=False)
        return link

    async def connect(
        self, node: int | None, client_id: str | None = None, recorded: bool = True
    ) -> BrokerLink:
        """Connect to a broker, or to any.

        Raises: ClusterGone.
        """
        addresses = self._bootstrap
        if node is not None and node in self.cluster.nodes:
            addresses = [self.cluster.nodes[node]]
        elif self.cluster.nodes:
            addresses = [*self.cluster.nodes.values(), *addresses]
        try:
            found = await dial(addresses, Listening(), self._secure)
        except Ourselves as error:
            raise ClusterGone(str(error)) from None
        if isinstance(found, Unreachable):
            raise ClusterGone(found.reason)
        self.sent.connections += 1
        link = BrokerLink(self.sent.connections if recorded else 0, node, found.secured.transport)
        if recorded:
            self._note_opened(link, found.secured, found.address, client_id)
        self.nursery.start_soon(self._read, link)
        return link

    def _note_opened(
        self, link: BrokerLink, secured: Secured, address: Address, client_id: str | None
    ) -> None:
        if self._emit:
            about = {"node_id": link.node, "broker_address": "{}:{}".format(*address)}
            if secured.login is not None:
                about["broker_login"] = secured.login.mechanism
            now_ns = self._now_ns()
            said = notes.client_id(link.number, now_ns, client_id)
            self._emit([notes.opened(link.number, now_ns, about), said])

    def close(self, link: BrokerLink, reason: str = "") -> None:
        """Close a link; what waits for responses on it gets none."""
        if link.ended:
            return
        link.ended = True
        trio.lowlevel.notify_closing(link.transport.fileno())
        link.transport.close(False)
        while link.waiting:
            link.waiting.popleft()[-1](None)
        if self._emit and link.number:
            side = "broker" if reason else "client"
            how = "reset" if reason else "eof"
            self._emit([notes.closed(link.number, self._now_ns(), {}, how, reason, side)])

    async def request(
        self,
        link: BrokerLink,
        api_key: int,
        version: int,
        client_id: str | None,
        body: Any,
        take: Callable[[bytes | None], None] | None,
    ) -> None:
        """Send a request on a link; `take` gets the response, None where nobody answers it.

        Raises: OSError, ProtocolError.
        """
        self._numbers += link.number > 0
        number = self._numbers if link.number else 0
        header = messages.RequestHeader(
            api_key=api_key, api_version=version, correlation_id=number, client_id=client_id
        )
        frame = protocol.encode_request(protocol.Request(header, body))
        if take is not None:
            link.waiting.append((number, api_key, version, number, take))
        if number:
            self._record(Side.CLIENT, link, number, api_key, version, frame, take is None)
            self.sent.request_bytes += len(frame)
        await link.write(frame)

    def _record(
        self,
        side: Side,
        link: BrokerLink,
        number: int,
        key: int,
        version: int,
        data: bytes,
        one_way: bool,
    ) -> None:
        if self._emit is None:
            return
        now_ns = self._now_ns()
        kept = redact.redact(data, side, key, version) if redact.is_sensitive(key) else None
        kind = side, link.number, number, key, version, number, now_ns
        flags = NO_RESPONSE if one_way else 0
        self._emit([Frame(*kind, [kept or data], len(data), flags, sent_ns=now_ns)])

    async def _read(self, link: BrokerLink) -> None:
        """Read responses until the link ends."""
        transport, data, reason = link.transport, bytearray(), ""
        try:
            while not link.ended:
                chunk = transport.try_receive()
                if chunk is None:
                    await trio.lowlevel.wait_readable(transport.fileno())
                    continue
                if not chunk:
                    reason = "the broker closed the connection"
                    break
                if transport.wants_write:
                    transport.flush()
                data += chunk
                self._take_frames(link, data)
                await trio.lowlevel.checkpoint()
        except (OSError, ProtocolError) as error:
            reason = why(error)
        except trio.ClosedResourceError:
            return
        self.close(link, reason)

    def _take_frames(self, link: BrokerLink, data: bytearray) -> None:
        start = 0
        while len(data) - start >= 8:
            end = start + 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
            if len(data) < end:
                break
            frame = bytes(data[start:end])
            start = end
            if not link.waiting:
                raise ProtocolError("the broker answers what nobody asked")
            expected, key, version, number, take = link.waiting.popleft()
            if int.from_bytes(frame[4:8], "big", signed=True) != expected:
                raise ProtocolError("the broker answers another request")
            if number:
                self._record(Side.BROKER, link, number, key, version, frame, False)
                self.sent.response_bytes += len(frame)
            take(frame)
        del data[:start]
