"""The text of a recording for `git diff`: of several recordings, the text of each."""

from __future__ import annotations

from pathlib import Path

from kproxy.look.lines import meaning
from tests.bed import needs
from tests.exchange.filters import DEMO as MOCK
from tests.wire.payloads import making


def test_recordings_together_mean_what_each_means_by_itself() -> None:
    """Both have records at the same offsets of topics of the same name, and a group."""
    paths = [MOCK, needs.REPOSITORY / "recordings" / "demo.mcap"]
    alone = [list(meaning.lines([path])) for path in paths]
    assert set(alone[0]) & set(alone[1])
    assert list(meaning.lines(paths)) == [*alone[0], "", *alone[1]]


def test_decoded_records_are_text_with_the_name_of_their_schema(tmp_path: Path) -> None:
    """Not with its id, which the next registry may give to another."""
    lines = [line.strip() for line in meaning.lines([making.write(tmp_path / "shop.mcap")])]
    (ann,) = (line for line in lines if '"customer": "ann"' in line)
    assert ann.startswith('[0] "ann" (JSON) → {"customer": "ann", ') and ann.endswith("} (JSON)")
    assert any("ben → " in line and "(schema 99 is not" in line for line in lines)
