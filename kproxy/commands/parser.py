"""The table of commands, and the parser of each.

::

    COMMANDS ─▶ kproxy --help, kproxy help
    module of a command ─add_options─▶ command_parser ─▶ options, help with examples
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
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


_COMMANDS = """
run: stand between clients and a cluster, and record
    Manual: run
    kproxy run --bootstrap kafka-1:9092,kafka-2:9092
    kproxy run --bootstrap kafka:9092 --only 'client_id:shop' --rotate 100MiB,1h
    kproxy run --bootstrap kafka:9092 --fault 'api=Fetch latency=300ms'
    kproxy run --config client.properties --listen-tls auto
replay: be the broker of a recording, for any client
    Manual: replay
    kproxy replay capture.mcap
    kproxy replay capture.mcap --visible causal --timing recorded
fault: change what a running proxy breaks
    Manual: faults
    kproxy fault --control 127.0.0.1:9190 list
    kproxy fault --control 127.0.0.1:9190 add name=slow api=Fetch latency=300ms
    kproxy fault --control 127.0.0.1:9190 remove slow
show: read a recording: one line per exchange, or JSON
    Manual: recordings
    kproxy show capture.mcap
    kproxy show capture.mcap is:error
    kproxy show --records orders:1 capture.mcap 'key:customer-*'
    kproxy show --json capture.mcap api:Produce
stats: count what is in a recording: times, errors, rebalances
    Manual: recordings
    kproxy stats capture.mcap
    kproxy stats --headers captures client_id:shop
tail: follow a recording that is still written
    Manual: recordings
    kproxy tail capture.mcap
    kproxy tail --all capture.mcap topic:orders
why: tell why a group rebalanced, a producer was fenced, a request was slow, …
    Manual: recordings
    kproxy why capture.mcap group:billing
    kproxy why capture.mcap connection:3
    kproxy why capture.mcap number:812
    kproxy why capture.mcap transactional_id:payments
    kproxy why capture.mcap topic:orders
    kproxy why capture.mcap topic:orders key:customer-1
    kproxy why capture.mcap fault:cut
    kproxy why capture.mcap client_id:shop
web: show recordings in a browser
    Manual: web
    kproxy web capture.mcap
    kproxy web captures --listen 127.0.0.1:9191
report: write a page of what stands out in recordings, without Spark
    Manual: recordings
    kproxy report capture.mcap --out report.html
    kproxy report captures --out week.html
export: write Parquet or JSON lines for other tools, a page to send, or a smaller recording
    Manual: recordings
    kproxy export capture.mcap topic:orders --to orders.mcap
    kproxy export captures --to all.parquet
analyze: make tables and a report of recordings of any size, with Spark
    Manual: spark
    kproxy analyze captures --out analysis
    kproxy analyze new.mcap --out diff --baseline old.mcap --fail-above 1.5
scan: look for secrets in recordings before they are shared
    Manual: security
    kproxy scan capture.mcap
    kproxy scan --json captures
recover: complete a recording that was cut off, or lacks schemas
    Manual: recordings
    kproxy recover capture.mcap
    kproxy recover capture.mcap --schemas http://registry:8081
certs: write what clients need to speak TLS to kproxy
    Manual: tls
    kproxy certs --out certs
git-setup: let git diff show what changed in a recording
    Manual: testing
    kproxy git-setup
textconv: write what a recording means, for git diff
    Manual: testing
    kproxy textconv capture.mcap
demo: see it work: no broker, Docker or Java needed
    Manual: faults
    kproxy demo
    kproxy demo --fault 'api=Produce error=NOT_LEADER_OR_FOLLOWER times=1'
help: read the manual: a topic, or the help of a command
    kproxy help
    kproxy help filters
    kproxy help show
"""
"""Each command, with a line about it, the page of the manual that explains it, and examples."""


def _declared() -> Iterator[tuple[str, Command]]:
    for each in re.split(r"\n(?=\S)", _COMMANDS.strip()):
        head, *lines = map(str.strip, each.splitlines())
        name, _, about = head.partition(": ")
        topic = "".join(line[len("Manual: ") :] for line in lines if line.startswith("Manual: "))
        examples = tuple(line for line in lines if not line.startswith("Manual: "))
        yield name, Command(about, topic, examples)


COMMANDS = dict(_declared())
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
