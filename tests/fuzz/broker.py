"""Fuzzes the replaying broker: random and mutated requests of every API, while time passes.

The requests name what the recording has as often as what it does not, and what earlier responses
have given out (member ids, producer ids, epochs). Whatever is asked: no exception leaves the
machine, and each connection gets whole responses, in the order of its requests.
"""

from __future__ import annotations

import contextlib
import itertools
import random
from pathlib import Path
from typing import Any

import attrs

from kproxy.exchange.entries import Side
from kproxy.replay.opening import Wanted, open_recorded
from kproxy.replay.settings import Mode, ReplaySettings, Visible
from kproxy.wire.protocol import ProtocolError, decode_response, schema
from tests.fuzz.fuzzing import Target, main
from tests.fuzz.mutate import mutated
from tests.proxy.playing import request
from tests.replay.making import Playing
from tests.simulation.filling import Filler

DEMO = Path(__file__).parents[2] / "recordings" / "demo.mcap"
_WORDS = ("orders", "billing", "shop", "range", "roundrobin", "consumer", "", "nobody", "ä" * 40)
_CLIENTS_MAX = 4
_REQUESTS_A_WORLD = 200


@attrs.define(eq=False)
class World:
    """One replaying broker, and clients that ask it at random."""

    seed: int
    rng: random.Random = attrs.field(init=False)
    filler: Filler = attrs.field(init=False)
    playing: Playing = attrs.field(init=False)
    asked: dict[int, list[tuple[int, int, int]]] = attrs.field(factory=dict)
    """By connection: api key, version and correlation id of what has no response yet."""
    given: list[Any] = attrs.field(factory=list)
    """Values from responses."""
    numbers: itertools.count = attrs.field(factory=lambda: itertools.count(1))

    def __attrs_post_init__(self) -> None:
        rng = self.rng = random.Random(self.seed)
        self.filler = Filler(rng, lambda: (1, "h", 1))
        mode = rng.choice([Mode.STATE, Mode.STATE, Mode.SEMANTIC])
        loaded = open_recorded([DEMO], Wanted(mode)).loaded
        visible = rng.choice(list(Visible))
        users = {"alice": "secret"}
        self.playing = Playing(loaded, ReplaySettings(mode, visible=visible, users=users))

    def run(self) -> None:
        """Ask, and hold the answers to what was promised."""
        for _ in range(_REQUESTS_A_WORLD):
            self.step()
        self.playing.pass_ms(100_000)
        self.look()
        self.playing.perform(self.playing.broker.stop(self.playing.now))
        assert all(number in self.playing.closed for number in self.playing.sent)

    def step(self) -> None:
        """Do one thing."""
        rng, playing = self.rng, self.playing
        open_now = [number for number in playing.sent if number not in playing.closed]
        if not open_now or (len(open_now) < _CLIENTS_MAX and rng.random() < 0.2):
            self.asked[playing.connect().number] = []
            return
        number = rng.choice(open_now)
        chance = rng.random()
        if chance < 0.03:
            how = rng.choice(["eof", "reset"])
            playing.perform(playing.broker.closed(number, Side.CLIENT, how, "", playing.now))
        elif chance < 0.2:
            playing.pass_ms(rng.choice([1, 30, 1000, 50_000]))
        else:
            data = self.request(number)
            cut = rng.randrange(len(data) + 1)
            for part in (data[:cut], data[cut:]):
                if part and number not in playing.closed:
                    received = playing.broker.receive(number, Side.CLIENT, part, playing.now)
                    playing.perform(received)
        self.look()

    def request(self, number: int) -> bytes:
        """A request, as it is or damaged."""
        rng = self.rng
        key = rng.choice(list(self.playing.broker.state.ranges))
        known = schema.message(key, schema.REQUEST)
        assert known is not None
        version = rng.choice(known.versions)
        correlation_id = next(self.numbers)
        data = b""
        while not data:
            body = self.mean(self.filler.body(key, "request", version))
            with contextlib.suppress(ProtocolError):  # what was given may be too large for it
                data = request(key, version, body, correlation_id)
        damaged = rng.random() < 0.2
        if damaged or (key, version) == (17, 0):  # after a handshake v0, tokens come
            self.asked[number].clear()  # nobody knows what is answered from now on
            self.asked[number].append((-1, -1, -1))
            return mutated(data, rng) if damaged else data
        self.asked[number].append((key, version, correlation_id))
        return data

    def mean(self, value: Any, name: str = "") -> Any:
        """Have a body name what there is, here and there."""
        rng = self.rng
        if attrs.has(type(value)):
            for field in attrs.fields(type(value)):
                inner = self.mean(getattr(value, field.name), field.name)
                if field.name != "unknown_tags":
                    setattr(value, field.name, inner)
        elif isinstance(value, list):
            return [self.mean(each, name) for each in value]
        elif rng.random() < 0.7:
            like = [each for each in self.given if type(each) is type(value)]
            if isinstance(value, str):
                return rng.choice([*like, *_WORDS])
            if like and name.endswith(("id", "epoch", "offset", "offsets")):
                return rng.choice(like)
        return value

    def look(self) -> None:
        """Take the responses that came."""
        for number, data in self.playing.sent.items():
            while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                frame = bytes(data[:size])
                del data[:size]
                self.take(number, frame)
            assert not data, "a part of a response"

    def take(self, number: int, frame: bytes) -> None:
        """Take a response: it is for the next request that is answered."""
        asked = self.asked[number]
        correlation_id = int.from_bytes(frame[4:8], "big", signed=True)
        if (-1, -1, -1) in asked:
            return
        while asked and asked[0][0] == 0 and asked[0][2] != correlation_id:
            asked.pop(0)  # Produce with acks=0
        key, version, expected_id = asked.pop(0)
        assert correlation_id == expected_id, "not in the order of the requests"
        try:
            body = decode_response(frame, key, version).body
        except ProtocolError:
            assert key == schema.api_key("ApiVersions")
            return
        self.given += [each for each in _leaves(body) if each not in ("", 0, -1, None)]
        del self.given[:-100]


def _leaves(value: Any) -> list[Any]:
    if attrs.has(type(value)):
        found = [_leaves(getattr(value, field.name)) for field in attrs.fields(type(value))]
        return list(itertools.chain.from_iterable(found))
    if isinstance(value, list):
        return list(itertools.chain.from_iterable(map(_leaves, value)))
    return [value] if isinstance(value, str | int | bytes) else []


def target() -> Target:
    """Return what makes a world of a number, and lets it ask."""

    def world(rng: random.Random) -> int:
        World(rng.randrange(1 << 32)).run()
        return 1

    return world


if __name__ == "__main__":
    main(target())
