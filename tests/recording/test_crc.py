"""CRCs of joined bytes from the CRCs of the parts."""

from __future__ import annotations

import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kproxy.recording.crc import combine


@given(first=st.binary(max_size=50), second=st.binary(max_size=50))
def test_it_is_the_crc_of_both_together(first: bytes, second: bytes) -> None:
    crc = combine(zlib.crc32(first), zlib.crc32(second), len(second))
    assert crc == zlib.crc32(first + second)


@pytest.mark.parametrize("length", [255, 256, 257, 65_535, 65_536, 1 << 20, (1 << 24) + 77])
def test_long_second_parts(length: int) -> None:
    second = random.Random(length).randbytes(length)
    assert combine(zlib.crc32(b"first"), zlib.crc32(second), length) == zlib.crc32(
        b"first" + second
    )
