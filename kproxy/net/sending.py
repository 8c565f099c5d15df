"""Send a recording from the first request to the last: look at the cluster, send, complete.

::

    begin: is it another cluster, does it have the topics ─▶ conversations, side by side ─▶ Sent
                                                                  │ frames, notes
                                                                  ▼
                                                          recorder, if it is recorded
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import attrs
import trio

from kproxy import __version__
from kproxy.net.clock import Clock
from kproxy.net.conversation import SentConversation
from kproxy.net.descriptors import raise_limit
from kproxy.net.feeding import Feeding
from kproxy.net.recorder import Recorder
from kproxy.net.running import ending_signals
from kproxy.net.security import security
from kproxy.net.sender import AGAIN_SECONDS, PASSES_SECONDS, ClusterGone, Sender
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls
from kproxy.proxy.actions import Address
from kproxy.recording.files import make_folder
from kproxy.recording.rotation import Recording
from kproxy.send.inputs import Input
from kproxy.send.order import SendItem
from kproxy.send.planned import SendPlan, creations
from kproxy.send.sent import Sent
from kproxy.send.substitution import Renaming
from kproxy.wire.protocol import api_key, error_name, schema
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
    renaming: Renaming = attrs.field(factory=Renaming)
    factor: float = 1.0
    """Of the recorded times; 0: at once."""
    allow_admin: bool = False
    create_topics: bool = False
    same_cluster: bool = False
    repeat: int = 1
    clients: int = 1
    record_path: Path | None = None

    @property
    def is_load(self) -> bool:
        """True if there are copies, whose records mix: only errors are compared then."""
        return self.repeat * self.clients > 1

    def renamings(self, client: int) -> Iterator[Renaming]:
        """Yield the names of each copy that a client sends, one after the other."""
        for time in range(self.repeat):
            suffix = f"-{client + 1}-{time + 1}" if self.is_load else ""
            yield attrs.evolve(self.renaming, suffix=suffix)


async def send(
    options: SendOptions,
    plan: SendPlan,
    read: Callable[[], Iterable[SendItem | None]],
    log: Callable[[str], None],
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
    clock = Clock()
    failure: BaseException | None = None
    async with _recording(options.record_path, clock, log) as recorder:
        emit = None if recorder is None else recorder.put
        sender = Sender(options.bootstrap, secure, emit, clock)
        sent = sender.sent
        sent.all_records = plan.records
        try:
            with ending_signals() as signals:
                async with trio.open_nursery() as nursery:
                    sender.nursery = nursery
                    for task in (*secure.tasks, partial(_look, look, sent)):
                        nursery.start_soon(task)
                    if signals is not None:
                        nursery.start_soon(_until_signal, signals, sent, nursery.cancel_scope)
                    await _begin(sender, options, plan, log)
                    sent.began = trio.current_time()
                    async with trio.open_nursery() as copies:
                        if inputs is not None:
                            feeding = Feeding(sender, options.renaming, options.factor)
                            copies.start_soon(feeding.run, inputs)
                        for client in range(0 if inputs else options.clients):
                            copies.start_soon(_send_copies, sender, options, client, read)
                    nursery.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            failure = _first(group)
        sent.seconds = trio.current_time() - sent.began if sent.began else 0.0
    if isinstance(failure, ClusterGone):
        sent.end(str(failure))
    elif failure is not None:
        raise failure from None
    if recorder is not None and recorder.failure:
        lost = f"{recorder.failure}; {recorder.frames_lost} frames are not recorded"
        sent.ended = f"{sent.ended}; {lost}" if sent.ended else lost
    return sent


async def _send_copies(
    sender: Sender, options: SendOptions, client: int, read: Callable[[], Iterable[SendItem | None]]
) -> None:
    for renaming in options.renamings(client):
        copy = SentConversation(
            sender, renaming, options.factor, options.allow_admin, not options.is_load,
            options.create_topics,
        )  # fmt: skip
        await copy.run(read())


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _until_signal(signals: AsyncIterator[int], sent: Sent, scope: trio.CancelScope) -> None:
    async for _ in signals:
        sent.end("stopped by a signal")
        scope.cancel()
        return


async def _look(look: Callable[[Sent], None], sent: Sent) -> None:
    while True:
        await trio.sleep(_LOOK_SECONDS)
        if sent.began:
            sent.seconds = trio.current_time() - sent.began
            look(sent)


async def _begin(
    sender: Sender, options: SendOptions, plan: SendPlan, log: Callable[[str], None]
) -> None:
    """Look at the cluster before anything is sent.

    Raises: NotSent, ClusterGone.
    """
    rename = options.renaming.topic
    renamed = {rename(name): count for name, count in plan.needed.items()}
    await sender.begin(renamed)
    if not options.same_cluster and await _is_recorded(plan, sender, options.bootstrap):
        what = "this is the cluster of the recording"
        raise NotSent(f"{what}: give another --bootstrap, or --same-cluster to send to it")
    created = {rename(name) for name in plan.created if options.allow_admin}
    missing = {
        name: count
        for name, count in renamed.items()
        if name not in sender.cluster.topic_ids and name not in created
    }
    if missing and options.create_topics:
        await _create(sender, missing)
    elif missing and not plan.partitions:
        what = f"the cluster lacks topics of the recording: {_few(missing)}"
        log(f"{what} (--create-topics creates them)")
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


async def _create(sender: Sender, topics: dict[str, int]) -> None:
    """Create topics, and wait until they have leaders.

    Raises: NotSent, ClusterGone.
    """
    for body in creations(topics):
        answer = await sender.ask(api_key("CreateTopics") or 0, None, body)
        for each in answer.topics:
            if each.error_code not in (NONE, TOPIC_ALREADY_EXISTS):
                why = each.error_message or error_name(each.error_code)
                raise NotSent(f"--create-topics: {each.name}: {why}")
    with trio.move_on_after(PASSES_SECONDS):
        wanted = {(name, each) for name in topics for each in range(topics[name] or 1)}
        while missing := {name for name, _ in wanted - sender.cluster.leaders.keys()}:
            await sender.learn_topics(missing)
            await trio.sleep(AGAIN_SECONDS)


@asynccontextmanager
async def _recording(
    path: Path | None, clock: Clock, log: Callable[[str], None]
) -> AsyncGenerator[Recorder | None]:
    """Record what is sent and answered, if it is to be."""
    if path is None:
        yield None
        return
    make_folder(path.parent)
    recording = Recording(
        path, start_ns=clock(), schema_id=schema.schema_id(), library_version=__version__, log=log
    )
    recorder = Recorder(recording, log, lossless=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        try:
            yield recorder
        finally:
            nursery.cancel_scope.cancel()
    await recorder.finish()
