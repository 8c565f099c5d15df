"""The lines of the log, which have a level: info, warning, error."""

from __future__ import annotations

from typing import Literal, Protocol

Level = Literal["info", "warning", "error"]
"""warning: what an operator should look at while kproxy does its work; error: what it could not do.
"""


class Logger(Protocol):
    """Takes the lines of a log, one at a time."""

    def __call__(self, text: str, level: Level = "info", /) -> None:
        """Log a line."""
        ...


def silent(text: str, level: Level = "info", /) -> None:
    """Log nothing."""


def keeping(lines: list[tuple[str, Level]]) -> Logger:
    """Return what adds lines with their levels to these."""

    def log(text: str, level: Level = "info", /) -> None:
        lines.append((text, level))

    return log
