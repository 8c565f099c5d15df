"""The table of commands, and the parser of each.

::

    COMMANDS ─▶ kproxy --help, kproxy help
    module of a command ─add_options─▶ command_parser ─▶ options, help with examples
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from kproxy.commands.output import fail


class Command(NamedTuple):
    """A command of `kproxy`."""

    about: str
    """One line for the list of commands."""
    topic: str
    """The page of the manual that explains it."""
    examples: tuple[str, ...]


COMMANDS = {
    "run": Command(
        "stand between clients and a cluster, and record",
        "run",
        (
            "kproxy run --bootstrap kafka-1:9092,kafka-2:9092",
            "kproxy run --bootstrap kafka:9092 --only 'client_id:shop' --rotate 100MiB,1h",
            "kproxy run --bootstrap kafka:9092 --fault 'api=Fetch latency=300ms'",
            "kproxy run --config client.properties --listen-tls auto",
        ),
    ),
    "replay": Command(
        "be the broker of a recording, for any client",
        "replay",
        (
            "kproxy replay capture.mcap",
            "kproxy replay capture.mcap --visible causal --timing recorded",
        ),
    ),
    "send": Command(
        "send recorded requests to a cluster, and compare what it answers",
        "send",
        (
            "kproxy send capture.mcap --bootstrap new-kafka:9092",
            "kproxy send capture.mcap --bootstrap kafka:9092 --timing fast --record new.mcap",
            "kproxy send capture.mcap --bootstrap kafka:9092 --timing fast --repeat 10 --clients 8",
        ),
    ),
    "fault": Command(
        "change what a running proxy breaks",
        "faults",
        (
            "kproxy fault --control 127.0.0.1:9190 list",
            "kproxy fault --control 127.0.0.1:9190 add name=slow api=Fetch latency=300ms",
            "kproxy fault --control 127.0.0.1:9190 remove slow",
        ),
    ),
    "show": Command(
        "read a recording: one line per exchange, or JSON",
        "recordings",
        (
            "kproxy show capture.mcap",
            "kproxy show capture.mcap is:error",
            "kproxy show --records orders:1 capture.mcap 'key:customer-*'",
            "kproxy show --json capture.mcap api:Produce",
        ),
    ),
    "stats": Command(
        "count what is in a recording: times, errors, rebalances",
        "recordings",
        ("kproxy stats capture.mcap", "kproxy stats --headers captures client_id:shop"),
    ),
    "tail": Command(
        "follow a recording that is still written",
        "recordings",
        ("kproxy tail capture.mcap", "kproxy tail --all capture.mcap topic:orders"),
    ),
    "why": Command(
        "tell why a group rebalanced, a producer was fenced, a request was slow, …",
        "recordings",
        (
            "kproxy why capture.mcap group:billing",
            "kproxy why capture.mcap connection:3",
            "kproxy why capture.mcap number:812",
            "kproxy why capture.mcap transactional_id:payments",
            "kproxy why capture.mcap topic:orders",
            "kproxy why capture.mcap topic:orders key:customer-1",
            "kproxy why capture.mcap fault:cut",
            "kproxy why capture.mcap client_id:shop",
        ),
    ),
    "diff": Command(
        "compare two recordings by what they mean: records, groups, errors, latency, …",
        "recordings",
        (
            "kproxy diff before.mcap after.mcap",
            "kproxy diff monday tuesday --compare records,errors --html differences.html",
        ),
    ),
    "web": Command(
        "show recordings in a browser",
        "web",
        ("kproxy web capture.mcap", "kproxy web captures --listen 127.0.0.1:9191"),
    ),
    "report": Command(
        "write a page of what stands out in recordings, without Spark",
        "recordings",
        ("kproxy report capture.mcap --out report.html", "kproxy report captures --out week.html"),
    ),
    "export": Command(
        "write Parquet or JSON lines for other tools, a page to send, or a smaller recording",
        "recordings",
        (
            "kproxy export capture.mcap topic:orders --to orders.mcap",
            "kproxy export captures --to all.parquet",
            "kproxy export capture.mcap client_id:billing --to billing.pcapng",
        ),
    ),
    "import": Command(
        "make a recording of a capture of packets (tcpdump, Wireshark)",
        "recordings",
        (
            "kproxy import packets.pcap --out capture.mcap",
            "tcpdump -i any -U -w - port 9092 | kproxy import - --follow --out capture.mcap",
        ),
    ),
    "analyze": Command(
        "make tables and a report of recordings of any size, with Spark",
        "spark",
        (
            "kproxy analyze captures --out analysis",
            "kproxy analyze new.mcap --out diff --baseline old.mcap --fail-above 1.5",
        ),
    ),
    "scan": Command(
        "look for secrets in recordings before they are shared",
        "security",
        ("kproxy scan capture.mcap", "kproxy scan --json captures"),
    ),
    "recover": Command(
        "complete a recording that was cut off, or lacks schemas",
        "recordings",
        (
            "kproxy recover capture.mcap",
            "kproxy recover capture.mcap --schemas http://registry:8081",
        ),
    ),
    "certs": Command(
        "write what clients need to speak TLS to kproxy", "tls", ("kproxy certs --out certs",)
    ),
    "learned": Command(
        "list what may vary in the replays of a recording",
        "testing",
        ("kproxy learned orders.mcap", "kproxy learned orders.mcap --set varies.txt"),
    ),
    "renew": Command(
        "record again what a test or a command recorded, and ask whether to replace it",
        "testing",
        (
            "kproxy renew recordings --broker localhost:9092",
            "kproxy renew recordings --broker localhost:9092 --stale-after 90d --yes",
        ),
    ),
    "git-setup": Command(
        "let git diff show what changed in a recording", "testing", ("kproxy git-setup",)
    ),
    "textconv": Command(
        "write what a recording means, for git diff", "testing", ("kproxy textconv capture.mcap",)
    ),
    "demo": Command(
        "see it work: no broker, Docker or Java needed",
        "faults",
        (
            "kproxy demo",
            "kproxy demo --fault 'api=Produce error=NOT_LEADER_OR_FOLLOWER times=1'",
        ),
    ),
    "help": Command(
        "read the manual: a topic, or the help of a command",
        "",
        ("kproxy help", "kproxy help filters", "kproxy help show"),
    ),
}
"""Name of each command, with dashes → its entry; the modules are in `kproxy.commands`."""


_OPTION = re.compile(r"--[\w-]+|-\w")
_NEEDLESS_VALUE = re.compile(r"ignored explicit argument .*", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser with errors in one line, and examples at the end of the help."""

    closing: str = ""
    """The last lines of the help."""

    def format_help(self) -> str:
        """Return the help, with the examples at the end."""
        return super().format_help() + self.closing

    def _print_message(self, message: str, file: Any = None) -> None:
        # Unlike argparse, raise errors: help that cannot be written is an error.
        stream = file or sys.stderr
        stream.write(message)
        stream.flush()

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # Unlike argparse, say what a type says: which values are valid.
        try:
            return self._registry_get("type", action.type, action.type)(arg_string)
        except ValueError as error:
            raise argparse.ArgumentError(action, str(error)) from None

    def check(self, action: argparse.Action, text: str) -> None:
        """Raise argparse.ArgumentError if an option cannot have this value."""
        self._check_value(action, self._get_value(action, text))

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse arguments; exit if one is unknown."""
        options, unknown = self.parse_known_intermixed_args(words)
        if unknown:
            self.refuse(unknown)
        return options

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Exit with the names of unknown options: their values, which may be passwords, are not
        echoed."""
        options = [option[0] for word in unknown if (option := _OPTION.match(word))]
        self.error(f"unrecognized arguments: {' '.join(options or unknown)}")

    def error(self, message: str) -> NoReturn:
        """Exit with the error in one line."""
        wrong = _NEEDLESS_VALUE.sub("takes no value", message.removeprefix("argument "))
        sys.exit(fail(f"{self.prog}: {wrong} (see {self.prog} --help)", 2))


def command_module(name: str) -> ModuleType:
    """Import the module of a command."""
    return import_module(f"kproxy.commands.{name.replace('-', '_')}")


def command_parser(name: str) -> Parser:
    """Return the parser of a command."""
    # No abbreviations: one that is unique today may be ambiguous with a new option.
    parser = Parser(prog=f"kproxy {name}", allow_abbrev=False)
    command_module(name).add_options(parser)
    command = COMMANDS[name]
    lines = ["", "Examples:", *(f"  {example}" for example in command.examples)]
    if command.topic:
        lines += ["", f"Manual: kproxy help {command.topic}"]
    parser.closing = "\n".join(lines) + "\n"
    return parser
