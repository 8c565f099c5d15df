"""Rows that match a filter: those of all rows whose exchanges match it, however they are read."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import hypothesis
import pytest
from hypothesis import strategies as st

from kproxy import recording, tables
from kproxy.exchange.entries import Frame, Note
from kproxy.exchange.filter import Filter, parse
from kproxy.recording import RecordingError, writer
from kproxy.recording.batch_index import FILE_BYTES_MIN
from kproxy.tables import reading, splits
from kproxy.tables.views import chosen
from tests.bed import needs
from tests.exchange.filters import FILTERS
from tests.recording import making
from tests.versions import ALL

_FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
FORMATS = [_FORMATS / f"{name}.mcap" for name in ("faults", "java-4.4.0", "torn", "transactions")]
COLUMNS = {
    "exchanges": ["recording", "number", "api", "topics", "errors", "faults", "unanswered"],
    "frames": ["recording", "number", "side", "frame_bytes"],
    "records": ["topic", "partition", "offset", "number", "client_id"],
}
SOME = [
    "api:Fetch,Produce",
    "not api:Fetch",
    "is:error or fault:*",
    "is:routine",
    "is:unanswered or is:undelivered",
    "client_id:*a* service_ms:1..",
    "topic:orders* or group:*",
    "connection:2..4 not (api:Fetch or request_bytes:100..)",
    "number:1,5..9",
    "time:2020-01-01..",
    "time:..2020-01-01",
]


def rows(
    paths: Sequence[Path], view: str, size: int, wanted: Filter | None = None
) -> Iterator[dict[str, Any]]:
    """The rows of recordings, cut into stretches of a size; with a filter, those that match."""
    columns = chosen(view, COLUMNS[view])
    for stretch in splits.stretches(splits.find(list(map(str, paths))), size):
        for batch in reading.record_batches(stretch, view, columns, wanted=wanted):
            yield from batch.to_pylist()


ROWS_OF = {
    "exchanges": lambda each: 1,
    "frames": lambda each: bool(each.request_bytes) + bool(each.response_bytes),
    "records": lambda each: len(each.records),
}
"""How many rows an exchange has in a view."""


def check(
    paths: Sequence[Path], filters: Sequence[Filter], size: int = 1 << 27, views: str = "exchanges"
) -> None:
    """Check the rows of views of one recording."""
    exchanges = [
        (each, [wanted.matches(each) for wanted in filters]) for each in recording.read(paths)
    ]
    for view in views.split():
        every = list(rows(paths, view, size))
        for at, wanted in enumerate(filters):
            of_each = Counter[int]()
            for each, matches in exchanges:  # numbers of forged ones may be alike
                of_each[each.number] += matches[at] * ROWS_OF[view](each)
            found = list(rows(paths, view, size, wanted))
            assert Counter(row["number"] for row in found) == +of_each, wanted
            if len(exchanges) == len({each.number for each, _ in exchanges}):
                assert found == [row for row in every if row["number"] in +of_each]


@pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")
@pytest.mark.parametrize("path", FORMATS, ids=lambda path: path.name)
def test_filters_mean_what_they_mean_to_show(path: Path) -> None:
    check([path], list(map(parse, SOME)), views="exchanges frames records")


def test_they_do_over_the_files_of_a_recording_and_over_stretches(indexed: Path) -> None:
    paths = sorted(indexed.glob("*.mcap"))
    check(paths, list(map(parse, SOME[2:4])), 16384, views="exchanges records")


@hypothesis.given(
    making.batches_of_entries,
    st.lists(FILTERS, max_size=3),
    st.sampled_from([64, 1 << 27]),
    st.sampled_from([0, FILE_BYTES_MIN]),
)
@hypothesis.settings(max_examples=300 if ALL else 25)
def test_they_do_for_arbitrary_frames_with_an_index_and_without(
    batches: list[list[Frame | Note]], filters: list[Filter], size: int, index_from: int
) -> None:
    frames: list[list[Frame | Note]] = [[making.opened(client_address="127.0.0.1:5000")]]
    frames += [[each for each in batch if isinstance(each, Frame)] for batch in batches]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(writer, "FILE_BYTES_MIN", index_from),
    ):
        check([making.write(Path(folder) / "some.mcap", frames)], filters, size)


def test_times_count_from_the_first_recording_and_numbers_may_be_of_one(tmp_path: Path) -> None:
    for name, start in (("b", 5_000_000_000), ("a", 0)):
        frames = [
            frame
            for number in (1, 2)
            for frame in (making.request(number, b"x" * 20), making.response(number, b"y" * 20))
        ]
        for frame in frames:
            for moment in ("received_ns", "sent_ns", "request_received_ns", "request_sent_ns"):
                with contextlib.suppress(AttributeError):
                    setattr(frame, moment, getattr(frame, moment) + start)
        making.write(tmp_path / f"{name}.mcap", [frames], start_ns=making.START_NS + start)

    def found(wanted: str) -> list[tuple[str, int]]:
        names = ["recording", "number"]
        table = tables.read(tmp_path, columns=names, wanted=wanted).read_all()
        return [tuple(row.values()) for row in table.to_pylist()]

    assert found("time:..+1s") == [("a", 1), ("a", 2)]
    assert found("time:+1s..") == [("b", 1), ("b", 2)]
    assert found("number:b#2") == [("b", 2)]
    with pytest.raises(RecordingError, match="c: is no recording that is given: there is a, b"):
        found("number:c#1")
