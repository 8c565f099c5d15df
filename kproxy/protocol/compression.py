"""The compression of record batches: none, gzip, snappy, lz4, zstd; bounded on the way out.

    bytes from the wire ──decompress(codec, …, allowance)──▶ bytes, or ProtocolError
    bytes of ours       ──compress(codec, …)───────────────▶ what Kafka's Java client can read

Invariants:

* Nothing is allocated on the word of the sender. The output buffer starts small and grows only
  after the decompressor has filled it; a length that snappy claims is held against the most that
  so many bytes can yield.
* The output of one call is at most what its `Allowance` has left, and at most 1,024 times its input
  where that is more than 16 MiB. (A batch of constant bytes legitimately reaches 10,000 : 1 with
  zstd, but not at such a size: producers limit batches by their size before compression.)
* Time is linear in what comes out. What is produced twice because of growing is an eighth of it;
  what was produced and then refused is taken from the allowance all the same, so that a thousand
  bombs cost no more than one.
* cramjam, the one library behind all four codecs, is imported on first use.

What other clients do differently and we read all the same (Java's CompressionType and its
wrappers, librdkafka's rdkafka_lz4.c): snappy comes raw or in xerial's framing; lz4 frames in
magic 0 carry a header checksum that was computed over too much; zstd frames do not tell the size
of their content.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

import attrs

from kproxy.protocol.errors import ProtocolError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names by the codec bits of a batch's attributes; 5 to 7 are unused (CompressionType)."""

DECOMPRESSED_BYTES_MAX = 128 << 20
"""The most that one batch may decompress to, unless the caller says otherwise."""

RECORDS_MAX = 1_000_000
"""The most records that compressed bytes may turn into, as Kafka's collections."""

_RATIO_MAX = 1024
_RATIO_FREE_BYTES = 16 << 20
"""Below this size any ratio is allowed."""

_BUFFER_BYTES_FIRST = 16 << 10
_GROWTH = 8

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 << 10
_SNAPPY_RATIO_MAX = 22
"""Snappy's densest element is a copy of 64 bytes written in 3."""

_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_DESCRIPTOR = b"\x60\x40"
"""Version 1, independent blocks (Java refuses others); blocks of at most 64 KiB."""
_LZ4_BLOCK_BYTES = 64 << 10
_LZ4_STORED = 0x80000000


@attrs.define
class Allowance:
    """A limit for what may still be decompressed; exceeding it is a `ProtocolError`."""

    bytes_left: int = DECOMPRESSED_BYTES_MAX
    records_left: int = RECORDS_MAX

    def take_records(self, count: int) -> None:
        """Account for `count` records.

        Raises:
            ProtocolError: so many are not left.
        """
        if count > self.records_left:
            raise ProtocolError(
                f"{count} records out of compressed bytes, with {self.records_left} allowed"
            )
        self.records_left -= count


def codec_name(attributes: int) -> str:
    """Name the codec that the low three bits of `attributes` stand for; "unknown-5" to "-7"."""
    code = attributes & 7
    return CODECS[code] if code < len(CODECS) else f"unknown-{code}"


def decompress(
    codec: str,
    data: bytes,
    allowance: Allowance | None = None,
    *,
    lz4_checksum_ignored: bool = False,
) -> bytes:
    """Undo `codec` on `data`, and take what comes out from `allowance` (by default a fresh one).

    `lz4_checksum_ignored`: as in Kafka for magic 0, do not look at the frame's header checksum.

    Raises:
        ProtocolError: `data` is not what `codec` says, or would become too large.
    """
    if codec == "none":
        return bytes(data)
    if codec not in CODECS:
        raise ProtocolError(f"compression codec {codec} does not exist")
    allowance = allowance or Allowance()
    if codec == "snappy":
        return _snappy_decompress(data, allowance)
    if codec == "lz4" and lz4_checksum_ignored:
        data = _with_lz4_checksum(data)
    return _decompress_growing(codec, data, allowance)


def compress(codec: str, data: bytes, *, lz4_checksum_broken: bool = False) -> bytes:
    """Compress `data` so that every Kafka client can read it.

    `lz4_checksum_broken`: write the header checksum that magic 0 wants (`KAFKA-3160`).

    Raises:
        ValueError: there is no such codec.
    """
    if codec == "none":
        return bytes(data)
    if codec not in CODECS:
        raise ValueError(f"no such codec: {codec} (there are {', '.join(CODECS)})")
    if codec == "snappy":
        return _snappy_compress(data)
    if codec == "lz4":
        return _lz4_compress(data, lz4_checksum_broken)
    import cramjam

    return bytes(cramjam.gzip.compress(data) if codec == "gzip" else cramjam.zstd.compress(data, 3))


def _decompress_growing(codec: str, data: bytes, allowance: Allowance) -> bytes:
    """Decompress into a buffer that grows only when it was really filled."""
    import cramjam

    into: Callable[[bytes, bytearray], int] = getattr(cramjam, codec).decompress_into
    bytes_max = _bytes_max(data, allowance)
    size = min(bytes_max, max(_BUFFER_BYTES_FIRST, _GROWTH * len(data)))
    while True:
        buffer = bytearray(size)
        try:
            written = into(data, buffer)
        except cramjam.DecompressionError as error:
            # The one sign of a full buffer is this text of Rust's standard library; a test holds
            # it for every codec.
            full = "failed to write whole buffer" in str(error)
            if full and size < bytes_max:
                size = min(bytes_max, _GROWTH * size)
                continue
            allowance.bytes_left -= size
            if full:
                raise _too_large(codec, data, bytes_max) from None
            raise ProtocolError(f"{codec}: {_reason(error)}") from None
        allowance.bytes_left -= written
        return bytes(memoryview(buffer)[:written])


def _snappy_decompress(data: bytes, allowance: Allowance) -> bytes:
    """Decompress raw snappy, or xerial's framing of it, after a look at what each block claims."""
    import cramjam

    bytes_max = left = _bytes_max(data, allowance)
    plain: list[bytes] = []
    framed = data[: len(_XERIAL_MAGIC)] == _XERIAL_MAGIC
    for block in _xerial_blocks(data) if framed else (data,):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise ProtocolError(f"snappy: {len(block)} bytes cannot hold the {size} they claim")
            if size > left:
                raise _too_large("snappy", data, bytes_max)
            left -= size
            allowance.bytes_left -= size
            plain.append(bytes(cramjam.snappy.decompress_raw(block)))
        except cramjam.DecompressionError as error:
            raise ProtocolError(_reason(error)) from None
    return b"".join(plain)


def _xerial_blocks(data: bytes) -> Iterator[bytes]:
    """Cut xerial's framing: a header of 16 bytes, then blocks, each after its int32 size."""
    position = len(_XERIAL_HEADER)
    while position < len(data):
        start = position + 4
        position = start + int.from_bytes(data[position:start], "big")
        if position > len(data):
            raise ProtocolError("snappy: a block is longer than the data")
        yield data[start:position]


def _snappy_compress(data: bytes) -> bytes:
    import cramjam

    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        out += len(block).to_bytes(4, "big")
        out += block
    return bytes(out)


def _lz4_compress(data: bytes, checksum_broken: bool) -> bytes:
    """Write the frame by hand: libraries link their blocks, which Java's reader refuses."""
    import cramjam

    out = bytearray(_LZ4_MAGIC + _LZ4_DESCRIPTOR)
    out.append(_lz4_checksum(bytes(out) if checksum_broken else _LZ4_DESCRIPTOR))
    for start in range(0, len(data), _LZ4_BLOCK_BYTES):
        plain = data[start : start + _LZ4_BLOCK_BYTES]
        block = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(block) < len(plain):
            out += len(block).to_bytes(4, "little") + block
        else:
            out += (len(plain) | _LZ4_STORED).to_bytes(4, "little") + plain
    return bytes(out + bytes(4))


def _with_lz4_checksum(data: bytes) -> bytes:
    """Put the right header checksum into the first frame of `data`; leave what is no frame."""
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        return data
    flags = data[4]
    end = 6 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    if len(data) <= end:
        return data
    return b"%b%c%b" % (data[:end], _lz4_checksum(data[4:end]), data[end + 1 :])


def _lz4_checksum(descriptor: bytes) -> int:
    """Return the second byte of xxHash-32 (seed 0); `descriptor` has less than 16 bytes."""
    mask = 0xFFFFFFFF
    value = 0x165667B1 + len(descriptor)
    words = len(descriptor) // 4 * 4
    for position in range(0, words, 4):
        value += int.from_bytes(descriptor[position : position + 4], "little") * 0xC2B2AE3D
        value &= mask
        value = (value << 17 | value >> 15) * 0x27D4EB2F & mask
    for byte in descriptor[words:]:
        value = value + byte * 0x165667B1 & mask
        value = (value << 11 | value >> 21) * 0x9E3779B1 & mask
    value = (value ^ value >> 15) * 0x85EBCA77 & mask
    value = (value ^ value >> 13) * 0xC2B2AE3D & mask
    return (value ^ value >> 16) >> 8 & 0xFF


def _bytes_max(data: bytes, allowance: Allowance) -> int:
    """Return the largest size that `data` may decompress to."""
    return min(allowance.bytes_left, max(_RATIO_FREE_BYTES, _RATIO_MAX * len(data)))


def _too_large(codec: str, data: bytes, bytes_max: int) -> ProtocolError:
    return ProtocolError(f"{codec}: {len(data)} bytes decompress to more than {bytes_max}")


def _reason(error: Exception) -> str:
    """Return the library's own words on one line."""
    return " ".join(str(error).split())
