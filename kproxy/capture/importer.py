"""Packets → the entries of a recording, of all connections that are Kafka's.

::

    Packet ─▶ segment ─▶ Tcp ─▶ Arrival ─▶ whose? ─┬─▶ Conversation ─▶ entries
                                                    └─▶ not Kafka's, or TLS: counted

A connection is looked at until its client's side has begun with a request (`conversation`). Where
a node's address is a number, which responses name, its connections have its id; those of other
addresses are as those to a bootstrap address.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable

import attrs

from kproxy.capture.conversation import Conversation, begins_request
from kproxy.capture.file import Packet
from kproxy.capture.frames import FrameSearch, is_request, requests
from kproxy.capture.packets import LINKS, Fragment, addresses, segment
from kproxy.capture.tcp import Arrival, Tcp, TcpConnection, TcpStream
from kproxy.exchange.entries import Entry, Frame, FrameRun, Note, Side, each_frame
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.interests import Interests
from kproxy.proxy.settings import Settings, Shared
from kproxy.proxy.topics import Topics
from kproxy.units import format_bytes
from kproxy.wire.protocol import ProtocolError

_UNDECIDED_BYTES_MAX = 4 << 20
_HELD_BYTES_MAX = 256 << 20
_NAMING = frozenset((3, 10, 60))
"""Metadata, FindCoordinator, DescribeCluster: they name brokers with their addresses."""
_TLS = b"\x16\x03"
"""What a TLS connection begins with."""
_NO_KEY = "TLS connections without keys (--tls-keys)"
_NOT_KAFKA = "connections that are not Kafka's"
_LOCAL = {"localhost": ("127.0.0.1", "::1")}
_NODES_MAX = 10_000


@attrs.define(eq=False)
class _Undecided:
    """A connection of which it is not known yet whether it is Kafka's."""

    share: Share
    backlog: list[Arrival] = attrs.Factory(list)
    held_bytes: int = 0
    searches: dict[int, FrameSearch] = attrs.Factory(dict)


@attrs.define(eq=False)
class Importer:
    """Takes the packets of a capture, in their order."""

    ports: Collection[int] = ()
    """The ports of brokers; none: connections are Kafka's by what they begin with."""
    entries: list[Entry] = attrs.field(factory=list, init=False)
    """The entries so far; whoever writes them takes them away."""
    connections: int = attrs.field(default=0, init=False)
    """The number of connections that are Kafka's."""
    passed_over: Counter[str] = attrs.field(factory=Counter, init=False)
    """What is not in the recording, and why → how many of it."""
    missing_bytes: int = attrs.field(default=0, init=False)
    conflicts: int = attrs.field(default=0, init=False)
    _tcp: Tcp = attrs.field(init=False)
    _shared: Shared = attrs.field(init=False)
    _nodes: dict[Address, int] = attrs.field(factory=dict, init=False)
    _open: dict[int, Conversation] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        settings = Settings((), hang_up_hints=False, held_bytes_max=_HELD_BYTES_MAX)
        budget = Budget(settings.held_bytes_max)
        self._tcp = Tcp(budget)
        interests = Interests(passive=True)
        self._shared = Shared(settings, interests, dict, budget, lambda text: False, Topics())

    @property
    def exchanges(self) -> int:
        """The number of requests so far."""
        return self._shared.numbers.taken

    def warnings(self) -> list[str]:
        """Return what is to be told about the capture, in sentences."""
        found = [
            f"left out: {what} ({number})" for what, number in self.passed_over.items() if number
        ]
        if self.missing_bytes:
            size = format_bytes(self.missing_bytes)
            found.append(f"{size} are missing, or of frames that are not whole: show tells where")
        if self.conflicts:
            found.append(f"{self.conflicts} segments contradict earlier ones, which count")
        return found

    def packet(self, packet: Packet) -> None:
        """Take the next packet."""
        try:
            found = segment(packet)
        except Fragment:
            self.passed_over["IP fragments"] += 1
            return
        if found is not None:
            self._arrive(self._tcp.take(found))
            if packet.decrypted:
                stream = self._tcp.stream(found)
                self._arrive([Arrival(stream, packet.decrypted, packet.time_ns)], decrypted=True)
        elif packet.link not in LINKS:
            self.passed_over[f"packets of link type {packet.link}"] += 1

    def finish(self) -> None:
        """Take the end of the capture."""
        for arrivals in self._tcp.finish():
            self._arrive(arrivals)
        for conversation in self._open.values():
            self.conflicts += conversation.client.connection.conflicts
            conversation.finish()
            self._take(conversation)

    # ---- connections

    def _arrive(self, arrivals: Iterable[Arrival], decrypted: bool = False) -> None:
        ended: list[TcpConnection] = []
        for arrival in arrivals:
            connection = arrival.stream.connection
            if connection.encrypted and not decrypted and isinstance(arrival.content, bytes):
                continue
            user = connection.user
            if user is None:
                user = connection.user = self._begin(connection)
            if type(user) is Conversation:
                user.take(arrival)
                if user.entries:
                    self._take(user)
                if connection.over and self._open.pop(user.number, None):
                    self.conflicts += connection.conflicts
                    ended.append(connection)
            elif type(user) is _Undecided:
                self._decide(user, arrival)
        for connection in ended:
            connection.user = ""

    def _begin(self, connection: TcpConnection) -> _Undecided | str:
        """Begin with a connection; where the ports of brokers are given, they say who is who."""
        if self.ports:
            one, other = addresses(connection.path)
            if one[1] not in self.ports and other[1] not in self.ports:
                return ""
        return _Undecided(Share(self._shared.budget))

    def _decide(self, undecided: _Undecided, arrival: Arrival) -> None:
        """Find out whether a connection is Kafka's."""
        stream, content, _ = arrival
        connection = stream.connection
        undecided.backlog.append(arrival)
        if isinstance(content, int):
            connection.client = None  # by its beginning it will not be known
        if not isinstance(content, bytes):
            if connection.over:
                self._pass_over(undecided, connection)
            return
        undecided.held_bytes += len(content)
        fits = undecided.share.hold(undecided.held_bytes)
        client = connection.client
        if client is None:
            found = self._found(undecided, stream, content)
        elif stream is not client:
            found = False  # a broker never speaks first
        else:
            data = b"".join(
                each.content
                for each in undecided.backlog
                if each.stream is client and isinstance(each.content, bytes)
            )
            found = begins_request(data, self._shared.settings.request_bytes_max)
            if data.startswith(_TLS) and not connection.encrypted:
                connection.encrypted = True
                self.passed_over[_NO_KEY] += 1
                undecided.backlog.clear()
                undecided.held_bytes = 0
                return
            if found is False and self.ports:
                found = True  # it was said to be
        if found:
            self._convert(undecided, stream)
        elif found is False or undecided.held_bytes > _UNDECIDED_BYTES_MAX or not fits:
            self._pass_over(undecided, connection)

    def _found(self, undecided: _Undecided, stream: TcpStream, content: bytes) -> bool | None:
        """Search a stream, of which the beginning is missing, for a request."""
        search = undecided.searches.setdefault(id(stream), FrameSearch(requests, is_request))
        return search.take(content) is not None or None

    def _pass_over(self, undecided: _Undecided, connection: TcpConnection) -> None:
        """Take a connection as not Kafka's."""
        self._decided(undecided, connection)
        connection.user = ""
        if undecided.held_bytes:
            self.passed_over[_NOT_KAFKA] += 1

    def _decided(self, undecided: _Undecided, connection: TcpConnection) -> None:
        undecided.share.release()
        if connection.encrypted and undecided.held_bytes:
            self.passed_over[_NO_KEY] -= 1

    def _convert(self, undecided: _Undecided, client: TcpStream) -> None:
        """Take a connection as Kafka's."""
        connection = client.connection
        self._decided(undecided, connection)
        self.connections += 1
        number = self.connections
        conversation = Conversation(number, connection, client, self._shared, self._nodes.get)
        connection.user = self._open[number] = conversation
        for arrival in undecided.backlog:
            conversation.take(arrival)
        self._take(conversation)

    def _take(self, conversation: Conversation) -> None:
        """Take the entries of a connection, and learn the addresses of nodes."""
        entries, conversation.entries = conversation.entries, []
        self.entries += entries
        for entry in entries:
            if type(entry) is Note:
                self.missing_bytes += entry.body.get("bytes", 0)
                continue
            if entry.side is Side.CLIENT:
                continue
            kind = entry.requests if type(entry) is FrameRun else entry
            if kind.api_key in _NAMING:
                for frame in each_frame([entry]):
                    self._learn(frame)

    def _learn(self, frame: Frame | Note) -> None:
        if type(frame) is Note or len(self._nodes) > _NODES_MAX:
            return
        with contextlib.suppress(ProtocolError):
            for found in rewrite.find_all(frame.data, frame.api_key, frame.api_version):
                if found.usable:
                    for host in _LOCAL.get(found.host, (_plain(found.host),)):
                        self._nodes[host, found.port] = found.node_id


def _plain(host: str) -> str:
    """Return a host as packets name it, if it is an address."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return host
