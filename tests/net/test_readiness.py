"""Both ways to ask which descriptors are ready say the same."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterator

import pytest

from kproxy.net.readiness import READ, WRITE, Readiness

WAYS = [
    pytest.param(True, marks=pytest.mark.skipif(not hasattr(select, "epoll"), reason="no epoll")),
    False,
]


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that are connected."""
    here, there = socket.socketpair()
    with here, there:
        yield here, there


@pytest.mark.parametrize("epoll", WAYS)
def test_it_says_what_is_watched_and_nothing_else(epoll: bool, pair) -> None:
    here, there = pair
    readiness = Readiness(epoll)

    def ready() -> tuple[bool, bool]:
        found = dict(readiness.poll(0))
        events = found.pop(here.fileno(), 0)
        assert not found
        return bool(events & readiness.reads), bool(events & readiness.writes)

    there.send(b"x")
    seen = []
    before = 0
    for wanted in (READ, READ | WRITE, WRITE, 0):
        readiness.watch(here.fileno(), before, wanted)
        seen.append(ready())
        before = wanted
    assert seen == [(True, False), (True, True), (False, True), (False, False)]
    readiness.close()


@pytest.mark.parametrize("epoll", WAYS)
def test_a_peer_that_is_gone_is_seen_by_who_waits_for_either(epoll: bool, pair) -> None:
    here, there = pair
    readiness = Readiness(epoll)
    readiness.watch(here.fileno(), 0, READ)
    there.close()
    ((descriptor, events),) = readiness.poll(1)
    assert descriptor == here.fileno() and events & readiness.reads
    readiness.watch(here.fileno(), READ, WRITE)
    ((_, events),) = readiness.poll(1)
    assert events & readiness.writes
    readiness.close()
