"""Exceptions that nobody foresaw, in one line for who can report them."""

from __future__ import annotations


def defect(error: Exception) -> str:
    """Say of an exception that nobody foresaw how to report it, in one line."""
    what = f"{type(error).__name__}: {error}".splitlines()[0]
    return f"by a defect in kproxy, please report it: {what}"
