"""`kproxy demo`: see it work, with nothing to install beside it."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.faults import add_fault_options, fault_rules, missed_faults
from kproxy.commands.options import capture, new_file
from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Say what may be typed."""
    parser.description = "Put kproxy before a mock cluster, with a producer and a group consumer."
    parser.add_argument(
        "--record", metavar="FILE", type=new_file, help="where to leave the recording"
    )
    add_fault_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run it."""
    try:
        from kproxy import demo
    except ModuleNotFoundError as error:
        return fail(
            f"kproxy demo: {error.name} is missing; install kproxy with its extra, kproxy[demo]"
        )
    rules = fault_rules(options)
    code = demo.run(options.record or capture(), sys.stdout, rules)
    return code or missed_faults(rules, options)
