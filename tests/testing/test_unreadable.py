"""What a broker took and kproxy cannot read, in a test: with a command, a block, the fixture."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from kproxy.testing import replay
from kproxy.testing.sessions import Mismatch
from kproxy.wire import protocol
from kproxy.wire.protocol import messages
from tests.recording.making import write
from tests.replay.making import Recorded, produce
from tests.replay.test_unreadable import OF_ONE, again, undecodable

pytest_plugins = ["pytester"]

DATA = OF_ONE["gzip"]
MISSING = (
    f"not produced: orders[0]: the batch at offset 0 was never produced: {len(DATA)} bytes that "
    "cannot be read (gzip"
)
SEND = """
import socket

def send(bootstrap, frame):
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as client:
        client.sendall(frame)
        size = int.from_bytes(client.recv(4, socket.MSG_WAITALL), "big")
        return client.recv(size, socket.MSG_WAITALL)
"""


def request(data: bytes) -> bytes:
    """The frame of a Produce."""
    header = messages.RequestHeader(api_key=0, api_version=9, correlation_id=1, client_id="app")
    return protocol.encode_request(protocol.Request(header, produce(data)))


def send(bootstrap: str, frame: bytes) -> bytes:
    """Send a request; the response."""
    names: dict[str, object] = {"socket": socket}
    exec(SEND, names)
    return names["send"](bootstrap, frame)  # type: ignore[operator]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recording of a batch that cannot be read."""
    return write(tmp_path / "bytes.mcap", [Recorded().metadata().produced(DATA).entries])


def test_a_block_that_does_not_repeat_it_fails(recorded: Path) -> None:
    with pytest.raises(Mismatch, match="bytes that cannot be read"), replay(recorded):
        pass
    with replay(recorded) as broker:
        assert broker.produced() == []
        send(broker.bootstrap, request(again(DATA)))
        with pytest.raises(ValueError, match=r"Produce #\d+ has \d+ bytes for orders\[0\] that"):
            broker.produced("orders")
        assert broker.produced("others") == []
    with pytest.raises(Mismatch), replay(recorded) as broker:  # the broker ends the connection
        send(broker.bootstrap, undecodable(1))
