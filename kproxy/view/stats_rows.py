"""What `kproxy stats` counts: columns of the table of exchanges, no exchange by itself.

::

    Rows ─┬─ columns ─▶ counts, sizes, durations ─┐
          └─ frames ──▶ errors, topics, records ──┴─▶ by API, client and topics ─▶ StatsPart

Invariant: the same as if each exchange had been counted by itself (`StatsPart.of`), but without bodies
for polls whose limit only their body tells (ShareFetch): all of their time may be a wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from kproxy.exchange import body_facts
from kproxy.exchange.derived import POLLS
from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    FAULTED,
    INJECTED,
    NO_API,
    NO_NODE,
    NO_RESPONSE,
    OPEN_AT_END,
    RAW_SASL,
    REDACTED,
    REWRITTEN,
    SASL_TOKEN,
    UNANSWERED,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import MAYBE, NO, UNKNOWN_TEXT, YES
from kproxy.exchange.histogram import Histogram
from kproxy.protocol import api_key, api_name
from kproxy.recording.columns import Rows
from kproxy.units import moment
from kproxy.view.stats_bodies import COUNTED, BodyCounts, count_bodies
from kproxy.view.stats_counts import StatsPart, Tally

_TOKEN = -2
"""In place of the API of a SASL token."""


def _keys(names: Iterable[str]) -> frozenset[int]:
    return frozenset(key for key in map(api_key, names) if key is not None)


_POLLS = _keys(POLLS)
_DECODED = _keys(("Metadata", "JoinGroup", "ConsumerGroupHeartbeat", "ShareFetch"))
"""Of these more counts than facts: leaders, generations, how long they may wait, as of a Fetch of
which its row does not tell it."""
_AS_SENT = REWRITTEN | INJECTED | FAULTED | REDACTED | NO_RESPONSE | UNANSWERED | OPEN_AT_END
"""Flags of frames whose bodies are whole and known."""


@attrs.define(eq=False)
class _RowGroup:
    """Rows of one API, client and set of topics, which all failed or all did not."""

    rows: list[int] = attrs.field(factory=list[int])
    records: int = 0
    by_topic: dict[str, list[int]] = attrs.field(factory=dict[str, list[int]])
    """How many records, and the bytes of their batches."""

    def carry(self, records: Iterable[tuple[str, int, int]]) -> None:
        """Count what was produced or fetched."""
        for topic, count, size in records:
            self.records += count
            found = self.by_topic.setdefault(topic, [0, 0])
            found[0] += count
            found[1] += size


_Groups = dict[tuple[int, str | None, tuple[str, ...], bool], _RowGroup]


@attrs.define(eq=False)
class RowCounter:
    """Counts what is read of recordings, most of it by columns."""

    reads_bodies: bool = True
    _names: TopicNames | None = attrs.field(default=None, init=False)
    """Those of the recording that the last rows were in …"""
    _recording: int = attrs.field(default=1, init=False)
    """Which one the last rows were in."""

    def rows(self, rows: Rows) -> tuple[bytes, StatsPart | None]:
        """Count the rows that are certainly meant; return the verdicts that are left to those who
        look into exchanges: all, where one of them must be asked in between."""
        verdicts, self._recording, self._names = rows.verdicts, rows.recording, rows.names
        if YES not in verdicts or (self.reads_bodies and MAYBE in verdicts):
            return verdicts, None
        chosen, part = _Chosen(rows), StatsPart(rows.recording)
        counts = part.counts
        counts.span(moment(min(chosen.times_ns)), moment(max(chosen.times_ns)))
        part.connections += chosen.first_of_connections()
        groups = self._by_bodies(rows, chosen, part) if self.reads_bodies else _by_headers(chosen)
        for (key, client_id, topics, failed), group in groups.items():
            tallies = counts.tallies(_api(key), client_id)
            chosen.add(group, failed, tallies, {name: counts.topic(name) for name in topics})
        return verdicts.replace(bytes([YES]), bytes([NO])), part

    def left(self, shown: Exchange | ConnectionEnd) -> tuple[StatsPart | ConnectionEnd]:
        """Return what an exchange tells that was left; the end of a connection tells itself."""
        if isinstance(shown, ConnectionEnd):
            return (shown,)
        if self._names is not None and self._names is not shown.topic_names:
            self._recording += 1  # of another one, of which there were no rows
        self._names = shown.topic_names
        return (StatsPart.of(shown, self.reads_bodies, self._recording),)

    def _by_bodies(self, rows: Rows, chosen: _Chosen, part: StatsPart) -> _Groups:
        """Group rows; count what stands in no tally."""
        groups = _Groups()
        clients, numbers = chosen.clients, chosen.column("number")
        for index, (key, said, exchange) in enumerate(_told(rows, chosen)):
            if exchange is not None:
                part.see(exchange)
                if key in _POLLS:
                    chosen.served_us[index] = exchange.served_us
            name = key, clients[index], said.topics, bool(said.errors)
            group = groups.get(name)
            if group is None:
                group = groups[name] = _RowGroup()
            group.rows.append(index)
            if said.records:
                group.carry(said.records)
            if said.errors or said.throttled or said.sequences:
                part.tell(said, numbers[index], _api(key))
        return groups


def _told(rows: Rows, chosen: _Chosen) -> Iterator[tuple[int, BodyCounts, Exchange | None]]:
    """Yield the APIs of rows and what their bodies tell; and the exchange, where that is one with
    bodies to be decoded."""
    columns: list[list[int]] = [chosen.keys, *map(chosen.column, _FOR_BODIES)]
    frame, names, walked = rows.frame, rows.names, body_facts.walked
    every: Iterator[tuple[int, ...]] = zip(*columns, strict=True)
    for index, (key, version, flags, asked_at, answered_at, wait) in enumerate(every):
        found = exchange = None
        if key not in _DECODED and not flags & ~_AS_SENT:
            request = frame(asked_at) if asked_at else None
            response = frame(answered_at) if answered_at else None
            if (request or not asked_at) and (response or not answered_at):
                if wait or key not in _POLLS:
                    found = walked(key, version, request, response, names, COUNTED)
        if found is None:
            exchange = rows.exchange(chosen.places[index])
            found = exchange.decoded_facts
        yield key, count_bodies(found), exchange


_FOR_BODIES = ("api_version", "flags", "request_position", "response_position", "max_wait_ms")


def _by_headers(chosen: _Chosen) -> _Groups:
    groups = _Groups()
    for index, (key, client_id) in enumerate(zip(chosen.keys, chosen.clients, strict=True)):
        group = groups.get((key, client_id, (), False))
        if group is None:
            group = groups[key, client_id, (), False] = _RowGroup()
        group.rows.append(index)
    return groups


class _Chosen:
    """The rows that are counted, by columns."""

    def __init__(self, rows: Rows) -> None:
        self._columns = rows.columns
        self._all = rows.verdicts.count(YES) == len(rows.verdicts)
        self.places: Sequence[int] = range(len(rows.verdicts))
        """Where they stand in the table."""
        if not self._all:
            self.places = [at for at, verdict in enumerate(rows.verdicts) if verdict == YES]
        self.times_ns = self.column("time_ns")
        self.connections = self.column("connection")
        self.clients = self.column("client_id")
        if UNKNOWN_TEXT in self.clients:
            self.clients = [
                rows.exchange(place).client_id if client is UNKNOWN_TEXT else client
                for place, client in zip(self.places, self.clients, strict=True)
            ]
        self.keys: list[int] = self.column("api_key")
        if NO_API in self.keys:
            self.keys = [
                _TOKEN if key == NO_API and flag & RAW_SASL else key
                for key, flag in zip(self.keys, self.column("flags"), strict=True)
            ]
        self._requests = self.column("request_bytes")
        self._responses = self.column("response_bytes")
        self._unanswered = self.column("got_no_response")
        self._kept_us = self.column("proxy_us")
        self.served_us = self.column("served_us")

    def column(self, name: str) -> list[Any]:
        """A column of the table, of these rows."""
        column = self._columns.get(name)
        if not self._all:
            return [column[place] for place in self.places]
        return column.tolist() if isinstance(column, memoryview) else list(column)

    def first_of_connections(self) -> Iterator[tuple[int, str | None, int | None, int]]:
        """Yield connections, each with its client and broker, and when the first of its exchanges
        was over, in order."""
        completed_ns = self.column("completed_ns")
        node_ids = self.column("node_id")
        seen: set[int] = set()
        for index, (connection, time_ns) in enumerate(
            zip(self.connections, completed_ns, strict=True)
        ):
            if connection not in seen:
                seen.add(connection)
                node_id = node_ids[index]
                known = None if node_id == NO_NODE else node_id
                yield connection, self.clients[index], known, time_ns

    def add(
        self, group: _RowGroup, failed: bool, tallies: list[Tally], by_topic: dict[str, Tally]
    ) -> None:
        """Count a group in tallies, and in those of its topics."""
        rows = group.rows
        size = sum(map(self._requests.__getitem__, rows))
        size += sum(map(self._responses.__getitem__, rows))
        unanswered = sum(map(self._unanswered.__getitem__, rows))
        service = Histogram.of(Counter(map(self.served_us.__getitem__, rows)))
        kept = Histogram.of(Counter(map(self._kept_us.__getitem__, rows)))
        for tally in (*tallies, *by_topic.values()):
            tally.count += len(rows)
            tally.errors += len(rows) * failed
            tally.unanswered += unanswered
            tally.broker.merge(service)
            tally.proxy.merge(kept)
        for tally in tallies:
            tally.bytes += size
            tally.records += group.records
        for topic, (count, topic_bytes) in group.by_topic.items():
            if topic in by_topic:
                by_topic[topic].records += count
                by_topic[topic].bytes += topic_bytes


def _api(key: int) -> str | None:
    if key == _TOKEN:
        return SASL_TOKEN
    return None if key == NO_API else api_name(key)
