"""Fuzzes the codec.

Each input is a mutated message of the corpus (every message, or a few of them, in its oldest, first flexible and
newest version). The decoder, the walk and the plain reading of the wire format must all accept it
and end in the same place, or all refuse it with the same ProtocolError; what was accepted must
encode, and decode to what encodes the same; seek must find what the walk finds. One input of 500
is decoded under a limit of 200 bytes of memory per byte and 1 MiB.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from typing import Any

import attrs
import hypothesis
from hypothesis import given

from kproxy.wire import protocol
from kproxy.wire.protocol import ProtocolError, codec, diagnose, schema
from kproxy.wire.protocol.schema import Message
from tests.fuzz.fuzzing import Target, main
from tests.fuzz.mutate import mutated
from tests.versions import some, versions
from tests.wire.protocol.strategies import bodies

SECONDS_PER_INPUT_MAX = 2.0
MEMORY_EVERY = 500


@attrs.frozen
class Seed:
    """One valid message of the corpus."""

    message: Message
    version: int
    raw: bytes


def corpus(examples: int = 2) -> list[Seed]:
    """Valid messages: the same for every run."""
    found: list[Seed] = []
    # `tests.wire.protocol.test_diagnose` changes bytes of every message.
    for name in some(schema.message_names(), schema.message_names()[::9]):
        message = schema.named(name)
        for version in versions(message):
            found += [Seed(message, version, raw) for raw in _drawn(message, version, examples)]
    return found


def _drawn(message: Message, version: int, examples: int) -> list[bytes]:
    found: list[bytes] = []

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @given(bodies(message, version))
    def draw(body: Any) -> None:
        found.append(_encoded(message, version, body))

    draw()
    return found


def check(message: Message, version: int, raw: bytes) -> bool:
    """Whether the input is accepted; AssertionError where the readers disagree."""
    try:
        value, end = codec.decoder(message, version)(raw, 0)
    except ProtocolError as error:
        _check_refused(message, version, raw, error)
        return False
    spans, walked = codec.locate(message, version, ())(raw, 0)
    assert (spans, walked) == ([], end)
    written = _encoded(message, version, value)
    again, _ = codec.decoder(message, version)(written, 0)
    # Not always equal: of a known tag that came twice only the last is kept.
    assert _encoded(message, version, again) == written
    for slot in codec.layout(message, version).slots[-1:]:
        _, offset = codec.locate(message, version, (slot.name,), None, False)(raw, 0)
        seek = codec.seek(message, version, slot.name)
        next(seek)
        try:
            for place in range(0, end, 7):
                seek.send(raw[place : place + 7])
        except StopIteration as stop:
            assert stop.value <= offset
    return True


def _encoded(message: Message, version: int, value: Any) -> bytes:
    parts: list[bytes] = []
    codec.encoder(message, version)(value, parts.append)
    return b"".join(parts)


def _check_refused(message: Message, version: int, raw: bytes, error: ProtocolError) -> None:
    walk = diagnose.Walk(codec.layout(message, version), raw, 0)
    try:
        walk.struct(walk.layout)
    except ProtocolError as plain:
        assert str(plain) == str(error)
    else:
        raise AssertionError(f"refused, but well formed: {error}")
    try:
        codec.locate(message, version, ())(raw, 0)
    except ProtocolError as other:
        assert str(other) == str(error)
    else:
        raise AssertionError(f"the walk accepts what the decoder refuses: {error}")


def check_frame(message: Message, version: int, raw: bytes) -> None:
    """A frame around the input: decoding gives a value or a ProtocolError."""
    if message.api_key is None:
        return
    size = len(raw) + 4
    try:
        if message.direction == schema.REQUEST:
            head = message.api_key.to_bytes(2, "big") + version.to_bytes(2, "big")
            protocol.decode_request(size.to_bytes(4, "big") + head + raw)
        else:
            frame = size.to_bytes(4, "big") + bytes(4) + raw
            protocol.decode_response(frame, message.api_key, version)
    except ProtocolError:
        pass


def check_memory(message: Message, version: int, raw: bytes) -> None:
    """Decoding takes at most 200 bytes per byte of input, and 1 MiB."""
    tracemalloc.start()
    try:
        codec.decoder(message, version)(raw, 0)
    except ProtocolError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak <= 200 * len(raw) + (1 << 20), f"{peak} bytes for {len(raw)}"


def target() -> Target:
    """Return what tries a mutated message."""
    seeds = corpus()

    def message(rng: random.Random) -> int:
        chosen = rng.choice(seeds)
        raw = mutated(chosen.raw, rng)
        start = time.process_time()
        try:
            accepted = check(chosen.message, chosen.version, raw)
            check_frame(chosen.message, chosen.version, raw)
            if rng.randrange(MEMORY_EVERY) == 0:
                check_memory(chosen.message, chosen.version, raw)
            assert time.process_time() - start < SECONDS_PER_INPUT_MAX
        except Exception as error:
            error.add_note(f"{chosen.message.name} v{chosen.version} {raw.hex()}")
            raise
        return accepted

    return message


if __name__ == "__main__":
    main(target())
