"""Run the proxy: listeners, pump and recorder together, from the first byte to the last.

::

    resolve, listen, open the recording ─▶ pump ∥ recorder ∥ signals ─▶ ready(address)
                                             │ SIGINT, SIGTERM
                                             ▼
                       drain (5 s at most) ─▶ last flush ─▶ Summary

A second signal ends it at once; even then the recording is completed.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from kproxy import __version__
from kproxy.exchange.entries import Entry, Frame, Note
from kproxy.exchange.filter import Filter
from kproxy.exchange.selecting import Selection
from kproxy.net import listeners, stalls
from kproxy.net.accept import CONNECTIONS_MAX
from kproxy.net.descriptors import Descriptors, TooFew, raise_limit
from kproxy.net.dial import leads_to, why
from kproxy.net.discovery import discover
from kproxy.net.listeners import Listening
from kproxy.net.pump import Pump, defect
from kproxy.net.recorder import BACKLOG_BYTES_MAX, Intake, Recorder
from kproxy.net.start_checks import start_warnings
from kproxy.net.traffic import Traffic
from kproxy.protocol import schema
from kproxy.proxy.actions import Address
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rules, rules_note
from kproxy.proxy.machine import OpenMachine
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings
from kproxy.recording.files import make_folder
from kproxy.recording.rotation import Recording

DRAIN_SECONDS = 5.0
_FEW_CONNECTIONS = 1000
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Unusable(Exception):
    """What the user wants cannot be served; the text says why, and what to change."""


class RecordingFailed(Exception):
    """The recording cannot go on, and the user wants the proxy to end then."""


class Observer(Protocol):
    """Looks on from inside of the process."""

    def began(self, note: Callable[[Note], None]) -> None:
        """Recording begins; `note` puts a note of the observer's into it."""
        ...

    def take(self, entries: list[Entry]) -> None:
        """These have passed; entries come as soon as they are made, recorded or not."""
        ...


@attrs.frozen
class Options:
    """What `kproxy run` is asked to do."""

    settings: Settings
    listen_host: str = "127.0.0.1"
    record_path: Path | None = None
    """Where the recording begins; None records nothing."""
    rotate_bytes: int | None = 1 << 30
    rotate_seconds: float | None = 3600.0
    lossless: bool = False
    discover: bool = True
    """Whether to ask the brokers at the start which brokers there are."""
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    connections_max: int = CONNECTIONS_MAX
    control: Address | None = None
    """Where to serve metrics and take commands; None does not."""
    control_token: str | None = None
    """What a request there must carry."""
    control_recordings: Path | None = None
    """The folder below which rules that come there may name recordings; None: no recording."""
    only: Filter | None = None
    """Which exchanges to record; None: all."""
    rules: Rules = attrs.field(factory=Rules)
    """What to break."""
    observer: Observer | None = None
    """Who looks on from inside of this process."""
    compression: str = "adaptive"
    """Of the recording: "none" for one that is kept in git."""
    drain_seconds: float = DRAIN_SECONDS
    """How long a stop waits for responses that are due."""


@attrs.frozen
class Summary:
    """What a run has done."""

    frames_recorded: int
    frames_lost: int
    paths: Sequence[Path]


def monotonic_clock() -> Callable[[], int]:
    """Return a clock of nanoseconds since the Unix epoch that never runs backwards."""
    base = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns
    return lambda: base + monotonic_ns()


async def serve(
    options: Options,
    ready: Callable[[str], None],
    log: Callable[[str], None],
    watch: Callable[[Iterable[Frame | Note]], None] | None = None,
    stop: trio.Event | None = None,
) -> Summary:
    """Run until a signal, or until `stop` is set; say the bootstrap address through `ready`, and
    show the entries to `watch` as they pass.

    Raises:
        Unusable: no bootstrap address resolves, or all are our own; other machines reach the
            control address, and there is no token; the system allows too few open files.
        ListenError: the listen address cannot be used.
        RecordingError, OSError: the recording cannot be created.
        RecordingFailed: `lossless`, and the disk refuses.
    """
    settings = options.settings
    descriptors = _descriptors(options.connections_max, log)
    await _check_bootstrap(settings.bootstrap, log)
    interface = await listeners.resolve(options.listen_host)
    bootstrap = interface.open(settings.listen_port)
    clock = monotonic_clock()
    control: list[trio.SocketListener] = []
    # From before there is a recording on: a signal must not end it without completing that.
    with ending_signals() as signals:
        try:
            await _check_loops(settings.bootstrap, bootstrap, log)
            await _warn(options, interface.loopback, log)
            control = await control_listeners(options.control, options.control_token)
            recording = _open_recording(options, clock(), log)
        except BaseException:
            for listener in (*bootstrap, *control):
                listener.socket.close()
            raise
        traffic = Traffic() if options.control else None
        recorder = _recorder(options, recording, traffic, clock(), log, watch)
        cluster = Cluster(settings, options.rules)
        pump = Pump(cluster, interface, recorder, clock, log, options.connections_max, descriptors)
        port = bootstrap[0].socket.getsockname()[1]
        host = settings.advertised_host or reachable(options.listen_host)
        try:
            async with trio.open_nursery() as nursery:

                async def until_done(run: Callable[..., Any], *args: Any, **named: Any) -> None:
                    await run(*args, **named)
                    nursery.cancel_scope.cancel()

                await nursery.start(until_done, pump.serve, bootstrap)
                nursery.start_soon(until_done, recorder.run)
                nursery.start_soon(_tell_stalls, options, clock, recorder)
                nursery.start_soon(end_at_signals, signals, pump, nursery.cancel_scope, log)
                if traffic is not None and options.control is not None:
                    place = options.control[0], options.control_token, control
                    changed = options.rules, options.control_recordings
                    sources = pump, cluster, recorder, recording, traffic, *changed
                    address = address_text(host, port)
                    nursery.start_soon(control_server(*place, log, address, clock, *sources))
                if stop is not None:
                    nursery.start_soon(_drain_when, stop, pump, options.drain_seconds)
                if options.discover:
                    nursery.start_soon(_discover, settings.bootstrap, cluster, pump, clock, log)
                ready(address_text(host, port))
        finally:
            finish(recorder, recording, log)
    if recorder.failure:
        lost = f"{recorder.frames_lost} frames that passed are not recorded"
        raise RecordingFailed(f"{recorder.failure}; {lost}")
    paths = recording.paths if recording else []
    return Summary(recorder.frames_recorded, recorder.frames_lost, paths)


async def _discover(
    bootstrap: Sequence[Address],
    cluster: Cluster,
    pump: Pump,
    clock: Callable[[], int],
    log: Callable[[str], None],
) -> None:
    """Open the listeners of the brokers that there are, before a response names them."""

    def discovered(brokers: list[BrokerAddress]) -> None:
        pump.perform(cluster.discovered(brokers, clock()))

    try:
        await discover(bootstrap, discovered, log, pump.acceptor.listening)
    except Exception as error:
        log(f"the first look at the cluster failed {defect(error)}")


async def control_listeners(
    control: Address | None, token: str | None
) -> list[trio.SocketListener]:
    """Open the control address, if there is one.

    Raises:
        Unusable: other machines reach it, and there is no token.
        ListenError: it cannot be used.
    """
    if control is None:
        return []
    host, port = control
    interface = await listeners.resolve(host, "--control")
    if not interface.loopback and not token:
        raise Unusable(
            f"--control {host}: other machines can reach that; set KPROXY_CONTROL_TOKEN to what"
            " they must send, or use 127.0.0.1"
        )
    return interface.open(port)


def control_server(
    host: str,
    token: str | None,
    listening: Sequence[trio.SocketListener],
    log: Callable[[str], None],
    address: str,
    clock: Callable[[], int],
    pump: Pump,
    machine: OpenMachine,
    recorder: Recorder,
    recording: Recording | None,
    traffic: Traffic,
    rules: Rules,
    recordings: Path | None,
) -> Callable[[], Awaitable[None]]:
    """Return what serves the control address; clients connect to `address`."""
    # Imported only for those who want it: that takes 20 ms and 5 MiB.
    from kproxy.net.control import Control
    from kproxy.net.control_api import Api
    from kproxy.net.metrics import Sources, exposition

    here = address_text(reachable(host), listening[0].socket.getsockname()[1])
    log(f"metrics: http://{here}/metrics{', for who sends the token' if token else ''}")
    api = Api(rules, machine, pump, recorder, recording, address, clock, clock(), recordings)
    sources = Sources(pump, machine, recorder, recording, traffic, rules)
    routes = {"/metrics": {"GET": exposition(sources)}, **api.routes()}
    return functools.partial(Control(routes, host, token, log).serve, listening)


def _recorder(
    options: Options,
    recording: Recording | None,
    traffic: Traffic | None,
    start_ns: int,
    log: Callable[[str], None],
    watch: Callable[[Iterable[Frame | Note]], None] | None,
) -> Recorder:
    """Return the recorder; the first thing that it has recorded is which rules there are."""
    observer = options.observer
    intake = _intake(options.only, start_ns, traffic, observer)
    limit = options.backlog_bytes_max
    recorder = Recorder(recording, log, watch, options.lossless, limit, intake)
    if options.rules.rules:
        recorder.note(rules_note(options.rules, start_ns))
    if observer is not None:
        observer.began(recorder.note)
    return recorder


async def _tell_stalls(options: Options, clock: Callable[[], int], recorder: Recorder) -> None:
    """Have the recording say when kproxy stood still; those of tests are to be alike."""
    if options.record_path is not None and options.observer is None:
        await stalls.watch(clock, recorder.note)


def _intake(
    only: Filter | None,
    start_ns: int,
    traffic: Traffic | None,
    observer: Observer | None,
) -> Intake | None:
    """What entries pass through before they are recorded."""
    if only is None and traffic is None and observer is None:
        return None
    selection = None if only is None else Selection(only.starting(start_ns))

    def intake(entries: list[Entry]) -> list[Entry]:
        if traffic is not None:
            traffic.count(entries)
        if observer is not None:
            observer.take(entries)
        return entries if selection is None else selection.keep(entries)

    return intake


def _open_recording(
    options: Options, start_ns: int, log: Callable[[str], None]
) -> Recording | None:
    if options.record_path is None:
        return None
    make_folder(options.record_path.parent)
    return Recording(
        options.record_path,
        start_ns=start_ns,
        schema_id=schema.schema_id(),
        library_version=__version__,
        compression=options.compression,
        rotate_bytes=options.rotate_bytes,
        rotate_ns=None if options.rotate_seconds is None else int(options.rotate_seconds * 1e9),
        log=log,
    )


def _descriptors(connections_max: int, log: Callable[[str], None]) -> Descriptors:
    """Allow for as many open files as so many connections need, or say how few there can be."""
    try:
        descriptors = raise_limit(connections_max)
    except TooFew as error:
        raise Unusable(str(error)) from error
    possible = descriptors.connections_max(1)
    # Where it is the default that cannot be reached, that matters only to those who come close.
    if possible < (connections_max if connections_max != CONNECTIONS_MAX else _FEW_CONNECTIONS):
        files = f"ulimit -n {descriptors.files_max}"
        log(f"{files} allows {possible} connections at most, raise it")
    return descriptors


def finish(recorder: Recorder, recording: Recording | None, log: Callable[[str], None]) -> None:
    """Write what is left, and complete the recording."""
    if recording is None:
        recorder.finish()
        return
    recording.prepare_close()
    recorder.finish()
    try:
        recording.close()
    except OSError as error:
        log(f"cannot complete the recording ({error.strerror}); kproxy recover does that later")


@contextlib.contextmanager
def ending_signals() -> Iterator[AsyncIterator[int]]:
    """The signals that end a run; none in a thread that is not the main one, which gets none."""
    if threading.current_thread() is threading.main_thread():
        with trio.open_signal_receiver(*ENDING) as signals:
            yield signals
    else:
        silent, signals = trio.open_memory_channel[int](0)
        with silent, signals:
            yield signals


async def end_at_signals(
    signals: AsyncIterator[int],
    pump: Pump,
    scope: trio.CancelScope,
    log: Callable[[str], None],
) -> None:
    """Drain at the first signal, end at the second."""
    async with trio.open_nursery() as nursery:
        async for _ in signals:
            if pump.draining:
                scope.cancel()
                return
            if pump.busy:
                log("answers that are due have 5 s; press Ctrl-C again to end at once")
            nursery.start_soon(pump.drain, DRAIN_SECONDS)


async def _drain_when(stop: trio.Event, pump: Pump, seconds: float) -> None:
    await stop.wait()
    await pump.drain(seconds)


async def _warn(options: Options, loopback: bool, log: Callable[[str], None]) -> None:
    host = options.settings.advertised_host
    async for text in start_warnings(options.listen_host, loopback, host):
        log(text)


async def _check_bootstrap(bootstrap: Sequence[Address], log: Callable[[str], None]) -> None:
    """Resolve the bootstrap addresses, so that a typing mistake shows before a client does."""
    unresolved = []
    for host, port in bootstrap:
        try:
            await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:  # the latter for a name that no host can have
            unresolved.append(f"{host}: {why(error)}")
    if len(unresolved) == len(bootstrap):
        raise Unusable(
            f"cannot resolve {'; '.join(unresolved)}; check the address for typing mistakes"
        )
    for text in unresolved:
        log(f"cannot resolve {text}; going on with the other bootstrap addresses")


async def _check_loops(
    bootstrap: Sequence[Address],
    listening: Sequence[trio.SocketListener],
    log: Callable[[str], None],
) -> None:
    """See that the bootstrap addresses lead to others than ourselves."""
    ours = Listening()
    ours.add(listening)
    loops = [address for address in bootstrap if await leads_to(address, ours)]
    names = ", ".join(address_text(*address) for address in loops)
    text = f"--bootstrap {names} is where kproxy itself listens"
    if len(loops) == len(bootstrap):
        raise Unusable(f"{text}; give the address of a broker, or another --listen")
    if loops:
        log(f"{text}; going on with the other bootstrap addresses")


def address_text(host: str, port: int) -> str:
    """HOST:PORT as people write it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def reachable(host: str) -> str:
    """A host that a client on this machine can connect to where we listen on all addresses."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
