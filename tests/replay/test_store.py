"""Where bytes lie: those that were made stay, frames of a recording are read when wanted."""

from __future__ import annotations

import pytest

from kproxy.replay.store import Store


def test_what_was_made_stays() -> None:
    store = Store(0)
    places = [store.append(each) for each in (b"a", b"b")]
    assert [store.frame(place) for place in places] == [b"a", b"b"]


def test_frames_that_were_read_last_are_kept() -> None:
    store, read = Store(2000), []

    def read_frame(place: int) -> bytes:
        read.append(place)
        return bytes([place]) * 500

    store.read_frame = read_frame
    for place in (1, 2, 1, 3, 1, 2, 3):
        assert store.frame(place) == bytes([place]) * 500
    assert read == [1, 2, 3, 2, 3]


def test_a_frame_that_is_offered_need_not_be_read() -> None:
    store = Store(1000)
    store.offer(1, bytes(500))
    store.offer(2, bytes(500))  # there is no room
    assert store.frame(1) == bytes(500)
    with pytest.raises(ValueError):
        store.frame(2)
