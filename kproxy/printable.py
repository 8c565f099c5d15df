"""Untrusted text made safe for terminals and logs.

Host names, topics, error messages, notes and paths come from peers and from files. A terminal would
obey control characters in them, and a line end could forge a line of the log.
"""

from __future__ import annotations

from collections.abc import Iterator


def printable(text: str) -> str:
    r"""Return a text with control characters and invalid UTF-8 escaped, such as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(_escaped(text))


def _escaped(text: str) -> Iterator[str]:
    for character in text:
        if character.isprintable():
            yield character
        elif "\udc80" <= character <= "\udcff":
            # A byte of invalid UTF-8, which surrogateescape keeps as this character.
            yield f"\\x{ord(character) - 0xDC00:02x}"
        else:
            yield character.encode("unicode_escape").decode("ascii")
