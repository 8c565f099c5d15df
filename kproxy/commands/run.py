"""`kproxy run`: the proxy."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kproxy.addresses import parse_brokers
from kproxy.commands import options as kinds
from kproxy.commands.child import (
    UNMET,
    UNREACHED,
    Child,
    NotStarted,
    add_child_options,
    held_signals,
)
from kproxy.commands.config import add_config_options, print_checked
from kproxy.commands.faults import (
    add_control_options,
    add_fault_options,
    announce_faults,
    control_recordings,
    control_token,
    fault_rules,
    missed_faults,
    report_faults,
    reread_rules,
)
from kproxy.commands.keeping import keep, keep_free, keep_limits, rotation_within
from kproxy.commands.options import CAPTURES, UsageError, declare
from kproxy.commands.place import add_place_options, listen_address, node_ports
from kproxy.commands.schemas import add_schema_options, schema_access, schema_sources
from kproxy.commands.tls import (
    add_broker_tls_options,
    add_listen_tls_options,
    broker_tls,
    listen_tls,
)
from kproxy.levels import Level, Logger, keeping, silent

if TYPE_CHECKING:
    from kproxy.look.lines.console import Console
    from kproxy.net.reloading import ReadClient
    from kproxy.net.schema_process import SchemaSettings
    from kproxy.net.serve import Options, RunSummary
    from kproxy.net.tls.credentials import Credentials
    from kproxy.net.tls.settings import BrokerTls
    from kproxy.proxy.actions import Address


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.usage = "%(prog)s [OPTION…] [-- COMMAND]"
    parser.description = "Stand between Kafka clients and a cluster, and record what passes."
    parser.epilog = (
        "The first line on stdout is the bootstrap address to give to your application;"
        " what passes follows on a terminal. Logs go to stderr. Ctrl-C stops it: answers that are"
        " due have 5 s; a second Ctrl-C ends it at once. With a command behind -- it lasts as long"
        f" as that, and ends with its exit code, or {UNMET} where the command succeeded"
        " and --expect-faults was not met."
    )
    _add_place(parser)
    add_broker_tls_options(parser)
    add_listen_tls_options(parser)
    _add_recording(parser)
    add_child_options(parser)
    add_fault_options(parser)
    declare(
        parser.add_argument_group("its limits").add_argument,
        """
        --idle-timeout TIME = 10min  close a connection on which nothing arrives so long (default
            %(default)s)
        --connections-max N = 10000  close further connections at once (default %(default)s)
        --pending-requests-max N = 1000  with so many requests unanswered on a connection, wait for
            answers before reading on (default %(default)s)
        --request-bytes-max SIZE = 100MiB  end a connection that sends a larger request, as
            socket.request.max.bytes does (default %(default)s)
        --backlog-bytes-max SIZE = 64MiB  memory for what the disk has not taken yet; while a disk
            hangs, what is over it is not recorded, and counted (default %(default)s)
        --held-bytes-max SIZE = 256MiB  memory for incomplete frames and for what waits for a
            listener or for its time, over all connections; what is over it ends its connection
            (default %(default)s)
        """,
        # A SASL token may go without a response, which shows only when the next request has one.
        pending_requests_max=partial(kinds.count, least=2),
    )
    declare(
        parser.add_argument,
        """
        --quiet  do not show what passes
        --local  show times of day in the zone of this machine
        """,
    )
    add_control_options(parser)
    add_config_options(parser.add_argument)


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it stands")
    declare(
        group.add_argument,
        """
        --bootstrap HOST:PORT[,…]  brokers of the cluster to begin with, tried in turn (port 9092 if
            none is given)
        --config FILE  FILE.toml: options (kproxy help service); else properties of a client, Java's
            or librdkafka's: where the cluster is, TLS to it, and credentials for it
        --authenticate  log in at the brokers for clients, which must not do it then; without
            --config the credentials are in KPROXY_SASL_USERNAME and KPROXY_SASL_PASSWORD (kproxy
            help tls)
        """,
        bootstrap=parse_brokers,
    )
    add_place_options(group.add_argument)


def _add_recording(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what it records")
    where = group.add_mutually_exclusive_group()
    declare(
        where.add_argument,
        f"""
        --record FILE  the recording (default: {CAPTURES}/, named by the time); never overwritten
        --no-record  record nothing
        """,
        record=kinds.new_recording,
    )
    declare(
        group.add_argument,
        """
        --only FILTER  record only exchanges that match a filter on connection and request header
            (kproxy help filters); all ApiVersions, Metadata and connections are recorded
        --record-users  record the users as whom clients log in (kproxy help security)
        --rotate SIZE,TIME  begin a new file at this size or age, whichever comes first (default
            1GiB,1h, or less with --keep; off: one file)
        --keep SIZE,TIME,N  remove the oldest files when the recordings of this and earlier runs
            with --keep in the folder are larger or older than this, or more files
        --keep-free SIZE  remove the oldest files when less room than this is left on the disk
        --keep-matching FILTER  of files that are removed, keep the exchanges that match, in a file
            beside (kproxy help filters)
        """,
        only=kinds.header_filter,
        rotate=kinds.rotation,
        keep=keep,
        keep_free=keep_free,
        keep_matching=kinds.any_filter,
    )
    add_schema_options(
        group.add_argument, "--schema-registry", "keep the schemas of records in the recording"
    )
    declare(
        group.add_argument,
        """
        --record-or-die  wait for a slow disk and end on a full one, instead of counting what is
            lost
        """,
    )


def run(options: argparse.Namespace) -> int:
    """Be the proxy until a signal comes; return the exit code."""
    from kproxy.net.serve import Options
    from kproxy.proxy.settings import Settings
    from kproxy.recording.files import state_folder

    listen_host, listen_port = listen_address(options)
    said: list[tuple[str, Level]] = []
    say = keeping(said)
    bootstrap, to_brokers, login = cluster(options, say)
    settings = Settings(
        bootstrap=bootstrap,
        listen_port=listen_port,
        advertised_host=options.advertise,
        node_ports=node_ports(options),
        idle_seconds=options.idle_timeout,
        request_bytes_max=options.request_bytes_max,
        pending_requests_max=options.pending_requests_max,
        held_bytes_max=options.held_bytes_max,
        record_users=options.record_users,
    )
    rules = fault_rules(options)
    limits, keep_by = keep_limits(options)
    rotate_bytes, rotate_seconds = rotation_within(options.rotate, limits)
    serve_options = Options(
        settings,
        listen_host,
        None if options.no_record else options.record or kinds.capture(),
        rotate_bytes,
        rotate_seconds,
        keep=limits,
        keep_by=keep_by,
        keep_matching=options.keep_matching,
        lossless=options.record_or_die,
        backlog_bytes_max=options.backlog_bytes_max,
        connections_max=options.connections_max,
        control=options.control,
        control_token=control_token() if options.control else None,
        control_recordings=control_recordings(options),
        health=options.health,
        only=options.only,
        rules=rules,
        read_rules=reread_rules(options, rules),
        read_client=_reread_client(options, bootstrap[0][0]),
        broker_tls=to_brokers,
        listen_tls=listen_tls(options),
        credentials=credentials_of(options, login, bootstrap[0][0], say),
        authenticate=options.authenticate,
        schemas=_schemas(options),
        nodes_folder=state_folder(),
    )
    if options.printed:
        return print_checked(options, serve_options.broker_tls, serve_options.listen_tls)
    code = _serve(
        serve_options,
        said,
        live=options.command is None and not options.quiet and sys.stdout.isatty(),
        local=options.local,
        child=None if options.command is None else Child(options.command, options.bootstrap_env),
        log_format=options.log_format,
    )
    failed = UNMET if options.command else 1
    return code or (failed if missed_faults(rules, options) else 0)


def _schemas(options: argparse.Namespace) -> SchemaSettings | None:
    """Return where schemas come from; None if they are not to be collected.

    Raises:
        UsageError: a source cannot be, or nothing is recorded.
    """
    option = "--schema-registry"
    if not schema_sources(options.schema_registry, option, options):
        return None
    if options.no_record:
        raise UsageError(f"{option} keeps schemas in the recording; leave out --no-record")
    from kproxy.net.schema_process import SchemaSettings

    return SchemaSettings(options.schema_registry, schema_access(options))


def _reread_client(options: argparse.Namespace, host: str) -> ReadClient | None:
    """Return what reads the properties of --config again; None if there are none."""
    if options.config is None:
        return None

    def read() -> tuple[BrokerTls | None, Credentials | None]:
        _, to_brokers, login = cluster(options, silent)  # what it says was said at the start
        return to_brokers, credentials_of(options, login, host, silent)

    return read


def credentials_of(
    options: argparse.Namespace,
    properties: Mapping[str, str],
    host: str,
    say: Logger,
) -> Credentials | None:
    """Return kproxy's own credentials for the cluster, and say what they are for; None if there
    are none.

    Raises:
        UsageError: --authenticate needs some.
    """
    from kproxy.net.tls.credentials import CredentialsError, credentials

    authenticate = getattr(options, "authenticate", None)
    try:
        found = credentials(properties, os.environ, host)
    except CredentialsError as error:
        if authenticate:
            raise UsageError(f"--authenticate: {error}") from error
        say(f"does not log in itself: {error}", "warning")
        return None
    if found:
        why = "for clients (--authenticate)" if authenticate else "to ask for the brokers"
        say(f"logs in with {found.mechanism}{'' if authenticate is None else f' {why}'}")
    elif authenticate:
        where = "KPROXY_SASL_USERNAME and KPROXY_SASL_PASSWORD, or a --config that has them"
        raise UsageError(f"--authenticate needs credentials: {where} (kproxy help tls)")
    return found


def cluster(
    options: argparse.Namespace, say: Logger
) -> tuple[Sequence[Address], BrokerTls | None, Mapping[str, str]]:
    """Return the bootstrap addresses of the cluster, the TLS settings, and what the properties of
    --config say of a login; options precede them. Says what becomes of the properties.

    Raises:
        UsageError: the addresses are missing, or the properties are wrong.
    """
    if options.config is None:
        if not options.bootstrap:
            raise UsageError("give --bootstrap HOST:PORT, or --config client.properties")
        return options.bootstrap, broker_tls(options), {}
    from kproxy.net.tls.properties import read_properties
    from kproxy.net.tls.settings import TlsError

    try:
        found = read_properties(options.config)
    except TlsError as error:
        raise UsageError(str(error)) from error
    for line in found.lines():
        say(line)
    bootstrap = options.bootstrap
    if not bootstrap:
        if not found.bootstrap:
            raise UsageError(f"{options.config} has no bootstrap.servers; give --bootstrap")
        try:
            bootstrap = parse_brokers(found.bootstrap)
        except ValueError as error:
            raise UsageError(f"{options.config}: bootstrap.servers: {error}") from error
    tls = broker_tls(options, found.tls)
    if tls and (missing := found.missing_file(tls)):
        raise UsageError(missing)
    return bootstrap, tls, found.credentials


def _serve(
    serve_options: Options,
    said: Iterable[tuple[str, Level]],
    live: bool,
    local: bool,
    child: Child | None,
    log_format: str,
) -> int:
    """Be the proxy until a signal comes, or until the command of the user's ends. The first lines
    of the log are what was `said` before."""
    from kproxy.look.lines.console import Console
    from kproxy.net import running, serve
    from kproxy.net.allocator import collect_garbage_rarely, keep_freed_memory
    from kproxy.net.listeners import ListenError
    from kproxy.net.tls.settings import TlsError
    from kproxy.net.unusable import Unusable
    from kproxy.recording import RecordingError

    keep_freed_memory()
    collect_garbage_rarely()
    shown = Console(sys.stdout, sys.stderr, live, local, log_format)
    with contextlib.ExitStack() as after, shown as console:
        for line in said:
            console.log(*line)
        announce_faults(serve_options.rules, console.log)
        try:
            try:
                if child is None:
                    summary, code = _until_signal(serve_options, console), 0
                else:
                    summary, code = _beside(child, serve_options, console)
            finally:
                # Write the reports even if another signal comes.
                for number in running.ENDING:
                    before = signal.signal(number, signal.SIG_IGN)
                    after.callback(signal.signal, number, before or signal.SIG_DFL)
        except NotStarted as error:
            return console.fail(f"kproxy run: {error}", error.code)
        except (Unusable, TlsError) as error:
            return console.fail(f"kproxy run: {error}", 2)
        except serve.RecordingUnfinished as error:
            after.callback(_exit_at_once, console.fail(f"kproxy run: {error}"))
            return 1
        except (ListenError, RecordingError, serve.RecordingFailed) as error:
            return console.fail(f"kproxy run: {error}")
        except FileExistsError as error:
            why = f"{error.filename} exists and is not overwritten; give another --record"
            return console.fail(f"kproxy run: {why}")
        except OSError as error:
            return console.fail(f"kproxy run: {error.filename or 'recording'}: {error.strerror}")
        if summary.paths:
            line = report(summary)
            console.log(line, "error" if summary.frames_lost else "info")
            if child is not None and not summary.frames_recorded and serve_options.only is None:
                console.log(UNREACHED)
        report_faults(serve_options.rules, console.log)
    return code or int(summary.frames_lost > 0)


def _until_signal(options: Options, console: Console) -> RunSummary:
    import trio

    from kproxy.net.serve import serve

    return trio.run(serve, options, console.ready, console.log, console.watch)


def _beside(child: Child, options: Options, console: Console) -> tuple[RunSummary, int]:
    """Run a command, with the proxy in a thread of its own; return its exit code, too."""
    import trio

    from kproxy.net.host import Host
    from kproxy.net.serve import serve

    summaries: list[RunSummary] = []

    async def main(started: Callable[[str], None], stop: trio.Event) -> None:
        summaries.append(await serve(options, started, console.log, stop=stop))

    host = Host(main)
    with held_signals() as signals:
        bootstrap = host.start()
        try:
            code = child.run(bootstrap, lambda: host.alive, signals)
        finally:
            host.stop()
    return summaries[0], code or 0


def _exit_at_once(code: int) -> None:
    """Exit at once, while a thread of the process waits for a disk.

    A normal exit closes files, which may wait for the same disk; and a thread that returns from the
    disk would find a half-closed interpreter. The standard streams are empty: `TextOutput` writes
    past their buffers.
    """
    os._exit(code)


def report(summary: RunSummary) -> str:
    """Return the last line of a run: what it recorded, and where."""
    lost = f", {summary.frames_lost} frames LOST" if summary.frames_lost else ""
    names = [str(path) if path.exists() else f"{path} (deleted)" for path in summary.paths]
    where = " ".join(names)
    if len(names) > _NAMED_MAX:
        deleted = sum(not path.exists() for path in summary.paths)
        gone = f", {deleted} of them deleted" if deleted else ""
        where = f"{len(names)} files{gone}: {names[0]} … {names[-1]}"
    files = "file" if summary.files_removed == 1 else "files"
    removed = f"; {summary.files_removed} {files} removed" if summary.files_removed else ""
    return f"recorded {summary.frames_recorded} frames{lost} in {where}{removed}"


_NAMED_MAX = 4
"""Files of a recording that the last line names; of more it names the first and the last."""
