"""The decision which files go: whatever the files and limits are."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kproxy.recording.keeping import KeepLimits, KeptFile, what_goes

NOW_NS = 1000
MAYBE = st.none() | st.integers(0, 300)
LIMITS = st.builds(KeepLimits, MAYBE, MAYBE, st.none() | st.integers(2, 8), MAYBE)


@st.composite
def folders(draw: st.DrawFn) -> list[KeptFile]:
    """Some files, the oldest first."""
    ends = sorted(draw(st.lists(st.integers(0, NOW_NS), max_size=12)))
    return [
        KeptFile(Path(f"{n}"), draw(st.integers(1, 60)), end, "5eed", n, draw(st.booleans()))
        for n, end in enumerate(ends)
    ]


def size(files: list[KeptFile]) -> int:
    """The size of files together."""
    return sum(file.size_bytes for file in files)


@given(folders(), LIMITS, st.integers(0, 300), st.integers(0, 300))
def test_what_is_left_is_within_limits_and_nothing_goes_in_vain(
    files: list[KeptFile], limits: KeepLimits, free_bytes: int, open_bytes: int
) -> None:
    def goes(files: list[KeptFile], free_bytes: int) -> list[KeptFile]:
        return what_goes(files, limits, NOW_NS, free_bytes, open_bytes)

    going = goes(files, free_bytes)
    left = [file for file in files if file not in going]
    assert len({file.path for file in going}) == len(going) == len(files) - len(left)
    for is_excerpt in (False, True):  # the oldest first
        kind = [file for file in going if file.is_excerpt is is_excerpt]
        assert kind == [file for file in files if file.is_excerpt is is_excerpt][: len(kind)]
    freed = free_bytes + size(going)
    parts = [file for file in left if not file.is_excerpt]
    excerpts = [file for file in left if file.is_excerpt]
    if limits.age_ns is not None:
        assert all(NOW_NS - file.ended_ns < limits.age_ns for file in parts)
    if limits.files is not None:
        assert len(parts) + 1 <= limits.files
    if limits.size_bytes is not None:
        assert size(left) + open_bytes <= limits.size_bytes or not left
        assert size(excerpts) <= limits.size_bytes // 2
    if limits.free_bytes is not None:
        assert freed >= limits.free_bytes or not left
    assert goes(left, freed) == []
    if going:  # the last one had to go
        last = going[-1]
        kept = [file for file in files if file in left or file == last]
        assert last in goes(kept, freed - last.size_bytes)


def test_parts_go_before_excerpts_and_excerpts_take_half_at_most() -> None:
    files = [KeptFile(Path(f"{n}"), 10, n, is_excerpt=n < 3) for n in range(6)]
    oldest, *_, last = what_goes(files, KeepLimits(size_bytes=40), NOW_NS, 0)
    assert (oldest.path, last.path) == (Path("0"), Path("3"))
    assert [file.path.name for file in what_goes(files, KeepLimits(free_bytes=35), 0, 0)] == list(
        "3450"
    )
