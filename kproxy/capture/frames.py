"""Finds where the next frame begins in a stream of which a part is missing, with proof.

A request is one whose API and version are known, and that decodes to its last byte; a response
answers a request that is pending, and decodes as the answer to it. What decodes only in part, or is
not here to its end yet, proves nothing.

Invariants: memory is bounded by `_BYTES_MAX`, time by what comes and `_PROOFS_MAX` proofs for each
time that something comes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator

import attrs

from kproxy.wire.protocol import ProtocolError, codec, is_known, schema

_BYTES_MAX = 4 << 20
_PROOFS_MAX = 64
_OPEN_MAX = 256
_HEADER_BYTES = 12
_START = re.compile(
    rb"(?=(?!\x00\x00\x00[\x00-\x07])[\x00-\x06][\x00-\xff]{3}\x00[\x00-\x7f]\x00[\x00-\x1f])"
)
_HEADER = struct.Struct(">ihh")
"""What a request may begin with: its size, API and version."""

Candidates = Callable[[bytearray, int], Iterator[int]]
"""Yields where, in bytes from an offset on, a frame may begin."""
Proof = Callable[[bytes], bool]


@attrs.define(eq=False)
class FrameSearch:
    """The search in one stream."""

    candidates: Candidates
    proves: Proof
    _bytes: bytearray = attrs.Factory(bytearray)
    _open: list[int] = attrs.Factory(list)
    """Where frames may begin that are not here to their end."""
    _searched: int = 0
    passed_bytes: int = 0
    """The number of bytes before the frame that was found."""

    def take(self, data: bytes) -> bytes | None:
        """Take the next bytes; return all from the first frame on, None if none is found."""
        held = self._bytes
        held += data
        found = self.candidates(held, self._searched)
        places, self._open, proofs = sorted({*self._open, *found}), [], 0
        for at in places:
            end = at + 4 + int.from_bytes(held[at : at + 4])
            if end > len(held):
                if end - at <= _BYTES_MAX and len(self._open) < _OPEN_MAX:
                    self._open.append(at)
            elif proofs < _PROOFS_MAX:
                proofs += 1
                if self.proves(bytes(held[at:end])):
                    self.passed_bytes += at
                    return bytes(held[at:])
        self._searched = max(0, len(held) - _HEADER_BYTES + 1)
        self._forget(min((*self._open, self._searched)))
        return None

    def _forget(self, count: int) -> None:
        """Forget so many bytes at least, more if there are too many."""
        count = max(count, len(self._bytes) - _BYTES_MAX)
        del self._bytes[:count]
        self._open = [at - count for at in self._open if at >= count]
        self._searched = max(0, self._searched - count)
        self.passed_bytes += count

    @property
    def held_bytes(self) -> int:
        """The number of bytes that wait for their end."""
        return len(self._bytes)


def requests(data: bytearray, start: int) -> Iterator[int]:
    """Yield where requests may begin."""
    for found in _START.finditer(data, start):
        at = found.start()
        if at + _HEADER_BYTES > len(data):
            return
        if is_known(*_HEADER.unpack_from(data, at)[1:]):
            yield at


def is_request(frame: bytes) -> bool:
    """Return whether these bytes are a request, to the last one."""
    key, version = int.from_bytes(frame[4:6]), int.from_bytes(frame[6:8])
    message = schema.message(key, schema.REQUEST)
    if message is None or frame[8] & 0x80:
        return False
    try:
        header = schema.named("RequestHeader"), codec.request_header_version(key, version), ()
        _, body = codec.locate(*header)(frame, codec.SIZE_BYTES)
        return codec.locate(message, version, ())(frame, body)[1] == len(frame)
    except ProtocolError:
        return False


def responses(data: bytearray, start: int, correlation_ids: set[int]) -> Iterator[int]:
    """Yield where responses to some requests may begin."""
    found = set[int]()
    for each in correlation_ids:
        wanted, at = each.to_bytes(4, signed=True), start + 3
        while (at := data.find(wanted, at + 1)) >= 0:
            if 4 <= int.from_bytes(data[at - 4 : at]) <= _BYTES_MAX and at + 8 <= len(data):
                found.add(at - 4)
    yield from sorted(found)


def is_response(frame: bytes, key: int, version: int) -> bool:
    """Return whether these bytes are a response to a request of this kind."""
    message = schema.message(key, schema.RESPONSE)
    if message is None or not is_known(key, version):
        return False
    try:
        body = codec.response_body(frame, key, version)
        return codec.locate(message, version, ())(frame, body)[1] == len(frame)
    except ProtocolError:
        return False
