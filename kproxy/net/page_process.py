"""The page of a running machine, made in a process of its own.

::

    browser ─▶ control server: access ─▶ relay ─ a socket for each request ─▶ kproxy.web.relayed
                                               ◀─ the answer, encoded ─

To read a recording and to format it takes the interpreter's lock, which requests of clients would
wait for. So the process starts when somebody first opens the page, with a lower priority, and ends
when nobody has asked for IDLE_SECONDS. It knows nothing but the paths of the recording.

Resource handling: the process has one end of a socket pair, through which it gets the sockets of
requests; it ends when the other end is closed, however this process ends.
"""

from __future__ import annotations

import contextlib
import math
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import trio

from kproxy.net.control import Answer, ControlCall, Encoded, Route, Routes, refusal

PATHS = (
    "/", "/static/{name}", "/rows", "/overview", "/exchange", "/keys", "/statistics", "/story",
    "/records", "/lanes",
)  # fmt: skip
"""The paths of the page."""
IDLE_SECONDS = 60.0
_MODULE = "kproxy.web.relayed"


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

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._requests is not None

    def routes(self) -> Routes:
        """Return the routes of the page."""
        return {path: {"GET": Route(self.relay, private=True)} for path in PATHS}

    async def relay(self, call: ControlCall) -> Answer | Encoded:
        """Have the process answer a request."""
        self._asked.set()
        await self._begun.wait()
        self._answers_awaited += 1
        self._idle.deadline = math.inf
        try:
            data = await self._answer(call)
        finally:
            self._answers_awaited -= 1
            if not self._answers_awaited:
                self._idle.deadline = trio.current_time() + IDLE_SECONDS
        return Encoded(data) if data else refusal(503, "the page starts again: ask again")

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
            command = [sys.executable, "-m", _MODULE, *map(str, self.recorded())]
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    process = await trio.lowlevel.open_process(
                        command, stdin=theirs, process_group=0
                    )
                ours.setblocking(False)
                self._requests = ours
                self._begun.set()
                try:
                    with trio.CancelScope(
                        deadline=trio.current_time() + IDLE_SECONDS
                    ) as self._idle:
                        await process.wait()
                finally:
                    self._requests = None
                    self._asked, self._begun = trio.Event(), trio.Event()
                    process.kill()
                    with trio.CancelScope(shield=True):
                        await process.wait()
