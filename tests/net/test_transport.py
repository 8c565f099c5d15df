"""Every transport keeps what the pump relies on, and a suite of checks finds one that does not."""

from __future__ import annotations

import contextlib
import select
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.net import transports
from tests.net.transports import CHECKS, MemoryTransport, Pair


@pytest.mark.parametrize("make", [transports.sockets, transports.memory, transports.tls])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.strip("_"))
def test_a_transport_keeps_its_promises(
    make: Callable[[], AbstractContextManager[Pair]], check: Callable[[Pair], None]
) -> None:
    with make() as pair:
        check(pair)


def test_an_end_of_tls_alone_is_seen() -> None:
    """Many peers send close_notify right behind their last bytes, and end the socket only when they
    have ours: the descriptor must say that there is more."""
    transport, right = transports.with_other_tls()
    right.write(b"last")
    right.write(b" words")
    with pytest.raises(ssl.SSLWantReadError):
        right.unwrap()
    with contextlib.closing(right):
        got = []
        while not got or got[-1]:
            assert select.select([transport], [], [], 10)[0]
            got.append(transport.try_receive())
        assert b"".join(got) == b"last words"
        assert transport.try_send(b"yes?") == 4, "the other direction is open"
        transport.close(False)
        right.setblocking(True)
        assert right.recv(10) == b"yes?"


class Forgetful(MemoryTransport):
    """Drops what it cannot send at once."""

    def try_send(self, data: bytes | memoryview) -> int:
        super().try_send(data)
        return len(data)


class Hoarder(MemoryTransport):
    """Takes everything, and flushes only when it is told to, without saying that it must be."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = b""

    def try_send(self, data: bytes | memoryview) -> int:
        self.kept += data
        return len(data)


class Endless(MemoryTransport):
    """Passes no half-close on."""

    def send_eof(self) -> None:
        pass


class Stubborn(MemoryTransport):
    """Takes nothing, though its descriptor says that it would."""

    def try_send(self, data: bytes | memoryview) -> int:
        return 0


class Gentle(MemoryTransport):
    """Resets nothing."""

    def close(self, abrupt: bool) -> None:
        super().close(False)


@pytest.mark.parametrize("kind", [Forgetful, Hoarder, Endless, Stubborn, Gentle])
def test_a_transport_that_does_not_is_found(
    kind: type[MemoryTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "_SECONDS", 0.05)
    failed = []
    for check in CHECKS:
        pair = transports.memory_pair(kind(), kind())
        with contextlib.suppress(Exception, pytest.fail.Exception):
            check(pair)
            continue
        failed.append(check.__name__)
    assert failed
