"""A program that records into several files and kills itself where requests of every kind are
pending: `python -m tests.recording.killed_pending PATH`.

What is pending lies in the first file, but for two; then others are answered until there are three
files more.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    FAULTED,
    FRAGMENT,
    MORE,
    NO_RESPONSE,
    RAW_SASL,
    ChunkTimes,
    Entry,
    Frame,
    FrameRun,
    Requests,
    Side,
)
from kproxy.recording import Recording
from kproxy.wire.protocol import Request, encode_request, messages
from tests.recording.making import SETTINGS, START_NS

MS = 1_000_000
MAX_WAIT_MS = 30_000
POLL, PRODUCE, PIECES, TOKEN, ONE_WAY, DROPPED, HELD, LATER = range(1, 9)
"""Numbers of exchanges, and of their connections: a long poll; a Produce; a Produce whose last
piece has not come; a SASL token; a Produce with acks=0 that has not left; a request that a rule has
dropped; one whose response waits for its client; one that comes when there are several files."""
RULE = 7
BUSY = 9
"""A connection on which everything is answered."""


def fetch(number: int) -> bytes:
    """A request for records."""
    header = messages.RequestHeader(api_key=1, api_version=11, correlation_id=number)
    return encode_request(Request(header, messages.FetchRequest(max_wait_ms=MAX_WAIT_MS)))


def heartbeat(number: int) -> bytes:
    """A small request."""
    return struct.pack(">ihhih", 36, 12, 0, number, -1).ljust(40, b"q")


def alone(number: int, api_key: int, size: int = 100, **more: Any) -> Frame:
    """A request by itself."""
    whole = more.get("frame_bytes", size)
    data = struct.pack(">ihhi", whole - 4, api_key, 3, number).ljust(size, b"q")
    at_ns = START_NS + number * MS
    frame = Frame(
        Side.CLIENT, number, number, api_key, 3, number, at_ns, [data], size, 0, at_ns + 9
    )
    for name, value in more.items():
        setattr(frame, name, value)
    return frame


def run(number: int, connection: int, data: bytes, api: tuple[int, int], at_ns: int) -> FrameRun:
    """A small request as most are recorded."""
    times = ChunkTimes(at_ns, at_ns + 9)
    asked = Requests(number, *api, 0, [number], [len(data)], times)
    return FrameRun(Side.CLIENT, connection, times, [data], asked, 0, [len(data)])


def answer(request: FrameRun, sent_ns: int) -> FrameRun:
    """Its response."""
    data = struct.pack(">iih", 6, request.requests[0].correlation_id, 0)
    times = ChunkTimes(request.time_ns + MS, sent_ns)
    return FrameRun(Side.BROKER, request.connection, times, [data], request.requests, 0, [10])


def first() -> Iterator[Entry]:
    """What is pending in the end."""
    for number in range(POLL, BUSY + 1):
        yield notes.opened(number, START_NS, {"client_address": f"10.0.0.{number}:1"})
    rules = [{"fault_id": RULE, "name": "gone", "rule": {}}]
    yield notes.fault_rules(START_NS, 1, rules)
    yield run(POLL, POLL, fetch(POLL), (1, 11), START_NS)
    yield alone(PRODUCE, 0)
    yield alone(PIECES, 0, flags=FRAGMENT | MORE, frame_bytes=1000, sent_ns=0)
    yield alone(PIECES, 0, flags=FRAGMENT | MORE, frame_bytes=1000, sent_ns=0)
    yield alone(TOKEN, 0, flags=RAW_SASL)
    yield alone(ONE_WAY, 0, flags=NO_RESPONSE, sent_ns=0)
    yield alone(DROPPED, 12, flags=FAULTED, sent_ns=0, withheld=True, fault_ids=(RULE,))
    held = run(HELD, HELD, heartbeat(HELD), (12, 0), START_NS)
    yield held
    yield answer(held, 0)


def answered(number: int) -> list[Entry]:
    """An exchange that does not wait."""
    request = run(number, BUSY, heartbeat(number), (12, 0), START_NS + number * MS)
    return [request, answer(request, request.time_ns + 2 * MS)]


def main(path: str) -> None:
    """Write, and be killed."""
    recording = Recording(path, rotate_bytes=12_000, **SETTINGS)
    recording.write(list(first()))
    recording.write([run(LATER, DROPPED, heartbeat(LATER), (12, 0), START_NS + LATER * MS)])
    number = 10
    while len(recording.paths) < 4:
        recording.write([entry for some in range(number, number + 9) for entry in answered(some)])
        number += 9
    recording.write(answered(number))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
