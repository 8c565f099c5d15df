"""What the page finds: the same as `kproxy why`, of files and of recordings that grow."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from kproxy import recording
from kproxy.cli import main
from kproxy.look.page import findings as page_findings
from kproxy.look.page import found as page_found
from kproxy.look.page.findings import GrowingFindings
from kproxy.look.page.work import Searches
from kproxy.recording.files import lock
from kproxy.recording.paths import info
from tests.bed import needs
from tests.bed.random_cluster import RandomCluster
from tests.bed.waiting import until
from tests.look.page.test_routes import serving
from tests.recording.making import write

INCIDENTS = needs.REPOSITORY / "tests" / "look" / "why" / "incidents"
FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "3"
FILES = [
    *(INCIDENTS / f"{name}.mcap" for name in ("crashloop", "dups", "quota", "wrongboot")),
    FORMATS / "faults.mcap",
]

pytestmark = pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")


def why(*paths: Path) -> str:
    """What `kproxy why` prints."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", out := io.StringIO())
        assert main(["why", *map(str, paths)]) == 0
    return out.getvalue()


def told(found: list[dict[str, Any]]) -> str:
    """The same of findings on the page."""
    lines: list[str] = []
    for each in found:
        lines += [each["text"], *(f"  {more}" for more in each["evidence"])]
        lines += [f"  {each['command']}"] if each["command"] else []
    return "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_the_page_finds_what_why_says_and_leads_to_its_exchanges(path: Path) -> None:
    async with serving([path]) as page:
        found: Any = {"done": False}
        while not found["done"]:
            found = await page.found("/findings")
        assert told(found["findings"]) == why(path)
        assert (found["behind"], found["error"]) == (0, None)
        assert found["exchanges"] == sum(1 for _ in recording.read(path))
        for each in found["findings"]:
            chosen = {one.name for one in recording.read(path, each["filter"])}
            assert chosen or not each["filter"], "it leads to some"
            numbers = {f"{each['recording']}#{n}" for n in parse_numbers(each["filter"])}
            assert numbers <= chosen
            if each["story"]:
                status, _, body = await page.get(f"/story?of={each['story'].replace('#', '%23')}")
                assert status == 200, body


def parse_numbers(text: str) -> list[str]:
    """The numbers that a filter of numbers names."""
    names = text.removeprefix("number:").split(",")
    return [each.rpartition("#")[2] for each in names] if text.startswith("number:") else []


def parts_of(name: str | int, folder: Path) -> list[Path]:
    """The files of a recording that is kept with the tests, or of a random one, in many batches."""
    if name == "rotated":
        return sorted(FORMATS.glob("rotated*.mcap"), key=lambda each: info(each).part)
    if isinstance(name, int):
        path = RandomCluster(name).run(80).recorded(folder)
    else:
        path = INCIDENTS / f"{name}.mcap"
    every = list(recording.entries(path))
    return [write(folder / "new.mcap", [every[n : n + 5] for n in range(0, len(every), 5)])]


@pytest.mark.parametrize("name", ["rotated", "hang", 1])
def test_findings_that_grew_are_those_of_the_finished_recording(
    name: str | int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in pieces of any size, and asked for between them."""
    monkeypatch.setattr(page_findings, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(page_findings, "FRESH_SECONDS", 0.0)
    folder, dice = tmp_path / "grows", random.Random(name)
    folder.mkdir()
    parts = parts_of(name, tmp_path)
    found = GrowingFindings([folder / parts[0].name], lambda: False)
    thread = threading.Thread(target=found.read)
    seen, finish = [0], contextlib.ExitStack()
    for part in parts:
        data, file = part.read_bytes(), open(folder / part.name, "ab", buffering=0)
        assert lock(file.fileno())
        head = len(data) // 4
        file.write(data[:head])
        finish.close()  # the part before, once this one is there
        finish.callback(file.close)
        if not thread.is_alive():
            thread.start()
        ends = sorted(dice.sample(range(head, len(data)), 8))
        for begin, end in itertools.pairwise([head, *ends]):
            file.write(data[begin:end])
            found.caught_up = False
            until(lambda: found.caught_up, "what was written is read")
            seen.append(found.found()[0])
        finish.callback(file.write, data[ends[-1] :])
    finish.close()
    thread.join(30)
    count, _, made = found.found()
    assert found.done and count == sum(1 for _ in recording.read(folder))
    assert seen == sorted(seen) and 0 < seen[-1] <= count and len({*seen}) > 2, seen
    assert told(made) == why(*(folder / part.name for part in parts))


async def test_findings_rest_for_a_search_until_it_has_shown_all_there_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traffic that never stops does not keep them behind, however much the list lags, too."""
    monkeypatch.setattr(page_found, "BEHIND_SECONDS", -1.0)  # whatever is read: there is more
    data, path = parts_of("hang", tmp_path)[0].read_bytes(), tmp_path / "grows.mcap"
    with contextlib.ExitStack() as stack:
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, file)
        assert lock(file) and os.write(file, data[: len(data) // 2])
        async with trio.open_nursery() as nursery:
            searches = Searches([path], nursery, print)
            rests = searches.findings().found.is_busy
            listed = searches.find("").found
            assert rests()
            with trio.fail_after(10):
                while not listed.grows:
                    await trio.sleep(0.01)
            assert listed.is_behind and not rests()
            searches.find("is:error")
            assert rests()
            nursery.cancel_scope.cancel()
