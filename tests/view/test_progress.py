"""Progress bars: on a terminal, from two seconds on, gone at the end."""

from __future__ import annotations

import io

import pytest

from kproxy.view.progress import Progress


class Terminal(io.StringIO):
    """A terminal that keeps what it is given."""

    def isatty(self) -> bool:
        return True


class Clock:
    """A clock that the test sets."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_it_comes_after_two_seconds_and_goes_at_the_end() -> None:
    out, clock = Terminal(), Clock()
    with Progress("stats", 1000, out, clock) as progress:
        clock.now += 1.9
        progress.passed(100)
        assert out.getvalue() == ""
        clock.now += 2.1
        progress.passed(250)
        assert "kproxy stats: ━━━━━━────────────────── 25%, 12.0 s left" in out.getvalue()
        before = out.getvalue()
        progress.passed(251)
        assert out.getvalue() == before, "not for every batch"
        clock.now += 4
        progress.passed(1000)
    shown = out.getvalue()
    assert shown.endswith("\r\x1b[K") and "100%" in shown and "\n" not in shown


@pytest.mark.parametrize(("out", "total"), [(io.StringIO(), 10), (Terminal(), 0)])
def test_nothing_is_shown_where_nobody_looks_or_nothing_is_known(out, total) -> None:
    clock = Clock()
    with Progress("show", total, out, clock) as progress:
        clock.now += 60
        progress.passed(5)
    assert out.getvalue() == ""
