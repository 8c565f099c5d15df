"""A server on any port that answers each client in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a server, and yield its port; `answer` serves one client until it is gone."""

    def serve(stream: socket.socket) -> None:
        with stream:
            answer(stream)

    def accept(server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                stream, _ = server.accept()
                threading.Thread(target=serve, args=(stream,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
