"""The pump: sockets on one side, the machine on the other, actions performed in between.

::

    accept ─▶ dial ─▶ one selector for all sockets, in one task
                          │ readable                 ▲
                          ▼                          │ Send: tried at once,
                     Cluster.receive ─▶ actions ─────┤ the rest when writable
                                                     ├ Record ─▶ Recorder
                                                     └ Listen ─▶ another listener

One task waits for all connections (a trio task per socket costs more than the bytes that it moves,
see the benchmark). Handling an event never waits, so no other event comes between an event and its
actions, and each ready socket is read once per turn, so a busy one starves nobody.

Resource handling: `Pump.serve` owns every socket of its listeners and connections and has closed
them all when it returns or is cancelled. Error handling: whatever goes wrong on a connection ends
that connection; an unexpected exception is logged in one line and does the same.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Sequence

import trio

from kproxy.exchange.entries import Side, coalesced
from kproxy.net.link import End, Link
from kproxy.net.listeners import Interface, ListenError
from kproxy.net.recorder import Recorder
from kproxy.net.transport import SocketTransport, Transport
from kproxy.proxy.actions import (
    Action,
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
from kproxy.proxy.rewrite import BrokerAddress

CONNECTIONS_MAX = 10_000
DIAL_SECONDS = 10.0
REDIAL_SECONDS = 1.0
"""How long a client is held while its broker refuses connections."""
_REDIAL_SECONDS_MIN = 0.05
CLOSE_SECONDS = 5.0
_LINGER_SECONDS = 0.001
"""How long the pump waits by itself, without trio, for the next event of a lively conversation:
that is half the cost of waiting through trio, and holds up other tasks by no more than this."""
_TURN_NS = 5_000_000
"""After this long other tasks get their turn, however much there is to do."""
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class Pump:
    """Drives one machine with real connections."""

    def __init__(
        self,
        cluster: Cluster,
        interface: Interface,
        recorder: Recorder,
        clock: Callable[[], int],
        log: Callable[[str], None],
        connections_max: int = CONNECTIONS_MAX,
        transport: Callable[[trio.SocketStream], Transport] = SocketTransport,
    ) -> None:
        self._cluster = cluster
        self._interface = interface
        self._recorder = recorder
        self._clock = clock
        self._log = log
        self.connections_max = connections_max
        self.connections_accepted = 0
        """So far; also the number of the last one."""
        self.connections_refused = 0
        """So far: those that were too many."""
        self._full = False
        self._dialling = 0
        self._transport = transport
        self._selector = selectors.DefaultSelector()
        self._links: dict[int, Link] = {}
        self._lost: list[tuple[End, OSError]] = []
        """Peers that were found gone while sending to them."""
        self._nursery: trio.Nursery
        self._accepting: trio.Nursery
        self._empty = trio.Event()
        self.draining = False
        """Whether `drain` was called."""

    async def serve(self, listeners: list[trio.SocketListener]) -> None:
        """Accept and pump until cancelled, or until `drain` has ended it."""
        try:
            async with trio.open_nursery() as self._nursery:
                async with trio.open_nursery() as self._accepting:
                    self._accept(listeners, None)
                    self._nursery.start_soon(self._poll)
                    self._nursery.start_soon(self._wake)
                    await trio.sleep_forever()
        finally:
            for link in list(self._links.values()):
                self._forget(link, abrupt=False)
            self._selector.close()

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

    @property
    def connections_open(self) -> int:
        """How many clients are connected."""
        return len(self._links) + self._dialling

    @property
    def busy(self) -> bool:
        """Whether an answer is due."""
        return self._cluster.busy

    def discovered(self, brokers: list[BrokerAddress]) -> None:
        """Open the listeners of brokers that no response has named yet."""
        self._perform(self._cluster.discovered(brokers, self._clock()))

    # Listeners

    def _accept(self, listeners: Sequence[trio.SocketListener], node_id: int | None) -> None:
        async def handle(stream: trio.SocketStream) -> None:
            await self._connect(stream, node_id)

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
            node = f"node {action.node_id}"
            self._log(f"port {action.port} is not free for {node}, it gets another (--node-port)")
            return self._listen(Listen(action.node_id, 0))
        self._accept(listeners, action.node_id)
        address = listeners[0].socket.getsockname()[:2]
        return self._cluster.listening(action.node_id, address, now)

    # Connections

    async def _connect(self, stream: trio.SocketStream, node_id: int | None) -> None:
        """Connect a client that was accepted to its broker, and have both watched."""
        if self.connections_open >= self.connections_max:
            self.connections_refused += 1
            await trio.aclose_forcefully(stream)
            if not self._full:
                limit = f"{self.connections_max} (--connections-max, ulimit -n)"
                self._log(f"no more connections than {limit}: new ones are closed at once")
            self._full = True
            return
        if self.connections_open < self.connections_max * 0.9:
            self._full = False  # not at once: it would be said again for each that comes and goes
        self.connections_accepted += 1
        number = self.connections_accepted
        try:
            client = "{}:{}".format(*stream.socket.getpeername()[:2])
            local_address = stream.socket.getsockname()[:2]
        except OSError:  # it has gone again
            await trio.aclose_forcefully(stream)
            return
        actions = self._cluster.accepted(number, node_id, client, local_address, self._clock())
        dial = next(action for action in actions if isinstance(action, Dial))
        self._dialling += 1
        try:
            broker = await self._dial(number, dial)
        except BaseException:
            stream.socket.close()
            raise
        finally:
            self._dialling -= 1
        if broker is None:
            await trio.aclose_forcefully(stream)
            return
        ends = {
            Side.CLIENT: End(number, Side.CLIENT, self._transport(stream), self._clock),
            Side.BROKER: End(number, Side.BROKER, self._transport(broker), self._clock),
        }
        ends[Side.CLIENT].other, ends[Side.BROKER].other = ends[Side.BROKER], ends[Side.CLIENT]
        self._links[number] = Link(number, ends)
        for end in ends.values():
            self._watch(end)

    async def _dial(self, number: int, dial: Dial) -> trio.SocketStream | None:
        """Connect to the broker, trying again for a while: it may just be restarting, and a client
        whose connection ends at once comes back at once, for it takes us for the broker."""
        pause = _REDIAL_SECONDS_MIN
        until = trio.current_time() + REDIAL_SECONDS
        while True:
            reasons = []
            for host, port in dial.addresses:
                try:
                    with trio.fail_after(DIAL_SECONDS):
                        stream = await trio.open_tcp_stream(host, port)
                except (OSError, UnicodeError, trio.TooSlowError) as error:
                    reasons.append(f"{host}:{port} {why(error)}")
                    _untrace(error)
                    continue
                actions = self._cluster.dialled(number, (host, port), self._clock())
                if not actions:  # it was closed in the meantime
                    await trio.aclose_forcefully(stream)
                    return None
                self._perform(actions)
                return stream
            if trio.current_time() + pause > until:
                break
            await trio.sleep(pause)
            pause *= 2
        reason = "no broker: " + ", ".join(reasons)
        self._perform(self._cluster.not_dialled(number, reason, self._clock()))
        return None

    # Events

    async def _poll(self) -> None:
        """Wait for all connections at once; handle what has happened on each."""
        select = self._selector.select
        descriptor = self._selector.fileno()
        while True:
            await trio.lowlevel.wait_readable(descriptor)
            let_others_run_ns = self._clock() + _TURN_NS
            while events := select(_LINGER_SECONDS):
                for key, mask in events:
                    self._handle(key.data, mask)
                recorder = self._recorder
                if recorder.due or recorder.congested or self._clock() > let_others_run_ns:
                    break
            if self._recorder.congested:
                await self._recorder.room()

    def _handle(self, end: End, mask: int) -> None:
        try:
            # An end whose link was closed earlier in this turn is not watched any more.
            if mask & end.watched & _READ:
                self._receive(end)
            if mask & end.watched & _WRITE:
                self._flush(end)
        except Exception as error:
            self._unexpected(end, error)

    def _receive(self, end: End) -> None:
        try:
            data = end.transport.try_receive()
        except OSError as error:
            self._broken(end, error)
            return
        if data:
            self._perform(self._cluster.receive(end.number, end.side, data, self._clock()))
        elif data is not None:
            end.receiving = False
            self._watch(end)
            now = self._clock()
            self._perform(self._cluster.closed(end.number, end.side, "eof", "", now))

    def _flush(self, end: End) -> None:
        try:
            end.flush()
        except OSError as error:
            self._broken(end, error)
            return
        if not end.blocked:
            self._watch(end)
            self._watch(end.other)
            link = self._links.get(end.number)
            if link and link.closing_until_ns and not link.blocked:
                self._forget(link, abrupt=False)

    def _watch(self, end: End) -> None:
        """Have the selector watch an end for what it can do now."""
        link = self._links.get(end.number)
        wanted = _WRITE if link and end.blocked else 0
        if link and end.readable and not link.closing_until_ns:
            wanted |= _READ
        if wanted == end.watched:
            return
        if not wanted:
            self._selector.unregister(end.transport)
        elif end.watched:
            self._selector.modify(end.transport, wanted, end)
        else:
            self._selector.register(end.transport, wanted, end)
        end.watched = wanted

    def _broken(self, end: End, error: OSError) -> None:
        now = self._clock()
        self._perform(self._cluster.closed(end.number, end.side, "reset", why(error), now))

    def _unexpected(self, end: End, error: Exception) -> None:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        self._log(f"connection {end.number} ended by a defect in kproxy, please report it: {what}")
        now = self._clock()
        self._perform(self._cluster.closed(end.number, end.side, "defect", "", now))
        link = self._links.get(end.number)
        if link:
            self._forget(link, abrupt=True)

    def _forget(self, link: Link, abrupt: bool) -> None:
        """Close both ends."""
        self._links.pop(link.number, None)
        for end in link.ends.values():
            self._watch(end)
            end.transport.close(abrupt)
            end.other = None  # or the two would be garbage in a cycle, which is rarely looked for
        if not self._links:
            self._empty.set()

    async def _wake(self) -> None:
        while True:
            await trio.sleep(1)
            now = self._clock()
            for link in list(self._links.values()):
                if link.closing_until_ns and link.closing_until_ns <= now:
                    self._forget(link, abrupt=False)
            next_wake = self._cluster.next_wake
            if next_wake is not None and next_wake <= now:
                self._perform(self._cluster.wake(now))

    # Actions

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            kind = type(action)
            if kind is Send:
                self._send(action)
            elif kind is Record:
                self._recorder.put(action.entries, action.data_bytes)
            elif kind is Close:
                self._close(action)
            elif kind is Eof:
                self._send_eof(action)
            elif kind is Listen:
                self._perform(self._listen(action))
            elif kind is Pause or kind is Resume:
                self._pause(action, kind is Pause)
            elif kind is Log:
                self._log(action.text)
        while self._lost:
            # Only now, so that what the actions record comes before the end of its connection.
            self._broken(*self._lost.pop())

    def _send(self, action: Send) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        end = link.ends[action.side]
        pieces = action.pieces if len(action.pieces) == 1 else coalesced(action.pieces)
        try:
            for piece in pieces[:-1]:
                end.send(piece, [])
            end.send(pieces[-1], action.timed)
        except OSError as error:
            self._lost.append((end, error))
            return
        if end.blocked:
            self._watch(end)
            self._watch(end.other)

    def _send_eof(self, action: Eof) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        end = link.ends[action.side]
        try:
            end.send_eof()
        except OSError as error:
            self._lost.append((end, error))

    def _pause(self, action: Pause | Resume, paused: bool) -> None:
        link = self._links.get(action.connection)
        if link:
            end = link.ends[action.side]
            end.paused = paused
            self._watch(end)

    def _close(self, action: Close) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        if action.abrupt or not link.blocked:
            self._forget(link, action.abrupt)
            return
        link.closing_until_ns = self._clock() + int(CLOSE_SECONDS * 1e9)
        for end in link.ends.values():
            self._watch(end)


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


def _untrace(error: BaseException) -> None:
    """Let go of the frames that an error went through: they hold it, and so would be garbage in a
    cycle, a dozen times a second where a broker is down."""
    error.__traceback__ = None
    causes = {error.__cause__, error.__context__, *getattr(error, "exceptions", ())}
    for cause in causes - {None}:
        _untrace(cause)
