"""What `kproxy stats --headers` counts: columns of the table of exchanges, no exchange by itself.

    RowColumns ─▶ by API and connection: counts, sizes, durations ─▶ the tallies of `Stats`

Invariant: the same as if each exchange had been added to a `Stats` that reads no bodies, but for
polls whose limit only their body tells (ShareFetch): all of their time may be a wait.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import compress

import attrs

from kproxy.exchange.entries import NO_API, NO_NODE, RAW_SASL, SASL_TOKEN, UNANSWERED
from kproxy.exchange.filter import NO, UNKNOWN, YES
from kproxy.exchange.timing import JOINS, POLLS
from kproxy.protocol import api_key, api_name, codec
from kproxy.recording.columns import RowColumns
from kproxy.view.stats import Stats, Tally

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TOKEN = -2
"""In place of the API of a SASL token."""
_JOINS = frozenset(map(api_key, JOINS))
_POLLS = frozenset(map(api_key, POLLS))
_COLUMNS = (
    *("api_key", "connection", "node_id", "flags", "request_bytes", "response_bytes"),
    *("broker_ns", "queued_ns", "max_wait_ms", "proxy_ns"),
)


@attrs.define(eq=False)
class _Sums:
    """What the rows of one API on one connection have."""

    node_id: int
    count: int = 0
    bytes: int = 0
    unanswered: int = 0
    service_us: list[int] = attrs.field(factory=list[int])
    kept_us: list[int] = attrs.field(factory=list[int])

    def add_to(self, tally: Tally) -> None:
        """Count them."""
        tally.count += self.count
        tally.bytes += self.bytes
        tally.unanswered += self.unanswered
        tally.broker.add_microseconds(Counter(self.service_us))
        tally.proxy.add_microseconds(Counter(self.kept_us))


def count_rows(stats: Stats, columns: RowColumns, verdicts: bytes) -> bytes:
    """Count the rows that are certainly meant, by a client that is known; return the verdicts that
    are left to those who look into exchanges."""
    clients = columns["client_id"]
    if UNKNOWN in set(clients):
        certain = [
            verdict == YES and client is not UNKNOWN
            for verdict, client in zip(verdicts, clients, strict=True)
        ]
        left = bytes(
            NO if counted else verdict for verdict, counted in zip(verdicts, certain, strict=True)
        )
    else:
        certain = [verdict == YES for verdict in verdicts]
        left = verdicts.replace(bytes([YES]), bytes([NO]))
    times_ns = list(compress(columns["time_ns"], certain))
    if times_ns:
        stats.span(_time(times_ns[0]), _time(max(times_ns)))
        names = dict(zip(columns["connection"], clients, strict=True))
        for (key, connection), sums in _sums(columns, certain).items():
            node_id = None if sums.node_id == NO_NODE else sums.node_id
            stats.connect(connection, names[connection], node_id)
            for tally in stats.tallies(_api(key), names[connection]):
                sums.add_to(tally)
    return left


def _sums(columns: RowColumns, certain: list[bool]) -> dict[tuple[int, int], _Sums]:
    found: dict[tuple[int, int], _Sums] = {}
    rows = compress(zip(*map(columns.column, _COLUMNS), strict=True), certain)
    for key, connection, node_id, flags, asked, answered, broker, queued, wait, kept in rows:
        if key == NO_API and flags & RAW_SASL:
            key = _TOKEN
        sums = found.get((key, connection))
        if sums is None:
            sums = found[key, connection] = _Sums(node_id)
        sums.count += 1
        sums.bytes += asked + answered
        if not answered and flags & UNANSWERED:
            sums.unanswered += 1
        if kept >= 0:
            sums.kept_us.append((kept + 500) // 1000)
        if broker >= 0:
            # As of `exchange.timing`.
            left_us = max(0, (broker + 500) // 1000 - (queued + 500) // 1000)
            waited_us = 0
            if key in _JOINS or (key in _POLLS and key != codec.FETCH):
                waited_us = left_us
            elif key == codec.FETCH:
                waited_us = min(left_us, wait * 1000)
            if left_us > waited_us or not waited_us:
                sums.service_us.append(left_us - waited_us)
    return found


def _api(key: int) -> str | None:
    if key == _TOKEN:
        return SASL_TOKEN
    return None if key == NO_API else api_name(key)


def _time(time_ns: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_ns // 1000)
