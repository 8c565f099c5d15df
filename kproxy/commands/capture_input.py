"""The packets of captures on disk, or of a pipe: plain, or packed with gzip or zstd.

::

    FILE, - ─▶ CaptureInput ─▶ [gzip, zstd] ─▶ capture.file ─▶ packets of all, by their time
"""

from __future__ import annotations

import gzip
import heapq
import io
import os
import select
import subprocess
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path

from kproxy.capture.file import CaptureError, Cut, Packet, Read, packets

PIPE = "-"
_BUFFER_BYTES = 1 << 20
_LOOK_SECONDS = 0.2
_LAST_SECONDS = 1.0
"""A tool that was stopped, too, writes its last packets within this time."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class CaptureInput(io.RawIOBase):
    """A file or a pipe, read until its end; with `follow`, as it grows, until `stopped`.

    `waiting` is called where nothing comes, and where it may be a while since it was.
    """

    def __init__(
        self, fd: int, follow: bool, stopped: Callable[[], bool], waiting: Callable[[], None]
    ) -> None:
        self._fd, self._follow = fd, follow
        self._stopped, self._waiting = stopped, waiting
        self._ends_at = 0.0

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what there is, waiting for some; once stopped, what comes at once."""
        while True:
            if self._stopped():
                last = _LAST_SECONDS if self._follow else 0
                self._ends_at = self._ends_at or time.monotonic() + last
                if time.monotonic() >= self._ends_at:
                    return 0
            self._waiting()
            ready = select.select([self._fd], [], [], _LOOK_SECONDS)[0]
            if ready and (count := os.readv(self._fd, [buffer])):
                return count
            if self._stopped() or (ready and not self._grows()):
                return 0
            if ready:
                time.sleep(_LOOK_SECONDS)

    def _grows(self) -> bool:
        """Return whether there may be more behind the end; not of a pipe."""
        return self._follow and os.path.isfile(f"/dev/fd/{self._fd}")


def read_captures(
    files: Sequence[str],
    follow: bool,
    stopped: Callable[[], bool],
    waiting: Callable[[], None],
    warn: Callable[[str], None],
    tls_keys: Path | None = None,
) -> Iterator[Packet]:
    """Yield the packets of captures, by their time where there are several; with the key log of
    TLS, they have what tshark decrypts.

    Raises: CaptureError; OSError.
    """

    def one(name: str) -> Iterator[Packet]:
        with open(0 if name == PIPE else name, "rb", buffering=0, closefd=name != PIPE) as file:
            raw = CaptureInput(file.fileno(), follow, stopped, waiting)
            buffered = io.BufferedReader(raw, _BUFFER_BYTES)
            try:
                found = packets(_reader(buffered, name))
                yield from _with_decrypted(found, name, tls_keys) if tls_keys else found
            except CaptureError as error:
                raise CaptureError(f"{_named(name)} {error}") from None
            except (gzip.BadGzipFile, zlib.error) as error:
                raise CaptureError(f"{_named(name)} does not unpack: {error}") from None
            except (Cut, EOFError):
                if not stopped():
                    warn(f"{_named(name)} breaks off in the middle of a packet")

    if len(files) == 1:
        return one(files[0])
    return heapq.merge(*map(one, files), key=itemgetter(0))


def _named(name: str) -> str:
    return "standard input" if name == PIPE else name


def _reader(file: io.BufferedReader[CaptureInput], name: str) -> Read:
    """Return what reads a file, unpacked.

    Raises: CaptureError.
    """
    start = file.peek(4)
    if start.startswith(_GZIP):
        return io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER_BYTES).read
    if not start.startswith(_ZSTD):
        return file.read
    if name == PIPE:
        raise CaptureError("is packed with zstd: zstdcat FILE | kproxy import - --out …")
    try:
        unpacking = subprocess.Popen(["zstd", "-dcq", "--", name], stdout=subprocess.PIPE)
    except FileNotFoundError:
        raise CaptureError("is packed with zstd, and there is no zstd here to unpack it") from None
    assert unpacking.stdout is not None
    return unpacking.stdout.read


def _with_decrypted(found: Iterator[Packet], name: str, tls_keys: Path) -> Iterator[Packet]:
    """Yield packets with what TLS said in them: tshark tells it by their numbers.

    Raises: CaptureError; OSError.
    """
    tls_keys.open().close()
    words = ["tshark", "-r", name, "-o", f"tls.keylog_file:{tls_keys}", "-Y", "tls && data.data"]
    words += ["-d", "tls.port==1-65535,data", "-T", "fields", "-e", "frame.number"]
    words += ["-e", "data.data"]
    try:
        tshark = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CaptureError("has TLS to decrypt, and there is no tshark here to do it") from None
    assert tshark.stdout is not None
    try:
        told = (line.split() for line in tshark.stdout)
        number, data = next(told, (b"0", b""))
        for place, packet in enumerate(found, 1):
            if place != int(number):
                yield packet
                continue
            yield packet._replace(decrypted=bytes.fromhex(data.replace(b",", b"").decode()))
            number, data = next(told, (b"0", b""))
    finally:
        tshark.kill()
        tshark.wait()
        tshark.stdout.close()
