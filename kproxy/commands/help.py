"""`kproxy help`: the pages of the manual, and the help of each command."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.options import UsageError
from kproxy.commands.parser import COMMANDS, command_parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Print a page or a file of the manual, or the help of a command. Without a topic: list all."
    )
    parser.epilog = "Into a pipe goes the page's Markdown."
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help="a topic, a file, or a command")


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    from kproxy.look.lines import manual

    commands = {name: command.about for name, command in COMMANDS.items()}
    if options.topic is None:
        manual.show(manual.contents(commands), sys.stdout)
    elif options.topic in manual.TOPICS:
        manual.show(manual.page(options.topic), sys.stdout)
    elif options.topic in manual.FILES:
        sys.stdout.write(manual.file(options.topic))
    elif options.topic in COMMANDS:
        command_parser(options.topic).print_help(sys.stdout)
    else:
        from kproxy.exchange.filter.values import suggestion

        close = suggestion(options.topic, [*manual.TOPICS, *manual.FILES, *COMMANDS])
        raise UsageError(f"there is no topic or command {options.topic!r}{close}")
    return 0
