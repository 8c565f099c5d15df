"""The compression of record batches: none, gzip, snappy, lz4, zstd; bounded on the way out.

    bytes from the wire ──decompress(codec, …, allowance)──▶ bytes, and the damage after them
    bytes of ours       ──compress(codec, …)───────────────▶ what Kafka's Java client can read

Invariants:

* Nothing is allocated on the word of the sender. A buffer starts small and grows only after the
  decompressor has filled it; a length that snappy claims is held against the most that so many
  bytes can yield.
* The output of one call is at most what its `Allowance` has left, whatever the size of its input:
  20 MB of zeros are a value like any other, and gzip makes 20 KB of them.
* Time is linear in what comes out. What is produced twice because of growing is an eighth of it;
  what was produced and then refused is taken from the allowance all the same, so that a thousand
  bombs cost no more than one.
* Damage hides nothing that comes before it: those bytes are returned, with the reason why there
  are no more.
* cramjam, the library behind all codecs but gzip, is imported on first use.

The reader is that of Kafka's Java client (CompressionType and its wrappers, SnappyInputStream,
Lz4BlockInputStream): bytes behind the end of gzip that are no further member, and any behind the
end of the first LZ4 frame, are passed over; snappy comes raw or in xerial's framing, of which
several streams may be joined; lz4 frames in magic 0 carry a header checksum that was computed over
too much (librdkafka's rdkafka_lz4.c); zstd frames do not tell the size of their content.
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable, Generator, Iterator

import attrs

from kproxy.wire.protocol.errors import ProtocolError

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Names by the codec bits of a batch's attributes; 5 to 7 are unused (CompressionType)."""

DECOMPRESSED_BYTES_MAX = 128 << 20
"""The most that one batch may decompress to, unless the caller says otherwise."""

RECORDS_MAX = 1_000_000
"""The most records that compressed bytes may turn into, as Kafka's collections."""

_BUFFER_BYTES_FIRST = 16 << 10
_GROWTH = 8

_GZIP_IN_BYTES = 8 << 10
_GZIP_OUT_BYTES = 16 << 10
"""What Java's reader takes and gives at once; a piece with damage in it is lost."""
_GZIP_PASSED_OVER_BYTES = 18
"""What is no longer than a header and a trailer is not looked at, as in Java's GZIPInputStream."""
_GZIP_FEXTRA, _GZIP_FNAME, _GZIP_FCOMMENT, _GZIP_FHCRC = 4, 8, 16, 2

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
_LZ4_BLOCK_CHECKSUM, _LZ4_CONTENT_SIZE, _LZ4_CONTENT_CHECKSUM = 0x10, 0x08, 0x04


class AllowanceError(ProtocolError):
    """What is compressed would become more than is allowed."""


@attrs.define
class Allowance:
    """A limit for what may still be decompressed; exceeding it is an `AllowanceError`."""

    bytes_left: int = DECOMPRESSED_BYTES_MAX
    records_left: int = RECORDS_MAX
    """The headers of records count as well."""
    exceeded: bool = attrs.field(default=False, init=False)
    """True once something has not been read for want of it."""

    def take_records(self, count: int, what: str = "records") -> None:
        """Account for `count` records, or headers.

        Raises:
            AllowanceError: so many are not left.
        """
        if count > self.records_left:
            self.exceeded = True
            raise AllowanceError(
                f"{count} {what} out of compressed bytes, more than the {self.records_left} allowed"
            )
        self.records_left -= count

    def too_large(self, codec: str, size_bytes: int, bytes_max: int) -> AllowanceError:
        """Return the error that `size_bytes` become more than the `bytes_max` that were left."""
        self.exceeded = True
        return AllowanceError(f"{codec}: {size_bytes} bytes decompress to more than {bytes_max}")

    @contextlib.contextmanager
    def of_one_batch(self) -> Generator[Allowance]:
        """Give what one batch may take of it: no more than a fresh one."""
        bytes_left = min(DECOMPRESSED_BYTES_MAX, self.bytes_left)
        records_left = min(RECORDS_MAX, self.records_left)
        part = Allowance(bytes_left, records_left)
        yield part
        self.bytes_left -= bytes_left - part.bytes_left
        self.records_left -= records_left - part.records_left
        self.exceeded |= part.exceeded


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
) -> tuple[bytes, str]:
    """Undo `codec` on `data`, and take what comes out from `allowance` (by default a fresh one).

    Return what comes out, up to where `data` is damaged, and the damage in words; "" if there is
    none. `lz4_checksum_ignored`: as in Kafka for magic 0, do not look at the frame's header
    checksum.

    Raises:
        AllowanceError: `data` would become too large.
    """
    if codec == "none":
        return bytes(data), ""
    if codec not in CODECS:
        return b"", f"compression codec {codec} does not exist"
    allowance = allowance or Allowance()
    if codec in ("gzip", "snappy"):
        return _decompress_pieces(codec, data, allowance)
    if codec == "lz4":
        frame, damage = _lz4_frame(data, lz4_checksum_ignored)
        plain, found = (
            _decompress_growing(codec, frame, len(data), allowance) if frame else (b"", "")
        )
        damage = f"lz4: {damage}" if damage else ""
        return plain, found or damage
    return _decompress_growing(codec, data, len(data), allowance)


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


def _decompress_growing(
    codec: str, data: bytes, size_bytes: int, allowance: Allowance
) -> tuple[bytes, str]:
    """Decompress into a buffer that grows only when it was really filled."""
    import cramjam

    into: Callable[[bytes, cramjam.Buffer], int] = getattr(cramjam, codec).decompress_into
    bytes_max = allowance.bytes_left
    size = min(bytes_max, max(_BUFFER_BYTES_FIRST, _GROWTH * len(data)))
    while True:
        buffer = bytearray(size)
        view = cramjam.Buffer(buffer, copy=False)
        damage = ""
        try:
            into(data, view)
        except cramjam.DecompressionError as error:
            # The one sign of a full buffer is this text of cramjam; a test holds it for every
            # codec.
            if "Too much to write on view" in str(error):
                if size >= bytes_max:
                    allowance.bytes_left -= size
                    raise allowance.too_large(codec, size_bytes, bytes_max) from None
                size = min(bytes_max, _GROWTH * size)
                continue
            damage = f"{codec}: {_reason(error).removeprefix(f'{codec}: ')}"
        written = view.tell()
        allowance.bytes_left -= written
        return bytes(memoryview(buffer)[:written]), damage


def _decompress_pieces(codec: str, data: bytes, allowance: Allowance) -> tuple[bytes, str]:
    """Decompress piece by piece: none is larger than the allowance."""
    bytes_max = allowance.bytes_left
    pieces: list[bytes] = []
    found = (_gzip_pieces if codec == "gzip" else _snappy_pieces)(data, allowance)
    try:
        for piece in found:
            allowance.bytes_left -= len(piece)
            if allowance.bytes_left < 0:
                allowance.bytes_left = 0
                raise allowance.too_large(codec, len(data), bytes_max)
            pieces.append(piece)
    except _DamagedError as error:
        return b"".join(pieces), f"{codec}: {error}"
    return b"".join(pieces), ""


class _DamagedError(Exception):
    """Compressed data is not what its codec says; the text tells how."""


# ---- gzip


def _gzip_pieces(data: bytes, allowance: Allowance) -> Iterator[bytes]:
    """Yield the content of all members; what follows the last of them is passed over."""
    position = _gzip_header_end(data, 0)
    if position is None:
        raise _DamagedError("no header")
    while position is not None:
        inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        crc = size = 0
        while not inflate.eof:
            given = inflate.unconsumed_tail
            if not given:
                given = data[position : position + _GZIP_IN_BYTES]
                position += len(given)
            try:
                piece = inflate.decompress(given, min(_GZIP_OUT_BYTES, allowance.bytes_left + 1))
            except zlib.error as error:
                raise _DamagedError(_reason(error)) from None
            if not (piece or given or inflate.eof):
                raise _DamagedError("the data ends too early")
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            yield piece
        position -= len(inflate.unused_data)
        trailer = struct.pack("<II", crc, size & 0xFFFFFFFF)
        if data[position : position + 8] != trailer:
            raise _DamagedError("the checksum or the length at the end is wrong")
        position += 8
        more = len(data) - position > _GZIP_PASSED_OVER_BYTES
        position = _gzip_header_end(data, position) if more else None


def _gzip_header_end(data: bytes, start: int) -> int | None:
    """Return the end of a member's header; None if there is none (RFC 1952)."""
    if data[start : start + 3] != b"\x1f\x8b\x08" or len(data) < start + 10:
        return None
    flags, end = data[start + 3], start + 10
    if flags & _GZIP_FEXTRA:
        end += 2 + int.from_bytes(data[end : end + 2], "little")
    for flag in (_GZIP_FNAME, _GZIP_FCOMMENT):
        if flags & flag:
            end = data.find(b"\0", end) + 1
            if not end:
                return None
    if flags & _GZIP_FHCRC:
        found = int.from_bytes(data[end : end + 2], "little")
        if found != zlib.crc32(data[start:end]) & 0xFFFF:
            return None
        end += 2
    return end if end <= len(data) else None


# ---- snappy


def _snappy_pieces(data: bytes, allowance: Allowance) -> Iterator[bytes]:
    """Yield the blocks of raw snappy, or of xerial's framing of it, after a look at what each
    claims."""
    import cramjam

    bytes_max = allowance.bytes_left
    framed = data.startswith(_XERIAL_MAGIC) and len(data) >= len(_XERIAL_HEADER)
    for block in _xerial_blocks(data) if framed else (data,):
        try:
            size = cramjam.snappy.decompress_raw_len(block)
            if size > _SNAPPY_RATIO_MAX * len(block):
                raise _DamagedError(f"{len(block)} bytes cannot hold the {size} they claim")
            if size > allowance.bytes_left:
                raise allowance.too_large("snappy", len(data), bytes_max)
            yield bytes(cramjam.snappy.decompress_raw(block))
        except cramjam.DecompressionError as error:
            raise _DamagedError(_reason(error).removeprefix("snappy: ")) from None


def _xerial_blocks(data: bytes) -> Iterator[bytes]:
    """Cut xerial's framing: a header of 16 bytes, then blocks, each after its int32 size; where a
    size would be, another header may stand."""
    position = 0
    while position + 4 <= len(data):
        start = position + 4
        size = int.from_bytes(data[position:start], "big", signed=True)
        if data[position:start] == _XERIAL_MAGIC[:4]:
            position += len(_XERIAL_HEADER)
            if position > len(data):
                raise _DamagedError("a header is longer than the data")
            if not data.startswith(_XERIAL_MAGIC, start - 4):
                return
            if int.from_bytes(data[position - 4 : position], "big", signed=True) < 1:
                raise _DamagedError("a header of an unknown version")
            continue
        position = start + size
        if size < 0 or position > len(data):
            raise _DamagedError("a block is longer than the data")
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


def _lz4_frame(data: bytes, checksum_ignored: bool) -> tuple[bytes, str]:
    """Return the first frame of `data`, up to where it is damaged, without what Java's reader does
    not look at: the content's size and checksum, and the bytes behind the frame. The second part is
    the damage in words."""
    if data[:4] != _LZ4_MAGIC or len(data) < 7:
        return b"", "no header"
    flags, start = data[4], 6 + (8 if data[4] & _LZ4_CONTENT_SIZE else 0)
    if flags & 0x03 or flags >> 6 != 1 or data[5] & 0x8F or data[5] < 0x40 or len(data) <= start:
        return b"", f"a header of {data[4:6].hex()}"
    if not checksum_ignored and data[start] != _lz4_checksum(data[4:start]):
        return b"", "the checksum of the header is wrong"
    block_bytes_max = 1 << 8 + 2 * (data[5] >> 4)
    checksum = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    damage = ""
    end = start = start + 1
    while size := int.from_bytes(data[end : end + 4], "little") & ~_LZ4_STORED:
        if size > block_bytes_max:
            damage = f"a block of {size} bytes"
        elif end + 4 + size + checksum > len(data):
            damage = "a block is longer than the data"
        if damage:
            break
        end += 4 + size + checksum
    else:
        damage = "" if end + 4 <= len(data) else "the data ends too early"
    descriptor = bytes((flags & ~(_LZ4_CONTENT_SIZE | _LZ4_CONTENT_CHECKSUM), data[5]))
    header = b"%b%b%c" % (_LZ4_MAGIC, descriptor, _lz4_checksum(descriptor))
    return header + data[start:end] + bytes(4), damage


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


def _reason(error: Exception) -> str:
    """Return the library's own words on one line."""
    return " ".join(str(error).split())
