"""Client bytes → request frames, all of which pass on at once as they came::

    chunk ─▶ [tail of a header] + chunk ─▶ frame, frame, part of a frame ─▶ broker
                                             │ complete
                                             ▼
                                     pending · recording

Only a header that is not yet whole (less than 12 bytes) waits. After SaslHandshake v0 (KIP-43)
frames are SASL tokens without a header, until one looks like a Kafka request again: nothing on the
wire marks the end.
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Iterator

import attrs

from kproxy.exchange import facts, notes
from kproxy.exchange.entries import (
    FRAGMENT,
    NO_API,
    NO_RESPONSE,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    VIEWED_BYTES_MIN,
    ChunkTimes,
    Frame,
    PendingRequest,
    Run,
    Side,
    each,
)
from kproxy.protocol import ProtocolError, codec, decode_request, is_known, schema
from kproxy.proxy import redact
from kproxy.proxy.stream import (
    TOKEN_BYTES_MAX,
    Output,
    Partial,
    Violation,
    part,
    redact_frame,
)
from kproxy.proxy.traits import (
    HANDSHAKE,
    PRODUCE,
    PRODUCE_KEY,
    REQUEST_TRAITS,
    SECRET_REQUEST,
    UNKNOWN,
    traits,
)

_FRONT_BYTES = 4096
"""In which the acks of nearly every Produce request are found."""

_START = struct.Struct(">ihhi")
_START_BYTES = 12
_CLIENT = Side.CLIENT
_SIZE = struct.Struct(">i")

_TOKENS_MIN = {"PLAIN": 1, "OAUTHBEARER": 1, "SCRAM-SHA-256": 2, "SCRAM-SHA-512": 2}
"""How many tokens a client sends at least after SaslHandshake v0, by mechanism."""


class RequestStream:
    """The direction from the client to the broker."""

    def __init__(
        self,
        connection: int,
        numbers: Iterator[int],
        pending: deque[PendingRequest],
        request_bytes_max: int,
    ) -> None:
        self._connection = connection
        self._numbers = numbers
        self._pending = pending
        self._bytes_max = request_bytes_max
        self._tail = b""
        self._named = False
        self._partial: Partial | None = None
        self._front: _Front | None = None
        self.raw = False
        """Whether frames are SASL tokens without headers."""
        self._tokens_due = 0
        self._handshake = 0

    def feed(self, data: bytes, now: int, out: Output) -> None:
        """Take a chunk.

        Raises:
            Violation: these bytes are not Kafka's; what came before them is in `out`.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        position = 0
        end = len(data)
        try:
            if self._partial:
                position = self._continue(data, now, out)
            if not self.raw:
                position = self._whole_frames(data, position, end, now, out)
            while position < end:
                stop = self._frame(data, position, end, now, out)
                if not stop:
                    self._tail = data[position:]
                    break
                position = stop
        except Violation:
            out.pieces.append(part(data, 0, position))
            raise
        out.pieces.append(part(data, 0, position))
        if not self._named and out.timed:
            self._name(next(each(out.entries)), out)

    def _name(self, frame: Frame, out: Output) -> None:
        """Say once who the client is, so that a recording's later files know it, too."""
        if frame.flags & (FRAGMENT | RAW_SASL):
            return  # its header went with its first piece, or it has none
        found, client_id = facts.client_id(frame)
        if found:
            self._named = True
            out.entries.append(notes.client_id(self._connection, frame.received_ns, client_id))

    def _whole_frames(self, data: bytes, position: int, end: int, now: int, out: Output) -> int:
        """Take the frames that are whole: the hot path. Returns the offset behind them."""
        pending, numbers, unpack = self._pending, self._numbers, _START.unpack_from
        new = tuple.__new__  # a third of the cost of PendingRequest(…)
        bytes_max = self._bytes_max
        times = run = None
        while end - position >= _START_BYTES:
            size, api_key, api_version, correlation_id = unpack(data, position)
            stop = position + 4 + size
            if stop > end or not 8 <= size <= bytes_max:
                break
            frame_bytes, flags = size + 4, 0
            found = traits(api_key, api_version) & REQUEST_TRAITS
            if found == PRODUCE and frame_bytes < VIEWED_BYTES_MIN:
                if self._acks(data, position, stop, api_version) == 0:
                    flags = NO_RESPONSE
            elif found or frame_bytes >= VIEWED_BYTES_MIN:
                run = None
                pieces = [part(data, position, stop)]
                frame = self._make(api_key, api_version, correlation_id, pieces, frame_bytes, now)
                self._complete(frame, out)
                position = stop
                if self.raw:
                    break
                continue
            if run is None:
                if times is None:
                    times = ChunkTimes(now)
                    out.timed.append(times)
                run = Run(_CLIENT, self._connection, times, data, position, [], [])
                requests, sizes = run.requests, run.sizes
                out.entries.append(run)
            request = new(
                PendingRequest,
                (correlation_id, api_key, api_version, next(numbers), frame_bytes, flags, times),
            )
            requests.append(request)
            sizes.append(frame_bytes)
            if not flags:
                pending.append(request)
            position = stop
        return position

    def finish(self, now: int, out: Output) -> None:
        """The client sends no more: pass on and record what is incomplete."""
        if self._partial:
            self._partial.truncated(out)
            self._partial = None
        elif self._tail:
            frame = self._make(NO_API, NO_API, 0, [self._tail], len(self._tail), now)
            frame.flags = RAW_SASL if self.raw else 0
            partial = Partial(frame, 0, secret=self.raw)
            partial.truncated(out)
            out.pieces.append(self._tail)
            self._tail = b""

    def end_tokens(self, number: int) -> None:
        """The broker refused the SaslHandshake v0 of this number: what follows are requests, unless
        the client has sent another one since."""
        if number == self._handshake:
            self.raw = False

    def _frame(self, data: bytes, position: int, end: int, now: int, out: Output) -> int:
        """Take the frame that starts at `position`: the offset behind it, or 0 to wait."""
        if self.raw:
            return self._token(data, position, end, now, out)
        if end - position < _START_BYTES:
            if end - position >= 4:
                _check_size(data, position, self._bytes_max)
            return 0
        size, api_key, api_version, correlation_id = _START.unpack_from(data, position)
        if not 8 <= size <= self._bytes_max:
            _check_size(data, position, self._bytes_max)
        stop = position + 4 + size
        if stop <= end:
            return self._whole_frames(data, position, end, now, out)
        piece = part(data, position, end)
        frame = self._make(api_key, api_version, correlation_id, [piece], size + 4, now)
        secret = bool(traits(api_key, api_version) & SECRET_REQUEST)
        self._partial = Partial(frame, stop - end, secret, len(piece))
        return end

    def _continue(self, data: bytes, now: int, out: Output) -> int:
        partial = self._partial
        stop = min(len(data), partial.left)
        partial.frame.pieces.append(part(data, 0, stop))
        if partial.will_cut(stop) and partial.frame.api_key == PRODUCE_KEY:
            # The acks are near the front: read them before it is cut off for the recording.
            self._look_at_acks(partial.frame)
        partial.add(stop, now, out)
        if not partial.left:
            self._partial = None
            if partial.frame.flags & RAW_SASL:
                self._complete_token(partial.frame, out)
            else:
                self._complete(partial.frame, out, partial)
        return stop

    def _make(self, api_key, api_version, correlation_id, pieces, frame_bytes, now) -> Frame:
        return Frame(
            Side.CLIENT,
            self._connection,
            next(self._numbers),
            api_key,
            api_version,
            correlation_id,
            now,
            pieces,
            frame_bytes,
        )

    def _complete(self, frame: Frame, out: Output, partial: Partial | None = None) -> None:
        found = traits(frame.api_key, frame.api_version)
        if found:
            if found & UNKNOWN:
                frame.flags |= OPAQUE
            if found & PRODUCE:
                self._look_at_acks(frame)
            if found & HANDSHAKE:
                # Tokens may follow before the broker has accepted: they must not be recorded.
                self.raw = True
                self._handshake = frame.number
                self._tokens_due = _TOKENS_MIN.get(_mechanism(frame.data), 1)
            if found & SECRET_REQUEST:
                redact_frame(frame, partial)
        out.timed.append(frame)
        out.entries.append(frame)
        if not frame.flags & NO_RESPONSE:
            self._await_answer(frame, out)

    def _await_answer(self, frame: Frame, out: Output) -> None:
        # What waits for its answer, maybe for long, does not hold the request's bytes.
        times = ChunkTimes(frame.received_ns)
        out.timed.append(times)
        self._pending.append(
            PendingRequest(
                frame.correlation_id,
                frame.api_key,
                frame.api_version,
                frame.number,
                frame.frame_bytes,
                frame.flags,
                times,
            )
        )

    def _look_at_acks(self, frame: Frame) -> None:
        if frame.flags & FRAGMENT:
            return
        data = bytes(frame.pieces[0][:_FRONT_BYTES])
        acks = self._acks(data, 0, len(data), frame.api_version)
        if acks is None:  # Only now is it put together: that costs more than all else about it.
            data = frame.data
            acks = self._acks(data, 0, len(data), frame.api_version)
        if acks == 0:
            frame.flags |= NO_RESPONSE

    def _acks(self, data: bytes, start: int, stop: int, api_version: int) -> int | None:
        """The acks of a Produce request of which at least the front is there; None if unknown."""
        front = self._front
        if front is not None and data.startswith(front.header_tail, start + _START_BYTES, stop):
            if front.api_version == api_version:
                return front.acks
        front = self._front = _front(data[start:stop], api_version)
        return front and front.acks

    # SASL tokens without a header

    def _token(self, data: bytes, position: int, end: int, now: int, out: Output) -> int:
        have = end - position
        if have < 4:
            return 0
        (size,) = _SIZE.unpack_from(data, position)
        if self._tokens_due <= 0 and size >= 8:
            if have < _START_BYTES:
                return 0
            _, api_key, api_version, _ = _START.unpack_from(data, position)
            if is_known(api_key, api_version):
                self.raw = False
                return self._frame(data, position, end, now, out)
        if not 0 <= size <= TOKEN_BYTES_MAX:
            raise Violation(f"a SASL token of {size} bytes (at most {TOKEN_BYTES_MAX} are legal)")
        stop = position + 4 + size
        frame = self._make(NO_API, NO_API, 0, [data[position : min(stop, end)]], size + 4, now)
        frame.flags = RAW_SASL
        if stop <= end:
            self._complete_token(frame, out)
            return stop
        self._partial = Partial(frame, stop - end, True, end - position)
        return end

    def _complete_token(self, frame: Frame, out: Output) -> None:
        self._tokens_due -= 1
        frame.pieces = [redact.blank_token(frame.data)]
        frame.flags |= REDACTED
        out.timed.append(frame)
        out.entries.append(frame)
        self._await_answer(frame, out)


@attrs.frozen
class _Front:
    """How a Produce request began, up to its acks. A client repeats itself: what follows on its
    connection nearly always begins alike."""

    api_version: int
    header_tail: bytes
    """From behind the correlation id up to there."""
    acks: int


def _front(data: bytes, api_version: int) -> _Front | None:
    """The front of a Produce request of which at least that is there; None if unknown."""
    locate, flexible, version = _locate_acks(api_version)
    if version != api_version:
        data = data[:6] + version.to_bytes(2) + data[8:]
    # The client id, and an empty list of tagged fields: where nearly every body begins.
    body = 14 + int.from_bytes(data[12:14])
    try:
        if body > 14 + 32_767 or (flexible and data[body : body + 1] != b"\0"):
            body = codec.request_body(data)  # without a client id, or with tagged fields
        elif flexible:
            body += 1
        ((_, start, _, stop),) = locate(data, body)[0]
    except ProtocolError:
        return None
    acks = int.from_bytes(data[start:stop], signed=True)
    return _Front(api_version, data[_START_BYTES:stop], acks)


@functools.lru_cache(maxsize=64)
def _locate_acks(api_version: int) -> tuple[codec.Locate, bool, int]:
    """Returns what finds the acks from a body on, whether the header has tagged fields, and as
    which version: one that is not in our table is read as the newest that is."""
    message = schema.message(PRODUCE_KEY, schema.REQUEST)
    newest = max(message.versions)
    version = api_version if 0 <= api_version <= newest else newest
    locate = codec.locate(message, version, ("acks",), whole=False)
    return locate, version in message.flexible_versions, version


def _mechanism(data: bytes) -> str:
    try:
        return decode_request(data).body.mechanism
    except ProtocolError:
        return ""


def _check_size(data: bytes, position: int, bytes_max: int) -> None:
    """Raise a Violation if no Kafka request starts here, naming the likely mistake."""
    (size,) = _SIZE.unpack_from(data, position)
    if 8 <= size <= bytes_max:
        return
    start = data[position : position + 4]
    if start[:2] == b"\x16\x03":
        raise Violation(
            "the client speaks TLS to a plaintext port: set security.protocol=PLAINTEXT"
            " (or SASL_PLAINTEXT) in the client"
        )
    if start in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "):
        raise Violation("the client speaks HTTP: this port speaks the Kafka protocol")
    if size < 0:
        raise Violation(f"a frame of {size} bytes: the client does not speak the Kafka protocol")
    if size < 8:
        raise Violation(f"a frame of {size} bytes is too small for a request header")
    raise Violation(
        f"a request of {size} bytes is over the limit of {bytes_max}"
        " (socket.request.max.bytes), or the client does not speak the Kafka protocol"
    )
