"""Faults: rules that break Kafka on purpose, precisely and repeatably.

::

    TOML, flags, dicts ─parse─▶ Rule ─prepare─▶ Active ─┐
                                                        ▼
    request ─▶ RequestView ─▶ means? match? hit? ─▶ Hit ─▶ action ─▶ Plan ─▶ Verdict
    response ─────────────────────────────────────────────▶ change ────────▶ Verdict

A `Rule` is what its author wrote, an `Active` the same rule at work: which exchanges it means,
which of those it hits, on which side of the broker (phase), and what happens then (one action).
`Rules` owns them and answers the connections, through the protocol in `proxy.verdicts`. What can
happen is the table in `actions`, which says how to add to it; nothing else here knows an action by
name.
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
