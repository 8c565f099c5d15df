"""Text that a terminal or a log may see, whoever made it up.

Host names, topics, error messages, notes and paths come from peers and from files. A terminal would
obey control characters in them, and a line end would forge a line of the log.
"""

from __future__ import annotations

from collections.abc import Iterator


def printable(text: str) -> str:
    r"""Write what a terminal must not see (control characters, broken UTF-8) as `\x1b`."""
    if text.isprintable():
        return text
    return "".join(_escaped(text))


def _escaped(text: str) -> Iterator[str]:
    for character in text:
        if character.isprintable():
            yield character
        elif "\udc80" <= character <= "\udcff":
            # A byte that is not UTF-8, as surrogateescape keeps it.
            yield f"\\x{ord(character) - 0xDC00:02x}"
        else:
            yield character.encode("unicode_escape").decode("ascii")
