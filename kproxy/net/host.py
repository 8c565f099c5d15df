"""A thread that runs trio, for code without trio.

::

    test's thread                          thread of its own
    start(main) ─────────────────────────▶ trio.run(main)
         ◀──────── main's value ──────────── started(value)
    call(f) ─────────────────────────────▶ f() ─▶ its result or exception
    stop() ──────────────────────────────▶ stop.set() … main returns

Invariants: `start` returns when `main` has started, or raises the exception that prevented it;
after `stop` the thread has ended and everything that it had open is closed. `start` or `stop`
raises the exception of `main` itself, not a group.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent import futures
from typing import Generic, TypeVar

import trio

Started = TypeVar("Started")
Result = TypeVar("Result")

Main = Callable[[Callable[[Started], None], trio.Event], Awaitable[object]]
"""The function of the thread: it calls back when it has started, and returns when the event is
set."""

_STOP_SECONDS = 20.0
_LOOK_SECONDS = 1.0
"""Interval at which a waiting call checks that the loop still runs."""


class Host(Generic[Started]):
    """Runs one `main` in a thread.

    Resource handling: owns the thread from `start` to `stop`.
    """

    def __init__(self, main: Main[Started], name: str) -> None:
        self._main = main
        self._reports: queue.SimpleQueue[Started | None] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop: trio.Event | None = None
        self._afterwards = threading.RLock()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)

    def start(self) -> Started:
        """Start the thread; return the value that `main` reports.

        Raises: any exception of `main` before it has started.
        """
        self._thread.start()
        started = self._reports.get()
        if started is None:
            self._thread.join()
            raise self._failure or RuntimeError("it ended before it had started")
        return started

    def call(self, function: Callable[[], Result]) -> Result:
        """Call a function in the loop's thread. After the loop has ended, the function is called in
        the caller's thread, for one caller at a time.

        Raises: any exception of the function.
        """
        done: futures.Future[Result] = futures.Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(function())
                except BaseException as error:
                    done.set_exception(error)

        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                # Not trio.from_thread: the caller may be in another trio loop, which waits here.
                self._token.run_sync_soon(run)
                while self._thread.is_alive() and not done.done():
                    futures.wait([done], _LOOK_SECONDS)
        if done.cancel():
            with self._afterwards:
                return function()
        return done.result()

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the thread; a second call does nothing.

        Raises: the exception that has ended `main` before.
        """
        if self._token is not None and self._stop is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive():
                raise RuntimeError(f"{self._thread.name} did not end in {_STOP_SECONDS:.0f} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _work(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            self._failure = _unwrapped(error)
        finally:
            self._reports.put(None)

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._stop = trio.Event()
        await self._main(self._reports.put, self._stop)


def _unwrapped(error: BaseException) -> BaseException:
    """Return the exception in a group of one, or the exception itself."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
