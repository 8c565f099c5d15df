"""What a filter finds: the exchanges that `recording.read` gives, at their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy import recording
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import parse
from kproxy.web.found import Found
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "2"
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
PATHS = [DEMO, FORMATS / "torn.mcap", FORMATS / "cut.mcap", FORMATS / "faults.mcap", FORMATS]

pytestmark = pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")


def text_of(exchange: Exchange) -> str:
    return exchange.text


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
@pytest.mark.parametrize(
    "wanted", ["", "is:error", "topic:*", "api:Fetch,Produce", "is:unanswered"]
)
def test_the_exchanges_are_those_of_show(path: Path, wanted: str) -> None:
    found = Found([path], parse(wanted) if wanted else None)
    seen = 0
    for _ in found.read():
        assert len(found) >= seen, "what was found stays"
        seen = len(found)
    expected = list(map(text_of, recording.read(path, wanted or None)))
    assert found.done and len(found) == len(expected)
    assert found.made(0, len(found), text_of) == expected
    one_by_one = (found.made(at, at + 1, text_of) for at in reversed(range(len(found))))
    assert [text for (text,) in one_by_one] == expected[::-1]
    counts = found.slots.counts.values()
    assert sum(sum(by_api.values()) for by_api in counts) == len(expected)


def test_a_recording_that_is_damaged_is_said(tmp_path: Path) -> None:
    whole = bytearray(DEMO.read_bytes())
    whole[len(whole) // 2] ^= 1
    damaged = tmp_path / "damaged.mcap"
    damaged.write_bytes(whole)
    with pytest.raises(recording.RecordingError, match="damaged"):
        for _ in Found([damaged]).read():
            pass
