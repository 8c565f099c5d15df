"""The pump: sockets on one side, a machine on the other, actions performed in between.

::

    Acceptor ─▶ Link ─▶ Turns: all sockets, in one task
                            │ readable               ▲
                            ▼                        │ Send: tried at once,
                       Machine.receive ─▶ actions ───┤ the rest when writable ─▶ Machine.all_sent
                                                     ├ Dial ─▶ a task ─▶ Machine.dialled
                                                     ├ LogIn ─▶ a task ─▶ Machine.logged_in
                                                     ├ Probe ─▶ a task ─▶ Machine.probed
        at next_wake ─▶ Machine.wake                 ├ RecordEntries ─▶ Recorder
                                                     └ Listen, Refuse ─▶ Acceptor

Handling an event never waits, so no other event comes between an event and its actions. There is
one alarm for all timed events; while nothing is due, nothing runs.

Resource handling: `Pump.serve` owns every socket of its listeners and connections and has closed
them all when it returns or is cancelled. Error handling: an error on a connection ends that
connection; an unexpected exception does the same and is logged in one line. One that belongs to no
connection is only logged.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import trio

from kproxy.defects import defect
from kproxy.exchange import notes
from kproxy.exchange.entries import Side, coalesce
from kproxy.levels import Logger
from kproxy.net.accept import CONNECTIONS_MAX, Acceptor
from kproxy.net.descriptors import Descriptors
from kproxy.net.dial import Dialled, Unreachable, dial_again, probe, why
from kproxy.net.handshake import HandshakeFailed, plaintext, tls_failure
from kproxy.net.link import End, Link
from kproxy.net.listeners import Interface
from kproxy.net.readiness import READ, WRITE, Readiness
from kproxy.net.recorder import Recorder
from kproxy.net.security import PLAINTEXT, Security
from kproxy.net.transport import Transport
from kproxy.net.turns import NEVER, Alarm, Turns
from kproxy.proxy.actions import (
    Action,
    Address,
    Close,
    Dial,
    Eof,
    Listen,
    Log,
    LogIn,
    Pause,
    Probe,
    RecordEntries,
    Refuse,
    Resume,
    Send,
    Unlisten,
)
from kproxy.proxy.authenticate import LoginFailed
from kproxy.proxy.machine import Accepted, Machine, unperformed

CLOSE_SECONDS = 5.0
_LINGER_SECONDS = 1.0
_LOOP_HINT = "give the address of a broker in --bootstrap"
_LOOP_HINT_NODE = "give the broker an address of its own in advertised.listeners"
_SLOW_NS = 500_000_000
"""A peer that takes nothing for so long, or only a part, is noted in the recording."""
_WAKE_AGAIN_NS = 1_000_000_000
"""The pause after a `wake` of the machine that has failed."""


class Pump:
    """Drives one machine with real connections."""

    def __init__(
        self,
        machine: Machine,
        interface: Interface,
        recorder: Recorder,
        clock: Callable[[], int],
        log: Logger,
        connections_max: int = CONNECTIONS_MAX,
        descriptors: Descriptors | None = None,
        security: Security = PLAINTEXT,
        lingers: bool = True,
    ) -> None:
        self._machine = machine
        self._recorder = recorder
        self._clock = clock
        self._log = log
        self.acceptor = Acceptor(
            interface,
            self._begin_handshake,
            lambda: len(self._links) + self._handshakes,
            log,
            connections_max,
            descriptors or Descriptors(),
        )
        self._security = security
        self._handshakes = 0
        """The number of clients in a handshake."""
        self.connections_accepted = 0
        """The number of connections so far; also the number of the last one."""
        self._readiness = Readiness()
        self._ends: dict[int, End] = {}
        """The ends that are watched, by descriptor."""
        self._links: dict[int, Link] = {}
        self._lost: list[tuple[End, OSError]] = []
        """Ends whose peer was gone when something was sent to it."""
        self._closing: dict[int, int] = {}
        """Links that close when all is sent → the latest time for it, in order."""
        self._next_wake: int | None = None
        """The machine's `next_wake` for which the alarm is set."""
        self._quiet_until_ns = 0
        """The machine is not woken before this time, because the last `wake` failed."""
        self._held_up = False
        """Nothing is read, because the recorder has no room."""
        self._alarm = Alarm(clock, self._wake)
        self._turns = Turns(self._readiness, self._alarm, recorder, clock, self._handle, lingers)
        self._nursery: trio.Nursery
        self._empty = trio.Event()
        self._can_linger = False
        """`drain` is waiting for clients to close their connections …"""
        self._lingering = 0
        """… of which so many have their last response already."""
        self.draining = False
        """`drain` was called."""

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Accept and pump until cancelled, or until `drain` has ended it; call `begin` when actions
        can be performed."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.acceptor.begin(listeners)
                self._nursery.start_soon(self.acceptor.run)
                self._nursery.start_soon(self._alarm.run)
                begin()
                await self._turns.run(self._wait_for_room)
        finally:
            self.acceptor.stop()
            self._can_linger = False
            # Also when cancelled: pending requests are recorded as never answered.
            self._attempt("stopping", lambda: self._machine.stop(self._clock()))
            for link in list(self._links.values()):
                self._forget(link, abrupt=False)
            self._readiness.close()

    async def drain(self, seconds: float, by: str = "") -> None:
        """Accept no more, wait for the responses that are due, close everything, end `serve`; `by`
        is the signal that wants it."""
        self.draining = True
        self.acceptor.stop()
        if by:
            self._recorder.note(notes.stopped(self._clock(), by))
        deadline = trio.current_time() + seconds
        self._can_linger = True
        self._attempt("stopping", lambda: self._machine.drain(self._clock()))
        with trio.move_on_at(deadline):
            while self.busy:
                await trio.sleep(0.02)
        self._attempt("stopping", lambda: self._machine.stop(self._clock()))
        with trio.move_on_at(deadline):
            while self._links or self._lingering:
                self._empty = trio.Event()
                await self._empty.wait()
        self._nursery.cancel_scope.cancel()

    @property
    def connections_open(self) -> int:
        """The number of clients that are connected."""
        return len(self._links)

    @property
    def busy(self) -> bool:
        """True while a response is due."""
        return self._machine.busy

    # Connections

    def _begin_handshake(self, stream: trio.SocketStream, node_id: int | None) -> None:
        """Give a client that was accepted its number, and begin the handshake."""
        try:
            address = "{}:{}".format(*stream.socket.getpeername()[:2])
            local_address = stream.socket.getsockname()[:2]
        except OSError:  # it has gone again
            stream.socket.close()
            return
        self.connections_accepted += 1
        self._handshakes += 1
        client = Accepted(self.connections_accepted, node_id, address, local_address)
        self._nursery.start_soon(self._admit, stream, client)

    async def _admit(self, stream: trio.SocketStream, client: Accepted) -> None:
        """Take on a client, or reject it."""
        machine, clock = self._machine, self._clock
        try:
            secured = await self._security.client(stream, client.address)
        except HandshakeFailed as error:
            reason = str(error)
            self._attempt("a rejection", lambda: machine.rejected(client, reason, clock()))
            return
        except Exception as error:
            self._end_by_defect(client.number, Side.CLIENT, error)
            return
        finally:
            self._handshakes -= 1
        if self.draining:
            secured.transport.close(False)
            return
        link = Link(client.number, client.node_id)
        try:
            self._join(link, Side.CLIENT, secured.transport)
            self.perform(machine.accepted(attrs.evolve(client, tls=secured.tls), clock()))
            self._watch_both(link)
        except Exception as error:
            self._end_by_defect(client.number, Side.CLIENT, error)

    def _join(self, link: Link, side: Side, transport: Transport) -> None:
        """Make a transport one end of a link."""
        link.ends[side] = End(link.number, side, transport, self._clock, link)
        self._links[link.number] = link

    def _dial(self, action: Dial) -> None:
        number = action.connection
        # The machine of a client opens its connections itself.
        link = self._links.get(number) or Link(number, None)
        if link.dialling or link.ends[Side.BROKER]:
            raise ValueError("it is dialled twice")
        self._links[number] = link
        link.dialling = scope = trio.CancelScope()
        self._nursery.start_soon(self._run_dial, link, action.addresses, scope)

    async def _run_dial(
        self, link: Link, addresses: Sequence[Address], scope: trio.CancelScope
    ) -> None:
        """Connect to the broker of a link; nothing comes of it if it is cancelled."""
        can_refuse = link.node_id is not None
        hint = _LOOP_HINT_NODE if can_refuse else _LOOP_HINT
        ours, secure, found = self.acceptor.listening, self._security.broker, None
        try:
            with scope:
                found = await dial_again(addresses, ours, secure, hint, can_refuse)
        except Exception as error:
            if not scope.cancel_called:
                self._end_by_defect(link.number, Side.BROKER, error)
            return
        if found is not None and not scope.cancel_called:
            self._dialled(link, found)
        elif isinstance(found, Dialled):  # the link was closed meanwhile
            found.close()

    def _dialled(self, link: Link, found: Dialled | Unreachable) -> None:
        """Take the result of dialling a link's broker; have the ends watched."""
        number = link.number
        link.dialling = None
        try:
            if isinstance(found, Unreachable):
                now = self._clock()
                self.perform(self._machine.not_dialled(number, found.why, found.refused, now))
            else:
                secured = found.secured
                self._join(link, Side.BROKER, secured.transport)
                now = self._clock()
                about = found.address, now, secured.tls, secured.login
                self.perform(self._machine.dialled(number, *about))
            self._watch_both(link)
        except Exception as error:
            self._end_by_defect(number, Side.BROKER, error)

    def _log_in(self, action: LogIn) -> None:
        link = self._links.get(action.connection)
        if link:
            link.dialling = scope = trio.CancelScope()  # nothing is read until it ends
            self._watch_both(link)
            self._nursery.start_soon(self._run_login, link, action, scope)

    async def _run_login(self, link: Link, action: LogIn, scope: trio.CancelScope) -> None:
        """Log in anew at the broker of a link; nothing comes of it if it is cancelled."""
        logins, end, login, failure = self._security.logins, link.end(Side.BROKER), None, ""
        assert logins is not None, "there was a first login"
        try:
            with scope:
                while end.blocked:  # requests that have no response
                    await trio.lowlevel.wait_writable(end.transport.fileno())
                    end.flush()
                login = await logins.log_in(end.transport, action.earlier)
        except (LoginFailed, OSError) as error:
            failure = f"kproxy could not log in anew: {error}"
        except Exception as error:
            if not scope.cancel_called:
                self._end_by_defect(link.number, Side.BROKER, error)
            return
        if scope.cancel_called or link.dialling is not scope:
            return
        link.dialling = None
        machine, number, now = self._machine, link.number, self._clock()
        if login is None:
            self.perform(machine.closed(number, Side.BROKER, "login", failure, now))
        else:
            self.perform(machine.logged_in(number, login, now))
        self._watch_both(link)

    async def _run_probe(self, action: Probe) -> None:
        """Probe whether a broker takes connections."""
        secure = self._security.query if action.secured else plaintext
        failure, login_failed = "", False
        try:
            found = await probe(action.addresses, self.acceptor.listening, secure)
            if found is not None:
                failure, login_failed = found.why, found.login_failed
        except Exception as error:  # no failure: the node would be refused for ever
            self._log(f"a probe of node {action.node_id} ended {defect(error)}")
        if not self.draining:
            about = action.node_id, action.addresses, failure, login_failed, self._clock()
            self._attempt("a probe", lambda: self._machine.probed(*about))

    # Events

    async def _wait_for_room(self) -> None:
        """Read nothing until the recorder has room."""
        self._held_up = True
        self._set_alarm()
        await self._recorder.room()
        for descriptor, events in self._readiness.poll(0):  # before the check for idle connections
            self._handle(descriptor, events)
        self._held_up = False
        self._set_alarm()

    def _handle(self, descriptor: int, events: int) -> None:
        end = self._ends.get(descriptor)
        if end is None:  # it was closed, or is not watched any more, since this turn began
            return
        try:
            if events & self._readiness.reads and end.watched & READ:
                self._receive(end)
            if events & self._readiness.writes and end.watched & WRITE:
                self._flush(end)
        except Exception as error:
            self._end_by_defect(end.number, end.side, error)

    def _receive(self, end: End) -> None:
        transport = end.transport
        try:
            data = transport.try_receive()
        except OSError as error:
            self._report_broken(end, error)
            return
        if end.watched & WRITE and not end.blocked:  # TLS has sent the rest, to receive this
            self._flush(end)
        if data:
            self.perform(self._machine.receive(end.number, end.side, data, self._clock()))
        elif data is not None:
            end.receiving = False
            self._watch(end)
            now = self._clock()
            self.perform(self._machine.closed(end.number, end.side, "eof", "", now))
        if transport.wants_write and end.link:  # the received bytes made TLS send something
            self._watch_both(end.link)

    def _flush(self, end: End) -> None:
        try:
            end.flush()
        except OSError as error:
            self._report_broken(end, error)
            return
        link = end.link
        if link is None or end.blocked:
            return
        now = self._clock()
        if now - end.blocked_ns >= _SLOW_NS:
            about = end.number, end.side.name.lower(), link.node_id
            self._recorder.note(notes.slow_peer(*about, end.blocked_ns, now))
        self.perform(self._machine.all_sent(end.number, end.side, now))
        if link.closing and not link.blocked:
            self._forget(link, abrupt=False)
        else:
            self._watch_both(link)

    def _watch_both(self, link: Link) -> None:
        for end in link.open_ends:
            self._watch(end)

    def _watch(self, end: End) -> None:
        """Watch an end for the events that it needs now."""
        wanted = WRITE if end.link and end.blocked else 0
        if end.readable:
            wanted |= READ
        if wanted == end.watched:
            return
        if wanted & WRITE and not end.watched & WRITE:
            end.blocked_ns = self._clock()
        descriptor = end.transport.fileno()
        self._readiness.watch(descriptor, end.watched, wanted)
        end.watched = wanted
        if wanted:
            self._ends[descriptor] = end
        else:
            del self._ends[descriptor]

    def _report_broken(self, end: End, error: OSError) -> None:
        if end.link and end.link.closing:  # the machine has done with it
            self._forget(end.link, abrupt=True)
            return
        how = "reset"
        if isinstance(error, ssl.SSLError):
            how = "tls"
            self._security.failures.tls[end.side.name.lower(), tls_failure(error)[0]] += 1
        now = self._clock()
        self.perform(self._machine.closed(end.number, end.side, how, why(error), now))

    def _end_by_defect(self, number: int, side: Side, error: Exception) -> None:
        """End a connection on which an unforeseen exception was raised."""
        self._log(f"connection {number} ended {defect(error)}")
        link = self._links.get(number)
        if link:
            # First: then none of the actions that follow can fail on it again.
            self._forget(link, abrupt=True)
        now = self._clock()
        self._attempt("its end", lambda: self._machine.closed(number, side, "defect", "", now))

    def _attempt(self, what: str, event: Callable[[], list[Action]]) -> None:
        """Perform the actions of an event that belongs to no connection."""
        try:
            self.perform(event())
        except Exception as error:
            self._log(f"{what} failed {defect(error)}")

    def _forget(self, link: Link, abrupt: bool) -> None:
        """Close the ends of a link, and forget it."""
        self._links.pop(link.number, None)
        self._closing.pop(link.number, None)
        for end in link.open_ends:
            if link.dialling:
                trio.lowlevel.notify_closing(end.transport.fileno())
            end.link = None  # otherwise both are garbage in a cycle, which is rarely collected
            self._watch(end)
            if self._can_linger and end.side is Side.CLIENT and not abrupt:
                self._lingering += 1
                self._nursery.start_soon(self._linger, end.transport)
            else:
                end.transport.close(abrupt)
        if link.dialling:
            link.dialling.cancel()
        if not self._links:
            self._empty.set()

    async def _linger(self, transport: Transport) -> None:
        """Close a connection behind its client: a reset, for what that sends still, would overtake
        the last response."""
        try:
            with trio.move_on_after(_LINGER_SECONDS), contextlib.suppress(OSError):
                transport.send_eof()
                while transport.try_receive() != b"":
                    await trio.lowlevel.wait_readable(transport.fileno())
        finally:
            transport.close(False)
            self._lingering -= 1
            self._empty.set()

    # Time

    def _wake(self, now: int) -> None:
        """Close links whose time is over, and wake the machine if that is due."""
        for number, until_ns in list(self._closing.items()):
            if until_ns > now:
                break
            self._forget(self._links[number], abrupt=False)
        due = self._machine.next_wake
        ready = not self._held_up and self._quiet_until_ns <= now
        if due is not None and due <= now and ready:
            self._attempt("a timer", lambda: self._machine.wake(now))
            due = self._machine.next_wake
            if due is not None and due <= now:  # it has failed: not again and again
                self._quiet_until_ns = now + _WAKE_AGAIN_NS
        self._set_alarm()

    def _set_alarm(self) -> None:
        """Set the alarm to the first time that is due."""
        due = self._next_wake = self._machine.next_wake
        alarm_ns = NEVER
        if due is not None and not self._held_up:
            alarm_ns = max(due, self._quiet_until_ns)
        if self._closing:
            alarm_ns = min(alarm_ns, next(iter(self._closing.values())))
        self._alarm.set(alarm_ns)

    # Actions

    def perform(self, actions: Iterable[Action]) -> None:
        """Perform the actions of an event.

        A failure on a connection ends that one; if an action names none, the exception is the
        caller's.
        """
        for action in actions:
            try:
                PERFORMERS.get(type(action), unperformed)(self, action)
            except Exception as error:
                number = getattr(action, "connection", None)
                if number is None:
                    raise
                self._end_by_defect(number, getattr(action, "side", Side.CLIENT), error)
        while self._lost:
            # Only now, so that the actions' entries are recorded before the connection's end.
            self._report_broken(*self._lost.pop())
        if self._machine.next_wake != self._next_wake:
            self._set_alarm()

    def _send(self, action: Send) -> None:
        try:
            link = self._links.get(action.connection)
            if link is not None:
                self._send_to(link, action)
        finally:
            if action.entries:
                self._recorder.put(action.entries)

    def _send_to(self, link: Link, action: Send) -> None:
        end = link.ends[action.side] or link.end(action.side)
        pieces = action.pieces if len(action.pieces) == 1 else coalesce(action.pieces)
        try:
            for piece in pieces[:-1]:
                end.send(piece, ())
            if end.send(pieces[-1], action.timed):
                self._watch_both(link)
        except OSError as error:
            self._lost.append((end, error))

    def _send_eof(self, action: Eof) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        end = link.end(action.side)
        try:
            end.send_eof()
        except OSError as error:
            self._lost.append((end, error))
            return
        if end.blocked:
            self._watch_both(link)

    def _pause(self, action: Pause) -> None:
        link = self._links.get(action.connection)
        if link:
            link.paused.add(action.side)
            self._watch_both(link)

    def _resume(self, action: Resume) -> None:
        link = self._links.get(action.connection)
        if link:
            link.paused.discard(action.side)
            self._watch_both(link)

    def _listen(self, action: Listen) -> None:
        try:
            found = self.acceptor.listen(action.node_id, action.port)
        except Exception as error:  # the machine must learn of it, or it would wait for ever
            found = f"ended {defect(error)}"
            self._log(f"listening for node {action.node_id} {found}")
        now = self._clock()
        if isinstance(found, str):
            self.perform(self._machine.not_listening(action.node_id, found, now))
        else:
            self.perform(self._machine.listening(action.node_id, found, now))

    def _refuse(self, action: Refuse) -> None:
        self.acceptor.refuse(action.node_id)

    def _probe(self, action: Probe) -> None:
        if not self.draining:
            self._nursery.start_soon(self._run_probe, action)

    def _unlisten(self, action: Unlisten) -> None:
        self.acceptor.unlisten(action.node_id)

    def _close(self, action: Close) -> None:
        link = self._links.get(action.connection)
        if link is None:
            return
        if action.abrupt or not link.blocked:
            self._forget(link, action.abrupt)
            return
        link.closing = True
        self._closing[link.number] = self._clock() + int(CLOSE_SECONDS * 1e9)
        self._watch_both(link)
        self._set_alarm()

    def _record(self, action: RecordEntries) -> None:
        self._recorder.put(action.entries)

    def _write_log(self, action: Log) -> None:
        self._log(action.text, action.level)


PERFORMERS: dict[type, Callable[[Pump, Any], None]] = {
    Dial: Pump._dial,
    LogIn: Pump._log_in,
    Send: Pump._send,
    Eof: Pump._send_eof,
    Pause: Pump._pause,
    Resume: Pump._resume,
    Close: Pump._close,
    Listen: Pump._listen,
    Refuse: Pump._refuse,
    Probe: Pump._probe,
    Unlisten: Pump._unlisten,
    RecordEntries: Pump._record,
    Log: Pump._write_log,
}
"""Action → the function that performs it."""
