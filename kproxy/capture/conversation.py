"""One connection of a capture as Kafka's: what its sides sent, through the proxy's own streams.

::

    Arrival ─▶ whose? ─┬─▶ RequestStream ─┬─▶ Frame, FrameRun, Note
     (client, broker)  └─▶ ResponseStream ┘
                  bytes are missing: the frame is cut off; `FrameSearch` finds the next one

So frames, secrets, logins and numbers are those of live traffic; nothing is rewritten.

* A connection is Kafka's if its client's first bytes are a request; or, where the beginning was not
  captured, if a whole request is found in what one side sends, which is its client then.
* Missing bytes within a frame cost that frame: the next one is where its size says. If the size is
  missing, too, frames are searched, and none is taken without proof.
* Where bytes are missing (`_doubtful`), each response is looked up among the pending requests:
  those before it have lost theirs, and one to a request that was not captured is passed over.

Invariant: what is not in the capture is told, by a note where it is missing.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any

import attrs

from kproxy.capture.frames import FrameSearch, is_request, is_response, requests, responses
from kproxy.capture.packets import addresses
from kproxy.capture.tcp import UNSEEN, Arrival, TcpConnection, TcpStream
from kproxy.exchange import notes
from kproxy.exchange.endings import SideEnd
from kproxy.exchange.entries import OPEN_AT_END, RAW_SASL, Entry, Note, Side
from kproxy.proxy.actions import Address
from kproxy.proxy.budget import Share
from kproxy.proxy.framer import Violation
from kproxy.proxy.gate import AddressGate
from kproxy.proxy.login import Login
from kproxy.proxy.nodes import Nodes
from kproxy.proxy.output import Output
from kproxy.proxy.pending import PendingRequests
from kproxy.proxy.requests import RequestStream
from kproxy.proxy.responses import ResponseStream
from kproxy.proxy.settings import Shared
from kproxy.wire.protocol import codec, is_known

PENDING_MAX = 1 << 16
"""So many requests wait for their responses; then the first of them are taken to have none."""
_LOOKED_UP_MAX = 1024
"""A response is looked for to so many runs of requests at most."""
_START = struct.Struct(">ii")
_HEADER = struct.Struct(">ihhih")


@attrs.define(eq=False)
class _Missing:
    """What is missing of one side since its last frame."""

    since_ns: int
    lost_bytes: int = 0
    passed_bytes: int = 0
    """Bytes that were captured, and belong to no whole frame."""
    responses: int = 0
    """Responses to requests that are not in the capture."""
    searched: bool = False
    """Whole frames may be missing. Else a frame says itself that it is cut off, and the sum of
    that is told at the end."""


@attrs.define(eq=False)
class _Half:
    """One side of a conversation."""

    side: Side
    stream: RequestStream | ResponseStream
    search: FrameSearch | None = None
    """Finds the next frame; None: it is known where that is."""
    skip_bytes: int = 0
    """The bytes still to come of a frame that is not taken, or only in part."""
    start: bytes = b""
    """The beginning of a response, less than its size and correlation id."""
    missing: _Missing | None = None
    """What is to be told before its next frame."""

    def misses(self, now: int) -> _Missing:
        """Return what is to be told, from now on at the latest."""
        if self.missing is None:
            self.missing = _Missing(now)
        return self.missing


class Conversation:
    """The frames of one connection."""

    def __init__(
        self,
        number: int,
        connection: TcpConnection,
        client: TcpStream,
        shared: Shared,
        node_id: Callable[[Address], int | None],
    ) -> None:
        self.number, self.client = number, client
        ends = addresses(connection.path)
        if client is not connection.streams[0]:
            ends = ends[::-1]
        (client_host, client_port), broker = ends
        address = f"{broker[0]}:{broker[1]}"
        self.about: dict[str, Any] = {
            "node_id": node_id(broker),
            "client_address": f"{client_host}:{client_port}",
            "listener": address,
            "broker_address": address,
        }
        self.entries: list[Entry] = []
        """What is not taken away yet."""
        self._pending = pending = PendingRequests(PENDING_MAX << 1)
        self._login = login = Login()
        gate = AddressGate(Nodes(0), lambda node_id: ("", 0), Share(shared.budget))
        about = number, self.about, shared, pending, login
        self._requests = RequestStream(*about)
        self._responses = ResponseStream(number, address, shared, pending, login, gate)
        self._halves = (
            _Half(Side.CLIENT, self._requests),
            _Half(Side.BROKER, self._responses),
        )
        self._now = opened_ns = connection.opened_ns
        self._ends: list[SideEnd] = []
        self._doubtful = connection.client is None
        opened = notes.opened(number, opened_ns, self.about)
        if self._doubtful:
            opened = notes.still_open(opened_ns, {**opened.body, "opened_ns": opened_ns})
            for half in self._halves:
                half.misses(opened_ns).searched = True
                half.search = self._search(half)
        self.entries.append(opened)

    def take(self, arrival: Arrival) -> None:
        """Take what arrived next."""
        stream, content, time_ns = arrival
        now = self._now = max(self._now, time_ns)
        half = self._halves[0 if stream is self.client else 1]
        if isinstance(content, str):
            self._end(half, content, now)
        elif isinstance(content, int):
            self._lose(half, content, now)
        else:
            self._receive(half, content, now)

    def finish(self) -> None:
        """Tell what is missing where the capture ends."""
        for half in self._halves:
            self._tell_missing(half, self._now)

    # ---- bytes

    def _receive(self, half: _Half, data: bytes, now: int) -> None:
        if half.missing is not None:
            data = self._behind_missing(half, half.missing, data, now)
            if not data:
                return
        out = Output()
        try:
            if half.side is Side.BROKER and self._doubtful:
                self._receive_responses(half, data, now, out)
            else:
                half.stream.framer.feed(data, now, out)
        except Violation:
            half.stream.framer.finish(out)
            taken = sum(
                sum(map(len, each.pieces)) for each in out.entries if type(each) is not Note
            )
            half.misses(now).passed_bytes += max(0, len(data) - taken)
            self._search_on(half, now)
        self._record(out, now)
        if self._pending.count > PENDING_MAX:
            self._lose_responses(PENDING_MAX // 2, now)

    def _behind_missing(self, half: _Half, missing: _Missing, data: bytes, now: int) -> bytes:
        """Return what comes from the next frame on: nothing, as long as that is not here."""
        if half.skip_bytes:
            skipped = min(half.skip_bytes, len(data))
            half.skip_bytes -= skipped
            missing.passed_bytes += skipped
            data = data[skipped:]
        if half.search is not None:
            found = half.search.take(data)
            if found is None:
                return b""
            missing.passed_bytes += half.search.passed_bytes
            half.search, data = None, found
        if data and (missing.searched or missing.responses):
            self._tell_missing(half, now)
        return data

    def _receive_responses(self, half: _Half, data: bytes, now: int, out: Output) -> None:
        """Take responses, each if it answers a request that is pending."""
        framer, pending = self._responses.framer, self._pending
        data, half.start, at = half.start + data, b"", 0
        while at < len(data):
            stop = len(data)
            if framer.partial is not None:
                stop = min(stop, at + framer.partial.left_bytes)
            elif not (pending.queue and pending.queue[0].flags & RAW_SASL):
                if stop - at < _START.size:
                    half.start = data[at:]
                    return
                size, correlation_id = _START.unpack_from(data, at)
                if size < 4:
                    raise Violation("no response")
                stop = min(stop, at + 4 + size)
                if not self._is_due(correlation_id, now):
                    half.skip_bytes = at + 4 + size - stop
                    half.misses(now).responses += 1
                    half.misses(now).passed_bytes += stop - at
                    at = stop
                    continue
            framer.feed(data[at:stop], now, out)
            at = stop

    def _is_due(self, correlation_id: int, now: int) -> bool:
        """Return whether a request with this correlation id is pending, and next then."""
        count = 0
        for each in self._pending.queue:
            if correlation_id in each.correlation_ids:
                before = count + each.correlation_ids.index(correlation_id) - self._pending.taken
                if before >= 0:
                    self._lose_responses(before, now)
                    return True
            count += len(each)
        return False

    def _lose_responses(self, count: int, now: int) -> None:
        """Let the first pending requests go without a response: it is not in the capture."""
        for _ in range(min(count, len(self._pending))):
            frame = self._responses.unanswered(self._pending.take(), now)
            frame.flags |= OPEN_AT_END
            self.entries.append(frame)

    def _record(self, out: Output, now: int) -> None:
        for each in out.timed:
            each.sent_ns = now
        self.entries += out.entries

    # ---- what is missing

    def _lose(self, half: _Half, count: int, now: int) -> None:
        """Go on behind bytes that are not in the capture."""
        self._doubtful = True
        half.misses(now).lost_bytes += count
        skipped = min(half.skip_bytes, count)
        half.skip_bytes -= skipped
        count -= skipped
        if not count:
            return
        out = Output()
        left = half.stream.cut_off(out) if half.search is None and not half.start else -1
        self._record(out, now)
        if left >= count:
            half.skip_bytes = left - count
        else:
            self._search_on(half, now)

    def _search_on(self, half: _Half, now: int) -> None:
        """Search for the next frame."""
        self._doubtful = True
        missing = half.misses(now)
        missing.searched = True
        missing.passed_bytes += len(half.start)
        if half.search is not None:
            missing.passed_bytes += half.search.passed_bytes + half.search.held_bytes
        half.start, half.skip_bytes, half.search = b"", 0, self._search(half)

    def _search(self, half: _Half) -> FrameSearch:
        if half.side is Side.CLIENT:
            return FrameSearch(requests, is_request)
        return FrameSearch(lambda data, at: responses(data, at, {*self._kinds()}), self._answers)

    def _kinds(self) -> dict[int, tuple[int, int]]:
        """Return the API and version of the first pending requests, by correlation id."""
        return {
            correlation_id: (each.api_key, each.api_version)
            for each in itertools.islice(self._pending.queue, _LOOKED_UP_MAX)
            for correlation_id in each.correlation_ids
            if not each.flags & RAW_SASL
        }

    def _answers(self, frame: bytes) -> bool:
        kind = self._kinds().get(int.from_bytes(frame[4:8], signed=True))
        return kind is not None and is_response(frame, *kind)

    def _tell_missing(self, half: _Half, now: int) -> None:
        """Tell what is missing of one side, if anything is."""
        missing, half.missing = half.missing, None
        if missing is None:
            return
        if half.search is not None:
            missing.passed_bytes += half.search.passed_bytes + half.search.held_bytes
        counts = {
            f"{missing.lost_bytes} bytes were not captured": missing.lost_bytes,
            f"{missing.passed_bytes} bytes belong to frames that are not whole or answer nothing"
            " that was captured": missing.passed_bytes,
        }
        words = [text for text, count in counts.items() if count]
        if not words:
            return
        side = half.side.name.lower()
        why = f"connection {self.number}, from the {side}: {', '.join(words)}"
        about = missing.responses, missing.lost_bytes + missing.passed_bytes, why, missing.since_ns
        self.entries.append(notes.lost(*about, now, connection=self.number, side=side))

    # ---- ends

    def _end(self, half: _Half, how: str, now: int) -> None:
        if how == UNSEEN:
            for each in self._halves:
                self._tell_missing(each, now)
            side = None
        else:
            side = half.side.name.lower()
            self._ends.append(SideEnd(side, how, now))
            self._tell_missing(half, now)
            if how == "eof" and len(self._ends) < 2:
                return
        out = Output()
        self._requests.finish(now, out)
        self._responses.finish(now, out)
        self._record(out, now)
        unknown = how == UNSEEN or self._halves[1].search is not None
        for request in self._pending.give_up():
            frame = self._responses.unanswered(request, now)
            frame.flags |= OPEN_AT_END if unknown else 0
            self.entries.append(frame)
        reason = self._login.refusal
        if how == UNSEEN:
            reason = "its end is not in the capture"
        self.entries.append(
            notes.closed(self.number, now, self.about, how, reason, side, self._ends)
        )


def begins_request(data: bytes, bytes_max: int) -> bool | None:
    """Return whether a stream begins with a request; None while that is open."""
    if len(data) < _HEADER.size:
        return None
    size, key, version, _, client_id_bytes = _HEADER.unpack_from(data)
    versions = is_known(key, version) or (key == codec.API_VERSIONS and 0 <= version < 100)
    return versions and 8 <= size <= bytes_max and -1 <= client_id_bytes <= size - 8
