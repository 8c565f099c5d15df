"""What is said of a defect: enough to find it, and nothing that a peer has sent."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from kproxy.defects import defect
from kproxy.exchange.entries import Side
from kproxy.proxy.actions import Action
from tests.net.pumped import pumped
from tests.proxy.machines import Answerer

SECRETS = ["s3cr3t", "it's s3cr3t", 's3cr3t "quoted"', "\0alice\0s3cr3t\n"]
FAILURES: list[Callable[[Any], Any]] = [
    int,
    {}.__getitem__,
    lambda each: getattr(each, each),
    lambda each: {}[each.encode()],
    lambda each: int(each.encode()),
    [].index,
]


@pytest.mark.parametrize("secret", SECRETS)
def test_no_exception_tells_what_it_failed_on(secret: str) -> None:
    for fail in FAILURES:
        with pytest.raises(Exception) as caught:
            fail(secret)
        line = defect(caught.value)
        assert "s3cr3t" not in line and "\n" not in line
        assert caught.type.__name__ in line and "(test_defects.py:" in line


def test_a_defect_that_quotes_nothing_is_said_as_it_is() -> None:
    text = "by a defect in kproxy, please report it: ZeroDivisionError: division by zero"
    assert defect(ZeroDivisionError("division by zero")) == text


async def test_a_defect_on_a_token_does_not_log_it() -> None:
    class Broken(Answerer):
        def receive(self, number: int, side: Side, data: bytes, now: int) -> list[Action]:
            raise KeyError(data)

    async with pumped(Broken(b"")) as at:
        with contextlib.suppress(OSError, trio.BrokenResourceError):  # it is reset
            async with await at.connect() as client:
                await client.send_all(b"\0alice\0s3cr3t")
                await client.receive_some()
        (line,) = [each for each in at.logs if "defect" in each]
    text = (
        "connection 1 ended by a defect in kproxy, please report it: KeyError: … (test_defects.py:"
    )
    assert line.startswith(text)
