"""Counters of the traffic per API, for the metrics: only with a control address.

::

    entries of a chunk ─▶ Traffic.count ─▶ per API: exchanges, bytes, errors, latency in buckets
                                       └─▶ how connections ended

Invariants: a response in a run costs a few additions and a look at its error codes, and no frame
of it is made or decoded. Only Kafka's APIs and errors are counted by name, so that peers cannot
make up any number of them. What is kept of a connection goes with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import attrs

from kproxy.exchange import derived, facts, response_codes
from kproxy.exchange.entries import (
    CONNECTIONS,
    FAULTED,
    INJECTED,
    MORE,
    NO_API,
    NO_RESPONSE,
    UNANSWERED,
    Entry,
    Frame,
    FrameRun,
    Note,
    Side,
)
from kproxy.exchange.response_codes import LargeResponse, ResponseCodes
from kproxy.wire.protocol import error_name, schema
from kproxy.wire.protocol.codec import FETCH
from kproxy.wire.protocol.errors import ERRORS

BUCKETS_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of the latency buckets."""
_BOUNDS_NS = [int(seconds * 1e9) for seconds in BUCKETS_SECONDS]
_READ_BYTES_MAX = 64 << 10
"""Of larger responses, the codes are read in those alone whose size is that of records."""
OTHER = "other"
"""The name under which all APIs and errors are counted that are not Kafka's."""
BROKER, RULE = "broker", "rule"
"""The origins of errors."""
_WAITS_UNKNOWN = (derived.POLL_KEYS | derived.JOIN_KEYS) - {FETCH}
"""APIs that may wait for longer than is known here."""
_LOGIN_APIS = ("SaslHandshake", "SaslAuthenticate")


@attrs.define(eq=False)
class Latencies:
    """Durations in buckets."""

    sum_ns: int = 0
    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(_BOUNDS_NS) + 1))
    """The number of exchanges in each bucket."""

    def add(self, duration_ns: int, count: int = 1) -> None:
        """Add the duration of one exchange, or of each of so many."""
        self.sum_ns += duration_ns * count
        self.buckets[bisect_left(_BOUNDS_NS, duration_ns)] += count


@attrs.define(eq=False)
class ApiTraffic:
    """The counters of one API."""

    exchanges: int = 0
    unanswered: int = 0
    """Requests whose connection ended before they were answered."""
    request_bytes: int = 0
    response_bytes: int = 0
    throttled_ms: int = 0
    broker: Latencies = attrs.field(factory=Latencies)
    """The brokers' latencies …"""
    service: Latencies = attrs.field(factory=Latencies)
    """… and what they were without queue and wait (`derived.Durations.served_us`); none where
    waits are unknown, or where all of it may be a wait."""
    errors: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """The responses with an error, by Kafka's name of it and its origin."""

    @property
    def throttled_seconds(self) -> float:
        """The sum of the times for which brokers told clients to wait."""
        return self.throttled_ms / 1000

    def add_codes(self, found: ResponseCodes, origin: str) -> None:
        """Count the codes of a response."""
        self.throttled_ms += found.throttle_ms
        for code in found.errors:
            self.errors[error_name(code) if code in ERRORS else OTHER, origin] += 1


@attrs.define(eq=False)
class _PeerTimes:
    """What times of a connection are needed of exchanges to come."""

    answered_ns: int = 0
    """The arrival of the last response."""
    waits_ns: dict[int, int] = attrs.field(factory=dict)
    """Number of each Fetch that is pending → how long it may wait."""
    large: LargeResponse | None = None
    """The response whose further pieces are due."""


class Traffic:
    """Counts entries as they pass."""

    def __init__(self) -> None:
        self.apis: dict[str, ApiTraffic] = {}
        self._by_key: dict[int, ApiTraffic] = {}
        self._peers: dict[int, _PeerTimes] = {}
        self.ends: Counter[tuple[str, str]] = Counter()
        """How connections ended, and at which side."""
        self._tokens_unanswered = 0

    @property
    def login_failures(self) -> Counter[str]:
        """The logins of clients that failed, by the broker's error."""
        found = Counter({"SASL_AUTHENTICATION_FAILED": 0, "unanswered": self._tokens_unanswered})
        for api in _LOGIN_APIS:
            if api in self.apis:
                found["unanswered"] += self.apis[api].unanswered
                for (error, origin), count in self.apis[api].errors.items():
                    found[error] += count if origin == BROKER else 0
        return found

    def count(self, entries: Iterable[Entry]) -> None:
        """Count the exchanges that these entries complete."""
        for entry in entries:
            if isinstance(entry, FrameRun):
                if entry.side is Side.BROKER:
                    self._count_responses(entry)
                else:
                    self._count_requests(entry)
            elif isinstance(entry, Note):
                self._count_note(entry)
            else:
                self._count_frame(entry)

    def _count_note(self, note: Note) -> None:
        if note.channel == CONNECTIONS and note.body["event"] == "closed":
            self._peers.pop(note.body["connection"], None)
            self.ends[note.body["how"], note.body.get("side", "proxy")] += 1

    def _count_requests(self, run: FrameRun) -> None:
        requests = run.requests
        if requests.flags & NO_RESPONSE:
            api = self._api(requests.api_key)
            api.exchanges += len(run)
            api.request_bytes += run.frame_bytes
        elif requests.api_key == FETCH:
            waits_ns, data, at = self._peer(run.connection).waits_ns, run.data, 0
            for number, size in enumerate(run.sizes, run.number):
                wait_ms = facts.max_wait_ms(data, at, requests.api_version)
                waits_ns[number] = wait_ms * 1_000_000
                at += size

    def _count_responses(self, run: FrameRun) -> None:
        requests, count, key = run.requests, len(run), run.requests.api_key
        api = self._by_key.get(key) or self._api(key)
        api.exchanges += count
        api.request_bytes += sum(requests.sizes[run.nth : run.nth + count])
        api.response_bytes += run.frame_bytes
        peer = self._peers.get(run.connection) or self._peer(run.connection)
        received_ns, wait_ns = run.times.received_ns, 0
        if key == FETCH:
            waits_ns = [peer.waits_ns.pop(run.number + nth, 0) for nth in range(count)]
            wait_ns = waits_ns[0]
        if sent_ns := requests.times.sent_before(received_ns):
            _add_times(api, key, peer, wait_ns, sent_ns, received_ns, count)
        peer.answered_ns = received_ns
        if count == 1 and run.sizes[0] > _READ_BYTES_MAX:
            _add_codes_of_large(api, peer, run)
            return
        at, data, read = 0, run.data, response_codes.reader(key, requests.api_version)
        for size in run.sizes:
            if found := read(data, at, size):
                api.add_codes(found, BROKER)
            at += size

    def _count_frame(self, frame: Frame) -> None:
        flags, key = frame.flags, frame.api_key
        if flags & MORE:
            if frame.side is Side.BROKER:
                _add_codes_of_large(self._api(key), self._peer(frame.connection), frame)
            return
        if frame.side is Side.CLIENT and not flags & NO_RESPONSE:
            if key == FETCH and facts.is_whole(flags):
                wait_ms = facts.max_wait_ms(frame.data, 0, frame.api_version)
                self._peer(frame.connection).waits_ns[frame.number] = wait_ms * 1_000_000
            return
        api = self._api(key)
        peer = self._peer(frame.connection)
        wait_ns = peer.waits_ns.pop(frame.number, 0)
        if flags & UNANSWERED:
            api.unanswered += 1
            self._tokens_unanswered += key == NO_API
            return
        api.exchanges += 1
        if frame.side is Side.CLIENT:
            api.request_bytes += frame.frame_bytes
            return
        api.request_bytes += frame.request_bytes
        api.response_bytes += frame.frame_bytes
        if frame.request_sent_ns and not flags & INJECTED:
            _add_times(api, key, peer, wait_ns, frame.request_sent_ns, frame.received_ns)
        peer.answered_ns = frame.received_ns
        if frame.frame_bytes > _READ_BYTES_MAX:
            _add_codes_of_large(api, peer, frame)
        elif facts.is_whole(flags):
            _add_codes(api, frame)

    def _peer(self, connection: int) -> _PeerTimes:
        found = self._peers.get(connection)
        if found is None:
            found = self._peers[connection] = _PeerTimes()
        return found

    def _api(self, api_key: int) -> ApiTraffic:
        found = self._by_key.get(api_key)
        if found is not None:
            return found
        name = schema.api_names().get(api_key)
        found = self.apis.setdefault(name or OTHER, ApiTraffic())
        if name is not None:
            self._by_key[api_key] = found
        return found


def _add_times(
    api: ApiTraffic,
    api_key: int,
    peer: _PeerTimes,
    wait_ns: int,
    sent_ns: int,
    received_ns: int,
    count: int = 1,
) -> None:
    """Add the times of responses that arrived together, as `derived.durations` has them; the first
    one's request may wait for so long."""
    broker_ns = max(0, received_ns - sent_ns)
    api.broker.add(broker_ns, count)
    if api_key not in _WAITS_UNKNOWN:
        left_ns = max(0, received_ns - max(sent_ns, peer.answered_ns))
        if left_ns > wait_ns or not (left_ns and wait_ns):  # else all of it may be a wait
            api.service.add(max(0, left_ns - wait_ns))
        if count > 1:  # the others were queued until the first one's response arrived
            api.service.add(0, count - 1)


def _add_codes(api: ApiTraffic, frame: Frame) -> None:
    """Add the codes of a response that is no run."""
    read = response_codes.reader(frame.api_key, frame.api_version)
    arrived = read(frame.data, 0, frame.frame_bytes)
    if frame.flags & INJECTED:
        api.add_codes(ResponseCodes(arrived.errors if arrived else ()), RULE)
    elif arrived:
        api.add_codes(arrived, BROKER)
    if frame.flags & FAULTED and frame.splices:
        told = read(sent := frame.sent, 0, len(sent))
        before = arrived.errors if arrived else ()
        made = [code for code in told.errors if code not in before] if told else ()
        api.add_codes(ResponseCodes(made), RULE)


def _add_codes_of_large(api: ApiTraffic, peer: _PeerTimes, entry: Frame | FrameRun) -> None:
    """Add the codes of a large response, or go on with one: of what brokers sent."""
    frame = entry if isinstance(entry, Frame) else None
    about = entry if isinstance(entry, Frame) else entry.requests
    if about.api_key not in derived.POLL_KEYS or (frame and frame.flags & INJECTED):
        return
    large = peer.large or LargeResponse(about.api_key, about.api_version)
    for piece in entry.pieces:
        if found := large.take(piece):
            api.add_codes(found, BROKER)
    peer.large = large if frame and frame.flags & MORE else None
