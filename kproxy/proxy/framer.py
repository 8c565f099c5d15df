"""Chunks → frames, for both directions of a connection.

::

    chunk ─▶ [header start] + chunk ─┬─▶ pass_whole        frames that are whole, and pass
                 ▲                   │
                 └── the next frame ─┴─▶ start ─▶ bytes_to_forward … ─▶ complete    any other

The framer owns the bytes that have not been taken yet: the beginning of a header, or, while the
direction is blocked, all that arrives. Its stream (`RequestStream`, `ResponseStream`) decides about
the frames. The short-cut is for speed alone: what it takes would pass the other way as well, and be
recorded alike.

A frame that arrives in several chunks is collected for the recording. From about a megabyte on, and
sooner where all connections together hold much (`budget`), it goes to the recording in pieces.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

from kproxy.exchange.entries import (
    FRAGMENT,
    MORE,
    OPAQUE,
    PIECE_BYTES_MAX,
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
from kproxy.proxy.verdicts import NOTHING, Respond, Verdict
from kproxy.wire.protocol import ProtocolError

if TYPE_CHECKING:
    from kproxy.proxy.requests import RequestStream
    from kproxy.proxy.responses import ResponseStream

_TAIL_BYTES_MAX = 8 << 20
"""The most bytes that are held of a streamed response, from its addresses on."""
_PRESSED_PIECE_BYTES_MIN = 4 << 10
"""Where the budget is short, pieces of this size are cut off: smaller ones cost more than they
free."""


class Violation(Exception):
    """A broken protocol; the text says how a peer broke it, and what is likely wrong."""


@attrs.define(eq=False)
class Partial:
    """A frame of which a part has arrived."""

    frame: Frame
    left_bytes: int
    """The bytes still to come."""
    secret: bool
    """It may hold secrets: no byte of it is recorded before it is redacted."""
    held: bool = False
    """Nothing of it leaves before it is whole."""
    verdict: Verdict = NOTHING
    """The verdict on a response that a rule reached before it came."""
    respond: Respond | None = None
    """The function that decides about a response when it is whole."""
    tail: Tail | None = None
    """The end of a response that streams past, from its addresses on; this end is held."""
    collected_bytes: int = 0
    """The size of `frame.pieces`."""
    blanked: bool = False
    """Its bytes so far are blanked out, and those that come will be."""
    identified: bool = False
    """Of a request: it is whole, so that it is known whether it is a token."""

    def add(self, piece: Buffer, now: int) -> None:
        """Take the next bytes."""
        self.frame.pieces.append(piece)
        self.frame.received_ns = now
        self.left_bytes -= len(piece)
        self.collected_bytes += len(piece)

    def bytes_before_tail(self, piece: Buffer) -> int:
        """Return how many bytes of the next piece may leave at once, if no rule looks at it: all,
        or those before the addresses at the end.

        Raises:
            Violation: the end is too large to be held.
        """
        if self.tail is None:
            return len(piece)
        try:
            leaving = self.tail.bytes_to_forward(piece)
        except ProtocolError:
            self.frame.flags |= OPAQUE
            self.tail = None
            return len(piece)
        if self.tail.held_bytes > _TAIL_BYTES_MAX:
            raise Violation(
                f"a response with over {_TAIL_BYTES_MAX} bytes of broker addresses behind the"
                " records"
            )
        return leaving

    def cut(self, out: Output) -> None:
        """Give the bytes so far to the recording, as a piece that others follow."""
        frame = self.frame
        frame.flags |= FRAGMENT
        if self.secret:
            self.blank()
        out.entries.append(attrs.evolve(frame, flags=frame.flags | MORE))
        frame.pieces = []
        self.collected_bytes = 0

    def blank(self) -> None:
        """Blank out the bytes so far: redacting field by field takes a whole frame."""
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

    def record(self, out: Output) -> None:
        """Record the frame as it came."""
        if self.secret:
            self.blank()
        out.entries.append(self.frame)

    def truncate(self, out: Output) -> None:
        """Record the frame as far as it came: its sender stopped in the middle."""
        self.frame.flags |= TRUNCATED | OPAQUE
        self.record(out)

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


class Framer:
    """Cuts the chunks of one direction into frames."""

    def __init__(self, stream: RequestStream | ResponseStream, share: Share) -> None:
        self._stream = stream
        self._share = share
        self._header_start = b""
        self.waiting: deque[tuple[bytes, int]] = deque()
        """Chunks that came while the direction was blocked, and their times."""
        self.partial: Partial | None = None
        """The frame of which a part has arrived."""
        self.failed: Partial | None = None
        """The whole frame on which kproxy failed; nothing behind it is taken."""

    def go_on(self, now: int, out: Output) -> None:
        """Take chunks that wait; see `feed`."""
        self.feed(b"", now, out)

    def feed(self, data: bytes, now: int, out: Output) -> None:
        """Take a chunk, behind those that wait.

        Raises:
            Violation: these bytes are not Kafka's, or all connections together hold too much; `out`
                has the frames before them.
        """
        if self.waiting:
            if data:
                self.waiting.append((data, now))
            while self.waiting and not self._stream.blocked:
                self._take(*self.waiting.popleft(), out)
        else:
            self._take(data, now, out)
        if self.partial is not None or self.waiting or self._share.held_bytes:
            held = sum(len(data) for data, _ in self.waiting) if self.waiting else 0
            if self.partial is not None:
                held += self.partial.collected_bytes
            if not self._share.hold(held):
                raise Violation(self._share.refusal(held))

    def _take(self, data: bytes, now: int, out: Output) -> None:
        """Take the frames of a chunk, which arrived at `now`."""
        if self._header_start:
            data, self._header_start = self._header_start + data, b""
        stream, position, end = self._stream, 0, len(data)
        while position < end:
            partial = self.partial
            if partial is None:
                position = stream.pass_whole(data, position, now, out)
                if position == end:
                    break
                if not stream.blocked:
                    partial = self.partial = stream.start(data, position, now, out)
                if partial is None:
                    if stream.blocked:
                        self.waiting.appendleft((data[position:], now))
                    else:
                        self._header_start = data[position:]
                    break
            position = self._take_piece(partial, data, position, now, out)

    def _take_piece(
        self, partial: Partial, data: bytes, position: int, now: int, out: Output
    ) -> int:
        """Give a frame its next bytes; return the offset behind them."""
        stop = min(len(data), position + partial.left_bytes)
        piece = part(data, position, stop)
        leaving = self._stream.bytes_to_forward(partial, piece, now, out)
        if leaving:
            out.forward(data, position, position + leaving)
        partial.add(piece, now)
        if not partial.left_bytes:
            self.partial = None
            try:
                self._stream.complete(partial, now, out)
            except Violation:
                raise
            except Exception:
                self.failed = partial
                self.waiting.clear()
                raise
        elif not partial.held:
            most = _PRESSED_PIECE_BYTES_MIN if self._share.pressed else PIECE_BYTES_MAX
            if partial.collected_bytes >= most and self._stream.may_be_cut(partial):
                partial.cut(out)
        return stop

    def cut_off(self, out: Output) -> int:
        """Go on behind bytes that are not seen: record the frame of which a part has arrived as far
        as it came; return how many of its bytes are still to come, -1 if that is not known."""
        partial, self.partial = self.partial, None
        if partial is None:
            begun, self._header_start = self._header_start, b""
            return -1 if begun else 0
        partial.truncate(out)
        self._share.release()
        return partial.left_bytes

    def finish(self, out: Output) -> bytes:
        """End the direction: record the frame that is cut off, and the one that kproxy failed on;
        return bytes of no frame."""
        rest = self._header_start + b"".join(data for data, _ in self.waiting)
        if self.failed is not None:
            self.failed.record(out)
        if self.partial is not None:
            self.partial.truncate(out)
        self.partial, self._header_start = None, b""
        self.waiting.clear()
        self._share.release()
        return rest
