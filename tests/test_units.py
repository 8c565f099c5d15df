"""Sizes and durations as they are typed."""

from __future__ import annotations

import pytest

from kproxy.units import parse_bytes, parse_seconds

SECONDS = {
    "90": 90,
    "20us": 20e-6,
    "20µs": 20e-6,
    "300ms": 0.3,
    "1.5s": 1.5,
    "2m": 120,
    "2min": 120,
    "3 h": 10_800,
    "1d": 86_400,
}
BYTES = {
    "1500": 1500,
    "7B": 7,
    "64kB": 64_000,
    "2MB": 2_000_000,
    "3GB": 3_000_000_000,
    "1TB": 10**12,
    "256 KiB": 1 << 18,
    "4MiB": 1 << 22,
    "1.5GiB": 3 << 29,
    "1TiB": 1 << 40,
}


@pytest.mark.parametrize("text", SECONDS)
def test_durations(text: str) -> None:
    assert parse_seconds(text) == pytest.approx(SECONDS[text])
    assert parse_seconds(text.replace("m", "M").replace("s", "S")) == parse_seconds(text)


@pytest.mark.parametrize("text", BYTES)
def test_sizes(text: str) -> None:
    assert parse_bytes(text) == BYTES[text] == parse_bytes(text.lower())
