"""Compression of chunks as MCAP names it; decompression bounded by the size that they declare.

A few hundred bytes can claim to be gigabytes: nothing is written beyond the declared size, which
the caller has checked.
"""

from __future__ import annotations

_ZSTD_LEVEL = 1
"""Higher levels cost several times as much on the byte path and save little …"""
_ZSTD_LEVEL_HARD = 19
_HARD_BYTES_MAX = 4 << 10
"""… but there is time where little is to be written: it saves a quarter, for half a millisecond."""


def compress(data: bytes | memoryview, hard: bool = False) -> bytes:
    """Return data as "zstd"; `hard` compresses small data better, in more time."""
    import cramjam  # 8 ms, and only needed where something is compressed

    level = _ZSTD_LEVEL_HARD if hard and len(data) <= _HARD_BYTES_MAX else _ZSTD_LEVEL
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(compression: str, data: bytes, size: int) -> bytes | bytearray:
    """Return the `size` bytes that were compressed as MCAP names it: "", "zstd" or "lz4".

    Raises: ValueError, when they are more or fewer, do not decompress, or for another name.
    """
    if compression not in ("", "zstd", "lz4"):
        raise ValueError(f"compression {compression!r} is not known")
    if not size:
        return b""
    records, found = data, len(data)
    if compression:
        import cramjam

        records = bytearray(size)
        codec = cramjam.zstd if compression == "zstd" else cramjam.lz4
        try:
            found = codec.decompress_into(data, records)
        except cramjam.DecompressionError as error:
            raise ValueError(f"it does not decompress to {size} bytes: {error}") from None
    if found != size:
        raise ValueError(f"it holds {found} bytes instead of {size}")
    return records
