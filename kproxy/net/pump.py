"""The pump: sockets on one side, the machine on the other, actions performed in between.

::

    accept ─▶ Dial ─▶ two tasks: read from client, read from broker
                          │ bytes                    ▲
                          ▼                          │ Send: tried at once,
                     Cluster.receive ─▶ actions ─────┤ the rest waits in an Outbox
                                                     ├ Record ─▶ Recorder
                                                     └ Listen ─▶ another listener

Performing an action never waits, so no other event comes between an event and its actions. A
reader stops reading while the outbox of the other side has something waiting: backpressure in that
direction, and in no other.

Resource handling: `Pump.serve` owns every socket of its listeners and connections and has closed
them all when it returns or is cancelled. Error handling: whatever goes wrong on a connection ends
that connection; an unexpected exception is logged in one line and does the same.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence

import attrs
import trio

from kproxy.exchange.entries import Side
from kproxy.net.listeners import Interface, ListenError
from kproxy.net.outbox import Outbox
from kproxy.net.recorder import Recorder
from kproxy.net.transport import SocketTransport, Transport
from kproxy.proxy.actions import Action, Close, Dial, Eof, Fail, Listen, Log, Record, Send
from kproxy.proxy.cluster import Cluster

DIAL_SECONDS = 10.0
CLOSE_SECONDS = 5.0
_READS_PER_TURN = 16
"""Chunks that a task reads before it lets others run, while more is there."""


@attrs.define(eq=False)
class _Link:
    """One connection as the pump sees it."""

    number: int
    outboxes: dict[Side, Outbox]
    scope: trio.CancelScope
    abrupt: bool = False


class Pump:
    """Drives one machine with real connections."""

    def __init__(
        self,
        cluster: Cluster,
        interface: Interface,
        recorder: Recorder,
        clock: Callable[[], int],
        log: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._interface = interface
        self._recorder = recorder
        self._clock = clock
        self._log = log
        self._links: dict[int, _Link] = {}
        self._numbers = itertools.count(1)
        self._nursery: trio.Nursery
        self._accepting: trio.Nursery
        self.failure = ""
        """Why `serve` ended by itself: a foreign address, in the test mode."""
        self.draining = False
        """Whether `drain` was called."""
        self._empty = trio.Event()

    async def serve(
        self, listeners: list[trio.SocketListener]
    ) -> None:
        """Accept and pump until cancelled, or until `drain` or a failure has ended it."""
        async with trio.open_nursery() as self._nursery:
            async with trio.open_nursery() as self._accepting:
                self._accept(listeners, None)
                self._nursery.start_soon(self._wake)
                await trio.sleep_forever()

    async def drain(self, seconds: float) -> None:
        """Accept no more, wait for the answers that are due, close everything, end `serve`."""
        self.draining = True
        self._accepting.cancel_scope.cancel()
        with trio.move_on_after(seconds):
            while self._cluster.busy:
                await trio.sleep(0.02)
        self._perform(self._cluster.stop(self._clock()))
        with trio.move_on_after(seconds):
            while self._links:
                self._empty = trio.Event()
                await self._empty.wait()
        self._nursery.cancel_scope.cancel()

    # Listeners

    def _accept(self, listeners: Sequence[trio.SocketListener], node_id: int | None) -> None:
        async def handle(stream: trio.SocketStream) -> None:
            await self._connection(stream, node_id)

        async def serve() -> None:
            await trio.serve_listeners(handle, list(listeners), handler_nursery=self._nursery)

        self._accepting.start_soon(serve)

    def _listen(self, action: Listen) -> list[Action]:
        now = self._clock()
        if self.draining:
            return self._cluster.not_listening(action.node_id, "the proxy stops", now)
        try:
            listeners = self._interface.open(action.port)
        except ListenError as error:
            if action.port == 0:
                return self._cluster.not_listening(action.node_id, str(error), now)
            self._log(f"{error}; node {action.node_id} gets another port")
            return self._listen(Listen(action.node_id, 0))
        self._accept(listeners, action.node_id)
        address = listeners[0].socket.getsockname()[:2]
        return self._cluster.listening(action.node_id, address, now)

    # Connections

    async def _connection(self, stream: trio.SocketStream, node_id: int | None) -> None:
        number = next(self._numbers)
        try:
            client = "{}:{}".format(*stream.socket.getpeername()[:2])
            reached = stream.socket.getsockname()[:2]
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        transport = SocketTransport(stream)
        scope = trio.CancelScope()
        link = _Link(number, {Side.CLIENT: Outbox(transport, self._clock)}, scope)
        self._links[number] = link
        try:
            with scope:
                actions = self._cluster.accepted(number, node_id, client, reached, self._clock())
                dialled = await self._dial(number, actions)
                if dialled:
                    link.outboxes[Side.BROKER] = Outbox(dialled, self._clock)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._read, link, Side.CLIENT)
                        nursery.start_soon(self._read, link, Side.BROKER)
            if not link.abrupt:
                await self._flush_all(link)
        except Exception as error:
            self._unexpected(number, error)
        finally:
            self._forget(link)

    async def _dial(self, number: int, actions: list[Action]) -> Transport | None:
        reasons = []
        for action in actions:
            if not isinstance(action, Dial):
                self._perform([action])
                continue
            for host, port in action.addresses:
                try:
                    with trio.fail_after(DIAL_SECONDS):
                        stream = await trio.open_tcp_stream(host, port)
                except (OSError, trio.TooSlowError) as error:
                    reasons.append(f"{host}:{port} {why(error)}")
                    continue
                transport = SocketTransport(stream)
                self._perform(self._cluster.dialled(number, (host, port), self._clock()))
                return transport
        reason = "no broker: " + ", ".join(reasons)
        self._perform(self._cluster.not_dialled(number, reason, self._clock()))
        return None

    async def _read(self, link: _Link, side: Side) -> None:
        """Read from one side until it ends, feeding the machine."""
        number = link.number
        transport = link.outboxes[side].transport
        other = link.outboxes[Side.BROKER if side is Side.CLIENT else Side.CLIENT]
        receive, clock, perform = transport.try_receive, self._clock, self._perform
        while True:
            for _ in range(_READS_PER_TURN):
                try:
                    data = receive()
                except OSError as error:
                    perform(self._cluster.closed(number, side, "reset", why(error), clock()))
                    return
                if data is None:
                    await transport.wait_receivable()
                    continue
                if not data:
                    perform(self._cluster.closed(number, side, "eof", "", clock()))
                    await self._flush(link, other)
                    return
                perform(self._cluster.receive(number, side, data, clock()))
                if other.blocked:
                    await self._flush(link, other)
                if self._recorder.congested:
                    await self._recorder.room()
            await trio.lowlevel.checkpoint()

    async def _flush(self, link: _Link, outbox: Outbox) -> None:
        try:
            await outbox.flush()
        except OSError as error:
            self._broken(link, outbox, error)

    async def _flush_all(self, link: _Link) -> None:
        with trio.move_on_after(CLOSE_SECONDS):
            for outbox in link.outboxes.values():
                with contextlib.suppress(OSError):
                    await outbox.flush()

    def _broken(self, link: _Link, outbox: Outbox, error: OSError) -> None:
        side = Side.CLIENT if outbox is link.outboxes[Side.CLIENT] else Side.BROKER
        now = self._clock()
        self._perform(self._cluster.closed(link.number, side, "reset", why(error), now))

    def _forget(self, link: _Link) -> None:
        for outbox in link.outboxes.values():
            outbox.transport.close(link.abrupt)
        # The machine forgets it too, where it was cancelled and not closed.
        now = self._clock()
        self._perform(self._cluster.closed(link.number, Side.CLIENT, "stopped", "", now))
        self._links.pop(link.number, None)
        if not self._links:
            self._empty.set()

    def _unexpected(self, number: int, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        self._log(f"connection {number} ended by a defect in kproxy, please report it: {what}")

    # Actions

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            kind = type(action)
            if kind is Send:
                self._send(action)
            elif kind is Record:
                self._recorder.put(action.entries)
            else:
                self._perform_rare(action)

    def _send(self, action: Send) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        outbox = link.outboxes[action.side]
        pieces = action.pieces
        try:
            outbox.send(pieces[0] if len(pieces) == 1 else b"".join(pieces), action.frames)
        except OSError as error:
            self._broken(link, outbox, error)

    def _perform_rare(self, action: Action) -> None:
        if isinstance(action, Eof):
            link = self._links[action.connection]
            outbox = link.outboxes[action.side]
            try:
                outbox.send_eof()
            except OSError as error:
                self._broken(link, outbox, error)
        elif isinstance(action, Close):
            link = self._links.get(action.connection)
            if link:
                link.abrupt = action.abrupt
                link.scope.cancel()
        elif isinstance(action, Listen):
            released = self._listen(action)
            self._perform(released)
            self._flush_soon(released)
        elif isinstance(action, Log):
            self._log(action.text)
        elif isinstance(action, Fail):
            self.failure = action.text
            self._nursery.cancel_scope.cancel()

    def _flush_soon(self, actions: list[Action]) -> None:
        """Have what was sent on other connections flushed, where nobody else would do it."""
        for action in actions:
            link = self._links.get(action.connection) if isinstance(action, Send) else None
            if link and link.outboxes[action.side].blocked:
                self._nursery.start_soon(self._flush, link, link.outboxes[action.side])

    async def _wake(self) -> None:
        while True:
            next_wake = self._cluster.next_wake
            wait = (next_wake - self._clock()) / 1e9 if next_wake else 1.0
            await trio.sleep(max(wait, 0.0))
            if next_wake:
                self._perform(self._cluster.wake(self._clock()))


def why(error: BaseException) -> str:
    """Say in a few words why a peer cannot be reached, or is gone."""
    if isinstance(error, trio.TooSlowError):
        return f"does not answer within {DIAL_SECONDS:g} s"
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if isinstance(cause, ConnectionRefusedError):
        return "refuses connections"
    if isinstance(cause, (ConnectionResetError, BrokenPipeError)):
        return "reset by the peer"
    return (getattr(cause, "strerror", None) or str(cause)).lower()
