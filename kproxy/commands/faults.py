"""The options of fault rules, and the report on them, for all commands that take rules.

::

    --faults FILE, --fault RULE, --seed N ─▶ Rules ─▶ … ─▶ table and warnings at the end
"""

from __future__ import annotations

import argparse
import functools
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from kproxy.commands import options as kinds
from kproxy.commands.options import UsageError, declare
from kproxy.levels import Logger

if TYPE_CHECKING:
    from kproxy.look.lines.log import LineLog
    from kproxy.proxy.faults import Rule, Rules
    from kproxy.proxy.faults.values import ReadDelays

_SEEDS = 1 << 32
"""Random seeds are below this number."""


def add_fault_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of fault rules."""
    group = parser.add_argument_group("what it breaks (kproxy fault --help lists all actions)")
    declare(
        group.add_argument,
        """
        --faults FILE …  a TOML file with a [[fault]] table for each rule; may be repeated
        --fault RULE …  a rule, such as 'api=Produce topic=orders error=NOT_LEADER_OR_FOLLOWER
            times=2'; may be repeated
        --seed N  decides what rules with a probability hit (default: another one each time, which
            the log tells)
        --expect-faults  end with exit code 1 if a rule never matched, or never fired
        """,
        seed=functools.partial(kinds.count, least=0),
    )
    parser.set_defaults(config_rules=None)


def add_control_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the control address."""
    declare(
        parser.add_argument,
        """
        --control HOST:PORT  serve metrics for Prometheus at http://HOST:PORT/metrics, take the
            commands of kproxy fault, and show a page, whose address is logged, to a browser (port 0
            takes any); where other machines reach it, requests must carry the token in
            KPROXY_CONTROL_TOKEN as Bearer
        --control-recordings DIR  let rules that come over --control take latencies from the
            recordings below a folder (default: from none)
        --health HOST:PORT  tell, without a token, whether kproxy lives (/healthz) and clients can
            come (/readyz); --control does so, too, where only this machine reaches it
        """,
        control_recordings=kinds.folder,
    )


def control_token() -> str | None:
    """Return the token in KPROXY_CONTROL_TOKEN, if there is one.

    Raises:
        UsageError: HTTP cannot carry it.
    """
    token = os.environ.get("KPROXY_CONTROL_TOKEN") or None
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise UsageError("KPROXY_CONTROL_TOKEN has characters that HTTP cannot carry; use letters")
    return token


def control_recordings(options: argparse.Namespace) -> Path | None:
    """Return the folder of recordings that rules of the control address may name.

    Raises:
        UsageError: there is no control address.
    """
    folder: Path | None = options.control_recordings
    if folder is not None and options.control is None:
        raise UsageError("--control-recordings is for rules that come over --control: give that")
    return folder


def fault_rules(options: argparse.Namespace) -> Rules:
    """Return the rules of the command line.

    Raises:
        UsageError: a rule is invalid, or a file cannot be read.
    """
    from kproxy.proxy.faults import RuleError, Rules
    from kproxy.recording.delays import RECORDINGS_MAX, broker_delays

    # A rule is checked when it is read, and again when it starts to apply.
    read_delays = functools.lru_cache(maxsize=RECORDINGS_MAX)(broker_delays)
    try:
        _, first = options.config_rules or (None, [])
        rules = [*first, *_rules(options, read_delays)]
        seed = random.randrange(_SEEDS) if options.seed is None else options.seed
        found = Rules(rules, seed=seed, read_delays=read_delays, now=time.time_ns())
    except RuleError as error:
        raise UsageError(str(error)) from None
    if options.expect_faults and not (rules or getattr(options, "recorded_faults", False)):
        raise UsageError("--expect-faults: there is no rule; give --faults or --fault")
    return found


def reread_rules(options: argparse.Namespace, rules: Rules) -> Callable[[], list[Rule]] | None:
    """Return what reads the rules of the command line again; None if no file has any. It raises
    UsageError or RuleError."""
    if getattr(options, "mode", "") == "strict":  # a replay without rules
        return None
    if options.config_rules is None:
        return functools.partial(_rules, options, rules.read_delays) if options.faults else None
    from kproxy.proxy.faults import rules_from_toml

    path: Path = options.config_rules[0]

    def read() -> list[Rule]:
        text = kinds.toml_text("--config", path)
        first = rules_from_toml(text, str(path), rules.read_delays, alone=False)
        return [*first, *_rules(options, rules.read_delays)]

    return read


def _rules(options: argparse.Namespace, read_delays: ReadDelays) -> list[Rule]:
    from kproxy.proxy.faults import rule_from_flag, rules_from_toml

    rules: list[Rule] = []
    for path in options.faults:
        rules += rules_from_toml(kinds.toml_text("--faults", path), str(path), read_delays)
    return rules + [rule_from_flag(text, read_delays) for text in options.fault]


def announce_faults(rules: Rules, log: Logger) -> None:
    """Log the number of rules, the seed that repeats their decisions, and their warnings."""
    count = len(rules.rules)
    if count:
        these = "1 fault rule" if count == 1 else f"{count} fault rules"
        log(f"{these}; --seed {rules.seed} repeats what is decided")
    for text in rules.warnings:
        log(text, "warning")


def report_faults(rules: Rules, log: LineLog) -> None:
    """Log the counts of the rules, and a warning for each rule that never matched or fired."""
    from kproxy.proxy.faults import table, unmatched

    if rules.rules:
        log.write(*table(rules.rules).splitlines())
        log.write(*(f"kproxy: {text}" for text in unmatched(rules.rules)), level="warning")


def missed_faults(rules: Rules, options: argparse.Namespace) -> int:
    """Return the exit code: 1 if a rule never fired and `--expect-faults` requires it."""
    from kproxy.proxy.faults import unmatched

    return 1 if options.expect_faults and unmatched(rules.rules) else 0
