"""Chunks → frames, for both directions of a connection.

::

    chunk ─▶ [rest] + chunk ─▶ whole_frames ─▶ start ─▶ passes, passes … ─▶ complete
                                  │ the fast loop        │ a frame by itself
                                  └── what nobody wants ─┴── what somebody wants, or is cut off

The framer owns what has not been taken yet: the beginning of a header, or, while the direction is
blocked, all that arrives. The direction (`RequestStream`, `ResponseStream`) says what shall become
of the frames.

A frame that arrives in several chunks is collected for the recording. Nothing of more than about a
megabyte is kept: then it goes to the recording as a piece of its own, and sooner where all
connections together hold much (`budget`).
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    TRUNCATED,
    Buffer,
    Frame,
)
from kproxy.proxy import redact
from kproxy.proxy.budget import Share
from kproxy.proxy.output import Output, part
from kproxy.proxy.rewrite import Tail
from kproxy.proxy.verdicts import Respond, Verdict

PIECE_BYTES_MAX = 1 << 20
"""Frames are recorded in pieces of about this size."""
_PRESSED_PIECE_BYTES_MIN = 4 << 10
"""Where the budget is short, pieces of this size are cut off: smaller ones cost more than they
free."""


class Violation(Exception):
    """A peer broke the protocol; the text says how, and what is likely wrong."""


@attrs.define(eq=False)
class Partial:
    """A frame that is being taken by itself."""

    frame: Frame
    left: int
    """Bytes still to come."""
    secret: bool
    """Whether it may hold secrets, so that no byte of it is recorded before it is redacted."""
    held: bool = False
    """Whether nothing of it leaves before it is whole."""
    verdict: Verdict | None = None
    """Of a response: what a rule decided about it before it came."""
    respond: Respond | None = None
    """Of a response: decides about it when it is whole."""
    tail: Tail | None = None
    """Of a response that streams past: its end, from its addresses on, which is held."""
    collected: int = 0
    """Bytes in frame.pieces."""
    blanked: bool = False

    def add(self, piece: Buffer, now: int) -> None:
        """Take the next bytes."""
        self.frame.pieces.append(piece)
        self.frame.received_ns = now
        self.left -= len(piece)
        self.collected += len(piece)

    def cut(self, out: Output) -> None:
        """Give what has been collected to the recording, as a piece that others follow."""
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

    def truncate(self, out: Output) -> None:
        """Record the frame as far as it came: its sender stopped in the middle."""
        if self.secret:
            self.blank()
        self.frame.flags |= TRUNCATED | OPAQUE
        out.entries.append(self.frame)

    def redact(self) -> None:
        """Blank out the secrets of the frame, which is complete."""
        if self.blanked:
            self.blank()
            return
        frame = self.frame
        redacted = redact.redact(frame.data, frame.side, frame.api_key, frame.api_version)
        if redacted is not None:
            frame.pieces = [redacted]
            frame.flags |= REDACTED


class Direction(Protocol):
    """What shall become of the frames of one direction."""

    @property
    def blocked(self) -> bool:
        """Whether no further frame may be begun now."""
        ...

    def whole_frames(self, data: bytes, position: int, now: int, out: Output) -> int:
        """Take the frames from `position` on that are whole and that nobody wants.

        Returns the offset behind them.
        """
        ...

    def start(self, data: bytes, position: int, now: int, out: Output) -> Partial | None:
        """Begin the frame at `position`, taking nothing of it; None if its header is not whole.

        Raises:
            Violation: no legal frame starts there.
        """
        ...

    def passes(self, partial: Partial, piece: Buffer, now: int, out: Output) -> int:
        """Look at the next piece of a frame; return how many bytes of it may leave at once.

        Raises:
            Violation: the frame cannot go on.
        """
        ...

    def may_cut(self, partial: Partial) -> bool:
        """Whether what has arrived of a frame may be given to the recording, and be forgotten."""
        ...

    def complete(self, partial: Partial, now: int, out: Output) -> None:
        """The frame is whole: record it, and let what was held of it leave.

        Raises:
            Violation: the frame is not legal here.
        """
        ...


class Framer:
    """Cuts the chunks of one direction into frames."""

    def __init__(self, direction: Direction, share: Share) -> None:
        self._direction = direction
        self._share = share
        self._rest = b""
        """The beginning of a header."""
        self.waiting: deque[tuple[bytes, int]] = deque()
        """Chunks that came while the direction was blocked, and when; nobody else changes it."""
        self._partial: Partial | None = None

    @property
    def partial(self) -> Partial | None:
        """The frame of which a part has arrived."""
        return self._partial

    def feed(self, data: bytes, now: int, out: Output) -> None:
        """Take a chunk; b"" goes on with what waits of earlier ones.

        Raises:
            Violation: these bytes are not Kafka's; what came before them is in `out`.
        """
        if self.waiting:
            if data:
                self.waiting.append((data, now))
            while self.waiting and not self._direction.blocked:
                self._chunk(*self.waiting.popleft(), out)
        else:
            self._chunk(data, now, out)
        if self._partial or self.waiting or self._share.held_bytes:
            self._account()

    def _chunk(self, data: bytes, now: int, out: Output) -> None:
        """Take the frames of the next chunk, which arrived at `now`."""
        if self._rest:
            data, self._rest = self._rest + data, b""
        position = 0 if self._partial else self._direction.whole_frames(data, 0, now, out)
        if position < len(data):
            self._frames(data, position, now, out)

    def _frames(self, data: bytes, position: int, now: int, out: Output) -> None:
        """Take the frames of a chunk that arrived at `now`, from one that is wanted or not whole
        on."""
        direction, end = self._direction, len(data)
        while position < end:
            partial = self._partial
            if partial is None:
                if not direction.blocked:
                    partial = self._partial = direction.start(data, position, now, out)
                if partial is None:
                    if direction.blocked:
                        self.waiting.appendleft((data[position:], now))
                    else:
                        self._rest = data[position:]
                    break
            position = self._take(partial, data, position, now, out)
            if self._partial is None and position < end:
                position = direction.whole_frames(data, position, now, out)

    def _take(self, partial: Partial, data: bytes, position: int, now: int, out: Output) -> int:
        """Give a frame its next bytes; return the offset behind them."""
        stop = min(len(data), position + partial.left)
        piece = part(data, position, stop)
        leaving = self._direction.passes(partial, piece, now, out)
        if leaving:
            out.forward(data, position, position + leaving)
        partial.add(piece, now)
        if not partial.left:
            self._partial = None
            self._direction.complete(partial, now, out)
        elif not partial.held and partial.collected >= self._piece_bytes_max():
            if self._direction.may_cut(partial):
                partial.cut(out)
        return stop

    def _piece_bytes_max(self) -> int:
        return _PRESSED_PIECE_BYTES_MIN if self._share.pressed else PIECE_BYTES_MAX

    def _account(self) -> None:
        """Count what is kept of this direction.

        Raises:
            Violation: all connections together hold too much.
        """
        held = sum(len(data) for data, _ in self.waiting)
        if self._partial is not None:
            held += self._partial.collected
        if not self._share.hold(held):
            raise Violation(self._share.refusal(held))

    def finish(self, out: Output) -> bytes:
        """No more will come: record the frame that is cut off; return bytes of no frame."""
        rest = self._rest + b"".join(data for data, _ in self.waiting)
        if self._partial is not None:
            self._partial.truncate(out)
        self._partial, self._rest = None, b""
        self.waiting.clear()
        self._share.release()
        return rest
