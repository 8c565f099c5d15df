"""`kproxy send`: a recording as the clients of a cluster."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from kproxy.addresses import parse_brokers
from kproxy.commands import options as kinds
from kproxy.commands.options import declare
from kproxy.commands.output import fail
from kproxy.commands.replay import timing
from kproxy.commands.run import cluster, credentials_of
from kproxy.commands.tls import add_broker_tls_options
from kproxy.levels import Level
from kproxy.printable import printable

if TYPE_CHECKING:
    from kproxy.exchange.filter.terms import Term
    from kproxy.look.lines.stream import Stream
    from kproxy.send.inputs import Input
    from kproxy.send.order import SendItem
    from kproxy.send.planned import SendPlan
    from kproxy.send.sent import Sent


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Send the requests of recordings to a cluster, each connection as a client, and compare"
        " what it answers."
    )
    parser.epilog = (
        "Differences are shown as a table, and make the exit code 1; 0: there are none; 2: nothing"
        " was sent. What changes the cluster is not sent"
        " without --allow-admin; nothing is sent to the cluster of the recording without"
        " --same-cluster."
    )
    parser.add_argument(
        "files",
        metavar="FILE",
        nargs="+",
        type=kinds.local_file,
        help="recordings, or folders of them",
    )
    declare(
        parser.add_argument_group("where to").add_argument,
        """
        --bootstrap HOST:PORT[,…]  brokers of the cluster to begin with, tried in turn (port 9092 if
            none is given)
        --config FILE  properties of a client, Java's or librdkafka's: where the cluster is, TLS to
            it, and credentials for it
        --topic-prefix TEXT  send everything to topics whose names begin with this
        --group-prefix TEXT  the same for groups and transactional ids
        """,
        bootstrap=parse_brokers,
        topic_prefix=str,
        group_prefix=str,
    )
    declare(
        parser.add_argument_group("what is sent").add_argument,
        """
        --timing recorded|fast|FACTOR = recorded  when: as in the recording, at once when nothing
            holds a request back, or at so many times the recorded times (default %(default)s)
        --allow-admin  send what changes the cluster, too: topics, configs, ACLs, …
        --create-topics  create the topics that the cluster lacks
        --same-cluster  send to the cluster that was recorded
        --inputs TERM  only produce what consumers read in the recording, each record once:
            client_id:NAME, or group:NAME
        --repeat N = 1  send the conversation so many times (default %(default)s)
        --clients N = 1  send so many copies of it at the same time, each with names of its own
            for clients, groups and transactional ids (default %(default)s)
        --record FILE  record the new conversation; never overwritten
        """,
        timing=timing,
        record=kinds.new_recording,
        inputs=_consumers,
    )
    add_broker_tls_options(parser)


def _consumers(text: str) -> Term:
    from kproxy.exchange.filter.terms import Term
    from kproxy.send.inputs import CLIENT, GROUP

    found = kinds.any_filter(text).node
    if not isinstance(found, Term) or found.name not in (CLIENT, GROUP):
        raise ValueError(f"write client_id:NAME or group:NAME, not {text!r}")
    return found


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    import trio

    from kproxy.look.lines.progress import Progress, reading
    from kproxy.look.lines.sent import ended, figures, lines
    from kproxy.look.lines.stream import Stream
    from kproxy.net.sending import NotSent, SendOptions, send
    from kproxy.net.tls.settings import TlsError
    from kproxy.net.unusable import Unusable
    from kproxy.recording import RecordingError
    from kproxy.send.planned import SendSettings
    from kproxy.send.substitution import Renaming

    if options.inputs and (
        options.repeat * options.clients > 1 or options.group_prefix or options.allow_admin
    ):
        what = "--repeat, --clients, --group-prefix and --allow-admin"
        return fail(f"kproxy send: --inputs produces records, once: leave out {what}", 2)
    bootstrap, tls, login = cluster(options, _say)
    settings = SendSettings(
        Renaming(options.topic_prefix or "", options.group_prefix or ""),
        options.timing,
        options.allow_admin,
        options.create_topics,
        options.repeat,
        options.clients,
    )
    credentials = credentials_of(options, login, bootstrap[0][0], _say)
    same, path = options.same_cluster, options.record
    how = SendOptions(bootstrap, tls, credentials, settings, same, path)

    try:
        with reading("send", options.files) as bar:
            plan, notices = _planned(options, bar.update)
        if options.inputs and not plan.records:
            what = f"the recording does not show what {options.inputs} fetched"
            return fail(f"kproxy send: {what}; kproxy stats lists clients and groups", 2)
        for line in (*notices, *_announced(plan.admin, options.allow_admin)):
            _say(line)
        if not plan.requests:
            return fail("kproxy send: no request is there to send", 2)
        total = plan.requests * options.repeat * options.clients
        with Progress("send", total) as bar:

            def look(sent: Sent) -> None:
                bar.update(sent.requests, figures(sent))

            inputs = _inputs(options, Stream(options.files)) if options.inputs else None
            sent = trio.run(send, how, plan, partial(_read, options), _say, look, inputs)
    except (NotSent, TlsError, Unusable, RecordingError) as error:
        return fail(f"kproxy send: {error}", 2)
    except FileExistsError as error:
        what = f"{error.filename} exists and is not overwritten; give another --record"
        return fail(f"kproxy send: {what}", 2)
    except OSError as error:
        return fail(f"kproxy send: {error.filename or 'recording'}: {error.strerror or error}")
    if not sent.ended or sent.requests:
        for line in lines(sent):
            print(line)
    if sent.ended:
        return fail(f"kproxy send: {ended(sent, total)}", 1 if sent.requests else 2)
    renamed = options.inputs or sent.is_load or options.topic_prefix or options.group_prefix
    is_one = len(options.files) == len(Stream(options.files).recordings) == 1
    if options.record and is_one and not renamed:
        _say(f"next: {_next(options, settings.factor)}")
    return int(bool(sent.differences))


def _next(options: argparse.Namespace, factor: float | None) -> str:
    """Return the command that compares both recordings, but for what is send's own."""
    from kproxy.look.diff.compare import ASPECTS

    own = {"settings"} if factor == 1 else {"settings", "latency"}
    aspects = ",".join(each for each in ASPECTS if each not in own)
    again = "kproxy", "diff", str(options.files[0]), str(options.record), "--compare", aspects
    return shlex.join(again)


def _planned(
    options: argparse.Namespace, on_progress: Callable[[int], None]
) -> tuple[SendPlan, list[str]]:
    """Read what will be sent; return what the command needs to know of it, and the notices."""
    from kproxy.look.lines.stream import Stream
    from kproxy.send.planned import SendPlan

    plan = SendPlan()
    stream = Stream(options.files, on_note=plan.note, on_progress=on_progress)
    if options.inputs:
        for each in _inputs(options, stream):
            plan.feed(*each)
    else:
        for exchange in stream.exchanges():
            plan.take(exchange, options.allow_admin)
    return plan, stream.notices


def _read(options: argparse.Namespace) -> Iterator[SendItem | None]:
    from kproxy.look.lines.stream import Stream
    from kproxy.send.order import ahead, items

    stream = Stream(options.files)
    found = items((stream.recording, each) for each in stream.shown())
    return ahead(found)


def _inputs(options: argparse.Namespace, stream: Stream) -> Iterator[Input]:
    from kproxy.send.inputs import ServiceInputs

    found = ServiceInputs(options.inputs)
    for exchange in stream.exchanges():
        yield exchange, found.take(exchange, stream.recording)


def _say(line: str, level: Level = "info", /) -> None:
    print(printable(f"kproxy: {line}"), file=sys.stderr)


def _announced(admin: Counter[str], allowed: bool) -> Iterator[str]:
    """Yield what changes the cluster, before it is sent or not."""
    if admin:
        apis = ", ".join(f"{api} ×{times}" for api, times in admin.most_common())
        what = "sends" if allowed else "does not send, without --allow-admin,"
        yield f"{what} what changes the cluster: {apis}"
