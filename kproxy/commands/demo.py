"""`kproxy demo`: kproxy at work, without a broker."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from kproxy.commands.faults import add_fault_options, fault_rules, missed_faults
from kproxy.commands.options import UsageError, capture, declare, new_file
from kproxy.commands.output import fail


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.description = (
        "Record a producer and a group consumer, replay the recording, and survive a fault. With"
        " fault rules: see what they do to these clients before a mock cluster."
    )
    declare(
        parser.add_argument,
        """
        --record FILE  where to leave the recording
        --tls  speak TLS on both sides, by kproxy's own CA (kproxy certs); needs kproxy-kafka[tls]
        """,
        record=new_file,
    )
    add_fault_options(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command; return its exit code."""
    try:
        from kproxy import demo, experiment
    except ModuleNotFoundError as error:
        return fail(f"kproxy demo: {error.name} is missing: pip install 'kproxy-kafka[demo]'")
    rules = fault_rules(options)
    path = options.record or capture()
    if options.tls and rules.rules:
        raise UsageError("--tls and fault rules: give one of them")
    if options.tls:
        return _by_tls(path)
    if not rules.rules:
        return demo.run(path, sys.stdout)
    return experiment.run(path, sys.stdout, rules) or missed_faults(rules, options)


def _by_tls(path: Path) -> int:
    """Run the demo by TLS."""
    from kproxy import demo
    from kproxy.net.tls.authority import write_for_clients

    with tempfile.TemporaryDirectory(prefix="kproxy-") as folder:
        ca, *_ = write_for_clients(Path(folder))
        return demo.run(path, sys.stdout, demo.Tls(ca))
