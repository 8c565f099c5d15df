"""The levels of lines of the log: info, warning, error.

A line carries its level itself, through all functions that pass a text on to the log; one that says
nothing is information, or an error if it tells of a defect.
"""

from __future__ import annotations

from kproxy.defects import DEFECT


class _WarningLine(str):
    level = "warning"


class _FailureLine(str):
    level = "error"


def warning(text: str) -> str:
    """Return a line about what an operator should look at; kproxy does its work."""
    return _WarningLine(text)


def failure(text: str) -> str:
    """Return a line about what kproxy could not do."""
    return _FailureLine(text)


def level_of(line: str) -> str:
    """Return the level of a line."""
    return getattr(line, "level", "error" if DEFECT in line else "info")
