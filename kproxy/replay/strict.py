"""Strict replay: a connection gets the recorded responses as long as its requests are the same.

::

    live connection ─▶ candidates: the recorded connections that began in the same way
        request ─▶ equal to the next one of a candidate? ─┬─▶ its response, or nothing, or the end
                                                          └─▶ a finding: the first difference

For authors of clients: the first request that differs from the recording, or comes in another
order, is reported with the field that differs, and the connection ends. Only correlation ids may
differ, and the brokers' addresses in responses are ours. A live connection is matched to a recorded
one by its requests, in whatever order clients connect; each recorded connection is used once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import attrs

from kproxy.exchange.entries import REDACTED, Side
from kproxy.exchange.exchange import Exchange
from kproxy.proxy import redact, rewrite
from kproxy.proxy.actions import Action, Address, Close, Listen, Log, Send
from kproxy.proxy.budget import Budget, Share
from kproxy.proxy.framer import Violation
from kproxy.proxy.machine import TlsSession
from kproxy.proxy.nodes import listener_port
from kproxy.replay.connection import ReplayConnection
from kproxy.replay.differences import parts, sentence
from kproxy.replay.report import Report
from kproxy.replay.settings import ReplaySettings
from kproxy.wire.protocol import ProtocolError, decode_request, is_known, to_json

_ADVICE = "strict mode wants the very same requests; --mode state takes any client"
_DIFFERENCES_SHOWN = 5


@attrs.define(eq=False)
class _RecordedConnection:
    """The exchanges of a recorded connection."""

    number: int
    exchanges: list[Exchange] = attrs.Factory(list)
    owner: int | None = None
    """The live connection that it was matched to."""
    played: int = 0
    """How many of its requests came again."""


@attrs.define(eq=False)
class _LiveConnection:
    """A live connection, and the recorded connections that still match it."""

    connection: ReplayConnection
    candidates: list[_RecordedConnection]
    position: int = 0


class StrictBroker:
    """The strict replaying broker. Feed it events; perform, in order, the actions it returns."""

    def __init__(
        self, exchanges: Iterable[Exchange], settings: ReplaySettings, report: Report
    ) -> None:
        self._settings = settings
        self._report = report
        tracks: dict[int, _RecordedConnection] = {}
        nodes: set[int] = set()
        for exchange in exchanges:
            track = tracks.setdefault(exchange.connection, _RecordedConnection(exchange.connection))
            track.exchanges.append(exchange)
            if exchange.node_id is not None:
                nodes.add(exchange.node_id)
            nodes.update(each.node_id for each in _addresses(exchange) if each.usable)
        for track in tracks.values():  # exchanges come as they were completed
            track.exchanges.sort(key=lambda exchange: exchange.number)
        self._tracks = list(tracks.values())
        self._unopened = sorted(nodes)
        self._listening: dict[int, Address] = {}
        self._live: dict[int, _LiveConnection] = {}
        self._budget = Budget(settings.held_bytes_max)
        self._started = False

    @property
    def next_wake(self) -> int | None:
        """Always None: every response is sent at once."""
        return None

    @property
    def busy(self) -> bool:
        """Always False: no response is ever due."""
        return False

    def start(self, now: int) -> list[Action]:
        """Open the listeners of the recording's brokers."""
        if self._started:
            return []
        self._started, settings = True, self._settings
        return [
            Listen(node_id, listener_port(node_id, settings.listen_port, settings.node_ports))
            for node_id in self._unopened
        ]

    def accepted(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        now: int,
        tls: TlsSession | None = None,
    ) -> list[Action]:
        """Take a client's connection."""
        host = client_address
        share = Share(self._budget)
        connection = ReplayConnection(number, node_id, host, host, local_address, now, now, share)
        candidates = [
            track
            for track in self._tracks
            if track.owner is None and track.exchanges[0].node_id == node_id
        ]
        self._live[number] = _LiveConnection(connection, candidates)
        return self.start(now)

    def rejected(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        reason: str,
        now: int,
    ) -> list[Action]:
        """Log a client whose TLS handshake failed."""
        return [Log(f"connection {number} from {client_address}: TLS failed: {reason}")]

    def dialled(
        self, number: int, broker: Address, now: int, tls: TlsSession | None = None
    ) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def not_dialled(self, number: int, reason: str, refused: bool, now: int) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Take bytes from a client."""
        live = self._live.get(number)
        if live is None:
            return []
        try:
            live.connection.receive(data, self._settings.request_bytes_max)
        except Violation as error:
            return self._end(live, str(error))
        actions: list[Action] = []
        while live.connection.waiting and number in self._live:
            actions += self._follow(live, bytes(live.connection.next_request()))
            if number in self._live:
                live.connection.answered()
        return actions

    def all_sent(self, number: int, side: Side, now: int) -> list[Action]:
        """Do nothing: nothing waits for it."""
        return []

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """End a connection that its client has closed or half-closed."""
        live = self._live.get(number)
        return [] if live is None else self._end(live, "")

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """Note the address of a broker's listener that is open now."""
        self._listening[node_id] = address
        return []

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """Log a broker whose listener could not be opened."""
        return [Log(f"node {node_id} cannot be reached: {reason}")]

    def probed(self, node_id: int, address: Address, answers: bool, now: int) -> list[Action]:
        """Never: this machine does not probe."""
        return []

    def wake(self, now: int) -> list[Action]:
        """Do nothing: no timer is ever set."""
        return []

    def stop(self, now: int) -> list[Action]:
        """Close every connection."""
        return [action for live in list(self._live.values()) for action in self._end(live, "")]

    def report_unplayed(self, report: Report) -> None:
        """Report the recorded connections on which a Produce did not come again; other requests,
        such as polls, may be fewer."""
        for track in self._tracks:
            left = [each for each in track.exchanges[track.played :] if each.api == "Produce"]
            if left:
                what = f"recorded connection {track.number}: {len(left)} of its Produce requests"
                report.add("not produced", f"{what} did not come, the first is #{left[0].number}")

    # ---- requests

    def _follow(self, live: _LiveConnection, frame: bytes) -> list[Action]:
        """Answer a request with its recorded response, or end the connection."""
        number, position = live.connection.number, live.position
        free = [track for track in live.candidates if track.owner in (None, number)]
        fitting = [
            track
            for track in free
            if position < len(track.exchanges) and _same(track.exchanges[position], frame)
        ]
        if not fitting:
            return self._differs(live, free, frame)
        live.candidates, live.position = fitting, position + 1
        fitting[0].played = max(fitting[0].played, position + 1)
        if len(fitting) == 1:
            fitting[0].owner = number
        return self._response(live, fitting[0].exchanges[position], frame)

    def _response(self, live: _LiveConnection, exchange: Exchange, frame: bytes) -> list[Action]:
        data = exchange.response_frame
        if data is None:
            if exchange.one_way:
                return []
            return self._end(live, "the recorded connection ended here without a response")
        data = data[:4] + frame[8:12] + data[8:]
        key, version = exchange.api_key, exchange.api_version
        if key is not None and version is not None:
            fields = rewrite.address_fields(key, version)
            if fields is not None:
                found = _addresses(exchange)
                ours = {each.node_id: self._address(live, each.node_id) for each in found}
                data = rewrite.apply(data, rewrite.splices(found, ours.__getitem__, fields))
        return [Send(live.connection.number, Side.CLIENT, [data], [])]

    def _address(self, live: _LiveConnection, node_id: int) -> Address:
        """Return the address of a node for a client. For a node without a listener it is the
        address at which the client has reached us."""
        host, port = live.connection.local_address
        _, port = self._listening.get(node_id, (host, port))
        return self._settings.advertised_host or host, port

    def _differs(
        self, live: _LiveConnection, candidates: list[_RecordedConnection], frame: bytes
    ) -> list[Action]:
        number, position = live.connection.number, live.position
        what = f"connection {number}, request {position + 1}, {_title(frame)}"
        rest = [track for track in candidates if position < len(track.exchanges)]
        if not rest:
            why = "the recording has no more such connection" if not candidates else "it ends here"
            text = f"{what}: {why}"
        else:
            recorded = rest[0].exchanges[position]
            where = (
                f"recorded connection {rest[0].number} has {recorded.api} v{recorded.api_version}"
            )
            shown = list(_differences(recorded, frame))
            left_out = len(shown) - _DIFFERENCES_SHOWN
            more = f" and {left_out} more" if left_out > 0 else ""
            text = f"{what}: {where}; {'; '.join(shown[:_DIFFERENCES_SHOWN])}{more}"
        self._report.add("differs", text, _ADVICE)
        return self._end(live, "it asks what was not recorded")

    def _end(self, live: _LiveConnection, reason: str) -> list[Action]:
        number = live.connection.number
        if self._live.pop(number, None) is None:
            return []
        live.connection.share.release()
        if live.position and live.candidates:
            live.candidates[0].owner = number
        log: list[Action] = [Log(f"connection {number} ended: {reason}")] if reason else []
        return [*log, Close(number, abrupt=False)]


def _addresses(exchange: Exchange) -> list[rewrite.BrokerAddress]:
    key, version, frame = exchange.api_key, exchange.api_version, exchange.response_frame
    if key is None or version is None or frame is None:
        return []
    if rewrite.address_fields(key, version) is None:
        return []
    try:
        return rewrite.find_all(frame, key, version)
    except ProtocolError:
        return []


def _same(recorded: Exchange, frame: bytes) -> bool:
    """Return whether a request equals a recorded one, except for correlation id and secrets."""
    then = recorded.request_frame or b""
    if recorded.api_key is None:  # a SASL token without a header
        return len(then) >= 4
    now = _as_recorded(recorded, frame)
    return then[:8] == now[:8] and then[12:] == now[12:]


def _as_recorded(recorded: Exchange, frame: bytes) -> bytes:
    """Return a request with what a recording would have blanked out of it: secrets, and before a
    login is over, bytes that no field explains."""
    if not recorded.row.request_flags & REDACTED:
        return frame
    return redact.redact(frame, Side.CLIENT, *_kind(frame)) or frame


def _kind(frame: bytes) -> tuple[int, int]:
    key = int.from_bytes(frame[4:6], "big", signed=True)
    return key, int.from_bytes(frame[6:8], "big", signed=True)


def _title(frame: bytes) -> str:
    from kproxy.wire.protocol import api_name

    key, version = _kind(frame)
    return f"{api_name(key) or f'API {key}'} v{version}"


def _differences(recorded: Exchange, frame: bytes) -> Iterator[str]:
    """Yield the fields in which a request differs from a recorded one, in order."""
    key, version = _kind(frame)
    if (key, version) != (recorded.api_key, recorded.api_version):
        yield f"{_title(frame)} came instead"
        return
    message = recorded.request_message
    if message is None or not is_known(key, version):
        yield "the bytes differ"
        return
    try:
        now = decode_request(_as_recorded(recorded, frame))
    except ProtocolError as error:
        yield str(error)
        return
    client_ids = now.header.client_id, message.header.client_id
    for each in (*parts("client_id", *client_ids), *parts("", to_json(now), to_json(message))):
        yield sentence([each])
