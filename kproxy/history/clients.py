"""Clients: how quotas hold them, how much a request of theirs writes, how short they live.

exchange, its rows ─▶ line of its connection ─▶ Throttling · Held · Writing · Brief

Invariant: memory is bounded by the connections that are open, and by `_CLIENTS_MAX` clients of each
kind; further ones are counted only.
"""

from __future__ import annotations

import re

import attrs

from kproxy.exchange.derived import PENDING_REQUESTS_MAX
from kproxy.exchange.endings import ConnectionEnd
from kproxy.history.kept import one_of
from kproxy.history.ref import Client, Ref, host_of
from kproxy.history.rows import Appended, Initialized, Throttled

_CLIENTS_MAX = 10_000
_NUMBERS_MAX = 100
_AT_ONCE_NS = 2_000_000
_NUMBERED = re.compile(r"[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}|\d+")
"""What clients of one app have of their own in their names: numbers and UUIDs."""


@attrs.define(eq=False)
class Longest:
    """Waits of one kind: how many, the longest, and which."""

    times: int = 0
    total_ms: float = 0.0
    longest_ms: float = 0.0
    longest: Ref | None = None
    numbers: list[int] = attrs.Factory(list)
    """Of the first exchanges, and the longest."""

    def add(self, ref: Ref, wait_ms: float) -> None:
        """Take a wait."""
        self.times += 1
        self.total_ms += wait_ms
        if len(self.numbers) < _NUMBERS_MAX:
            self.numbers.append(ref.number)
        if self.longest is None or wait_ms > self.longest_ms:
            self.longest, self.longest_ms = ref, wait_ms


@attrs.define(eq=False)
class Throttling:
    """How quotas hold a client."""

    told: Longest = attrs.Factory(Longest)
    """Answers that told it to wait."""
    waited: Longest = attrs.Factory(Longest)
    """Requests that it sent all the same, and that brokers left lying meanwhile."""
    apis: dict[str, None] = attrs.Factory(dict)


@attrs.define(eq=False)
class Writing:
    """What a client writes with its Produce requests."""

    first: Ref
    requests: int = 0
    records: int = 0
    size_bytes: int = 0
    behind: int = 0
    """Requests that came while others of their connection had no answer yet …"""
    at_once: int = 0
    """… and those that came as soon as the one before them, on whatever connection, had one."""
    answered_ns: int = 0


@attrs.define(eq=False)
class Brief:
    """Connections of clients of one name on one host, that wrote."""

    first: Ref
    """The first Produce, or before it the first InitProducerId."""
    last_ns: int = 0
    connections: int = 0
    single: int = 0
    """Those with a single Produce."""
    before: int = 0
    """Requests on connections before their first Produce."""
    initialized: int = 0
    """Producers that got a producer id."""


@attrs.define(eq=False)
class _Line:
    """A connection that is open."""

    answered_ns: int = 0
    """The latest arrival of a response."""
    muted_ms: int = 0
    """How long the latest response told to wait."""
    requests: int = 0
    produces: int = 0
    writing: Writing | None = None
    """That of its client, once it has written."""
    pending: list[int] = attrs.Factory(list)
    """When the latest requests were answered, since one came that found none unanswered."""


@attrs.define(eq=False)
class Clients:
    """The clients of a recording."""

    throttling: dict[Client, Throttling] = attrs.Factory(dict)
    held: dict[Client, Longest] = attrs.Factory(dict)
    """Requests that waited in kproxy, for `PENDING_REQUESTS_MAX` before them had no answer."""
    writing: dict[Client, Writing] = attrs.Factory(dict)
    brief: dict[Client, Brief] = attrs.Factory(dict)
    """Here names have no numbers."""
    _lines: dict[int, _Line] = attrs.field(factory=dict, init=False)

    def take(self, ref: Ref) -> bool:
        """Take the next exchange, before its rows; return whether it waited for a quota."""
        line = self._lines.get(ref.connection)
        if line is None:
            line = self._lines[ref.connection] = _Line()
        line.requests += 1
        was_muted = line.muted_ms > 0 and self._muted(line, ref)
        is_behind = ref.time_ns < line.answered_ns
        if not is_behind:
            line.pending.clear()
        elif len(line.pending) == PENDING_REQUESTS_MAX and line.pending[0] in _kept(ref):
            held = one_of(self.held, ref.client, _CLIENTS_MAX, Longest)
            held.add(ref, (ref.sent_ns - ref.time_ns) / 1e6)
        if ref.is_answered:
            if ref.answered_ns > line.answered_ns:
                line.answered_ns = ref.answered_ns
            line.pending.append(ref.answered_ns)
            if len(line.pending) > PENDING_REQUESTS_MAX:
                del line.pending[0]
        if ref.api == "Produce":
            self._wrote(line, ref, is_behind)
        return was_muted

    def throttled(self, ref: Ref, row: Throttled) -> None:
        """Take that a response told to wait."""
        self._lines[ref.connection].muted_ms = row.throttle_ms
        throttling = one_of(self.throttling, ref.client, _CLIENTS_MAX, Throttling)
        throttling.told.add(ref, row.throttle_ms)
        throttling.apis[ref.api or "?"] = None

    def initialized(self, ref: Ref, row: Initialized) -> None:
        """Take the request of a producer for a producer id."""
        if not row.transactional_id and not row.error:
            self._brief(ref).initialized += 1

    def appended(self, ref: Ref, row: Appended) -> None:
        """Take a write."""
        if (writing := self._lines[ref.connection].writing) is not None:
            writing.records += row.records
            writing.size_bytes += row.size_bytes

    def _muted(self, line: _Line, ref: Ref) -> bool:
        waited = muted_ms(line.muted_ms, line.answered_ns, ref.sent_ns, ref.answered_ns)
        line.muted_ms = 0
        if not ref.is_answered or waited <= 0:
            return False
        one_of(self.throttling, ref.client, _CLIENTS_MAX, Throttling).waited.add(ref, waited)
        return True

    def _wrote(self, line: _Line, ref: Ref, is_behind: bool) -> None:
        line.produces += 1
        writing = line.writing
        if writing is None or writing.first.client != ref.client:
            writing = line.writing = one_of(
                self.writing, ref.client, _CLIENTS_MAX, lambda: Writing(ref)
            )
        writing.requests += 1
        writing.behind += is_behind
        writing.at_once += not is_behind and ref.time_ns - writing.answered_ns < _AT_ONCE_NS
        writing.answered_ns = max(writing.answered_ns, ref.answered_ns)
        if line.produces > 2:
            return
        brief = self._brief(ref)
        if line.produces == 1:
            brief.last_ns = ref.time_ns
            brief.connections += 1
            brief.single += 1
            brief.before += line.requests - 1
        else:
            brief.single -= 1

    def end(self, end: ConnectionEnd) -> None:
        """Take the end of a connection."""
        self._lines.pop(end.connection, None)

    def _brief(self, ref: Ref) -> Brief:
        client = host_of(ref), _NUMBERED.sub("#", ref.client_id or "")
        return one_of(self.brief, client, _CLIENTS_MAX, lambda: Brief(ref))

    def gap(self) -> None:
        """Take a gap: what was asked and answered in it is not known."""
        for line in self._lines.values():
            line.muted_ms = 0
            line.pending.clear()


def muted_ms(throttle_ms: int, told_ns: int, sent_ns: int, answered_ns: int) -> float:
    """Return how long a broker left a request lying, for a response had told its client to wait: it
    reads nothing more of the connection until that is over (KIP-219)."""
    until_ns = min(answered_ns, told_ns + throttle_ms * 1_000_000)
    return max(0.0, (until_ns - max(sent_ns, told_ns)) / 1e6)


def _kept(ref: Ref) -> range:
    """Return the times for which kproxy had a request, and had not sent it on."""
    return range(ref.time_ns + 1, ref.sent_ns + 1)
