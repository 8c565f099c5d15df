"""Certificates of authorities in a Java KeyStore, the format of `cacerts` and of older clients.

    magic, version, count │ entries: tag, alias, time, certificate (or key and chain) │ SHA-1

All integers are big-endian. Certificates are in the clear: like Java, who has no password reads
them unchecked. Private keys, which have a cipher of Java's own, are skipped.
"""

from __future__ import annotations

import hashlib
import io
from typing import BinaryIO

MAGIC = b"\xfe\xed\xfe\xed"
_TRUSTED = 2
_KEY = 1
_DIGEST_BYTES = hashlib.sha1(usedforsecurity=False).digest_size
_WHITENER = b"Mighty Aphrodite"
"""Is digested between the password and the content."""


class JksError(Exception):
    """The store cannot be read; the text says why."""


def trusted(data: bytes, password: str | None) -> list[bytes]:
    """Return the trusted certificates of a store in DER.

    Raises:
        JksError: it is damaged, or the password is wrong.
    """
    if password is not None:
        content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        key = password.encode("utf-16-be", "surrogatepass")
        if digest != hashlib.sha1(key + _WHITENER + content, usedforsecurity=False).digest():
            raise JksError("its password is wrong, or it is damaged")
    file = io.BytesIO(data[len(MAGIC) :])
    version, count = _integer(file), _integer(file)
    if version not in (1, 2):
        raise JksError(f"it has version {version}; 1 and 2 can be read")
    found: list[bytes] = []
    for _ in range(count):
        tag = _integer(file)
        _sized(file, 2)  # the alias
        _take(file, 8)  # the time
        if tag == _TRUSTED:
            found.append(_certificate(file, version))
        elif tag == _KEY:
            _sized(file, 4)
            for _ in range(_integer(file)):
                _certificate(file, version)
        else:
            raise JksError("it is damaged")
    return found


def _certificate(file: BinaryIO, version: int) -> bytes:
    if version == 2:
        _sized(file, 2)  # the type: X.509
    return _sized(file, 4)


def _sized(file: BinaryIO, length_bytes: int) -> bytes:
    return _take(file, int.from_bytes(_take(file, length_bytes)))


def _integer(file: BinaryIO) -> int:
    return int.from_bytes(_take(file, 4))


def _take(file: BinaryIO, count: int) -> bytes:
    found = file.read(count)
    if len(found) < count:
        raise JksError("it is damaged")
    return found
