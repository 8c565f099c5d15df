"""The error of a start that cannot work."""

from __future__ import annotations


class Unusable(Exception):
    """Options, or limits of the system, that cannot work; the text says why, and what to change."""

    exit_code = 1
