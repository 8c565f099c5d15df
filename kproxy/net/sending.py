"""Send a recording from the first request to the last: look at the cluster, send, complete.

::

    begin: is it another cluster, does it have the topics ─▶ items ─▶ copies, side by side ─▶ Sent
                                                                          │
    sockets, a timer ◀── outputs ── Sender (`send.sender`) ◀──────────────┘
                  └───── inputs ──▶    └── frames, notes ─▶ recorder, if it is recorded
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import trio

from kproxy import __version__
from kproxy.levels import Logger
from kproxy.net.clock import Clock
from kproxy.net.descriptors import raise_limit
from kproxy.net.dial import Unreachable, dial, why
from kproxy.net.listeners import Listening
from kproxy.net.recorder import Recorder
from kproxy.net.running import ending_signals
from kproxy.net.security import Security, security
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls
from kproxy.net.transport import Transport
from kproxy.proxy.actions import Address
from kproxy.proxy.authenticate import LoginFailed, LoginSession
from kproxy.recording.files import make_folder
from kproxy.recording.rotation import Recording
from kproxy.send.conversation import SentConversation
from kproxy.send.feeding import Feeding
from kproxy.send.inputs import Input
from kproxy.send.order import SendItem
from kproxy.send.planned import SendPlan, SendSettings, creations
from kproxy.send.sender import CLOSED, ClusterGone, Do, Sender, SendLink, Steps
from kproxy.send.sent import Sent
from kproxy.wire.protocol import api_key, codec, error_name, messages, schema
from kproxy.wire.protocol.codes import NONE, TOPIC_ALREADY_EXISTS

_LOOK_SECONDS = 0.1
_DESCRIPTORS = 10_000
_RESOLVE_SECONDS = 5.0


class NotSent(Exception):
    """Nothing is sent, because of how things are; the text says why."""

    exit_code = 2


@attrs.frozen
class SendOptions:
    """The options of `kproxy send`."""

    bootstrap: Sequence[Address]
    broker_tls: BrokerTls | None = None
    credentials: Credentials | None = None
    settings: SendSettings = attrs.field(factory=SendSettings)
    same_cluster: bool = False
    record_path: Path | None = None


@attrs.define(eq=False)
class _Socket:
    """What a link of the sender is."""

    transport: Transport
    login: LoginSession | None
    unsent: bytearray = attrs.field(factory=bytearray)
    is_draining: bool = False
    logs_in: bool = False
    reading: trio.CancelScope = attrs.field(factory=trio.CancelScope)


class _Carrier:
    """Carries out what the sender wants, and tells it what comes of it."""

    def __init__(
        self, sender: Sender, secure: Security, clock: Clock, recorder: Recorder | None
    ) -> None:
        self.sender = sender
        self.nursery: trio.Nursery
        self._secure, self._clock = secure, clock
        self._sockets: dict[SendLink, _Socket] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._actions = {
            Do.OPEN: lambda *given: self.nursery.start_soon(self._open, *given),
            Do.WRITE: self._write,
            Do.LOG_IN: self._log_in,
            Do.CLOSE: self._close,
            Do.RECORD: lambda link, entries: recorder and recorder.put(entries),
        }
        self._timer = trio.CancelScope()
        self._timer_ns: int | None = None

    def give(self, take: Callable[..., None], *arguments: Any) -> None:
        """Give the sender an input, and wake it until a request is written: before the next one
        is made, what has arrived meanwhile is read."""
        sender, writes = self.sender, False
        action: Callable[[int], None] = partial(take, *arguments)
        while True:
            try:
                action(self._clock())
            finally:
                outputs, sender.outputs = sender.outputs, []
                for what, link, given in outputs:
                    writes = writes or what is Do.WRITE
                    self._actions[what](link, given)
            if writes or sender.next_ns != sender.now_ns:
                break
            action = sender.wake
        self._changed.unpark_all()
        self._set_timer(sender.next_ns)

    def _set_timer(self, at_ns: int | None) -> None:
        if at_ns != self._timer_ns:
            self._timer_ns = at_ns
            seconds = math.inf if at_ns is None else max(0, at_ns - self._clock()) / 1e9
            self._timer.deadline = trio.current_time() + seconds

    async def keep_time(self) -> None:
        """Wake the sender when it wants to be."""
        while True:
            with trio.CancelScope() as self._timer:
                self._timer_ns = None
                self.give(self.sender.wake)
                await trio.sleep_forever()

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Wait until this is so."""
        while not is_so():
            await self._changed.park()

    async def go_through(self, steps: Steps) -> Any:
        """Have the sender go through steps; return their result."""
        found: list[Any] = []

        def all_steps() -> Steps:
            found.append((yield from steps))

        self.sender.start(all_steps())
        self.give(self.sender.wake)
        await self.until(lambda: bool(found))
        return found[0]

    async def feed(self, copies: Sequence[Any], items: Iterable[Any]) -> None:
        """Give copies all of this, and wait until they are done."""
        for item in items:
            await trio.lowlevel.checkpoint()  # what is answered meanwhile is read at once
            for copy in copies if item is not None else ():
                copy.take(item)
            self.give(self.sender.wake)
            for copy in copies:
                await self.until(lambda copy=copy: not copy.is_full)
        for copy in copies:
            copy.take(None)
        self.give(self.sender.wake)
        for copy in copies:
            await self.until(lambda copy=copy: copy.is_done)

    # ---- sockets

    async def _open(self, link: SendLink, addresses: Sequence[Address]) -> None:
        found = await dial(addresses, Listening(), self._secure.query)
        if isinstance(found, Unreachable):
            self.give(self.sender.ended, link, found.reason)
        elif link.ended:
            found.close()
        else:
            login = found.secured.login
            socket = self._sockets[link] = _Socket(found.secured.transport, login)
            mechanism, lifetime_ms = (login.mechanism, login.lifetime_ms) if login else ("", 0)
            self.give(self.sender.opened, link, found.address, mechanism, lifetime_ms)
            try:
                reason = await self._read(link, socket)
            except (OSError, LoginFailed) as error:
                reason = why(error)
            except trio.ClosedResourceError:
                return
            self.give(self.sender.ended, link, reason)

    async def _read(self, link: SendLink, socket: _Socket) -> str:
        """Read responses until the link ends; return why it does."""
        transport, data = socket.transport, bytearray()
        while not link.ended:
            if socket.logs_in and self._secure.logins and socket.login:
                socket.logs_in = False
                login = socket.login = await self._secure.logins.log_in(transport, socket.login)
                self.give(self.sender.logged_in, link, login.lifetime_ms)
            chunk = transport.try_receive()
            if chunk is None:
                with trio.CancelScope() as socket.reading:
                    await trio.lowlevel.wait_readable(transport.fileno())
                continue
            if not chunk:
                return CLOSED
            data += chunk
            self.give(self.sender.received, link, data)
            self._write(link)
            await trio.lowlevel.checkpoint()
        return ""

    def _write(self, link: SendLink, data: bytes = b"") -> None:
        if (socket := self._sockets.get(link)) is None:
            return
        socket.unsent += data
        if socket.is_draining:
            return
        with suppress(OSError, ValueError):  # its reader finds out
            if socket.unsent:
                del socket.unsent[: socket.transport.try_send(bytes(socket.unsent))]
        if socket.unsent or socket.transport.wants_write:
            socket.is_draining = True
            self.nursery.start_soon(self._drain, link, socket)

    async def _drain(self, link: SendLink, socket: _Socket) -> None:
        transport = socket.transport
        self.give(self.sender.blocked, link)
        with suppress(OSError, ValueError, trio.ClosedResourceError):  # its reader finds out
            while not link.ended and (socket.unsent or transport.wants_write):
                await trio.lowlevel.wait_writable(transport.fileno())
                transport.flush()
                del socket.unsent[: transport.try_send(bytes(socket.unsent))]
            socket.is_draining = False
            self.give(self.sender.drained, link)

    def _log_in(self, link: SendLink, given: None) -> None:
        if socket := self._sockets.get(link):
            socket.logs_in = True
            socket.reading.cancel()

    def _close(self, link: SendLink, given: None) -> None:
        if socket := self._sockets.pop(link, None):
            trio.lowlevel.notify_closing(socket.transport.fileno())
            socket.transport.close(False)


async def send(
    options: SendOptions,
    plan: SendPlan,
    read: Callable[[], Iterable[SendItem | None]],
    log: Logger,
    look: Callable[[Sent], None],
    inputs: Iterable[Input] | None = None,
) -> Sent:
    """Send what `read` gives, as often as the options say, or only the inputs of a service; `look`
    sees the figures grow.

    Raises:
        NotSent: nothing was sent.
        TlsError, RecordingError, OSError.
    """
    raise_limit(_DESCRIPTORS)
    secure = security(options.broker_tls, None, (), log, options.credentials)
    clock, settings = Clock(), options.settings
    failure: BaseException | None = None
    recorder = _recorder(options.record_path, clock, log)
    sender = Sender(options.bootstrap, recorder is not None)
    carrier = _Carrier(sender, secure, clock, recorder)
    sent = sender.sent
    sent.all_records, sent.is_load = plan.records, settings.is_load
    try:
        with ending_signals() as signals:
            async with trio.open_nursery() as nursery:
                carrier.nursery = nursery
                for task in (
                    *secure.tasks,
                    *([recorder.run] if recorder else ()),
                    carrier.keep_time,
                    partial(_look, look, sent),
                ):
                    nursery.start_soon(task)
                if signals is not None:
                    nursery.start_soon(_until_signal, signals, sent, nursery.cancel_scope)
                await _begin(carrier, options, plan, log)
                sent.began = trio.current_time()
                if inputs is not None:
                    await carrier.feed(
                        [Feeding(sender, settings.renaming, settings.factor)], inputs
                    )
                for renamings in settings.rounds() if inputs is None else ():
                    copies = [SentConversation(sender, each, settings) for each in renamings]
                    await carrier.feed(copies, read())
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failure = _first(group)
    sent.seconds = trio.current_time() - sent.began if sent.began else 0.0
    if recorder is not None:
        await recorder.finish()
    if isinstance(failure, ClusterGone):
        sent.ended = str(failure)
    elif failure is not None:
        raise failure from None
    if recorder is not None and recorder.failure:
        lost = f"{recorder.failure}; {recorder.frames_lost} frames are not recorded"
        sent.ended = f"{sent.ended}; {lost}" if sent.ended else lost
    return sent


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(signals: AsyncIterator[int], sent: Sent, scope: trio.CancelScope) -> None:
    async for _ in signals:
        sent.ended = "stopped by a signal"
        scope.cancel()
        return


async def _look(look: Callable[[Sent], None], sent: Sent) -> None:
    while True:
        await trio.sleep(_LOOK_SECONDS)
        if sent.began:
            sent.seconds = trio.current_time() - sent.began
            look(sent)


async def _begin(carrier: _Carrier, options: SendOptions, plan: SendPlan, log: Logger) -> None:
    """Look at the cluster before anything is sent.

    Raises: NotSent, ClusterGone.
    """
    sender, rename = carrier.sender, options.settings.renaming.topic
    renamed = {rename(name): count for name, count in plan.needed.items()}
    await carrier.go_through(sender.ask(codec.API_VERSIONS, 0, messages.ApiVersionsRequest()))
    await carrier.go_through(sender.learn_topics(renamed))
    if not options.same_cluster and await _is_recorded(plan, sender, options.bootstrap):
        what = "this is the cluster of the recording"
        raise NotSent(f"{what}: give another --bootstrap, or --same-cluster to send to it")
    created = {rename(name) for name in plan.created if options.settings.allow_admin}
    missing = {
        name: count
        for name, count in renamed.items()
        if name not in sender.cluster.topic_ids and name not in created
    }
    if missing and options.settings.create_topics:
        await _create(carrier, missing)
    elif missing and not plan.partitions:
        what = f"the cluster lacks topics of the recording: {_few(missing)}"
        log(f"{what} (--create-topics creates them)")
        sender.cluster.miss(missing)
    for name, count in renamed.items():
        if 0 < (here := sender.cluster.partitions.get(name, 0)) < count:
            log(f"the cluster has {here} of {count} partitions of {name}: the others are left out")
    needed = {(rename(topic), partition) for topic, partition in plan.partitions}
    if lacking := needed - sender.cluster.leaders.keys():
        names = _few(f"{topic}[{partition}]" for topic, partition in lacking)
        raise NotSent(f"the cluster lacks partitions: {names} (--create-topics creates topics)")


def _few(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (", …" if len(found) > 5 else "")


async def _is_recorded(plan: SendPlan, sender: Sender, bootstrap: Iterable[Address]) -> bool:
    """Return whether the recording may be of this cluster: the ids are the same, or, where one is
    not known, an address is."""
    if plan.cluster_ids and sender.cluster.cluster_id:
        return sender.cluster.cluster_id in plan.cluster_ids
    here = await _resolved((*sender.cluster.nodes.values(), *bootstrap))
    return not here.isdisjoint(await _resolved(plan.brokers))


async def _resolved(addresses: Iterable[Address]) -> set[Address]:
    """Return addresses with those that they resolve to."""
    found = set(addresses)

    async def resolve(host: str, port: int) -> None:
        with suppress(OSError, ValueError):  # the latter for a name that no host can have
            each = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
            found.update((str(sockaddr[0]), port) for *_, sockaddr in each)

    with trio.move_on_after(_RESOLVE_SECONDS):
        async with trio.open_nursery() as nursery:
            for address in list(found):
                nursery.start_soon(resolve, *address)
    return found


async def _create(carrier: _Carrier, topics: dict[str, int]) -> None:
    """Create topics, and wait until they have leaders.

    Raises: NotSent, ClusterGone.
    """
    sender = carrier.sender
    for body in creations(topics):
        asked = sender.ask(api_key("CreateTopics") or 0, None, body)
        answer = await carrier.go_through(asked)
        for each in answer.topics:
            if each.error_code not in (NONE, TOPIC_ALREADY_EXISTS):
                why = each.error_message or error_name(each.error_code)
                raise NotSent(f"--create-topics: {each.name}: {why}")
    wanted = {(name, each) for name in topics for each in range(topics[name] or 1)}
    await carrier.go_through(sender.learn_leaders(wanted))


def _recorder(path: Path | None, clock: Clock, log: Logger) -> Recorder | None:
    if path is None:
        return None
    make_folder(path.parent)
    recording = Recording(
        path, start_ns=clock(), schema_id=schema.schema_id(), library_version=__version__, log=log
    )
    return Recorder(recording, log, lossless=True)
