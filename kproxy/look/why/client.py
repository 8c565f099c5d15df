"""The story of a client: its software, connections, groups, topics, errors and silences.

::

    exchanges of the client ─┬─▶ History ─▶ connections · findings
                             └─▶ _RequestTally, ErrorCounts: what it asked, and what it was answered

Invariant: memory is bounded by a number of names of each kind; lists name at most `_NAMED_MAX`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs

from kproxy.exchange.endings import ConnectionEnd
from kproxy.exchange.exchange import Exchange
from kproxy.exchange.filter import matching
from kproxy.exchange.words import faults
from kproxy.exchange.words.wording import age, count, listed
from kproxy.history.connections import ClientConnection, Connections
from kproxy.history.history import ExchangeRows, History
from kproxy.history.items import Gap
from kproxy.history.ref import Ref, host_of
from kproxy.history.rows import SENT, TRIED, WROTE, Appended, Row
from kproxy.look.why.client_findings import (
    brief_producers,
    denied_users,
    pending_requests,
    small_requests,
    throttled_clients,
)
from kproxy.look.why.sentences import (
    NOT_RECORDED,
    Abridged,
    ErrorCounts,
    at,
    clock,
    count_in,
    ended_by,
    in_order,
    leads_to,
    named,
    software_of,
    users,
)
from kproxy.look.why.source import StorySource

_NAMED_MAX = 8
_SILENCES_MAX = 3
_SILENT_MS_MIN = 1000.0
"""Shorter pauses between requests are not told."""
_CONNECTIONS_TOLD = 5
_WRITES = {WROTE: "wrote to", SENT: "sent with acks=0 to", TRIED: "tried to write to"}


@attrs.define(eq=False)
class _RequestTally:
    """What a client asked, and what it was answered."""

    first: Ref
    last: Ref = attrs.field(default=attrs.Factory(lambda self: self.first, takes_self=True))
    """The one that was asked last."""
    count: int = 0
    hosts: dict[str, None] = attrs.Factory(dict)
    software: dict[str, None] = attrs.Factory(dict)
    users: Counter[str] = attrs.Factory(Counter)
    apis: Counter[str] = attrs.Factory(Counter)
    names: dict[str, Counter[str]] = attrs.Factory(dict)
    """What it did with named things ("wrote to topics", …) → how often with each."""
    only_routine: bool = True
    """It is known to have had no other answer so far."""
    errors: ErrorCounts = attrs.Factory(ErrorCounts)
    lost: Counter[tuple[str, str]] = attrs.Factory(Counter)
    """"never answered" or "not delivered", and why ("dropped by fault cut"; "" where nothing says
    it) → how often …"""
    first_lost: dict[tuple[str, str], Ref] = attrs.Factory(dict)
    """… and the first."""
    silences: list[tuple[int, int, str]] = attrs.Factory(list)
    """The longest: duration in nanoseconds, start, and the request after it."""
    busy_until_ns: int = 0

    def add(self, exchange: Exchange, taken: ExchangeRows) -> None:
        """Take the next exchange of the client, and what the history has taken of it."""
        self._add_silence(exchange)
        ref = taken.ref
        self.count += 1
        self.last = ref if ref.time_ns >= self.last.time_ns else self.last
        self.hosts[host_of(ref) or "?"] = None
        if software := software_of(exchange):
            self.software[software] = None
        if ref.user:
            count_in(self.users, ref.user)
        if exchange.api is not None:
            count_in(self.apis, f"{exchange.api} v{exchange.api_version}")
        for did, name in _used(exchange, taken.rows):
            count_in(self.names.setdefault(did, Counter()), name)
        if exchange.response_bytes is not None:
            self.only_routine &= exchange.routine
        self.errors.add(exchange, exchange.errors)
        if lost := _lost(exchange):
            self.lost[lost] += 1
            self.first_lost.setdefault(lost, ref)

    def _add_silence(self, exchange: Exchange) -> None:
        """Take the time from the latest answer until a request, if the client asked nothing in it.
        Requests come here in order of completion: one that began before is no end of a silence."""
        silent_ns = exchange.time_ns - self.busy_until_ns
        # What began in a silence, such as a long poll, proves that it was none.
        self.silences = [each for each in self.silences if each[0] + each[1] <= exchange.time_ns]
        if self.busy_until_ns and silent_ns >= _SILENT_MS_MIN * 1e6:
            self.silences.append((silent_ns, self.busy_until_ns, named(exchange)))
        self.silences.sort(reverse=True)
        del self.silences[_SILENCES_MAX:]
        self.busy_until_ns = max(self.busy_until_ns, exchange.completed_ns, exchange.time_ns)

    def add_gap(self) -> None:
        """Take a gap: what it asked, and was answered, in it is not known."""
        self.busy_until_ns, self.only_routine = 0, False


def _used(exchange: Exchange, rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield what an exchange did with named things: `wrote to topics`, `orders`."""
    wrote = (each for each in rows if isinstance(each, Appended))
    used = {(f"{_WRITES[each.outcome]} topics", each.where.topic) for each in wrote}
    if exchange.api == "Fetch":
        used = {("fetched from topics", topic) for topic in exchange.topics}
    yield from sorted(used)
    yield from (("named groups", group) for group in exchange.groups)
    yield from (("named transactional ids", name) for name in exchange.transactional_ids)


def _lost(exchange: Exchange) -> tuple[str, str] | None:
    """Return what happened to an answer that did not come, and why, as far as it is known."""
    if exchange.undelivered:
        return "not delivered", faults.undelivered(exchange)
    if exchange.is_late:
        return faults.unlearned(exchange), ""
    if exchange.got_no_response and not exchange.open_at_end:
        return "never answered", faults.silence(exchange)
    return None


def client_story(source: StorySource, value: str) -> Iterator[str]:
    """Yield the story of the clients that have a client id."""
    history = History()
    requests: _RequestTally | None = None
    for item in source.read(matching("client_id", value), history.connections.note):
        taken = history.add(item)
        source.watch(history, item, taken)
        if taken is not None and isinstance(item, Exchange) and item.client_id == value:
            requests = requests or _RequestTally(taken.ref)
            requests.add(item, taken)
        elif requests is not None and isinstance(item, Gap):
            requests.add_gap()
    if requests is not None:
        yield from _asked(requests, value, history.connections.used)
        yield from _connections(history.connections)
        for proved in (
            denied_users, throttled_clients, pending_requests, small_requests, brief_producers
        ):  # fmt: skip
            yield from (each.whole for each in proved(history))


def _asked(found: _RequestTally, client_id: str, connections: int) -> Iterator[str]:
    first, last = found.first, found.last
    yield (
        f"Client {client_id} ({listed(sorted(found.hosts), _NAMED_MAX)}):"
        f" {count(found.count, 'request')} on {count(connections, 'connection')}, from"
        f" {named(first)} of {at(first)} to {named(last)} of {at(last)}."
    )
    if len(found.hosts) > 1:
        yield "It has several hosts, so it may be several clients of one name."
    software = listed(found.software, _NAMED_MAX)
    yield f"Its software is {software}." if software else f"Its software {NOT_RECORDED}."
    yield from users(found.users)
    apis = [f"{api} ×{times}" for api, times in found.apis.most_common()]
    yield f"It used {listed(apis, 2 * _NAMED_MAX)}."
    for did, names in found.names.items():
        texts = [f"{name} ({count(times, 'request')})" for name, times in names.most_common()]
        yield f"It {did}: {listed(texts, _NAMED_MAX)}."
    yield from found.errors.lines(names_client=False, only_routine=found.only_routine)
    for (what, why), times in found.lost.items():
        came = what != "never answered"
        text = f"{count(times, 'response' if came else 'request')}"
        text += f" {'was' if times == 1 else 'were'} {what}, first {'that of ' if came else ''}"
        text += named(found.first_lost[what, why])
        yield f"{text} ({why})." if why else f"{text}."
    for silent_ns, from_ns, until in sorted(found.silences, key=lambda each: each[1]):
        yield f"{clock(from_ns)} it asked nothing for {age(silent_ns / 1e6)}, until {until}."


def _connections(connections: Connections) -> Iterator[str]:
    """Yield how its connections ended."""
    own = [each for each in connections if each.requests]
    ended = [(each.end.time_ns, _ended(each, each.end)) for each in own if each.end is not None]
    said = Abridged("connection", _CONNECTIONS_TOLD)
    for each in sorted(ended):
        said.say(*each)
    yield from in_order(said)
    if left := [str(number) for number in sorted(each.number for each in own if each.end is None)]:
        what = "Connection" if len(left) == 1 else "Connections"
        yield f"{what} {listed(left, _NAMED_MAX)}: the end {NOT_RECORDED}."


def _ended(connection: ClientConnection, end: ConnectionEnd) -> str:
    start, began = connection.start, f"whose begin {NOT_RECORDED}"
    if start is not None:
        began = f"{'open already' if start.was_open else 'opened'} at {clock(start.time_ns)}"
    return (
        f"connection {end.connection} to {leads_to(start.node_id) if start else '?'}, {began}, with"
        f" {count(connection.requests, 'request')}, ended {ended_by(end)}."
    )
