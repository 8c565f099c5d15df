"""`kproxy.net.host`: what is called in its thread, and what comes out of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import trio

from kproxy.net.host import Host

SECONDS = 10.0


async def until_stopped(started: Callable[[str], None], stop: trio.Event) -> None:
    """The least that a host can run."""
    started("started")
    await stop.wait()


@pytest.fixture
def host() -> Iterator[Host[str]]:
    """A host that runs."""
    host: Host[str] = Host(until_stopped)
    assert host.start() == "started"
    yield host
    host.stop()


def caught(host: Host[str], function: Callable[[], object]) -> list[BaseException]:
    """What a call raises; it is made by another thread, for it might never return."""
    found: list[BaseException] = []

    def call() -> None:
        try:
            host.call(function)
        except BaseException as error:
            found.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    caller.join(SECONDS)
    return found


@pytest.mark.parametrize("error", [TimeoutError("mine"), ValueError("mine")])
def test_what_the_function_raises_comes_out_of_the_call(host: Host[str], error: Exception) -> None:
    def fail() -> None:
        raise error

    assert caught(host, fail) == [error]
    host.stop()
    assert caught(host, fail) == [error]


def test_a_function_is_called_in_the_thread_while_it_runs_and_by_the_caller_afterwards(
    host: Host[str],
) -> None:
    assert host.call(lambda: threading.current_thread().name) == "kproxy"
    host.stop()
    assert host.call(threading.current_thread) is threading.current_thread()
