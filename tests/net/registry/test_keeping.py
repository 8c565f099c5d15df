"""Schemas that a recording has: found wherever their notes stand, in every file, in what is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy.exchange import notes
from kproxy.exchange.filter import parse
from kproxy.recording import recover, verify
from kproxy.recording.cut import cut
from kproxy.recording.exchanges import schemas_ahead
from kproxy.recording.info import Chunk
from kproxy.recording.scan import Scan
from kproxy.wire.payloads.schemas import Schema, Schemas, note_of
from tests.exchange.making import MS, START_NS
from tests.net.registry.recorded import framed, produced, recording, values

NOTE = notes.schema(START_NS + 9 * MS, note_of([17], Schema("JSON", "{}")))
NEW, LACKS = {"state": "new"}, "schema 17 is not in the recording"


def test_a_note_tells_of_the_records_before_it_too(tmp_path: Path) -> None:
    path, *_ = recording(tmp_path / "a.mcap", produced(framed(17)), [NOTE])
    assert values(path) == [NEW]


def test_every_file_of_a_recording_has_it(tmp_path: Path) -> None:
    parts = [produced(framed(17), first=number) for number in (1, 2, 3)]
    parts[1].append(NOTE)
    files = recording(tmp_path / "a.mcap", *parts, rotated=True)
    _, *files = files  # the first one has nothing but its head
    assert values(files) == [NEW] * 3
    assert [values(path) for path in files] == [[NEW]] * 3, "the next file is beside the first"
    for path in files:
        path.rename(tmp_path / f"{path.stem}.alone")
    alone = [values(path.with_suffix(".alone")) for path in files]
    assert alone == [[LACKS], [NEW], [NEW]]


def test_a_cut_out_has_it(tmp_path: Path) -> None:
    path, *_ = recording(tmp_path / "a.mcap", produced(framed(17)), [NOTE], produced(b"", first=2))
    cut(path, tmp_path / "part.mcap", parse("number:1"), "0")
    assert values(tmp_path / "part.mcap") == [NEW]


def test_a_torn_file_has_it_still(tmp_path: Path) -> None:
    path, *_ = recording(tmp_path / "a.mcap", produced(framed(17)), [NOTE])
    path.write_bytes(path.read_bytes()[:-9])
    recover(path)
    verify(path)
    assert values(path) == [NEW]


def test_a_large_file_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its index names the batches with schemas: no other one is read for them."""
    monkeypatch.setattr("kproxy.recording.writer.FILE_BYTES_MIN", 0)
    parts = [produced(framed(17), first=number) for number in range(1, 50)]
    path, *_ = recording(tmp_path / "a.mcap", *parts[:30], [NOTE], *parts[30:])
    reads: list[int] = []
    again = Scan.again

    def counted(self: Scan, chunk: Chunk) -> Chunk:
        reads.append(chunk.offset)
        return again(self, chunk)

    monkeypatch.setattr(Scan, "again", counted)
    assert [each["id"] for each in schemas_ahead(path)] == [17]
    assert len(reads) == 2, "the index, and the batch with the note"
    assert values(path) == [NEW] * 49


def test_a_hostile_file_does_not_fill_the_memory() -> None:
    schemas = Schemas()
    text = "x" * (8 << 20)
    for number in range(1, 100):
        schemas.note(note_of([number], Schema("JSON", f"{number}{text}")))
        schemas.note(note_of([1], Schema("JSON", f"1{text}")))  # as every file repeats it
    assert len([*schemas.ids]) == 7
