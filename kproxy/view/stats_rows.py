"""Counting of `kproxy stats` by the columns of the table of exchanges, not by exchange.

::

    Rows ─┬─ columns ─▶ counts, sizes, durations ─┐
          └─ frames ──▶ errors, topics, records ──┴─▶ by API, client and topics ─▶ StatsPart

Invariant: the counts equal those of `StatsPart.of` for each exchange. The one exception: without
bodies, all of the time of a ShareFetch may be a wait, as only its body has the limit of the wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import mul
from typing import Any

import attrs

from kproxy.exchange.body_facts import BodyFacts, DecodedFacts
from kproxy.exchange.derived import INPUTS, POLLS, completed_ns
from kproxy.exchange.entities import TopicNames
from kproxy.exchange.entries import (
    CLIENT_ENDED,
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
    SILENCED,
    UNANSWERED,
    WITHHELD,
)
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.facts import is_changed_by_rule
from kproxy.exchange.histogram import Histogram
from kproxy.exchange.row_verdicts import MAYBE, NO, UNKNOWN_TEXT, YES
from kproxy.exchange.walked_facts import walk_facts
from kproxy.protocol import api_key, api_name
from kproxy.recording.columns import Rows
from kproxy.units import moment
from kproxy.view.stats_bodies import (
    COUNTED,
    Failure,
    RecordsByTopic,
    count_records,
    failure_of,
)
from kproxy.view.stats_counts import StatsPart, Tally, add_records

_TOKEN = -2
"""Stands for the API key of a SASL token, which has none."""


def _keys(names: Iterable[str]) -> frozenset[int]:
    return frozenset(key for key in map(api_key, names) if key is not None)


_POLLS = _keys(POLLS)
_DECODED = _keys(("Metadata", "JoinGroup", "ConsumerGroupHeartbeat", "ShareFetch"))
"""APIs whose messages are decoded, for leaders, generations and the limits of waits; as is a Fetch
whose row does not have its limit."""
_WHOLE_BODIES = (
    REWRITTEN | INJECTED | FAULTED | REDACTED | NO_RESPONSE | UNANSWERED | OPEN_AT_END
    | WITHHELD | SILENCED | CLIENT_ENDED
)  # fmt: skip
"""Flags that exchanges with whole bodies may have; other flags mean that a body is not."""


@attrs.define(eq=False)
class _RowGroup:
    """Rows of one API, client and set of topics, all with errors, or routine ones, or none."""

    rows: list[int] = attrs.field(factory=list[int])
    records: RecordsByTopic = attrs.field(factory=dict[str, list[int]])


_Groups = dict[tuple[int, str | None, tuple[str, ...], Failure], _RowGroup]


@attrs.define(eq=False)
class RowCounter:
    """Counts the exchanges of recordings, most of them by columns."""

    reads_bodies: bool = True
    _names: TopicNames | None = attrs.field(default=None, init=False)
    """The topic names of the current recording: another object means another recording."""
    _recording: int = attrs.field(default=1, init=False)
    """The number of the current recording."""

    def rows(self, rows: Rows) -> tuple[bytes, StatsPart | None]:
        """Count the rows that certainly match; return the verdicts for the other rows, which must
        be checked as exchanges. Those are all rows, if bodies are read and one is uncertain."""
        verdicts, self._recording, self._names = rows.verdicts, rows.recording, rows.names
        if YES not in verdicts or (self.reads_bodies and MAYBE in verdicts):
            return verdicts, None
        chosen, part = _ChosenRows(rows), StatsPart(rows.recording)
        counts = part.counts
        counts.extend_span(moment(min(chosen.times_ns)), moment(max(chosen.times_ns)))
        part.connections += chosen.first_of_connections()
        groups = self._by_bodies(rows, chosen, part) if self.reads_bodies else _by_headers(chosen)
        for (key, client_id, topics, failure), group in groups.items():
            tallies = counts.tallies(_api(key), client_id)
            chosen.add(group, failure, tallies, {name: counts.topic(name) for name in topics})
        return verdicts.replace(bytes([YES]), bytes([NO])), part

    def exchanges(self, left: Sequence[Exchange]) -> Iterator[StatsPart]:
        """Yield the counts of exchanges that `rows` left."""
        for each in left:
            if self._names is not None and self._names is not each.topic_names:
                self._recording += 1  # the next recording, and `rows` was not called for it
            self._names = each.topic_names
            yield StatsPart.of(each, self.reads_bodies, self._recording)

    def _by_bodies(self, rows: Rows, chosen: _ChosenRows, part: StatsPart) -> _Groups:
        """Group rows; add the counts that are not in tallies to the part."""
        groups = _Groups()
        clients, numbers = chosen.clients, chosen.column("number")
        for index, (key, facts, exchange) in enumerate(_bodies(rows, chosen)):
            if exchange is not None:
                part.add_decoded(exchange)
                if key in _POLLS:
                    chosen.served_us[index] = exchange.served_us
            failure = Failure.NONE
            if facts.errors:
                routine = rows.exchange(chosen.places[index]).routine
                failure = failure_of(facts.errors, routine)
                part.add_errors(facts.errors, failure, numbers[index], _api(key))
            part.counts.throttled += facts.throttled
            name = key, clients[index], tuple(facts.topics), failure
            group = groups.get(name)
            if group is None:
                group = groups[name] = _RowGroup()
            group.rows.append(index)
            if facts.records:
                count_records(facts.records, group.records, part.sequences)
        return groups


def _bodies(
    rows: Rows, chosen: _ChosenRows
) -> Iterator[tuple[int, BodyFacts | DecodedFacts, Exchange | None]]:
    """Yield the API key of each row, the facts in its bodies, and its exchange if these had to be
    decoded."""
    keys, names, walked = chosen.keys, rows.names, walk_facts
    versions, flags, asked_at, answered_at, waits = map(chosen.column, _FOR_BODIES)
    whole = {each for each in set(flags) if not each & ~_WHOLE_BODIES | is_changed_by_rule(each)}
    walks = [
        key not in _DECODED and flag in whole and (wait != 0 or key not in _POLLS)
        for key, flag, wait in zip(keys, flags, waits, strict=True)
    ]
    # A position that is multiplied by False is 0, and nothing is opened.
    opened = (rows.frames(map(mul, positions, walks)) for positions in (asked_at, answered_at))
    every = zip(keys, versions, walks, asked_at, answered_at, *opened, strict=True)
    for index, (key, version, walk, asked, answered, request, response) in enumerate(every):
        found = exchange = None
        if walk and (request or not asked) and (response or not answered):
            found = walked(key, version, request, response, names, COUNTED)
        if found is None:
            exchange = rows.exchange(chosen.places[index])
            found = exchange.decoded_facts
        yield key, found, exchange


_FOR_BODIES = ("api_version", "flags", "request_position", "response_position", "max_wait_ms")


def _by_headers(chosen: _ChosenRows) -> _Groups:
    groups = _Groups()
    for index, (key, client_id) in enumerate(zip(chosen.keys, chosen.clients, strict=True)):
        name = key, client_id, (), Failure.NONE
        group = groups.get(name)
        if group is None:
            group = groups[name] = _RowGroup()
        group.rows.append(index)
    return groups


class _ChosenRows:
    """The columns of the rows that are counted."""

    def __init__(self, rows: Rows) -> None:
        self._columns = rows.columns
        self._all = rows.verdicts.count(YES) == len(rows.verdicts)
        self.places: Sequence[int] = range(len(rows.verdicts))
        """The positions of the rows in the table."""
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
        self._unanswered = self._rare("got_no_response")
        self._undelivered = self._rare("undelivered")
        self._open = self._rare("open_at_end")
        self._silenced = self._rare("silenced")
        self._proxy_us = self.column("proxy_us")
        self.served_us = self.column("served_us")

    def column(self, name: str) -> list[Any]:
        """Return a column of the table for the chosen rows."""
        column = self._columns.get(name)
        if not self._all:
            return [column[place] for place in self.places]
        return column.tolist() if isinstance(column, memoryview) else list(column)

    def _rare(self, name: str) -> list[bool]:
        """Return a column of truth values for the chosen rows; empty if none is true."""
        found = self.column(name)
        return found if any(found) else []

    def first_of_connections(self) -> Iterator[tuple[int, str | None, int | None, int]]:
        """Yield the first use of each connection, in order: number, client id, node id, the end of
        the first exchange."""
        node_ids = self._columns.get("node_id")
        times = [self._columns.get(name) for name in INPUTS["completed_ns"]]
        from_last = range(len(self.connections) - 1, -1, -1)
        firsts = dict(zip(reversed(self.connections), from_last, strict=True))
        for index in sorted(firsts.values()):
            place = self.places[index]
            node_id = node_ids[place]
            yield (
                self.connections[index],
                self.clients[index],
                None if node_id == NO_NODE else node_id,
                completed_ns(*(column[place] for column in times)),
            )

    def add(
        self, group: _RowGroup, failure: Failure, tallies: list[Tally], by_topic: dict[str, Tally]
    ) -> None:
        """Add a group to tallies, and to those of its topics."""
        rows = group.rows
        size = sum(map(self._requests.__getitem__, rows))
        size += sum(map(self._responses.__getitem__, rows))
        unanswered = _true_of(self._unanswered, rows)
        undelivered = _true_of(self._undelivered, rows)
        open_at_end = _true_of(self._open, rows)
        silenced = _true_of(self._silenced, rows)
        service = Histogram.of(Counter(map(self.served_us.__getitem__, rows)))
        kept = Histogram.of(Counter(map(self._proxy_us.__getitem__, rows)))
        for tally in (*tallies, *by_topic.values()):
            tally.count += len(rows)
            tally.errors += len(rows) * (failure is Failure.ERROR)
            tally.routine += len(rows) * (failure is Failure.ROUTINE)
            tally.unanswered += unanswered
            tally.undelivered += undelivered
            tally.open += open_at_end
            tally.silenced += silenced
            tally.broker.merge(service)
            tally.proxy.merge(kept)
        for tally in tallies:
            tally.bytes += size
        add_records(group.records, tallies, by_topic)


def _true_of(column: list[bool], rows: list[int]) -> int:
    return sum(map(column.__getitem__, rows)) if column else 0


def _api(key: int) -> str | None:
    if key == _TOKEN:
        return SASL_TOKEN
    return None if key == NO_API else api_name(key)
