"""The counts of a report over some exchanges and notes; parts are merged.

    Exchange, Note ─▶ ReportPart ─ merge ─▶ ReportPart ─▶ summary.report_data

Memory grows with the number of APIs, clients, topics, groups and their generations, errors,
connections, producers and files, not with the number of exchanges.

Invariant: the sum of parts does not depend on their order, nor on how exchanges were divided. So
one process, several, and tasks of Spark come to the same report.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import attrs

from kproxy.exchange.counts import Counts, Place
from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.endings import connection_end
from kproxy.exchange.entries import CONNECTIONS, EVENTS, Note
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import bucket
from kproxy.exchange.merging import Spans, by, by_key, joined
from kproxy.history.events import ExchangeRows
from kproxy.history.items import GAPS
from kproxy.history.rows import TRIED, Appended, ClusterDescribed, Read
from kproxy.look.report.commits import CommittedOffsets
from kproxy.look.report.data import ROWS_MAX, FileSpan
from kproxy.look.report.groups import GroupTally, group_events
from kproxy.look.report.slots import Slots
from kproxy.recording.notices import notice
from kproxy.units import moment

_SLOTS_MAX = 180
_PHASES_MAX = 24
_SENTENCES = frozenset(
    {"torn", "damaged", "missing", "copied", "gone", "all_removed", "pause", "unread"}
)
"""Notes on the state of a file, which each have a sentence."""

Producer = tuple[str, str, int, int, int]
"""Recording, topic, partition, producer id and epoch."""


def traffic(taken: ExchangeRows) -> Iterator[Appended | Read]:
    """Yield the rows of the batches that a broker took, or that their client got."""
    fate = taken.ref.fate
    is_lost = fate.may_be_lost or fate.is_changed
    for row in taken.rows:
        if isinstance(row, Appended):
            if row.outcome != TRIED and row.size_bytes:
                yield row
        elif isinstance(row, Read) and row.size_bytes and not (is_lost or row.error):
            yield row


def ended_by(closed: Note) -> str:
    """Return the side that ended a connection first."""
    first = connection_end(closed).first
    return "proxy" if first is None else first.side


@attrs.define(eq=False)
class ReportPart:
    """Counts of exchanges and notes."""

    slots: Slots = attrs.field(factory=lambda: Slots(_SLOTS_MAX), metadata=by(Slots.merge))
    """Keys: bucket and its number, api, error; produced and consumed (bytes) and topic."""
    phases: Slots = attrs.field(factory=lambda: Slots(_PHASES_MAX), metadata=by(Slots.merge))
    """Keys: API, topic, bucket of the broker's time; None as the bucket counts them all."""
    files: dict[str, FileSpan] = attrs.Factory(dict)
    counts: Counts = attrs.Factory(Counts)
    groups: dict[tuple[str, str], GroupTally] = attrs.Factory(dict)
    """Recording and group → counts."""
    commits: dict[str, CommittedOffsets] = attrs.Factory(dict)
    """Recording → how far its groups have committed."""
    cluster_ids: dict[str, set[str]] = attrs.Factory(dict)
    """Recording → ids of clusters that it shows."""
    connections: set[tuple[str, int]] = attrs.Factory(set)
    records: Counter[str] = attrs.Factory(Counter)
    """Records that were "produced", without those of `numbered`, and "consumed"."""
    numbered: dict[Producer, Spans] = attrs.field(factory=dict, metadata=by(by_key(joined)))
    """Sequences that idempotent producers wrote: what they send again, the broker knows by them.
    Unlike those of `ProducerStates`, they merge, and no producer drops out of them."""
    slowest: list[tuple[Any, ...]] = attrs.field(
        factory=list, metadata=by(lambda one, other: _first([*one, *other]))
    )
    """The negative time that the broker took, time and place of the exchange, and its row."""
    ended_by: Counter[str] = attrs.Factory(Counter)
    stalls: int = 0
    longest_stall_seconds: float = attrs.field(default=0.0, metadata=by(max))
    lost: dict[str, Counter[str]] = attrs.Factory(dict)
    """Reason → "frames" and "bytes" that are not in the recordings."""
    sentences: set[tuple[int, str]] = attrs.Factory(set)
    """Times and sentences on the state of files."""

    @property
    def produced(self) -> int:
        """The number of records that were written, each once."""
        numbered = itertools.chain.from_iterable(self.numbered.values())
        return self.records["produced"] + sum(end - start for start, end in numbered)

    # ---- exchanges

    def add(
        self, exchange: Exchange, taken: ExchangeRows, recording: str, file: str,
        charted: bool = True,
    ) -> None:  # fmt: skip
        """Count an exchange of a file, and its rows; what no finding needs, if it is `charted`."""
        number, time_us = exchange.row.number, exchange.time_ns // 1000
        span = self.files.get(file)
        if span is None:
            span = FileSpan(file, recording, time_us, time_us, number, number)
            self.files[file] = span
        span.add(time_us, number)
        self.connections.add((recording, exchange.row.connection))
        self.counts.add(exchange, (file, number))
        self._add_phases(exchange, time_us)
        self._add_slowest(exchange, (file, number))
        for row in taken.rows:
            if isinstance(row, ClusterDescribed) and row.cluster:
                self.cluster_ids.setdefault(recording, set()).add(row.cluster)
        if recording not in self.commits:
            self.commits[recording] = CommittedOffsets()
        self.commits[recording].take(*taken)
        if events := list(group_events(exchange, taken)):
            group = self.groups.setdefault((recording, events[0].group), GroupTally())
            group.add(events, exchange)
        if charted:
            self._add_over_time(exchange, taken, recording)

    def _add_over_time(self, exchange: Exchange, taken: ExchangeRows, recording: str) -> None:
        counts = self.slots.at(exchange.time_ns // 1000)
        counts["api", exchange.api] += 1
        if exchange.durations.served_us != UNKNOWN:
            counts["bucket", bucket(exchange.durations.served_us)] += 1
        for error in exchange.facts.errors:
            counts["error", error] += 1
        for row in traffic(taken):
            topic, partition = row.where
            direction = "produced" if isinstance(row, Appended) else "consumed"
            counts[direction, topic] += row.size_bytes
            if isinstance(row, Appended) and len(row.sequences) == 1:
                producer_id, epoch, sequence, _ = row.sequences[0]
                key = recording, topic, partition, producer_id, epoch
                span = sequence, sequence + row.records
                self.numbered[key] = joined(self.numbered.get(key, []), [span])
            else:
                self.records[direction] += row.records

    def _add_phases(self, exchange: Exchange, time_us: int) -> None:
        for topic in exchange.facts.topics:
            phase = self.phases.at(time_us)
            phase[exchange.api, topic, None] += 1
            if exchange.durations.served_us != UNKNOWN:
                phase[exchange.api, topic, bucket(exchange.durations.served_us)] += 1

    def _add_slowest(self, exchange: Exchange, place: Place) -> None:
        served_us = exchange.durations.served_us
        least_us = -self.slowest[-1][0] if len(self.slowest) >= ROWS_MAX else 0
        if served_us == UNKNOWN or served_us < least_us:
            return
        shown = {
            "number": exchange.number, "file": place[0], "time": moment(exchange.time_ns),
            "api": exchange.api, "client_id": exchange.client_id, "node_id": exchange.node_id,
            "topics": exchange.topics, "service_ms": served_us / 1000,
            "waiting_ms": exchange.durations.waiting_us / 1000,
            "queued_ms": exchange.durations.queued_us / 1000,
        }  # fmt: skip
        self.slowest = _first([*self.slowest, (-served_us, exchange.time_ns, place, shown)])

    # ---- notes

    def add_note(self, note: Note, recording: str) -> None:
        """Count a note of a recording."""
        body = note.body
        event = body.get("event")
        if note.channel == CONNECTIONS:
            if event == "closed":
                self.ended_by[ended_by(note)] += 1
            return
        if note.channel != EVENTS:
            return
        if event in GAPS:
            self.commits.setdefault(recording, CommittedOffsets()).gap(note.time_ns)
        if event == "stood_still":
            self.stalls += 1
            self.longest_stall_seconds = max(self.longest_stall_seconds, body.get("seconds") or 0.0)
        elif event == "lost":
            lost = self.lost.setdefault(body.get("reason") or "?", Counter())
            lost.update({name: body.get(name) or 0 for name in ("frames", "bytes")})
        elif event in _SENTENCES and (sentence := notice(note)) is not None:
            self.sentences.add((note.time_ns, sentence))


def _first(slowest: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return heapq.nsmallest(ROWS_MAX, slowest, key=lambda each: each[:3])
