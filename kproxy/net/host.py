"""Runs trio's functions for code without trio, in a thread that the hosts of a process share.

::

    test's thread                          the loop's thread
    start(main) ─────────────────────────▶ a task: main
         ◀──────── main's value ──────────── started(value)
    call(f) ─────────────────────────────▶ f() ─▶ its result or exception
    stop() ──────────────────────────────▶ stop.set() … main returns

The loop begins with the first host, and stays to the end of the process: one for each test costs as
much as to load a recording.

Invariants: `start` returns when `main` has started, or raises the exception that prevented it;
after `stop` it has returned, and everything that it had open is closed. `start` or `stop` raises
the exception of `main` itself, not a group. A process that is forked has a loop of its own.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Generic, TypeVar

import trio

Started = TypeVar("Started")
Result = TypeVar("Result")

Main = Callable[[Callable[[Started], None], trio.Event], Awaitable[object]]
"""The function of a host: it calls back when it has started, and returns when the event is set."""

_STOP_SECONDS = 20.0
_LOOK_SECONDS = 1.0
"""Interval at which a waiting call checks that the loop still runs."""


@functools.cache
def _loop(process: int) -> tuple[threading.Thread, trio.lowlevel.TrioToken]:
    """Return the loop of this process."""
    tokens: queue.SimpleQueue[trio.lowlevel.TrioToken] = queue.SimpleQueue()

    async def run() -> None:
        tokens.put(trio.lowlevel.current_trio_token())
        await trio.sleep_forever()

    thread = threading.Thread(target=trio.run, args=(run,), name="kproxy", daemon=True)
    thread.start()
    return thread, tokens.get()


class Host(Generic[Started]):
    """Runs one `main` in the loop.

    Resource handling: owns its task from `start` to `stop`.
    """

    def __init__(self, main: Main[Started]) -> None:
        self._main = main
        self._reports: queue.SimpleQueue[Started | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._thread, self._token = _loop(os.getpid())
        self._stop = trio.Event()
        self._ended = threading.Event()
        self._calling = threading.RLock()

    def start(self) -> Started:
        """Start `main`; return the value that it reports.

        Raises: any exception of `main` before it has started.
        """
        self._token.run_sync_soon(trio.lowlevel.spawn_system_task, self._run)
        started = self._reports.get()
        if started is None:
            raise self._failure or RuntimeError("it ended before it had started")
        return started

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the loop's thread. After `main` has ended, the function is called in
        the caller's thread, for one caller at a time.

        Raises: any exception of the function.
        """
        done: futures.Future[Result] = futures.Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    with self._calling:
                        done.set_result(function())
                except BaseException as error:
                    done.set_exception(error)

        if self.alive:
            # Not trio.from_thread: the caller may be in another trio loop, which waits here.
            self._token.run_sync_soon(run)
            while self._thread.is_alive() and not done.done():
                futures.wait([done], _LOOK_SECONDS)
        if done.cancel():
            with self._calling:
                return function()
        return done.result()

    @property
    def alive(self) -> bool:
        """True until `main` has ended."""
        return self._thread.is_alive() and not self._ended.is_set()

    def stop(self) -> None:
        """End `main`; a second call does nothing.

        Raises: the exception that has ended `main` before.
        """
        if self.alive:
            self._token.run_sync_soon(self._stop.set)
            if not self._ended.wait(_STOP_SECONDS):
                raise RuntimeError(f"kproxy did not end in {_STOP_SECONDS:.0f} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        try:
            await self._main(self._reports.put, self._stop)
        except BaseException as error:
            self._failure = _unwrapped(error)
        finally:
            self._ended.set()
            self._reports.put(None)


def _unwrapped(error: BaseException) -> BaseException:
    """Return the exception in a group of one, or the exception itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
