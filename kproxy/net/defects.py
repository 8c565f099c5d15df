"""The text about unforeseen exceptions, in one line for a report."""

from __future__ import annotations


def defect(error: Exception) -> str:
    """Return one line about an unforeseen exception, which asks to report it."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"by a defect in kproxy, please report it: {what}"
