"""Text in columns of a terminal: Chinese characters take two, combining ones none."""

from __future__ import annotations


def columns(text: str) -> int:
    """Return the number of columns that printable text takes."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    # Of what the library does not know a column each is the best guess.
    return found if (found := wcswidth(text)) >= 0 else len(text)


def padded(text: str, width: int) -> str:
    """Fill text with spaces up to a number of columns."""
    return text + " " * max(0, width - columns(text))


def cut_middle(text: str, width: int) -> str:
    """Cut text to a number of columns, keeping both ends: `consum…ic-1`."""
    if columns(text) <= width:
        return text
    if not text.isascii():
        return cut(text, width)
    behind = (width - 1) // 3
    return f"{text[: width - 1 - behind]}…{text[len(text) - behind :]}"


def cut(text: str, width: int) -> str:
    """Cut text to a number of columns, with an ellipsis in place of its end."""
    if columns(text) <= width:
        return text
    if text.isascii():
        return text[: max(0, width - 1)] + "…"
    kept = ""
    left = width - 1
    for character in text:
        left -= columns(character)
        if left < 0:
            break
        kept += character
    return kept + "…"
