"""Every transport keeps what the pump relies on, and a suite of checks finds one that does not."""

from __future__ import annotations

import contextlib
import select
import ssl
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from tests.net import transports
from tests.net.transports import CHECKS, Pair


@pytest.mark.parametrize("make", [transports.sockets, transports.tls])
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
