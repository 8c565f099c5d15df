"""Untrusted text made safe for terminals and logs.

Host names, topics, error messages, notes and paths come from peers and from files. A terminal would
obey control characters in them, and a line end could forge a line of the log.
"""

from __future__ import annotations

import re

_USER_INFO = re.compile(r"(\w:/+)\S*@")
_QUERY = re.compile(r"(\w:/\S*?)[?#]\S*?(?=[\"':;,.)]*(?:\s|$))")


def printable(text: str) -> str:
    r"""Return a text with control characters and invalid UTF-8 escaped, such as `\x1b`."""
    if text.isprintable():
        return text
    return text.translate(_Escapes())


class _Escapes(dict[int, str]):
    """What stands for the characters of a text, by their numbers."""

    def __missing__(self, number: int) -> str:
        character = chr(number)
        if 0xDC80 <= number <= 0xDCFF:
            # A byte of invalid UTF-8, which surrogateescape keeps as this character.
            shown = f"\\x{number - 0xDC00:02x}"
        elif character.isprintable():
            shown = character
        else:
            shown = character.encode("unicode_escape").decode("ascii")
        self[number] = shown
        return shown


def without_credentials(text: str) -> str:
    """Return a text whose URLs have no user, password, query or fragment: there are keys in such
    places. A `//` may have lost a slash, as in paths."""
    return _QUERY.sub(r"\1?…", _USER_INFO.sub(r"\1…@", text))
