"""Mutations of byte strings, all from one seeded random source; shared by the fuzz targets."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

NUMBERS = (
    b"\x00",
    b"\x01",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\x80\x00",
    b"\xff\xff",
    b"\x7f\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\x00\x0f\x42\x40",
    b"\x00\x0f\x42\x41",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x1f",
    b"\xff\xff\xff\xff\xff\xff",
)
"""Lengths and counts at which readers go wrong."""


def _flip(raw: bytearray, rng: random.Random) -> None:
    raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)


def _put(raw: bytearray, rng: random.Random) -> None:
    number = rng.choice(NUMBERS)
    place = rng.randrange(len(raw))
    raw[place : place + len(number)] = number


def _insert(raw: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(raw) + 1)
    raw[place:place] = rng.choice(NUMBERS)


def _delete(raw: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(raw))
    del raw[place : place + rng.randint(1, 8)]


def _truncate(raw: bytearray, rng: random.Random) -> None:
    del raw[rng.randrange(len(raw)) :]


def _repeat(raw: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(raw))
    raw[place:place] = raw[place : place + rng.randint(1, 32)] * rng.randint(1, 4)


def _scramble(raw: bytearray, rng: random.Random) -> None:
    place = rng.randrange(len(raw))
    raw[place : place + 8] = rng.randbytes(rng.randint(1, 8))


_MUTATIONS: Sequence[Callable[[bytearray, random.Random], None]] = (
    _flip,
    _put,
    _put,
    _insert,
    _delete,
    _truncate,
    _repeat,
    _scramble,
)


def mutated(raw: bytes, rng: random.Random, bytes_max: int = 65536) -> bytes:
    """The bytes after one to four random changes."""
    changed = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        if not changed:
            break
        rng.choice(_MUTATIONS)(changed, rng)
    return bytes(changed[:bytes_max])
