"""The text of a recording for `git diff`: of several recordings, the text of each."""

from __future__ import annotations

from kproxy.view import meaning
from tests.bed import needs
from tests.exchange.filters import DEMO as MOCK


def test_recordings_together_mean_what_each_means_by_itself() -> None:
    """Both have records at the same offsets of topics of the same name, and a group."""
    paths = [MOCK, needs.REPOSITORY / "recordings" / "demo.mcap"]
    alone = [list(meaning.lines([path])) for path in paths]
    assert set(alone[0]) & set(alone[1])
    assert list(meaning.lines(paths)) == [*alone[0], "", *alone[1]]
