"""What many connections that come and go have seen is in the recording, byte for byte.

::

    600 clients, 16 at a time ─▶ proxy with rules ─▶ a broker that answers each frame
          └─ what they sent and got ──── the recording, rotated ──── what it got and sent ─┘
"""

from __future__ import annotations

import base64
import random
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import attrs
import trio

from kproxy import recording
from kproxy.exchange.entries import INJECTED, TRUNCATED
from kproxy.exchange.exchange import Exchange
from kproxy.proxy.faults import Rule, Rules
from kproxy.wire.protocol import decode_request, messages
from tests.net.proxied import Proxied, proxied
from tests.proxy.playing import request, response
from tests.versions import ALL

CONNECTIONS = 20_000 if ALL else 600
AT_ONCE = 16
ROTATE_BYTES = 1 << 19
HEARTBEAT, VERSION = 12, 4
RULES = (
    Rule(api="Heartbeat", latency="3ms", probability=0.05),
    Rule(api="Heartbeat", phase="after", latency="2ms", probability=0.05),
    Rule(api="Heartbeat", error="REBALANCE_IN_PROGRESS", probability=0.05),
    Rule(api="Heartbeat", phase="after", error="COORDINATOR_NOT_AVAILABLE", probability=0.05),
    Rule(api="Heartbeat", duplicate=True, probability=0.02),
    Rule(api="Heartbeat", drop=True, probability=0.02),
    Rule(api="Heartbeat", phase="after", drop=True, probability=0.02),
    Rule(api="Heartbeat", disconnect=True, probability=0.01),
)


@attrs.define
class Seen:
    """What one client and the broker saw of a connection."""

    asked: list[bytes] = attrs.field(factory=list)
    got: bytes = b""
    arrived: list[bytes] = attrs.field(factory=list)
    answered: list[bytes] = attrs.field(factory=list)


def ask(of: random.Random, client_id: str, correlation_id: int) -> bytes:
    """A request that zstd makes little smaller."""
    member = base64.b64encode(of.randbytes(of.choice([20, 200, 2_000]))).decode()
    body = messages.HeartbeatRequest(group_id="g", member_id=member)
    return request(HEARTBEAT, VERSION, body, correlation_id, client_id)


async def serve(seen: dict[str, Seen], stream: trio.SocketStream) -> None:
    """Answer each frame; some late, so that answers come together."""
    of, data = random.Random(0), b""
    try:
        async for piece in stream:
            data += piece
            answers = b""
            while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4])):
                frame, data = data[:size], data[size:]
                header = decode_request(frame).header
                code = of.choice([0, 0, 0, 27])
                body = messages.HeartbeatResponse(
                    throttle_time_ms=of.randrange(99), error_code=code
                )
                answer = response(HEARTBEAT, VERSION, body, header.correlation_id)
                found = seen[header.client_id]
                found.arrived.append(frame)
                found.answered.append(answer)
                answers += answer
            await stream.send_all(answers)
        await stream.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # a rule has cut it


async def visit(of: random.Random, proxy: Proxied, client_id: str, seen: Seen) -> None:
    """Come, ask a few things in pieces of any size, wait for the end, and go."""
    seen.asked = [ask(of, client_id, number) for number in range(of.randint(1, 8))]
    data = b"".join(seen.asked)
    stream = await proxy.connect()
    async with stream:
        try:
            while data:
                size = of.randint(1, len(data))
                await stream.send_all(data[:size])
                data = data[size:]
                await trio.lowlevel.checkpoint()
            await stream.send_eof()
            async for piece in stream:
                seen.got += piece
        except trio.BrokenResourceError:
            pass  # a rule has cut it


async def work(path: Path, seen: dict[str, Seen]) -> Proxied:
    """Let them all come and go."""

    async def broker(stream: trio.SocketStream) -> None:
        await serve(seen, stream)

    async def client(numbers: Iterable[int]) -> None:
        for number in numbers:
            name = f"client-{number}"
            await visit(random.Random(number), proxy, name, seen[name])

    numbers = iter(range(CONNECTIONS))
    rules = Rules(RULES, seed=7)
    changes = {"rules": rules, "rotate_bytes": ROTATE_BYTES}
    async with proxied(broker, path, seconds_max=300, **changes) as proxy:
        async with trio.open_nursery() as nursery:
            for _ in range(AT_ONCE):
                nursery.start_soon(client, numbers)
    return proxy


async def test_a_rotated_recording_is_what_clients_and_broker_saw(tmp_path: Path) -> None:
    seen: dict[str, Seen] = defaultdict(Seen)
    proxy = await work(tmp_path / "recording.mcap", seen)
    paths = sorted(tmp_path.glob("*.mcap"))
    assert len(paths) > 2, "it is rotated"
    assert proxy.summary is not None and proxy.summary.frames_lost == 0

    exchanges = sorted(recording.read(tmp_path), key=lambda each: each.number)
    assert [each.number for each in exchanges] == list(range(1, len(exchanges) + 1))
    of_client: dict[str | None, list[Exchange]] = defaultdict(list)
    for each in exchanges:
        of_client[each.client_id].append(each)
    assert of_client.keys() == seen.keys()
    for client_id, found in of_client.items():
        compare(found, seen[client_id or ""])
    read_alone = [each for path in paths for each in recording.read(path)]
    assert len(read_alone) >= len(exchanges), "files that begin in the middle are read alone, too"


def compare(found: list[Exchange], seen: Seen) -> None:
    """Compare the exchanges of a connection with what both its ends saw."""
    asked = [each for each in found if not each.is_copy]
    for each, sent in zip(asked, seen.asked, strict=False):
        if each.row.request_flags & TRUNCATED:  # before a login it may be a token
            assert each is asked[-1] and len(each.request_frame or b"") < len(sent)
        else:
            assert each.request_frame == sent
    hit = {fault for each in found for fault in each.row.fault_ids}
    cut = any("disconnect" in RULES[fault - 1].words for fault in hit)
    assert cut or len(asked) == len(seen.asked)
    answers = [each for each in found if each.response_frame is not None]
    of_broker = [each for each in answers if not each.row.response_flags & INJECTED]
    if not cut:
        left = [each.request_sent for each in found if each.row.request_sent_ns]
        assert left == seen.arrived
        assert [each.response_frame for each in of_broker] == seen.answered
        told = [each for each in answers if not (each.is_copy or each.undelivered)]
        assert b"".join(each.response_sent or b"" for each in told) == seen.got
