"""Broker bytes → response frames, paired with their requests, with our addresses in them.

::

    chunk ─▶ Framer ─▶ nobody wants it ───────────────────────────────────▶ same bytes ─▶ client
                │ held until it is whole                                    ▲
                └─▶ rule: respond ─▶ AddressGate: listeners open? ──────────┤
                                                                            │
                    our own response, when it is its turn in `pending` ─────┘

A response that names a broker whose listener is not open yet waits for it, and what comes behind
it on this connection waits too. A large response with its addresses behind the records (Fetch
since v16) is sent on while it is walked; only its tail is held, and changed in place.
"""

from __future__ import annotations

import contextlib
import struct
from collections import deque
from collections.abc import Sequence

from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    OPAQUE,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    UNANSWERED,
    VIEWED_BYTES_MIN,
    Buffer,
    ChunkTimes,
    Frame,
    PendingRequest,
    Run,
    Side,
    Splice,
)
from kproxy.protocol import ProtocolError
from kproxy.proxy import diagnosis, redact, rewrite, versions
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Framer, Partial, Violation
from kproxy.proxy.gate import AddressGate, Held, Ready, Waiting
from kproxy.proxy.interests import (
    ADDRESSES,
    BEHIND_RECORDS,
    HANDSHAKE,
    RESPONSE_BITS,
    SECRET_RESPONSE,
    TOPIC_IDS,
    UNKNOWN,
    VERSIONS,
    Interests,
)
from kproxy.proxy.output import Output
from kproxy.proxy.rewrite import Tail
from kproxy.proxy.tokens import TOKEN_BYTES_MAX, Tokens, is_response_token
from kproxy.proxy.topics import Topics
from kproxy.proxy.verdicts import RequestVerdict, ResponseVerdict

HELD_BYTES_MAX = 100 << 20
"""The largest response that is held back whole."""

STREAMED_BYTES_MIN = 256 << 10
"""Responses with addresses behind their records are streamed from this size on."""

_START = struct.Struct(">ii")
_START_BYTES = 8
_FRONT_BYTES = 4096
_HEADER_BYTES = 64
"""So much of a large response is waited for: its header, in all likelihood."""
_LOOKED_INTO = VERSIONS | TOPIC_IDS
_BROKER = Side.BROKER


class ResponseStream:
    """The direction from the broker to the client."""

    def __init__(
        self,
        connection: int,
        place: str,
        pending: deque[PendingRequest],
        gate: AddressGate,
        tokens: Tokens,
        interests: Interests,
        topics: Topics,
        share: Share,
    ) -> None:
        self._connection = connection
        self._place = place
        """Where it stands which address the broker has."""
        self._pending = pending
        self._gate = gate
        self._tokens = tokens
        self._interests = interests
        self._topics = topics
        self._framer = Framer(self, share)
        self._tail: Tail | None = None
        self.versions_bytes = 0
        """The size of all responses to ApiVersions."""

    @property
    def busy(self) -> bool:
        """Whether a response has begun to arrive, or is parked, and has not left whole."""
        return self._framer.partial is not None or self._gate.parked

    @property
    def blocked(self) -> bool:
        """Whether a response is parked: what comes behind it waits."""
        return self._gate.parked

    def feed(self, data: bytes, now: int, out: Output) -> None:
        """Take a chunk; b"" goes on with what is left of earlier ones.

        Raises:
            Violation: these bytes are not Kafka's; what came before them is in `out`.
        """
        self._framer.feed(data, now, out)
        if self._pending and self._pending[0][-1] is not None:
            self.respond(now, out)

    def resume(self, now: int, out: Output) -> None:
        """The listeners that a parked response waited for are open: let it leave, and go on.

        Raises:
            Violation: what came behind it is not Kafka's.
        """
        held = self._gate.take()
        if held is not None and self._leave(held, now, out):
            self.feed(b"", now, out)

    def respond(self, now: int, out: Output) -> None:
        """Send our own responses whose turn it is."""
        pending = self._pending
        while pending and _has_own_response(pending[0]) and not self.busy:
            request = pending.popleft()
            verdict: RequestVerdict = request[-1]
            if self._interests[request[1], request[2]] & HANDSHAKE:
                self._tokens.refused(request[3])  # the broker never saw it
            answer = verdict.own_response
            if answer is None or answer.frame is None or answer.dropped:
                frame = self.unanswered(request, now)
                frame.flags |= FAULTED if verdict.fault_ids else 0
                frame.fault_ids = verdict.fault_ids
                out.entries.append(frame)
                continue
            frame = self._frame(request, now, len(answer.frame))
            out.entries += answer.notes
            frame.pieces = [answer.frame]
            frame.flags |= INJECTED
            self._leave(Held(frame, answer.frame, verdict=answer), now, out)

    def finish(self, now: int, out: Output) -> None:
        """The broker sends no more: record what is incomplete, and send it on if it had begun.

        What is parked, and what came behind it, is recorded and does not leave.
        """
        lost = Output()
        parked = held = self._gate.take()
        while parked is not None or self._framer.stopped:
            if parked is not None:
                self.give_up(parked, lost)
            with contextlib.suppress(Violation):  # its reason would be none: the connection ends
                self._framer.feed(b"", now, lost)
            parked = self._gate.take()
        rest = self._framer.finish(lost)
        out.entries += lost.entries
        if rest and held is None:
            out.replace(rest)

    def give_up(self, parked: Held, out: Output) -> None:
        """Record a response that never leaves, and what a rule had decided about it."""
        if parked.verdict is not None:
            _mark(parked.frame, parked.verdict, out)
        out.entries.append(parked.frame)

    # Direction

    def whole_frames(self, data: bytes, position: int, now: int, out: Output) -> int:
        """The fast loop: see Direction. Small responses with addresses are taken here, too."""
        if self._gate.parked:
            return position
        pending, unpack, interests = self._pending, _START.unpack_from, self._interests
        again = self._gate.rewrite_again
        first, end = position, len(data)
        times = run = None
        requests: list[PendingRequest] = []
        sizes: list[int] = []
        while pending and end - position >= _START_BYTES:
            size, correlation_id = unpack(data, position)
            stop = position + 4 + size
            request = pending[0]
            expected_id, api_key, api_version, _, _, flags, _, verdict = request
            if stop > end or not 4 <= size < VIEWED_BYTES_MIN or expected_id != correlation_id:
                break
            if verdict is not None or flags & RAW_SASL:
                break
            splices: Sequence[Splice] = ()
            wanted = interests[api_key, api_version] & RESPONSE_BITS
            if wanted:
                if wanted != ADDRESSES:
                    break
                known = again(data[position:stop], api_key, api_version, now)
                if known is None:
                    ready = self._gate.rewrite(data[position:stop], api_key, api_version, now)
                    if isinstance(ready, Waiting) or ready.damaged:
                        break
                    known = ready.sent, ready.splices
                sent, splices = known
                if splices:
                    if first < position:
                        out.forward(data, first, position)
                    out.replace(sent)
                    first = stop
            pending.popleft()
            if run is None or splices is not run.splices:
                if times is None:
                    times = ChunkTimes(now)
                    out.timed.append(times)
                requests, sizes = [], []
                where = times, data, position
                run = Run(_BROKER, self._connection, *where, requests, sizes, splices)
                out.entries.append(run)
            requests.append(request)
            sizes.append(size + 4)
            position = stop
        if position > first:
            out.forward(data, first, position)
        return position

    def start(self, data: bytes, position: int, now: int, out: Output) -> Partial | None:
        """See Direction."""
        self.respond(now, out)
        if self.blocked:
            return None
        have = len(data) - position
        if have < 4:
            return None
        size = int.from_bytes(data[position : position + 4], signed=True)
        if is_token := is_response_token(self._pending, data, position):
            return self._start_token(size, now)
        if is_token is None or have < _START_BYTES or size < 4:
            diagnosis.check_response(data, position, self._place)
            return None
        if size >= STREAMED_BYTES_MIN and have < _HEADER_BYTES and self._streams(data, position):
            return None
        request = self._pair(data, position, size, now, out)
        frame = self._frame(request, now, size + 4)
        wanted = self._interests[frame.api_key, frame.api_version]
        partial = Partial(frame, size + 4, bool(wanted & SECRET_RESPONSE))
        partial.verdict = request[-1]
        partial.held = self._must_hold(frame, wanted, partial.verdict, data, position)
        if partial.held and frame.frame_bytes > HELD_BYTES_MAX:
            partial.truncate(out)
            raise Violation(
                f"a response of {frame.frame_bytes} bytes with broker addresses, or wanted by a"
                f" fault rule, is over the limit of {HELD_BYTES_MAX}"
            )
        return partial

    def _streams(self, data: bytes, position: int) -> bool:
        """Whether the large response that starts here may have addresses behind its records."""
        if not self._pending:
            return False
        expected_id, api_key, api_version, *_ = self._pending[0]
        wanted = self._interests[api_key, api_version]
        return (
            bool(wanted & BEHIND_RECORDS) and _START.unpack_from(data, position)[1] == expected_id
        )

    def _must_hold(
        self,
        frame: Frame,
        wanted: int,
        verdict: RequestVerdict | None,
        data: bytes,
        position: int,
    ) -> bool:
        """Whether nothing of a response may leave before it is whole."""
        self._tail = None
        if verdict is not None:
            known = verdict.known_response
            if verdict.on_response is not None if known is None else known.frame:
                return True
        if not wanted & ADDRESSES:
            return bool(wanted & _LOOKED_INTO)
        if wanted & BEHIND_RECORDS and frame.frame_bytes >= STREAMED_BYTES_MIN:
            front = data[position : position + _FRONT_BYTES]
            self._tail = rewrite.tail(front, frame.api_key, frame.api_version)
        return self._tail is None

    def _start_token(self, size: int, now: int) -> Partial:
        if not 0 <= size <= TOKEN_BYTES_MAX:
            raise Violation(f"the broker sent a SASL token of {size} bytes")
        frame = self._frame(self._pending.popleft(), now, size + 4)
        frame.flags = RAW_SASL
        return Partial(frame, size + 4, secret=True)

    def passes(self, partial: Partial, piece: Buffer, now: int, out: Output) -> int:
        """See Direction."""
        if partial.held:
            return 0
        verdict = partial.known
        if verdict is not None:
            if verdict.dropped:
                return 0
            arrived = partial.frame.frame_bytes - partial.left
            out.hold(now + verdict.delay_ns, verdict.bytes_per_second)
            if verdict.ending is not None:
                return max(0, min(len(piece), verdict.ending_bytes - arrived))
        if self._tail is not None:
            try:
                return self._tail.passes(piece)
            except ProtocolError:
                partial.frame.flags |= OPAQUE
                self._tail = None
        return len(piece)

    def may_cut(self, partial: Partial) -> bool:
        """See Direction."""
        return True

    def complete(self, partial: Partial, now: int, out: Output) -> None:
        """See Direction."""
        frame, tail = partial.frame, self._tail
        self._tail = None
        if frame.flags & RAW_SASL:
            frame.pieces = [redact.blank_token(frame.data)]
            frame.flags |= REDACTED
            self._record(frame, (), out)
            return
        wanted = self._interests[frame.api_key, frame.api_version]
        if wanted & UNKNOWN:
            frame.flags |= OPAQUE
        if wanted & HANDSHAKE and frame.data[8:10] != b"\0\0":
            self._tokens.refused(frame.number)
        if partial.held:
            self._complete_held(partial, now, out)
        elif tail is not None and tail.offset is not None:
            self._leave(Held(frame, b"", tail, partial.known), now, out)
        else:
            if wanted & SECRET_RESPONSE:
                partial.redact()
            self._complete_known(frame, partial.known, out)

    def _complete_known(self, frame: Frame, verdict: ResponseVerdict | None, out: Output) -> None:
        """A response has left as it came, or as a rule wanted before it had arrived."""
        if verdict is None:
            self._record(frame, (), out)
            return
        _mark(frame, verdict, out)
        if verdict.dropped:
            out.entries.append(frame)
            return
        self._record(frame, (), out)
        if verdict.ending is not None:
            out.end(verdict.ending, verdict.ending_delay_ns)
        else:
            out.hold(0)

    # Responses that are whole

    def _complete_held(self, partial: Partial, now: int, out: Output) -> None:
        frame = partial.frame
        data = frame.data
        verdict = None
        if partial.verdict is not None and partial.verdict.known_response is not None:
            verdict = partial.verdict.known_response
        elif partial.verdict is not None and partial.verdict.on_response is not None:
            verdict = partial.verdict.on_response(data, now)
        wanted = self._interests[frame.api_key, frame.api_version]
        if wanted & TOPIC_IDS:
            out.entries += self._topics.learn(data, frame.api_key, frame.api_version, now)
        if wanted & SECRET_RESPONSE:
            partial.redact()
        else:
            frame.pieces = [data]
        sent = data if verdict is None or verdict.frame is None else verdict.frame
        splices: Sequence[Splice] = ()
        if wanted & VERSIONS:
            self.versions_bytes += frame.frame_bytes
            splices, reports = versions.lowered(sent, frame.api_version)
            out.reports += reports
            sent = rewrite.apply(sent, splices) if splices else sent
        self._leave(Held(frame, sent, None, verdict, splices), now, out)

    def _leave(self, held: Held, now: int, out: Output) -> bool:
        """Let a response leave with our addresses in it, or park it; whether it left."""
        frame, verdict = held.frame, held.verdict
        ready: Ready | Waiting = Ready(held.data)
        if self._interests[frame.api_key, frame.api_version] & ADDRESSES:
            if verdict is None or not verdict.dropped:
                try:
                    ready = self._gate.offer(held, now)
                except Violation:
                    out.entries.append(frame)
                    raise
        if isinstance(ready, Waiting):
            return False
        if ready.damaged:
            frame.flags |= OPAQUE
        if verdict is None:
            out.replace(ready.sent)
            self._record(frame, ready.splices or held.splices, out)
        else:
            self._carry_out(held, ready, verdict, out)
        return True

    def _carry_out(self, held: Held, ready: Ready, verdict: ResponseVerdict, out: Output) -> None:
        """Let a response leave as a rule wants it to."""
        frame = held.frame
        _mark(frame, verdict, out)
        if verdict.dropped:
            out.entries.append(frame)
            return
        sent = ready.sent
        if verdict.ending is not None:
            sent = sent[: verdict.ending_bytes]
        delayed = verdict.delay_ns or verdict.bytes_per_second
        if delayed:
            out.hold(frame.received_ns + verdict.delay_ns, verdict.bytes_per_second)
        out.replace(sent)
        if verdict.frame is None or frame.flags & INJECTED:
            splices = ready.splices or held.splices
        else:
            splices = rewrite.difference(frame.data, ready.sent)
        self._record(frame, splices, out)
        if verdict.ending is not None:
            out.end(verdict.ending, verdict.ending_delay_ns)
        elif delayed:
            out.hold(0)

    def _record(self, frame: Frame, splices: Sequence[Splice], out: Output) -> None:
        if splices and frame.flags & REDACTED:
            frame.flags |= REWRITTEN  # how is not said: it may be a secret
        else:
            frame.change(splices)
        out.timed.append(frame)
        out.entries.append(frame)

    # Pairing

    def _pair(self, data: bytes, position: int, size: int, now: int, out: Output) -> PendingRequest:
        correlation_id = int.from_bytes(data[position + 4 : position + 8], signed=True)
        pending = self._pending
        while pending:
            expected_id, _, _, _, _, flags, _, _ = pending[0]
            if expected_id == correlation_id and not flags & RAW_SASL:
                return pending.popleft()
            if not flags & (RAW_SASL | OPAQUE):
                diagnosis.check_response(data, position, self._place)
                raise Violation(
                    f"the broker answered correlation id {correlation_id} where"
                    f" {expected_id} was due"
                )
            # May have gone without an answer: a last token, a future Produce.
            out.entries.append(self.unanswered(pending.popleft(), now))
        diagnosis.check_response(data, position, self._place)
        raise Violation(f"the broker answered correlation id {correlation_id}, which is not asked")

    def unanswered(self, request: PendingRequest, now: int) -> Frame:
        """Return the entry that closes the exchange of a request that will not be answered."""
        frame = self._frame(request, now, 0)
        frame.flags = UNANSWERED
        return frame

    def _frame(self, request: PendingRequest, now: int, frame_bytes: int) -> Frame:
        correlation_id, api_key, api_version, number, request_bytes, _, times, _ = request
        return Frame(
            _BROKER,
            self._connection,
            number,
            api_key,
            api_version,
            correlation_id,
            max(now, times.received_ns),
            [],
            frame_bytes,
            request_received_ns=times.received_ns,
            request_sent_ns=times.sent_before(now),
            request_bytes=request_bytes,
        )


def _mark(frame: Frame, verdict: ResponseVerdict, out: Output) -> None:
    """Record what a rule decided about a response."""
    out.entries += verdict.notes
    if verdict.fault_ids:
        frame.flags |= FAULTED
        frame.fault_ids = verdict.fault_ids


def _has_own_response(request: PendingRequest) -> bool:
    """Whether the broker never got a request, so that kproxy responds, or nobody."""
    verdict: RequestVerdict | None = request[-1]
    return verdict is not None and verdict.ending is None and verdict.frames == ()
