"""Taking on clients: listeners, and how many connections there may be.

::

    listener ─ accept ─▶ is there room? ─▶ connect(stream, node id)
                             └ no: closed at once

Whatever lasts (no room, no descriptors) is logged once, not again for each client that it concerns.

Resource handling: `Acceptor.run` owns the listeners, and has closed them when it returns or is
cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import trio

from kproxy.net.descriptors import Descriptors
from kproxy.net.listeners import NO_ROOM, Interface, ListenError, Listening

CONNECTIONS_MAX = 10_000
_ACCEPT_AGAIN_SECONDS = 0.1


class Acceptor:
    """Owns the listeners, and decides who is taken on."""

    def __init__(
        self,
        interface: Interface,
        connect: Callable[[trio.SocketStream, int | None], None],
        connections_open: Callable[[], int],
        log: Callable[[str], None],
        connections_max: int,
        descriptors: Descriptors,
    ) -> None:
        self._interface = interface
        self._connect = connect
        self._connections_open = connections_open
        self._log = log
        self._connections_max = connections_max
        self._descriptors = descriptors
        self.connections_refused = 0
        """How many clients so far were too many."""
        self.listening = Listening()
        """Where clients can connect."""
        self._nursery: trio.Nursery | None = None
        self._nodes: dict[int, tuple[trio.CancelScope, list[trio.SocketListener]]] = {}
        """What ends accepting for a node, and its listeners."""
        self._logged: set[str] = set()
        """What was logged and is not logged again while it lasts."""

    async def run(
        self,
        listeners: list[trio.SocketListener],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept clients there, and wherever `listen` opens another one, until stopped."""
        async with trio.open_nursery() as self._nursery:
            self._start(listeners, None)
            task_status.started()
            await trio.sleep_forever()

    def stop(self) -> None:
        """Accept no more."""
        if self._nursery:
            self._nursery.cancel_scope.cancel()

    @property
    def connections_max(self) -> int:
        """The most clients at once: what the user wants, or what open files allow."""
        possible = self._descriptors.connections_max(len(self.listening))
        return min(self._connections_max, possible)

    def listen(self, node_id: int, port: int) -> tuple[str, int] | str:
        """Open a listener for a node, at this port or another; return where, or why not."""
        assert self._nursery is not None, "run comes first"
        if self._nursery.cancel_scope.cancel_called:
            return "the proxy stops"
        if len(self.listening) >= self._descriptors.listeners_max:
            files, many = self._descriptors.files_max, len(self.listening)
            limit = f"ulimit -n {files} allows {many} listeners"
            self._log_once("listen", f"{limit}, and the cluster has more brokers: raise it")
            return limit
        try:
            listeners = self._interface.open(port)
        except ListenError as error:
            if error.code in NO_ROOM:
                self._log_once("listen", str(error))
            elif port:
                node = f"node {node_id}"
                self._log(f"port {port} is not free for {node}, it gets another (--node-port)")
                return self.listen(node_id, 0)
            return str(error)
        self._start(listeners, node_id)
        return listeners[0].socket.getsockname()[:2]

    def unlisten(self, node_id: int) -> None:
        """Close the listeners of a node; who was accepted there stays."""
        scope, listeners = self._nodes.pop(node_id)
        self.listening.remove(listeners)
        for listener in listeners:
            listener.socket.close()
        scope.cancel()

    def _start(self, listeners: list[trio.SocketListener], node_id: int | None) -> None:
        assert self._nursery is not None, "run comes first"
        self.listening.add(listeners)
        scope = trio.CancelScope()
        if node_id is not None:
            self._nodes[node_id] = scope, listeners
        self._nursery.start_soon(self._accept_all, listeners, node_id, scope)

    async def _accept_all(
        self, listeners: list[trio.SocketListener], node_id: int | None, scope: trio.CancelScope
    ) -> None:
        with scope:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept, listener, node_id)

    async def _accept(self, listener: trio.SocketListener, node_id: int | None) -> None:
        async with listener:
            while True:
                try:
                    stream = await listener.accept()
                except OSError as error:
                    why = os.strerror(error.errno or 0).lower()
                    self._log_once("accept", f"clients must wait to be accepted: {why}")
                    await trio.sleep(_ACCEPT_AGAIN_SECONDS)
                except trio.ClosedResourceError:
                    return
                else:
                    self._admit(stream, node_id)

    def _admit(self, stream: trio.SocketStream, node_id: int | None) -> None:
        connections_open, connections_max = self._connections_open(), self.connections_max
        if connections_open >= connections_max:
            self.connections_refused += 1
            stream.socket.close()
            limit = f"{connections_max} (--connections-max, ulimit -n)"
            self._log_once("room", f"no more connections than {limit}: new ones are closed at once")
            return
        if connections_open < connections_max * 0.9:
            # Not at once: it would be logged again for each that comes and goes.
            self._logged -= {"room", "accept"}
        self._connect(stream, node_id)

    def _log_once(self, about: str, text: str) -> None:
        if about not in self._logged:
            self._logged.add(about)
            self._log(text)
