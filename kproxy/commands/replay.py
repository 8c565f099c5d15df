"""`kproxy replay`: a recording as the broker."""

from __future__ import annotations

import argparse
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kproxy.commands import options as kinds
from kproxy.commands.checked import (
    add_cassette_options,
    add_check_options,
    add_ignore_options,
    expected,
    ignored,
    is_checked,
    not_repeated,
    run_checked,
)
from kproxy.commands.child import UNMET, add_child_options
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
from kproxy.commands.options import UsageError, declare
from kproxy.commands.output import code_of
from kproxy.commands.place import add_place_options, listen_address, node_ports
from kproxy.commands.tls import add_listen_tls_options, listen_tls
from kproxy.levels import Level, Logger, keeping

if TYPE_CHECKING:
    from kproxy.proxy.faults import Rules
    from kproxy.proxy.machine import StartingMachine
    from kproxy.replay.broker import ReplayBroker
    from kproxy.replay.loaded import Loaded
    from kproxy.replay.report import Report
    from kproxy.replay.settings import ReplaySettings
    from kproxy.testing.sessions import Front


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = "Be the broker of a recording: no cluster is needed, and any client works."
    parser.epilog = (
        "The first line on stdout is the bootstrap address to give to your application. Where"
        " it differs from the recording, that is said on stderr, and makes the exit code 1."
        " Ctrl-C stops it. With a command behind -- it lasts as long as that, and ends with its"
        f" exit code, or {UNMET} where the command succeeded and the recording was not met."
    )
    parser.usage = "%(prog)s [OPTION…] FILE… [-- COMMAND]"
    kinds.add_files(parser, kinds.local_file)
    _add_place(parser)
    add_listen_tls_options(parser)
    _add_answering(parser)
    add_check_options(parser)
    add_child_options(parser)
    add_cassette_options(parser)
    add_fault_options(parser)
    add_control_options(parser)
    add_config_options(parser.add_argument)


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it stands")
    add_place_options(group.add_argument)
    declare(
        group.add_argument,
        """
        --user NAME:PASSWORD …  a user for SCRAM, which cannot be replayed without the password;
            PLAIN and OAUTHBEARER take anybody; may be repeated
        --idle-timeout TIME = 10min  close a connection on which nothing arrives so long; in strict
            mode none is (default %(default)s)
        --held-bytes-max SIZE = 256MiB  memory for requests that are incomplete or wait, over all
            connections; what is over it ends its connection (default %(default)s)
        """,
        user=_user,
    )


def _add_answering(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how it answers")
    declare(
        group.add_argument,
        """
        --mode {state,semantic,strict} = state  state: from topics, records, groups and offsets as
            the recording shows them, to any client; semantic: as recorded, to requests that mean
            the same; strict: each connection's frames in order, and the first difference is
            reported (default %(default)s)
        --visible {all,causal}  when consumers see records that were produced through the proxy: all
            of them from the start, or causal: each when it is produced again (default: causal where
            they must be repeated, see --expect; else all)
        --timing fast|recorded|FACTOR = fast  how long responses take: nothing, as long as the
            recorded brokers took, or so many times that (0.5, 10); waiting for records or members
            is not part of it (default %(default)s)
        --recorded-faults  let go wrong again what went wrong when it was recorded: errors of the
            cluster, throttling, lost connections, and what fault rules did, each at the same
            request of its kind (by default only what the cluster's state makes of itself goes
            wrong)
        """,
        timing=timing,
    )
    add_ignore_options(group.add_argument)


def _user(text: str) -> tuple[str, str]:
    """Parse NAME:PASSWORD."""
    name, colon, password = text.partition(":")
    if not (name and colon):
        raise ValueError("give NAME:PASSWORD")  # it may be a password: it is not echoed
    return name, password


def timing(text: str) -> float:
    """Parse the factor of --timing."""
    from kproxy.replay.pace import parse_factor

    return parse_factor(text)


def run(options: argparse.Namespace) -> int:
    """Be the broker until a signal comes; return the exit code."""
    import attrs
    import trio

    from kproxy.look.lines.console import Console
    from kproxy.net.allocator import collect_garbage_rarely, keep_freed_memory
    from kproxy.net.listeners import ListenError
    from kproxy.net.serve import Options, serve
    from kproxy.net.tls.settings import TlsError
    from kproxy.net.unusable import Unusable
    from kproxy.recording import RecordingError
    from kproxy.recording import recordings as files_of
    from kproxy.replay.report import ClientDifference, Report

    _check_files(options)
    settings = _settings(options)
    rules, recordings = fault_rules(options), control_recordings(options)
    checked = is_checked(options)
    if options.printed:
        return print_checked(options, None, listen_tls(options))
    if checked:
        return run_checked(options, settings, _front(options, rules, recordings))
    settings = attrs.evolve(
        settings,
        listen_port=listen_address(options)[1],
        advertised_host=options.advertise,
        node_ports=node_ports(options),
    )
    with Console(sys.stdout, sys.stderr, False, log_format=options.log_format) as console:

        def on_finding(finding: ClientDifference) -> None:
            console.log(f"{finding.kind}: {finding}", "warning")

        report = Report(on_finding)
        try:
            keep_freed_memory()
            collect_garbage_rarely()
            machine = _machine(options, settings, report, rules, console.log)
            announce_faults(rules, console.log)
            serve_options = Options(
                **_served(options, rules, recordings),
                read_rules=reread_rules(options, rules),
                replaying=_behind_rules(machine, rules, options),
                replayed=files_of(options.files),
            )
            trio.run(partial(serve, serve_options, console.ready, console.log))
        except (Unusable, TlsError) as error:
            return console.fail(f"kproxy replay: {error}", 2)
        except (ListenError, RecordingError) as error:
            return console.fail(f"kproxy replay: {error}", code_of(error))
        except OSError as error:
            what = error.filename or "recording"
            return console.fail(f"kproxy replay: {what}: {error.strerror}")
        report_faults(rules, console.log)
        for line in _unchecked(machine):
            console.log(line)
        if report.count:
            console.log(f"differences between the clients and the recording: {report.count}")
    return 1 if report.count else missed_faults(rules, options)


def _behind_rules(
    machine: ReplayBroker, rules: Rules, options: argparse.Namespace
) -> StartingMachine:
    """Return the machine that clients meet: where rules may act, a proxy is in front."""
    from kproxy.replay.ruled import RuledBroker

    may_have_rules = rules.rules or options.control or reread_rules(options, rules)
    return RuledBroker(machine, rules) if may_have_rules else machine


def _check_files(options: argparse.Namespace) -> None:
    """Raise UsageError where a file is none, and may be the beginning of a command."""
    missing = [str(path) for path in options.files[1:] if not path.exists()]
    if missing and options.files[0].exists() and options.command is None:
        raise UsageError(f"{missing[0]} does not exist; if it is a command, type -- before it")


def _unchecked(machine: ReplayBroker) -> list[str]:
    """Return lines about what was checked, and what of the recording was not repeated."""
    from kproxy.replay.compared import STRICT_SUMMARY, Compared
    from kproxy.replay.produced_report import report_unproduced
    from kproxy.replay.report import Report
    from kproxy.replay.settings import Expect

    missing = Report()
    if machine.strict is not None:
        machine.strict.report_unplayed(missing)
        return [*not_repeated(missing.findings), STRICT_SUMMARY]
    report_unproduced(machine.state.check, missing, reads_all=False)
    return [*not_repeated(missing.findings), Compared(expect=Expect.NONE).summary()]


def _front(options: argparse.Namespace, rules: Rules, recordings: Path | None) -> Front:
    """Return kproxy in front of the broker, as the options want it."""
    import attrs

    from kproxy.testing.sessions import Front

    return Front(attrs.evolve(Front().template, **_served(options, rules, recordings)))


def _served(options: argparse.Namespace, rules: Rules, recordings: Path | None) -> dict[str, Any]:
    """Return the options of `serve.Options` that are the user's."""
    from kproxy.proxy.settings import Settings

    host, port = listen_address(options)
    settings = Settings(
        bootstrap=(),
        listen_port=port,
        advertised_host=options.advertise,
        node_ports=node_ports(options),
        idle_seconds=options.idle_timeout,
        held_bytes_max=options.held_bytes_max,
    )
    return {
        "settings": settings,
        "listen_host": host,
        "control": options.control,
        "control_token": control_token() if options.control else None,
        "control_recordings": recordings,
        "health": options.health,
        "rules": rules,
        "listen_tls": listen_tls(options),
    }


def _settings(options: argparse.Namespace) -> ReplaySettings:
    """Return how it answers; its place is its own, or that of kproxy in front of it."""
    from kproxy.replay.settings import Mode, ReplaySettings, Visible

    if options.mode == "strict":
        others = options.fault, options.recorded_faults, options.control, options.timing
        if options.faults or any(others):
            what = "no faults, no --timing, no --control"
            raise UsageError(f"strict mode responds at once and as recorded: {what}")
    return ReplaySettings(
        mode=Mode(options.mode),
        visible=Visible(options.visible) if options.visible else expected(options).visible,
        ignored=ignored(options),
        users=dict(options.user),
        held_bytes_max=options.held_bytes_max,
        idle_seconds=options.idle_timeout,
    )


def _machine(
    options: argparse.Namespace,
    settings: ReplaySettings,
    report: Report,
    rules: Rules,
    log: Logger,
) -> ReplayBroker:
    from kproxy.look.lines.progress import reading
    from kproxy.recording.notices import Notices
    from kproxy.replay.opening import Wanted, open_broker

    notices = Notices()
    lines: list[tuple[str, Level]] = []
    with reading("replay", options.files) as progress:
        machine = open_broker(
            options.files,
            settings,
            Wanted(settings.mode, options.timing, options.recorded_faults),
            report,
            keeping(lines),
            lambda words: rules.add(words, time.time_ns()),
            notices.note,
            lambda done, total: progress.update(done),
        )
    summary = _summary(machine.state.loaded) if machine.strict is None else []
    for line in (*notices.texts, *summary):
        log(line)
    for line, level in lines:
        log(line, level)
    return machine


def _summary(loaded: Loaded) -> list[str]:
    from kproxy.exchange.words.wording import count

    topics = loaded.cluster.topics.values()
    batches = sum(len(each.log) for topic in topics for each in topic.partitions.values())
    groups = len(loaded.groups.keys() | loaded.committed.keys())
    counts = (count(len(topics), "topic"), count(batches, "batch"), count(groups, "group"))
    return [f"serves {', '.join(counts)}"]
