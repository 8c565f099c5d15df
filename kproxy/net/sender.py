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
from typing import Any, NamedTuple

import attrs
import trio

from kproxy.exchange import notes
from kproxy.exchange.entries import NO_RESPONSE, Entry, Frame, Side
from kproxy.net.dial import Unreachable, dial, why
from kproxy.net.handshake import Secured
from kproxy.net.listeners import Listening
from kproxy.net.security import Security
from kproxy.net.transport import Transport
from kproxy.proxy import redact
from kproxy.proxy.actions import Address
from kproxy.send import target
from kproxy.send.sent import Sent
from kproxy.send.target import CannotBeSent, TargetCluster
from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, messages

AGAIN_SECONDS = 0.1
PASSES_SECONDS = 10.0
"""For this long a request is sent again while an error passes."""
ANSWER_SECONDS = 30.0
_FAILURES_MAX = 3
"""After so many in a row a broker is given up."""
_ANSWER_BYTES_MAX = 100 << 20
"""Of one response: as librdkafka takes them by default."""
_NOT_KAFKA = "the broker does not answer in Kafka's protocol (does its port speak TLS?)"


class ClusterGone(Exception):
    """The cluster cannot be reached, or not any more; the text says why."""


class Waiting(NamedTuple):
    """What waits for the next response of a link."""

    correlation_id: int
    api_key: int
    version: int
    number: int
    """Of the recorded frames; 0 if they are not recorded."""
    take: Callable[[bytes | None], None]
    """Gets the response, None if none comes."""


@attrs.define(eq=False)
class BrokerLink:
    """A connection to a broker."""

    number: int
    node: int | None
    transport: Transport
    address: Address
    sending: Any = attrs.field(factory=trio.Lock)
    waiting: deque[Waiting] = attrs.field(factory=deque)
    ended: bool = False
    violation: str = ""
    """What the broker answered that is not Kafka's protocol; "" if it did not."""

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
        self._why_failed = ""
        self._failures: Counter[Address] = Counter()
        """How often in a row connections to a broker failed, without an answer between."""

    async def begin(self, topics: Iterable[str]) -> None:
        """Ask for the brokers and their versions, and for the topics of the recording.

        Raises: ClusterGone.
        """
        await self.ask(codec.API_VERSIONS, 0, messages.ApiVersionsRequest())
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
            try:
                if version is None:
                    version = self.cluster.version(api_key, 1 << 15, body)
                answer = await self._answer(api_key, version, body, node)
                found, _ = codec.decode_response_body(answer, api_key, version)
            except CannotBeSent as error:
                raise ClusterGone(f"the cluster lacks what is needed: {error}") from None
            except ProtocolError as error:
                raise ClusterGone(f"{_NOT_KAFKA}: {error}") from None
            if api_key == codec.API_VERSIONS:
                self.cluster.learn_versions(found)
            elif api_key == target.METADATA:
                self.cluster.learn_metadata(found)
            return found

    async def _answer(self, api_key: int, version: int, body: Any, node: int | None) -> bytes:
        header = messages.RequestHeader(
            api_key=api_key, api_version=version, correlation_id=0, client_id="kproxy"
        )
        frame = protocol.encode_request(protocol.Request(header, body))
        for _ in range(2):  # a connection that has long been idle may have been closed
            link = await self._control_link(node)
            put, answers = trio.open_memory_channel[bytes | None](1)
            link.waiting.append(Waiting(0, api_key, version, 0, put.send_nowait))
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    await self._write(link, frame)
                    answer = await answers.receive()
            except OSError:
                continue
            except trio.TooSlowError:
                raise ClusterGone(f"no answer within {ANSWER_SECONDS:g} s") from None
            if answer is not None:
                return answer
            if link.violation:
                break
        raise ClusterGone(
            link.violation or "the brokers close the connection (do they want TLS, or a login?)"
        )

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
        left = [each for each in addresses if self._failures[each] < _FAILURES_MAX]
        if not left:
            what = "{}:{} is given up: {} times in a row: {}"
            raise ClusterGone(what.format(*addresses[0], _FAILURES_MAX, self._why_failed))
        found = await dial(left, Listening(), self._secure)
        if isinstance(found, Unreachable):
            raise ClusterGone(found.reason)
        self.sent.connections += 1
        number = self.sent.connections if recorded else 0
        link = BrokerLink(number, node, found.secured.transport, found.address)
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

    def fail(self, link: BrokerLink, reason: str) -> None:
        """Close a link to a broker that does not do what brokers do; count it."""
        if not link.ended:
            self._failures[link.address] += 1
            self._why_failed = reason
        self.close(link, reason)

    def close(self, link: BrokerLink, reason: str = "") -> None:
        """Close a link; what waits for responses on it gets none."""
        if link.ended:
            return
        link.ended = True
        trio.lowlevel.notify_closing(link.transport.fileno())
        link.transport.close(False)
        while link.waiting:
            link.waiting.popleft().take(None)
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
        self._numbers += 1
        number = self._numbers
        header = messages.RequestHeader(
            api_key=api_key, api_version=version, correlation_id=number, client_id=client_id
        )
        frame = protocol.encode_request(protocol.Request(header, body))
        if take is not None:
            link.waiting.append(Waiting(number, api_key, version, number, take))
        self._record(Side.CLIENT, link, number, api_key, version, frame, take is None)
        self.sent.request_bytes += len(frame)
        await self._write(link, frame)

    async def _write(self, link: BrokerLink, frame: bytes) -> None:
        """Send all of a frame.

        Raises: OSError.
        """
        with trio.move_on_after(ANSWER_SECONDS) as limit:
            await link.write(frame)
        if limit.cancelled_caught:
            reason = f"takes no more data for {ANSWER_SECONDS:g} s"
            self.fail(link, reason)
            raise OSError(reason)

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
        except ProtocolError as error:
            link.violation = str(error)
            self.fail(link, link.violation)
        except OSError as error:
            reason = why(error)
        except trio.ClosedResourceError:
            return
        self.close(link, reason)

    def _take_frames(self, link: BrokerLink, data: bytearray) -> None:
        start = 0
        while len(data) - start >= 8:
            size = int.from_bytes(data[start : start + 4], "big", signed=True)
            if not 4 <= size <= _ANSWER_BYTES_MAX:
                raise ProtocolError(_NOT_KAFKA)
            end = start + 4 + size
            if len(data) < end:
                break
            frame = bytes(data[start:end])
            start = end
            if not link.waiting:
                raise ProtocolError("the broker answers what nobody asked")
            asked = link.waiting[0]
            if int.from_bytes(frame[4:8], "big", signed=True) != asked.correlation_id:
                raise ProtocolError("the broker answers another request")
            link.waiting.popleft()
            if asked.number:
                kind = asked.number, asked.api_key, asked.version
                self._record(Side.BROKER, link, *kind, frame, False)
                self.sent.response_bytes += len(frame)
                self._failures.pop(link.address, None)
            asked.take(frame)
        del data[:start]
