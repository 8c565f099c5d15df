"""Accepting clients: the listeners, and the limit of connections.

::

    listener ─ accept ─▶ is there room? ─▶ connect(stream, node id)
       │                     └ no: closed at once
       └ refuse ─▶ the system refuses clients, until listen

One task waits for all listeners. A lasting problem (no room, no descriptors) is logged once, not
again for each client.

Resource handling: `Acceptor` owns the listeners from `begin` on, also those that refuse, and has
closed them when `stop` returns.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
from collections.abc import Callable, Sequence

import attrs
import trio

from kproxy.levels import Logger
from kproxy.net.descriptors import Descriptors
from kproxy.net.listeners import NO_ROOM, Interface, ListenError, Listening, listen_again, refuse

CONNECTIONS_MAX = 10_000
_ACCEPT_AGAIN_SECONDS = 0.1


@attrs.define(eq=False)
class _NodeListener:
    """The listener of a node, at each address of the host."""

    places: list[tuple[str, int]]
    sockets: list[socket.socket]
    """One socket for each place; none if the port was lost while it refused."""
    refuses: bool = False


class Acceptor:
    """Owns the listeners, and decides which clients are accepted."""

    def __init__(
        self,
        interface: Interface,
        connect: Callable[[trio.SocketStream, int | None], None],
        connections_open: Callable[[], int],
        log: Logger,
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
        self._watched = selectors.DefaultSelector()
        """The sockets that listen, with their nodes."""
        self._stopped = False
        self._nodes: dict[int, _NodeListener] = {}
        self._logged: set[str] = set()
        """The problems that were logged, and are not logged again while they last."""

    def begin(self, bootstrap: Sequence[socket.socket]) -> None:
        """Own the bootstrap listener; its clients are accepted as soon as `run` runs."""
        self.listening.add(bootstrap)
        self._watch(bootstrap, None)

    async def run(self) -> None:
        """Accept clients at the listeners that are open, and at those that `listen` opens, until
        stopped."""
        with contextlib.suppress(trio.ClosedResourceError):  # by `stop`
            while not self._stopped:
                await trio.lowlevel.wait_readable(self._watched.fileno())
                for key, _ in self._watched.select(0):
                    await self._accept(*key.data)

    def stop(self) -> None:
        """Accept no more: close all listeners."""
        if self._stopped:
            return
        self._stopped = True
        for key in self._watched.get_map().values():
            key.data[0].close()
        for node in self._nodes.values():
            _close(node)
        trio.lowlevel.notify_closing(self._watched.fileno())
        self._watched.close()

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
                self._log(text, "warning")
                return self.listen(node_id, 0)
            return str(error)
        places = self.listening.add(listeners)
        self._watch(listeners, node_id)
        self._nodes[node_id] = _NodeListener(places, listeners)
        return places[0]

    def refuse(self, node_id: int) -> None:
        """Refuse clients at the listener of a node, whose port stays ours; accepted connections
        stay."""
        node = self._nodes.get(node_id)
        if self._stopped or node is None or node.refuses:
            return
        self._unwatch(node)
        try:
            for index, sock in enumerate(node.sockets):
                node.sockets[index] = refuse(sock)
        except OSError:  # `listen` tries to open the port again
            _close(node)

    def unlisten(self, node_id: int) -> None:
        """Close the listener of a node; accepted connections stay."""
        node = self._nodes.pop(node_id)
        self.listening.remove(node.places)
        self._unwatch(node)
        _close(node)

    def _listen_again(self, node_id: int, node: _NodeListener) -> tuple[str, int] | str:
        try:
            for sock in node.sockets:
                listen_again(sock)
            node.sockets = node.sockets or self._interface.open(node.places[0][1])
        except (OSError, ListenError) as error:
            _close(node)
            text = f"node {node_id} answers, but cannot be listened for: {error}"
            self._log_once(f"node {node_id}", f"{text}; kproxy keeps trying")
            return text
        self._logged.discard(f"node {node_id}")
        self._watch(node.sockets, node_id)
        node.refuses = False
        return node.places[0]

    def _watch(self, sockets: Sequence[socket.socket], node_id: int | None) -> None:
        for sock in sockets:
            self._watched.register(sock, selectors.EVENT_READ, (sock, node_id))

    def _unwatch(self, node: _NodeListener) -> None:
        if not (node.refuses or self._stopped):
            node.refuses = True
            for sock in node.sockets:
                self._watched.unregister(sock)

    async def _accept(self, listener: socket.socket, node_id: int | None) -> None:
        """Accept one client, if there is still one."""
        try:
            sock, _ = listener.accept()
        except OSError as error:
            if error.errno in NO_ROOM:
                why = os.strerror(error.errno).lower()
                self._log_once("accept", f"clients must wait to be accepted: {why}")
                await trio.sleep(_ACCEPT_AGAIN_SECONDS)
        else:
            self._admit(trio.SocketStream(trio.socket.from_stdlib_socket(sock)), node_id)

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
            self._log(text, "warning")


def _close(node: _NodeListener) -> None:
    for sock in node.sockets:
        sock.close()
    node.sockets = []
