"""What a filter finds: the exchanges that `recording.read` gives, at their places."""

from __future__ import annotations

from pathlib import Path

import pytest

from kproxy import recording
from kproxy.exchange.filter import parse
from kproxy.web.found import Found
from tests.bed import needs

FORMATS = needs.REPOSITORY / "tests" / "recording" / "formats" / "2"
DEMO = needs.REPOSITORY / "recordings" / "demo.mcap"
PATHS = [DEMO, FORMATS / "torn.mcap", FORMATS / "cut.mcap", FORMATS / "faults.mcap", FORMATS]

pytestmark = pytest.mark.filterwarnings("ignore::kproxy.recording.RecordingWarning")


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
    expected = [each.text for each in recording.read(path, wanted or None)]
    assert found.done and len(found) == len(expected)
    assert [each.text for each in found.exchanges(0, len(found))] == expected
    one_by_one = (found.exchanges(at, at + 1) for at in reversed(range(len(found))))
    assert [each.text for (each,) in one_by_one] == expected[::-1]
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
