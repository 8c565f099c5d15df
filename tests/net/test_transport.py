"""Every transport keeps what the pump relies on, and a suite of checks finds one that does not."""

from __future__ import annotations

import contextlib
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
