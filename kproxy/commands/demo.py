"""`kproxy demo`: kproxy at work, without a broker."""

from __future__ import annotations

import argparse
import sys

from kproxy.commands.faults import add_fault_options, fault_rules, missed_faults
from kproxy.commands.options import capture, new_file
from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Record a producer and a group consumer, replay the recording, and survive a fault. With"
        " fault rules: see what they do to these clients before a mock cluster."
    )
    parser.add_argument(
        "--record", metavar="FILE", type=new_file, help="where to leave the recording"
    )
    add_fault_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    try:
        from kproxy import demo, experiment
    except ModuleNotFoundError as error:
        return fail(
            f"kproxy demo: {error.name} is missing; install kproxy with its extra, kproxy[demo]"
        )
    rules = fault_rules(options)
    path = options.record or capture()
    if not rules.rules:
        return demo.run(path, sys.stdout)
    return experiment.run(path, sys.stdout, rules) or missed_faults(rules, options)
