"""Stored frames, written and followed again, give the stored exchanges."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from kproxy.exchange.entries import CLIENT_ENDED, ExchangeRow
from kproxy.exchange.exchange import Exchange
from kproxy.recording import Writer, entries, info, read
from kproxy.recording.cut import cut
from tests.bed import needs
from tests.recording.making import SETTINGS

FOUND = sorted(
    path
    for folder in ("recordings", "tests/recording/formats", "tests/exchange")
    for path in (needs.REPOSITORY / folder).glob("**/*.mcap")
    if ".failed" not in path.name  # what another test leaves
)
EVERY = [[path] for path in FOUND if "rotated" not in path.stem]
EVERY += [
    [path for path in FOUND if path.parent == each.parent and "rotated" in path.stem]
    for each in FOUND
    if each.stem == "rotated"
]
recordings = pytest.mark.parametrize(
    "paths", EVERY, ids=lambda paths: f"{paths[0].parent.name}-{paths[0].stem}"
)
LEAVING: dict[str, Any] = dict.fromkeys(
    ("request_sent_ns", "response_sent_ns", "queued_ns", "fault_ns", "held_behind"), 0
)
"""What is known when a frame has left: its own piece may not say it."""


def row_of(exchange: Exchange) -> ExchangeRow:
    """The row of an exchange without the places of its frames."""
    return exchange.row._replace(request_position=0, response_position=0)


def when_it_came(exchange: Exchange) -> ExchangeRow:
    """What the pieces of an exchange say of it."""
    flags = exchange.row.response_flags & ~CLIENT_ENDED
    return row_of(exchange)._replace(**LEAVING, response_flags=flags)


def by_number(paths: list[Path]) -> dict[int, Exchange]:
    """The exchanges of a recording."""
    found = {each.number: each for each in read(paths, told=lambda note: None)}
    assert found
    return found


def compare(stored: dict[int, Exchange], again: dict[int, Exchange]) -> None:
    """Compare who they are of, and their bytes."""
    assert again.keys() == stored.keys()
    for number, each in stored.items():
        other = again[number]
        assert (other.request_frame, other.response_frame) == (
            each.request_frame, each.response_frame,
        )  # fmt: skip
        assert (other.request_sent, other.response_sent) == (each.request_sent, each.response_sent)
        assert (other.client_id, other.client_address) == (each.client_id, each.client_address)


@recordings
def test_entries_that_are_written_again_are_the_same_exchanges(
    paths: list[Path], tmp_path: Path
) -> None:
    stored, head = by_number(paths), info(paths[0])
    settings = SETTINGS | {"start_ns": head.start_ns, "schema_id": head.schema_id}
    writer = Writer(tmp_path / "again.mcap", **settings)
    every = entries(paths)
    while some := list(itertools.islice(every, 7)):
        writer.write(some)
    writer.close()
    again = by_number([tmp_path / "again.mcap"])
    compare(stored, again)
    for number, each in stored.items():
        assert when_it_came(again[number]) == when_it_came(each)


@recordings
def test_exchanges_that_are_written_again_are_the_same(paths: list[Path], tmp_path: Path) -> None:
    stored = by_number(paths)
    cut(paths, tmp_path / "again.mcap", None, "0.1.0")
    again = by_number([tmp_path / "again.mcap"])
    compare(stored, again)
    for number, each in stored.items():
        assert row_of(again[number]) == row_of(each)
