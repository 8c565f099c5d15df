"""Faults: rules that break Kafka on purpose, precisely and repeatably.

::

    TOML, flags, dicts ─parse─▶ Rule ─prepare─▶ Prepared ─┐
                                                          ▼
    request ─▶ RequestView ─match─▶ items ─trigger─▶ action ─▶ Verdict
    response ──────────────────────────────────────▶ change ─▶ Verdict

A rule says which exchanges it means (match), which of those it hits (trigger), on which side of the
broker (phase), and what happens then (one action). `rules.Rules` owns them and answers the
connections, through the protocol in `proxy.verdicts`.
"""

from __future__ import annotations

from kproxy.proxy.faults.actions import help_text
from kproxy.proxy.faults.parse import (
    rule_from_flag,
    rule_from_words,
    rules_from_toml,
    words_from_text,
)
from kproxy.proxy.faults.report import plain, rules_note, table, unmatched
from kproxy.proxy.faults.rule import Rule, RuleError
from kproxy.proxy.faults.rules import Rules

__all__ = [
    "Rule",
    "RuleError",
    "Rules",
    "help_text",
    "plain",
    "rule_from_flag",
    "rule_from_words",
    "rules_from_toml",
    "rules_note",
    "table",
    "unmatched",
    "words_from_text",
]
