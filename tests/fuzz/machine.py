"""Fuzzes the frame readers and the machine: mutated conversations, chunk by chunk.

The corpus is a recorded conversation and one made of every trait that the machine knows. Whatever
the bytes: no exception leaves the machine, the broker is sent a prefix of what the client sent, the
recording accounts for what arrived, and no secret is in it.
"""

from __future__ import annotations

import random
import struct
from pathlib import Path

import attrs

from kproxy.exchange.entries import (
    INJECTED,
    MORE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    TRUNCATED,
    Frame,
    Side,
)
from kproxy.proxy.settings import Settings
from kproxy.recording.reader import entries
from kproxy.wire.protocol import api_key, messages, schema
from tests.fuzz.fuzzing import Target, main
from tests.fuzz.mutate import mutated
from tests.proxy.playing import BROKER, Player, metadata, request, response

DEMO = Path(__file__).parents[2] / "recordings" / "demo.mcap"
SECRET = b"hunter2-is-secret"


@attrs.frozen
class Conversation:
    """What the client sends, and what the broker answers."""

    client: bytes
    broker: bytes


def corpus() -> list[Conversation]:
    """Conversations to mutate."""
    return [*recorded(), *secret(), small()]


def recorded() -> list[Conversation]:
    """The connections of the demo's recording."""
    sides: dict[int, list[bytearray]] = {}
    for entry in entries(DEMO):
        if isinstance(entry, Frame):
            streams = sides.setdefault(entry.connection, [bytearray(), bytearray()])
            streams[entry.side] += entry.data
    return [Conversation(bytes(client), bytes(broker)) for client, broker in sides.values()]


def secret() -> list[Conversation]:
    """A login in each way, after which an ordinary request follows."""
    handshake = api_key("SaslHandshake")
    token = struct.pack(">i", len(SECRET)) + SECRET
    found = []
    for version in (0, 1):
        asked = messages.SaslHandshakeRequest(mechanism="PLAIN")
        said = messages.SaslHandshakeResponse(mechanisms=["PLAIN"])
        client = request(handshake, version, asked, 1)
        broker = response(handshake, version, said, 1)
        if version == 0:
            client, broker = client + token, broker + token
        else:
            key = api_key("SaslAuthenticate")
            client += request(key, 2, messages.SaslAuthenticateRequest(auth_bytes=SECRET), 2)
            broker += response(key, 2, messages.SaslAuthenticateResponse(auth_bytes=SECRET), 2)
        found.append(Conversation(client + ask(3), broker + answer(3)))
    return found


def ask(correlation_id: int) -> bytes:
    """A request for metadata."""
    return request(3, 9, messages.MetadataRequest(topics=None), correlation_id)


def answer(correlation_id: int) -> bytes:
    """Its response, with addresses."""
    return response(3, 9, metadata((1, "b1", 9092), (2, "b2", 9092)), correlation_id)


def small() -> Conversation:
    """Every API that may have addresses, in its newest version."""
    client = broker = b""
    for number, name in enumerate(["Metadata", "FindCoordinator", "DescribeCluster", "ShareFetch"]):
        key = api_key(name)
        version = schema.message(key, schema.RESPONSE).versions[-1]
        client += request(key, version, getattr(messages, f"{name}Request")(), number)
        broker += response(key, version, getattr(messages, f"{name}Response")(), number)
    return Conversation(client, broker)


def check(client: bytes, broker: bytes, rng: random.Random, logged_in: bool) -> None:
    """Let the machine have a conversation; AssertionError where it does not keep its promises."""
    player = Player(Settings([BROKER], 19092))
    player.connect()
    streams = [(player.client, Side.CLIENT, client), (player.broker, Side.BROKER, broker)]
    places = [0, 0]
    fed = [bytearray(), bytearray()]
    while not player.closed and any(places[i] < len(streams[i][2]) for i in (0, 1)):
        feed, side, data = streams[which := rng.randrange(2)]
        chunk = data[places[which] : places[which] + rng.choice((1, 7, 64, 1 << 16))]
        places[which] += len(chunk)
        if chunk and not player.closed:
            fed[side] += chunk
            feed(chunk)
    for side in (Side.CLIENT, Side.BROKER):
        player.performer.eof(1, side)
    frames = player.frames()
    came, passed = bytes(fed[Side.CLIENT]), b""
    for frame in frames:
        if frame.side is Side.CLIENT:
            part, came = came[: len(frame.data)], came[len(frame.data) :]
            # ApiVersions in a version that we do not know is answered by kproxy.
            unknown = frame.flags & (OPAQUE | TRUNCATED) == OPAQUE and frame.api_key == 18
            passed += b"" if unknown else part
    assert (passed + came).startswith(player.to_broker())
    assert player.closed, "both sides have ended"
    asked = {f.number for f in frames if f.side is Side.CLIENT and not f.flags & MORE}
    assert len(asked) == sum(f.side is Side.CLIENT and not f.flags & MORE for f in frames)
    for frame in frames:
        assert (
            frame.flags & (REDACTED | RAW_SASL | INJECTED)
            or b"".join(frame.pieces) in fed[frame.side]
        )
    if logged_in:
        kept = b"".join(b"".join(frame.pieces) for frame in frames)
        assert SECRET not in kept and SECRET.decode() not in "".join(player.logs)


def target() -> Target:
    """Return what tries a mutated conversation."""
    seeds = corpus()

    def conversation(rng: random.Random) -> int:
        chosen = rng.choice(seeds)
        # A secret is kept out where it is where the protocol has it: in a login that is whole.
        whole = SECRET in chosen.client and rng.random() < 0.5
        client = chosen.client if whole or rng.random() < 0.4 else mutated(chosen.client, rng)
        broker = chosen.broker if whole or rng.random() < 0.4 else mutated(chosen.broker, rng)
        try:
            check(client, broker, rng, whole)
        except Exception as error:
            error.add_note(f"{client.hex()} {broker.hex()}")
            raise
        return 1

    return conversation


if __name__ == "__main__":
    main(target())
