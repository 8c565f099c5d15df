"""What may not be meant is said at the start, in one line."""

from __future__ import annotations

import pytest

from kproxy.net.start_checks import warn
from tests.bed.logged import to


async def warned(*arguments) -> list[str]:
    logs: list[str] = []
    await warn(*arguments, to(logs))
    return logs


async def test_what_is_usual_is_not_warned_of() -> None:
    assert await warned("127.0.0.1", True, None) == []
    assert await warned("127.0.0.1", True, "localhost") == []


async def test_a_proxy_that_other_machines_reach_says_so() -> None:
    (text,) = await warned("0.0.0.0", False, None)
    assert text.startswith("--listen 0.0.0.0 opens the cluster") and "127.0.0.1" in text


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 300, "a..b"])
async def test_an_advertised_name_that_resolves_nowhere_is_named(host: str) -> None:
    (text,) = await warned("127.0.0.1", True, host)
    assert f"--advertise {host} resolves nowhere" in text
