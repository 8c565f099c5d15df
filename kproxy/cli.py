"""The command `kproxy`: what people type, and what they are told when it cannot be done.

Exit codes: 0 done, 2 for what was typed, 1 for all the rest. An error is one line on stderr that
says what is wrong, where, and what to do; for what was typed it names the command's own help.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from kproxy import __version__
from kproxy.commands.options import UsageError
from kproxy.commands.output import discard_output, fail
from kproxy.printable import printable

COMMANDS = {
    "run": "stand between clients and a cluster, and record",
    "replay": "be the broker of a recording, for any client",
    "fault": "change what a running proxy breaks",
    "show": "read a recording: one line per exchange, or JSON",
    "stats": "count what is in a recording: times, errors, rebalances",
    "tail": "follow a recording that is still written",
    "why": "tell why a group rebalanced, a connection ended, a request was slow",
    "export": "write Parquet or JSON lines for other tools, or cut out a smaller recording",
    "analyze": "make tables and a report of recordings, with Spark",
    "scan": "look for secrets in recordings before they are shared",
    "recover": "complete a recording that was cut off",
    "git-setup": "let git diff show what changed in a recording",
    "textconv": "write what a recording means, for git diff",
    "demo": "see it work: no broker, Docker or Java needed",
}
"""The modules of `kproxy.commands`, and what `kproxy --help` says of each."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (default: sys.argv); return its exit code."""
    # Closed, as daemons have them: nobody reads then, and that is no reason to fail.
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")
    typed = sys.argv[1:] if arguments is None else list(arguments)
    if not typed or typed[0] not in COMMANDS:
        parser = _parser()
        parser.parse_args(typed)
        parser.print_help()
        return 2
    module = import_module(f"kproxy.commands.{typed[0].replace('-', '_')}")
    # In full: what abbreviates one option today may abbreviate two tomorrow.
    parser = _Parser(prog=f"kproxy {typed[0]}", allow_abbrev=False)
    module.add_options(parser)
    options = parser.parse_intermixed_args(typed[1:])
    return _run(parser.prog, module.run, options)


def _run(name: str, run: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except UsageError as error:
        return fail(f"{name}: {error} (see {name} --help)", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone (| head).
        discard_output()
        return 0
    except OSError as error:
        code = fail(f"{name}: cannot write the output: {error.strerror or error}")
        discard_output()
        return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        wrong = message.removeprefix("argument ")
        self.exit(2, printable(f"{self.prog}: {wrong} (see {self.prog} --help)") + "\n")


def _parser() -> argparse.ArgumentParser:
    """The parser for when no command was typed."""
    parser = _Parser(
        prog="kproxy",
        description="Record what Kafka clients and brokers say to each other, and look at it.",
    )
    parser.add_argument("--version", action="version", version=f"kproxy {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser
