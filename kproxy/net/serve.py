"""Run the proxy, or a replaying broker: resolve, listen, open the recording, and run all parts
(`running`).

::

    resolve, listen ─▶ recording, recorder, pump ─▶ its first listeners ─▶ ready(address) ─▶ …
                                                                       … ─▶ RunSummary
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import trio

from kproxy import __version__
from kproxy.defects import defect
from kproxy.exchange import notes
from kproxy.exchange.entries import Entry, Frame, Note
from kproxy.exchange.filter import Filter
from kproxy.exchange.selecting import EntrySelection
from kproxy.exchange.words.wording import age
from kproxy.levels import Logger
from kproxy.net import listeners, stalls
from kproxy.net.accept import CONNECTIONS_MAX
from kproxy.net.addresses import listening_at, reachable
from kproxy.net.clock import Clock
from kproxy.net.control_address import OperatorAddresses, control_servers, open_addresses
from kproxy.net.discovery import discover
from kproxy.net.operated import Operated
from kproxy.net.pump import Pump
from kproxy.net.recorder import BACKLOG_BYTES_MAX, Intake, Recorder
from kproxy.net.reloading import ReadClient, ReadRules, Reloading
from kproxy.net.retaining import Retaining
from kproxy.net.running import DRAIN_SECONDS, Running, Task, ending_signals, open_files, run
from kproxy.net.schema_process import SchemaProcess, SchemaSettings
from kproxy.net.security import Security, security
from kproxy.net.seen_nodes import UNKNOWN, Named, SeenNodes
from kproxy.net.start_checks import check_bootstrap, check_loops, warn
from kproxy.net.tls.credentials import Credentials
from kproxy.net.tls.settings import BrokerTls, ListenTls
from kproxy.net.traffic import Traffic
from kproxy.proxy.actions import Action, Address
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.faults import Rules, rules_note
from kproxy.proxy.machine import StartingMachine
from kproxy.proxy.rewrite import BrokerAddress
from kproxy.proxy.settings import Settings
from kproxy.proxy.versions import newest_with_addresses
from kproxy.recording.files import make_folder
from kproxy.recording.keeping import KeepLimits
from kproxy.recording.retention import Retention
from kproxy.recording.rotation import Recording
from kproxy.wire.protocol import schema


class RecordingFailed(Exception):
    """A recording that cannot go on, where the user wants the proxy to end then."""


class RecordingUnfinished(Exception):
    """A recording that is not complete, because the disk hangs at the end."""


class Observer(Protocol):
    """Sees all entries, from inside of the process."""

    def began(self, start_ns: int, note: Callable[[Note], None], clock: Clock) -> None:
        """Take the start of the recording, on the clock of all entries; `note` puts a note of the
        observer's into it."""
        ...

    def take(self, entries: Sequence[Entry]) -> None:
        """Take entries as soon as they are made, recorded or not."""
        ...


@attrs.frozen
class Options:
    """The options of `kproxy run`, and of `kproxy replay`."""

    settings: Settings
    listen_host: str = "127.0.0.1"
    record_path: Path | None = None
    """The first file of the recording; None records nothing."""
    rotate_bytes: int | None = 1 << 30
    rotate_seconds: float | None = 3600.0
    keep: KeepLimits | None = None
    """The limits of the folder of recordings; None: nothing is removed."""
    keep_by: str = ""
    """The options that set these limits, as people type them."""
    keep_matching: Filter | None = None
    """The exchanges to keep of files that are removed; None: none."""
    lossless: bool = False
    discover: bool = True
    """Request the list of brokers at the start."""
    nodes_folder: Path | None = None
    """The folder for the brokers of clusters that want a login first; None: they are not kept."""
    backlog_bytes_max: int = BACKLOG_BYTES_MAX
    connections_max: int = CONNECTIONS_MAX
    control: Address | None = None
    """The control address, with metrics; None serves none."""
    control_token: str | None = None
    """The token that a request at the control address must carry."""
    health: Address | None = None
    """The address that tells only whether kproxy lives and is ready; None: there is none."""
    control_recordings: Path | None = None
    """The folder of the recordings that rules from the control API may name; None: no recording."""
    only: Filter | None = None
    """The filter for the exchanges to record; None: all."""
    rules: Rules = attrs.field(factory=Rules)
    """The fault rules."""
    read_rules: ReadRules | None = None
    """Reads the rules of the start again, at SIGHUP; None: no file has any."""
    read_client: ReadClient | None = None
    """Reads TLS to brokers and the credentials again, then; None: no properties have them."""
    observer: Observer | None = None
    """An observer in this process."""
    compression: str = "adaptive"
    """The compression of the recording: "none" for one that is kept in git."""
    drain_seconds: float = DRAIN_SECONDS
    """The time for which a stop waits for responses that are due."""
    broker_tls: BrokerTls | None = None
    """TLS to brokers; None: plaintext."""
    listen_tls: ListenTls | None = None
    """TLS to clients; None: plaintext."""
    credentials: Credentials | None = None
    """kproxy's own for the cluster; None: it has none."""
    authenticate: bool = False
    """Log in with them for clients, which do not do it themselves."""
    schemas: SchemaSettings | None = None
    """Where the schemas of the recording come from; None: they are not collected."""
    replaying: StartingMachine | None = None
    """The broker of a recording, which has settings of its own; None: a proxy before real ones."""
    replayed: Sequence[Path] = ()
    """The files of that recording."""


@attrs.frozen
class RunSummary:
    """The result of a run."""

    frames_recorded: int
    frames_lost: int
    paths: Sequence[Path]
    """The files of the recording, without those that were removed …"""
    files_removed: int = 0
    """… and the number of files that were, earlier ones among them."""


async def serve(
    options: Options,
    ready: Callable[[str], None],
    log: Logger,
    watch: Callable[[Iterable[Frame | Note]], None] | None = None,
    stop: trio.Event | None = None,
) -> RunSummary:
    """Run until a signal, or until `stop` is set; call `ready` with the bootstrap address, and show
    the entries to `watch` as they pass.

    Raises:
        Unusable: no bootstrap address resolves, or all are our own; other machines reach the
            control address, and there is no token; the system allows too few open files.
        ListenError: the listen address cannot be used.
        RecordingError, OSError: the recording cannot be created.
        RecordingFailed: `lossless`, and the disk refuses, or kproxy has a defect.
        RecordingUnfinished: the disk does not take the end of the recording in time.
        TlsError: a certificate, a key or a store cannot be used.
    """
    secure = _security(options, log)
    descriptors = open_files(options.connections_max, log)
    await check_bootstrap(options.settings.bootstrap, log)
    interface = await listeners.resolve(options.listen_host)
    bootstrap = interface.open(options.settings.listen_port)
    clock = Clock()
    # Before the recording is opened: a signal must not end the run without completing it.
    with ending_signals() as signals:
        with listeners.closed_on_failure(bootstrap):
            addresses = await _operator_addresses(options, interface, bootstrap, log)
            with listeners.closed_on_failure(addresses.listening):
                started_ns = clock()
                recording, retention = open_recording(options, started_ns, log)
        traffic = Traffic() if addresses.control else None
        recorder = _recorder(options, recording, traffic, clock, started_ns, log, watch)
        machine = options.replaying or _cluster(options, bool(addresses.listening))
        cluster = machine if isinstance(machine, Cluster) else None
        pump = Pump(
            machine, interface, recorder, clock, log, options.connections_max, descriptors, secure,
            lingers=options.observer is None,
        )  # fmt: skip
        schemas = _schemas(options, cluster, recorder, clock, log)
        tasks: list[Task] = list(secure.tasks)
        if options.record_path or not options.observer:  # others are over in seconds
            tasks.append(partial(_watch_time, options, clock, recorder, log))
        if retention is not None:
            tasks.append(Retaining(retention, options.keep_matching, recorder, clock, log).run)
        advertised = options.settings.advertised_host or reachable(options.listen_host)
        operated = Operated(
            pump=pump, machine=machine, recorder=recorder, recording=recording,
            retention=retention, replayed=options.replayed, traffic=traffic or Traffic(),
            failures=secure.failures, rules=options.rules, started_ns=started_ns, clock=clock,
            address=listening_at(advertised, bootstrap), wall_ns=clock.wall_ns,
            recordings=options.control_recordings,
        )  # fmt: skip
        tasks += control_servers(addresses, operated, log)
        first = _first(options, machine, pump, secure, clock, log, tasks)
        reloading = Reloading(
            secure, options.rules, options.read_rules, recorder.note, clock, log,
            options.read_client,
            is_ending=lambda: pump.draining,
            probe_anew=lambda: cluster and pump.perform(cluster.probe_anew(clock())),
        )  # fmt: skip
        running = Running(
            pump, recorder, bootstrap, log, signals, stop, options.drain_seconds, tasks, schemas,
            reloading.reload,
        )  # fmt: skip
        complete = await run(running, partial(_begin, operated, first, ready))
    return _summary(recorder, recording, retention, complete)


async def _operator_addresses(
    options: Options,
    interface: listeners.Interface,
    bootstrap: Sequence[socket.socket],
    log: Logger,
) -> OperatorAddresses:
    """Open the operator's addresses, once it is clear that kproxy may listen where it does."""
    await check_loops(options.settings.bootstrap, bootstrap, log)
    if not options.replaying:
        advertised = options.settings.advertised_host
        await warn(options.listen_host, interface.loopback, advertised, log)
    return await open_addresses(options.control, options.control_token, options.health)


def _summary(
    recorder: Recorder, recording: Recording | None, retention: Retention | None, complete: bool
) -> RunSummary:
    """Return the result of a run.

    Raises:
        RecordingFailed, RecordingUnfinished: see `serve`.
    """
    lost = recorder.frames_lost
    if recording is not None and not complete:
        lost += recorder.frames_unwritten
        path = recording.paths[-1]
        raise RecordingUnfinished(
            f"the disk hangs, and {path} has no end: {lost} frames that passed are not recorded;"
            f" kproxy recover {path} completes it, as far as it goes"
        )
    if recorder.failure:
        raise RecordingFailed(f"{recorder.failure}; {lost} frames that passed are not recorded")
    paths = recording.paths if recording else []
    removed = retention.files_removed if retention else 0
    return RunSummary(recorder.frames_recorded, lost, paths, removed)


def _first(
    options: Options,
    machine: StartingMachine | Cluster,
    pump: Pump,
    secure: Security,
    clock: Clock,
    log: Logger,
    tasks: list[Task],
) -> Callable[[], list[Action]]:
    """Return the event that opens the first listeners; add the task that looks for more brokers."""
    if not isinstance(machine, Cluster):
        return partial(machine.start, clock())
    settings, seen = options.settings, None
    # To ports that differ from run to run nobody comes back.
    if options.nodes_folder and (settings.listen_port or settings.node_ports):
        seen = SeenNodes(options.nodes_folder, settings.bootstrap, log)
    remembered = {} if seen is None else seen.load()
    discovering = partial(_discover, options, bool(remembered), seen, machine, pump, secure)
    tasks.append(partial(discovering, clock=clock, log=log))
    return partial(machine.restored, remembered)


def _begin(
    operated: Operated, first: Callable[[], list[Action]], ready: Callable[[str], None]
) -> None:
    """Listen for the brokers that are known at the start; report the bootstrap address."""
    operated.pump.perform(first())
    ready(operated.address)


async def _discover(
    options: Options,
    remembers: bool,
    seen: SeenNodes | None,
    cluster: Cluster,
    pump: Pump,
    secure: Security,
    clock: Clock,
    log: Logger,
) -> None:
    """Open the listeners of all brokers before a response names them; where the cluster does not
    name them, keep those that responses name. `remembers`: there are some of an earlier run."""
    if not options.discover:
        return
    settings = options.settings
    are_named = False

    def discovered(brokers: list[BrokerAddress]) -> None:
        nonlocal are_named
        are_named = bool(brokers)
        pump.perform(cluster.discovered(brokers, clock()))

    try:
        await discover(settings.bootstrap, discovered, log, pump.acceptor.listening, secure.query)
        if are_named:
            return
        if not (remembers or settings.node_ports or cluster.named):
            log(UNKNOWN, "warning")
        if seen is not None:
            await seen.keep(partial(_named, cluster, clock))
    except Exception as error:
        log(f"the first look at the cluster failed {defect(error)}")


def _named(cluster: Cluster, clock: Clock) -> dict[int, Named]:
    """Return the brokers that responses have named, by node id."""
    named = cluster.named.items()
    return {node_id: (broker, clock.wall_ns(at_ns) / 1e9) for node_id, (broker, at_ns) in named}


def _cluster(options: Options, is_watched: bool) -> Cluster:
    """Return the proxy, with the probes of brokers, which the operator's addresses ask for."""
    newest_with_addresses()  # 20 ms: now, and not while the first client waits
    logs_in = bool(options.credentials)
    settings = attrs.evolve(options.settings, probes=is_watched, probes_log_in=logs_in)
    return Cluster(settings, options.rules)


def _recorder(
    options: Options,
    recording: Recording | None,
    traffic: Traffic | None,
    clock: Clock,
    start_ns: int,
    log: Logger,
    watch: Callable[[Iterable[Frame | Note]], None] | None,
) -> Recorder:
    """Return the recorder; its first entry is the note of the rules."""
    observer = options.observer
    intake = _intake(options.only, start_ns, traffic, observer)
    limit = options.backlog_bytes_max
    recorder = Recorder(recording, log, watch, options.lossless, limit, intake, clock)
    if options.rules.rules:
        recorder.note(rules_note(options.rules, start_ns))
    if observer is not None:
        observer.began(start_ns, recorder.note, clock)
    return recorder


def _schemas(
    options: Options,
    cluster: Cluster | None,
    recorder: Recorder,
    clock: Callable[[], int],
    log: Logger,
) -> SchemaProcess | None:
    if options.schemas is None or options.record_path is None or cluster is None:
        return None

    def found(schema: dict[str, Any]) -> None:
        note = notes.schema(clock(), schema)
        cluster.learn(note)
        recorder.note(note)

    return SchemaProcess(options.schemas, options.record_path, recorder, found, log)


async def _watch_time(options: Options, clock: Clock, recorder: Recorder, log: Logger) -> None:
    """Note in the recording when the system's clock was set, and when kproxy stood still; the
    latter not in those of tests, which must be alike."""

    def note_step() -> None:
        if step_ns := clock.check():
            recorder.note(notes.clock_step(clock(), step_ns))
            by = f"{'forward' if step_ns > 0 else 'back'} by {age(abs(step_ns) / 1e6)}"
            asleep = ", or the machine slept" if step_ns > 0 else ""
            log(f"the system's clock was set {by}{asleep}: later times follow it", "warning")

    noted = _ignore if options.observer or not options.record_path else recorder.note
    await stalls.watch(clock, noted, note_step)


def _ignore(note: Note) -> None:
    """Ignore a stall."""


def _intake(
    only: Filter | None,
    start_ns: int,
    traffic: Traffic | None,
    observer: Observer | None,
) -> Intake | None:
    """Return the function that entries pass before they are recorded; None: there is none."""
    if only is None and traffic is None and observer is None:
        return None
    selection = None if only is None else EntrySelection(only.starting(start_ns))

    def intake(entries: Sequence[Entry]) -> Sequence[Entry]:
        if traffic is not None:
            traffic.count(entries)
        if observer is not None:
            observer.take(entries)
        return entries if selection is None else selection.keep(entries)

    return intake


def open_recording(
    options: Options, start_ns: int, log: Logger
) -> tuple[Recording | None, Retention | None]:
    """Begin the recording, and what keeps its folder within limits, if there are to be any."""
    if options.record_path is None:
        return None, None
    make_folder(options.record_path.parent)
    recording = Recording(
        options.record_path,
        start_ns=start_ns,
        schema_id=schema.schema_id(),
        library_version=__version__,
        compression=options.compression,
        metadata={"keep": options.keep_by} if options.keep else None,
        rotate_bytes=options.rotate_bytes,
        rotate_ns=None if options.rotate_seconds is None else int(options.rotate_seconds * 1e9),
        log=log,
    )
    if options.keep is None:
        return recording, None
    return recording, Retention(recording, options.keep, options.keep_by, log)


def _security(options: Options, log: Logger) -> Security:
    """Return how both sides are spoken to.

    Raises:
        TlsError: a certificate, a key or a store cannot be used.
    """
    advertised = options.settings.advertised_host
    names = [*([advertised] if advertised else ()), options.listen_host]
    return security(
        options.broker_tls,
        options.listen_tls,
        names,
        log,
        credentials=options.credentials,
        authenticate=options.authenticate,
    )
