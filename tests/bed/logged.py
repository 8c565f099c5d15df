"""The log of what is tested, as a list of its lines."""

from __future__ import annotations

from kproxy.levels import Level, Logger


def to(lines: list[str]) -> Logger:
    """Return a log that adds its lines to these, without levels: `levels.keeping` keeps these."""

    def log(text: str, level: Level = "info", /) -> None:
        lines.append(text)

    return log
