"""The N-th operation on a socket fails, for every N of a session: once, or from then on.

The session goes through the real pump: sockets, selector and all. Whatever fails, the proxy must
neither hang nor call it a defect; both peers must see an end, and the recording must add up.
"""

from __future__ import annotations

import errno
import itertools
import struct
import time

import attrs
import pytest
import trio

from kproxy.exchange.entries import MORE, NO_RESPONSE, TRUNCATED, UNANSWERED, Frame, Note, Side
from kproxy.exchange.pairing import pair
from kproxy.net import listeners
from kproxy.net.pump import Pump
from kproxy.net.recorder import Recorder
from kproxy.net.security import Security
from kproxy.net.transport import SocketTransport
from kproxy.proxy.cluster import Cluster
from kproxy.proxy.settings import Settings
from kproxy.wire.protocol import messages
from tests.bed.logged import to
from tests.net.pumped import by
from tests.proxy.playing import metadata, request, response

PRODUCE, FETCH, METADATA, HEARTBEAT = 0, 1, 3, 12


@attrs.define(eq=False)
class Failures:
    """Counts the operations of all transports, and says which of them fail."""

    at: int
    lasting: bool
    count: int = 0
    fired: bool = False

    def next(self) -> None:
        """One more operation; raises OSError if it is its turn."""
        self.count += 1
        if self.count == self.at or (self.lasting and self.count > self.at):
            self.fired = True
            raise OSError(errno.ECONNRESET, "Connection reset by peer")


class Failing:
    """A socket on which operations can fail."""

    wants_write = False

    def __init__(self, stream: trio.SocketStream, failures: Failures) -> None:
        self._inner = SocketTransport(stream)
        self._failures = failures
        self.fileno = self._inner.fileno
        self.flush = self._inner.flush
        self.close = self._inner.close

    def try_receive(self) -> bytes | None:
        """See Transport."""
        self._failures.next()
        return self._inner.try_receive()

    def try_send(self, data: bytes | memoryview) -> int:
        """See Transport; takes little at once, so that much of it must wait."""
        self._failures.next()
        return self._inner.try_send(data[:100_000])

    def send_eof(self) -> None:
        """See Transport."""
        self._failures.next()
        self._inner.send_eof()


def session(port: int) -> list[tuple[bytes, bytes]]:
    """Requests and their responses, one of which names the broker and one of which is large."""
    kind = messages.ProduceRequest
    produce = [
        request(PRODUCE, 9, kind(acks=acks, timeout_ms=1, topic_data=[]), number)
        for number, acks in ((3, 0), (4, 1))
    ]
    part = messages.FetchResponse.PartitionData(records=b"r" * 300_000)
    topic = messages.FetchResponse.FetchableTopicResponse(topic="t", partitions=[part])
    return [
        (
            request(METADATA, 9, messages.MetadataRequest(topics=None), 1),
            response(METADATA, 9, metadata((1, "127.0.0.1", port)), 1),
        ),
        (
            request(HEARTBEAT, 4, messages.HeartbeatRequest(), 2),
            response(HEARTBEAT, 4, messages.HeartbeatResponse(), 2),
        ),
        (produce[0], b""),
        (produce[1], response(PRODUCE, 9, messages.ProduceResponse(responses=[]), 4)),
        (
            request(FETCH, 12, messages.FetchRequest(topics=[]), 5),
            response(FETCH, 12, messages.FetchResponse(responses=[topic]), 5),
        ),
    ]


async def until_the_end(stream: trio.SocketStream, give: dict[int, bytes]) -> bytes:
    """Read until the stream ends, or breaks; answer each request frame that is in `give`."""
    data = b""
    done = 0
    try:
        async with stream:
            while chunk := await stream.receive_some():
                data += chunk
                while len(data) - done >= 12:
                    size, _, _, number = struct.unpack_from(">ihhi", data, done)
                    if not give or len(data) - done < 4 + size:
                        break
                    done += 4 + size
                    await stream.send_all(give[number])
    except trio.BrokenResourceError:
        pass
    return data


async def ask(client: trio.SocketStream, frames: list[tuple[bytes, bytes]], paced: bool) -> bytes:
    """Ask all at once, or one after the other; then half-close. Returns what has come so far."""
    got = b""
    due = 0
    try:
        for asked, answer in frames:
            await client.send_all(asked)
            due += len(answer)
            # Our address is as long as the broker's: both are ports of 127.0.0.1.
            while paced and len(got) < due and (chunk := await client.receive_some()):
                got += chunk
        await client.send_eof()
    except trio.BrokenResourceError:
        pass
    return got


async def play(failures: Failures, paced: bool) -> tuple[list[Frame | Note], list[str], bytes]:
    """One session through a pump of its own: what was recorded, logged, and reached the client."""
    entries: list[Frame | Note] = []
    logs: list[str] = []
    got = b""
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        frames = session(listener.socket.getsockname()[1])
        answers = {number: answer for number, (_, answer) in enumerate(frames, 1)}

        async def answering(stream: trio.SocketStream) -> None:
            await until_the_end(stream, answers)

        nursery.start_soon(trio.serve_listeners, answering, [listener])
        settings = Settings([listener.socket.getsockname()[:2]])
        recorder = Recorder(None, to(logs), entries.extend)
        interface = await listeners.resolve("127.0.0.1")
        secure = by(lambda stream: Failing(stream, failures))
        pump = Pump(
            Cluster(settings),
            interface,
            recorder,
            time.time_ns,
            to(logs),
            security=Security(secure, secure),
        )
        ours = interface.open(0)
        nursery.start_soon(pump.serve, ours)
        client = await trio.open_tcp_stream(*ours[0].getsockname()[:2])
        got = await ask(client, frames, paced)
        got += await until_the_end(client, {})
        await pump.drain(5)
        await recorder.finish()
        nursery.cancel_scope.cancel()
    return entries, logs, got


def check(entries: list[Frame | Note], logs: list[str], got: bytes, failed: bool) -> None:
    """The recording adds up, and nobody speaks of a defect."""
    assert not any("defect" in line for line in logs), logs
    events = [entry.body["event"] for entry in entries if isinstance(entry, Note)]
    assert events in (["opened", "closed"], ["opened", "client_id", "closed"])
    assert isinstance(entries[0], Note) and isinstance(entries[-1], Note)
    frames = [entry for entry in entries if isinstance(entry, Frame) and not entry.flags & MORE]
    asked = [frame for frame in frames if frame.side is Side.CLIENT]
    for frame in asked:
        ends = [f for f in frames if f.side is Side.BROKER and f.number == frame.number]
        assert len(ends) + bool(frame.flags & (NO_RESPONSE | TRUNCATED)) == 1
    assert len(list(pair(entries))) == len(asked)
    whole = [frame for frame in frames if not frame.flags & (UNANSWERED | TRUNCATED)]
    assert failed or len(whole) == 9
    sent = b"".join(frame.sent for frame in frames if frame.side is Side.BROKER)
    assert got == sent or (failed and sent.startswith(got))


@pytest.mark.parametrize("paced", [False, True], ids=["all at once", "one by one"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "from then on"])
async def test_the_nth_operation_fails(lasting: bool, paced: bool) -> None:
    for at in itertools.count(1):
        failures = Failures(at, lasting)
        with trio.fail_after(20):
            entries, logs, got = await play(failures, paced)
        check(entries, logs, got, failures.fired)
        if not failures.fired:
            break
    assert at > 12, "the session was to be long"
    assert len(got) > 300_000
