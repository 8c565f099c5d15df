"""Certificates of authorities in a Java KeyStore, the format of `cacerts` and of older clients.

    magic, version, count │ entries: tag, alias, time, certificate (or key and chain) │ SHA-1

All integers are big-endian. Certificates are in the clear: like Java, who has no password reads
them unchecked. Private keys, which have a cipher of Java's own, are skipped.
"""

from __future__ import annotations

import hashlib

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
        found = hashlib.sha1(key + _WHITENER + content, usedforsecurity=False).digest()
        if found != digest:
            raise JksError("its password is wrong, or it is damaged")
    return _Cursor(data).certificates()


class _Cursor:
    """Reads a store from its beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = len(MAGIC)

    def certificates(self) -> list[bytes]:
        """Return the trusted certificates."""
        version, count = self._integer(), self._integer()
        if version not in (1, 2):
            raise JksError(f"it has version {version}; 1 and 2 can be read")
        found: list[bytes] = []
        for _ in range(count):
            tag = self._integer()
            self._bytes(2)  # the alias
            self._take(8)  # the time
            if tag == _TRUSTED:
                found.append(self._certificate(version))
            elif tag == _KEY:
                self._bytes(4)
                for _ in range(self._integer()):
                    self._certificate(version)
            else:
                raise JksError("it is damaged")
        return found

    def _certificate(self, version: int) -> bytes:
        if version == 2:
            self._bytes(2)  # the type: X.509
        return self._bytes(4)

    def _integer(self) -> int:
        return int.from_bytes(self._take(4))

    def _bytes(self, length_bytes: int) -> bytes:
        return self._take(int.from_bytes(self._take(length_bytes)))

    def _take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        if len(found) < count:
            raise JksError("it is damaged")
        self._at += count
        return found
