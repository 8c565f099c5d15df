"""Decompression of chunks, bounded by the size that the chunk declares.

A few hundred bytes can claim to be gigabytes, in a chunk's header as in the compressed frame's own;
the first was checked by the caller, and the second must agree with it.
"""

from __future__ import annotations


def decompress(compression: str, data: bytes, size: int) -> bytes:
    """Return the `size` bytes that were compressed as MCAP names it: "", "zstd" or "lz4".

    Raises: ValueError, when they are more or fewer, do not decompress, or for another name.
    """
    if compression not in _DECOMPRESS:
        raise ValueError(f"compression {compression!r} is not known")
    records = _DECOMPRESS[compression](data, size) if size else b""
    if len(records) != size:
        raise ValueError(f"it holds {len(records)} bytes instead of {size}")
    return records


def _stored(data: bytes, size: int) -> bytes:
    return data


def _unzstd(data: bytes, size: int) -> bytes:
    import zstandard

    try:
        declared = zstandard.frame_content_size(data)
        if declared not in (-1, size):
            raise ValueError(f"it holds {declared} bytes instead of {size}")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from None


def _unlz4(data: bytes, size: int) -> bytes:
    import lz4.frame

    try:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        records = decompressor.decompress(data, max_length=size)
    except (RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from None
    if not decompressor.needs_input and not decompressor.eof:
        raise ValueError(f"it holds more than {size} bytes")
    return records


_DECOMPRESS = {"": _stored, "zstd": _unzstd, "lz4": _unlz4}
