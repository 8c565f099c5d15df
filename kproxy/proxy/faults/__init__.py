"""Faults: rules that break Kafka on purpose, precisely and repeatably.

::

    TOML, flags, dicts ─parse─▶ Rule ─prepare─▶ Active ─┐
                                                        ▼
    request ─▶ RequestView ─▶ matches? hits? ─▶ Hit ─▶ action ─▶ Plan ─▶ Verdict
    response ─────────────────────────────────────────────▶ change ────────▶ Verdict

A `Rule` holds its author's words, an `Active` is the same rule at work: it matches exchanges, hits
some of those, before or after the broker (phase), and does one action to them. `Rules` owns the
active rules and answers the connections, through the protocol in `proxy.verdicts`. The table of
actions is in `actions`, which explains how to add one; nothing else here knows an action by name.
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
