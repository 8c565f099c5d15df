"""The page of a running machine, made in a process of its own.

::

    browser ─▶ control server: access ─▶ relay ─ a socket for each request ─▶ look.page.relayed
                                               ◀─ the answer, encoded ─

To read a recording and to format it takes the interpreter's lock, which requests of clients would
wait for. So the process starts when somebody first opens the page, with a lower priority, and ends
when nobody has asked for IDLE_SECONDS. It knows nothing but the paths of the recording.

Resource handling: the process has one end of a socket pair, through which it gets the paths of the
recording, then the sockets of requests; it ends when the other end is closed, however this process
ends. Where the system has nothing left for it, its requests are refused, and the proxy goes on.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio

from kproxy.net.control import Answer, ControlCall, Encoded, Route, Routes, refusal

PATHS = (
    "/", "/static/{name}", "/findings", "/rows", "/overview", "/exchange", "/keys", "/statistics",
    "/story", "/records", "/lanes",
)  # fmt: skip
"""The paths of the page."""
IDLE_SECONDS = 60.0
ANSWER_SECONDS = 20.0
"""The time for an answer, the start of the process included: all others have the processor
first."""
_COMMAND = (sys.executable, "-P", "-m", "kproxy.look.page.relayed")
"""-P: modules of the folder that kproxy was started in are not ours."""
LENGTH_BYTES = 8
"""The length of the paths, before them."""
_AGAIN = "the page starts again: ask again"


@attrs.define(eq=False)
class PageProcess:
    """The process, while there is one; `run` is its task."""

    recorded: Callable[[], Sequence[Path]]
    """Returns the files of the recording so far."""
    _asked: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set when somebody waits for the process."""
    _begun: trio.Event = attrs.field(factory=trio.Event, init=False)
    """Set while there is one."""
    _requests: socket.socket | None = attrs.field(default=None, init=False)
    """Takes the sockets of requests."""
    _idle: trio.CancelScope = attrs.field(factory=trio.CancelScope, init=False)
    """Ends the process at its deadline, which is set while nobody waits for an answer."""
    _answers_awaited: int = attrs.field(default=0, init=False)
    _failure: str = attrs.field(default=_AGAIN, init=False)
    """Why there is no process."""

    @property
    def running(self) -> bool:
        """True while there is a process."""
        return self._requests is not None

    def routes(self) -> Routes:
        """Return the routes of the page."""
        route = Route(self.relay, access="private", seconds=ANSWER_SECONDS)
        return {path: {"GET": route} for path in PATHS}

    async def relay(self, call: ControlCall) -> Answer | Encoded:
        """Have the process answer a request."""
        self._asked.set()
        await self._begun.wait()
        self._answers_awaited += 1
        self._idle.deadline = math.inf
        try:
            data = await self._answer(call)
        except OSError as error:
            return refusal(503, _none_left(error))
        finally:
            self._answers_awaited -= 1
            if not self._answers_awaited:
                self._idle.deadline = trio.current_time() + IDLE_SECONDS
        return Encoded(data) if data else refusal(503, self._failure)

    async def _answer(self, call: ControlCall) -> bytes:
        """Return what the process answers; nothing where it has just ended."""
        ours, theirs = socket.socketpair()
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        asked = f"GET {call.target} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        data = b""
        async with stream:
            with theirs, contextlib.suppress(OSError):  # it has just ended
                if self._requests is not None:
                    socket.send_fds(self._requests, [b"."], [theirs.fileno()])
            with contextlib.suppress(trio.BrokenResourceError):
                await stream.send_all(asked.encode("latin-1"))
                data = b"".join([chunk async for chunk in stream])
        return data

    async def run(self) -> None:
        """Start the process when somebody asks, end it when nobody has asked for long."""
        while True:
            await self._asked.wait()
            try:
                await self._run_once()
            except (OSError, RuntimeError) as error:  # no descriptor, memory, process or thread
                self._failure = _none_left(error)
                self._begun.set()  # for those who wait
                self._asked, self._begun = trio.Event(), trio.Event()

    async def _run_once(self) -> None:
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await trio.lowlevel.open_process(_COMMAND, stdin=theirs, process_group=0)
            try:
                ours.setblocking(False)
                await _tell(ours, b"\0".join(map(os.fsencode, self.recorded())))
                self._requests, self._failure = ours, _AGAIN
                self._begun.set()
                deadline = trio.current_time() + IDLE_SECONDS
                with trio.CancelScope(deadline=deadline) as self._idle:
                    await process.wait()
            finally:
                if self._requests is not None:
                    self._requests = None
                    self._asked, self._begun = trio.Event(), trio.Event()
                process.kill()
                with trio.CancelScope(shield=True):
                    await process.wait()


async def _tell(to: socket.socket, data: bytes) -> None:
    """Send some bytes, their number before them, and wait until they were read.

    Raises: OSError, if the other process ends.
    """
    left = memoryview(len(data).to_bytes(LENGTH_BYTES) + data)
    while left:
        await trio.lowlevel.wait_writable(to)
        left = left[to.send(left) :]
    await trio.lowlevel.wait_readable(to)
    if not to.recv(1):
        raise BrokenPipeError(errno.EPIPE, "its process has ended")


def _none_left(error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) else error
    return f"the page cannot start now ({why}); the proxy goes on: ask again"
