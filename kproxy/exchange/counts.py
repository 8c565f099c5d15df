"""The counts of exchanges: of `kproxy stats`, the page, reports and `analyze`; they are merged.

    Exchange ─▶ Counts: tallies by API and client, by API and topic, by error ─ merge ─▶ Counts

What depends on earlier exchanges, or on time, is counted elsewhere (`look.lines.stats`,
`look.report.part`).
Memory grows with the number of APIs, clients, topics and errors, not with that of exchanges.

Invariant: the sum of parts does not depend on their order, nor on how exchanges were divided. So
one process, several, and tasks of Spark come to the same counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import attrs

from kproxy.exchange import delivered, topic_records
from kproxy.exchange.derived import UNKNOWN
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.histogram import Histogram
from kproxy.exchange.merging import by, merge
from kproxy.exchange.words.failures import made_by_rule

Name = TypeVar("Name")
Counted = TypeVar("Counted")
Place = tuple[str, int]
"""A file or a recording, and the number of an exchange in it."""
Failure = tuple[str, str | None, str | None, bool]
"""An error, API, client_id, and whether all errors of these exchanges are routine."""
_TOPICS_MAX, _MESSAGES_MAX = 20, 3
"""Topics and messages of brokers that are kept with an error."""


@attrs.define(eq=False)
class Tally:
    """The counts of some exchanges."""

    count: int = 0
    errors: int = 0
    """Exchanges with errors, without those whose errors are all routine of the protocol …"""
    routine: int = 0
    """… and these."""
    no_response: int = 0
    """Exchanges whose client got no response that was due: …"""
    undelivered: int = 0
    """… it came, but did not reach the client, or not whole …"""
    too_late: int = 0
    """… of these, where no fault rule touched it: its connection had ended …"""
    open: int = 0
    """… or it may have come after the recording ended …"""
    touched: int = 0
    """… or the request was not answered, and a fault rule touched it."""
    silenced: int = 0
    """Those that a fault rule made so."""
    waited: int = 0
    queued: int = 0
    queued_us: int = 0
    bytes: int = 0
    """Bytes of frames in both directions; for a topic, bytes of its record batches."""
    records: int = 0
    broker: Histogram = attrs.field(factory=Histogram)
    proxy: Histogram = attrs.field(factory=Histogram)
    """What kproxy added to exchanges that no fault rule touched …"""
    proxy_touched: Histogram = attrs.field(factory=Histogram)
    """… and to others."""
    first_unanswered: tuple[int, Place] | None = None
    """The first request that was not answered for another reason: its time, its place."""
    longest_held: tuple[int, Place] | None = None
    """The negative longest time that kproxy added, in microseconds, and the exchange."""

    @property
    def unanswered(self) -> int:
        """Requests that were not answered, or not before the recording ended."""
        return self.no_response - self.undelivered

    @property
    def proxy_all(self) -> Histogram:
        """What kproxy added to all of them."""
        return merge(merge(Histogram(), self.proxy), self.proxy_touched)


def _some(most: int) -> dict[str, Any]:
    """Return the metadata of a set of texts of which only the first are kept."""
    return by(lambda one, other: set(heapq.nsmallest(most, one | other)))


@attrs.define(eq=False)
class ErrorTally:
    """The counts of one error of an API to a client."""

    count: int = 0
    injected: int = 0
    """Those that a fault rule made, in the broker's place or after its answer."""
    first: tuple[int, Place] | None = None
    """The time of the first exchange with it, and its place."""
    last_us: int = attrs.field(default=0, metadata=by(max))
    topics: set[str] = attrs.field(factory=set, metadata=_some(_TOPICS_MAX))
    messages: set[str] = attrs.field(factory=set, metadata=_some(_MESSAGES_MAX))
    """What brokers say of it."""


@attrs.define(eq=False)
class Counts:
    """The counts of exchanges, each by itself."""

    clients: dict[tuple[str | None, str | None], Tally] = attrs.field(factory=dict)
    """API and client_id → counts."""
    topics: dict[tuple[str | None, str], Tally] = attrs.field(factory=dict)
    """API and topic → counts."""
    failures: dict[Failure, ErrorTally] = attrs.field(factory=dict)

    @property
    def by_api(self) -> dict[str | None, Tally]:
        """The counts of each API."""
        return summed((api, tally) for (api, _), tally in self.clients.items())

    @property
    def total(self) -> Tally:
        """The counts of all exchanges."""
        return summed(("", tally) for tally in self.clients.values()).get("", Tally())

    def add(self, exchange: Exchange, place: Place, reads_bodies: bool = True) -> None:
        """Count an exchange."""
        api, client_id = exchange.api, exchange.client_id
        of_client = _of(self.clients, (api, client_id), Tally)
        of_client.bytes += (exchange.request_bytes or 0) + (exchange.response_bytes or 0)
        if not reads_bodies:
            _count([of_client], exchange, place)
            return
        facts = exchange.facts
        by_topic = {name: _of(self.topics, (api, name), Tally) for name in facts.topics}
        _count([of_client, *by_topic.values()], exchange, place, bool(facts.errors))
        time_us = exchange.time_ns // 1000
        for name in facts.errors:
            key = name, api, client_id, exchange.routine
            error = ErrorTally(
                1, int(made_by_rule(exchange, name)), (time_us, place), time_us,
                set(facts.topics), set(facts.error_messages),
            )  # fmt: skip
            merge(_of(self.failures, key, ErrorTally), error)
        done = delivered.carried_by(exchange)
        for each in facts.records if done else ():
            if each.where in done:
                count = topic_records.batch_heads(each).records or 0
                of_client.records += count
                if each.topic in by_topic:
                    by_topic[each.topic].records += count
                    by_topic[each.topic].bytes += len(each.data)


def summed(
    tallies: Iterable[tuple[Name, Counted]], empty: Callable[[], Counted] = Tally
) -> dict[Name, Counted]:
    """Return the sums of tallies by their names."""
    found: dict[Name, Counted] = {}
    for name, tally in tallies:
        merge(_of(found, name, empty), tally)
    return found


def _of(tallies: dict[Any, Any], key: Any, empty: Callable[[], Any]) -> Any:
    found = tallies.get(key)
    if found is None:
        found = tallies[key] = empty()
    return found


def _count(
    tallies: Iterable[Tally], exchange: Exchange, place: Place, failed: bool = False
) -> None:
    """Count an exchange in tallies, apart from its bytes and records."""
    routine = failed and exchange.routine
    touched, got_none = bool(exchange.row.fault_ids), exchange.got_no_response
    took = exchange.durations
    served_us, proxy_us, queued_us = took.served_us, took.proxy_us, took.queued_us
    for tally in tallies:
        tally.count += 1
        if failed:
            tally.errors += not routine
            tally.routine += routine
        if took.waiting_us > 0:
            tally.waited += 1
        if queued_us > 0:
            tally.queued += 1
            tally.queued_us += queued_us
        if served_us != UNKNOWN:
            tally.broker.add(served_us)
        if proxy_us != UNKNOWN:
            (tally.proxy_touched if touched else tally.proxy).add(proxy_us)
            if not touched:
                held, longest = (-proxy_us, place), tally.longest_held
                tally.longest_held = held if longest is None or held < longest else longest
        if got_none:
            _count_unanswered(tally, exchange, place, touched)


def _count_unanswered(tally: Tally, exchange: Exchange, place: Place, touched: bool) -> None:
    tally.no_response += 1
    tally.silenced += exchange.silenced
    if exchange.undelivered:
        tally.undelivered += 1
        tally.too_late += not touched
    elif exchange.open_at_end:
        tally.open += 1
    elif touched:
        tally.touched += 1
    else:
        here = exchange.time_ns // 1000, place
        tally.first_unanswered = merge(tally.first_unanswered, here)
