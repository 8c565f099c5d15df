"""The state of the page, without a browser: what it asks for, and filters that it makes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from kproxy import recording
from kproxy.exchange.filter import parse
from tests.bed import needs

DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
FILES = needs.REPOSITORY / "kproxy" / "look" / "page" / "files"
YEAR = "time:2026-01-01T00:00Z..2027-01-01T00:00Z"
FILTERS = (
    "", "api:Fetch", "api:Produce or api:Fetch", "not api:Fetch", "(api:Fetch or api:Produce)",
    'not client_id:"a or b"', "(api:Fetch) OR api:Metadata", f"client_id:shop {YEAR}",
    f"not {YEAR}", f"not ({YEAR})", f"api:Fetch or {YEAR}", f"api:Fetch not not {YEAR}",
    'topic:orders or not (error:* or client_id:"(")', "client_id:sh\\ or",
)  # fmt: skip
TERMS = "api:Fetch", "connection:7", "time:2026-11-21T23:32:13.760Z..2026-11-21T23:32:13.915Z"


def ran(program: str, folder: Path, *given: str) -> str:
    """What a program beside this file prints, in a folder with the modules of the page."""
    node = needs.program("node")
    (folder / "package.json").write_text('{"type": "module"}')
    for path in (*FILES.glob("*.js"), Path(__file__).with_name(program)):
        shutil.copy(path, folder)
    command = [node, folder / program, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.node
def test_the_chart_gives_colours_to_the_apis_that_became_frequent(tmp_path: Path) -> None:
    assert ran("overview.mjs", tmp_path) == ""


@pytest.mark.node
def test_the_store_keeps_to_what_was_asked_last_and_filters_keep_their_meaning(
    tmp_path: Path,
) -> None:
    said = ran("store.mjs", tmp_path, json.dumps([FILTERS, TERMS]))
    exchanges = list(recording.read(DEMO))
    for text, made in zip(FILTERS, json.loads(said), strict=True):
        for term, both in zip(TERMS, made, strict=True):
            whole, part, found = map(parse, (text, term, both))
            for each in exchanges:
                expected = whole.matches(each) and part.matches(each)
                assert found.matches(each) == expected, (text, term, both)
