"""The rules and their counters, for people and recordings: a table, warnings, a note."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kproxy.exchange import notes
from kproxy.exchange.entries import Note
from kproxy.printable import printable
from kproxy.proxy.faults.active import Active
from kproxy.proxy.faults.rules import Rules

_LOOP_MIN = 10
"""Hits of what was hit just before, from which on there is a loop."""


def table(rules: Sequence[Active]) -> str:
    """Return a line per rule: its id, its matches, its hits, its name."""
    rows = [("fault", "matched", "fired", "rule")]
    for rule in rules:
        name = printable(rule.name) + ("" if rule.enabled else " (disabled)") + _loop(rule)
        rows.append((str(rule.fault_id), str(rule.matched), str(rule.fired), name))
    return "\n".join(aligned(rows))


def aligned(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows as lines: columns to the right but for the last, and without empty ones."""
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    for *cells, last in rows:
        shown = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True) if width]
        yield "  ".join([*shown, last])


def _loop(rule: Active) -> str:
    """Say how often clients sent what the rule had hit again at once, if they did so in a loop."""
    if rule.asked_again < _LOOP_MIN:
        return ""
    often = f"{rule.asked_again:,} times"
    return f" (a loop: {often} a client's next request was what this rule had just hit)"


def unmatched(rules: Sequence[Active]) -> list[str]:
    """Return a warning for each rule that never matched or never fired."""
    found: list[str] = []
    for rule in rules:
        if not rule.matched:
            found.append(f"fault rule {rule.name!r} never matched")
        elif not rule.fired:
            found.append(f"fault rule {rule.name!r} matched {rule.matched} times and never fired")
    return found


def plain(rule: Active) -> dict[str, Any]:
    """Return a rule and its counters as plain values, ready for JSON."""
    return {
        "fault_id": rule.fault_id,
        "name": rule.name,
        "enabled": rule.enabled,
        "matched": rule.matched,
        "fired": rule.fired,
        "rule": dict(rule.rule.words),
        "warnings": list(rule.warnings),
    }


def rules_note(rules: Rules, now: int) -> Note:
    """Return the note that tells a recording the rules from now on."""
    return notes.fault_rules(now, rules.seed, [plain(rule) for rule in rules.rules])
