"""Broker bytes → response frames, paired with their requests, with our addresses in them.

::

    chunk ─▶ Framer ─▶ no interest ───────────────────────────────────────▶ same bytes ─▶ client
                │ held until it is whole                                    ▲
                └─▶ rule: respond ─▶ AddressGate: listeners open? ──────────┤
                                                                            │
                    our own response, when it is next in `pending` ─────────┘

A response that names a broker whose listener is not open yet waits for it, and so do the bytes
behind it on this connection. A large response with its addresses behind the records (Fetch
since v16) is sent on while it is walked; only its tail is held, and changed in place.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence

from kproxy.exchange import notes
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    OPAQUE,
    PIECE_BYTES_MAX,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    UNANSWERED,
    VIEWED_BYTES_MIN,
    Buffer,
    ChunkTimes,
    Frame,
    FrameRun,
    PendingRequest,
    Side,
    Splice,
)
from kproxy.proxy import carry_out, diagnosis, redact, rewrite, versions
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Framer, Partial, Violation
from kproxy.proxy.gate import AddressGate, Held, Ready
from kproxy.proxy.interests import (
    ADDRESSES,
    BEHIND_RECORDS,
    RESPONSE_BITS,
    SECRET_RESPONSE,
    TOPIC_IDS,
    UNKNOWN,
    VERSIONS,
)
from kproxy.proxy.login import TOKEN_BYTES_MAX, Login, is_response_token
from kproxy.proxy.output import Output, part
from kproxy.proxy.pending import BEFORE_LOGIN, PendingRequests
from kproxy.proxy.settings import Shared
from kproxy.proxy.verdicts import NOTHING, Verdict

HELD_BYTES_MAX = 100 << 20
"""The largest response that is held back whole."""

STREAMED_BYTES_MIN = 256 << 10
"""Responses with addresses behind their records are streamed from this size on."""
_START = struct.Struct(">ii")
_START_BYTES = 8
_FRONT_BYTES = 4096
_HEADER_BYTES = 64
"""Enough to hold the header of nearly every response; a large one is begun with this much."""
_INSPECTED = VERSIONS | TOPIC_IDS
_SLOW = RAW_SASL | BEFORE_LOGIN
"""The flags of pending requests whose responses do not take the short-cut."""
_BROKER = Side.BROKER


class ResponseStream:
    """The direction from the broker to the client."""

    def __init__(
        self,
        connection: int,
        address_source: str,
        shared: Shared,
        pending: PendingRequests,
        login: Login,
        gate: AddressGate,
    ) -> None:
        self._connection = connection
        self._address_source = address_source
        self._interests = shared.interests
        self._topics = shared.topics
        self._answered = shared.answered
        self._pending = pending
        self._login = login
        self._gate = gate
        self.framer = Framer(self, Share(shared.budget))
        self.versions_bytes = 0
        """The size of all responses to ApiVersions."""

    @property
    def busy(self) -> bool:
        """True while a response has begun to arrive, or is parked, and has not left whole."""
        return self.framer.partial is not None or self._gate.parked

    @property
    def stopped(self) -> bool:
        """True while a response is parked: bytes behind it wait."""
        return self._gate.parked

    blocked = stopped
    """No further response is begun then."""

    def resume(self, now: int, out: Output) -> None:
        """Let a parked response leave, whose listeners are open now, and go on.

        Raises:
            Violation: the bytes behind it are not Kafka's.
        """
        held = self._gate.take()
        if held is not None and self._leave(held, now, out):
            self.framer.go_on(now, out)

    def respond(self, now: int, out: Output) -> None:
        """Send our own responses that are next in `pending`."""
        pending = self._pending
        while pending.due and not self.busy:
            request = pending.take()
            if request.api_key in diagnosis.LOGIN_KEYS:
                self._login.refused(request.number)  # the broker never saw it
            ours: Verdict | None = request.verdict.own_response
            if ours is None or not ours.frames:
                frame = self.unanswered(request, now)
                frame.flags |= FAULTED if request.verdict.fault_ids else 0
                frame.fault_ids = request.verdict.fault_ids
                out.entries.append(frame)
                continue
            (data,) = ours.frames
            frame = self._frame(request, now, len(data))
            frame.pieces = [data]
            frame.flags |= INJECTED
            self._leave(Held(frame, data, verdict=ours), now, out)

    def finish(self, now: int, out: Output) -> None:
        """End the direction: record an incomplete response, and send on the bytes of a header.

        A parked response, and the bytes behind it, are recorded and do not leave.
        """
        lost = Output()
        parked = held = self._gate.take()
        while parked is not None or self.framer.waiting:
            if parked is not None:
                self.give_up(parked, lost)
            with contextlib.suppress(Violation):  # no reason to report: the connection ends anyway
                self.framer.go_on(now, lost)
            parked = self._gate.take()
        rest = self.framer.finish(lost)
        out.entries += lost.entries
        if rest and held is None:
            out.replace(rest)

    def cut_off(self, out: Output) -> int:
        """Go on behind bytes that are not seen (`Framer.cut_off`)."""
        partial = self.framer.partial
        if partial is not None:
            out.timed.append(partial.frame)
        return self.framer.cut_off(out)

    def give_up(self, parked: Held, out: Output) -> None:
        """Record a parked response that never leaves, with the notes of its verdict."""
        carry_out.note(parked.verdict, parked.frame, 0, out)
        self._withhold(parked.frame, out)

    def _withhold(self, frame: Frame, out: Output) -> None:
        """Record a response that never leaves."""
        frame.withheld = True
        out.entries.append(frame)

    # The decisions of the framer

    def pass_whole(self, data: bytes, position: int, now: int, out: Output) -> int:
        """The short-cut: let the responses from `position` on pass that are whole and answer the
        requests that are next, if nothing but the recording and the gate wants them; return the
        offset behind them. Those to requests that stand together are recorded together, as long as
        they are small."""
        if self.blocked:
            return position
        unpack, last, end = _START.unpack_from, len(data) - _START_BYTES, len(data)
        pending, queue, times = self._pending, self._pending.queue, None
        while queue and position <= last:
            requests, nth = queue[0], pending.taken
            if requests.verdict is not None or requests.flags & _SLOW:
                break
            kind = requests.api_key, requests.api_version
            wanted = self._interests[kind] & RESPONSE_BITS
            if wanted and wanted != ADDRESSES:
                break
            ids, sizes, stop = requests.correlation_ids, [], position
            for expected_id in ids[nth:] if nth else ids:
                if stop > last:
                    break
                size, correlation_id = unpack(data, stop)
                stop += size + 4
                if correlation_id != expected_id or stop > end or size < 4:
                    break
                if size >= VIEWED_BYTES_MIN:  # it is by itself
                    if not sizes and not wanted and size + 4 <= PIECE_BYTES_MAX:
                        sizes.append(size + 4)
                    break
                sizes.append(size + 4)
            sent: Sequence[bytes] = ()
            splices: Sequence[Splice] = ()
            if wanted and sizes:
                sent, splices = self._gate.rewrite_alike(data, position, sizes, *kind, now)
                del sizes[len(sent) :]  # the others do not leave now, or not alike
            if not sizes:
                break
            if times is None:
                times = ChunkTimes(now)
                out.timed.append(times)
            stop = position + sum(sizes)
            piece = part(data, position, stop) if len(sizes) == 1 else data[position:stop]
            if splices:
                out.replace(b"".join(sent))
            else:
                out.forward(data, position, stop)
            out.entries.append(
                FrameRun(_BROKER, self._connection, times, [piece], requests, nth, sizes, splices)
            )
            pending.take_alike(len(sizes))
            position = stop
        return position

    def start(self, data: bytes, position: int, now: int, out: Output) -> Partial | None:
        """Begin the response at `position`, taking nothing of it; None if its header is not whole,
        or if it has to wait behind a response of our own that does.

        Raises:
            Violation: no legal response starts there.
        """
        self.respond(now, out)
        if self.blocked:
            return None
        available_bytes = len(data) - position
        if available_bytes < 4:
            return None
        size = int.from_bytes(data[position : position + 4], signed=True)
        if is_token := is_response_token(self._pending, data, position):
            if size > TOKEN_BYTES_MAX:
                diagnosis.check_response(data, position, self._address_source)
            return self._start_token(size, now)
        if is_token is None or available_bytes < _START_BYTES or size < 4:
            diagnosis.check_response(data, position, self._address_source)
            return None
        if size >= STREAMED_BYTES_MIN and available_bytes < _HEADER_BYTES:
            first = self._pending.first
            if first is not None and first.correlation_id == _START.unpack_from(data, position)[1]:
                if self._interests[first.api_key, first.api_version] & BEHIND_RECORDS:
                    return None  # its header tells whether it can be streamed
        request = self._pair(data, position, now, out)
        frame = self._frame(request, now, size + 4)
        wanted = self._interests[frame.api_key, frame.api_version]
        partial = Partial(frame, size + 4, bool(wanted & SECRET_RESPONSE))
        response = None if request.verdict is None else request.verdict.response
        if isinstance(response, Verdict):
            partial.verdict = response
        else:
            partial.respond = response
        partial.held = self._must_hold(frame, wanted, partial, data, position)
        if partial.held and frame.frame_bytes > HELD_BYTES_MAX:
            partial.truncate(out)
            raise Violation(
                f"a response of {frame.frame_bytes} bytes with broker addresses, or wanted by a"
                f" fault rule, is over the limit of {HELD_BYTES_MAX}"
            )
        return partial

    def _must_hold(
        self, frame: Frame, wanted: int, partial: Partial, data: bytes, position: int
    ) -> bool:
        """Return whether nothing of a response may leave before it is whole."""
        if partial.respond is not None or partial.verdict.frames:
            return True
        if not wanted & ADDRESSES:
            return bool(wanted & _INSPECTED)
        if wanted & BEHIND_RECORDS and frame.frame_bytes >= STREAMED_BYTES_MIN:
            front = data[position : position + _FRONT_BYTES]
            partial.tail = rewrite.tail(front, frame.api_key, frame.api_version)
        return partial.tail is None

    def _start_token(self, size: int, now: int) -> Partial:
        if size < 0 or (self._login.begun and size > TOKEN_BYTES_MAX):
            raise Violation(f"the broker sent no SASL token of up to {TOKEN_BYTES_MAX} bytes")
        frame = self._frame(self._pending.take(), now, size + 4)
        frame.flags = RAW_SASL
        return Partial(frame, size + 4, secret=True)

    def bytes_to_forward(self, partial: Partial, piece: Buffer, now: int, out: Output) -> int:
        """Look at the next piece of a response; return how many bytes of it may leave at once.

        Raises:
            Violation: the response cannot go on.
        """
        if partial.held:
            return 0
        verdict = partial.verdict
        if verdict.dropped:
            return 0
        carry_out.begin(verdict, now, out, partial.frame.number)
        arrived = partial.frame.frame_bytes - partial.left_bytes
        leaving = carry_out.bytes_to_send(verdict, arrived, piece)
        return min(leaving, partial.bytes_before_tail(piece))

    def may_be_cut(self, partial: Partial) -> bool:
        """Return whether what came of a response may be given to the recording: always."""
        return True

    def complete(self, partial: Partial, now: int, out: Output) -> None:
        """Record a response that is whole, and let its held bytes leave.

        Raises:
            Violation: all connections together hold too much for it.
        """
        frame, tail = partial.frame, partial.tail
        if frame.flags & RAW_SASL:
            frame.pieces = [redact.blank_token(frame.data)]
            frame.flags |= REDACTED
            self._record(frame, (), out)
            return
        wanted = self._interests[frame.api_key, frame.api_version]
        if wanted & UNKNOWN:
            frame.flags |= OPAQUE
        if partial.held:
            self._complete_held(partial, now, out)
            return
        self._take_login(frame, partial.verdict, out)
        if tail is not None and tail.offset is not None:
            self._leave(Held(frame, b"", tail, partial.verdict), now, out)
        else:
            if wanted & SECRET_RESPONSE:
                partial.redact()
            self._finish_response(partial.verdict, frame, frame.frame_bytes, (), out)

    # Whole responses

    def _take_login(self, frame: Frame, verdict: Verdict, out: Output) -> None:
        """Have the login take a response; record the user if it ends the login of another one."""
        login, user = self._login, self._login.user
        login.take_response(frame, verdict)
        if login.user != user:
            about = self._connection, frame.received_ns, login.user, frame.number
            out.entries.append(notes.user(*about))

    def _complete_held(self, partial: Partial, now: int, out: Output) -> None:
        frame = partial.frame
        data = frame.data
        verdict = partial.verdict
        if partial.respond is not None:
            verdict = partial.respond(data, now) or NOTHING
        self._take_login(frame, verdict, out)
        wanted = self._interests[frame.api_key, frame.api_version]
        if wanted & TOPIC_IDS:
            out.entries += self._topics.learn(data, frame.api_key, frame.api_version, now)
        if wanted & SECRET_RESPONSE:
            partial.redact()
        else:
            frame.pieces = [data]
        sent = verdict.frames[0] if verdict.frames else data
        splices: Sequence[Splice] = ()
        if wanted & VERSIONS:
            self.versions_bytes += frame.frame_bytes
            self._answered.add(self._address_source)
            splices, reports = versions.lower_versions(sent, frame.api_version)
            out.reports += reports
            sent = rewrite.apply(sent, splices) if splices else sent
        self._leave(Held(frame, sent, None, verdict, splices), now, out)

    def _leave(self, held: Held, now: int, out: Output) -> bool:
        """Let a response leave with our addresses in it, or park it; return whether it left."""
        frame, verdict = held.frame, held.verdict
        ready: Ready | None = Ready(held.data)
        if self._interests[frame.api_key, frame.api_version] & ADDRESSES and not verdict.dropped:
            try:
                ready = self._gate.offer(held, now)
            except Violation:
                out.entries.append(frame)
                raise
        if ready is None:
            return False
        if ready.damaged:
            frame.flags |= OPAQUE
        splices = ready.splices or held.splices
        if verdict.frames is not None and not frame.flags & INJECTED and not verdict.dropped:
            splices = rewrite.difference(frame.data, ready.sent)
        if not verdict.dropped:
            carry_out.begin(verdict, frame.received_ns, out, frame.number)
            leaving = carry_out.bytes_to_send(verdict, held.sent_before, ready.sent)
            out.replace(ready.sent[:leaving])
        self._finish_response(verdict, frame, len(ready.sent), splices, out)
        return True

    def _finish_response(
        self, verdict: Verdict, frame: Frame, size: int, splices: Sequence[Splice], out: Output
    ) -> None:
        """Record a response whose last bytes leave now, and carry out how its verdict ends."""
        carry_out.note(verdict, frame, size, out)
        if verdict.dropped or carry_out.cuts_all(verdict):
            self._withhold(frame, out)
        else:
            self._record(frame, splices, out)
        if not verdict.dropped:
            carry_out.end(verdict, out)

    def _record(self, frame: Frame, splices: Sequence[Splice], out: Output) -> None:
        if splices and frame.flags & REDACTED:
            frame.flags |= REWRITTEN  # without the difference, which may be a secret
        else:
            frame.change(splices)
        out.timed.append(frame)
        out.entries.append(frame)

    # Pairing

    def _pair(self, data: bytes, position: int, now: int, out: Output) -> PendingRequest:
        """Take the request that the response at `position` belongs to.

        Raises:
            Violation: no pending request has its correlation id.
        """
        correlation_id = int.from_bytes(data[position + 4 : position + 8], signed=True)
        # What may be a token of the broker is not logged, not even as a number.
        named = "another id" if self._login.open else f"correlation id {correlation_id}"
        pending = self._pending
        while pending.queue:
            first = pending.take()
            if first.correlation_id == correlation_id and not first.flags & RAW_SASL:
                return first
            out.entries.append(self.unanswered(first, now))
            if not first.flags & (RAW_SASL | OPAQUE):
                diagnosis.check_response(data, position, self._address_source)
                raise Violation(
                    f"the broker answered {named} where correlation id {first.correlation_id}"
                    " was due"
                )
            # These may stay without an answer: a last token, a Produce of an unknown version.
        diagnosis.check_response(data, position, self._address_source)
        raise Violation(f"the broker answered {named}, which is not asked")

    def unanswered(self, request: PendingRequest, now: int) -> Frame:
        """Return the entry that closes the exchange of a request that will not be answered."""
        frame = self._frame(request, now, 0)
        frame.flags = UNANSWERED
        return frame

    def _frame(self, request: PendingRequest, now: int, frame_bytes: int) -> Frame:
        times = request.times
        return Frame(
            _BROKER,
            self._connection,
            request.number,
            request.api_key,
            request.api_version,
            request.correlation_id,
            max(now, times.received_ns),
            [],
            frame_bytes,
            request_received_ns=times.received_ns,
            request_sent_ns=times.sent_before(now),
            request_fault_ns=times.fault_ns,
            request_behind=times.behind,
            request_bytes=request.frame_bytes,
        )
