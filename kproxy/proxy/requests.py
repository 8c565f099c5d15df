"""Client bytes → request frames: sent on as they came, held for a rule, or answered by kproxy.

::

    chunk ─▶ Framer ─▶ no interest ──────────────────────────────────────▶ same bytes ─▶ broker
                │ interest of a rule: held until it is whole               ▲
                └─▶ Decider.on_request ─▶ Verdict ─▶ as it came, later, changed, or never
                                          │
                  pending (FIFO) ◀────────┴── the response it gets, if kproxy gives it

A request enters `pending` when it is whole, in order, also when the broker never gets it: so our
own response waits for its turn. While `pending` is full, no further request is begun.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping

import attrs

from kproxy.exchange import facts, notes
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    FAULTED,
    FRAGMENT,
    INJECTED,
    NO_API,
    NO_RESPONSE,
    OPAQUE,
    PIECE_BYTES_MAX,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    RUN_FRAMES_MAX,
    VIEWED_BYTES_MIN,
    Buffer,
    ChunkTimes,
    Frame,
    Requests,
    Run,
    Side,
    each,
    may_be_run,
    requests_of,
)
from kproxy.proxy import carry_out, diagnosis, versions
from kproxy.proxy.acks import Acks
from kproxy.proxy.actions import Address, Send
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Framer, Partial, Violation
from kproxy.proxy.interests import (
    PRODUCE,
    PRODUCE_KEY,
    REQUEST_BITS,
    RULES,
    SECRET_REQUEST,
    UNKNOWN,
    VERSIONS,
    Interests,
)
from kproxy.proxy.login import TOKEN_BYTES_MAX, Login, as_token
from kproxy.proxy.output import Output, part
from kproxy.proxy.pending import BEFORE_LOGIN, PendingRequests
from kproxy.proxy.rewrite import difference
from kproxy.proxy.verdicts import RequestContext, Verdict

_START = struct.Struct(">ihhi")
_START_BYTES = 12
_HEADER_BYTES_MAX = 70_000
"""A bound on the size of a request header and the front of a Produce request."""
_TURN_COST_MAX = 64
"""At most this many rule decisions per turn of a connection: about 10 ms, then others have theirs.
"""
_COST_BYTES = 128
"""A decision counts as one more for each of these bytes: a partition of 16 bytes takes 20 µs."""
_CLIENT, _BROKER = Side.CLIENT, Side.BROKER


@attrs.define(eq=False)
class Numbers:
    """Numbers the exchanges of all connections, from 1 on."""

    _next: int = 1

    def take(self, count: int = 1) -> int:
        """Return the first of the next `count` numbers, which are taken."""
        first = self._next
        self._next += count
        return first


@attrs.frozen
class Origin:
    """The origin of the requests of one connection, and the other facts that rules may use."""

    connection: int
    node_id: int | None
    client_address: str
    topic_names: TopicNames
    brokers: Mapping[int, Address]

    def context(self, frame: Frame) -> RequestContext:
        """Return the facts about a request that its bytes do not have."""
        return RequestContext(
            self.connection,
            frame.number,
            self.node_id,
            self.client_address,
            frame.received_ns,
            self.topic_names,
            self.brokers,
        )


class RequestStream:
    """The direction from the client to the broker."""

    def __init__(
        self,
        origin: Origin,
        request_bytes_max: int,
        numbers: Numbers,
        pending: PendingRequests,
        login: Login,
        interests: Interests,
        share: Share,
    ) -> None:
        self._origin = origin
        self._connection = origin.connection
        self._numbers = numbers
        self._pending = pending
        self._bytes_max = request_bytes_max
        self._whole_bytes_max = min(request_bytes_max, PIECE_BYTES_MAX - 4)
        """The largest size of a request that the fast loop takes …"""
        self._small_bytes_max = min(request_bytes_max, VIEWED_BYTES_MIN - 5)
        """… and the largest of one that it takes together with others."""
        self._login = login
        self._interests = interests
        self.framer = Framer(self, share)
        self._acks = Acks()
        self._client_noted = False
        self.client_id: str | None = None
        """The client id in the first request."""
        self._ignores_rules = False
        self._half_closed = False
        self._finishing = False
        self._turn_cost = 0

    @property
    def blocked(self) -> bool:
        """True while no further request may be begun: too many are pending, or its turn is over."""
        return (self._pending.full or self._quota_used) and not self._finishing

    @property
    def _quota_used(self) -> bool:
        return self._turn_cost >= _TURN_COST_MAX

    @property
    def stopped(self) -> bool:
        """True while bytes of the client wait here, because the direction was blocked."""
        return bool(self.framer.waiting)

    @property
    def wants_turn(self) -> bool:
        """True while bytes wait here only for another turn."""
        return self.stopped and self._quota_used and self._pending.roomy

    @property
    def can_go_on(self) -> bool:
        """True while bytes wait here, and there is room for the requests in them."""
        return self.stopped and not self._quota_used and self._pending.roomy

    def begin_turn(self) -> None:
        """Begin a turn: rules may decide on requests of this connection again."""
        self._turn_cost = 0

    def ignore_rules(self) -> None:
        """Show no further request to rules, as none can leave any more."""
        self._ignores_rules = True

    @property
    def plain(self) -> bool:
        """True while nothing that came before waits here, and the next frame is not the first."""
        return self.framer.empty and self._client_noted and not self._half_closed

    def feed(self, data: bytes, position: int | None, now: int, out: Output) -> None:
        """Take a chunk, of which `whole_frames` has taken what is before `position`, if it was
        asked; b"" goes on with earlier ones that wait.

        Raises:
            Violation: these bytes are not Kafka's; `out` has the frames before them.
        """
        if data:
            self._turn_cost = 0  # an event of its own
        self.framer.feed(data, position, now, out)
        if not self._client_noted and out.entries:
            self._note_client(out)
        if self._half_closed and not self.framer.waiting:
            self.finish(now, out)

    def half_close(self, now: int, out: Output) -> None:
        """Note that the client sends no more; its bytes that wait here still leave."""
        self._half_closed = True
        if not self.framer.waiting:
            self.finish(now, out)

    def finish(self, now: int, out: Output) -> None:
        """Record and send on, at once, the bytes that wait here and those of incomplete frames."""
        self._finishing = True
        with contextlib.suppress(Violation):  # no reason to report: the connection ends anyway
            self.framer.feed(b"", None, now, out)
        partial = self.framer.partial
        if partial is not None and partial.held:
            out.replace(partial.frame.data)  # rules do not see a part: it leaves as it came
        if partial is not None and self._may_be_token(partial.frame):
            as_token(partial.frame)
        rest = self.framer.finish(out)
        if rest:
            frame = self._frame(NO_API, NO_API, 0, len(rest), now)
            frame.flags = RAW_SASL if self._login.open else 0
            partial = Partial(frame, len(rest), secret=self._login.open)
            partial.add(rest, now)
            partial.truncate(out)
            out.replace(rest)

    def _note_client(self, out: Output) -> None:
        """Note the client id once, so that later files of a recording have it, too."""
        for frame in each(out.entries):
            if not isinstance(frame, Frame) or frame.flags & (FRAGMENT | RAW_SASL):
                continue  # its header went with its first piece, or it has none
            found, client_id = facts.client_id(frame)
            if found:
                self._client_noted = True
                self.client_id = client_id
                out.entries.append(notes.client_id(self._connection, frame.received_ns, client_id))
                return

    # Direction

    def whole_frames(self, data: bytes, position: int, now: int) -> tuple[Send | None, int]:
        """The fast loop: see Direction. Produce requests are taken here, too."""
        if self._login.open:
            return None, position
        first, last, pending = position, len(data) - _START_BYTES, self._pending
        room = len(data) if self._finishing else pending.requests_max - pending.count
        times, runs = ChunkTimes(now), []
        while room > 0 and position <= last:
            requests = self._alike(data, position, room, times)
            if requests is None:
                break
            sizes = requests.sizes
            stop = position + sum(sizes)
            piece = part(data, position, stop) if len(sizes) == 1 else data[position:stop]
            runs.append(Run(_CLIENT, self._connection, times, [piece], requests, 0, sizes))
            if not requests.flags:
                pending.append(requests)
            room -= len(sizes)
            position = stop
        if not runs:
            return None, position
        pieces = runs[0].pieces if len(runs) == 1 else [part(data, first, position)]
        return Send(self._connection, _BROKER, pieces, [times], runs), position

    def _alike(self, data: bytes, position: int, room: int, times: ChunkTimes) -> Requests | None:
        """Return the small requests from `position` on that are whole and alike, `room` at most, or
        one that is large; None where there is none that passes as it is."""
        unpack, bytes_max, end = _START.unpack_from, self._small_bytes_max, len(data)
        size, key, version, correlation_id = unpack(data, position)
        stop = position + size + 4
        if stop > end or not 8 <= size <= self._whole_bytes_max:
            return None
        flags, acks = 0, None
        if wanted := self._interests[key, version] & REQUEST_BITS:
            if wanted != PRODUCE:
                return None
            acks = self._acks.read
            flags = NO_RESPONSE if acks(data, position, stop, version) == 0 else 0
        correlation_ids, sizes = [correlation_id], [size + 4]
        last = end - _START_BYTES
        while size <= bytes_max and stop <= last:
            start = stop
            size, api_key, api_version, correlation_id = unpack(data, start)
            stop = start + size + 4
            if api_key != key or api_version != version or stop > end or not 8 <= size <= bytes_max:
                break
            if acks is not None and (acks(data, start, stop, version) == 0) != bool(flags):
                break
            correlation_ids.append(correlation_id)
            sizes.append(size + 4)
        most = min(room, RUN_FRAMES_MAX)
        if len(sizes) > most:
            del correlation_ids[most:], sizes[most:]
        number = self._numbers.take(len(sizes))
        return Requests(number, key, version, flags, correlation_ids, sizes, times)

    def start(self, data: bytes, position: int, now: int, out: Output) -> Partial | None:
        """See Direction."""
        if len(data) - position < 4:
            return None
        size = int.from_bytes(data[position : position + 4], signed=True)
        login = self._login
        if login.open and login.is_token(size):
            return self._start_token(size, now)
        diagnosis.check_request(data, position, self._bytes_max, login.open)
        if len(data) - position < _START_BYTES:
            return None
        size, api_key, api_version, correlation_id = _START.unpack_from(data, position)
        if login.open and login.is_token(size, api_key, api_version):
            return self._start_token(size, now)
        wanted = self._interests[api_key, api_version]
        frame = self._frame(api_key, api_version, correlation_id, size + 4, now)
        held = bool(wanted & RULES) or _is_too_new(wanted)
        secret = bool(wanted & SECRET_REQUEST) or self._may_be_token(frame)
        return Partial(frame, size + 4, secret, held)

    def _start_token(self, size: int, now: int) -> Partial:
        if self._login.begun and size > TOKEN_BYTES_MAX:
            raise Violation(f"a SASL token of more than the {TOKEN_BYTES_MAX} bytes that are legal")
        frame = self._frame(NO_API, NO_API, 0, size + 4, now)
        frame.flags = RAW_SASL
        return Partial(frame, size + 4, secret=True)

    def _may_be_token(self, frame: Frame) -> bool:
        """Return whether only the whole frame will tell a request from a token."""
        return (
            self._login.open
            and not frame.flags & RAW_SASL
            and (frame.frame_bytes <= TOKEN_BYTES_MAX)
        )

    def bytes_to_forward(self, partial: Partial, piece: Buffer, now: int, out: Output) -> int:
        """See Direction."""
        return 0 if partial.held else len(piece)

    def prepare_cut(self, partial: Partial) -> bool:
        """See Direction. A frame that has to be cut before it can be told from a token becomes one.
        A Produce request is not cut before its acks are read."""
        frame = partial.frame
        if self._may_be_token(frame):
            as_token(frame)
        if frame.api_key != PRODUCE_KEY or frame.flags & FRAGMENT:
            return True
        return self._read_acks(frame) or partial.collected_bytes >= _HEADER_BYTES_MAX

    def complete(self, partial: Partial, now: int, out: Output) -> None:
        """See Direction."""
        frame, login = partial.frame, self._login
        if login.open and not frame.flags & RAW_SASL and not login.is_request(frame):
            as_token(frame)
        if frame.flags & RAW_SASL:
            self._complete_token(partial, out)
            return
        wanted = self._interests[frame.api_key, frame.api_version]
        if wanted & UNKNOWN:
            frame.flags |= OPAQUE
            if report := versions.too_new_report(frame.api_key, frame.api_version):
                out.reports.append(report)
        if wanted & PRODUCE:
            self._read_acks(frame)
        if frame.api_key in diagnosis.LOGIN_KEYS:
            login.step_passed(frame)
            if report := diagnosis.bound_to_host(login.mechanism):
                out.reports.append(report)
        if not partial.held:
            if partial.secret:
                partial.redact()
            if may_be_run(frame, NO_RESPONSE):
                self._record_run(frame, out)
                return
            out.entries.append(frame)
            self._register(frame, None, out)
            return
        verdict = None
        rules = self._interests.rules
        if rules is not None and not self._ignores_rules:
            self._turn_cost += 1 + frame.frame_bytes // _COST_BYTES
            verdict = rules.on_request(self._origin.context(frame), frame.data, now)
        if verdict is None and _is_too_new(wanted):
            verdict = versions.answer_as_old_broker(frame.data)
        out.entries.append(frame)
        self._carry_out(frame, verdict, out)
        if partial.secret:
            partial.redact()
            if frame.flags & REDACTED:
                frame.splices = ()  # a rule may have put a secret there

    def _record_run(self, frame: Frame, out: Output) -> None:
        """Record and expect a request that has left as it came, without ado."""
        times = ChunkTimes(frame.received_ns)
        requests = requests_of(frame, times)
        run = _CLIENT, self._connection, times, frame.pieces, requests, 0, requests.sizes
        out.entries.append(Run(*run))
        out.timed.append(times)
        if not frame.flags:
            self._await_response(requests)

    # Whole requests

    def _carry_out(self, frame: Frame, verdict: Verdict | None, out: Output) -> None:
        """Carry out a rule's verdict on a held request."""
        if verdict is None:
            out.replace(frame.data)
            self._register(frame, None, out)
            return
        carry_out.note_rules(verdict, frame, out)
        frame.pieces = [data := frame.data]  # the delayed and the recorded bytes are the same
        frames = carry_out.frames_to_send(verdict, data)
        carry_out.note_kept(verdict, frame, len(data))
        carry_out.begin(verdict, frame.received_ns, out, frame.number)
        if frames:
            if verdict.ending is None:
                self._note_change(frame, frames[0])
            out.replace(frames[0])
            self._register(frame, verdict, out)
            for copy in frames[1:]:
                out.replace(copy)
                self._register_copy(frame, copy, out)
        else:
            frame.withheld = True
            self._expect(frame, verdict, ChunkTimes(frame.received_ns))
        carry_out.end(verdict, out)

    def _note_change(self, frame: Frame, sent: bytes) -> None:
        """Note in the frame how the sent request differs from it."""
        splices = difference(frame.data, sent)
        if splices and self._interests[frame.api_key, frame.api_version] & SECRET_REQUEST:
            frame.flags |= REWRITTEN  # without the difference, which may be a secret
        else:
            frame.change(splices)

    def _register(self, frame: Frame, verdict: Verdict | None, out: Output) -> None:
        """Note the times of a request that leaves, and expect its response."""
        times = ChunkTimes(frame.received_ns)
        out.timed.append(frame)
        if not frame.flags & NO_RESPONSE:
            out.timed.append(times)
        self._expect(frame, verdict, times)

    def _expect(self, frame: Frame, verdict: Verdict | None, times: ChunkTimes) -> None:
        if not frame.flags & NO_RESPONSE:
            self._await_response(requests_of(frame, times, verdict))

    def _await_response(self, requests: Requests) -> None:
        if self._login.open:
            requests = attrs.evolve(requests, flags=requests.flags | BEFORE_LOGIN)
        self._pending.append(requests)

    def _register_copy(self, frame: Frame, data: bytes, out: Output) -> None:
        """Record a copy that leaves behind its request, and swallow the response to the copy."""
        copy = self._frame(
            frame.api_key, frame.api_version, frame.correlation_id, len(data), frame.received_ns
        )
        copy.pieces = [data]
        copy.flags = INJECTED | FAULTED | frame.flags & NO_RESPONSE
        copy.fault_ids = frame.fault_ids
        if self._login.open or self._interests[frame.api_key, frame.api_version] & SECRET_REQUEST:
            Partial(copy, 0, secret=True).redact()
        out.entries.append(copy)
        swallowed = Verdict(frames=(), fault_ids=frame.fault_ids)
        self._register(copy, Verdict(response=swallowed), out)

    def _complete_token(self, partial: Partial, out: Output) -> None:
        frame = partial.frame
        self._login.token_passed()
        if partial.held:
            out.replace(frame.data)
        partial.blank()
        out.entries.append(frame)
        self._register(frame, None, out)

    def _read_acks(self, frame: Frame) -> bool:
        """Mark a request that the broker does not answer; return False if its acks are unknown."""
        acks = self._acks.read_frame(frame)
        if acks == 0:
            frame.flags |= NO_RESPONSE
        return acks is not None

    def _frame(
        self, api_key: int, api_version: int, correlation_id: int, frame_bytes: int, now: int
    ) -> Frame:
        number = self._numbers.take()
        kind = api_key, api_version, correlation_id
        return Frame(_CLIENT, self._connection, number, *kind, now, [], frame_bytes)


def _is_too_new(wanted: int) -> bool:
    """Return whether this is ApiVersions in a version that the table lacks."""
    return bool(wanted & VERSIONS) and bool(wanted & UNKNOWN)
