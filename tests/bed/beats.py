"""A broker that answers heartbeats, and clients that send them: traffic that counts itself.

::

    Heart ─ heartbeat, with noise in it ─▶ kproxy ─▶ Broker
          ◀─ answer ───────────────────────────────────┘

Every request is different and can be made again from its number, so that a recording can be
compared with what was sent, frame by frame. It needs no Java and no package.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator

from kproxy.wire.protocol import Request, Response, encode_request, encode_response, messages

_HEARTBEAT, _VERSION = 12, 4
_TIMEOUT_SECONDS = 30


def asked(heart: int, number: int, noise_bytes: int) -> bytes:
    """The request of this number; no compression makes its noise much smaller."""
    noise = random.Random(heart * 1_000_003 + number).randbytes(noise_bytes // 2).hex()
    header = messages.RequestHeader(
        api_key=_HEARTBEAT, api_version=_VERSION, correlation_id=number, client_id=f"heart-{heart}"
    )
    body = messages.HeartbeatRequest(group_id="g", member_id=noise)
    return encode_request(Request(header, body))


def answered(heart: int, number: int) -> bytes:
    """What it is answered with: as different as the requests."""
    header = messages.ResponseHeader(correlation_id=number)
    body = messages.HeartbeatResponse(throttle_time_ms=heart)
    return encode_response(Response(header, body, _VERSION), _HEARTBEAT)


@contextlib.contextmanager
def broker() -> Iterator[str]:
    """A broker that answers every heartbeat and hangs up at anything else; yields its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError), connection.makefile("rb") as received:
                while head := received.read(14):
                    size, api_key, _, number, name_bytes = struct.unpack(">ihhih", head)
                    if api_key != _HEARTBEAT:
                        return
                    name = received.read(size - 10)[:name_bytes].decode()
                    connection.sendall(answered(int(name.removeprefix("heart-")), number))

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=serve, args=[connection], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)


class Hearts:
    """Clients that beat, one request in flight each, until they are told to stop.

    An answer that is wrong, late or missing is a failure, raised at the end.
    """

    def __init__(self, port: int, hearts: int = 4, noise_bytes: int = 1000) -> None:
        self.noise_bytes = noise_bytes
        self.beats = [0] * hearts
        """How many requests of each were answered."""
        self._failures: list[BaseException] = []
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=[port, heart]) for heart in range(hearts)
        ]

    def __enter__(self) -> Hearts:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop, when what was asked last is answered."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(_TIMEOUT_SECONDS)
        if self._failures:
            raise self._failures[0]

    def frames(self, beyond: int = 0) -> set[bytes]:
        """All frames that passed, both ways; and those of so many more beats of each heart."""
        return {
            frame
            for heart, beats in enumerate(self.beats)
            for number in range(beats + beyond)
            for frame in (asked(heart, number, self.noise_bytes), answered(heart, number))
        }

    def _run(self, port: int, heart: int) -> None:
        try:
            with socket.create_connection(("127.0.0.1", port), _TIMEOUT_SECONDS) as connection:
                while not self._stopping.is_set():
                    number = self.beats[heart]
                    connection.sendall(asked(heart, number, self.noise_bytes))
                    expected = answered(heart, number)
                    got = b""
                    while len(got) < len(expected) and (data := connection.recv(4096)):
                        got += data
                    assert got == expected, f"heart {heart}, beat {number}: answered with {got!r}"
                    self.beats[heart] += 1
        except BaseException as failure:
            self._failures.append(failure)
