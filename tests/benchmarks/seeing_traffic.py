"""Small exchanges for `tests.benchmarks.seeing`: made once, written by any version of kproxy.

`templates` encodes one exchange of each kind. Run as a program, this writes a recording of so many
of them with the kproxy that is on the path, so that two versions read the same traffic::

    python seeing_traffic.py TEMPLATES.pickle RECORDING.mcap COUNT
"""

from __future__ import annotations

import pickle
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_NS = 1_790_000_000_000_000_000
CONNECTIONS = 40
_BATCH = 2_000
_SHARES = {"Fetch empty": 6, "Fetch": 4, "Produce": 6, "OffsetCommit": 2, "Heartbeat": 2}
"""How often each kind comes, of twenty."""

Template = tuple[int, int, bytes, bytes]
"""API key and version, request and response; both have the correlation id to be patched."""


def templates() -> list[Template]:
    """Twenty exchanges as they follow each other on a connection."""
    from kproxy.wire.protocol import messages as m
    from tests.exchange.batches import batch
    from tests.exchange.bodies import (
        fetch_request,
        fetch_response,
        produce_request,
        produce_response,
    )
    from tests.exchange.making import request, response

    data = batch(1, 41, b'{"order_id": 17, "amount": 12.5, "status": "PAID"}')
    committed = m.OffsetCommitRequest
    topic = committed.OffsetCommitRequestTopic
    partition = committed.OffsetCommitRequestPartition(partition_index=3, committed_offset=42)
    commit = committed(
        group_id="billing",
        generation_id_or_member_epoch=4,
        topics=[topic(name="orders", partitions=[partition])],
    )
    member = {"group_id": "billing", "generation_id": 4, "member_id": "app-1-5eed5eed"}
    fetch = fetch_request({3: 41}, max_wait_ms=500, min_bytes=1)  # as consumers have it
    bodies = {
        "Fetch empty": ("Fetch", 11, fetch, fetch_response({3: b""})),
        "Fetch": ("Fetch", 11, fetch, fetch_response({3: data})),
        "Produce": ("Produce", 9, produce_request({3: data}), produce_response({3: 41})),
        "OffsetCommit": ("OffsetCommit", 7, commit, m.OffsetCommitResponse()),
        "Heartbeat": ("Heartbeat", 4, m.HeartbeatRequest(**member), m.HeartbeatResponse()),
    }
    made: list[Template] = []
    for name, share in _SHARES.items():
        api, version, asked, answered = bodies[name]
        frame = request(api, version, asked)
        made += [(frame.api_key, version, frame.data, response(frame, answered).data)] * share
    random.Random(1).shuffle(made)
    return made


def entries(made: list[Template], count: int) -> Iterator[list[Any]]:
    """Yield batches of entries with so many exchanges of each connection in turn."""
    from kproxy.exchange.entries import CONNECTIONS as NOTES
    from kproxy.exchange.entries import Frame, Note, Side

    found: list[Any] = []
    for connection in range(1, CONNECTIONS + 1):
        about = {"client_address": f"10.0.0.{connection}:5000", "node_id": connection % 3 + 1}
        about |= {"client_id": f"app-{connection % 8}"}
        body = {"event": "opened", "connection": connection, **about}
        found.append(Note(NOTES, START_NS, body))
    for number in range(1, count + 1):
        connection = number % CONNECTIONS + 1
        api_key, version, request, response = made[number // CONNECTIONS % len(made)]
        correlation_id = struct.pack(">i", number)
        asked = request[:8] + correlation_id + request[12:]
        answer = response[:4] + correlation_id + response[8:]
        at = START_NS + number * 50_000
        head = connection, number, api_key, version, number
        found.append(Frame(Side.CLIENT, *head, at, [asked], len(asked), 0, at + 20_000))
        back = at + 400_000 + number % 97 * 10_000
        times = at, at + 20_000, len(asked)
        found.append(
            Frame(Side.BROKER, *head, back, [answer], len(answer), 0, back + 20_000, *times)
        )
        if len(found) >= _BATCH:
            yield found
            found = []
    yield found


def write(made: list[Template], path: Path, count: int) -> None:
    """Write a recording."""
    from kproxy.recording import Writer

    writer = Writer(path, start_ns=START_NS, schema_id="5eed5eed", library_version="0.1.0")
    for batch in entries(made, count):
        writer.write(batch)
    writer.close()


if __name__ == "__main__":
    with open(sys.argv[1], "rb") as file:
        write(pickle.load(file), Path(sys.argv[2]), int(sys.argv[3]))
