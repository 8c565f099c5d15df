"""Exchanges of real clients and brokers have the lines that they had: one for each kind of text.

`python -m tests.exchange.test_lines_of_recordings` writes them anew, to be read as a difference.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path

from kproxy.recording import read
from tests.bed import needs

LINES = Path(__file__).with_name("lines.txt")
_RECORDINGS = (
    needs.REPOSITORY / "recordings" / "demo.mcap",
    Path(__file__).with_name("mock_cluster.mcap"),
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
    *sorted((needs.REPOSITORY / "tests" / "look" / "why" / "incidents").glob("*.mcap")),
)


def lines() -> list[str]:
    """The first exchange of each kind: those of one API whose texts differ in names and numbers
    alone are of one."""
    found: dict[str, str] = {}
    with warnings.catch_warnings(action="ignore"):  # some are torn, or of the former format
        for name, exchange in ((path.stem, each) for path in _RECORDINGS for each in read(path)):
            words = f"{exchange.words.request} → {exchange.words.response}"
            kind = re.sub(r"[\w.…-]*\d[\w.…-]*|[a-z-]{7,}", "#", words)
            key = f"{exchange.api} {re.sub('#(, ?#)+', '#', kind)} {exchange.errors}"
            found.setdefault(key, f"{name}: {exchange.text}")
    return sorted(found.values())


def test_lines_are_those_of_before():
    assert lines() == LINES.read_text().splitlines()


if __name__ == "__main__":
    LINES.write_text("".join(f"{line}\n" for line in lines()))
