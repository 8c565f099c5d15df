"""Files that `--keep` removed, before they were found or after: read on, and said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kproxy.exchange.entries import Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.look.lines.scan import scan
from kproxy.look.lines.stream import Stream
from kproxy.look.page.found import MatchingExchanges
from kproxy.look.report.light import ReportReading
from kproxy.recording import RecordingError, file, read, recordings
from kproxy.recording.cut import cut
from kproxy.recording.following import Follow
from kproxy.recording.keeping import KeepLimits
from kproxy.recording.notices import Notices
from kproxy.recording.opened import OpenRecordings
from kproxy.replay import opening
from kproxy.replay.opening import Wanted, open_recorded
from kproxy.tables.reading import everything
from kproxy.tables.splits import find, stretches
from tests.look.page.test_routes import serving
from tests.recording.test_retention import begun, fill, remove

SAID = "parts 1 to 2 were removed by --keep 2"


def kept(folder: Path, files: int = 4) -> list[Path]:
    """The files of a recording with `--keep`, each with one exchange."""
    recording = begun(folder / "run.mcap", KeepLimits(files=2))
    fill(recording, files)
    recording.recording.close()
    return recordings(folder)


def test_a_replay_and_an_analysis_say_what_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = begun(tmp_path / "run.mcap", KeepLimits(files=2))
    fill(limited, 4)
    remove(limited, 2)
    fill(limited, 1, 5)
    limited.recording.write(limited.notes(0))
    limited.recording.close()
    monkeypatch.setattr(opening, "INDEXED_BYTES_MIN", 0)
    for where in ("it is read", "an index has it"):
        notices = Notices()
        open_recorded([tmp_path], Wanted(), folder=tmp_path / "index", on_note=notices.note)
        assert SAID in "\n".join(notices.texts), where
    left_out: list[str] = []
    stretches(find([str(tmp_path)]), on_left_out=left_out.append)
    assert SAID in "\n".join(left_out)


def test_that_nothing_is_left_of_an_earlier_recording_is_said(tmp_path: Path) -> None:
    earlier = begun(tmp_path / "a.mcap", KeepLimits(files=2))
    fill(earlier, 3)
    earlier.recording.close()
    limited = begun(tmp_path / "b.mcap", KeepLimits(files=2))
    fill(limited, 3)
    while any(path.name.startswith("a") for path in recordings(tmp_path)):
        assert remove(limited, 1)
    limited.recording.write(limited.notes(0))
    limited.recording.close()
    stream = Stream([tmp_path])
    assert list(stream.exchanges())
    assert "an earlier recording was removed by --keep 2, 3 files in all" in stream.notices


def by_stream(paths: list[Path]) -> Iterator[list[str]]:
    stream = Stream(paths)
    assert stream.recordings
    yield []
    assert [each.number for each in stream.exchanges()] == [1, 3, 4]
    yield stream.notices


def by_following(paths: list[Path]) -> Iterator[list[str]]:
    stream = Stream(paths)
    assert stream.recordings
    yield []
    found = (each for each in stream.growing() if isinstance(each, Exchange))
    assert [each.number for each in found] == [1, 3, 4]
    yield stream.notices


def by_replay(paths: list[Path]) -> Iterator[list[str]]:
    notices, opened = Notices(), OpenRecordings.of(paths)
    yield []
    assert [each.number for each in opened.exchanges(notices.note)] == [1, 3, 4]
    yield notices.texts


def by_analysis(paths: list[Path]) -> Iterator[list[str]]:
    found, left_out = find([str(paths[0].parent)]), list[str]()
    yield []
    assert len(stretches(found, on_left_out=left_out.append)) == 3
    yield left_out


@pytest.mark.parametrize("reader", [by_stream, by_following, by_replay, by_analysis])
def test_a_file_that_goes_after_it_was_found_is_passed_over_and_said(
    reader: Callable[[list[Path]], Iterator[list[str]]], tmp_path: Path
) -> None:
    paths = kept(tmp_path)
    steps = reader(paths)
    next(steps)
    paths[1].unlink()
    said = "\n".join(next(steps))
    assert f"{paths[1]} was removed before it was read" in said
    assert "part 2 is not there (--keep 2 removes the oldest)" in said


def scanned(paths: list[Path], go: Callable[[int], None], on_note: Callable[[Note], None]) -> None:
    assert {each.number for each in scan(paths, go, on_note)} == {1, 3, 4}  # none is decodable


def cut_out(paths: list[Path], go: Callable[[int], None], on_note: Callable[[Note], None]) -> None:
    out = paths[0].parent / "out"
    out.mkdir()
    cut(paths, out / "cut.mcap", parse("number:1..3"), "kproxy", on_note, go)
    assert [each.number for each in read(out)] == [1, 3]


def analysed(paths: list[Path], go: Callable[[int], None], on_note: Callable[[Note], None]) -> None:
    parts = stretches(find([str(paths[0].parent)]))
    go(1)
    found = [each for part in parts for each in everything(part)]
    assert [each.number for each in found if isinstance(each, Exchange)] == [1, 3, 4]
    for each in found:
        if isinstance(each, Note):
            on_note(each)


@pytest.mark.parametrize("reader", [scanned, cut_out, analysed])
def test_a_file_that_goes_while_others_are_read_is_passed_over_and_said(
    reader: Callable[..., None], tmp_path: Path
) -> None:
    paths, notices = kept(tmp_path), Notices()
    reader(paths, lambda done: paths[1].unlink(missing_ok=True), notices.note)
    assert "\n".join(notices.texts).count(f"{paths[1]} was removed before it was read") == 1


def test_a_file_that_a_shell_named_may_be_gone_but_a_wrong_name_is_a_mistake(
    tmp_path: Path,
) -> None:
    paths = kept(tmp_path)
    paths[0].unlink()
    assert [each.number for each in read(paths, told=lambda note: None)] == [2, 3, 4]
    with pytest.raises(RecordingError, match=r"nothere.mcap: does not exist"):
        list(read([*paths[1:], tmp_path / "elsewhere" / "nothere.mcap"]))
    with pytest.raises(RecordingError, match="does not exist"):
        list(read([paths[0]]))


async def test_a_page_that_is_open_goes_on_without_the_files_that_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file, "_PIECES_KEPT", 0)  # as if there were many others
    monkeypatch.setattr(file, "_CHUNKS_KEPT", 0)
    paths = kept(tmp_path, 8)
    async with serving(paths) as page:
        found = {"done": False}
        while not found["done"]:
            found = await page.found("/rows?begin=0&end=0&known=0")
        for path in paths[:2]:
            path.unlink()
        found = await page.found("/rows?begin=0&end=9")
        assert [(row["name"], row.get("lost")) for row in found["rows"]] == [
            (f"#{n}", True if n <= 2 else None) for n in range(1, 9)
        ]
        assert f"{paths[0].name} to {paths[1].name} were removed" in "".join(found["notices"])
        findings = {"done": False}
        while not findings["done"]:
            findings = await page.found("/findings")
        assert findings["exchanges"] == 6


@pytest.mark.parametrize("caught_up", [0, 1, 2, 3])
def test_a_recording_that_is_followed_goes_on_with_the_parts_that_are_left(
    caught_up: int, tmp_path: Path
) -> None:
    """All that it has read is gone when it looks again, and more."""
    limited = begun(tmp_path / "run.mcap", KeepLimits(files=2))
    fill(limited, 1)
    reading = ReportReading([tmp_path / "run.mcap"])
    steps = reading.read(Follow.WHILE_WRITTEN)
    while next(steps):
        pass
    fill(limited, 1, 2)
    for _ in range(caught_up):
        next(steps)
    fill(limited, 5, 3)
    assert len(remove(limited, 4)) == 5
    limited.recording.close()
    for _ in steps:
        pass
    data = reading.data()
    assert SAID.removeprefix("parts 1 to 2") in "".join(data.notices)
    assert (data.files[-1].last, len(data.files)) == (7, reading.part.counts.total.count)


def test_a_search_that_is_behind_the_files_that_go_finds_the_others(tmp_path: Path) -> None:
    paths = kept(tmp_path)
    found = MatchingExchanges(paths)
    for path in paths[:2]:
        path.unlink()
    found.read()
    assert found.made(0, 9, lambda exchange: exchange.number, int) == [3, 4]
