"""Broker bytes → response frames, paired with their requests, with our addresses in them::

    chunk ─▶ frame ─▶ has addresses? ──no──────────────────────────▶ same bytes ─▶ client
                        │ held back until it is whole                ▲
                        ▼                                            │
                      addresses ─▶ listeners open? ──▶ splices ──────┘

A response that names a broker whose listener is not open yet waits for it, and what comes behind
it on this connection waits too. A large response with its addresses behind the records (Fetch
since v16) is passed on while it is walked; only its tail is held, and changed in place.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Mapping, Sequence

import attrs

from kproxy.exchange.entries import (
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    UNANSWERED,
    VIEWED_BYTES_MIN,
    ChunkTimes,
    Frame,
    PendingRequest,
    Run,
    Side,
)
from kproxy.protocol import ProtocolError, codec, schema
from kproxy.proxy import redact, rewrite
from kproxy.proxy.actions import Address
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.rewrite import AddressFields, Splice, Tail
from kproxy.proxy.stream import (
    TOKEN_BYTES_MAX,
    Output,
    Partial,
    Violation,
    part,
    redact_frame,
)
from kproxy.proxy.traits import (
    ADDRESSES,
    BEHIND_RECORDS,
    HANDSHAKE,
    RESPONSE_TRAITS,
    SECRET_RESPONSE,
    UNKNOWN,
    traits,
)

HELD_BYTES_MAX = 100 << 20
"""The largest response that is held back whole for its addresses."""

STREAMED_BYTES_MIN = 256 << 10
"""Responses with addresses behind their records are streamed from this size on."""

_START = struct.Struct(">ii")
_START_BYTES = 8
_BROKER = Side.BROKER
_FRONT_BYTES = 4096
_REMEMBERED_BYTES_MAX = 16 << 10
_SIZE = struct.Struct(">i")


@attrs.frozen
class _Rewritten:
    """A response and what became of it. Brokers repeat themselves: one asked for its metadata again
    and again mostly answers the same but for the correlation id."""

    api_key: int
    api_version: int
    generation: int
    """Of the nodes: with another, its addresses would become others."""
    came: bytes
    """All behind the correlation id."""
    size: bytes
    sent: bytes
    """What was sent instead: the size prefix, and all behind the correlation id."""
    changes: Sequence[Splice]


class ResponseStream:
    """The direction from the broker to the client."""

    def __init__(
        self,
        connection: int,
        pending: deque[PendingRequest],
        nodes: Nodes,
        advertised: Mapping[int, Address],
    ) -> None:
        self._connection = connection
        self._pending = pending
        self._nodes = nodes
        self._advertised = advertised
        self._rest = b""
        self._partial: Partial | None = None
        self._held: AddressFields | None = None
        self._tail: Tail | None = None
        self._backlog: list[bytes] = []
        self._parked: Frame | None = None
        self._last: _Rewritten | None = None
        self.waiting: set[int] = set()
        """Node ids whose listener must be open before anything more may leave."""
        self.refused_tokens = 0
        """The number of the SaslHandshake v0 that the broker has just refused; 0 is none."""

    @property
    def busy(self) -> bool:
        """Whether a response has begun to arrive, or is held back, and has not left whole."""
        return self._partial is not None or bool(self.waiting)

    def feed(self, data: bytes, now: int, out: Output) -> None:
        """Take a chunk.

        Raises:
            Violation: these bytes are not Kafka's; what came before them is in `out`.
        """
        if self.waiting:
            self._backlog.append(data)
            return
        if self._rest:
            data = self._rest + data
            self._rest = b""
        position = kept = 0
        end = len(data)
        try:
            while position < end:
                if self._partial is None:
                    position, kept = self._whole_frames(data, position, kept, now, out)
                    if position == end:
                        break
                    if not self._start(data, position, end, now, out):
                        self._rest = data[position:]
                        break
                partial = self._partial
                stop = min(end, position + partial.left)
                passed = self._pass(partial, part(data, position, stop), now, out)
                if position + passed < stop:
                    out.pieces.append(part(data, kept, position + passed))
                    kept = stop
                position = stop
                if not partial.left:
                    self._finish_partial(partial, now, out)
                    if self.waiting:
                        self._backlog.append(data[position:])
                        return
        except Violation:
            out.pieces.append(part(data, kept, position))
            raise
        if kept < position:
            out.pieces.append(part(data, kept, position))

    def _whole_frames(
        self, data: bytes, position: int, kept: int, now: int, out: Output
    ) -> tuple[int, int]:
        """Take the frames that are whole, due and free of secrets: the hot path.

        Returns the offset behind them, and the offset from which on nothing has left yet.
        """
        pending, unpack = self._pending, _START.unpack_from
        end = len(data)
        times = run = None
        while pending and end - position >= _START_BYTES:
            size, correlation_id = unpack(data, position)
            stop = position + 4 + size
            request = pending[0]
            asked_id, api_key, api_version, _, _, flags, _ = request
            if stop > end or size < 4 or asked_id != correlation_id or flags & RAW_SASL:
                break
            found = traits(api_key, api_version) & RESPONSE_TRAITS
            changes = ()
            if found:
                if found != ADDRESSES or size >= STREAMED_BYTES_MIN:
                    break
                sent, changes = self._at_once(data[position:stop], api_key, api_version)
                if sent is None:
                    break
                if changes:
                    if kept < position:
                        out.pieces.append(part(data, kept, position))
                    out.pieces.append(sent)
                    kept = stop
            pending.popleft()
            frame_bytes = size + 4
            if frame_bytes >= VIEWED_BYTES_MIN:
                run = None
                frame = self._response(request, now, [part(data, position, stop)], frame_bytes)
                _record(frame, changes, out)
            else:
                if run is None or changes is not run.splices:
                    if times is None:
                        times = ChunkTimes(now)
                        out.timed.append(times)
                    run = Run(_BROKER, self._connection, times, data, position, [], [], changes)
                    requests, sizes = run.requests, run.sizes
                    out.entries.append(run)
                requests.append(request)
                sizes.append(frame_bytes)
            position = stop
        return position, kept

    def resume(self, now: int, out: Output) -> None:
        """The listeners waited for are open: let go what was parked, and what came behind it."""
        self._release(self._parked, now, out)
        backlog, self._backlog = self._backlog, []
        for data in backlog:
            self.feed(data, now, out)

    def finish(self, now: int, out: Output) -> None:
        """The broker sends no more: record what is incomplete, and pass it on if it had begun."""
        if self._partial:
            self._partial.truncated(out)
        elif self._rest:
            out.pieces.append(self._rest)
        if self._parked:
            out.entries.append(self._parked)
        self._partial, self._parked, self._rest = None, None, b""

    def _start(self, data: bytes, position: int, end: int, now: int, out: Output) -> bool:
        """Begin the frame at `position`, taking nothing of it; False if its header is not whole."""
        have = end - position
        if have < 4:
            return False
        (size,) = _SIZE.unpack_from(data, position)
        if self._token_due(data, position, have, size):
            return self._start_token(size, now)
        if have < _START_BYTES or size < 4:
            _check_start(data, position, size)
            return False
        _, correlation_id = _START.unpack_from(data, position)
        request = self._pair(correlation_id, data, position, size, now, out)
        frame = self._response(request, now, [], size + 4)
        found = traits(frame.api_key, frame.api_version)
        self._partial = Partial(frame, size + 4, bool(found & SECRET_RESPONSE))
        if found & ADDRESSES:
            front = min(position + 4 + size, position + _FRONT_BYTES)
            self._hold(frame, found, data[position:front])
        self._partial.whole = self._held is not None
        return True

    def _hold(self, frame: Frame, found: int, front: bytes) -> None:
        fields = rewrite.address_fields(frame.api_key, frame.api_version)
        if found & BEHIND_RECORDS and frame.frame_bytes >= STREAMED_BYTES_MIN:
            message = schema.message(frame.api_key, schema.RESPONSE)
            try:
                body = codec.response_body(front, frame.api_key, frame.api_version)
            except ProtocolError:
                pass  # the header is not whole: hold it all
            else:
                walk = codec.seek(message, frame.api_version, fields.field)
                self._tail = Tail(fields, walk, body)
                return
        if frame.frame_bytes > HELD_BYTES_MAX:
            raise Violation(
                f"a response of {frame.frame_bytes} bytes with broker addresses"
                f" is over the limit of {HELD_BYTES_MAX}"
            )
        self._held = fields

    def _pass(self, partial: Partial, piece: bytes, now: int, out: Output) -> int:
        """Take a piece of the partial frame; return how much of its front may leave at once."""
        partial.frame.pieces.append(piece)
        partial.add(len(piece), now, out)
        if self._held:
            return 0
        if self._tail:
            try:
                return self._tail.passes(piece)
            except ProtocolError:
                partial.frame.flags |= OPAQUE
                self._tail = None
        return len(piece)

    def _finish_partial(self, partial: Partial, now: int, out: Output) -> None:
        self._partial = None
        frame = partial.frame
        if frame.flags & RAW_SASL:
            frame.pieces = [redact.blank_token(frame.data)]
            frame.flags |= REDACTED
        elif self._held or (self._tail and self._tail.offset is not None):
            self._release(frame, now, out)
            return
        found = traits(frame.api_key, frame.api_version)
        if found & UNKNOWN:
            frame.flags |= OPAQUE
        if found & HANDSHAKE and frame.data[8:10] != b"\0\0":
            self.refused_tokens = frame.number
        if found & SECRET_RESPONSE:
            redact_frame(frame, partial)
        self._tail = None
        _record(frame, (), out)

    # Addresses

    def _release(self, frame: Frame, now: int, out: Output) -> None:
        """Let a held frame or tail go, with our addresses, or park it until they are known."""
        self._parked = frame
        try:
            if self._tail:
                sent, changes = self._tail_replaced()
            else:
                frame.pieces = [frame.data]
                sent, changes = self._replaced(frame.data, frame.api_key, frame.api_version)
        except ProtocolError:
            frame.flags |= OPAQUE
            sent, changes = b"".join(self._tail.pieces) if self._tail else frame.data, ()
        if self.waiting:
            return
        self._parked = None
        self._held = self._tail = None
        out.pieces.append(sent)
        _record(frame, changes, out)

    def _at_once(
        self, data: bytes, api_key: int, api_version: int
    ) -> tuple[bytes | None, Sequence[Splice]]:
        """Return what a whole frame becomes; None if it must be held: until a listener is open, or
        because it is not what it should be."""
        last = self._last
        if last is not None and data[8:] == last.came and last.api_key == api_key:
            if last.api_version == api_version and last.generation == self._nodes.generation:
                return last.size + data[4:8] + last.sent, last.changes
        try:
            sent, changes = self._replaced(data, api_key, api_version)
        except (ProtocolError, Violation):
            return None, ()
        if self.waiting:
            self.waiting = set()
            return None, ()
        return sent, changes

    def _replaced(
        self, data: bytes, api_key: int, api_version: int
    ) -> tuple[bytes, Sequence[Splice]]:
        fields = rewrite.address_fields(api_key, api_version)
        body = fields.body
        if fields.compact and data[body - 1 : body] != b"\0":
            body = codec.response_body(data, api_key, api_version)
        found = rewrite.find(data, fields, body)
        self.waiting = self._nodes.learn(found) if found else set()
        changes = (
            rewrite.splices(found, self._advertised, fields) if found and not self.waiting else ()
        )
        if not changes:
            return data, ()
        sent = rewrite.apply(data, changes)
        if len(data) <= _REMEMBERED_BYTES_MAX:
            generation = self._nodes.generation
            self._last = _Rewritten(
                api_key, api_version, generation, data[8:], sent[:4], sent[8:], changes
            )
        return sent, changes

    def _tail_replaced(self) -> tuple[bytes, Sequence[Splice]]:
        tail = b"".join(self._tail.pieces)
        found = rewrite.find_in_tail(tail, self._tail.fields)
        self.waiting = self._nodes.learn(found)
        if self.waiting:
            return b"", ()
        sent = rewrite.replace_tail(tail, found, self._advertised, self._tail.fields)
        return sent, [(self._tail.offset, len(tail), sent)] if sent != tail else ()

    # Pairing

    def _pair(
        self, correlation_id: int, data: bytes, position: int, size: int, now: int, out: Output
    ) -> PendingRequest:
        pending = self._pending
        while pending:
            request = pending.popleft()
            asked_id, _, _, _, _, flags, _ = request
            if asked_id == correlation_id and not flags & RAW_SASL:
                return request
            if flags & (RAW_SASL | OPAQUE):
                # May have gone without an answer: a last token, a future Produce.
                out.entries.append(self.unanswered(request, now))
                continue
            pending.appendleft(request)
            _check_start(data, position, size)
            raise Violation(
                f"the broker answered correlation id {correlation_id} where {asked_id} was due"
            )
        _check_start(data, position, size)
        raise Violation(f"the broker answered correlation id {correlation_id}, which is not asked")

    def _token_due(self, data: bytes, position: int, have: int, size: int) -> bool:
        pending = self._pending
        if not pending or not _is_token(pending[0]):
            return False
        later = next((request for request in pending if not _is_token(request)), None)
        if later is None or size < 4:
            return True
        if have < _START_BYTES:
            return False  # it may be the answer to the later one: its correlation id will tell
        return _START.unpack_from(data, position)[1] != later[0]

    def _start_token(self, size: int, now: int) -> bool:
        if not 0 <= size <= TOKEN_BYTES_MAX:
            raise Violation(f"the broker sent a SASL token of {size} bytes")
        frame = self._response(self._pending.popleft(), now, [], size + 4)
        frame.flags = RAW_SASL
        self._partial = Partial(frame, size + 4, secret=True)
        return True

    def unanswered(self, request: PendingRequest, now: int) -> Frame:
        """Return the entry that closes the exchange of a request that will not be answered."""
        frame = self._response(request, now, [], 0)
        frame.flags = UNANSWERED
        return frame

    def _response(
        self, request: PendingRequest, now: int, pieces: list[bytes | memoryview], frame_bytes: int
    ) -> Frame:
        correlation_id, api_key, api_version, number, request_bytes, _, times = request
        return Frame(
            _BROKER,
            self._connection,
            number,
            api_key,
            api_version,
            correlation_id,
            now,
            pieces,
            frame_bytes,
            request_received_ns=times.received_ns,
            request_sent_ns=times.sent_before(now),
            request_bytes=request_bytes,
        )


def _record(frame: Frame, changes: Sequence[Splice], out: Output) -> None:
    if changes:
        frame.flags |= REWRITTEN
        frame.splices = changes
    out.timed.append(frame)
    out.entries.append(frame)


def _is_token(request: PendingRequest) -> bool:
    return bool(request[5] & RAW_SASL)


def _check_start(data: bytes, position: int, size: int) -> None:
    """Raise a Violation if no Kafka response starts here, naming the likely mistake."""
    start = data[position : position + 5]
    if start[:2] == b"\x15\x03":
        raise Violation(
            "the broker answered with a TLS alert: this broker port speaks TLS,"
            " and kproxy connects to it in plaintext; give --bootstrap a plaintext listener"
        )
    if start.startswith(b"HTTP/"):
        raise Violation("the broker answered in HTTP: --bootstrap does not name a Kafka broker")
    if size < 4 and len(data) - position >= 4:
        raise Violation(f"the broker sent a frame of {size} bytes: it does not speak Kafka")
