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
from typing import Any

import attrs

from kproxy.exchange import facts, notes
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
    RUN_FRAMES_MAX,
    VIEWED_BYTES_MIN,
    Buffer,
    ChunkTimes,
    Frame,
    FrameRun,
    Requests,
    Side,
    requests_of,
)
from kproxy.proxy import carry_out, diagnosis, redact, versions
from kproxy.proxy.acks import Acks
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
)
from kproxy.proxy.login import TOKEN_BYTES_MAX, Login, as_token
from kproxy.proxy.output import Output, part
from kproxy.proxy.pending import BEFORE_LOGIN, PendingRequests
from kproxy.proxy.rewrite import difference
from kproxy.proxy.settings import Shared
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
_CLIENT = Side.CLIENT


class RequestStream:
    """The direction from the client to the broker."""

    def __init__(
        self,
        connection: int,
        about: Mapping[str, Any],
        shared: Shared,
        pending: PendingRequests,
        login: Login,
    ) -> None:
        self._connection = connection
        self._about = about
        self._shared = shared
        self._interests = shared.interests
        self._pending = pending
        self._login = login
        self._bytes_max = shared.settings.request_bytes_max
        self._whole_bytes_max = min(self._bytes_max, PIECE_BYTES_MAX - 4)
        """The largest size of a request that the short-cut takes …"""
        self._small_bytes_max = min(self._bytes_max, VIEWED_BYTES_MIN - 5)
        """… and the largest of one that is recorded together with others."""
        self.framer = Framer(self, Share(shared.budget))
        self._acks = Acks()
        self._client_noted = False
        self.client_id: str | None = None
        """The client id in the first request."""
        self.ignores_rules = False
        """Rules see no further request, as none can leave any more."""
        self._finishing = False
        self.turn_cost = 0
        """The cost of the rules' decisions in this turn of the connection."""

    @property
    def blocked(self) -> bool:
        """True while no further request may be begun: too many are pending, or its turn is over."""
        return (self._pending.full or self.quota_used) and not self._finishing

    @property
    def quota_used(self) -> bool:
        """True if rules decide on no further request in this turn."""
        return self.turn_cost >= _TURN_COST_MAX

    @property
    def stopped(self) -> bool:
        """True while bytes of the client wait here, because the direction was blocked."""
        return bool(self.framer.waiting)

    @property
    def has_room(self) -> bool:
        """True while bytes wait here, and there is room for the requests in them; where the quota
        is used, in another turn."""
        return self.stopped and self._pending.roomy

    def finish(self, now: int, out: Output) -> None:
        """Record and send on, at once, the bytes that wait here and those of incomplete frames."""
        self._finishing = True
        with contextlib.suppress(Violation):  # no reason to report: the connection ends anyway
            self.framer.go_on(now, out)
        partial = self.framer.partial
        if partial is not None and partial.held:
            out.replace(partial.frame.data)  # rules do not see a part: it leaves as it came
        for each in (self.framer.failed, partial):
            if each is not None and not each.identified and self._may_be_token(each.frame):
                as_token(each.frame)
        rest = self.framer.finish(out)
        if rest:
            frame = self._frame(NO_API, NO_API, 0, len(rest), now)
            frame.flags = RAW_SASL if self._login.open else 0
            partial = Partial(frame, len(rest), secret=self._login.open)
            partial.add(rest, now)
            partial.truncate(out)
            out.replace(rest)

    def cut_off(self, out: Output) -> int:
        """Go on behind bytes that are not seen (`Framer.cut_off`), and expect the response to the
        request that lacks them."""
        partial = self.framer.partial
        if partial is None:
            return self.framer.cut_off(out)
        frame = partial.frame
        if self._may_be_token(frame) and not redact.has_header(frame.data):
            as_token(frame)
        if frame.api_key == PRODUCE_KEY:
            self._read_acks(frame)
        left_bytes = self.framer.cut_off(out)
        self._register(frame, None, out)
        return left_bytes

    # The decisions of the framer

    def pass_whole(self, data: bytes, position: int, now: int, out: Output) -> int:
        """The short-cut: let the requests from `position` on pass that are whole, and that nobody
        but the recording wants; return the offset behind them. Neighbours that are alike, and not
        large, are recorded together."""
        if self._login.open or not self._client_noted:
            return position
        unpack, acks, pending = _START.unpack_from, self._acks.read, self._pending
        first, end = position, len(data)
        last = end - _START_BYTES
        room = end if self._finishing else pending.requests_max - pending.count
        room = min(room, RUN_FRAMES_MAX)
        times = ChunkTimes(now)
        while room > 0 and position <= last:
            size, key, version, correlation_id = unpack(data, position)
            stop = position + size + 4
            if stop > end or not 8 <= size <= self._whole_bytes_max:
                break
            wanted = self._interests[key, version] & REQUEST_BITS
            if wanted and wanted != PRODUCE:
                break
            one_way = wanted == PRODUCE and acks(data, position, stop, version) == 0
            ids, sizes, start, most = [correlation_id], [size + 4], position, self._small_bytes_max
            position = stop
            for _ in range(1, room if size <= most else 1):
                if position > last:
                    break
                size, api_key, api_version, correlation_id = unpack(data, position)
                stop = position + size + 4
                if api_key != key or api_version != version or stop > end or not 8 <= size <= most:
                    break
                if wanted and (acks(data, position, stop, version) == 0) is not one_way:
                    break
                ids.append(correlation_id)
                sizes.append(size + 4)
                position = stop
            count = len(sizes)
            number, flags = self._shared.numbers.take(count), NO_RESPONSE if one_way else 0
            requests = Requests(number, key, version, flags, ids, sizes, times)
            piece = part(data, start, position) if count == 1 else data[start:position]
            out.entries.append(
                FrameRun(_CLIENT, self._connection, times, [piece], requests, 0, sizes)
            )
            if not one_way:
                pending.append(requests)
            room -= count
        if position > first:
            out.timed.append(times)
            out.forward(data, first, position)
        return position

    def start(self, data: bytes, position: int, now: int, out: Output) -> Partial | None:
        """Begin the request at `position`, taking nothing of it; None if its header is not whole.

        Raises:
            Violation: no legal request starts there.
        """
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
        """Return how many bytes of the next piece of a request may leave at once."""
        return 0 if partial.held else len(piece)

    def may_be_cut(self, partial: Partial) -> bool:
        """Return whether what came of a request may be given to the recording, and be forgotten: of
        a Produce not before its acks are read. What cannot be told from a token becomes one."""
        frame = partial.frame
        if self._may_be_token(frame):
            as_token(frame)
        if frame.api_key != PRODUCE_KEY or frame.flags & FRAGMENT:
            return True
        return self._read_acks(frame) or partial.collected_bytes >= _HEADER_BYTES_MAX

    def complete(self, partial: Partial, now: int, out: Output) -> None:
        """Record a request that is whole, expect its response, and let its held bytes leave."""
        frame, login = partial.frame, self._login
        if login.open and not frame.flags & RAW_SASL and not login.is_request(frame):
            as_token(frame)
        partial.identified = True
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
        if partial.held:
            self._complete_held(partial, wanted, now, out)
        else:
            self._complete_passed(partial, out)
        if not self._client_noted and not frame.flags & FRAGMENT:
            self._client_noted, self.client_id = facts.client_id(frame)
            if self._client_noted:  # once, so that later files of a recording have it, too
                out.entries.append(
                    notes.client_id(self._connection, frame.received_ns, self.client_id)
                )

    def _complete_passed(self, partial: Partial, out: Output) -> None:
        """Record a request that has left as it came."""
        if partial.secret:
            partial.redact()
        out.entries.append(partial.frame)
        self._register(partial.frame, None, out)

    def _complete_held(self, partial: Partial, wanted: int, now: int, out: Output) -> None:
        """Have the rules decide on a request, or answer it as an old broker does."""
        frame, rules = partial.frame, self._interests.rules
        verdict = None
        if rules is not None and not self.ignores_rules:
            self.turn_cost += 1 + frame.frame_bytes // _COST_BYTES
            verdict = rules.on_request(self._context(frame), frame.data, now)
        if verdict is None and _is_too_new(wanted):
            verdict = versions.answer_as_old_broker(frame.data)
        out.entries.append(frame)
        self._carry_out(frame, verdict, out)
        if partial.secret:
            partial.redact()
            if frame.flags & REDACTED or wanted & SECRET_REQUEST:
                frame.splices = ()  # a rule may have put a secret there

    def _context(self, frame: Frame) -> RequestContext:
        """Return the facts about a request that its bytes do not have."""
        about, shared = self._about, self._shared
        return RequestContext(
            self._connection,
            frame.number,
            about["node_id"],
            about["client_address"],
            frame.received_ns,
            shared.topics.names,
            shared.brokers,
        )

    # Whole requests

    def _carry_out(self, frame: Frame, verdict: Verdict | None, out: Output) -> None:
        """Carry out a rule's verdict on a held request."""
        if verdict is None:
            out.replace(frame.data)
            self._register(frame, None, out)
            return
        frame.pieces = [data := frame.data]  # the delayed and the recorded bytes are the same
        frames = carry_out.frames_to_send(verdict, data)
        carry_out.note(verdict, frame, len(data), out)
        carry_out.begin(verdict, frame.received_ns, out, frame.number)
        if frames:
            if verdict.ending is None:
                frame.change(difference(data, frames[0]))
            out.replace(frames[0])
            self._register(frame, verdict, out)
            for copy in frames[1:]:
                out.replace(copy)
                self._register_copy(frame, copy, out)
        else:
            frame.withheld = True
            self._register(frame, verdict, out)
        carry_out.end(verdict, out)
        if verdict.ending is not None:
            self.ignores_rules = True

    def _register(self, frame: Frame, verdict: Verdict | None, out: Output) -> None:
        """Note the times of a request that leaves, and expect its response."""
        times = ChunkTimes(frame.received_ns)
        if not frame.withheld:
            out.timed.append(frame)
            if not frame.flags & NO_RESPONSE:
                out.timed.append(times)
        self._expect(requests_of(frame, times, verdict))

    def _expect(self, requests: Requests) -> None:
        if requests.flags & NO_RESPONSE:
            return
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
        self._login.token_passed(frame)
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
        number = self._shared.numbers.take()
        kind = api_key, api_version, correlation_id
        return Frame(_CLIENT, self._connection, number, *kind, now, [], frame_bytes)


def _is_too_new(wanted: int) -> bool:
    """Return whether this is ApiVersions in a version that the table lacks."""
    return bool(wanted & VERSIONS) and bool(wanted & UNKNOWN)
