"""Counters of the traffic per API, for the metrics: only with a control address.

::

    entries of a chunk ─▶ Traffic.count ─▶ per API: exchanges, bytes, broker latency in buckets

Invariant: a response in a run costs a few additions, and no frame of it is made or decoded. Only
responses that a fault rule touched are decoded, for their errors. Only Kafka's APIs and errors are
counted by name, so that peers cannot make up any number of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

import attrs

from kproxy.exchange import body_facts, derived, facts
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    MORE,
    NO_RESPONSE,
    UNANSWERED,
    Entry,
    Frame,
    FrameRun,
    Note,
    Side,
)
from kproxy.wire.protocol import schema

BUCKETS_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
"""The upper bounds of the latency buckets."""
_BOUNDS_NS = [int(seconds * 1e9) for seconds in BUCKETS_SECONDS]
_DECODED_BYTES_MAX = 64 << 10
"""The errors in larger responses are not counted."""
_OTHER_APIS = "other"
"""The name under which all APIs are counted that are not Kafka's."""


@attrs.define(eq=False)
class ApiTraffic:
    """The counters of one API."""

    exchanges: int = 0
    unanswered: int = 0
    """Requests whose connection ended before they were answered."""
    request_bytes: int = 0
    response_bytes: int = 0
    broker_ns: int = 0
    """The sum of the brokers' latencies."""
    buckets: list[int] = attrs.field(factory=lambda: [0] * (len(_BOUNDS_NS) + 1))
    """The number of exchanges in each latency bucket."""
    errors: Counter[str] = attrs.field(factory=Counter[str])
    """The errors in decoded responses, by Kafka's name."""

    def add_broker_ns(self, broker_ns: int, count: int = 1) -> None:
        """Add a broker's latency in one exchange, or in each of so many."""
        self.broker_ns += broker_ns * count
        self.buckets[bisect_left(_BOUNDS_NS, broker_ns)] += count


class Traffic:
    """Counts entries as they pass."""

    def __init__(self) -> None:
        self.apis: dict[str, ApiTraffic] = {}
        self._by_key: dict[int, ApiTraffic] = {}

    def count(self, entries: Iterable[Entry]) -> None:
        """Count the exchanges that these entries complete."""
        for entry in entries:
            if isinstance(entry, FrameRun):
                if entry.side is Side.BROKER:
                    self._count_responses(entry)
                else:
                    self._count_one_way(entry)
            elif not isinstance(entry, Note):
                self._count_frame(entry)

    def _count_responses(self, run: FrameRun) -> None:
        requests, count = run.requests, len(run)
        api = self._by_key.get(requests.api_key) or self._api(requests.api_key)
        api.exchanges += count
        api.request_bytes += sum(requests.sizes[run.nth : run.nth + count])
        api.response_bytes += run.frame_bytes
        # As `derived.broker_ns`, for unchanged responses: a call costs a microsecond.
        if sent_ns := requests.times.sent_before(run.times.received_ns):
            api.add_broker_ns(run.times.received_ns - sent_ns, count)

    def _count_one_way(self, run: FrameRun) -> None:
        if run.requests.flags & NO_RESPONSE:
            api = self._api(run.requests.api_key)
            api.exchanges += len(run)
            api.request_bytes += run.frame_bytes

    def _count_frame(self, frame: Frame) -> None:
        flags = frame.flags
        if flags & MORE or (frame.side is Side.CLIENT and not flags & NO_RESPONSE):
            return
        api = self._api(frame.api_key)
        if flags & UNANSWERED:
            api.unanswered += 1
            return
        api.exchanges += 1
        if frame.side is Side.CLIENT:
            api.request_bytes += frame.frame_bytes
            return
        api.request_bytes += frame.request_bytes
        api.response_bytes += frame.frame_bytes
        times = frame.request_sent_ns, frame.received_ns
        broker_ns = derived.broker_ns(*times, frame.frame_bytes, flags)
        if broker_ns != derived.UNKNOWN:
            api.add_broker_ns(broker_ns)
        if flags & (FAULTED | INJECTED) and frame.frame_bytes <= _DECODED_BYTES_MAX:
            kind, data = (frame.api_key, frame.api_version), frame.sent
            response = facts.decoded_response(frame, data, *kind)
            body = None if response is None else response.body
            api.errors.update(body_facts.errors(body, frame.api_key, data))

    def _api(self, api_key: int) -> ApiTraffic:
        found = self._by_key.get(api_key)
        if found is not None:
            return found
        name = schema.api_names().get(api_key)
        found = self.apis.setdefault(name or _OTHER_APIS, ApiTraffic())
        if name is not None:
            self._by_key[api_key] = found
        return found
