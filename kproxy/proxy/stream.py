"""What both directions of a connection share: cutting off pieces of a frame for the recording.

A frame that arrives in several chunks is collected piece by piece. Nothing of more than about a
megabyte is kept: when so much has come together it goes to the recording as a piece of its own.
"""

from __future__ import annotations

import attrs

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    TRUNCATED,
    VIEWED_BYTES_MIN,
    ChunkTimes,
    Entry,
    Frame,
)
from kproxy.proxy import redact

PIECE_BYTES_MAX = 1 << 20
"""Frames are recorded in pieces of about this size."""

TOKEN_BYTES_MAX = 512 << 10
"""Kafka's sasl.server.max.receive.size."""


def part(data: bytes, start: int, stop: int) -> bytes | memoryview:
    """Return a part of a chunk: a copy if it is small, else a view."""
    if stop - start < VIEWED_BYTES_MIN or stop - start == len(data):
        return data[start:stop]
    return memoryview(data)[start:stop]


class Violation(Exception):
    """A peer broke the protocol; the text says how, and what is likely wrong."""


@attrs.define(eq=False)
class Output:
    """What one event on a stream leads to, collected in order."""

    pieces: list[bytes] = attrs.Factory(list)
    """Bytes to send to the other side."""
    timed: list[Frame | ChunkTimes] = attrs.Factory(list)
    """What is to be told when they were sent: of frames whose last byte is among them."""
    entries: list[Entry] = attrs.Factory(list)
    """What the recording gets."""


@attrs.define(eq=False)
class Partial:
    """A frame of which only a part has arrived."""

    frame: Frame
    left: int
    """Bytes still to come."""
    secret: bool
    """Whether it may hold secrets, so that no byte of it is recorded before it is redacted."""
    collected: int = 0
    """Bytes in frame.pieces."""
    blanked: bool = False

    whole: bool = False
    """Whether it must stay in one piece (it is held back for its addresses)."""

    def will_cut(self, size: int) -> bool:
        """Whether taking `size` more bytes makes a piece for the recording."""
        return self.left > size and self.collected + size >= PIECE_BYTES_MAX and not self.whole

    def add(self, size: int, now: int, out: Output) -> None:
        """Count the `size` bytes that were appended to frame.pieces; cut off a piece if due."""
        cut = self.will_cut(size)
        self.left -= size
        self.collected += size
        self.frame.received_ns = now
        if cut:
            self.cut(out)

    def cut(self, out: Output) -> None:
        """Hand what has been collected to the recording, as a piece that others follow."""
        frame = self.frame
        frame.flags |= FRAGMENT
        if self.secret:
            self.blank()
        out.entries.append(attrs.evolve(frame, flags=frame.flags | MORE))
        frame.pieces = []
        self.collected = 0

    def blank(self) -> None:
        """Blank out what has been collected: too large, or cut off, to redact with care."""
        frame = self.frame
        data = b"".join(frame.pieces)
        if self.blanked:
            frame.pieces = [bytes(len(data))]
        elif frame.flags & RAW_SASL:
            frame.pieces = [redact.blank_token(data)]
        else:
            frame.pieces = [redact.blank(data, frame.side)]
        frame.flags |= REDACTED
        self.blanked = True

    def truncated(self, out: Output) -> None:
        """Record the frame as far as it came: its sender stopped in the middle."""
        if self.secret:
            self.blank()
        self.frame.flags |= TRUNCATED | OPAQUE
        out.entries.append(self.frame)


def redact_frame(frame: Frame, partial: Partial | None) -> None:
    """Blank out the secrets of a frame that is complete (`partial`: if it came in parts)."""
    if partial and partial.blanked:
        partial.blank()
        return
    redacted = redact.redact(frame.data, frame.side, frame.api_key, frame.api_version)
    if redacted is not None:
        frame.pieces = [redacted]
        frame.flags |= REDACTED
