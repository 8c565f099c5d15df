"""Exchanges of real clients and brokers have the lines that they had: one for each kind of text.

`python -m tests.exchange.test_lines_of_recordings` writes them anew, to be read as a difference.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from kproxy.exchange.exchange import Exchange
from kproxy.recording import read
from tests.bed import needs

LINES = Path(__file__).with_name("lines.txt")
HEAD = """\
# The first exchange of each kind in recordings of real clients and brokers, as `kproxy show` has
# it, behind the name of its recording. Exchanges of one API with the same errors are of one kind if
# their texts differ in numbers and in names alone: of clients, topics, groups, transactional ids,
# assignors. Written by `python -m tests.exchange.test_lines_of_recordings`.
"""
_RECORDINGS = (
    needs.REPOSITORY / "recordings" / "demo.mcap",
    Path(__file__).with_name("mock_cluster.mcap"),
    *sorted((needs.REPOSITORY / "tests" / "recording" / "formats" / "3").glob("*.mcap")),
    *sorted((needs.REPOSITORY / "tests" / "look" / "why" / "incidents").glob("*.mcap")),
)


def _names(exchange: Exchange) -> Iterator[str]:
    """The names that a text may have."""
    yield exchange.client_id or ""
    yield from (*exchange.topics, *exchange.groups, *exchange.transactional_ids, *exchange.faults)


def lines() -> list[str]:
    """The first exchange of each kind."""
    found: dict[str, str] = {}
    with warnings.catch_warnings(action="ignore"):  # some are torn, or of the former format
        for name, exchange in ((path.stem, each) for path in _RECORDINGS for each in read(path)):
            kind = f"{exchange.words.request} → {exchange.words.response}"
            for each in sorted({*filter(None, _names(exchange))}, key=len, reverse=True):
                kind = re.sub(rf"(?<![\w-]){re.escape(each)}(?![\w-])", "#", kind)
            kind = re.sub(r"[\w.…/-]*[\d…][\w.…/-]*", "#", kind)
            kind = re.sub(r"\b(range|roundrobin|sticky|cooperative-sticky)\b", "#", kind)
            key = f"{exchange.api} {re.sub('#([, ]+#)+', '#', kind)} {exchange.errors}"
            found.setdefault(key, f"{name}: {exchange.text}")
    return sorted(found.values())


def test_lines_are_those_of_before():
    assert lines() == LINES.read_text().removeprefix(HEAD).splitlines()


if __name__ == "__main__":
    LINES.write_text(HEAD + "".join(f"{line}\n" for line in lines()))
