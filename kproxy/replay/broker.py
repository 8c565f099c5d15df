"""The replaying broker as one state machine: a cluster that exists only in a recording.

::

    accepted · receive · closed · listening · wake
          │
          ▼
    Broker ── Connection … ─▶ request ─▶ HANDLERS[api] ─▶ body ─┐
       │                        │            or `semantic`       ▼
       └── State ◀──────────────┘                             [Send, Close, Listen, Log]

It satisfies `proxy.machine.Machine`; its connections have one end, so it never dials. There is one
listener for each broker of the recording, and one to bootstrap from; every one of them serves
everything. Long polls, rebalances and session timeouts are timers behind `next_wake`.

Invariants: it knows no socket, file, clock or chance. Nothing is guessed: a request that neither
the state nor the recording can answer is refused, and the report says so.
"""

from __future__ import annotations

from typing import Any

from kproxy.exchange.entries import Buffer, Side
from kproxy.protocol import (
    ProtocolError,
    api_key,
    api_name,
    codec,
    decode_request,
    is_known,
    schema,
)
from kproxy.proxy import rewrite
from kproxy.proxy.actions import Action, Address, Close, Listen, Log, Pause, Resume, Send
from kproxy.replay import (
    classic_group,
    consumer_group,
    creating,
    fetch,
    groups,
    metadata,
    produce,
    producers,
    sasl,
    versions,
)
from kproxy.replay.call import CLOSE, LATER, NONE, Call
from kproxy.replay.connection import Connection, Violation, encode, token_frame
from kproxy.replay.load import Loaded
from kproxy.replay.report import Report
from kproxy.replay.sasl import Refused
from kproxy.replay.settings import Mode, Settings, Visible
from kproxy.replay.state import Handler, State

_BY_NAME: dict[str, Handler] = {
    **versions.HANDLERS,
    **metadata.HANDLERS,
    **creating.HANDLERS,
    **fetch.HANDLERS,
    **produce.HANDLERS,
    **producers.HANDLERS,
    **groups.HANDLERS,
    **classic_group.HANDLERS,
    **consumer_group.HANDLERS,
    **sasl.HANDLERS,
}
_AS_RECORDED = frozenset({"DescribeTransactions", "CreateTopics", "CreatePartitions"})
"""What the state answers with the help of what was recorded."""
_ALWAYS_STATE = frozenset(
    {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "Fetch", "ListOffsets", "Produce"}
)
"""What is answered by the state in semantic mode too: records are found by their offsets."""

SERVED = frozenset(_BY_NAME)
"""The names of the APIs that the state models."""
HANDLERS: dict[int, Handler] = {api_key(name) or 0: each for name, each in _BY_NAME.items()}


def modelled(mode: Mode) -> frozenset[int]:
    """The api keys of which a loader need not keep the exchanges."""
    names = SERVED - _AS_RECORDED if mode is Mode.STATE else _ALWAYS_STATE
    return frozenset(api_key(name) or 0 for name in names)


_PORT_MAX = 65_535
_WAITING_MAX = 100
"""With so many requests waiting on a connection its client is not read from."""
_UNKNOWN_SERVER_ERROR = -1


class Broker:
    """The machine. Feed it events; perform, in order, the actions that it answers with."""

    def __init__(self, loaded: Loaded, settings: Settings, report: Report) -> None:
        self.state = State(loaded, settings, report)
        served = SERVED if settings.mode is Mode.STATE else _ALWAYS_STATE
        self.state.ranges = versions.ranges(self.state, served)
        self._handlers = {key: HANDLERS[key] for key in map(api_key, served) if key is not None}
        self._settings = settings
        self._connections: dict[int, Connection] = {}
        self._asked = False
        self._unopened: set[int] = set()
        if settings.visible is Visible.CAUSAL:
            _hold_back(self.state)

    # ---- events

    @property
    def next_wake(self) -> int | None:
        """When `wake` wants to be called; None: not before another event."""
        return self.state.timers.next

    @property
    def busy(self) -> bool:
        """Whether a response is due: none that is worth waiting for at a stop."""
        return False

    def start(self, now: int) -> list[Action]:
        """Open the listeners of the recording's brokers, before any client has come."""
        if self._asked:
            return []
        self._asked = True
        self._unopened = set(self.state.cluster.racks)
        return [Listen(node_id, self._port(node_id)) for node_id in sorted(self._unopened)]

    def accepted(
        self,
        number: int,
        node_id: int | None,
        client_address: str,
        local_address: Address,
        now: int,
    ) -> list[Action]:
        """A client connected."""
        host = client_address.rpartition(":")[0]
        self._connections[number] = Connection(number, node_id, f"/{host}", local_address)
        return self.start(now)

    def dialled(self, number: int, broker: Address, now: int) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def not_dialled(self, number: int, reason: str, now: int) -> list[Action]:
        """Never: this machine does not dial."""
        return []

    def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
        """Bytes arrived from a client."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        try:
            connection.receive(data, self._settings.request_bytes_max)
        except Violation as error:
            return self._end(connection, str(error))
        actions: list[Action] = []
        self._serve(connection, now, actions)
        alive = number in self._connections
        if alive and len(connection.waiting) > _WAITING_MAX and not connection.paused:
            connection.paused = True
            actions.append(Pause(number, Side.CLIENT))
        return actions

    def closed(self, number: int, side: Side, how: str, reason: str, now: int) -> list[Action]:
        """The client half-closed ("eof") or broke (another word for how)."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        connection.ended = True
        if how == "eof" and (connection.busy or connection.waiting):
            return []
        return self._end(connection, "")

    def listening(self, node_id: int, address: Address, now: int) -> list[Action]:
        """The listener of a broker is open."""
        self.state.listening[node_id] = address
        return self._opened(node_id, now)

    def not_listening(self, node_id: int, reason: str, now: int) -> list[Action]:
        """The listener of a broker could not be opened: clients are not told of it."""
        return [Log(f"node {node_id} is left out: {reason}"), *self._opened(node_id, now)]

    def wake(self, now: int) -> list[Action]:
        """`next_wake` has come."""
        self.state.timers.run(now)
        return self._drain(now, [])

    def stop(self, now: int) -> list[Action]:
        """Close every connection; what was to be produced and was not is a finding now."""
        if self._settings.visible is Visible.CAUSAL:
            self.state.check.missing()
        return [
            action
            for connection in list(self._connections.values())
            for action in self._end(connection, "")
        ]

    # ---- requests

    def _opened(self, node_id: int, now: int) -> list[Action]:
        self._unopened.discard(node_id)
        actions: list[Action] = []
        for connection in [] if self._unopened else list(self._connections.values()):
            self._serve(connection, now, actions)
        return actions

    def _serve(self, connection: Connection, now: int, actions: list[Action]) -> None:
        """Handle what waits on a connection, then whatever that has answered elsewhere."""
        self._handle_waiting(connection, now, actions)
        self._drain(now, actions)

    def _drain(self, now: int, actions: list[Action]) -> list[Action]:
        """Send what was answered later, and go on with those connections."""
        responses = self.state.responses
        while responses:
            call, body = responses.pop(0)
            connection = call.connection
            if self._connections.get(connection.number) is not connection:
                continue
            connection.busy = False
            self._send(call, body, actions)
            self._handle_waiting(connection, now, actions)
        return actions

    def _handle_waiting(self, connection: Connection, now: int, actions: list[Action]) -> None:
        waiting = connection.waiting
        while waiting and not connection.busy and not self._unopened:
            if connection.number not in self._connections:
                return
            frame = waiting.popleft()
            if connection.raw_tokens:
                self._token(connection, frame, actions)
            else:
                self._request(connection, frame, now, actions)
        if connection.number not in self._connections:
            return
        if connection.paused and len(waiting) <= _WAITING_MAX // 2:
            connection.paused = False
            actions.append(Resume(connection.number, Side.CLIENT))
        if connection.ended and not connection.busy and not waiting:
            actions += self._end(connection, "")

    def _request(
        self, connection: Connection, frame: bytes, now: int, actions: list[Action]
    ) -> None:
        key = int.from_bytes(frame[4:6], "big", signed=True)
        version = int.from_bytes(frame[6:8], "big", signed=True)
        if key == versions.API_VERSIONS and not is_known(key, version) and len(frame) >= 12:
            call = Call(
                connection, key, 0, int.from_bytes(frame[8:12], "big", signed=True), "", 0, now
            )
            self._send(call, versions.refusal(self.state.ranges), actions)
            return
        least, greatest = self.state.ranges.get(key, (0, -1))
        if not least <= version <= greatest:
            name = api_name(key) or f"API {key}"
            text = f"{name} v{version} is not served, though a client sends it"
            self.state.report.add("not served", text)
            actions += self._end(connection, text)
            return
        try:
            request = decode_request(frame)
        except ProtocolError as error:
            actions += self._end(connection, str(error))
            return
        header = request.header
        call = Call(
            connection,
            key,
            version,
            header.correlation_id,
            header.client_id or "",
            request.body,
            now,
            frame,
        )
        self._answer(call, actions)

    def _answer(self, call: Call, actions: list[Action]) -> None:
        handler = self._handlers.get(call.api_key)
        body = handler(self.state, call) if handler else None
        if body is LATER:
            call.connection.busy = True
        elif body is CLOSE:
            actions += self._end(call.connection, "")
        elif body is not NONE:
            if body is None:
                body = self.state.semantic.respond(call) or _refusal(call)
            if body is None:
                text = f"{api_name(call.api_key)} v{call.version} cannot be answered"
                actions += self._end(call.connection, text)
            else:
                self._send(call, body, actions)

    def _send(self, call: Call, body: Any, actions: list[Action]) -> None:
        try:
            pieces = encode(call.api_key, call.version, call.correlation_id, body)
        except ProtocolError as error:
            actions += self._end(call.connection, f"no response to it: {error}")
            return
        if call.api_key not in self._handlers:
            pieces = self._with_our_addresses(call, pieces)
        actions.append(Send(call.connection.number, Side.CLIENT, pieces, []))

    def _with_our_addresses(self, call: Call, pieces: list[Buffer]) -> list[Buffer]:
        """A recorded response has the addresses of the recorded brokers."""
        fields = rewrite.address_fields(call.api_key, call.version)
        if fields is None:
            return pieces
        frame = b"".join(pieces)
        found = rewrite.find_all(frame, call.api_key, call.version)
        state = self.state
        ours = {node_id: state.address(call, node_id) for node_id in state.listening}
        known = [each for each in found if each.node_id in ours]
        return [rewrite.apply(frame, rewrite.splices(known, ours, fields))]

    def _token(self, connection: Connection, frame: bytes, actions: list[Action]) -> None:
        """A SASL token after SaslHandshake v0."""
        authentication = connection.authentication
        if authentication is None:
            return
        try:
            answer = authentication.token(frame[4:])
        except Refused as error:
            self.state.report.add("not served", f"SASL {authentication.mechanism}: {error}")
            actions += self._end(connection, str(error))
            return
        connection.raw_tokens = not authentication.done
        actions.append(Send(connection.number, Side.CLIENT, [token_frame(answer)], []))

    def _end(self, connection: Connection, reason: str) -> list[Action]:
        if self._connections.pop(connection.number, None) is None:
            return []
        log: list[Action] = (
            [Log(f"connection {connection.number} ended: {reason}")] if reason else []
        )
        return [*log, Close(connection.number, abrupt=False)]

    def _port(self, node_id: int) -> int:
        fixed = self._settings.node_ports.get(node_id)
        if fixed is not None or not self._settings.listen_port:
            return fixed or 0
        port = self._settings.listen_port + 1 + node_id
        return port if port <= _PORT_MAX else 0


def _refusal(call: Call) -> Any | None:
    """A response that says no, where the API has a place for that at the top."""
    message = schema.message(call.api_key, schema.RESPONSE)
    if message is None:
        return None
    for field in message.fields:
        if field.name == "error_code" and call.version in field.versions:
            body = getattr(codec.messages, message.name)()
            body.error_code = _UNKNOWN_SERVER_ERROR
            if hasattr(body, "error_message"):
                body.error_message = "the recording that is replayed has no answer to this"
            return body
    return None


def _hold_back(state: State) -> None:
    """Hide what is still to be produced, with the markers behind it, and what to be created."""
    state.cluster.hold_back()
    for topic in state.check.topics:
        by_partition: dict[int, list[int]] = {}
        for expected in state.check.expected(topic):
            if expected.offset >= 0:
                by_partition.setdefault(expected.partition, []).append(expected.offset)
        for index, offsets in by_partition.items():
            log = state.cluster.log(topic, index)
            held = set(offsets)
            markers = [
                each.last_offset
                for each in log.transactions
                if each.last_offset is not None and each.first_offset in held
            ]
            log.hide([*offsets, *markers])
