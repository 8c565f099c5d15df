"""Accepting clients: the listeners, and the limit of connections.

::

    listener ─ accept ─▶ is there room? ─▶ connect(stream, node id)
       │                     └ no: closed at once
       └ refuse ─▶ the system refuses clients, until listen

A lasting problem (no room, no descriptors) is logged once, not again for each client.

Resource handling: `Acceptor.run` owns the listeners, also those that refuse, and has closed them
when it returns or is cancelled.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import attrs
import trio

from kproxy.levels import warning
from kproxy.net.descriptors import Descriptors
from kproxy.net.listeners import (
    NO_ROOM,
    Interface,
    ListenError,
    Listening,
    listen_again,
    refuse,
)

CONNECTIONS_MAX = 10_000
_ACCEPT_AGAIN_SECONDS = 0.1


@attrs.define(eq=False)
class _NodeListener:
    """The listener of a node, at each address of the host."""

    places: list[tuple[str, int]]
    sockets: list[trio.socket.SocketType]
    """One socket for each place; none if the port was lost while it refused."""
    accepting: list[trio.CancelScope]
    """The scopes of the tasks that accept; none if it refuses."""


class Acceptor:
    """Owns the listeners, and decides which clients are accepted."""

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
        """The number of clients that were closed because there were too many."""
        self.listening = Listening()
        """The addresses at which clients can connect."""
        self._nursery: trio.Nursery | None = None
        self._nodes: dict[int, _NodeListener] = {}
        self._logged: set[str] = set()
        """The problems that were logged, and are not logged again while they last."""

    async def run(
        self,
        listeners: list[trio.SocketListener],
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Accept clients at these listeners, and at those that `listen` opens, until stopped."""
        try:
            async with trio.open_nursery() as self._nursery:
                self.listening.add(listeners)
                self._accept_from(listeners, None)
                task_status.started()
                await trio.sleep_forever()
        finally:
            for listener in listeners:
                listener.socket.close()
            for node in self._nodes.values():
                _close(node)

    def stop(self) -> None:
        """Accept no more."""
        if self._nursery:
            self._nursery.cancel_scope.cancel()

    @property
    def connections_max(self) -> int:
        """The most clients at once: the user's limit, or that of open files."""
        possible = self._descriptors.connections_max(len(self.listening))
        return min(self._connections_max, possible)

    def listen(self, node_id: int, port: int) -> tuple[str, int] | str:
        """Open a listener for a node; return its address, or the reason why it cannot open.

        A new one opens at this port or another; one that refuses, at its own port only.
        """
        if self._stopped:
            return "the proxy stops"
        if node_id in self._nodes:
            return self._listen_again(node_id, self._nodes[node_id])
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
                text = f"port {port} is not free for {node}, it gets another (--node-port)"
                self._log(warning(text))
                return self.listen(node_id, 0)
            return str(error)
        places = self.listening.add(listeners)
        accepting = self._accept_from(listeners, node_id)
        self._nodes[node_id] = _NodeListener(places, [each.socket for each in listeners], accepting)
        return places[0]

    def refuse(self, node_id: int) -> None:
        """Refuse clients at the listener of a node, whose port stays ours; accepted connections
        stay."""
        node = self._nodes.get(node_id)
        if self._stopped or node is None or not node.accepting:
            return
        _cancel(node)
        try:
            for index, sock in enumerate(node.sockets):
                node.sockets[index] = refuse(sock)
        except OSError:  # `listen` tries to open the port again
            _close(node)

    def unlisten(self, node_id: int) -> None:
        """Close the listener of a node; accepted connections stay."""
        node = self._nodes.pop(node_id)
        self.listening.remove(node.places)
        _close(node)
        _cancel(node)

    @property
    def _stopped(self) -> bool:
        assert self._nursery is not None, "run comes first"
        return self._nursery.cancel_scope.cancel_called

    def _listen_again(self, node_id: int, node: _NodeListener) -> tuple[str, int] | str:
        try:
            if node.sockets:
                listeners = [listen_again(sock) for sock in node.sockets]
            else:
                listeners = self._interface.open(node.places[0][1])
        except (OSError, ListenError) as error:
            _close(node)
            text = f"node {node_id} answers, but cannot be listened for: {error}"
            self._log_once(f"node {node_id}", f"{text}; kproxy keeps trying")
            return text
        self._logged.discard(f"node {node_id}")
        node.sockets = [each.socket for each in listeners]
        node.accepting = self._accept_from(listeners, node_id)
        return node.places[0]

    def _accept_from(
        self, listeners: list[trio.SocketListener], node_id: int | None
    ) -> list[trio.CancelScope]:
        assert self._nursery is not None, "run comes first"
        scopes = [trio.CancelScope() for _ in listeners]
        for listener, scope in zip(listeners, scopes, strict=True):
            self._nursery.start_soon(self._accept_within, scope, listener, node_id)
        return scopes

    async def _accept_within(
        self, scope: trio.CancelScope, listener: trio.SocketListener, node_id: int | None
    ) -> None:
        with scope:
            await self._accept(scope, listener, node_id)

    async def _accept(
        self, scope: trio.CancelScope, listener: trio.SocketListener, node_id: int | None
    ) -> None:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if scope.cancel_called:  # it refuses now
                    return
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
            # Not as soon as one is free: it would be logged again for each that comes and goes.
            self._logged -= {"room", "accept"}
        self._connect(stream, node_id)

    def _log_once(self, problem: str, text: str) -> None:
        if problem not in self._logged:
            self._logged.add(problem)
            self._log(warning(text))


def _cancel(node: _NodeListener) -> None:
    for scope in node.accepting:
        scope.cancel()
    node.accepting = []


def _close(node: _NodeListener) -> None:
    for sock in node.sockets:
        sock.close()
    node.sockets = []
